// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// One session on one device: its table of storages, its generators, and its transfers.
#ifndef MYCELYA_EXEC_SESSION_EXECUTOR_H_
#define MYCELYA_EXEC_SESSION_EXECUTOR_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/Error.h"
#include "exec/backend/Device.h"

namespace mycelya::exec {

// The scope of every call into ATen: inference mode (no autograd, no version counters) on the session's device.
class Scope {
 public:
  explicit Scope(c10::Device device);

 private:
  c10::InferenceMode inference_{true};
  c10::OptionalDeviceGuard device_;
};

// A result or an upload of at most so many bytes has a copy on the host while it is known; of uploads, the last ones.
inline constexpr uint64_t kHostCopyBytes = 1 << 20;
inline constexpr uint64_t kHostCopiesBytes = 64 << 20;

// Exactly one of storage and poison is set.
struct Held {
  c10::Storage storage;
  PoisonPtr poison;
  // The same bytes in CPU memory, if the device's memory is apart and they are known without a wait. Nothing writes
  // them.
  c10::Storage on_host;
};

// A storage of the table. bytes: kPoisoned if it is poisoned.
struct Content {
  uint64_t id, bytes;
};
constexpr uint64_t kPoisoned = UINT64_MAX;

// Keeps the memory of a read alive.
struct Reading {
  c10::Storage storage;
};

// When the steps of a run begin and end. The words are those of myc_exec_run's times.
class StepTimes {
 public:
  StepTimes(const Device& device, uint64_t* words, uint64_t steps);
  void Begin(uint64_t step) noexcept;  // ends the step before
  void End() noexcept;

 private:
  const Device& device_;
  uint64_t* words_;
  uint64_t steps_;
  uint64_t open_ = 0;  // 1 + the number of the step that runs
};

// What the executor runs, in memory that outlives the process if it is shared. Relaxed stores: another process reads
// them after this one has ended.
struct Progress {
  Progress() = default;
  Progress(const Progress&) = delete;

  uint64_t own[2] = {};
  uint64_t* place = own;
  StepTimes* times = nullptr;  // of the run, if it is timed

  void Call(uint64_t call) const { __atomic_store_n(&place[0], call, __ATOMIC_RELAXED); }
  void Step(uint64_t step) const {
    __atomic_store_n(&place[1], step + 1, __ATOMIC_RELAXED);
    if (C10_UNLIKELY(times != nullptr)) times->Begin(step);
  }
  void Idle() const {
    __atomic_store_n(&place[1], 0, __ATOMIC_RELAXED);
    if (C10_UNLIKELY(times != nullptr)) times->End();
  }
};

class Groups;

class Executor {
 public:
  // threads 0: PyTorch's default. Seeds the device's default generator as a new PyTorch process does. A process serves
  // one session, so the process's default generator is the session's.
  Executor(const std::string& device, int32_t threads);
  ~Executor();

  const Device& device() const { return *device_; }
  // The groups of workers that the session is in.
  Groups& groups() const { return *groups_; }

  Progress progress;

  // Leaves so many cores to other processes: uses fewer threads by this number. A parallel region waits for its last
  // thread, which may wait milliseconds for a core that another process uses.
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

  // Classifies the exception being handled, as CurrentFailure does. Lack of memory has the bytes wanted, free and in
  // all.
  Failure TakeFailure() const;

  // Uninitialised. Throws OutOfMemoryError.
  c10::Storage Allocate(uint64_t bytes) const;
  // CPU memory for transfers.
  c10::Storage AllocateHost(uint64_t bytes) const;

  // Id 0 is the default generator. Others are made on first use.
  const at::Generator& GeneratorOf(uint64_t id);
  void Seed(uint64_t id, uint64_t seed);

  // The table. Find returns null when there is no such storage.
  Held* Find(uint64_t id);
  void Bind(uint64_t id, c10::Storage storage, c10::Storage on_host = {});
  void BindPoison(uint64_t id, PoisonPtr poison);
  void PoisonNew(uint64_t id, PoisonPtr poison);  // unless there is such a storage
  void Free(const uint64_t* ids, uint64_t n);
  void Usage(uint64_t* storages, uint64_t* bytes) const;

  // Checkpoints (State.cpp): the storages in the order of their ids; and all else that a program can change.
  std::vector<Content> Contents() const;
  std::string State();
  void SetState(const std::string& state);

  // The storage for a program to use. If a read still holds its memory, the table gets a copy first, so that the
  // program does not change the bytes of the read.
  c10::Storage Borrow(Held& held);

  // Transfers (Transfer.cpp).
  void* BeginUpload(uint64_t id, uint64_t bytes);
  void EndUpload(uint64_t id);
  // Null, with the poison set, when the storage is poisoned.
  std::unique_ptr<Reading> Read(const myc_view& view, const void** out, uint64_t* bytes, PoisonPtr* poison);
  void EndRead(Reading* reading);

 private:
  std::string MemoryText(const std::string& text) const;
  void KeepOnHost(uint64_t id, c10::Storage& copy);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Groups> groups_;
  int threads_;  // the largest number it may use
  std::unordered_map<uint64_t, Held> table_;
  std::unordered_map<uint64_t, at::Generator> generators_;
  // Uploads in progress: on the CPU the storage itself, otherwise staging memory.
  std::unordered_map<uint64_t, c10::Storage> uploads_;
  std::deque<std::pair<uint64_t, uint64_t>> on_host_;           // uploads that have a copy there, or had one: id, bytes
  uint64_t on_host_bytes_ = 0;                                  // of all in on_host_
  std::unordered_map<const c10::StorageImpl*, uint32_t> lent_;  // to the number of reads that hold it
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_SESSION_EXECUTOR_H_
