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

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "device/client/Client.h"
#include "device/client/Lives.h"
#include "device/client/Profile.h"
#include "device/client/State.h"
#include "device/operators/Series.h"
#include "device/pytorch/Distributed.h"
#include "device/pytorch/Graphs.h"
#include "device/pytorch/Hooks.h"
#include "device/pytorch/Kept.h"
#include "device/pytorch/Memory.h"
#include "device/pytorch/Steps.h"
#include "device/record/Failure.h"
#include "device/record/Flags.h"
#include "device/record/Generator.h"
#include "device/record/Known.h"
#include "device/record/Origin.h"
#include "device/record/Reads.h"
#include "device/record/Record.h"
#include "device/record/RecordInternal.h"
#include "device/record/Recorder.h"
#include "device/record/SyncDebug.h"
#include "device/record/Transfer.h"
#include "device/tensor/Register.h"
#include "device/tensor/Storage.h"

namespace py = pybind11;

namespace mycelya {
namespace {

// The metrics of the client library as JSON, with the C++ counters in front.
std::string Metrics() {
  const Counters& n = GetCounters();
  const ReadCounters& reads = GetReadCounters();
  uint64_t ops = 0, inferred = 0;
  for (int i = 0; i < DeviceCount(); ++i) {
    ops += RecorderOf(static_cast<c10::DeviceIndex>(i)).ops();
    inferred += RecorderOf(static_cast<c10::DeviceIndex>(i)).inferred();
  }
  const uint64_t misses = n.shape_misses, hits = inferred - std::min(inferred, misses);
  std::string out =
      "{\"ops_recorded\":" + std::to_string(ops) + ",\"views_recorded\":" + std::to_string(n.views) +
      ",\"shape_cache_hits\":" + std::to_string(hits) + ",\"shape_cache_misses\":" + std::to_string(misses) +
      ",\"meta_key_calls\":" + std::to_string(n.meta_key_calls) + ",\"peer_bytes\":" + std::to_string(n.peer_bytes) +
      ",\"blocking_reads\":" + std::to_string(reads.blocking) +
      ",\"blocking_nanoseconds\":" + std::to_string(reads.blocking_nanoseconds) +
      ",\"asynchronous_reads\":" + std::to_string(reads[Saved::kLater]) +
      ",\"local_reads\":" + std::to_string(reads[Saved::kKnown]) +
      ",\"reads_ahead\":" + std::to_string(reads[Saved::kAhead]) + ",\"known_bytes\":" + std::to_string(KnownBytes());
  const std::string rest = TextOf([](char* to, uint64_t n, myc_error*) { return GetClient().metrics(to, n); });
  return rest.size() > 2 ? out + "," + rest.substr(1) : out + "}";
}

void ResetMetrics() {
  Counters& n = GetCounters();
  for (int i = 0; i < DeviceCount(); ++i) {
    Recorder& r = RecorderOf(static_cast<c10::DeviceIndex>(i));
    std::lock_guard<SpinLock> guard(r.lock);
    r.ResetCounts();
  }
  n.views = n.shape_misses = n.meta_key_calls = n.peer_bytes = 0;
  ResetReadCounters();
  if (ClientLoaded()) GetClient().reset_metrics();
}

std::string Bill() {
  if (!ClientLoaded()) return "[]";
  const std::vector<myc_saved> saved = SavedTrips();
  return TextOf([&](char* to, uint64_t n, myc_error*) { return GetClient().bill(saved.data(), saved.size(), to, n); });
}

// The programs that a device has compiled and why.
std::string Explain(int index) {
  const Client& c = ClientFor(static_cast<c10::DeviceIndex>(index));
  return TextOf([&](char* to, uint64_t n, myc_error* error) { return c.explain(index, to, n, error); });
}

const at::Tensor& OurTensor(py::handle object) {
  const char* name = Py_TYPE(object.ptr())->tp_name;
  TORCH_CHECK_TYPE(THPVariable_Check(object.ptr()), "expected a mycelya tensor, got ", name);
  const at::Tensor& t = THPVariable_Unpack(object.ptr());
  TORCH_CHECK_TYPE(t.device().type() == kDevice, "expected a mycelya tensor, got a tensor on ", t.device());
  return t;
}

// The graph that computes a tensor's storage; "" if nothing is pending for it.
std::string Pending(py::handle tensor) {
  const at::Tensor& t = OurTensor(tensor);
  const py::gil_scoped_release no_gil;
  return RecorderOf(t.device().index()).Pending(*StorageOf(*t.unsafeGetTensorImpl()));
}

uint64_t StorageId(py::handle tensor) { return StorageOf(*OurTensor(tensor).unsafeGetTensorImpl())->id; }

// FNV-1a 64 over shape, strides, dtype, offset and storage id, as 16 hex digits.
std::string MetadataHash(py::handle tensor) {
  const at::Tensor& t = OurTensor(tensor);
  uint64_t h = 0xcbf29ce484222325ull;
  const auto add = [&](uint64_t v) {
    for (int i = 0; i < 8; ++i, v >>= 8) h = (h ^ (v & 255)) * 0x100000001b3ull;
  };
  add(static_cast<uint64_t>(t.dim()));
  for (const int64_t v : t.sizes()) add(static_cast<uint64_t>(v));
  for (const int64_t v : t.strides()) add(static_cast<uint64_t>(v));
  add(DtypeCode(t.scalar_type()));
  add(static_cast<uint64_t>(t.storage_offset()));
  add(StorageOf(*t.unsafeGetTensorImpl())->id);
  char text[17];
  snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
  return text;
}

// A CUDA device's compute capability (major, minor); (0, 0) for a CPU.
std::pair<int64_t, int64_t> Capability(int i) {
  const auto index = static_cast<c10::DeviceIndex>(i);
  const at::Tensor numbers = MakeVector(at::kLong, 2, index);
  RecordOwn(index, "mycelya::capability", {}, numbers);
  const at::Tensor here = ToCpu(numbers);
  const auto* words = here.const_data_ptr<int64_t>();
  return {words[0], words[1]};
}

// (place, bytes, number) of the large live storages of a device, by the line that made them.
std::vector<std::tuple<std::string, uint64_t, uint64_t>> LiveStoragesOf(int i) {
  std::vector<std::tuple<std::string, uint64_t, uint64_t>> out;
  for (const auto& [place, live] : LiveByLine(static_cast<c10::DeviceIndex>(i))) {
    out.emplace_back(place, live.bytes, live.count);
  }
  return out;
}

// Sizes and strides of a result as a worker's words describe it; a test gives it words that no worker sends.
std::pair<std::vector<int64_t>, std::vector<int64_t>> ShapeOf(const std::vector<int64_t>& words) {
  TORCH_CHECK(words.size() == MYC_SHAPE_WORDS, "expected ", static_cast<int>(MYC_SHAPE_WORDS), " words, got ",
              words.size());
  const OutMeta m = ShapeOfWords("an op", words.data());
  return {{m.sizes.begin(), m.sizes.end()}, {m.strides.begin(), m.strides.end()}};
}

// Only the constructor runs without the GIL: pybind11 then changes its table of objects, which needs the GIL.
std::unique_ptr<Download> MakeDownload(const at::Tensor& t) {
  const py::gil_scoped_release no_gil;
  return std::make_unique<Download>(t);
}

void BindReads(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Download>(m, "Download")
      .def(py::init(&MakeDownload))
      .def("done", &Download::Done, no_gil)
      .def("succeeds", &Download::Succeeds, no_gil)
      .def("wait", &Download::Wait, no_gil);
  m.def("count_blocking_read",
        [](double seconds) { CountBlockingRead(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9))); });
  py::enum_<LocalReads>(m, "LocalReads")
      .value("OFF", LocalReads::kOff)
      .value("ON", LocalReads::kOn)
      .value("CHECKED", LocalReads::kChecked);
  m.def("set_local_reads", &SetLocalReads);
}

