// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The open trace of one device: three streams of words and the rolling hash of the first (grammar: csrc/abi/mycelya.h).
// Any thread may record; the lock is held for one record at a time.
#ifndef MYCELYA_DEVICE_RECORD_RECORDER_H_
#define MYCELYA_DEVICE_RECORD_RECORDER_H_

#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "abi/mycelya.h"
#include "device/client/State.h"
#include "device/pytorch/Flags.h"
#include "device/record/Origin.h"
#include "device/record/Repeat.h"
#include "device/record/Turns.h"
#include "device/tensor/Buffer.h"
#include "device/tensor/Storage.h"

namespace mycelya {

// Yields: two Python threads that hand the GIL back and forth would otherwise burn their time slices here.
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

// Of all devices.
struct Counters {
  std::atomic<uint64_t> views{0}, shape_misses{0}, meta_key_calls{0};
};
Counters& counters();

// Our dtype number (MYC_*); throws for a dtype that no worker has.
using DtypeCodes = std::array<uint8_t, static_cast<size_t>(c10::ScalarType::NumOptions)>;
extern const DtypeCodes dtype_codes;  // 0 for a dtype that no worker has
[[noreturn]] void refuse_dtype(c10::ScalarType t);
inline uint32_t dtype_code(c10::ScalarType t) {
  const uint32_t code = dtype_codes[static_cast<size_t>(t)];
  if (C10_UNLIKELY(code == 0)) refuse_dtype(t);
  return code;
}
bool has_dtype(c10::ScalarType t);
// The other way, for a number that dtype_code gave.
c10::ScalarType dtype_of_code(uint32_t code);

// FNV-1a, the id of an op by its full name.
uint64_t name_hash(const std::string& name);

// The arrays of a trace.
struct Streams {
  Buffer<uint64_t> skeleton, params, bindings, frees;
  Buffer<uint32_t> origins;  // two words per record
  Buffer<uint8_t> alive;     // per local number
  uint32_t in_use = 0;       // by the client library: atomic
};

class Recorder {
 public:
  explicit Recorder(c10::DeviceIndex device) : device_(device) {}

  SpinLock lock;  // taken by the caller for everything below

  // One record: begin, then args in order, then results in order, then end.
  void begin(uint64_t op_hash, uint32_t flags, uint32_t n_args, uint32_t n_results, Origin origin);
  void end();

  C10_ALWAYS_INLINE void word(uint64_t w) {
    open_.skeleton.push_back(w);
    // Two independent multiply-xor lanes; 128 bits together.
    h0_ = (h0_ ^ w) * 0x9E3779B97F4A7C15ull;
    h0_ ^= h0_ >> 32;
    h1_ += w;
    h1_ = ((h1_ << 23) | (h1_ >> 41)) * 0xC2B2AE3D27D4EB4Full;
  }
  void tag(uint32_t t, uint64_t payload = 0) { word(t | payload << 8); }
  void param(uint64_t v) { open_.params.push_back(v); }
  void param(double v) {
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    open_.params.push_back(bits);
  }

  // A string.
  void text(std::string_view s);

  // An operand; its storage must be defined (see define_storage).
  void operand(const c10::TensorImpl& t, bool write);
  // The same for one that is contiguous and whose storage the trace has probably seen so.
  void contiguous_operand(const c10::TensorImpl& t, bool write) {
    Storage& s = *storage_of(t);
    if (C10_UNLIKELY(s.epoch != epoch_ || !s.geometry.is_contiguous_as(t))) return operand(t, write);
    follow(s);
    word(MYC_W_TENSOR | static_cast<uint64_t>(dtype_code(s.geometry.dtype)) << 8 |
         static_cast<uint64_t>(s.geometry.sizes.size()) << 16 |
         static_cast<uint64_t>(MYC_T_CONTIG | MYC_T_OFF0 | MYC_T_SAME | (write ? MYC_T_WRITE : 0)) << 24 |
         static_cast<uint64_t>(s.local) << 32);
  }
  // A fresh result: marks its storage defined.
  void result(const c10::TensorImpl& t);

  // Records mycelya::empty for a storage that nothing has written yet.
  void define_storage(const c10::TensorImpl& t, Origin origin);
  // Records what the next record's result depends on beside its operands, if the worker has it otherwise: the default
  // dtype, which decides what division of integers and the like give, and the flags, which kernels read.
  void prepare(Origin origin) {
    const c10::ScalarType dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
    if (C10_UNLIKELY(dtype != default_dtype_)) set_default_dtype(dtype, origin);
    if (C10_UNLIKELY(flags_version.load(std::memory_order_acquire) != flags_version_)) set_flags(origin);
  }
  // Records the change of a defined storage's size; the caller then sets it.
  void resize_storage(Storage& s, int64_t new_bytes, Origin origin);

