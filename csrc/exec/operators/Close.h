// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Comparisons of two ways to compute the same values.
#ifndef MYCELYA_EXEC_OPERATORS_CLOSE_H_
#define MYCELYA_EXEC_OPERATORS_CLOSE_H_

#include <ATen/core/Tensor.h>

#include <string>

namespace mycelya::exec {

// The largest finite absolute value of a tensor; 0 if there is none.
double LargestOf(const at::Tensor& t);

// How `got` differs from `want` by more than rounding, "" if it does not. tolerance: relative to the element, to the
// largest one, and to a 64th of `large`, from which terms may have cancelled. few: so many elements may differ, as
// rounding may decide a comparison. Waits for the device.
std::string DifferenceOf(const at::Tensor& got, const at::Tensor& want, double large, double tolerance,
                         int64_t few = 0);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_OPERATORS_CLOSE_H_
