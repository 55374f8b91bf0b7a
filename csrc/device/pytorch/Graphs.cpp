// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "device/pytorch/Graphs.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "device/graph/Graph.h"
#include "device/record/Origin.h"

namespace py = pybind11;

namespace mycelya {
namespace {

// A slot in the arguments, results and outputs that Python describes.
struct Slot {
  int32_t index;
  bool last;
};

using Places = std::vector<std::optional<std::tuple<std::string, std::string, int32_t>>>;

std::vector<Origin> OriginsOf(const Places& places) {
  std::vector<std::optional<Place>> all;
  for (const auto& p : places) {
    all.push_back(p.has_value() ? std::optional<Place>({std::get<0>(*p), std::get<1>(*p), std::get<2>(*p)})
                                : std::nullopt);
  }
  return DefinePlaces(all);
}

// The value as the dispatcher's own binding for Python takes it; type nullptr: an integer, a tensor or None.
c10::IValue ConstantOf(py::handle value, const c10::Argument* argument) {
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  if (argument != nullptr) return torch::jit::toIValue(value, argument->type(), argument->N());
  if (value.is_none()) return {};
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  return value.cast<int64_t>();
}

Graph::Operand OperandOf(py::handle value, const c10::Argument* argument, size_t slots) {
  Graph::Operand o;
  if (py::isinstance<Slot>(value)) {
    const Slot& slot = value.cast<const Slot&>();
    TORCH_CHECK_INDEX(slot.index >= 0 && static_cast<size_t>(slot.index) < slots, "BUG: a graph of ", slots,
                      " slots has no slot ", slot.index);
    o.slot = slot.index;
    o.last = slot.last;
  } else {
    o.constant = ConstantOf(value, argument);
  }
  return o;
}

// A tuple is the form and the parts of a list with slots.
Graph::Argument ArgumentOf(py::handle value, const c10::Argument* argument, size_t slots) {
  Graph::Argument a;
  if (!py::isinstance<py::tuple>(value)) {
    a.parts.push_back(OperandOf(value, argument, slots));
    return a;
  }
  const auto [form, parts] = value.cast<std::pair<std::string, py::list>>();
  a.form = form == "ints"      ? Graph::Form::kInts
           : form == "tensors" ? Graph::Form::kTensors
           : form == "number"  ? Graph::Form::kNumber
                               : Graph::Form::kOptionalTensors;
  for (const py::handle part : parts) a.parts.push_back(OperandOf(part, nullptr, slots));
  return a;
}

Graph::Step StepOf(const py::tuple& description, size_t slots) {
  Graph::Step step;
  step.code = Graph::CodeOf(description[0].cast<std::string>());
  const auto args = description[2].cast<py::list>();
  const std::vector<c10::Argument>* arguments = nullptr;
  if (step.code == Graph::Code::kCall) {
    const auto [name, overload] = description[1].cast<std::pair<std::string, std::string>>();
    step.op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    arguments = &step.op->schema().arguments();
    TORCH_CHECK(arguments->size() == args.size(), "BUG: ", name, " takes ", arguments->size(), " arguments, not ",
                args.size());
  }
  for (size_t i = 0; i < args.size(); ++i) {
    step.args.push_back(ArgumentOf(args[i], arguments == nullptr ? nullptr : &(*arguments)[i], slots));
  }
  for (const py::handle result : description[3].cast<py::list>()) {
    step.results.push_back(OperandOf(result, nullptr, slots));
  }
  return step;
}

Graph GraphOf(size_t inputs, size_t slots, const py::list& steps, const py::list& outputs,
              std::vector<int32_t> unused) {
  Graph graph;
  graph.inputs = inputs;
  graph.slots = slots;
  graph.unused = std::move(unused);
  Places places;
  for (const py::handle step : steps) {
    const auto description = step.cast<py::tuple>();
    graph.steps.push_back(StepOf(description, slots));
    places.push_back(description[4].cast<Places::value_type>());
  }
  const std::vector<Origin> origins = OriginsOf(places);
  for (size_t i = 0; i < origins.size(); ++i) graph.steps[i].origin = origins[i];
  for (const py::handle output : outputs) graph.outputs.push_back(OperandOf(output, nullptr, slots));
  return graph;
}

py::object ObjectOf(c10::IValue&& value) {
  if (value.isTensor()) return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(value).toTensor()));
  return torch::jit::toPyObject(std::move(value));
}

// Takes the inputs out of the list, so that the graph frees each one after its last use.
py::list RunGraph(const Graph& graph, const py::list& args) {
  TORCH_CHECK(args.size() == graph.inputs, "a graph of torch.compile takes ", graph.inputs, " inputs, not ",
              args.size());
  std::vector<c10::IValue> values(graph.slots), results;
  for (size_t i = 0; i < graph.inputs; ++i) values[i] = ConstantOf(args[i], nullptr);
  if (PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr) != 0) throw py::error_already_set();
  {
    const py::gil_scoped_release no_gil;
    results = graph.Run(values);
  }
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i) out[i] = ObjectOf(std::move(results[i]));
  return out;
}

}  // namespace

void DefineGraphs(py::module_& m) {
  py::class_<Slot>(m, "Slot")
      .def(py::init([](int32_t index) {
        return Slot{index, false};
      }))
      .def_readonly("index", &Slot::index)
      .def_readwrite("last", &Slot::last);
  py::class_<Graph>(m, "Graph").def(py::init(&GraphOf)).def("run", &RunGraph);
  m.def("set_places", [](py::handle code, const Places& places) { SetPlaces(code.ptr(), OriginsOf(places)); });
}

}  // namespace mycelya
