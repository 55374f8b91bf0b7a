// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Every place where bytes cross between the CPU and a device.
#pragma once

#include <ATen/core/Tensor.h>

namespace mycelya {

// A device tensor with the elements of a CPU tensor, contiguous. The CPU tensor may be changed as soon as this returns;
// non-blocking, if it is pinned and lies on this host, only after a wait for the device.
at::Tensor to_device(const at::Tensor& cpu, c10::DeviceIndex device, bool non_blocking = false);

// Cuts the trace, then reads the tensor's elements into a new contiguous CPU tensor. Waits.
at::Tensor to_cpu(const at::Tensor& tensor);

// aten::_copy_from: dst takes src's elements, converted and broadcast; either may be on the CPU.
at::Tensor copy_from(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// Sends what is recorded; waits for all that was sent.
void flush(c10::DeviceIndex device);
void synchronize(c10::DeviceIndex device);
// Whether a synchronize() would find nothing to wait for. Sends what is recorded, and doesn't wait.
bool query(c10::DeviceIndex device);

}  // namespace mycelya
