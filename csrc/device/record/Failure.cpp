// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Failure.h"

#include <Python.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "abi/size_text.h"
#include "device/client/Client.h"
#include "device/record/Known.h"
#include "device/record/Recorder.h"
#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

std::mutex failures_mutex;
std::vector<Raised> raised;

// Runs on the main thread, with the GIL.
int Undo(void*) {
  PyObject* module = PyImport_ImportModule("mycelya_torch._undo");
  PyObject* result = module == nullptr ? nullptr : PyObject_CallMethod(module, "undo", nullptr);
  if (result == nullptr) PyErr_WriteUnraisable(module);
  Py_XDECREF(result);
  Py_XDECREF(module);
  return 0;
}

// Lists the lines whose tensors take most of a device's memory. lost: the first storage that the failed program did not
// make; 0: unknown.
std::string TensorsText(c10::DeviceIndex device, uint64_t lost) {
  constexpr size_t kMost = 5;
  const std::map<std::string, Live> by_line = LiveByLine(device, lost == 0 ? UINT64_MAX : lost);
  std::vector<std::pair<std::string, Live>> lines(by_line.begin(), by_line.end());
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  if (lines.empty()) return "";
  std::string text =
      "\nThe largest live tensors of mycelya:" + std::to_string(device) + ", by the line that made them:";
  for (size_t i = 0; i < std::min(kMost, lines.size()); ++i) {
    const auto& [place, live] = lines[i];
    text += "\n  " + SizeText(live.bytes) + " in " + std::to_string(live.count) +
            (live.count == 1 ? " tensor, " : " tensors, ") + place;
  }
  return text;
}

}  // namespace

std::string PlaceText(const Client& c, myc_origin place) {
  std::string out(1024, '\0');
  out.resize(std::min<uint64_t>(out.size() - 1, c.place(place, out.data(), out.size())));
  return out.empty() ? "an unknown place" : out;
}

std::map<std::string, Live> LiveByLine(c10::DeviceIndex device, uint64_t end) {
  std::map<std::string, Live> by_line;
  for (const Live& live : LiveStorages(device, end)) {
    Live& line = by_line[PlaceText(GetClient(), live.place)];
    line.bytes += live.bytes;
    line.count += live.count;
  }
  return by_line;
}

void NoteRaised(c10::DeviceIndex device, uint64_t first) {
  if (first == 0) return;
  ForgetKnown(device);
  {
    const std::lock_guard<std::mutex> guard(failures_mutex);
    raised.push_back({device, first, NextStorageId()});
  }
  if (Py_IsInitialized() != 0) Py_AddPendingCall(&Undo, nullptr);
}

std::vector<Raised> TakeRaised() {
  const std::lock_guard<std::mutex> guard(failures_mutex);
  return std::exchange(raised, {});
}

void Await(c10::DeviceIndex device, uint64_t ticket) {
  auto error = std::make_unique<myc_error>();
  Wait(GetClient(), ticket, *error);
  RaiseFor(device, *error);
}

void RaiseFor(c10::DeviceIndex device, const myc_error& error) {
  if (error.kind == MYC_OK) return;
  const uint64_t lost = RecorderOf(device).TakeFailure();
  RaiseWithTensors(device, lost, error);
}

void RaiseWithTensors(c10::DeviceIndex device, uint64_t lost, const myc_error& error) {
  Raise(error.kind, error.kind == MYC_E_MEMORY ? error.text + TensorsText(device, lost) : std::string(error.text));
}

}  // namespace mycelya
