// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Masks and CPU tensors among indices.
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/masked_fill.h>

#include <algorithm>

#include "device/operators/Transfer.h"
#include "device/record/RecordInternal.h"

namespace mycelya {
namespace {

bool is_mask(const c10::IValue& v) {
  if (!v.isTensor() || !v.toTensor().defined()) return false;
  const auto type = v.toTensor().scalar_type();
  return type == at::kBool || type == at::kByte;
}

c10::List<std::optional<at::Tensor>> index_list(const c10::IValue& v) {
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& e : v.toListRef()) {
    list.push_back(e.isTensor() && e.toTensor().defined() ? std::optional(e.toTensor()) : std::nullopt);
  }
  return list;
}

}  // namespace

bool fill_under_mask(const Op& op, at::ArrayRef<c10::IValue> args) {
  if ((op.name != "index_put_" && op.name != "_index_put_impl_") || args[3].toBool()) return false;
  const at::Tensor &self = args[0].toTensor(), &value = args[2].toTensor();
  const bool here = ours(value) && value.dim() == 0;
  if (!here && (!value.is_cpu() || value.numel() != 1)) return false;
  TORCH_CHECK_INDEX(self.scalar_type() == value.scalar_type(),
                    "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
                    " for the destination and ", value.scalar_type(), " for the source.");
  // Looks at the indices only, if the value is one number on the CPU.
  const auto [can, mask] =
      at::native::canDispatchToMaskedFill(self, index_list(args[1]), here ? at::empty({1}, at::kCPU) : value);
  if (!can || !ours(mask)) return false;
  here ? at::Tensor(self).masked_fill_(mask, value) : at::Tensor(self).masked_fill_(mask, value.item());
  return true;
}

void expand_masks(const Op& op, std::span<c10::IValue> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != Kind::kOptTensors) continue;
    const auto list = args[i].toListRef();
    if (std::none_of(list.begin(), list.end(), is_mask)) continue;
    c10::List<std::optional<at::Tensor>> expanded;
    for (auto& t : at::native::expandTensors(args[0].toTensor(), at::IOptTensorListRef(index_list(args[i])))) {
      expanded.push_back(t.defined() ? std::optional(std::move(t)) : std::nullopt);
    }
    args[i] = std::move(expanded);
  }
}

void upload_indices(const Op& op, std::span<c10::IValue> args, c10::DeviceIndex device) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != Kind::kOptTensors) continue;
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& e : args[i].toListRef()) {
      if (e.isNone()) {
        list.push_back(std::nullopt);
        continue;
      }
      const auto& t = e.toTensor();
      list.push_back(t.defined() && t.is_cpu() ? to_device(t, device) : t);
    }
    args[i] = std::move(list);
  }
}

}  // namespace mycelya
