// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_PYTORCH_STEPS_H_
#define MYCELYA_DEVICE_PYTORCH_STEPS_H_

#include <pybind11/pybind11.h>

namespace mycelya {

// Defines StepLog: what mycelya_torch/_undo.py notes of every step of an optimizer.
void DefineSteps(pybind11::module_& m);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_STEPS_H_
