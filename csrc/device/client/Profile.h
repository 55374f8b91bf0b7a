// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The profile of this process. While one runs, recorders note when traces begin and end and which op of PyTorch has
// recorded each record, and the client library notes what becomes of them: runtime/profile.go.
#ifndef MYCELYA_DEVICE_CLIENT_PROFILE_H_
#define MYCELYA_DEVICE_CLIENT_PROFILE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "abi/mycelya.h"

namespace mycelya {

extern std::atomic<bool> profiling;

// Nanoseconds since 1970, as PyTorch's profiler has them.
int64_t UnixNow();

// What PyTorch's profiler calls the innermost op that runs on this thread; 0: none, or there is no profiler.
uint64_t CurrentCaller();
void PushCaller(uint64_t id);
void PopCaller();

// Begins a profile. Throws RuntimeError if one runs.
void BeginProfile();
// Ends the profile and returns its events, one per line: those of runtime/profile.go, and those of the track "wait",
// the waits of this process's threads. What has no answer yet is left out.
std::string EndProfile();

// A wait that ends now.
void NoteWait(int64_t began, myc_origin at);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_CLIENT_PROFILE_H_
