// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// PyTorch's global flags: determinism, TF32, cuDNN's choices and others. Kernels read them on the worker, so each flag
// that the program sets is recorded in order and set on every worker.

#ifndef MYCELYA_DEVICE_RECORD_FLAGS_H_
#define MYCELYA_DEVICE_RECORD_FLAGS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace mycelya {

extern std::atomic<uint64_t> flags_version;  // grows with each call of set_flag

// Notes that a flag was set. Names and values are those of mycelya::set_flag (csrc/abi/mycelya.h).
void SetFlag(const std::string& name, const std::string& value);

// The flags set after `version` as "name=value", ordered by the last time each was set. Sets `version` to the current
// one.
std::vector<std::string> FlagsSince(uint64_t& version);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_FLAGS_H_
