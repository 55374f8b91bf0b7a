// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The Python module mycelya_torch._device (mycelya_torch/_device.pyi). It has no logic. Functions that may wait or lock
// release the GIL first.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "device/client/Client.h"
#include "device/client/State.h"
#include "device/operators/Transfer.h"
#include "device/pytorch/Flags.h"
#include "device/pytorch/Generator.h"
#include "device/pytorch/Hooks.h"
#include "device/pytorch/Register.h"
#include "device/record/Origin.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/tensor/Storage.h"

namespace py = pybind11;

namespace mycelya {
namespace {

// The metrics of the client library as JSON, with the C++ counters in front.
std::string metrics() {
  const Counters& n = counters();
  uint64_t ops = 0, inferred = 0;
  for (int i = 0; i < device_count(); ++i) {
    ops += recorder(static_cast<c10::DeviceIndex>(i)).ops();
    inferred += recorder(static_cast<c10::DeviceIndex>(i)).inferred();
  }
  const uint64_t misses = n.shape_misses, hits = inferred - std::min(inferred, misses);
  std::string out = "{\"ops_recorded\":" + std::to_string(ops) + ",\"views_recorded\":" + std::to_string(n.views) +
                    ",\"shape_cache_hits\":" + std::to_string(hits) +
                    ",\"shape_cache_misses\":" + std::to_string(misses) +
                    ",\"meta_key_calls\":" + std::to_string(n.meta_key_calls);
  const std::string rest = text_of([](char* to, uint64_t n, myc_error*) { return client().metrics(to, n); });
  return rest.size() > 2 ? out + "," + rest.substr(1) : out + "}";
}

void reset_metrics() {
  Counters& n = counters();
  for (int i = 0; i < device_count(); ++i) {
    Recorder& r = recorder(static_cast<c10::DeviceIndex>(i));
    std::lock_guard<SpinLock> guard(r.lock);
    r.reset_counts();
  }
  n.views = n.shape_misses = n.meta_key_calls = 0;
  if (client_loaded()) client().reset_metrics();
}

std::string device_info(int index) {
  const Client& c = client_for(static_cast<c10::DeviceIndex>(index));
  return text_of([&](char* to, uint64_t n, myc_error* error) { return c.device_info(index, to, n, error); });
}

std::string bill() {
  if (!client_loaded()) return "[]";
  return text_of([](char* to, uint64_t n, myc_error*) { return client().bill(to, n); });
}

// The programs that a device has compiled and why.
std::string explain(int index) {
  const Client& c = client_for(static_cast<c10::DeviceIndex>(index));
  return text_of([&](char* to, uint64_t n, myc_error* error) { return c.explain(index, to, n, error); });
}

const at::Tensor& our_tensor(py::handle object) {
  const char* name = Py_TYPE(object.ptr())->tp_name;
  TORCH_CHECK_TYPE(THPVariable_Check(object.ptr()), "expected a mycelya tensor, got ", name);
  const at::Tensor& t = THPVariable_Unpack(object.ptr());
  TORCH_CHECK_TYPE(t.device().type() == kDevice, "expected a mycelya tensor, got a tensor on ", t.device());
  return t;
}

// The graph that computes a tensor's storage; "" if nothing is pending for it.
std::string pending(py::handle tensor) {
  const at::Tensor& t = our_tensor(tensor);
  const py::gil_scoped_release no_gil;
  return recorder(t.device().index()).pending(*storage_of(*t.unsafeGetTensorImpl()));
}

uint64_t storage_id(py::handle tensor) { return storage_of(*our_tensor(tensor).unsafeGetTensorImpl())->id; }

// FNV-1a 64 over shape, strides, dtype, offset and storage id, as 16 hex digits.
std::string metadata_hash(py::handle tensor) {
  const at::Tensor& t = our_tensor(tensor);
  uint64_t h = 0xcbf29ce484222325ull;
  const auto add = [&](uint64_t v) {
    for (int i = 0; i < 8; ++i, v >>= 8) h = (h ^ (v & 255)) * 0x100000001b3ull;
  };
  add(static_cast<uint64_t>(t.dim()));
  for (const int64_t v : t.sizes()) add(static_cast<uint64_t>(v));
  for (const int64_t v : t.strides()) add(static_cast<uint64_t>(v));
  add(dtype_code(t.scalar_type()));
  add(static_cast<uint64_t>(t.storage_offset()));
  add(storage_of(*t.unsafeGetTensorImpl())->id);
  char text[17];
  snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
  return text;
}

// A CUDA device's compute capability (major, minor); (0, 0) for a CPU.
std::pair<int64_t, int64_t> capability(int i) {
  const auto index = static_cast<c10::DeviceIndex>(i);
  const at::Tensor numbers = make_vector(at::kLong, 2, index);
  record_own(index, "mycelya::capability", {}, numbers);
  const at::Tensor here = to_cpu(numbers);
  const auto* words = here.const_data_ptr<int64_t>();
  return {words[0], words[1]};
}

void mark_step() {
  const Origin origin = current_origin();
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    Recorder& r = recorder(i);
    std::lock_guard<SpinLock> guard(r.lock);
    r.mark_step(origin);
  }
}

void shutdown() {
  if (!client_loaded() || in_bad_fork()) return;
  close_all();
}

}  // namespace

