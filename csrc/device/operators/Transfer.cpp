// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Transfer.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/contiguous.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/neg.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/client/Client.h"
#include "device/operators/Beside.h"
#include "device/operators/Series.h"
#include "device/record/Failure.h"
#include "device/record/Known.h"
#include "device/record/Reads.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/record/Shape.h"
#include "device/record/Special.h"
#include "device/record/SyncDebug.h"
#include "device/tensor/Pinned.h"

namespace mycelya {
namespace {

// Dead storages on the worker are freed with the next trace. From this many bytes on, an upload cuts the trace for
// them.
constexpr uint64_t kDeadBytes = 64 << 20;

// Uploads per device that return before their source has been read: those begun, and those known to be done.
std::array<std::atomic<uint64_t>, kMaxDevices> begun{}, done{};

// Uploads whose waits Ctrl-C has ended. Their bytes are still being sent, so their memory stays.
struct Interrupted {
  std::mutex mutex;
  std::vector<std::pair<uint64_t, at::Tensor>> all;  // tickets, and what they read
};
std::atomic<bool> any_interrupted{false};
Interrupted& InterruptedUploads() {
  static auto& leaked = *new Interrupted();
  return leaked;
}

// Drops the memory of interrupted uploads that are over. Their errors belong to storages that no tensor has.
void DropInterrupted(const Client& c) {
  if (C10_LIKELY(!any_interrupted.load(std::memory_order_relaxed))) return;
  auto error = std::make_unique<myc_error>();
  Interrupted& uploads = InterruptedUploads();
  const std::lock_guard<std::mutex> guard(uploads.mutex);
  std::erase_if(uploads.all, [&](auto& upload) { return HasEnded(c, upload.first, *error); });
  any_interrupted.store(!uploads.all.empty(), std::memory_order_relaxed);
}

// Uploads a contiguous CPU tensor as storage s, which must be undefined. With non_blocking, shared memory is read after
// the return.
void Upload(Storage& s, const at::Tensor& dense, bool non_blocking, Origin origin) {
  const void* data = dense.const_data_ptr();
  const size_t bytes = s.nbytes();
  const auto device = s.device_index();
  const Client& c = ClientFor(device);
  DropInterrupted(c);
  const Origin payer = WithCaller(origin);
  auto error = std::make_unique<myc_error>();
  myc_shared from;
  uint64_t ticket = 0;
  const bool shared = non_blocking && bytes >= kShareFrom && SharePinned(data, bytes, &from);
  if (shared) begun[device].fetch_add(1, std::memory_order_relaxed);
  error->kind = c.upload(device, s.id, data, bytes, shared ? &from : nullptr, payer, &ticket, error.get());
  if (error->kind == MYC_PENDING) {
    s.defined = true;  // also if the wait is interrupted: the worker gets the storage in any case
    if (!WaitInterruptibly(c, ticket, *error)) {
      Interrupted& uploads = InterruptedUploads();
      {
        const std::lock_guard<std::mutex> guard(uploads.mutex);
        uploads.all.emplace_back(ticket, dense);
        any_interrupted.store(true, std::memory_order_relaxed);
      }
      RaiseInterrupt();
    }
  }
  Raise(*error);
  s.defined = true;
  s.SetPlace(origin);
  s.epoch = RecorderOf(device).life();  // no trace has seen it
  if (!shared) KnowUpload(s, dense);
}

// Copies to pinned memory in progress per device, oldest first. They keep their memory alive.
struct Copies {
  std::mutex mutex;
  std::deque<Download> all;
};
std::atomic<int64_t> pending_copies{0};
Copies& CopiesOf(c10::DeviceIndex device) {
  static auto& leaked = *new std::array<Copies, kMaxDevices>();
  return leaked[device];
}

// Drops the copies that are done, which are the oldest. Throws an error only after all of them have been handled.
void FinishCopies(c10::DeviceIndex device) {
  const NoGil no_gil;
  Copies& c = CopiesOf(device);
  const std::lock_guard<std::mutex> guard(c.mutex);
  std::exception_ptr failed;
  while (!c.all.empty() && c.all.front().Done()) {
    try {
      c.all.front().Wait();
    } catch (...) {
      failed = std::current_exception();
    }
    c.all.pop_front();
    pending_copies.fetch_sub(1, std::memory_order_relaxed);
  }
  if (failed) std::rethrow_exception(failed);
}

// Await. If it raises the error of a failure, copies that have failed with it must not raise it again.
void AwaitWithCopies(c10::DeviceIndex device, uint64_t ticket) {
  try {
    Await(device, ticket);
  } catch (const c10::Error&) {
    try {
      FinishCopies(device);
    } catch (const c10::Error&) {
    }
    throw;
  }
}

// Waits for the copies that write the storage of `cpu`, before the device reads it.
void FinishCopiesTo(const at::Tensor& cpu) {
  if (C10_LIKELY(pending_copies.load(std::memory_order_relaxed) == 0) || !cpu.has_storage()) return;
  const NoGil no_gil;
  for (c10::DeviceIndex device = 0; device < DeviceCount(); ++device) {
    Copies& c = CopiesOf(device);
    const std::lock_guard<std::mutex> guard(c.mutex);
    for (Download& d : c.all) d.WaitIfInto(cpu);
  }
}

// As on CUDA, the memory has the values after a wait for the device.
void BeginCopy(const at::Tensor& src, const at::Tensor& dst) {
  const auto device = src.device().index();
  FinishCopies(device);
  const NoGil no_gil;
  Copies& c = CopiesOf(device);
  const std::lock_guard<std::mutex> guard(c.mutex);
  c.all.emplace_back(src, dst);
  pending_copies.fetch_add(1, std::memory_order_relaxed);
}

void CopyToDevice(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  const auto device = dst.device().index();
  Storage& s = *StorageOf(*dst.unsafeGetTensorImpl());
  FinishCopiesTo(src);
  if (!s.defined && CoversStorage(dst) && src.scalar_type() == dst.scalar_type() && src.sizes() == dst.sizes()) {
    const at::Tensor dense = src.contiguous().resolve_conj().resolve_neg();
    const Origin origin = RecordOrigin();
    CutBeforeUpload(device, origin);
    Upload(s, dense, non_blocking, origin);
    return;
  }
  if (src.numel() == 0 && dst.numel() == 0) return;
  // Other tensors may still use the old content, so upload to a storage of its own and copy.
  RecordCopy(dst, ToDevice(src, device, non_blocking).expand_as(dst));
}

uint64_t BeginRead(c10::DeviceIndex device, const myc_view& view, void* out, Origin origin) {
  auto error = std::make_unique<myc_error>();
  const uint64_t ticket = ClientFor(device).read(device, &view, out, origin, error.get());
  if (ticket == 0) Raise(*error);
  return ticket;
}

// Begins to read t's elements, row-major, to `out`. Returns the ticket. waits: the caller waits for it immediately.
uint64_t BeginDownload(const at::Tensor& t, void* out, bool waits) {
  const auto device = t.device().index();
  const auto& impl = *t.unsafeGetTensorImpl();
  Recorder& r = RecorderOf(device);
  CheckAlive(*StorageOf(impl));
  const Origin origin = WithCaller(RecordOrigin());
  {
    std::lock_guard<SpinLock> guard(r.lock);
    if (!StorageOf(impl)->defined) r.DefineStorage(impl, origin);
    r.Read(*StorageOf(impl), origin, waits);
  }
  const myc_view view{StorageOf(impl)->id,
                      DtypeCode(t.scalar_type()),
                      static_cast<uint32_t>(t.dim()),
                      t.sizes().data(),
                      t.strides().data(),
                      t.storage_offset(),
                      0};
  return BeginRead(device, view, out, origin);
}

void DownloadInto(const at::Tensor& t, void* out) {
  if (Answer(t, out)) return;
  const at::Tensor expected = Expected(t);
  CheckSync(t);
  if (TakeAhead(t, out)) return;
  const uint64_t ticket = BeginDownload(t, out, true);
  {
    const BlockingRead counted;
    Await(t.device().index(), ticket);
  }
  CheckAnswer(expected, out);
}

}  // namespace

bool CoversStorage(const at::Tensor& t) {
  return t.is_contiguous() && t.storage_offset() == 0 &&
         static_cast<size_t>(t.numel()) * t.itemsize() == t.storage().nbytes();
}

void CutBeforeUpload(c10::DeviceIndex device, Origin origin) {
  Recorder& r = RecorderOf(device);
  ClientFor(device);  // throws if the machine is stopped
  r.WaitForRoom(origin);
  const bool many_dead = r.dead_bytes() >= kDeadBytes;
  std::lock_guard<SpinLock> guard(r.lock);
  if (many_dead) r.Cut(MYC_CUT_UPLOAD, origin);
  r.MarkUpload(origin);
}

Download::Download(const at::Tensor& lazy, at::Tensor out) : device_(lazy.device().index()) {
  const at::Tensor tensor = Resolve(lazy);
  out_ = out.defined() ? std::move(out) : at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()));
  if (out_.numel() == 0 || Answer(tensor, out_.mutable_data_ptr())) return;
  ticket_ = BeginDownload(tensor, out_.mutable_data_ptr(), false);
  CountSaved(Saved::kLater, WithCaller(RecordOrigin()));
}

