// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Random state is on the worker. A generator here is an id, and seeding it is a record.
#ifndef MYCELYA_DEVICE_RECORD_GENERATOR_H_
#define MYCELYA_DEVICE_RECORD_GENERATOR_H_

#include <ATen/core/Generator.h>

namespace mycelya {

// The state as u8[n] on the device, ordered with the draws around it, without a wait. n is the size of the state of
// PyTorch's CPU or CUDA generator, by the worker's device.
at::Tensor GetRngState(const at::Generator& g);
// state: such bytes, on the device or on the CPU.
void SetRngState(const at::Generator& g, const at::Tensor& state);

const at::Generator& DefaultGenerator(c10::DeviceIndex device);
at::Generator NewGenerator(c10::DeviceIndex device);

// The id of the generator in records; 0 is the device's default. Throws for a generator of another device.
uint64_t GetGeneratorId(const at::Generator& g, c10::DeviceIndex device);
// The same before a record is begun. If the machine has been restarted, records the generator's seed again.
void ReviveGenerator(const at::Generator& g, c10::DeviceIndex device);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_GENERATOR_H_
