// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// PyTorch's global flags: determinism, TF32, cuDNN's choices and the like. Kernels read them where they run, so a flag
// that a program sets here is set on every worker too, in the order of the records around it.

#ifndef MYCELYA_DEVICE_PYTORCH_FLAGS_H_
#define MYCELYA_DEVICE_PYTORCH_FLAGS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace mycelya {

extern std::atomic<uint64_t> flags_version;  // grows with each call of set_flag

// Remembers that a flag was set. Names and values are those of mycelya::set_flag (csrc/abi/mycelya.h).
void set_flag(const std::string& name, const std::string& value);

// What was set after `version`, as "name=value", in the order of the last time that each flag was set; `version`
// becomes the present one.
std::vector<std::string> flags_since(uint64_t& version);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_FLAGS_H_
