// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Twins of Record() for the most frequent operators, with their C++ signatures. PyTorch boxes a call for Record(),
// which takes a second reference to each tensor. If Python has the first reference, taking and dropping the second
// needs the GIL. Operators on lists have no twins: Python's own copy of the list is a second reference already.
#ifndef MYCELYA_DEVICE_RECORD_UNBOXED_H_
#define MYCELYA_DEVICE_RECORD_UNBOXED_H_

#include <torch/library.h>

#include <optional>
#include <string>

namespace mycelya {

// The twin of an operator, if it has one. name: without "aten::".
std::optional<torch::CppFunction> Unboxed(const std::string& name);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_UNBOXED_H_