Download::Download(const Storage& s, Origin origin) : device_(s.device_index()) {
  const auto n = static_cast<int64_t>(s.nbytes());
  out_ = at::empty({n}, at::TensorOptions().dtype(at::kByte));
  const int64_t one = 1;
  const myc_view view{s.id, DtypeCode(at::kByte), 1, &n, &one, 0, 1};
  ticket_ = BeginRead(device_, view, out_.mutable_data_ptr(), origin);
}

Download::~Download() {
  if (ticket_ == 0 || InBadFork()) return;
  const NoGil no_gil;  // bytes of the answer may be on their way
  GetClient().cancel(ticket_);
}

bool Download::Done() {
  if (ticket_ == 0) return true;
  auto error = std::make_unique<myc_error>();
  if (!HasEnded(GetClient(), ticket_, *error)) return false;
  if (error->kind != MYC_OK) failed_ = std::move(error);
  return true;
}

void Download::WaitIfInto(const at::Tensor& cpu) {
  if (!out_.storage().is_alias_of(cpu.storage()) || Done()) return;
  Await(device_, std::exchange(ticket_, 0));
}

bool Download::Succeeds() {
  if (const uint64_t ticket = std::exchange(ticket_, 0); ticket != 0) {
    auto error = std::make_unique<myc_error>();
    mycelya::Wait(GetClient(), ticket, *error);
    if (error->kind != MYC_OK) failed_ = std::move(error);
  }
  return failed_ == nullptr;
}

