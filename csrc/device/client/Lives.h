// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The lives of a device index: each start of a machine begins one, and a stop or the loss of its worker ends it.
// Tensors of an ended life are lost. Lives are told apart by the numbers of traces, which grow over all lives of an
// index.
#ifndef MYCELYA_DEVICE_CLIENT_LIVES_H_
#define MYCELYA_DEVICE_CLIENT_LIVES_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace mycelya {

// Names the machine of an index, in messages; "" is the machine of a bare "mycelya".
void NameMachine(c10::DeviceIndex index, const std::string& name);

// "mycelya:1, machine left" or "mycelya:0".
std::string MachineText(c10::DeviceIndex index);

// Says that two indices are of two machines, or of two devices of one, with their names, and how to copy from one to
// the other: sentences for the end of an error.
std::string TwoMachinesText(c10::DeviceIndex first, c10::DeviceIndex second);

// The same for a device of PyTorch and one of ours, or for two of ours.
std::string DevicesText(c10::Device first, c10::Device second);

// Notes why the current life of an index has ended, as a whole sentence.
void NoteEnd(c10::DeviceIndex index, std::string why);

// Notes that traces from this number on belong to the next life.
void NoteLife(c10::DeviceIndex index, uint64_t first_trace);

// Throws MachineStoppedError for an index whose machine is stopped.
[[noreturn]] void RaiseStopped(c10::DeviceIndex index);
// Throws MachineStoppedError for an index whose machine is paused.
[[noreturn]] void RaisePaused(c10::DeviceIndex index);
// Throws DeviceLostError for a tensor that a trace of an earlier life has seen last.
[[noreturn]] void RaiseLostTensor(c10::DeviceIndex index, uint64_t trace);

// Throws the Python exception mycelya_torch.errors.DeviceLostError or MachineStoppedError. Needs no GIL: PyTorch makes
// the exception where it enters Python again.
[[noreturn]] void RaiseLost(const std::string& text);
[[noreturn]] void RaiseMachineStopped(const std::string& text);
// Notes that an error of the client library is raised, and says whether one has been.
void MarkRaised();
bool HasRaised();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_CLIENT_LIVES_H_
