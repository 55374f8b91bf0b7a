// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/PythonFrame.h"  // before any other header: it includes Python's internals
//
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/client/Client.h"
#include "device/record/Origin.h"
#include "device/tensor/Thread.h"

namespace mycelya {
namespace {

struct Code {
  uint32_t number;
  bool internal;
  bool library;
  const std::vector<Origin>* places = nullptr;  // of a graph's code; see SetPlaces
};

std::mutex codes_mutex;  // guards codes
// Leaked: kernels may run while the process exits.
auto& codes = *new std::unordered_map<PyCodeObject*, Code>();
std::atomic<uint32_t> last_number{0};   // of a code object, or of the places of a graph in one function
std::atomic<bool> places_exist{false};  // a code object in `codes` has places
auto& internal_files = *new std::vector<std::string>();
std::string standard_library;
PyObject* cell_namer = nullptr;

// A file's name for users: that of a notebook's cell instead of its temporary file. Needs the GIL.
std::string ShownName(const char* file) {
  if (C10_LIKELY(cell_namer == nullptr)) return file;
  PyObject* name = PyObject_CallFunction(cell_namer, "s", file);
  const char* text = name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr;
  std::string out = text != nullptr ? text : file;
  PyErr_Clear();
  Py_XDECREF(name);
  return out;
}

bool StartsWith(const char* text, const std::string& prefix) {
  return !prefix.empty() && std::string_view(text).substr(0, prefix.size()) == prefix;
}

bool IsInternal(const char* file) {
  const auto inside = [&](const std::string& folder) { return StartsWith(file, folder); };
  // torch.fx names the code of its graphs <eval_with_key>.
  return inside("<frozen") || inside("<eval_with_key>") ||
         std::any_of(internal_files.begin(), internal_files.end(), inside);
}

bool IsLibrary(std::string_view file) {
  constexpr auto kNone = std::string_view::npos;
  return file.find("/site-packages/") != kNone || file.find("/dist-packages/") != kNone ||
         (!standard_library.empty() && file.substr(0, standard_library.size()) == standard_library);
}

Code Intern(PyCodeObject* code) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  // The thread may be unwinding an exception: keep it out of the calls below.
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) file = "?";
  const char* function = PyUnicode_AsUTF8(code->co_name);
  if (function == nullptr) function = "?";
  const bool internal = IsInternal(file);
  std::vector<int32_t> lines;
  if (!internal) {
    const uint32_t n = SizeOf(code) / 2;
    lines.resize(n);
    for (uint32_t i = 0; i < n; ++i) lines[i] = PyCode_Addr2Line(code, static_cast<int>(2 * i));
  }
  Code result{0, internal, !internal && IsLibrary(file)};
  bool fresh = false;
  {
    std::lock_guard<std::mutex> guard(codes_mutex);
    const auto [it, inserted] = codes.try_emplace(code, result);
    if (inserted) it->second.number = ++last_number;
    result = it->second;
    fresh = inserted;
  }
  if (fresh) {
    // Never freed: another function could get its address.
    Py_INCREF(code);
    if (!internal) DefineCode(result.number, ShownName(file).c_str(), function, lines.data(), lines.size());
  }
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
  return result;
}

// Code objects that this thread has met. The table is direct-mapped: a miss costs a look-up in the shared map.
struct Cached {
  PyCodeObject* code = nullptr;
  Code value{};
};

// Forward origin of each autograd node, by its sequence number. New nodes overwrite old ones: a graph of more than
// 65,536 live nodes shows the backward line for its oldest nodes.
constexpr uint64_t kRemembered = 1 << 16;
struct Remembered {
  uint64_t sequence = ~uint64_t{0};
  Origin origin{};
};

struct Here {
  Origin place{};  // see PlaceScope
  Cached cache[256];
  std::vector<Remembered> remembered;
};

C10_NOINLINE Here& MakeHere() {
  static thread_local Here here;
  this_thread.origins = &here;
  return here;
}

Here& GetHere(Thread& thread = this_thread) {
  void* known = thread.origins;
  return C10_LIKELY(known != nullptr) ? *static_cast<Here*>(known) : MakeHere();
}

C10_NOINLINE void Miss(Cached& c, PyCodeObject* code) {
  {
    std::lock_guard<std::mutex> guard(codes_mutex);
    const auto it = codes.find(code);
    if (it != codes.end()) {
      c = {code, it->second};
      return;
    }
  }
  c = {code, Intern(code)};
}

C10_ALWAYS_INLINE const Code& LookUp(Here& here, PyCodeObject* code) {
  Cached& c = here.cache[(reinterpret_cast<uintptr_t>(code) >> 4) & 255];
  if (C10_UNLIKELY(c.code != code)) Miss(c, code);
  return c.value;
}

Origin PlaceOf(const Code& c, uint32_t offset) {
  const size_t i = offset / 2;
  return i < c.places->size() ? (*c.places)[i] : Origin{};
}

Origin OriginOfFrame(Here& here) {
  if (here.place.code != 0) return here.place;
  for (Frame* f = InnermostFrame(); f != nullptr; f = CallerOf(f)) {
    PyCodeObject* code = CodeOf(f);
    if (code == nullptr) continue;
    const Code& c = LookUp(here, code);
    if (c.internal) continue;
    if (C10_LIKELY(c.places == nullptr)) return {c.number, OffsetOf(f, code)};
    const Origin place = PlaceOf(c, OffsetOf(f, code));
    if (place.code != 0) return place;
  }
  return {};
}

