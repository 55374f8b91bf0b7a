// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/client/State.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "device/client/Client.h"

namespace mycelya {
namespace {

std::atomic<int> count{1};  // bare "mycelya" always exists: its worker starts on first use
enum class Use : uint8_t { kAllowed, kForked, kEnded };
std::atomic<Use> use{Use::kAllowed};
std::thread::id ending_thread;  // set before use is kEnded
std::atomic<c10::DeviceIndex> own{0}, ranks{1}, home{0};
thread_local c10::DeviceIndex current = -1;  // -1: home

// Descriptors open before the fork. The Go runtime does not run in the child, so the parent asks for them. A child that
// kept them open would keep the worker alive after the parent's death.
constexpr int kMaxDescriptors = 256;
int32_t descriptors[kMaxDescriptors];
int32_t n_descriptors = 0;

void BeforeFork() { n_descriptors = ForkDescriptors(descriptors, kMaxDescriptors); }

void InChild() {
  use.store(Use::kForked, std::memory_order_relaxed);
  for (int32_t i = 0; i < n_descriptors; ++i) ::close(descriptors[i]);
}

}  // namespace

c10::DeviceIndex DeviceCount() { return static_cast<c10::DeviceIndex>(count.load(std::memory_order_relaxed)); }

c10::DeviceIndex OwnDevice() { return own.load(std::memory_order_relaxed); }

void SetRanks(c10::DeviceIndex rank, c10::DeviceIndex n) {
  AddDevice(static_cast<c10::DeviceIndex>(n - 1));
  ranks.store(n);
  own.store(rank);
  SetHome(rank);
}

bool IsOfOtherRank(c10::DeviceIndex index) { return index < ranks.load() && index != OwnDevice(); }

c10::DeviceIndex CurrentDevice() { return current < 0 ? home.load(std::memory_order_relaxed) : current; }

namespace {

void CheckIndex(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < DeviceCount(), "mycelya:", static_cast<int>(index), " does not exist: there ",
              DeviceCount() == 1 ? "is 1 device" : "are " + std::to_string(DeviceCount()) + " devices",
              ", numbered from 0. A RemoteMachine adds one.");
}

}  // namespace

// A thread that sets the home device follows it, so that a guard's end restores that, too.
c10::DeviceIndex ExchangeDevice(c10::DeviceIndex index) {
  CheckIndex(index);
  const auto old = CurrentDevice();
  current = index == home.load(std::memory_order_relaxed) ? -1 : index;
  return old;
}

void SetHome(c10::DeviceIndex index) {
  CheckIndex(index);
  home.store(index, std::memory_order_relaxed);
}

void AddDevice(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kMaxDevices, "There can be at most ", kMaxDevices, " mycelya devices, got index ",
              static_cast<int>(index), ".");
  int seen = count.load();
  while (seen <= index && !count.compare_exchange_weak(seen, index + 1)) {
  }
}

bool InBadFork() { return use.load(std::memory_order_relaxed) == Use::kForked; }

void EndUse() {
  if (InBadFork()) return;
  ending_thread = std::this_thread::get_id();
  use.store(Use::kEnded, std::memory_order_release);
}

bool OutlivesUse() {
  return C10_UNLIKELY(use.load(std::memory_order_acquire) == Use::kEnded) &&
         std::this_thread::get_id() != ending_thread;
}

void SleepUntilTheEnd() {
  const NoGil no_gil;
  std::this_thread::sleep_for(std::chrono::seconds(5));
}

namespace {

[[noreturn]] void RefuseUse() {
  TORCH_CHECK(
      !InBadFork(),
      "Cannot use a mycelya device in a forked child process: the connection to the worker belongs to the parent. "
      "Use the 'spawn' start method, or keep tensors in this process on the CPU.");
  if (OutlivesUse()) SleepUntilTheEnd();
  TORCH_CHECK(false,
              "Cannot use a mycelya device any more: the interpreter ends, and the worker with it. Read results before "
              "the end of the program, or in an atexit handler that is registered after 'import mycelya_torch'.");
}

}  // namespace

void CheckUsable() {
  if (C10_UNLIKELY(use.load(std::memory_order_relaxed) != Use::kAllowed)) RefuseUse();
}

void WatchForks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(&BeforeFork, nullptr, &InChild); });
}

}  // namespace mycelya
