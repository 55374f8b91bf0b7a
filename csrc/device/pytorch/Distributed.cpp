// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/pytorch/Distributed.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "device/collective/Backend.h"

namespace mycelya {
namespace {

c10::intrusive_ptr<c10d::Backend> MakeBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              std::chrono::milliseconds timeout,
                                              const c10::intrusive_ptr<c10d::Backend>& cpu) {
  return c10::make_intrusive<Backend>(store, rank, size, timeout, cpu);
}

// Of a group whose backend has no tensors of the device. Each collective raises an error with the backend's name.
class Elsewhere final : public c10d::Backend {
 public:
  Elsewhere(int rank, int size, const std::string& of)
      : c10d::Backend(rank, size),
        name_(c10::str(of, " has no tensors of mycelya. Call init_process_group() without a backend, or with ",
                       "\"cpu:gloo,mycelya:mycelya\". It")) {}
  const std::string getBackendName() const override { return name_; }

 private:
  const std::string name_;
};

c10::intrusive_ptr<c10d::Backend> MakeElsewhere(int rank, int size, const std::string& of) {
  return c10::make_intrusive<Elsewhere>(rank, size, of);
}

}  // namespace

void DefineDistributed(py::module_& m) {
  m.def("backend", &MakeBackend);
  m.def("backend_elsewhere", &MakeElsewhere);
}

}  // namespace mycelya
