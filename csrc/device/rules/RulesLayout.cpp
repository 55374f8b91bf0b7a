// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Ops that move elements: copies, flips, repetitions, stacks.

#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/List.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

// self memory_format?
void Clone(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const auto format = args[1].isNone() ? MemoryFormat::Preserve : args[1].toMemoryFormat();
  if (format == MemoryFormat::Preserve) {
    AddLike(out, self);
  } else {
    AddFormat(out, self.sizes(), self.scalar_type(), format);
  }
}

// self dims
void Flip(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  uint64_t seen = 0;
  for (const int64_t dim : IntsAt(args, 1)) {
    const uint64_t bit = uint64_t{1} << Wrap(dim, self.dim());
    TORCH_CHECK((seen & bit) == 0, "dim ", Wrap(dim, self.dim()), " appears multiple times in the list of dims");
    seen |= bit;
  }
  AddLike(out, self);
}

// self shifts dims
void Roll(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const auto shifts = IntsAt(args, 1), dims = IntsAt(args, 2);
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(!dims.empty() || shifts.size() == 1, "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  TORCH_CHECK(dims.empty() || dims.size() == shifts.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  for (const int64_t dim : dims) Wrap(dim, self.dim());
  if (self.numel() == 0) {
    AddLike(out, self);
  } else if (OnCuda() || dims.empty()) {
    AddLikeContiguous(out, self);
  } else {
    AddLikeSuggested(out, self);  // a concatenation of two slices
  }
}

// self repeats
void Repeat(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  auto sizes = IntsAt(args, 1);
  TORCH_CHECK(static_cast<int64_t>(sizes.size()) >= self.dim(),
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  const size_t lead = sizes.size() - self.dim();
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(sizes[i] >= 0, "Trying to create tensor with negative dimension ", sizes[i], ": ", IntArrayRef(sizes));
    if (i >= lead) sizes[i] *= self.size(static_cast<int64_t>(i - lead));
  }
  AddContiguous(out, sizes, self.scalar_type());
}

// repeats [k] output_size? -> [output_size]
void RepeatInterleave(Args args, OutMetas& out) {
  const Tensor repeats = TensorAt(args, 0);
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == ScalarType::Long || repeats.scalar_type() == ScalarType::Int,
              "repeats has to be Long or Int tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(!args[1].isNone(),
                              "torch.repeat_interleave with a tensor of repeats needs output_size on this device: "
                              "without it the result's shape depends on data.");
  AddContiguous(out, {args[1].toInt()}, repeats.scalar_type());
}

// tensors dim: a concatenation along the dim, seen with one more dim; along a new last dim, of the tensors seen so
void Stack(Args args, OutMetas& out) {
  const auto list = TensorsAt(args, 0);
  TORCH_CHECK(!list.empty(), "stack expects a non-empty TensorList");
  const int64_t rank = list[0].dim(), dim = Wrap(args[1].toInt(), rank + 1);
  c10::List<Tensor> parts;
  for (size_t i = 0; i < list.size(); ++i) {
    const Tensor& t = list[i];
    TORCH_CHECK(t.sizes() == list[0].sizes(), "stack expects each tensor to be equal size, but got ", list[0].sizes(),
                " at entry 0 and ", t.sizes(), " at entry ", i);
    Tensor part = MetaLike(t);
    if (dim == rank) {
      DimVector sizes(t.sizes().begin(), t.sizes().end()), strides(t.strides().begin(), t.strides().end());
      sizes.push_back(1);
      strides.push_back(1);
      part.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    }
    parts.push_back(std::move(part));
  }
  OutMetas joined;
  Structured("cat", {parts, dim}, joined);
  if (dim == rank) return Add(out, joined[0].sizes, joined[0].strides, joined[0].dtype);
  DimVector sizes(list[0].sizes().begin(), list[0].sizes().end());
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(list.size()));
  const auto strides = at::detail::computeStride(joined[0].sizes, joined[0].strides, DimVector(sizes));
  if (strides) {
    Add(out, sizes, *strides, joined[0].dtype);
  } else {
    AddContiguous(out, sizes, joined[0].dtype);
  }
}

