// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Converts between MYC_* dtype numbers and PyTorch's dtypes, and prints types.
#ifndef MYCELYA_EXEC_DTYPE_H_
#define MYCELYA_EXEC_DTYPE_H_

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

namespace mycelya::exec {

// Throws ValueError if `dtype` is not one of MYC_U8 … MYC_U64.
c10::ScalarType ToScalarType(uint64_t dtype);
// Throws NotImplementedError on a dtype without a MYC_* number.
uint64_t ToCode(c10::ScalarType type);

// The class of kernel registers (MYC_K_*) that hold the dtype; 0 if kernels refuse the dtype.
uint32_t RegisterClass(c10::ScalarType type);

// "f32[2,3]", as the IR spells it. A dtype without a MYC_* number has PyTorch's name.
std::string TypeText(c10::ScalarType dtype, c10::IntArrayRef sizes);

// "[2,3]"
std::string ListText(c10::IntArrayRef values);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_DTYPE_H_
