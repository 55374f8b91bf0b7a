// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#ifndef MYCELYA_EXEC_SESSION_FLAGS_H_
#define MYCELYA_EXEC_SESSION_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

namespace mycelya::exec {

// Sets a global flag of PyTorch from "name=value". The name is that of the torch._C function without "_set_". The value
// is the arguments of that function, separated by spaces. Throws NotImplementedError if this PyTorch lacks the flag,
// and ValueError if the value is wrong.
void SetFlag(std::string_view flag);

// The flags that SetFlag has set in this process, each with its last value, in the order of their last changes.
const std::vector<std::string>& FlagsThatWereSet();

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_SESSION_FLAGS_H_
