// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#ifndef MYCELYA_EXEC_OPERATORS_FLAGS_H_
#define MYCELYA_EXEC_OPERATORS_FLAGS_H_

#include <string_view>

namespace mycelya::exec {

// Sets a global flag of PyTorch's, "name=value". A name is that of the function of torch._C that sets it, without
// "_set_"; a value is words: numbers, or the strings that that function takes. Throws NotImplementedError where this
// PyTorch has no such flag, ValueError where the value is none of it.
void SetFlag(std::string_view flag);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_OPERATORS_FLAGS_H_
