// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// One session on one device: the storages it holds, its generators, and transfers.
#ifndef MYCELYA_EXEC_SESSION_EXECUTOR_H_
#define MYCELYA_EXEC_SESSION_EXECUTOR_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "exec/Error.h"
#include "exec/backend/Device.h"

namespace mycelya::exec {

// Where every call into ATen happens: no autograd keys, no version counters, and the device current.
class Scope {
 public:
  explicit Scope(c10::Device device);

 private:
  c10::InferenceMode inference_{true};
  c10::OptionalDeviceGuard device_;
};

// Exactly one of storage and poison is set.
struct Held {
  c10::Storage storage;
  PoisonPtr poison;
};

// A read's bytes; keeps the memory they lie in.
struct Reading {
  c10::Storage storage;
};

class Executor {
 public:
  // threads 0: PyTorch's default. Seeds the device's default generator as a fresh PyTorch process does: one process
  // serves one session, so the process's default generator is the session's.
  Executor(const std::string& device, int32_t threads);

  const Device& device() const { return *device_; }

  // Computes on so many threads less than it may: a region of several threads waits for the last of them, and that one
  // may not get a core for milliseconds while another process works on it.
  void Leave(int32_t cores) const;

  // The executor whose program this thread runs.
  static Executor& Current();
  class Running {  // makes it current
   public:
    explicit Running(Executor& executor);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
  };

  // Uninitialised. Throws OutOfMemoryError.
  c10::Storage Allocate(uint64_t bytes) const;
  // CPU memory for transfers.
  c10::Storage AllocateHost(uint64_t bytes) const;

  // Id 0 is the default generator; any other is made at first sight.
  const at::Generator& GeneratorOf(uint64_t id);
  void Seed(uint64_t id, uint64_t seed);

  // The table. Find returns null when there is no such storage.
  Held* Find(uint64_t id);
  void Bind(uint64_t id, c10::Storage storage);
  void BindPoison(uint64_t id, PoisonPtr poison);
  void Free(const uint64_t* ids, uint64_t n);
  void Usage(uint64_t* storages, uint64_t* bytes) const;

  // The storage for a program to work on. If a read still holds its memory the program gets a copy, so that what the
  // reader sees stays what it was.
  c10::Storage Borrow(Held& held);

  // Transfers (Transfer.cpp).
  void* BeginUpload(uint64_t id, uint64_t bytes);
  void EndUpload(uint64_t id);
  // Null, with the poison set, when the storage is poisoned.
  std::unique_ptr<Reading> Read(const myc_view& view, const void** out, uint64_t* bytes, PoisonPtr* poison);
  void EndRead(Reading* reading);

 private:
  std::unique_ptr<Device> device_;
  int threads_;  // that it may use
  std::unordered_map<uint64_t, Held> table_;
  std::unordered_map<uint64_t, at::Generator> generators_;
  // Uploads begun: on the CPU the storage itself, else staging memory.
  std::unordered_map<uint64_t, c10::Storage> uploads_;
  std::unordered_map<const c10::StorageImpl*, uint32_t> lent_;  // to how many readings
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_SESSION_EXECUTOR_H_
