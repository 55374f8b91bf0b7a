// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "device/pytorch/Kept.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/client/Client.h"
#include "device/record/Failure.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"
#include "device/tensor/Storage.h"

namespace py = pybind11;

namespace mycelya {
namespace {

const at::Tensor& Ours(py::handle tensor) {
  TORCH_CHECK_TYPE(THPVariable_Check(tensor.ptr()) && THPVariable_Unpack(tensor.ptr()).device().type() == kDevice,
                   "BUG: expected a mycelya tensor.");
  return THPVariable_Unpack(tensor.ptr());
}

// Asks the worker about kept state, behind all that was recorded, and returns the answer: JSON, see runtime/kept.go.
std::string Ask(int index, const std::string& question) {
  const auto device = static_cast<c10::DeviceIndex>(index);
  const Origin origin = WithCaller(RecordOrigin());
  const Client& c = ClientFor(device);
  Flush(device);
  auto error = std::make_unique<myc_error>();
  const uint64_t ticket = c.ask(device, question.data(), question.size(), origin, error.get());
  if (ticket == 0) Raise(*error);
  Await(device, ticket);
  return TextOf([&](char* to, uint64_t n, myc_error* error) { return c.answer(ticket, to, n, error); });
}

// Asks the session itself, also of a paused or a lost machine, and sends nothing before.
std::string AskSession(int index, const std::string& question) {
  const auto device = static_cast<c10::DeviceIndex>(index);
  const Origin origin = WithCaller(RecordOrigin());
  const Client& c = IsPaused(device) ? GetClient() : ClientFor(device);
  auto error = std::make_unique<myc_error>();
  const uint64_t ticket = c.ask(device, question.data(), question.size(), origin, error.get());
  if (ticket == 0) Raise(*error);
  WaitFor(c, ticket);
  return TextOf([&](char* to, uint64_t n, myc_error* error) { return c.answer(ticket, to, n, error); });
}

// Ends the worker after a checkpoint of all that was recorded.
void Pause(int index) {
  const auto device = static_cast<c10::DeviceIndex>(index);
  if (IsPaused(device)) return;
  Ask(index, R"({"What":"pause"})");
  RecorderOf(device).Pause(true);
  SetPaused(device, true);
}

// Starts another worker with all that the last one had, and waits until it has that.
void Resume(int index) {
  const auto device = static_cast<c10::DeviceIndex>(index);
  if (!IsPaused(device)) return;
  AskSession(index, R"({"What":"resume"})");
  SetPaused(device, false);
  RecorderOf(device).Pause(false);
  Synchronize(device);
}

// (storage, dtype, sizes, strides, offset) of a tensor. A storage that was never written gets any values.
py::tuple ViewOf(py::handle tensor) {
  const at::Tensor& t = Ours(tensor);
  const Storage& s = *StorageOf(*t.unsafeGetTensorImpl());
  CheckAlive(s);
  Recorder& r = RecorderOf(t.device().index());
  const Origin origin = RecordOrigin();
  {
    const std::lock_guard<SpinLock> guard(r.lock);
    if (!s.defined) r.DefineStorage(*t.unsafeGetTensorImpl(), origin);
  }
  return py::make_tuple(s.id, DtypeCode(t.scalar_type()), t.sizes().vec(), t.strides().vec(), t.storage_offset());
}

// The worker makes the storage of a new tensor, so that its end must be told.
void SetDefined(py::handle tensor) {
  const at::Tensor& t = Ours(tensor);
  Storage& s = *StorageOf(*t.unsafeGetTensorImpl());
  s.defined = true;
  s.epoch = RecorderOf(t.device().index()).life();  // no trace has seen it
}

}  // namespace

void DefineKept(py::module_& m) {
  m.def("ask", &Ask, py::call_guard<py::gil_scoped_release>());
  m.def("ask_session", &AskSession, py::call_guard<py::gil_scoped_release>());
  m.def("pause", &Pause, py::call_guard<py::gil_scoped_release>());
  m.def("resume", &Resume, py::call_guard<py::gil_scoped_release>());
  m.def("view_of", &ViewOf);
  m.def("set_defined", &SetDefined);
}

}  // namespace mycelya
