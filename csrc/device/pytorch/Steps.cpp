// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "device/pytorch/Steps.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/client/Client.h"
#include "device/tensor/Storage.h"

namespace py = pybind11;

namespace mycelya {
namespace {

// A key as the optimizers spell it: Python keeps one object for it.
PyObject* StepKey() {
  static PyObject* const key = PyUnicode_InternFromString("step");
  return key;
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

// The steps of one optimizer that a failure may undo. All functions are called with the GIL.
class StepLog {
 public:
  explicit StepLog(py::object gone) : gone_(std::move(gone)) {}

  void Begin(const py::dict& state) {
    Step step;
    step.start = NextStorageId();
    if (py::list numbers = OtherNumbers(state); !numbers.empty()) step.numbers = std::move(numbers);
    std::vector<double> counts = EndLast(state);
    if (steps_.size() == kMost) steps_.pop_front();
    steps_.push_back(std::move(step));
    counts_ = std::move(counts);
  }

  // Forgets the steps that began with storage `first` or later. Returns how many of them each parameter has taken part
  // in, by its id, and the numbers of before the first of them.
  py::tuple Undo(uint64_t first, const py::dict& state) {
    counts_ = EndLast(state);
    std::unordered_map<PyObject*, int64_t> undone;
    py::object numbers = py::list();
    for (; !steps_.empty() && steps_.back().start >= first; steps_.pop_back()) {
      Step& step = steps_.back();
      for (PyObject* p : *step.parameters) ++undone[p];
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
    std::shared_ptr<const Parameters> parameters;  // those whose count it has changed; null: not known yet
    py::object numbers;                            // at its start: (parameter, name, number); null: none
  };

  py::object gone_;  // the weak reference that removes this log
  std::deque<Step> steps_;
  std::vector<double> counts_;  // at the start of the last step, in the order of the state; new parameters come last
  Parameters changed_;          // memory for EndLast
  std::shared_ptr<const Parameters> last_ = std::make_shared<Parameters>();
  py::list names_;  // of NumberNames, for a state of named_ entries
  Py_ssize_t named_ = -1;

  // Notes which parameters have taken part in the last step: those whose count has changed, also if an error has ended
  // the step. Steps of the same parameters share a vector. Returns the counts.
  std::vector<double> EndLast(const py::dict& state) {
    std::vector<double> counts;
    counts.reserve(static_cast<size_t>(PyDict_Size(state.ptr())));
    changed_.clear();
    PyObject *parameter = nullptr, *values = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(state.ptr(), &at, &parameter, &values) != 0;) {
      const size_t i = counts.size();
      counts.push_back(StepCount(values));
      if (counts[i] != (i < counts_.size() ? counts_[i] : kNoCount)) changed_.push_back(parameter);
    }
    if (!steps_.empty() && !steps_.back().parameters) {
      if (changed_ != *last_) last_ = std::make_shared<const Parameters>(changed_);
      steps_.back().parameters = last_;
    }
    return counts;
  }

  // The CPU numbers of the state that no count of steps gives, as (parameter, name, number). An optimizer has the same
  // names for all parameters, but one may be a tensor of another rank.
  py::list OtherNumbers(const py::dict& state) {
    py::list numbers;
    if (state.empty()) return numbers;
    const py::handle one = state.begin()->second;
    if (const Py_ssize_t n = PyDict_Check(one.ptr()) ? PyDict_Size(one.ptr()) : 0; n != named_) {
      names_ = NumberNames(one);
      named_ = n;
    }
    if (names_.empty()) return numbers;
    for (const auto& [parameter, values] : state) {
      for (const py::handle name : names_) {
        const py::object value = values.attr("get")(name);
        if (!IsNumber(value.ptr())) continue;
        const bool tensor = THPVariable_Check(value.ptr());
        numbers.append(py::make_tuple(parameter, name, tensor ? value.attr("item")() : value));
      }
    }
    return numbers;
  }
};

// The logs by optimizer. Never destroyed: Python ends before the objects of this library.
std::unordered_map<PyObject*, StepLog>& Logs() {
  static auto* const logs = new std::unordered_map<PyObject*, StepLog>();
  return *logs;
}

py::dict StateOf(py::handle optimizer) { return py::dict(optimizer.attr("state")); }

// Notes the start of a step.
void NoteStep(py::handle optimizer) {
  if (!ClientLoaded()) return;
  PyObject* const key = optimizer.ptr();
  auto log = Logs().find(key);
  if (log == Logs().end()) {
    const py::cpp_function forget([key](const py::object&) { Logs().erase(key); });
    log = Logs().try_emplace(key, py::weakref(optimizer, forget)).first;
  }
  log->second.Begin(StateOf(optimizer));
}

py::tuple UndoSteps(py::handle optimizer, uint64_t first) {
  const auto log = Logs().find(optimizer.ptr());
  if (log == Logs().end()) return py::make_tuple(py::dict(), py::list());
  return log->second.Undo(first, StateOf(optimizer));
}

}  // namespace

void DefineSteps(py::module_& m) {
  m.def("note_step", &NoteStep);
  m.def("undo_steps", &UndoSteps);
}

}  // namespace mycelya
