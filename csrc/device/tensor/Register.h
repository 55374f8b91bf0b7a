// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_TENSOR_REGISTER_H_
#define MYCELYA_DEVICE_TENSOR_REGISTER_H_

#include <c10/macros/Macros.h>

#include <atomic>

namespace mycelya {

// Registers the operators of the op table, and fallbacks for all others. This takes milliseconds that an import must
// not cost: it happens before the first tensor of the device. What may be called before that registers itself at load.
// pytorch/Register.cpp defines it.
extern std::atomic<bool> operators_registered;
void RegisterOperatorsSlow();
inline void RegisterOperators() {
  if (C10_UNLIKELY(!operators_registered.load(std::memory_order_acquire))) RegisterOperatorsSlow();
}

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_TENSOR_REGISTER_H_
