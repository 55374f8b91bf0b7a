// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_PYTORCH_REGISTER_H_
#define MYCELYA_DEVICE_PYTORCH_REGISTER_H_

#include <c10/macros/Macros.h>

#include <atomic>

namespace mycelya {

// Registers the recorder for every operator of the op table. Once per process, at load.
void RegisterOps();

// Registers the fallbacks of all other operators: before the first tensor of the device, not at load.
extern std::atomic<bool> fallbacks_registered;
void RegisterFallbacksSlow();
inline void RegisterFallbacks() {
  if (C10_UNLIKELY(!fallbacks_registered.load(std::memory_order_acquire))) RegisterFallbacksSlow();
}

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_REGISTER_H_
