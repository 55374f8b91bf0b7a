// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Process-wide device state: the number of devices, the current device, and whether this is a forked child.
#ifndef MYCELYA_DEVICE_CLIENT_STATE_H_
#define MYCELYA_DEVICE_CLIENT_STATE_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace mycelya {

constexpr int kMaxDevices = 64;

// What a device's worker computes on. A few results differ.
enum class Worker : uint8_t { kCpu, kCuda };

c10::DeviceIndex DeviceCount();
c10::DeviceIndex CurrentDevice();                         // of this thread; Home() unless the thread has set one
c10::DeviceIndex ExchangeDevice(c10::DeviceIndex index);  // checks the index; returns the previous one
// The device whose machine starts on first use: 0, or that of this rank. Of several ranks on this host each has the
// device of its number, and knows the number of all.
c10::DeviceIndex OwnDevice();
void SetRanks(c10::DeviceIndex own, c10::DeviceIndex count);
bool IsOfOtherRank(c10::DeviceIndex index);
// The device of a bare "mycelya" in threads that have not set another one: OwnDevice() at first.
void SetHome(c10::DeviceIndex index);
// Raises the number of devices to at least index + 1.
void AddDevice(c10::DeviceIndex index);

// True in a child forked after the device was used. Such a child must not use the device.
bool InBadFork();
// Forbids the use of devices from now on, because the interpreter ends. Called by the thread that ends it.
void EndUse();
// Whether the interpreter ends, and this is another thread: a daemon's.
bool OutlivesUse();
// Lets such a thread sleep. It would print an error, or abort: while the interpreter ends, CPython ends a thread that
// takes the GIL by unwinding its stack, which PyTorch's destructors do not allow. The end of the process ends the
// sleep. It is limited, since another thread may join this one.
void SleepUntilTheEnd();

// Throws in a forked child, and where the interpreter ends.
void CheckUsable();
// After this call, a fork closes the client library's descriptors in the child and marks the child bad.
void WatchForks();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_CLIENT_STATE_H_
