// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/SyncDebug.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "device/client/Client.h"
#include "device/record/Failure.h"
#include "device/record/Origin.h"

namespace mycelya {
namespace {

enum : int { kDefault, kWarn, kError };

std::atomic<int> sync_mode{kDefault};
std::mutex modes_mutex;

// The lines that have warned.
std::set<std::string>& Warned() {
  static auto& leaked = *new std::set<std::string>();
  return leaked;
}

void Report(const at::Tensor& read, int mode) {
  const std::string place = PlaceText(GetClient(), CurrentOrigin());
  TORCH_CHECK(mode != kError, "This line waits for the values of a mycelya tensor (", read.scalar_type(), " ",
              read.sizes(), "), at ", place,
              ", and torch.mycelya.set_sync_debug_mode(\"error\") forbids waits. Keep the value on the device, or "
              "fetch it later with cpu_future().");
  {
    const std::lock_guard<std::mutex> guard(modes_mutex);
    if (!Warned().insert(place).second) return;
  }
  TORCH_WARN("This line waits for the values of a mycelya tensor (", read.scalar_type(), " ", read.sizes(), "), at ",
             place, ". Keep the value on the device, or fetch it later with cpu_future().");
}

}  // namespace

void SetSyncDebug(int mode) {
  TORCH_CHECK_VALUE(mode >= kDefault && mode <= kError, "BUG: no sync debug mode has the number ", mode, ".");
  const std::lock_guard<std::mutex> guard(modes_mutex);
  Warned().clear();
  sync_mode.store(mode, std::memory_order_relaxed);
}

int GetSyncDebug() { return sync_mode.load(std::memory_order_relaxed); }

void CheckSync(const at::Tensor& read) {
  const int mode = GetSyncDebug();
  if (C10_UNLIKELY(mode != kDefault)) Report(read, mode);
}

}  // namespace mycelya