// The place of the graph whose Python code runs, if no other code of the user is within it.
Origin OriginInGraph(Here& here) {
  if (here.place.code != 0 || !places_exist.load(std::memory_order_relaxed)) return here.place;
  for (Frame* f = InnermostFrame(); f != nullptr; f = CallerOf(f)) {
    PyCodeObject* code = CodeOf(f);
    if (code == nullptr) continue;
    const Code& c = LookUp(here, code);
    if (c.places != nullptr) return PlaceOf(c, OffsetOf(f, code));
    if (!c.internal) break;
  }
  return {};
}

bool Same(Origin a, Origin b) { return a.code == b.code && a.offset == b.offset; }

// The number that a place has together with the line that has led to it.
uint32_t NumberOf(Origin place, Origin caller) {
  static auto& numbers = *new std::map<std::array<uint32_t, 4>, uint32_t>();
  uint32_t number = 0;
  {
    const std::lock_guard<std::mutex> guard(codes_mutex);
    const auto [it, inserted] = numbers.try_emplace({place.code, place.offset, caller.code, caller.offset});
    if (!inserted) return it->second;
    number = it->second = ++last_number;
  }
  DefineCall(number, place, caller);
  return number;
}

}  // namespace

Origin WithCaller(Origin origin) {
  Here& here = GetHere();
  bool library = false;
  for (Frame* f = InnermostFrame(); f != nullptr; f = CallerOf(f)) {
    PyCodeObject* code = CodeOf(f);
    if (code == nullptr) continue;
    const Code c = LookUp(here, code);
    if (c.internal) continue;
    const uint32_t offset = OffsetOf(f, code);
    const Origin place = c.places == nullptr ? Origin{c.number, offset} : PlaceOf(c, offset);
    if (place.code == 0) continue;
    if (!c.library) return library ? Origin{NumberOf(origin, place), 0} : origin;
    if (!library && !Same(place, origin)) return origin;
    library = true;
  }
  return origin;
}

Origin CurrentOrigin() { return OriginOfFrame(GetHere()); }

Origin RecordOrigin(Thread& thread) {
  Here& here = GetHere(thread);
  auto& remembered = here.remembered;
  // Nodes are numbered per thread, and backward runs in the thread that called it.
  const auto node = torch::autograd::get_current_node();
  if (node != nullptr && !remembered.empty()) {
    // A graph's backward has the lines of its forward.
    const Origin place = OriginInGraph(here);
    if (place.code != 0) return place;
    const Remembered& r = remembered[node->sequence_nr() % kRemembered];
    if (r.sequence == node->sequence_nr()) return r.origin;
  }
  const Origin origin = OriginOfFrame(here);
  if (node == nullptr && c10::AutogradState::get_tls_state().get_grad_mode()) {
    if (remembered.empty()) remembered.resize(kRemembered);
    // Autograd has just made the node of this op, if the op has one. An op without a node must not overwrite another
    // op's entry: the first record after a node belongs to that node.
    const uint64_t made = at::sequence_number::peek() - 1;
    Remembered& r = remembered[made % kRemembered];
    if (r.sequence != made) r = {made, origin};
  }
  return origin;
}

std::vector<Origin> DefinePlaces(const std::vector<std::optional<Place>>& places) {
  std::vector<Origin> origins(places.size());
  struct Function {
    uint32_t number;
    std::vector<int32_t> lines;
  };
  std::map<std::pair<std::string, std::string>, Function> functions;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!places[i].has_value()) continue;
    const Place& p = *places[i];
    const auto [it, inserted] = functions.try_emplace({p.file, p.function});
    Function& f = it->second;
    if (inserted) f.number = ++last_number;
    if (f.lines.empty() || f.lines.back() != p.line) f.lines.push_back(p.line);
    origins[i] = {f.number, static_cast<uint32_t>(2 * (f.lines.size() - 1))};
  }
  for (const auto& [name, f] : functions) {
    const std::string file = ShownName(name.first.c_str());
    DefineCode(f.number, file.c_str(), name.second.c_str(), f.lines.data(), f.lines.size());
  }
  return origins;
}

void SetPlaces(PyObject* object, std::vector<Origin> places) {
  TORCH_CHECK_TYPE(PyCode_Check(object), "expected a code object, got ", Py_TYPE(object)->tp_name);
  auto* code = reinterpret_cast<PyCodeObject*>(object);
  // Never freed, as all code objects that a record has met.
  const auto* kept = new std::vector<Origin>(std::move(places));
  std::lock_guard<std::mutex> guard(codes_mutex);
  const auto [it, inserted] = codes.try_emplace(code, Code{0, false, false, kept});
  if (!inserted) {  // a thread may have cached the entry without places
    delete kept;
    return;
  }
  Py_INCREF(object);
  it->second.number = ++last_number;
  places_exist.store(true, std::memory_order_relaxed);
}

PlaceScope::PlaceScope() : place_(&GetHere().place), before_(*place_) {}

PlaceScope::~PlaceScope() { *place_ = before_; }

void SetCellNamer(PyObject* namer) {
  Py_XINCREF(namer);
  Py_XSETREF(cell_namer, namer);
}

void SkipFiles(const std::vector<std::string>& paths) {
  internal_files.insert(internal_files.end(), paths.begin(), paths.end());
}

void SetStandardLibrary(std::string folder) { standard_library = std::move(folder); }

}  // namespace mycelya
