// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The memory functions of torch.accelerator.
#ifndef MYCELYA_DEVICE_PYTORCH_MEMORY_H_
#define MYCELYA_DEVICE_PYTORCH_MEMORY_H_

#include <c10/core/Device.h>

#include <cstddef>
#include <utility>

namespace mycelya {

// Restarts the peak of a device's storages, and the worker's peaks, from the current values.
void ResetPeakMemory(c10::DeviceIndex device);
// Free and total bytes of the worker's device. Waits for the answer.
std::pair<size_t, size_t> MemoryInfo(c10::DeviceIndex device);

// Registers the allocator of the device.
void RegisterAllocator();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_MEMORY_H_