at::Tensor Download::Wait() {
  if (!Succeeds()) RaiseFor(device_, *failed_);
  return out_;
}

at::Tensor ToDevice(const at::Tensor& cpu, c10::DeviceIndex device, bool non_blocking) {
  FinishCopiesTo(cpu);
  const at::Tensor dense = cpu.contiguous().resolve_conj().resolve_neg();
  OutMeta m;
  m.defined = true;
  m.dtype = dense.scalar_type();
  DtypeCode(m.dtype);  // refuses what no worker has
  m.sizes.assign(dense.sizes().begin(), dense.sizes().end());
  m.strides.assign(dense.strides().begin(), dense.strides().end());
  at::Tensor t = MakeTensor(m, device);
  Storage& s = *StorageOf(*t.unsafeGetTensorImpl());
  const Origin origin = RecordOrigin();
  CutBeforeUpload(device, origin);
  if (s.nbytes() != 0) Upload(s, dense, non_blocking, origin);
  return t;
}

at::Tensor ToCpu(const at::Tensor& lazy) {
  const at::Tensor tensor = Resolve(lazy);
  at::Tensor out = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU));
  if (out.numel() != 0) DownloadInto(tensor, out.mutable_data_ptr());
  return out;
}

namespace {

bool IsItself(const at::Tensor& src, const at::Tensor& dst) {
  return src.is_alias_of(dst) && src.storage_offset() == dst.storage_offset() && src.sizes() == dst.sizes() &&
         src.strides() == dst.strides() && src.scalar_type() == dst.scalar_type() && src.is_conj() == dst.is_conj() &&
         src.is_neg() == dst.is_neg();
}

// The elements come to this process, and leave it again.
void CopyBetweenMachines(const at::Tensor& src, const at::Tensor& dst) {
  const at::Tensor here = ToCpu(src);
  CopyToDevice(here, dst, false);
  if (IsOfThisHost(src.device().index()) && IsOfThisHost(dst.device().index())) return;
  TORCH_WARN_ONCE("A copy from ", src.device(), " to ", dst.device(), " goes through this process, over the network: ",
                  "they are two machines. Processes of torchrun, with a machine for each, exchange tensors from ",
                  "worker to worker.");
}

}  // namespace