PYBIND11_MODULE(_device, m) {
  // PyTorch's own mapping of C++ errors to Python exceptions, without C++ backtraces.
  py::register_local_exception_translator([](std::exception_ptr e) {
    if (e) torch::translate_exception_to_python(e);
  });
  register_storage();
  register_hooks();
  register_ops();

  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("init", [](const std::string& library, const std::string& worker, const std::string& exec,
                   const std::string& torch_lib, const std::string& provider, const std::string& device) {
    set_paths({library, worker, exec, torch_lib, {provider, device}});
  });
  m.def("set_internal_folders", &set_internal_folders);
  m.def(
      "open",
      [](int index, const std::string& provider, const std::string& device) {
        open_device(static_cast<c10::DeviceIndex>(index), {provider, device});
      },
      no_gil);
  m.def(
      "close", [](int index) { close_device(static_cast<c10::DeviceIndex>(index)); }, no_gil);
  m.def("shutdown", &shutdown, no_gil);
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", [](int i) { exchange_device(static_cast<c10::DeviceIndex>(i)); });
  m.def("exchange_device", [](int i) { return static_cast<int>(exchange_device(static_cast<c10::DeviceIndex>(i))); });
  m.def(
      "synchronize", [](int i) { synchronize(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  m.def(
      "flush", [](int i) { flush(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  py::class_<Download>(m, "Download")
      .def(py::init([](const at::Tensor& t) { return std::make_unique<Download>(t); }), no_gil)
      .def("wait", &Download::wait, no_gil);
  m.def("mark_step", &mark_step, no_gil);
  m.def("set_flag", &set_flag);
  m.def("metrics", &metrics, no_gil);
  m.def("reset_metrics", &reset_metrics, no_gil);
  m.def("bill", &bill, no_gil);
  m.def("explain", &explain, no_gil);
  m.def("pending", &pending);
  m.def(
      "manual_seed",
      [](uint64_t seed, int i) {
        at::Generator(default_generator(static_cast<c10::DeviceIndex>(i))).set_current_seed(seed);
      },
      no_gil);
  m.def(
      "seed", [](int i) { return at::Generator(default_generator(static_cast<c10::DeviceIndex>(i))).seed(); }, no_gil);
  m.def("initial_seed", [](int i) { return default_generator(static_cast<c10::DeviceIndex>(i)).current_seed(); });
  m.def(
      "get_rng_state", [](int i) { return get_rng_state(default_generator(static_cast<c10::DeviceIndex>(i))); },
      no_gil);
  m.def(
      "set_rng_state",
      [](const at::Tensor& state, int i) { set_rng_state(default_generator(static_cast<c10::DeviceIndex>(i)), state); },
      no_gil);
  m.def("memory_allocated", [](int i) { return memory(static_cast<c10::DeviceIndex>(i)).now(); });
  m.def("max_memory_allocated", [](int i) { return memory(static_cast<c10::DeviceIndex>(i)).peak.load(); });
  m.def(
      "reset_peak_memory_stats", [](int i) { reset_peak_memory(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  m.def(
      "memory_info", [](int i) { return memory_info(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  m.def("capability", &capability, no_gil);
  m.def("register_fallbacks", &register_fallbacks);
  m.def("default_generator", [](int i) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_initDefaultGenerator(default_generator(static_cast<c10::DeviceIndex>(i))));
  });
  m.def("storage_id", [](py::handle t) { return storage_id(t); });
  m.def("metadata_hash", [](py::handle t) { return metadata_hash(t); });
  m.def("device_info", &device_info, no_gil);
  m.def("is_in_bad_fork", &in_bad_fork);
  m.def("is_initialized", &client_loaded);
}

}  // namespace mycelya
