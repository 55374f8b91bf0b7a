// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/PythonFrame.h"  // before any other header: it includes Python's internals
//
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <deque>
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
};

std::mutex mutex;  // guards codes
// Leaked: kernels may run while the process exits.
auto& codes = *new std::unordered_map<PyCodeObject*, Code>();
std::string torch_folder, package_folder;

bool StartsWith(const char* text, const std::string& prefix) {
  return !prefix.empty() && std::string_view(text).substr(0, prefix.size()) == prefix;
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
  const bool internal =
      StartsWith(file, torch_folder) || StartsWith(file, package_folder) || StartsWith(file, "<frozen");
  std::vector<int32_t> lines;
  if (!internal) {
    const uint32_t n = SizeOf(code) / 2;
    lines.resize(n);
    for (uint32_t i = 0; i < n; ++i) lines[i] = PyCode_Addr2Line(code, static_cast<int>(2 * i));
  }
  Code result{0, internal};
  bool fresh = false;
  {
    std::lock_guard<std::mutex> guard(mutex);
    const auto [it, inserted] = codes.try_emplace(code, Code{static_cast<uint32_t>(codes.size() + 1), internal});
    result = it->second;
    fresh = inserted;
  }
  if (fresh) {
    // Never freed: another function could get its address.
    Py_INCREF(code);
    if (!internal) DefineCode(result.number, file, function, lines.data(), lines.size());
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
  Cached cache[256];
  std::vector<Remembered> remembered;
};

C10_NOINLINE Here& MakeHere() {
  static thread_local Here here;
  this_thread.origins = &here;
  return here;
}

Here& GetHere() {
  void* known = this_thread.origins;
  return C10_LIKELY(known != nullptr) ? *static_cast<Here*>(known) : MakeHere();
}

Code LookUp(Here& here, PyCodeObject* code) {
  Cached& c = here.cache[(reinterpret_cast<uintptr_t>(code) >> 4) & 255];
  if (c.code == code) return c.value;
  {
    std::lock_guard<std::mutex> guard(mutex);
    const auto it = codes.find(code);
    if (it != codes.end()) {
      c = {code, it->second};
      return c.value;
    }
  }
  c = {code, Intern(code)};
  return c.value;
}

Origin OriginOfFrame(Here& here) {
  for (Frame* f = InnermostFrame(); f != nullptr; f = CallerOf(f)) {
    PyCodeObject* code = CodeOf(f);
    if (code == nullptr) continue;
    const Code c = LookUp(here, code);
    if (!c.internal) return {c.number, OffsetOf(f, code)};
  }
  return {};
}

}  // namespace

Origin CurrentOrigin() { return OriginOfFrame(GetHere()); }

Origin RecordOrigin() {
  Here& thread = GetHere();
  auto& remembered = thread.remembered;
  // Nodes are numbered per thread, and backward runs in the thread that called it.
  const auto node = torch::autograd::get_current_node();
  if (node != nullptr && !remembered.empty()) {
    const Remembered& r = remembered[node->sequence_nr() % kRemembered];
    if (r.sequence == node->sequence_nr()) return r.origin;
  }
  const Origin origin = OriginOfFrame(thread);
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

void SetInternalFolders(std::string torch, std::string package) {
  torch_folder = std::move(torch);
  package_folder = std::move(package);
}

}  // namespace mycelya
