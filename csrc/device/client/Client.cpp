// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/client/Client.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <unistd.h>
#endif

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "device/client/Lives.h"
#include "device/client/Profile.h"
#include "device/client/State.h"

namespace mycelya {
namespace {

struct CodeName {
  uint32_t code;
  std::string file, function;
  std::vector<int32_t> lines;
};

std::mutex mutex;  // guards the variables below except the atomics
Paths paths;
Above above;
Client table;
std::atomic<bool> loaded{false};
std::array<std::atomic<bool>, kMaxDevices> opened{};
std::array<std::atomic<bool>, kMaxDevices> closed{};  // it was open, and only OpenDevice may open it again
std::array<std::atomic<bool>, kMaxDevices> paused{};  // it was open, and is open again when its session goes on
std::atomic<bool> shut_down{false};
// By device: 1 + its machine's first device, if it is another one, else 0; what its worker computes on.
std::array<std::atomic<int>, kMaxDevices> first_device{};
std::array<std::atomic<bool>, kMaxDevices> of_this_host{};
enum class Expected : uint8_t { kNothing, kCpu, kCuda };
std::array<std::atomic<Expected>, kMaxDevices> expected{};
// Names given before the library was loaded.
std::vector<std::pair<uint64_t, std::string>> early_ops;
std::vector<CodeName> early_codes;
std::vector<std::tuple<uint32_t, myc_origin, myc_origin>> early_calls;

template <class F>
void Find(void* library, const char* name, F& out) {
  out = reinterpret_cast<F>(dlsym(library, name));
  TORCH_CHECK(out != nullptr, "The Mycelya client library ", paths.library, " lacks ", name,
              ": it is of another version than this package. Reinstall mycelya-torch.");
}

// Go's monitor looks after its threads every 20 us while one of them may be in C, and interrupts a core each time.
// Threads inherit how late their timers may be; those that begin here are Go's.
void* OpenLibrary() {
#ifdef __linux__
  const int slack = prctl(PR_GET_TIMERSLACK, 0ul, 0ul, 0ul, 0ul);
  prctl(PR_SET_TIMERSLACK, 2000000ul, 0ul, 0ul, 0ul);  // ns
#endif
  void* library = dlopen(paths.library.c_str(), RTLD_NOW | RTLD_LOCAL);
#ifdef __linux__
  if (slack > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack), 0ul, 0ul, 0ul);
#endif
  return library;
}

void LoadLocked() {
  if (loaded.load(std::memory_order_relaxed)) return;
  CheckUsable();
  TORCH_CHECK(!paths.library.empty(), "BUG: the mycelya device was used before mycelya_torch named its libraries.");
  void* library = OpenLibrary();
  if (library == nullptr) {
    const std::string why = dlerror();
    const bool files = why.find(std::strerror(EMFILE)) != std::string::npos;
    TORCH_CHECK(false, "Cannot load the Mycelya client library ", paths.library, ": ", why,
                files ? ". Close files, or raise the limit: ulimit -n." : ". Reinstall mycelya-torch.");
  }
  Find(library, "myc_abi_version", table.abi_version);
  const uint32_t version = table.abi_version();
  TORCH_CHECK(version == MYCELYA_ABI_VERSION, "The Mycelya client library ", paths.library, " has ABI version ",
              version, ", this package needs ", MYCELYA_ABI_VERSION, ". Reinstall mycelya-torch.");
  Find(library, "myc_define_op", table.define_op);
  Find(library, "myc_define_code", table.define_code);
  Find(library, "myc_define_call", table.define_call);
  Find(library, "myc_place", table.place);
  Find(library, "myc_open", table.open);
  Find(library, "myc_close", table.close);
  Find(library, "myc_ended", table.ended);
  Find(library, "myc_flush", table.flush);
  Find(library, "myc_failure", table.failure);
  Find(library, "myc_room", table.room);
  Find(library, "myc_upload", table.upload);
  Find(library, "myc_forget", table.forget);
  Find(library, "myc_read", table.read);
  Find(library, "myc_sync", table.sync);
  Find(library, "myc_ask", table.ask);
  Find(library, "myc_answer", table.answer);
  Find(library, "myc_wait", table.wait);
  Find(library, "myc_cancel", table.cancel);
  Find(library, "myc_metrics", table.metrics);
  Find(library, "myc_reset_metrics", table.reset_metrics);
  Find(library, "myc_bill", table.bill);
  Find(library, "myc_busy", table.busy);
  Find(library, "myc_uploading", table.uploading);
  Find(library, "myc_downloading", table.downloading);
  Find(library, "myc_explain", table.explain);
  Find(library, "myc_pending", table.pending);
  Find(library, "myc_start", table.start);
  Find(library, "myc_device_info", table.device_info);
  Find(library, "myc_profile", table.profile);
  Find(library, "myc_profiled", table.profiled);
  Find(library, "myc_fork_fds", table.fork_fds);
  for (const auto& [hash, name] : early_ops) table.define_op(hash, name.c_str());
  for (const auto& c : early_codes) {
    table.define_code(c.code, c.file.c_str(), c.function.c_str(), c.lines.data(), c.lines.size());
  }
  for (const auto& [code, place, caller] : early_calls) table.define_call(code, place, caller);
  early_ops.clear();
  early_codes.clear();
  early_calls.clear();
  WatchForks();
  loaded.store(true, std::memory_order_release);
}

bool OfThisHost(const Machine& machine) { return machine.provider.empty() || machine.provider == "local"; }

// What is known of a worker before it has started. Without a device's name the worker chooses, but one on this host
// without a driver has no choice.
Expected ExpectedOf(const Machine& machine) {
  if (!machine.device.empty()) return machine.device.starts_with("cuda") ? Expected::kCuda : Expected::kCpu;
  return OfThisHost(machine) && dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr ? Expected::kCpu
                                                                                          : Expected::kNothing;
}

void OpenLocked(c10::DeviceIndex index, const Machine& machine) {
  LoadLocked();
  if (opened[index].load(std::memory_order_relaxed)) return;
  if (shut_down.load()) {
    RaiseMachineStopped("mycelya:" + std::to_string(index) + " cannot be started: this process is ending.");
  }
  const std::string beside = R"({".beside":")" + std::to_string(machine.first) + "\"}";
  const std::string& options = machine.first < 0 ? machine.options : beside;
  const myc_config config{paths.worker.c_str(),     paths.exec.c_str(),     paths.torch_lib.c_str(),
                          machine.provider.c_str(), machine.device.c_str(), machine.name.c_str(),
                          options.c_str()};
  auto error = std::make_unique<myc_error>();
  if (table.open(index, &config, error.get()) != MYC_OK) Raise(*error);
  first_device[index].store(1 + machine.first);
  of_this_host[index].store(OfThisHost(machine));
  expected[index].store(ExpectedOf(machine));
  // No thread waits for `mutex` with a recorder's lock while the index is closed: ClientFor throws before.
  if (closed[index].load()) above.life_begins(index);
  NameMachine(index, machine.name);
  opened[index].store(true, std::memory_order_release);
  closed[index].store(false);
}

