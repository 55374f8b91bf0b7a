// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/pytorch/Distributed.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "device/collective/Backend.h"

namespace mycelya {
namespace {

c10::intrusive_ptr<c10d::Backend> MakeBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              std::chrono::milliseconds timeout,
                                              const c10::intrusive_ptr<c10d::Backend>& cpu) {
  return c10::make_intrusive<Backend>(store, rank, size, timeout, cpu);
}

}  // namespace

void DefineDistributed(py::module_& m) { m.def("backend", &MakeBackend); }

}  // namespace mycelya
