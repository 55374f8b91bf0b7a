// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Our dtype numbers against PyTorch's, and types as text.
#ifndef MYCELYA_EXEC_DTYPE_H_
#define MYCELYA_EXEC_DTYPE_H_

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

namespace mycelya::exec {

// MYC_U8 … MYC_U64 to PyTorch's. Throws ValueError on any other number.
c10::ScalarType ToScalarType(uint64_t dtype);
// The other way; throws NotImplementedError on a dtype without a number of ours.
uint64_t ToCode(c10::ScalarType type);

// "f32[2,3]", in the spelling of the IR; a dtype without a number of ours is spelled as PyTorch does.
std::string TypeText(c10::ScalarType dtype, c10::IntArrayRef sizes);

// "[2,3]"
std::string ListText(c10::IntArrayRef values);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_DTYPE_H_
