// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/client/Client.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/client/State.h"
#include "device/rules/Rules.h"

namespace mycelya {
namespace {

struct CodeName {
  uint32_t code;
  std::string file, function;
  std::vector<int32_t> lines;
};

std::mutex mutex;  // guards the variables below except the two atomics
Paths paths;
Client table;
std::atomic<bool> loaded{false};
std::array<std::atomic<bool>, kMaxDevices> opened{};
// Names given before the library was loaded.
std::vector<std::pair<uint64_t, std::string>> early_ops;
std::vector<CodeName> early_codes;

template <class F>
void find(void* library, const char* name, F& out) {
  out = reinterpret_cast<F>(dlsym(library, name));
  TORCH_CHECK(out != nullptr, "The Mycelya client library ", paths.library, " lacks ", name,
              ": it is of another version than this package. Reinstall mycelya-torch.");
}

// Go's monitor looks after its threads every 20 us while one of them may be in C, and interrupts a core each time.
// Threads inherit how late their timers may be; those that begin here are Go's.
void* open_library() {
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

void load_locked() {
  if (loaded.load(std::memory_order_relaxed)) return;
  check_not_forked();
  TORCH_CHECK(!paths.library.empty(), "BUG: the mycelya device was used before mycelya_torch named its libraries.");
  void* library = open_library();
  TORCH_CHECK(library != nullptr, "Cannot load the Mycelya client library ", paths.library, ": ", dlerror(),
              ". Reinstall mycelya-torch.");
  find(library, "myc_abi_version", table.abi_version);
  const uint32_t version = table.abi_version();
  TORCH_CHECK(version == MYCELYA_ABI_VERSION, "The Mycelya client library ", paths.library, " has ABI version ",
              version, ", this package needs ", MYCELYA_ABI_VERSION, ". Reinstall mycelya-torch.");
  find(library, "myc_define_op", table.define_op);
  find(library, "myc_define_code", table.define_code);
  find(library, "myc_open", table.open);
  find(library, "myc_close", table.close);
  find(library, "myc_flush", table.flush);
  find(library, "myc_room", table.room);
  find(library, "myc_upload", table.upload);
  find(library, "myc_upload_shared", table.upload_shared);
  find(library, "myc_forget", table.forget);
  find(library, "myc_read", table.read);
  find(library, "myc_sync", table.sync);
  find(library, "myc_wait", table.wait);
  find(library, "myc_cancel", table.cancel);
  find(library, "myc_metrics", table.metrics);
  find(library, "myc_reset_metrics", table.reset_metrics);
  find(library, "myc_bill", table.bill);
  find(library, "myc_explain", table.explain);
  find(library, "myc_pending", table.pending);
  find(library, "myc_device_info", table.device_info);
  find(library, "myc_fork_fds", table.fork_fds);
  for (const auto& [hash, name] : early_ops) table.define_op(hash, name.c_str());
  for (const auto& c : early_codes) {
    table.define_code(c.code, c.file.c_str(), c.function.c_str(), c.lines.data(), c.lines.size());
  }
  early_ops.clear();
  early_codes.clear();
  watch_forks();
  loaded.store(true, std::memory_order_release);
}

// A few results have another layout or dtype on CUDA. As on the worker, "" means CUDA if the host has a driver.
void decide_worker_locked(const std::string& device) {
  const bool cuda =
      device.empty() ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr : device.starts_with("cuda");
  set_worker(cuda ? Worker::kCuda : Worker::kCpu);
}

void open_locked(c10::DeviceIndex index, const Machine& machine) {
  load_locked();
  if (opened[index].load(std::memory_order_relaxed)) return;
  const myc_config config{paths.worker.c_str(), paths.exec.c_str(), paths.torch_lib.c_str(), machine.provider.c_str(),
                          machine.device.c_str()};
  auto error = std::make_unique<myc_error>();
  if (table.open(index, &config, error.get()) != MYC_OK) raise(*error);
  decide_worker_locked(machine.device);
  opened[index].store(true, std::memory_order_release);
}

}  // namespace

void set_paths(Paths p) {
  std::lock_guard<std::mutex> guard(mutex);
  paths = std::move(p);
}

void decide_worker() {
  static std::atomic<bool> decided{false};
  if (client_loaded() || decided.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> guard(mutex);
  decide_worker_locked(paths.machine.device);
  decided.store(true, std::memory_order_release);
}

bool client_loaded() { return loaded.load(std::memory_order_acquire); }

const Client& client() {
  if (C10_UNLIKELY(!client_loaded())) {
    std::lock_guard<std::mutex> guard(mutex);
    load_locked();
  }
  return table;
}

bool is_open(c10::DeviceIndex index) { return !in_bad_fork() && opened[index].load(std::memory_order_acquire); }

const Client& client_for(c10::DeviceIndex index) {
  check_not_forked();
  if (C10_UNLIKELY(!opened[index].load(std::memory_order_acquire))) {
    std::lock_guard<std::mutex> guard(mutex);
    open_locked(index, paths.machine);
  }
  return table;
}

void open_device(c10::DeviceIndex index, const Machine& machine) {
  add_device(index);
  check_not_forked();
  std::lock_guard<std::mutex> guard(mutex);
  open_locked(index, machine);
}

void close_device(c10::DeviceIndex index) {
  if (!client_loaded() || in_bad_fork()) return;
  if (!opened[index].exchange(false)) return;
  auto error = std::make_unique<myc_error>();
  if (table.close(index, error.get()) != MYC_OK) raise(*error);
}

void close_all() {
  for (int i = 0; i < kMaxDevices; ++i) close_device(static_cast<c10::DeviceIndex>(i));
}

void define_op(uint64_t hash, const std::string& name) {
  std::lock_guard<std::mutex> guard(mutex);
  if (client_loaded()) {
    table.define_op(hash, name.c_str());
  } else {
    early_ops.emplace_back(hash, name);
  }
}

void define_code(uint32_t code, const char* file, const char* function, const int32_t* lines, uint64_t n) {
  std::lock_guard<std::mutex> guard(mutex);
  if (client_loaded()) {
    table.define_code(code, file, function, lines, n);
  } else {
    early_codes.push_back({code, file, function, {lines, lines + n}});
  }
}

void forget_block(uint64_t block) {
  if (client_loaded() && !in_bad_fork()) table.forget(block);
}

int32_t fork_descriptors(int32_t* out, int32_t capacity) { return client_loaded() ? table.fork_fds(out, capacity) : 0; }

void raise(const myc_error& error) {
  const std::string text(error.text);
  switch (error.kind) {
    case MYC_OK:
      return;
#define MYC_RAISE(kind, type) \
  case kind:                  \
    TORCH_CHECK_WITH(type, false, text);
      MYC_ERROR_TABLE(MYC_RAISE)
#undef MYC_RAISE
    default:
      TORCH_CHECK(false, text);
  }
}

NoGil::NoGil() : saved_(Py_IsInitialized() != 0 && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
NoGil::~NoGil() {
  if (saved_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(saved_));
}

void wait_for(const Client& c, uint64_t ticket) {
  // A caller that holds the GIL must not block other Python threads.
  const bool python = Py_IsInitialized() != 0;
  auto error = std::make_unique<myc_error>();
  int32_t kind;
  bool interrupted = false;
  {
    const NoGil no_gil;
    // Ctrl-C is handled within 50 ms. A finished ticket ends the wait immediately.
    while ((kind = c.wait(ticket, 50, error.get())) == MYC_PENDING) {
      if (!python) continue;
      const PyGILState_STATE gil = PyGILState_Ensure();
      interrupted = PyErr_CheckSignals() != 0;
      PyGILState_Release(gil);
      if (interrupted) break;
    }
    if (interrupted) c.cancel(ticket);
  }
  if (interrupted) {
    const pybind11::gil_scoped_acquire gil;
    throw pybind11::error_already_set();
  }
  if (kind != MYC_OK) {
    error->kind = kind;
    raise(*error);
  }
}

bool has_ended(const Client& c, uint64_t& ticket, myc_error& error) {
  error.kind = c.wait(ticket, 0, &error);
  if (error.kind == MYC_PENDING) return false;
  ticket = 0;
  return true;
}

}  // namespace mycelya
