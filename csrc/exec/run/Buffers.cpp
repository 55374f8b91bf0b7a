// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/run/Buffers.h"

#include <algorithm>

namespace mycelya::exec {

uint64_t RunBuffers::BytesAt(const Dim& dim) const {
  const int64_t bytes = dim.At(params_);
  TORCH_CHECK_VALUE(bytes >= 0, "BUG: a buffer can't have ", bytes, " bytes.");
  return static_cast<uint64_t>(bytes);
}

c10::Storage RunBuffers::CloneOf(const c10::Storage& old) const {
  c10::Storage copy = executor_.Allocate(old.nbytes());
  BytesOf(copy).copy_(BytesOf(old));
  return copy;
}

void RunBuffers::Copy(const Step& s) {
  const TensorRow& row = program_.tensors[s.a];
  const Buffer& b = At(row.buffer);
  if (!b.storage && b.input == 0) AllocateFor(row);
  TensorOf(s.a).copy_(TensorOf(s.b));
}

void RunBuffers::Clone(const Step& s) {
  SetStorage(s.a, CloneOf(StorageOf(s.b)));
  At(s.a).on_host = At(s.b).on_host;
}

// The storage's id, and other buffers that share it, see the new size.
void RunBuffers::Resize(const Step& s) {
  c10::Storage storage = StorageOf(s.a);
  c10::Storage fresh = executor_.Allocate(BytesAt(s.bytes));
  Geometry prefix;
  prefix.dtype = c10::ScalarType::Byte;
  prefix.sizes = {static_cast<int64_t>(std::min(storage.nbytes(), fresh.nbytes()))};
  prefix.SetContiguous();
  MakeTensor(fresh, prefix).copy_(MakeTensor(storage, prefix));
  for (uint32_t b = 0; b < program_.nbuffers; ++b) {
    if (At(b).storage && At(b).storage.is_alias_of(storage)) DropTensors(b);
  }
  const size_t bytes = fresh.nbytes();
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(fresh.set_data_ptr(at::DataPtr()));
  storage.set_nbytes(bytes);
}

void RunBuffers::ForgetHostCopies(const Step& s) {
  for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) ForgetHostCopy(At(program_.buffers[i]));
}

void RunBuffers::ForgetHostCopy(Buffer& b) {
  if (!b.on_host) return;
  b.on_host = c10::Storage();
  Held* held = b.input == 0 ? nullptr : executor_.Find(b.input);
  if (held != nullptr) held->on_host = c10::Storage();
}

}  // namespace mycelya::exec
