// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// How a failure of the worker reaches the user. The next wait or cut raises its error, once. Everything that was
// recorded since the failed op has no effect then, as if Python had stopped there.
#ifndef MYCELYA_DEVICE_RECORD_FAILURE_H_
#define MYCELYA_DEVICE_RECORD_FAILURE_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "abi/mycelya.h"

namespace mycelya {

struct Client;
struct Live;

// A place in the user's program, as "file:line".
std::string PlaceText(const Client& c, myc_origin place);

// The large storages of a device that are alive and have ids below `end`, by the line that made them.
std::map<std::string, Live> LiveByLine(c10::DeviceIndex device, uint64_t end = UINT64_MAX);

// Waits for a ticket of a device, and raises its error.
void Await(c10::DeviceIndex device, uint64_t ticket);

// Raises the error of a ticket that has ended; does nothing if it is MYC_OK.
void RaiseFor(c10::DeviceIndex device, const myc_error& error);

// Raises an error; that of lack of memory names the largest live tensors. lost: the first storage that the failure has
// not made; 0: it is not known.
[[noreturn]] void RaiseWithTensors(c10::DeviceIndex device, uint64_t lost, const myc_error& error);

// A failure whose error has been raised. The storages with ids from `first` to before `end` were not made.
struct Raised {
  c10::DeviceIndex device;
  uint64_t first, end;
};
// Notes a failure for Python, which undoes what a program has kept of such storages: mycelya_torch/_undo.py. The main
// thread does so soon, between two instructions.
void NoteRaised(c10::DeviceIndex device, uint64_t first);
// Removes the noted failures.
std::vector<Raised> TakeRaised();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_FAILURE_H_
