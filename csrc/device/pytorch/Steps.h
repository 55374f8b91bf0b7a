// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_PYTORCH_STEPS_H_
#define MYCELYA_DEVICE_PYTORCH_STEPS_H_

#include <pybind11/pybind11.h>

namespace mycelya {

// Defines note_step and undo_steps, which mycelya_torch/_device.pyi describes.
void DefineSteps(pybind11::module_& m);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_STEPS_H_
