// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Shapes of results, in the order: cache, own rules, structured at::meta functions, Meta key (counted; it is Python and
// costs 0.1-1 ms, its first call 1.4 s).
#ifndef MYCELYA_DEVICE_RULES_SHAPE_H_
#define MYCELYA_DEVICE_RULES_SHAPE_H_

#include <ATen/core/ivalue.h>

#include "device/record/Op.h"

namespace mycelya {

// The fresh results of a call; for in-place and out= calls those of the functional form, already checked against the
// written arguments. Valid until this thread's next call. Throws PyTorch's errors for bad arguments.
const OutMetas& infer(const Op& op, at::ArrayRef<c10::IValue> args);

// Whether this thread is inside PyTorch's check of an in-place or out= call: nothing is to be recorded.
bool only_checking();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RULES_SHAPE_H_
