// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The open trace of one device: three streams of words, and the rolling hash of the first stream. csrc/abi/mycelya.h
// has the grammar. Any thread may record; the lock is held for one record at a time.
#ifndef MYCELYA_DEVICE_RECORD_RECORDER_H_
#define MYCELYA_DEVICE_RECORD_RECORDER_H_

#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "abi/mycelya.h"
#include "device/client/State.h"
#include "device/record/Flags.h"
#include "device/record/Origin.h"
#include "device/record/Repeat.h"
#include "device/record/Turns.h"
#include "device/tensor/Buffer.h"
#include "device/tensor/Storage.h"

namespace mycelya {

// Yields, because two Python threads that exchange the GIL would otherwise spend their time slices here.
class SpinLock {
 public:
  void lock() {
    for (int i = 0; flag_.test_and_set(std::memory_order_acquire); ++i) {
      if (i > 64) std::this_thread::yield();
    }
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

// A point between two records of a device.
struct Point {
  ~Point();

  std::mutex mutex;     // of who asks or waits for the ticket
  bool sent = false;    // the trace before it; with the lock of the recorder
  uint64_t ticket = 0;  // of a sync after that trace; 0: not sent, or reached
};

// Counters of all devices.
struct Counters {
  std::atomic<uint64_t> views{0}, shape_misses{0}, meta_key_calls{0}, peer_bytes{0};
};
Counters& GetCounters();

// Our dtype number (MYC_*); throws for a dtype that no worker has.
using DtypeCodes = std::array<uint8_t, static_cast<size_t>(c10::ScalarType::NumOptions)>;
extern const DtypeCodes dtype_codes;  // 0 for a dtype that no worker has
[[noreturn]] void RefuseDtype(c10::ScalarType t);
inline uint32_t DtypeCode(c10::ScalarType t) {
  const uint32_t code = dtype_codes[static_cast<size_t>(t)];
  if (C10_UNLIKELY(code == 0)) RefuseDtype(t);
  return code;
}
bool HasDtype(c10::ScalarType t);
// The dtype of a number that dtype_code gave.
c10::ScalarType DtypeOfCode(uint32_t code);

// FNV-1a, the id of an op by its full name.
uint64_t NameHash(const std::string& name);

// The arrays of a trace.
struct Streams {
  Buffer<uint64_t> skeleton, params, bindings, frees;
  Buffer<uint32_t> origins;  // two words per record
  Buffer<uint8_t> alive;     // per local number
  // Of a profiled trace: see myc_trace. Fewer callers than records if the profile has ended since.
  Buffer<uint64_t> callers;
  int64_t began = 0;
  uint32_t in_use = 0;  // by the client library: atomic
};

class Recorder {
 public:
  explicit Recorder(c10::DeviceIndex device) : device_(device) {}

  SpinLock lock;  // taken by the caller for everything below

  // One record: begin, then args in order, then results in order, then end.
  void Begin(uint64_t op_hash, uint32_t flags, uint32_t n_args, uint32_t n_results, Origin origin);
  void End();

  C10_ALWAYS_INLINE void Word(uint64_t w) {
    open_.skeleton.push_back(w);
    // Two independent multiply-xor lanes; 128 bits together.
    h0_ = (h0_ ^ w) * 0x9E3779B97F4A7C15ull;
    h0_ ^= h0_ >> 32;
    h1_ += w;
    h1_ = ((h1_ << 23) | (h1_ >> 41)) * 0xC2B2AE3D27D4EB4Full;
  }
  C10_ALWAYS_INLINE void Tag(uint32_t t, uint64_t payload = 0) { Word(t | payload << 8); }
  C10_ALWAYS_INLINE void Param(uint64_t v) { open_.params.push_back(v); }
  C10_ALWAYS_INLINE void Param(double v) {
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    open_.params.push_back(bits);
  }

  // A string.
  void Text(std::string_view s);

  // An operand; its storage must be defined (see define_storage).
  void Operand(const c10::TensorImpl& t, bool write);
  // The same for one that is contiguous and whose storage the trace has probably seen so.
  void ContiguousOperand(const c10::TensorImpl& t, bool write) { ContiguousOperand(t, *StorageOf(t), write); }
  C10_ALWAYS_INLINE void ContiguousOperand(const c10::TensorImpl& t, Storage& s, bool write) {
    if (C10_UNLIKELY(s.epoch != epoch_ || !s.geometry.IsContiguousAs(t))) return Operand(t, write);
    if (write) s.known.reset();
    Follow(s);
    Word(MYC_W_TENSOR | static_cast<uint64_t>(DtypeCode(s.geometry.dtype)) << 8 |
         static_cast<uint64_t>(s.geometry.sizes.size()) << 16 |
         static_cast<uint64_t>(MYC_T_CONTIG | MYC_T_OFF0 | MYC_T_SAME | (write ? MYC_T_WRITE : 0)) << 24 |
         static_cast<uint64_t>(s.local) << 32);
  }
  // A fresh result. Marks its storage as defined.
  void Result(const c10::TensorImpl& t);

  // Records mycelya::empty for a storage that no op has written yet.
  void DefineStorage(const c10::TensorImpl& t, Origin origin);
  // Records the state that the next record's result depends on besides its operands, if the worker's state differs: the
  // default dtype, which is that of a quotient of integers, and the flags, which kernels read.
  // Throws if the machine is stopped.
  void Prepare(Origin origin) {
    if (C10_UNLIKELY(attention_.load(std::memory_order_relaxed))) Attend(origin);
    const c10::ScalarType dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
    if (C10_UNLIKELY(dtype != default_dtype_)) SetDefaultDtype(dtype, origin);
    if (C10_UNLIKELY(flags_version.load(std::memory_order_acquire) != flags_version_)) SetFlags(origin);
  }
  // Records the change of a defined storage's size; the caller then sets it.
  void ResizeStorage(Storage& s, int64_t new_bytes, Origin origin);

  // Closes the trace and sends it, unless it is empty. waits: a read causes it, and the caller waits for the read.
  // Raises the error of a failure that nothing has raised.
  void Cut(uint32_t reason, Origin origin, bool waits = false);
  // Takes the failure that nothing has raised, if there is one, and raises its error.
  void RaiseFailure();
  // The caller raises the error of the device's failure, if there is one: what was recorded so far has no effect.
  // Returns the id of the first storage that the failed program did not make; 0: nothing has failed. Called without
  // `lock`.
  uint64_t TakeFailure();
  // Waits while the worker is too far behind; Ctrl-C ends the wait. Called without `lock`.
  void WaitForRoom(Origin origin) {
    if (C10_UNLIKELY(behind_.load(std::memory_order_relaxed))) WaitForRoomSlow(origin);
  }
  // The graph that computes a storage, as text; "" if the open trace does not use the storage. Called without `lock`.
  std::string Pending(const Storage& s);
  // The next record begins a new trace: an optimizer step has ended.
  void MarkStep(Origin origin) { Mark(MYC_CUT_STEP, origin); }
  bool empty() const { return records_ == 0; }
  uint64_t records() const { return records_; }  // of the open trace
  // Notes an upload from this place. A second upload from the same place, with ops in between, begins a new round of a
  // loop: it ends the trace, as a marked step does. Uploads from other places are part of the round.
  void MarkUpload(Origin origin);
  // The next record writes a long list of tensors. It begins a trace, unless this trace has such a record. Its tensors
  // are then inputs, so the first step of an optimizer, which makes the state, has the same program as later steps. And
  // the compiler handles tensors that differ only in sizes together.
  void BeginList(Origin origin);
  // Notes that a storage is read at this place. That ends the trace if it uses the storage. Older traces have been sent
  // already, and waiting for them does not need this one. waits: the caller waits for the bytes.
  void Read(const Storage& s, Origin origin, bool waits);
  // Whether all records before trace `epoch` have run. Called without `lock`.
  void Ran(uint64_t epoch) { ran_.store(epoch, std::memory_order_relaxed); }
  // Whether something can be recorded.
  bool Usable() const { return !ended_ && !paused_; }
  // Whether no record is waiting to run.
  bool Idle() const { return records_ == 0 && ran_.load(std::memory_order_relaxed) == epoch_; }
  uint64_t epoch() const { return epoch_; }
  // The point after the records so far. Points of one trace are one: the worker passes them together.
  std::shared_ptr<Point> Here();
  // Sends what lies before a point of this device, unless that has happened.
  void Reach(Point& point, uint32_t reason, Origin origin);

  // The seed of the default generator, which the next record is preceded by. Called without `lock`.
  void NoteSeed(uint64_t seed, Origin origin);
  // Ends a life of the index: drops the open trace. Nothing can be recorded before BeginLife. Called without `lock`.
  void EndLife();
  // Begins a life with a new worker. Storages that a trace before life() has seen last are lost. Called without `lock`.
  void BeginLife();
  // Lets nothing be recorded until it is called with false.
  void Pause(bool paused);
  uint64_t life() const { return life_.load(std::memory_order_relaxed); }

  c10::DeviceIndex device() const { return device_; }

  // Counts an op. inferred: the shapes of its results were inferred. Reading needs no `lock`.
  void Count(bool inferred) {
    ops_.store(ops_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    inferred_.store(inferred_.load(std::memory_order_relaxed) + inferred, std::memory_order_relaxed);
  }
  void ResetCounts() { ops_ = inferred_ = 0; }
  uint64_t ops() const { return ops_.load(std::memory_order_relaxed); }
  uint64_t inferred() const { return inferred_.load(std::memory_order_relaxed); }

  // Called from any thread, without `lock`.
  void Died(const Storage& s);
  // Bytes that the worker could free but does not know of yet. Called without `lock`.
  uint64_t dead_bytes();

 private:
  void WaitForRoomSlow(Origin origin);
  void SendPoint(Point& point, Origin origin);
  bool Send(uint32_t reason, Origin origin, bool waits);
  myc_trace TraceOf(const Streams& streams) const;
  Streams& Close();
  void Attend(Origin origin);
  void SetDefaultDtype(c10::ScalarType dtype, Origin origin);
  void SetFlags(Origin origin);
  uint32_t Bind(Storage& s);
  // The operand word of a fresh result, which is all of its storage.
  void PutFresh(Storage& s, const c10::TensorImpl& t);
  // Passes an operand's storage to the loop detector.
  void Follow(const Storage& s) {
    if (earlier_[s.local] != 0) storages_ = (storages_ ^ s.id) * 0x9E3779B97F4A7C15ull;
  }
  void PutDims(c10::IntArrayRef values);
  void PutGeometry(const c10::TensorImpl& t, uint32_t flags, bool with_bytes);
  void Mark(uint32_t reason, Origin origin) {
    mark_ = records_ != 0 ? reason : static_cast<uint32_t>(MYC_CUT_NONE);
    mark_origin_ = origin;
  }
  void Reset();
  void Drop();
  void NoteCaller();

  const c10::DeviceIndex device_;
  Streams open_;
  std::vector<std::unique_ptr<Streams>> closed_;  // sent; one that is no longer in use is reused as the open one
  Buffer<uint8_t> earlier_;                       // per local number: the storage is older than the trace
  uint64_t h0_ = 1, h1_ = 2;
  uint64_t epoch_ = 1;
  uint64_t records_ = 0;
  uint32_t mark_ = MYC_CUT_NONE;  // why the next record begins a new trace, if it does
  Origin mark_origin_{};
  struct Upload {
    Origin origin;
    uint64_t records;  // of the trace, before the upload
  };
  std::weak_ptr<Point> here_;    // of this trace
  bool list_ = false;            // this trace writes a long list
  std::vector<Upload> uploads_;  // of this trace, one per place
  RepeatDetector repeat_;
  Turns turns_;
  uint64_t op_ = 0, storages_ = 0;  // of the open record, for the detector
  std::atomic<bool> behind_{false};
  std::atomic<uint64_t> ran_{1};
  std::atomic<uint64_t> life_{0};       // the first trace of the life, less than any trace that has records
  std::atomic<bool> attention_{false};  // one of the next three holds
  bool ended_ = false;                  // the life, and the next one has not begun
  bool paused_ = false;                 // the machine
  bool seed_noted_ = false;
  bool seeded_ = false;  // seed_ is the last seed of the default generator
  uint64_t seed_ = 0;
  Origin seed_origin_{};
  c10::ScalarType default_dtype_ = c10::ScalarType::Float;
  uint64_t flags_version_ = 0;
  std::atomic<uint64_t> ops_{0}, inferred_{0};

  struct Death {
    uint64_t id, epoch;
    uint32_t local;
  };
  SpinLock death_lock_;  // separate: a storage may die while `lock` is held
  std::vector<Death> deaths_;
  std::vector<Death> dead_;  // those of the current cut
  uint64_t dead_bytes_ = 0;
};

// Made at the first call. Never destroyed: storages may die after the destructors of statics have run.
extern std::array<std::atomic<Recorder*>, kMaxDevices> recorders;
Recorder& MakeRecorder(c10::DeviceIndex device);
inline Recorder& RecorderOf(c10::DeviceIndex device) {
  Recorder* r = recorders[static_cast<size_t>(device)].load(std::memory_order_acquire);
  return C10_LIKELY(r != nullptr) ? *r : MakeRecorder(device);
}

// Whether a device has had a second life: before, no storage is lost.
extern std::atomic<bool> restarted;

// Whether a storage is of its device's current life, or has no content yet.
inline bool IsAlive(const Storage& s) {
  return C10_LIKELY(!restarted.load(std::memory_order_relaxed)) || !s.defined ||
         s.epoch >= RecorderOf(s.device_index()).life();
}
[[noreturn]] void RaiseNotAlive(const Storage& s);
// Throws DeviceLostError if it is not.
inline void CheckAlive(const Storage& s) {
  if (C10_UNLIKELY(!IsAlive(s))) RaiseNotAlive(s);
}

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_RECORDER_H_
