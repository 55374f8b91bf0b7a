// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Uploads and reads. On the CPU, an upload is written into its storage and a read of a contiguous view returns the
// storage's memory. On other devices, both go through host memory of the device.
#include <ATen/ops/empty.h>

#include "exec/Dtype.h"
#include "exec/memory/Geometry.h"
#include "exec/session/Executor.h"

namespace mycelya::exec {
namespace {

// The address that an upload of 0 bytes gets, because null means failure.
char no_bytes;

Geometry GeometryOf(const myc_view& view) {
  TORCH_CHECK_VALUE(view.rank <= kMaxRank, "A view has at most ", kMaxRank, " dims, not ", view.rank, ".");
  Geometry g;
  g.dtype = ToScalarType(view.dtype);
  g.sizes.assign(view.sizes, view.sizes + view.rank);
  g.strides.assign(view.strides, view.strides + view.rank);
  g.offset = view.offset;
  return g;
}

}  // namespace

void* Executor::BeginUpload(uint64_t id, uint64_t bytes) {
  TORCH_CHECK_VALUE(id != 0, "BUG: storage 0 does not exist and can't be uploaded.");
  TORCH_CHECK_VALUE(table_.count(id) == 0 && uploads_.count(id) == 0, "BUG: storage ", id,
                    " exists on the worker; an upload would overwrite it.");
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= INT64_MAX / 2, "An upload of ", bytes, " bytes is more than any memory.");
  c10::Storage storage = device_->apart() ? AllocateHost(bytes) : Allocate(bytes);
  void* data = storage.mutable_data();
  uploads_.emplace(id, std::move(storage));
  return data != nullptr ? data : &no_bytes;
}

void Executor::EndUpload(uint64_t id) {
  auto it = uploads_.find(id);
  TORCH_CHECK_VALUE(it != uploads_.end(), "BUG: no upload of storage ", id, " has begun.");
  c10::Storage source = std::move(it->second);
  uploads_.erase(it);
  if (!device_->apart()) return Bind(id, std::move(source));
  c10::Storage target = Allocate(source.nbytes());
  // The caching host allocator keeps the staging block until the copy is done.
  BytesOf(target).copy_(BytesOf(source), /*non_blocking=*/true);
  KeepOnHost(id, source);
  Bind(id, std::move(target), std::move(source));
}

// Makes room for a copy of an upload on the host, and drops it if it is too large.
void Executor::KeepOnHost(uint64_t id, c10::Storage& copy) {
  const uint64_t bytes = copy.nbytes();
  if (bytes > kHostCopyBytes) {
    copy = c10::Storage();
    return;
  }
  on_host_.emplace_back(id, bytes);
  for (on_host_bytes_ += bytes; on_host_bytes_ > kHostCopiesBytes; on_host_.pop_front()) {
    on_host_bytes_ -= on_host_.front().second;
    if (Held* held = Find(on_host_.front().first)) held->on_host = c10::Storage();
  }
}

std::unique_ptr<Reading> Executor::Read(const myc_view& view, const void** out, uint64_t* bytes, PoisonPtr* poison) {
  const Geometry g = GeometryOf(view);
  Held* held = Find(view.storage);
  TORCH_CHECK(held != nullptr, "Storage ", view.storage, " does not exist on the worker.");
  if (held->poison) {
    *poison = held->poison;
    return nullptr;
  }
  at::Tensor t = MakeTensor(held->storage, g).contiguous();
  *bytes = t.nbytes();
  if (!t.device().is_cpu()) {
    at::Tensor host = MakeTensor(AllocateHost(*bytes), [&] {
      Geometry h;
      h.dtype = g.dtype;
      h.sizes = g.sizes;
      h.SetContiguous();
      return h;
    }());
    host.copy_(t);  // waits for the device
    t = std::move(host);
  }
  auto reading = std::make_unique<Reading>(Reading{t.storage()});
  *out = t.const_data_ptr();
  ++lent_[reading->storage.unsafeGetStorageImpl()];
  return reading;
}

void Executor::EndRead(Reading* reading) {
  std::unique_ptr<Reading> owned(reading);
  if (owned == nullptr) return;
  auto it = lent_.find(owned->storage.unsafeGetStorageImpl());
  if (it != lent_.end() && --it->second == 0) lent_.erase(it);
}

}  // namespace mycelya::exec