at::Tensor CopyFrom(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  // Shape checks run structured functions, which copy their results; there is nothing to copy.
  if (C10_UNLIKELY(OnlyChecking())) return dst;
  CheckUsable();
  const bool from_us = src.device().type() == kDevice, to_us = dst.device().type() == kDevice;
  if (IsItself(src, dst)) return dst;
  // Convert first, then negate: the order decides the sign of zeros.
  if (src.is_neg() && src.scalar_type() != dst.scalar_type()) {
    return CopyFrom(src._neg_view().to(dst.scalar_type()).neg(), dst, false), dst;
  }
  if (to_us) {
    at::assert_no_internal_overlap(dst);
    if (src.device() == dst.device()) at::assert_no_partial_overlap(dst, src);
  }
  // A write through a conjugate or negative view stores the conjugate or negative.
  if (dst.is_conj()) return CopyFrom(src.to(dst.scalar_type()).conj(), dst._conj(), false), dst;
  if (dst.is_neg()) return CopyFrom(src.to(dst.scalar_type())._neg_view(), dst._neg_view(), false), dst;
  TORCH_CHECK_NOT_IMPLEMENTED(!src.is_meta(), "Cannot copy out of meta tensor; no data!");
  // A GPU of this host.
  if (!from_us && !src.is_cpu()) return CopyFrom(src.to(at::kCPU), dst, false);
  if (!to_us && !dst.is_cpu()) return dst.copy_(src.to(at::kCPU)), dst;
  if (from_us && to_us) {
    if (src.device() == dst.device() && src.is_neg() && !src.is_conj()) {
      // Negate from one layout to the other, as a CPU copy does: the sign of a complex zero depends on the layouts.
      at::Tensor out = dst;
      at::neg_out(out, src._neg_view().expand_as(dst));
    } else if (src.device() == dst.device()) {
      RecordCopy(dst, Resolve(src).expand_as(dst));
    } else if (!OnOneMachine(src.device().index(), dst.device().index())) {
      CopyBetweenMachines(src, dst);
    } else if (!CopyBeside(src, dst)) {
      CopyToDevice(ToCpu(src), dst, false);
    }
  } else if (to_us) {
    CopyToDevice(src, dst, non_blocking);
  } else if (dst.is_contiguous() && src.scalar_type() == dst.scalar_type() && src.sizes() == dst.sizes()) {
    if (dst.numel() == 0) return dst;
    if (non_blocking && IsPinned(dst.const_data_ptr())) {
      BeginCopy(src, dst);
    } else {
      DownloadInto(Resolve(src), dst.mutable_data_ptr());
    }
  } else {
    dst.copy_(ToCpu(src));
  }
  return dst;
}

