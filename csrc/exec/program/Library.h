// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Operators of other libraries (csrc/abi/library_ops.inc). A program names them; the library comes from the environment
// of the worker's torch, never from a client.
#ifndef MYCELYA_EXEC_PROGRAM_LIBRARY_H_
#define MYCELYA_EXEC_PROGRAM_LIBRARY_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>

namespace mycelya::exec {

// Whether a program may call an operator of this name, if the worker has its library.
bool IsLibraryOperator(std::string_view name);

// Looks up such an operator. The first call in a process loads the libraries, which takes up to a second. Nothing if
// the environment has no such library, or the library does not fit its torch.
std::optional<c10::OperatorHandle> FindLibraryOperator(const std::string& name);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_PROGRAM_LIBRARY_H_
