// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_PYTORCH_STEPS_H_
#define MYCELYA_DEVICE_PYTORCH_STEPS_H_

#include <pybind11/pybind11.h>

namespace mycelya {

// What mycelya_torch/_undo.py notes of every step of an optimizer, from its param_groups and its state.

// The ids of the parameters with a gradient, in the order of the groups.
pybind11::tuple ParametersWithGradient(const pybind11::iterable& groups);

// For each parameter of the state: its "step", or the version of that tensor; None where a state has no "step".
pybind11::list StepCounts(const pybind11::object& state);

// The names of the CPU numbers, other than "step", that the first parameter's state holds.
pybind11::tuple NumberNames(const pybind11::object& state);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_STEPS_H_
