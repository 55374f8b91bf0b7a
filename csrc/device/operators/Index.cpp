// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Masks and CPU tensors among indices, and rows that are added to their own storage.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/masked_fill.h>

#include <algorithm>

#include "device/record/RecordInternal.h"
#include "device/record/Special.h"
#include "device/record/Transfer.h"

namespace mycelya {
namespace {

bool IsMask(const c10::IValue& v) {
  if (!v.isTensor() || !v.toTensor().defined()) return false;
  const auto type = v.toTensor().scalar_type();
  return type == at::kBool || type == at::kByte;
}

c10::List<std::optional<at::Tensor>> IndexList(const c10::IValue& v) {
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& e : v.toListRef()) {
    list.push_back(e.isTensor() && e.toTensor().defined() ? std::optional(e.toTensor()) : std::nullopt);
  }
  return list;
}

// If self and source share memory, calls f with both and the dim, without their dims of size 1. PyTorch's CPU kernel
// detects an exact self-add by comparing strides, including those of size-1 dims. The worker does not preserve those.
template <class F>
bool WithOwnRows(Arguments args, F&& f) {
  const at::Tensor& self = args[0].toTensor();
  const at::Tensor& source = args[3].toTensor();
  if (!source.is_alias_of(self) || source.dim() != self.dim()) return false;
  const int64_t dim = at::maybe_wrap_dim(args[1].toInt(), self.dim());
  c10::SmallVector<int64_t, 8> sizes[2], strides[2];
  int64_t at = 0;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d != dim && self.size(d) != source.size(d)) return false;  // an error
    if (d != dim && self.size(d) == 1) continue;
    if (d == dim) at = static_cast<int64_t>(sizes[0].size());
    for (const int i : {0, 1}) {
      sizes[i].push_back(i == 0 ? self.size(d) : source.size(d));
      strides[i].push_back(i == 0 ? self.stride(d) : source.stride(d));
    }
  }
  if (static_cast<int64_t>(sizes[0].size()) == self.dim()) return false;
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor rows = self.as_strided(sizes[0], strides[0]), added = source.as_strided(sizes[1], strides[1]);
  f(rows, at, added);
  return true;
}

}  // namespace

bool FillUnderMask(Arguments args) {
  if (args[3].toBool()) return false;
  const at::Tensor &self = args[0].toTensor(), &value = args[2].toTensor();
  const bool here = Ours(value) && value.dim() == 0;
  if (!here && (!value.is_cpu() || value.numel() != 1)) return false;
  TORCH_CHECK_INDEX(self.scalar_type() == value.scalar_type(),
                    "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
                    " for the destination and ", value.scalar_type(), " for the source.");
  // Looks at the indices only, if the value is one number on the CPU.
  const auto [can, mask] =
      at::native::canDispatchToMaskedFill(self, IndexList(args[1]), here ? at::empty({1}, at::kCPU) : value);
  if (!can || !Ours(mask)) return false;
  here ? at::Tensor(self).masked_fill_(mask, value) : at::Tensor(self).masked_fill_(mask, value.item());
  return true;
}

void ExpandMasks(const Op& op, std::span<c10::IValue> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != Kind::kOptTensors) continue;
    const auto list = args[i].toListRef();
    if (std::none_of(list.begin(), list.end(), IsMask)) continue;
    c10::List<std::optional<at::Tensor>> expanded;
    for (auto& t : at::native::expandTensors(args[0].toTensor(), at::IOptTensorListRef(IndexList(args[i])))) {
      expanded.push_back(t.defined() ? std::optional(std::move(t)) : std::nullopt);
    }
    args[i] = std::move(expanded);
  }
}

void UploadIndices(const Op& op, std::span<c10::IValue> args, c10::DeviceIndex device) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != Kind::kOptTensors) continue;
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& e : args[i].toListRef()) {
      if (e.isNone()) {
        list.push_back(std::nullopt);
        continue;
      }
      const auto& t = e.toTensor();
      list.push_back(t.defined() && t.is_cpu() ? ToDevice(t, device) : t);
    }
    args[i] = std::move(list);
  }
}

bool IndexAddOwnRows(Arguments args) {
  return WithOwnRows(args, [&](const at::Tensor& rows, int64_t dim, const at::Tensor& added) {
    rows.index_add_(dim, args[2].toTensor(), added, args[4].toScalar());
  });
}

bool IndexReduceOwnRows(Arguments args) {
  return WithOwnRows(args, [&](const at::Tensor& rows, int64_t dim, const at::Tensor& added) {
    rows.index_reduce_(dim, args[2].toTensor(), added, args[4].toStringView(), args[5].toBool());
  });
}

}  // namespace mycelya
