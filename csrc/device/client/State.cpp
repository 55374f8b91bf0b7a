// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/client/State.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "device/client/Client.h"

namespace mycelya {
namespace {

std::atomic<int> count{1};  // bare "mycelya" always exists: its worker starts on first use
std::atomic<bool> bad_fork{false};
thread_local c10::DeviceIndex current = 0;

// Descriptors open before the fork. The Go runtime does not run in the child, so the parent asks for them. A child that
// kept them open would keep the worker alive after the parent's death.
constexpr int kMaxDescriptors = 256;
int32_t descriptors[kMaxDescriptors];
int32_t n_descriptors = 0;

void BeforeFork() { n_descriptors = ForkDescriptors(descriptors, kMaxDescriptors); }

void InChild() {
  bad_fork.store(true, std::memory_order_relaxed);
  for (int32_t i = 0; i < n_descriptors; ++i) ::close(descriptors[i]);
}

}  // namespace

c10::DeviceIndex DeviceCount() { return static_cast<c10::DeviceIndex>(count.load(std::memory_order_relaxed)); }

c10::DeviceIndex CurrentDevice() { return current; }

c10::DeviceIndex ExchangeDevice(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < DeviceCount(), "mycelya:", static_cast<int>(index), " does not exist: there ",
              DeviceCount() == 1 ? "is 1 device" : "are " + std::to_string(DeviceCount()) + " devices",
              ", numbered from 0. A RemoteMachine adds one.");
  const auto old = current;
  current = index;
  return old;
}

void AddDevice(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kMaxDevices, "There can be at most ", kMaxDevices, " mycelya devices, got index ",
              static_cast<int>(index), ".");
  int seen = count.load();
  while (seen <= index && !count.compare_exchange_weak(seen, index + 1)) {
  }
}

bool InBadFork() { return bad_fork.load(std::memory_order_relaxed); }

void CheckNotForked() {
  TORCH_CHECK(
      !InBadFork(),
      "Cannot use a mycelya device in a forked child process: the connection to the worker belongs to the parent. "
      "Use the 'spawn' start method, or keep tensors in this process on the CPU.");
}

void WatchForks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(&BeforeFork, nullptr, &InChild); });
}

}  // namespace mycelya
