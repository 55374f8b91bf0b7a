// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_PYTORCH_DISTRIBUTED_H_
#define MYCELYA_DEVICE_PYTORCH_DISTRIBUTED_H_

#include <pybind11/pybind11.h>

namespace mycelya {

// Defines what mycelya_torch/_distributed.py calls.
void DefineDistributed(pybind11::module_& m);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_DISTRIBUTED_H_
