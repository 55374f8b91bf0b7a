// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "device/client/Profile.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "device/client/Client.h"

namespace mycelya {

std::atomic<bool> profiling{false};

namespace {

struct WaitEvent {
  int64_t began, ended;
  myc_origin at;
};

constexpr size_t kMostWaits = 1 << 20;

std::mutex profile_mutex;  // guards what follows
std::vector<WaitEvent> waits;
size_t waits_dropped = 0;

thread_local std::vector<uint64_t> callers;

std::string PlaceOf(const Client& c, myc_origin at) {
  std::string out(512, '\0');
  uint64_t need;
  while ((need = c.place(at, out.data(), out.size())) >= out.size()) out.resize(need + 1);
  out.resize(need);
  return out;
}

}  // namespace

int64_t UnixNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

uint64_t CurrentCaller() { return callers.empty() ? 0 : callers.back(); }

void PushCaller(uint64_t id) { callers.push_back(id); }

void PopCaller() {
  if (!callers.empty()) callers.pop_back();
}

void BeginProfile() {
  const std::lock_guard guard(profile_mutex);
  TORCH_CHECK(!profiling.load(), "A profile of this process runs already. End it first.");
  waits.clear();
  waits_dropped = 0;
  GetClient().profile(1);
  profiling.store(true);
}

std::string EndProfile() {
  const std::lock_guard guard(profile_mutex);
  if (!profiling.exchange(false)) return "";
  const Client& c = GetClient();
  c.profile(0);
  std::string out = TextOf([&](char* to, uint64_t n, myc_error*) { return c.profiled(to, n); });
  for (const WaitEvent& w : std::exchange(waits, {})) {
    out += "wait\t-1\t" + std::to_string(w.began) + '\t' + std::to_string(w.ended) + "\t0\t0\t0\twait\t" +
           PlaceOf(c, w.at) + '\n';
  }
  if (waits_dropped != 0) out += "dropped\t" + std::to_string(waits_dropped) + '\n';
  return out;
}

void NoteWait(int64_t began, myc_origin at) {
  const std::lock_guard guard(profile_mutex);
  if (!profiling.load()) return;
  if (waits.size() == kMostWaits) {
    ++waits_dropped;
    return;
  }
  waits.push_back({began, UnixNow(), at});
}

}  // namespace mycelya
