// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The operators that a program may call. All others are refused when the program is prepared: PyTorch has operators
// that read files, follow pointers, or trust their arguments.
#ifndef MYCELYA_EXEC_PROGRAM_ALLOWED_H_
#define MYCELYA_EXEC_PROGRAM_ALLOWED_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace mycelya::exec {

// Looks up an operator by its name with overload. Throws ValueError if programs may not call it, NotImplementedError if
// this PyTorch lacks it.
c10::OperatorHandle FindAllowed(const std::string& name);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_PROGRAM_ALLOWED_H_
