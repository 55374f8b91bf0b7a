// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Operators of other libraries: those in csrc/abi/library_ops.inc, which have guards, and those of the libraries that
// the worker's owner names in the variable MYCELYA_LIBRARIES. A program names operators; libraries come from the
// environment of the worker's torch, never from a client.
#ifndef MYCELYA_EXEC_PROGRAM_LIBRARY_H_
#define MYCELYA_EXEC_PROGRAM_LIBRARY_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>

namespace mycelya::exec {

// Whether the operator of this name is in csrc/abi/library_ops.inc.
bool IsGuardedLibraryOperator(std::string_view name);

// Looks up an operator of another library that a program may call. The first call in a process loads the libraries,
// which takes up to a second. Nothing if the environment has no such library, if the library does not fit its torch, or
// if the owner does not allow it.
std::optional<c10::OperatorHandle> FindLibraryOperator(const std::string& name);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_PROGRAM_LIBRARY_H_
