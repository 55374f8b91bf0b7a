// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "device/pytorch/Steps.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace mycelya {
namespace {

// A key as the optimizers spell it: Python keeps one object for it.
PyObject* StepKey() {
  static PyObject* const key = PyUnicode_InternFromString("step");
  return key;
}

bool HasGradient(py::handle parameter) {
  if (THPVariable_Check(parameter.ptr())) return THPVariable_Unpack(parameter.ptr()).grad().defined();
  return !parameter.attr("grad").is_none();
}

bool IsNumber(PyObject* value) {
  if (!THPVariable_Check(value)) return PyLong_Check(value) || PyFloat_Check(value);
  const at::Tensor& t = THPVariable_Unpack(value);
  return t.dim() == 0 && t.device().is_cpu();
}

// The ids of the parameters with a gradient, in the order of the groups.
py::tuple ParametersWithGradient(const py::iterable& groups) {
  py::list ids;
  for (const py::handle group : groups) {
    for (const py::handle parameter : group["params"]) {
      if (HasGradient(parameter)) ids.append(py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(parameter.ptr())));
    }
  }
  return py::tuple(ids);
}

// For each parameter of the state: its "step", or the version of that tensor; None where a state has no "step".
py::list StepCounts(const py::object& of) {
  const py::dict state(of);
  py::list counts(state.size());
  size_t i = 0;
  for (const auto& [parameter, values] : state) {
    py::object step;
    if (PyDict_Check(values.ptr())) {
      step = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(values.ptr(), StepKey()));
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    }
    if (!step) step = py::none();
    if (THPVariable_Check(step.ptr())) {
      const at::Tensor& t = THPVariable_Unpack(step.ptr());
      step = py::int_(t.is_inference() ? 0 : t._version());
    }
    counts[i++] = std::move(step);
  }
  return counts;
}

// The names of the CPU numbers, other than "step", that a parameter's state holds.
py::list NumberNames(py::handle values) {
  py::list names;
  if (!PyDict_Check(values.ptr())) return names;
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(values)) {
    if (!name.equal(py::handle(StepKey())) && IsNumber(value.ptr())) names.append(name);
  }
  return names;
}

// The CPU numbers of the state that no count of steps gives, as (parameter, name, number). An optimizer has the same
// names for all parameters, but one may be a tensor of another rank.
py::list OtherNumbers(const py::object& of) {
  const py::dict state(of);
  py::list numbers;
  if (state.empty()) return numbers;
  const py::list names = NumberNames(state.begin()->second);
  if (names.empty()) return numbers;
  for (const auto& [parameter, values] : state) {
    for (const py::handle name : names) {
      const py::object value = values.attr("get")(name);
      if (!IsNumber(value.ptr())) continue;
      const bool tensor = THPVariable_Check(value.ptr());
      numbers.append(py::make_tuple(parameter, name, tensor ? value.attr("item")() : value));
    }
  }
  return numbers;
}

}  // namespace

void DefineSteps(py::module_& m) {
  m.def("parameters_with_gradient", &ParametersWithGradient);
  m.def("step_counts", &StepCounts);
  m.def("other_numbers", &OtherNumbers);
}

}  // namespace mycelya
