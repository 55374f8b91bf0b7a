// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "device/pytorch/Steps.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device/tensor/Storage.h"

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

constexpr double kNoCount = -1;

// The "step" of a parameter's state, or the version of that tensor; kNoCount if there is none. It grows with each step.
double StepCount(PyObject* values) {
  if (!PyDict_Check(values)) return kNoCount;
  PyObject* step = PyDict_GetItemWithError(values, StepKey());
  if (step == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (step == nullptr) return kNoCount;
  if (THPVariable_Check(step)) {
    c10::TensorImpl& t = *THPVariable_Unpack(step).unsafeGetTensorImpl();
    return t.is_inference() ? 0 : t.version_counter().current_version();
  }
  if (!PyLong_Check(step) && !PyFloat_Check(step)) return kNoCount;
  const double count = PyFloat_AsDouble(step);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return count;
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

// The steps of one optimizer that a failure may undo. All functions are called with the GIL.
class StepLog {
 public:
  void Begin(const py::object& optimizer) {
    const py::object state = optimizer.attr("state");
    Step step;
    step.start = NextStorageId();
    step.parameters = WithGradient(optimizer.attr("param_groups"));
    if (py::list numbers = OtherNumbers(state); !numbers.empty()) step.numbers = std::move(numbers);
    ForEachState(state, [&](PyObject*, double count) { step.counts.push_back(count); });
    if (steps_.size() == kMost) steps_.pop_front();
    steps_.push_back(std::move(step));
  }

  void End() {
    if (steps_.empty()) return;
    steps_.back().open = false;
    steps_.back().counts = {};
  }

  // Forgets the steps that began with storage `first` or later. Returns how many of them each parameter has taken part
  // in, by its id, and the numbers of before the first of them.
  py::tuple Undo(uint64_t first, const py::dict& state) {
    std::unordered_map<PyObject*, int64_t> undone;
    py::object numbers = py::list();
    for (; !steps_.empty() && steps_.back().start >= first; steps_.pop_back()) {
      Step& step = steps_.back();
      std::unordered_set<PyObject*> stepped;
      size_t i = 0;
      if (step.open) {  // an error was raised within it; parameters that have their first step are at the end
        ForEachState(state, [&](PyObject* parameter, double count) {
          const double before = i < step.counts.size() ? step.counts[i] : kNoCount;
          ++i;
          if (count != before) stepped.insert(parameter);
        });
      }
      for (PyObject* p : *step.parameters) undone[p] += !step.open || stepped.count(p) != 0 ? 1 : 0;
      numbers = step.numbers ? std::move(step.numbers) : py::list();
    }
    py::dict by_id;
    for (const auto& [parameter, count] : undone) by_id[py::int_(reinterpret_cast<uintptr_t>(parameter))] = count;
    return py::make_tuple(by_id, numbers);
  }

 private:
  static constexpr size_t kMost = 4096;  // a client is at most a few thousand programs ahead of its worker

  using Parameters = std::vector<PyObject*>;  // not owned, used as numbers
  struct Step {
    uint64_t start = 0;                            // the id of the next storage at its start
    std::shared_ptr<const Parameters> parameters;  // those with a gradient
    py::object numbers;                            // at its start: (parameter, name, number); null: none
    std::vector<double> counts;                    // at its start, in the order of the state
    bool open = true;
  };
  std::deque<Step> steps_;
  std::shared_ptr<const Parameters> last_ = std::make_shared<Parameters>();

  // The parameters with a gradient, in the order of the groups. Steps with the same ones share a vector.
  std::shared_ptr<const Parameters> WithGradient(const py::object& groups) {
    Parameters now;
    now.reserve(last_->size());
    for (const py::handle group : groups) {
      for (const py::handle parameter : group["params"]) {
        if (HasGradient(parameter)) now.push_back(parameter.ptr());
      }
    }
    if (now != *last_) last_ = std::make_shared<const Parameters>(std::move(now));
    return last_;
  }

  template <class F>
  static void ForEachState(const py::dict& state, const F& f) {
    PyObject *parameter = nullptr, *values = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(state.ptr(), &at, &parameter, &values) != 0;) f(parameter, StepCount(values));
  }
};

}  // namespace

void DefineSteps(py::module_& m) {
  py::class_<StepLog>(m, "StepLog")
      .def(py::init<>())
      .def("begin", &StepLog::Begin)
      .def("end", &StepLog::End)
      .def("undo", &StepLog::Undo);
}

}  // namespace mycelya
