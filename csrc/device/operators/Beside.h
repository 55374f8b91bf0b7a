// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Copies between two devices of one machine, which its worker makes: no element comes to this process.
#ifndef MYCELYA_DEVICE_OPERATORS_BESIDE_H_
#define MYCELYA_DEVICE_OPERATORS_BESIDE_H_

#include <ATen/core/Tensor.h>

namespace mycelya {

// Copies src's elements to dst, converted and broadcast. Waits for src, and raises its errors; does not wait for dst.
// False: the worker must not copy, because another one may have to repeat it, so the elements must come here.
bool CopyBeside(const at::Tensor& src, const at::Tensor& dst);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_OPERATORS_BESIDE_H_