// Why a session has ended by itself; "" if it has not.
std::string EndedText(c10::DeviceIndex index) {
  std::string text(4096, '\0');
  text.resize(std::min<uint64_t>(text.size() - 1, table.ended(index, text.data(), text.size())));
  return text;
}

}  // namespace

void SetPaths(Paths p, Above a) {
  std::lock_guard<std::mutex> guard(mutex);
  paths = std::move(p);
  above = a;
}

void StartWorker(c10::DeviceIndex index) {
  const Client& c = ClientFor(index);
  uint64_t ticket = 0;
  auto error = std::make_unique<myc_error>();
  error->kind = c.start(index, &ticket, error.get());
  error->kind == MYC_PENDING ? WaitFor(c, ticket) : Raise(*error);
}

std::string WorkerInfo(c10::DeviceIndex index) {
  StartWorker(index);
  const Client& c = ClientFor(index);
  const std::string info =
      TextOf([&](char* to, uint64_t n, myc_error* error) { return c.device_info(index, to, n, error); });
  // A quote in a value has a backslash before it.
  expected[index].store(info.find(R"("device":"cuda)") != std::string::npos ? Expected::kCuda : Expected::kCpu);
  return info;
}

Worker WorkerOf(c10::DeviceIndex index) {
  if (index == OwnDevice() && !IsOpen(index) && !IsClosed(index)) {  // the machine that starts on first use
    std::lock_guard<std::mutex> guard(mutex);
    if (expected[index].load() == Expected::kNothing) expected[index].store(ExpectedOf(paths.machine));
  }
  if (expected[index].load() == Expected::kNothing) WorkerInfo(index);
  return expected[index].load() == Expected::kCuda ? Worker::kCuda : Worker::kCpu;
}

bool OnOneMachine(c10::DeviceIndex a, c10::DeviceIndex b) {
  const auto first = [](c10::DeviceIndex index) {
    const int other = first_device[index].load();
    return other == 0 ? static_cast<int>(index) : other - 1;
  };
  return first(a) == first(b);
}

bool IsOfThisHost(c10::DeviceIndex index) { return of_this_host[index].load(); }

bool ClientLoaded() { return loaded.load(std::memory_order_acquire); }

const Client& GetClient() {
  if (C10_UNLIKELY(InBadFork())) CheckUsable();
  if (C10_UNLIKELY(!ClientLoaded())) {
    std::lock_guard<std::mutex> guard(mutex);
    LoadLocked();
  }
  return table;
}

bool IsOpen(c10::DeviceIndex index) { return !InBadFork() && opened[index].load(std::memory_order_acquire); }

bool IsClosed(c10::DeviceIndex index) { return closed[index].load(std::memory_order_acquire); }

const Client& ClientFor(c10::DeviceIndex index) {
  CheckUsable();
  if (C10_UNLIKELY(!opened[index].load(std::memory_order_acquire))) {
    if (paused[index].load()) RaisePaused(index);
    if (closed[index].load() || index != OwnDevice()) RaiseStopped(index);
    std::lock_guard<std::mutex> guard(mutex);
    OpenLocked(index, paths.machine);
  }
  return table;
}

void OpenDevice(c10::DeviceIndex index, const Machine& machine) {
  AddDevice(index);
  CheckUsable();
  std::lock_guard<std::mutex> guard(mutex);
  // A bare "mycelya" is restarted as the machine that it was.
  OpenLocked(index, machine.provider.empty() ? paths.machine : machine);
}

namespace {

// Notes that a device is stopped; false if it was not open.
bool MarkStopped(c10::DeviceIndex index) {
  if (!ClientLoaded() || InBadFork()) return false;
  // First: nothing may open it in between.
  closed[index].store(opened[index].load() || paused[index].load() || closed[index].load());
  const bool was_paused = paused[index].exchange(false);
  if (!opened[index].exchange(false) && !was_paused) return false;
  const std::string why = EndedText(index);
  NoteEnd(index, why.empty() ? "it was stopped." : why);
  return true;
}

void EndSession(c10::DeviceIndex index) {
  auto error = std::make_unique<myc_error>();
  if (table.close(index, error.get()) != MYC_OK) Raise(*error);
}

}  // namespace

void CloseDevice(c10::DeviceIndex index) {
  if (!MarkStopped(index)) return;
  above.life_ends(index);
  EndSession(index);
}

void SetPaused(c10::DeviceIndex index, bool yes) {
  if (yes) paused[index].store(true);
  if (!closed[index].load()) opened[index].store(!yes, std::memory_order_release);
  if (!yes) paused[index].store(false);
}

bool IsPaused(c10::DeviceIndex index) { return paused[index].load(std::memory_order_acquire); }

std::string DeviceState(c10::DeviceIndex index) {
  if (IsPaused(index)) return "paused";
  if (closed[index].load()) return "stopped";
  if (!IsOpen(index)) return "new";
  return EndedText(index).empty() ? "running" : "lost";
}

void ShutDown() {
  shut_down.store(true);
  if (!ClientLoaded()) return;
  // Recorders keep what they have: a daemon thread may sleep until the end of the process with a recorder's lock held.
  for (c10::DeviceIndex i = 0; i < kMaxDevices; ++i) {
    if (MarkStopped(i)) EndSession(i);
  }
}

// In a forked child the two do nothing: Go's runtime, and perhaps the mutex, wait for threads that only the parent has.
void DefineOp(uint64_t hash, const std::string& name) {
  if (InBadFork()) return;
  std::lock_guard<std::mutex> guard(mutex);
  if (ClientLoaded()) {
    table.define_op(hash, name.c_str());
  } else {
    early_ops.emplace_back(hash, name);
  }
}

void DefineCode(uint32_t code, const char* file, const char* function, const int32_t* lines, uint64_t n) {
  if (InBadFork()) return;
  std::lock_guard<std::mutex> guard(mutex);
  if (ClientLoaded()) {
    table.define_code(code, file, function, lines, n);
  } else {
    early_codes.push_back({code, file, function, {lines, lines + n}});
  }
}

void DefineCall(uint32_t code, myc_origin place, myc_origin caller) {
  if (InBadFork()) return;
  std::lock_guard<std::mutex> guard(mutex);
  if (ClientLoaded()) {
    table.define_call(code, place, caller);
  } else {
    early_calls.emplace_back(code, place, caller);
  }
}

void ForgetBlock(uint64_t block) {
  if (ClientLoaded() && !InBadFork()) table.forget(block);
}

int32_t ForkDescriptors(int32_t* out, int32_t capacity) { return ClientLoaded() ? table.fork_fds(out, capacity) : 0; }

namespace {

std::atomic<uint64_t> losses{0};

}  // namespace

uint64_t LossesRaised() { return losses.load(std::memory_order_relaxed); }

void Raise(const myc_error& error) {
  if (error.kind != MYC_OK) Raise(error.kind, error.text);
}

void Raise(int32_t kind, const std::string& text) {
  MarkRaised();
  if (OutlivesUse()) SleepUntilTheEnd();
  switch (kind) {
    case MYC_E_LOST:
      losses.fetch_add(1, std::memory_order_relaxed);
      RaiseLost(text);
    case MYC_E_STOPPED:
      RaiseMachineStopped(text);
#define MYC_RAISE(kind, type) \
  case kind:                  \
    TORCH_CHECK_WITH(type, false, text);
      MYC_ERROR_TABLE(MYC_RAISE)
#undef MYC_RAISE
    default:
      TORCH_CHECK(false, text);
  }
}

namespace {

bool InterpreterEnds() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

NoGil::NoGil() : saved_(Py_IsInitialized() != 0 && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
NoGil::~NoGil() {
  if (saved_ == nullptr) return;
  while (OutlivesUse() && InterpreterEnds()) SleepUntilTheEnd();
  PyEval_RestoreThread(static_cast<PyThreadState*>(saved_));
}

// Shows how far uploads and downloads are, on a terminal, if they take longer than two seconds: at most five times a
// second, and at the end of a wait if there is a bar.
void ShowTransfers(const Client& c, bool end) {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  static std::atomic<int64_t> next{0};
  static std::array<std::atomic<bool>, 2> shown{};
  constexpr double kShort = 2;           // seconds
  constexpr int64_t kPause = 200000000;  // ns
  if (!terminal || (end && !shown[0] && !shown[1])) return;
  int64_t due = next.load();
  if (!end && (UnixNow() < due || !next.compare_exchange_strong(due, UnixNow() + kPause))) return;
  for (const bool down : {false, true}) {
    uint64_t done = 0, bytes = 0;
    if ((down ? c.downloading : c.uploading)(&done, &bytes) < kShort && !shown[down]) continue;
    shown[down] = bytes != 0;
    const pybind11::gil_scoped_acquire gil;
    try {
      pybind11::module_::import("mycelya_torch._progress").attr("show")(down ? "download" : "upload", done, bytes);
    } catch (pybind11::error_already_set& e) {
      e.discard_as_unraisable("mycelya: the progress of transfers");
    }
  }
}

bool WaitInterruptibly(const Client& c, uint64_t ticket, myc_error& error) {
  // A caller that holds the GIL must not block other Python threads.
  const bool python = Py_IsInitialized() != 0;
  const bool profiled = C10_UNLIKELY(profiling.load(std::memory_order_relaxed));
  const myc_origin place = profiled ? above.place() : myc_origin{};
  const int64_t began = profiled ? UnixNow() : 0;
  const NoGil no_gil;
  // Ctrl-C is handled within 50 ms. A finished ticket ends the wait immediately.
  while ((error.kind = c.wait(ticket, 50, &error)) == MYC_PENDING) {
    if (!python || OutlivesUse()) continue;
    const PyGILState_STATE gil = PyGILState_Ensure();
    const bool interrupted = PyErr_CheckSignals() != 0;
    PyGILState_Release(gil);
    if (interrupted) return false;
    ShowTransfers(c, false);
  }
  if (OutlivesUse()) SleepUntilTheEnd();
  if (python) ShowTransfers(c, true);
  if (C10_UNLIKELY(profiled)) NoteWait(began, place);
  return true;
}

void RaiseInterrupt() {
  std::string text;
  {
    const NoGil no_gil;
    text = TextOf([](char* to, uint64_t n, myc_error*) { return GetClient().busy(to, n); });
  }
  const pybind11::gil_scoped_acquire gil;
  pybind11::error_already_set interrupt;
  if (!text.empty()) interrupt.value().attr("add_note")(text);
  throw pybind11::error_already_set(interrupt);
}

void Wait(const Client& c, uint64_t ticket, myc_error& error) {
  if (WaitInterruptibly(c, ticket, error)) return;
  {
    const NoGil no_gil;
    c.cancel(ticket);
  }
  RaiseInterrupt();
}

void WaitFor(const Client& c, uint64_t ticket) {
  auto error = std::make_unique<myc_error>();
  Wait(c, ticket, *error);
  Raise(*error);
}

bool HasEnded(const Client& c, uint64_t& ticket, myc_error& error) {
  error.kind = c.wait(ticket, 0, &error);
  if (error.kind == MYC_PENDING) return false;
  ticket = 0;
  return true;
}

}  // namespace mycelya