void MarkStep() {
  const Origin origin = WithCaller(CurrentOrigin());
  for (c10::DeviceIndex i = 0; i < DeviceCount(); ++i) {
    Recorder& r = RecorderOf(i);
    std::lock_guard<SpinLock> guard(r.lock);
    r.MarkStep(origin);
  }
}

// Waits for the open devices if `wait`. Returns the text of the first error that nothing has raised, or "".
std::string LastError(bool wait) {
  if (!ClientLoaded() || InBadFork()) return "";
  for (c10::DeviceIndex i = 0; i < DeviceCount(); ++i) {
    // The end of a session, or its failed start, is told once.
    if (!IsOpen(i) || (HasRaised() && DeviceState(i) == "lost")) continue;
    try {
      if (wait) {
        Synchronize(i);
      } else {
        RecorderOf(i).RaiseFailure();
      }
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    } catch (const std::exception& e) {  // of mycelya_torch.errors
      return e.what();
    }
  }
  return "";
}

// The failures that Python must undo: (device, first id, end id) each.
py::list RaisedList() {
  py::list out;
  for (const Raised& r : TakeRaised()) out.append(py::make_tuple(static_cast<int>(r.device), r.first, r.end));
  return out;
}

void Shutdown() {
  EndUse();
  if (!InBadFork()) ShutDown();
}

// Where the artefacts are, and the start of a machine. The names of the arguments are in _device.pyi.
void DefineMachines(py::module_& m) {
  using Text = const std::string&;
  m.def("init", [](Text library, Text worker, Text exec, Text torch_lib, Text provider, Text device, Text options) {
    SetPaths({library, worker, exec, torch_lib, {provider, device, "", options, -1}},
             {[](c10::DeviceIndex index) { RecorderOf(index).BeginLife(); },
              [](c10::DeviceIndex index) { RecorderOf(index).EndLife(); }, &CurrentOrigin});
    SetWorkers(&WorkerOf);
  });
  m.def(
      "open",
      [](int index, Text provider, Text device, Text name, Text options) {
        OpenDevice(static_cast<c10::DeviceIndex>(index), {provider, device, name, options, -1});
      },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "open_beside",
      [](int index, int first, Text provider, Text device, Text name) {
        const auto other = static_cast<c10::DeviceIndex>(first);
        OpenDevice(static_cast<c10::DeviceIndex>(index), {provider, device, name, "", other});
      },
      py::call_guard<py::gil_scoped_release>());
}

