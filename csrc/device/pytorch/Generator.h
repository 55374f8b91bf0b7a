// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Random state lives on the worker: a generator here is an id, and seeding it is a record.
#ifndef MYCELYA_DEVICE_PYTORCH_GENERATOR_H_
#define MYCELYA_DEVICE_PYTORCH_GENERATOR_H_

#include <ATen/core/Generator.h>

namespace mycelya {

// The state as bytes on the device: taken in order with the draws around it, and nobody waits. Its size is that of the
// worker's device: PyTorch's CPU or CUDA generator.
at::Tensor get_rng_state(const at::Generator& g);
// state: such bytes, on the device or on the CPU.
void set_rng_state(const at::Generator& g, const at::Tensor& state);

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// The id a record names the generator by; 0 is the device's default. Throws for a generator of another device.
uint64_t generator_id(const at::Generator& g, c10::DeviceIndex device);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_GENERATOR_H_
