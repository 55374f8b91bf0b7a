// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The storage of a mycelya tensor. It has all device state; TensorImpl has none, because `.to()` keeps TensorImpls of
// the CPU and `alias` and `view(dtype)` make plain ones. No storage holds tensor data,
// except what the client knows (record/Known.h).
#ifndef MYCELYA_DEVICE_TENSOR_STORAGE_H_
#define MYCELYA_DEVICE_TENSOR_STORAGE_H_

#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <vector>

#include "abi/mycelya.h"
#include "device/tensor/Thread.h"

namespace mycelya {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// A loop, because dims are too few for a call of memcmp.
inline bool SameDims(c10::IntArrayRef a, c10::IntArrayRef b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// Shape, strides (elements) and dtype under which a trace first saw a storage.
struct Geometry {
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // Undefined matches nothing
  bool contiguous = true;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;  // only kept when not contiguous

  void Set(const c10::TensorImpl& t);
  void SetSizes(c10::IntArrayRef values) {  // a loop: too few for a call of memcpy
    sizes.resize_for_overwrite(values.size());
    for (size_t i = 0; i < values.size(); ++i) sizes[i] = values[i];
  }
  void SetFlatBytes(int64_t bytes);
  void clear() { dtype = c10::ScalarType::Undefined; }
  // Whether t has this dtype, these sizes and strides, and offset 0.
  bool Matches(const c10::TensorImpl& t) const;
  bool IsContiguousAs(const c10::TensorImpl& t) const {  // t: contiguous
    return dtype == c10::typeMetaToScalarType(t.dtype()) && t.storage_offset() == 0 && contiguous &&
           SameDims(t.sizes(), sizes);
  }
};

class Storage final : public c10::StorageImpl {
 public:
  Storage(c10::SymInt bytes, c10::DataPtr data, bool resizable, Thread& thread);
  ~Storage() override;
  static void* operator new(size_t bytes, Thread& thread) { return Take(thread.storages, bytes); }
  static void operator delete(void* p, Thread& thread) { Give(thread.storages, p); }
  static void operator delete(void* p) { Give(this_thread.storages, p); }

  const uint64_t id;                                    // unique in the process; names the storage on the worker
  bool defined = false;                                 // the worker has it, or a record of the open trace makes it
  uint64_t epoch = 0;                                   // trace in which the fields below hold; see Recorder
  uint32_t local = 0;                                   // its number in that trace
  c10::intrusive_ptr<c10::intrusive_ptr_target> known;  // a Known; null: the client does not know the content

 private:
  std::atomic<myc_origin> place_{};  // here, because the ends of most storages are never touched

 public:
  Geometry geometry;  // its defining geometry in that trace

  c10::DeviceIndex device_index() const { return device().index(); }
  // Changes the size on the client only. A record must change it on the worker.
  void SetBytes(int64_t bytes);
  // The place that makes the content.
  void SetPlace(myc_origin place) { place_.store(place, std::memory_order_relaxed); }
  myc_origin place() const { return place_.load(std::memory_order_relaxed); }

 private:
  friend class LargeStorages;
  Storage *older_, *newer_;  // set if it is large
};

// The large storages that are alive and were made at one place.
struct Live {
  myc_origin place;
  uint64_t bytes = 0, count = 0;
};
// Those of a device with ids below `end`, in no order. Storages below 64 KiB, and those without a place, do not count.
std::vector<Live> LiveStorages(c10::DeviceIndex device, uint64_t end);

// Bytes of the live storages of a device, and their peak since the last reset. The worker's memory may differ for a
// while: it makes and frees storages later, when it runs the trace.
struct Memory {
  std::atomic<int64_t> allocated{0}, freed{0}, peak{0};
  std::atomic<int64_t> forgotten{0};  // subtracted from `allocated` and `freed` in statistics since a reset
  int64_t Now() const { return allocated - freed; }
};
Memory& MemoryOf(c10::DeviceIndex device);

// Throws for a StorageImpl made around one of our addresses (at::from_blob), where there is no memory.
[[noreturn]] void RefuseForeignStorage();

extern c10::Allocator* const allocator;  // defined in pytorch/Memory.cpp

// Called by a defined storage's destructor. Defined in record/Recorder.cpp.
void NoteDeath(const Storage& s);

// The storage of a mycelya tensor; t must be one.
C10_ALWAYS_INLINE Storage* StorageOf(const c10::TensorImpl& t) {
  c10::StorageImpl* s = t.unsafe_storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(s->allocator() != allocator)) RefuseForeignStorage();
  return static_cast<Storage*>(s);
}

// The id of the next storage that this thread makes.
uint64_t NextStorageId();

// A unique range of addresses that is never mapped. ATen's overlap checks and detection of tied weights compare
// pointers.
c10::DataPtr FakeMemory(size_t bytes, c10::DeviceIndex device, Thread& thread = this_thread);

c10::Storage MakeStorage(int64_t bytes, c10::DeviceIndex device, Thread& thread = this_thread);

// Registers Storage as PyTorch's StorageImpl for the device.
void RegisterStorage();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_TENSOR_STORAGE_H_