// self dim start length
void NarrowCopy(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  DimVector sizes(self.sizes().begin(), self.sizes().end());
  TORCH_CHECK(!sizes.empty(), "narrow() cannot be applied to a 0-dim tensor.");
  sizes[Wrap(args[1].toInt(), self.dim())] = args[3].toInt();
  AddContiguous(out, sizes, self.scalar_type());
}

// self groups
void ChannelShuffle(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const int64_t groups = args[1].toInt();
  TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ", self.sizes());
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive. Value of groups:", groups);
  TORCH_CHECK(self.size(1) % groups == 0, "Number of channels must be divisible by groups. Got ", self.size(1),
              " channels and ", groups, " groups.");
  OnCuda() ? AddLikeContiguous(out, self) : AddLikeSuggested(out, self);
}

// self mask value: a contiguous copy of the broadcast self
void MaskedFill(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), mask = TensorAt(args, 1);
  TORCH_CHECK(mask.scalar_type() == ScalarType::Bool, "masked_fill_ only supports boolean masks, but got mask with ",
              "dtype ", mask.scalar_type());
  if (args[2].isTensor()) {
    TORCH_CHECK(TensorAt(args, 2).dim() == 0,
                "masked_fill_ only supports a 0-dimensional value tensor, but got tensor ", "with ",
                TensorAt(args, 2).dim(), " dimension(s).");
  }
  AddContiguous(out, at::infer_size_dimvector(self.sizes(), mask.sizes()), self.scalar_type());
}

// self mask source
void MaskedScatter(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), mask = TensorAt(args, 1), source = TensorAt(args, 2);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "masked_scatter: expected self and source to have same ",
              "dtypes but got ", self.scalar_type(), " and ", source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == ScalarType::Bool, "masked_scatter_ only supports boolean masks, but got mask with ",
              "dtype ", mask.scalar_type());
  AddContiguous(out, at::infer_size_dimvector(self.sizes(), mask.sizes()), self.scalar_type());
}

// grad mask sizes
void MaskedScatterBackward(Args args, OutMetas& out) {
  AddContiguous(out, IntsAt(args, 2), TensorAt(args, 0).scalar_type());
}

// grad input_sizes dim size step
void UnfoldBackward(Args args, OutMetas& out) { AddContiguous(out, IntsAt(args, 1), TensorAt(args, 0).scalar_type()); }

// values [t, …] offsets max_lengths padding -> [b, max_lengths…, …]
void JaggedToPadded(Args args, OutMetas& out) {
  const Tensor values = TensorAt(args, 0);
  const auto offsets = TensorsAt(args, 1);
  TORCH_CHECK(!offsets.empty() && offsets[0].dim() == 1 && values.dim() > 0,
              "_jagged_to_padded_dense_forward: expected values with a dimension and vectors of offsets");
  DimVector sizes = {offsets[0].size(0) - 1};
  for (const int64_t length : IntsAt(args, 2)) sizes.push_back(length);
  sizes.append(values.sizes().begin() + 1, values.sizes().end());
  AddContiguous(out, sizes, values.scalar_type());
}

constexpr RuleRow kLayoutRows[] = {
    {"_jagged_to_padded_dense_forward", JaggedToPadded},
    {"channel_shuffle", ChannelShuffle},
    {"clone", Clone},
    {"flip", Flip},
    {"index_fill.int_Scalar", Like},
    {"index_fill.int_Tensor", Like},
    {"masked_fill.Scalar", MaskedFill},
    {"masked_fill.Tensor", MaskedFill},
    {"masked_scatter", MaskedScatter},
    {"masked_scatter_backward", MaskedScatterBackward},
    {"narrow_copy", NarrowCopy},
    {"repeat", Repeat},
    {"repeat_interleave.Tensor", RepeatInterleave},
    {"roll", Roll},
    {"stack", Stack},
    {"unfold_backward", UnfoldBackward},
};

}  // namespace

RuleRows LayoutRules() { return kLayoutRows; }

}  // namespace mycelya::rules
