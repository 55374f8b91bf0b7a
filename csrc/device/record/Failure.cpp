// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Failure.h"

#include <Python.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "device/client/Client.h"
#include "device/record/Recorder.h"
#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

std::mutex mutex;
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

}  // namespace

void NoteRaised(c10::DeviceIndex device, uint64_t first) {
  if (first == 0) return;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    raised.push_back({device, first, NextStorageId()});
  }
  if (Py_IsInitialized() != 0) Py_AddPendingCall(&Undo, nullptr);
}

std::vector<Raised> TakeRaised() {
  const std::lock_guard<std::mutex> guard(mutex);
  return std::exchange(raised, {});
}

void Await(c10::DeviceIndex device, uint64_t ticket) {
  try {
    WaitFor(GetClient(), ticket);
  } catch (const c10::Error&) {
    RecorderOf(device).TakeFailure();
    throw;
  }
}

void RaiseFor(c10::DeviceIndex device, const myc_error& error) {
  if (error.kind == MYC_OK) return;
  RecorderOf(device).TakeFailure();
  Raise(error);
}

}  // namespace mycelya
