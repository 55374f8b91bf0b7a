// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Shapes of results, from the first of these that has them: cache, own rules, structured at::meta functions, Meta key.
// The Meta key is Python: a call takes 0.1 to 1 ms, the first 1.4 s. Its calls are counted.
#ifndef MYCELYA_DEVICE_RECORD_SHAPE_H_
#define MYCELYA_DEVICE_RECORD_SHAPE_H_

#include <ATen/core/ivalue.h>

#include "device/record/Op.h"

namespace mycelya {

// The fresh results of a call; for in-place and out= calls those of the functional form, already checked against the
// written arguments. Valid until this thread's next call. Throws PyTorch's errors for bad arguments.
const OutMetas& Infer(const Op& op, at::ArrayRef<c10::IValue> args);

// Whether this thread is inside PyTorch's check of an in-place or out= call. Nothing must be recorded then.
bool OnlyChecking();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_SHAPE_H_
