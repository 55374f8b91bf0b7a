// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/client/Lives.h"

#include <torch/csrc/Exceptions.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "device/client/Client.h"
#include "device/client/State.h"

namespace mycelya {
namespace {

struct Life {
  uint64_t first_trace;
  std::string machine, why;  // the machine that the life was of, and its end
};

// Lives that an error can still tell about.
constexpr size_t kKeptLives = 64;

struct Index {
  std::string machine;
  std::vector<Life> lives{{0, "", ""}};
};

std::mutex& Mutex() {
  static auto& leaked = *new std::mutex();
  return leaked;
}

Index& Of(c10::DeviceIndex index) {
  static auto& leaked = *new std::array<Index, kMaxDevices>();
  return leaked.at(static_cast<size_t>(index));
}

std::string Named(c10::DeviceIndex index, const std::string& machine) {
  const std::string device = "mycelya:" + std::to_string(index);
  return machine.empty() ? device : device + ", machine " + machine + ",";
}

std::atomic<bool> raised{false};

// An exception of mycelya_torch.errors.
class OwnError final : public torch::PyTorchError {
 public:
  OwnError(const char* type, std::string text) : PyTorchError(std::move(text)), type_(type) {}

  PyObject* python_type() override {
    PyObject* module = PyImport_ImportModule("mycelya_torch.errors");
    PyObject* type = module != nullptr ? PyObject_GetAttrString(module, type_) : nullptr;
    Py_XDECREF(module);
    if (type == nullptr) PyErr_Clear();
    Py_XDECREF(type);  // the module keeps it
    return type != nullptr ? type : PyExc_RuntimeError;
  }

 private:
  const char* type_;
};

}  // namespace

void NameMachine(c10::DeviceIndex index, const std::string& name) {
  const std::lock_guard<std::mutex> guard(Mutex());
  Of(index).machine = name;
  Of(index).lives.back().machine = name;
}

std::string MachineText(c10::DeviceIndex index) {
  const std::lock_guard<std::mutex> guard(Mutex());
  return Named(index, Of(index).machine);
}

std::string TwoMachinesText(c10::DeviceIndex first, c10::DeviceIndex second) {
  const std::lock_guard<std::mutex> guard(Mutex());
  const auto of = [](c10::DeviceIndex index) {
    const std::string& machine = Of(index).machine;
    return "mycelya:" + std::to_string(index) + " is " +
           (machine.empty() ? "the default machine" : "machine " + machine);
  };
  return (OnOneMachine(first, second) ? "They are two devices of one machine: " : "They are on different machines: ") +
         of(first) + ", " + of(second) +
         ". Copy one of them to the other's device first, for example with .to(\"mycelya:" + std::to_string(first) +
         "\").";
}

std::string DevicesText(c10::Device first, c10::Device second) {
  if (first.type() == second.type()) return TwoMachinesText(first.index(), second.index());
  return "Copy one of them to the other's device, for example with .to(\"" + first.str() + "\").";
}

void NoteEnd(c10::DeviceIndex index, std::string why) {
  const std::lock_guard<std::mutex> guard(Mutex());
  Of(index).lives.back().why = std::move(why);
}

void NoteLife(c10::DeviceIndex index, uint64_t first_trace) {
  const std::lock_guard<std::mutex> guard(Mutex());
  auto& lives = Of(index).lives;
  lives.push_back({first_trace, Of(index).machine, ""});
  if (lives.size() > kKeptLives) lives.erase(lives.begin());
}

void RaiseStopped(c10::DeviceIndex index) {
  TORCH_CHECK(!IsOfOtherRank(index), "mycelya:", static_cast<int>(index),
              " is the device of another process: of that with LOCAL_RANK=", static_cast<int>(index),
              ". This one has mycelya:", static_cast<int>(OwnDevice()), ", which is also its bare \"mycelya\".");
  std::string why;
  {
    const std::lock_guard<std::mutex> guard(Mutex());
    why = Of(index).lives.back().why;
  }
  RaiseMachineStopped(MachineText(index) + " is not running: " + (why.empty() ? "it was not started." : why) +
                      " Its tensors are lost. Call the machine's start(), or torch.mycelya.restart(" +
                      std::to_string(index) + "), to use the device again.");
}

void RaisePaused(c10::DeviceIndex index) {
  RaiseMachineStopped(MachineText(index) +
                      " is paused: its worker has ended, and its tensors are kept. Call the "
                      "machine's resume() to use them again.");
}

void RaiseLostTensor(c10::DeviceIndex index, uint64_t trace) {
  std::string machine, why = "its machine was stopped or lost.";
  {
    const std::lock_guard<std::mutex> guard(Mutex());
    for (const Life& life : Of(index).lives) {
      if (life.first_trace > trace) break;
      machine = life.machine;
      if (!life.why.empty()) why = life.why;
    }
  }
  RaiseLost("This tensor of " + Named(index, machine) + " is lost: " + why +
            " The device has been started again since then; make the tensor again.");
}

void RaiseLost(const std::string& text) {
  if (OutlivesUse()) SleepUntilTheEnd();
  throw OwnError("DeviceLostError", text);
}

void RaiseMachineStopped(const std::string& text) {
  if (OutlivesUse()) SleepUntilTheEnd();
  throw OwnError("MachineStoppedError", text);
}

void MarkRaised() { raised.store(true, std::memory_order_relaxed); }
bool HasRaised() { return raised.load(std::memory_order_relaxed); }

}  // namespace mycelya