bool CloneLazyView(torch::jit::Stack* stack) {
  const at::Tensor self = (*stack)[stack->size() - 2].toTensor();
  const auto format = stack->back().toOptional<at::MemoryFormat>();
  torch::jit::drop(*stack, 2);
  stack->emplace_back(Resolve(self, format.value_or(at::MemoryFormat::Preserve)));
  return true;
}

void Flush(c10::DeviceIndex device) {
  if (!ClientLoaded() && RecorderOf(device).empty()) return;
  CheckUsable();
  Recorder& r = RecorderOf(device);
  const Origin origin = WithCaller(RecordOrigin());
  std::lock_guard<SpinLock> guard(r.lock);
  r.Cut(MYC_CUT_FLUSH, origin);
}

void Synchronize(c10::DeviceIndex device) {
  CheckUsable();
  Recorder& r = RecorderOf(device);
  const Origin origin = WithCaller(RecordOrigin());
  uint64_t epoch = 0;
  {
    std::lock_guard<SpinLock> guard(r.lock);
    r.Cut(MYC_CUT_SYNC, origin);
    epoch = r.epoch();
  }
  if (!ClientLoaded()) return;  // nothing was ever sent
  const Client& c = ClientFor(device);
  const uint64_t uploads = begun[device].load(std::memory_order_relaxed);
  auto error = std::make_unique<myc_error>();
  const uint64_t ticket = c.sync(device, origin, error.get());
  if (ticket == 0) Raise(*error);
  AwaitWithCopies(device, ticket);
  FinishCopies(device);
  done[device].store(uploads, std::memory_order_relaxed);
  CollectPinned();
  r.Ran(epoch);
}

namespace {

bool Idle(c10::DeviceIndex device) {
  Recorder& r = RecorderOf(device);
  std::lock_guard<SpinLock> guard(r.lock);
  return r.Idle() && begun[device].load(std::memory_order_relaxed) == done[device].load(std::memory_order_relaxed);
}

// A sync in progress, and the work submitted before it.
struct PendingSync {
  std::mutex mutex;
  uint64_t ticket = 0;
  uint64_t epoch = 0, uploads = 0;
};

}  // namespace

bool Query(c10::DeviceIndex device) {
  static auto& syncs = *new std::array<PendingSync, kMaxDevices>();
  if (Idle(device) || (!ClientLoaded() && RecorderOf(device).empty())) return true;
  CheckUsable();
  PendingSync& q = syncs[device];
  const std::lock_guard<std::mutex> guard(q.mutex);
  Recorder& r = RecorderOf(device);
  const Client& c = ClientFor(device);
  auto error = std::make_unique<myc_error>();
  if (q.ticket == 0) {
    const Origin origin = WithCaller(RecordOrigin());
    {
      std::lock_guard<SpinLock> recording(r.lock);
      r.Cut(MYC_CUT_EVENT, origin);
      q.epoch = r.epoch();
    }
    q.uploads = begun[device].load(std::memory_order_relaxed);
    q.ticket = c.sync(device, origin, error.get());
    if (q.ticket == 0) Raise(*error);
  }
  // Keep the same sync until it is answered, so that a polling loop terminates.
  if (!HasEnded(c, q.ticket, *error)) return false;
  RaiseFor(device, *error);
  done[device].store(q.uploads, std::memory_order_relaxed);
  CollectPinned();
  r.Ran(q.epoch);
  return Idle(device);
}

// The fallbacks of conjugate and negative views clone operands that the schema does not mark as written. copy_from
// resolves such views itself.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace mycelya