  // Closes the trace and hands it over, if there is anything in it. waits: by a read that is waited for.
  void cut(uint32_t reason, Origin origin, bool waits = false);
  // Waits, if the worker has fallen too far behind, until it has caught up; Ctrl-C ends the wait. Without `lock`.
  void wait_for_room(Origin origin) {
    if (C10_UNLIKELY(behind_.load(std::memory_order_relaxed))) wait_for_room_slow(origin);
  }
  // The graph of what a storage will hold, as text; "" when the open trace has nothing to do with it. Without `lock`.
  std::string pending(const Storage& s);
  // The next record begins a new trace: an optimizer step has ended.
  void mark_step(Origin origin) { mark(MYC_CUT_STEP, origin); }
  bool empty() const { return records_ == 0; }
  // Notes that an upload comes from here. Where one came from before, with ops between, a loop has come round: that
  // ends the trace, as a marked step does. Uploads from other places belong to the round, wherever they come in it.
  void upload(Origin origin);
  // Notes that a storage is read from here. That ends the trace if it has to do with the storage; what is older has
  // been handed over already, and waiting for it is not waiting for the trace. waits: until the bytes are there.
  void read(const Storage& s, Origin origin, bool waits);
  // All that was recorded before trace `epoch` has run. Without `lock`.
  void ran(uint64_t epoch) { ran_.store(epoch, std::memory_order_relaxed); }
  // Whether there is nothing that could still run.
  bool idle() const { return records_ == 0 && ran_.load(std::memory_order_relaxed) == epoch_; }
  uint64_t epoch() const { return epoch_; }

  c10::DeviceIndex device() const { return device_; }

  // Counts an op. inferred: its results' shapes were. Reading needs no `lock`.
  void count(bool inferred) {
    ops_.store(ops_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    inferred_.store(inferred_.load(std::memory_order_relaxed) + inferred, std::memory_order_relaxed);
  }
  void reset_counts() { ops_ = inferred_ = 0; }
  uint64_t ops() const { return ops_.load(std::memory_order_relaxed); }
  uint64_t inferred() const { return inferred_.load(std::memory_order_relaxed); }

  // From any thread, without `lock`.
  void died(const Storage& s);
  // Bytes that the worker could free but hasn't been told of. Without `lock`.
  uint64_t dead_bytes();

 private:
  void wait_for_room_slow(Origin origin);
  myc_trace trace_of(const Streams& streams) const;
  Streams& close();
  void set_default_dtype(c10::ScalarType dtype, Origin origin);
  void set_flags(Origin origin);
  uint32_t bind(Storage& s);
  // Tells the detector of an operand's storage.
  void follow(const Storage& s) {
    if (earlier_[s.local] != 0) storages_ = (storages_ ^ s.id) * 0x9E3779B97F4A7C15ull;
  }
  void dims(c10::IntArrayRef values);
  void geometry(const c10::TensorImpl& t, uint32_t flags, bool with_bytes);
  void mark(uint32_t reason, Origin origin) {
    mark_ = records_ != 0 ? reason : static_cast<uint32_t>(MYC_CUT_NONE);
    mark_origin_ = origin;
  }
  void reset();

  const c10::DeviceIndex device_;
  Streams open_;
  std::vector<std::unique_ptr<Streams>> closed_;  // handed over; those that are no longer in use become the open one
  Buffer<uint8_t> earlier_;                       // per local number: from before the trace
  uint64_t h0_ = 1, h1_ = 2;
  uint64_t epoch_ = 1;
  uint64_t records_ = 0;
  uint32_t mark_ = MYC_CUT_NONE;  // why the next record begins a new trace, if it does
  Origin mark_origin_{};
  struct Upload {
    Origin origin;
    uint64_t records;  // of the trace before it
  };
  std::vector<Upload> uploads_;  // during this trace, one of each place
  RepeatDetector repeat_;
  Turns turns_;
  uint64_t op_ = 0, storages_ = 0;  // of the open record, for the detector
  std::atomic<bool> behind_{false};
  std::atomic<uint64_t> ran_{1};
  c10::ScalarType default_dtype_ = c10::ScalarType::Float;
  uint64_t flags_version_ = 0;
  std::atomic<uint64_t> ops_{0}, inferred_{0};

  struct Death {
    uint64_t id, epoch;
    uint32_t local;
  };
  SpinLock death_lock_;  // separate: a storage may die while `lock` is held
  std::vector<Death> deaths_;
  std::vector<Death> dead_;  // those of the cut that is being made
  uint64_t dead_bytes_ = 0;
};

// Made when it is asked for. Never destroyed: storages may die after the destructors of statics have run.
extern std::array<std::atomic<Recorder*>, kMaxDevices> recorders;
Recorder& make_recorder(c10::DeviceIndex device);
inline Recorder& recorder(c10::DeviceIndex device) {
  Recorder* r = recorders[static_cast<size_t>(device)].load(std::memory_order_acquire);
  return C10_LIKELY(r != nullptr) ? *r : make_recorder(device);
}

// Called by a defined storage's destructor.
void note_death(const Storage& s);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_RECORDER_H_