void DefineReports(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("metrics", &Metrics, no_gil);
  m.def("reset_metrics", &ResetMetrics, no_gil);
  m.def("bill", &Bill, no_gil);
  DefineDistributed(m);
  m.def("explain", &Explain, no_gil);
  m.def("begin_profile", &BeginProfile, no_gil);
  m.def("end_profile", &EndProfile, no_gil);
}

}  // namespace

PYBIND11_MODULE(_device, m) {
  // PyTorch's own mapping of C++ errors to Python exceptions, without C++ backtraces.
  py::register_local_exception_translator([](std::exception_ptr e) {
    if (e) torch::translate_exception_to_python(e);
  });
  RegisterStorage();
  RegisterAllocator();
  RegisterHooks();

  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  DefineMachines(m);
  DefineReports(m);
  m.def("skip_files", &SkipFiles);
  m.def("set_standard_library", &SetStandardLibrary);
  m.def("set_cell_namer", [](const pybind11::object& namer) { SetCellNamer(namer.ptr()); });
  m.def(
      "close", [](int index) { CloseDevice(static_cast<c10::DeviceIndex>(index)); }, no_gil);
  m.def("last_error", &LastError, no_gil);
  m.def(
      "state", [](int index) { return DeviceState(static_cast<c10::DeviceIndex>(index)); }, no_gil);
  m.def("shutdown", &Shutdown, no_gil);
  m.def("device_count", [] { return static_cast<int>(DeviceCount()); });
  m.def("current_device", [] { return static_cast<int>(CurrentDevice()); });
  m.def("set_device", [](int i) { ExchangeDevice(static_cast<c10::DeviceIndex>(i)); });
  m.def("set_ranks",
        [](int own, int count) { SetRanks(static_cast<c10::DeviceIndex>(own), static_cast<c10::DeviceIndex>(count)); });
  m.def("set_home", [](int i) { SetHome(static_cast<c10::DeviceIndex>(i)); });
  m.def("set_sync_debug_mode", &SetSyncDebug);
  m.def("get_sync_debug_mode", &GetSyncDebug);
  m.def("exchange_device", [](int i) { return static_cast<int>(ExchangeDevice(static_cast<c10::DeviceIndex>(i))); });
  m.def(
      "synchronize", [](int i) { Synchronize(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  m.def(
      "flush", [](int i) { Flush(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  BindReads(m);
  m.def("note_series", &NoteSeries);
  m.def("mark_step", &MarkStep, no_gil);
  m.def("set_flag", &SetFlag);
  m.def("pending", &Pending);
  m.def(
      "manual_seed",
      [](uint64_t seed, int i) {
        at::Generator(DefaultGenerator(static_cast<c10::DeviceIndex>(i))).set_current_seed(seed);
      },
      no_gil);
  m.def(
      "seed", [](int i) { return at::Generator(DefaultGenerator(static_cast<c10::DeviceIndex>(i))).seed(); }, no_gil);
  m.def("initial_seed", [](int i) { return DefaultGenerator(static_cast<c10::DeviceIndex>(i)).current_seed(); });
  m.def(
      "get_rng_state", [](int i) { return GetRngState(DefaultGenerator(static_cast<c10::DeviceIndex>(i))); }, no_gil);
  m.def(
      "set_rng_state",
      [](const at::Tensor& state, int i) { SetRngState(DefaultGenerator(static_cast<c10::DeviceIndex>(i)), state); },
      no_gil);
  m.def("memory_allocated", [](int i) { return MemoryOf(static_cast<c10::DeviceIndex>(i)).Now(); });
  m.def("max_memory_allocated", [](int i) { return MemoryOf(static_cast<c10::DeviceIndex>(i)).peak.load(); });
  m.def(
      "reset_peak_memory_stats", [](int i) { ResetPeakMemory(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  m.def(
      "memory_info", [](int i) { return MemoryInfo(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  m.def("capability", &Capability, no_gil);
  m.def("live_storages", &LiveStoragesOf, no_gil);
  m.def("register_operators", &RegisterOperators);
  m.def("default_generator", [](int i) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_initDefaultGenerator(DefaultGenerator(static_cast<c10::DeviceIndex>(i))));
  });
  m.def("next_storage_id", &NextStorageId);
  m.def("take_raised", &RaisedList);
  DefineSteps(m);
  DefineKept(m);
  DefineGraphs(m);
  m.def("storage_id", [](py::handle t) { return StorageId(t); });
  m.def("metadata_hash", [](py::handle t) { return MetadataHash(t); });
  m.def(
      "device_info", [](int i) { return WorkerInfo(static_cast<c10::DeviceIndex>(i)); }, no_gil);
  m.def("shape_of", &ShapeOf);
  m.def("is_in_bad_fork", &InBadFork);
  m.def("is_initialized", &ClientLoaded);
}

}  // namespace mycelya
