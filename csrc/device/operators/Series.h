// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Reads of tensors one after another, as those of a state dict that is saved. Each would wait for the network. So the
// second read in the order of a known series begins the reads of those that follow, and later ones take their bytes.
#ifndef MYCELYA_DEVICE_OPERATORS_SERIES_H_
#define MYCELYA_DEVICE_OPERATORS_SERIES_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace mycelya {

// Notes tensors that will probably be read in this order. What was noted before goes on, unless something was recorded
// since, or it has the first of these tensors. Nothing is kept alive.
void NoteSeries(const std::vector<at::Tensor>& tensors);

// Copies the elements of a contiguous tensor to `out` if they were read ahead, and nothing was recorded since; waits
// for them if they are on their way, and throws the error of the op that computes them. False: the caller reads them.
bool TakeAhead(const at::Tensor& t, void* out);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_OPERATORS_SERIES_H_
