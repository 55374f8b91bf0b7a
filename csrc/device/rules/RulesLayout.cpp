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
void clone(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const auto format = args[1].isNone() ? MemoryFormat::Preserve : args[1].toMemoryFormat();
  if (format == MemoryFormat::Preserve) {
    add_like(out, self);
  } else {
    add_format(out, self.sizes(), self.scalar_type(), format);
  }
}

// self dims
void flip(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  uint64_t seen = 0;
  for (const int64_t dim : ints(args, 1)) {
    const uint64_t bit = uint64_t{1} << wrap(dim, self.dim());
    TORCH_CHECK((seen & bit) == 0, "dim ", wrap(dim, self.dim()), " appears multiple times in the list of dims");
    seen |= bit;
  }
  add_like(out, self);
}

// self shifts dims
void roll(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const auto shifts = ints(args, 1), dims = ints(args, 2);
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(!dims.empty() || shifts.size() == 1, "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  TORCH_CHECK(dims.empty() || dims.size() == shifts.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  for (const int64_t dim : dims) wrap(dim, self.dim());
  if (self.numel() == 0) {
    add_like(out, self);
  } else if (on_cuda() || dims.empty()) {
    add_like_contiguous(out, self);
  } else {
    add_like_suggested(out, self);  // a concatenation of two slices
  }
}

// self repeats
void repeat(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  auto sizes = ints(args, 1);
  TORCH_CHECK(static_cast<int64_t>(sizes.size()) >= self.dim(),
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  const size_t lead = sizes.size() - self.dim();
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(sizes[i] >= 0, "Trying to create tensor with negative dimension ", sizes[i], ": ", IntArrayRef(sizes));
    if (i >= lead) sizes[i] *= self.size(static_cast<int64_t>(i - lead));
  }
  add_contiguous(out, sizes, self.scalar_type());
}

// repeats [k] output_size? -> [output_size]
void repeat_interleave(Args args, OutMetas& out) {
  const Tensor repeats = tensor(args, 0);
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == ScalarType::Long || repeats.scalar_type() == ScalarType::Int,
              "repeats has to be Long or Int tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(!args[1].isNone(),
                              "torch.repeat_interleave with a tensor of repeats needs output_size on this device: "
                              "without it the result's shape depends on data.");
  add_contiguous(out, {args[1].toInt()}, repeats.scalar_type());
}

// tensors dim: a concatenation along the dim, seen with one more dim; along a new last dim, of the tensors seen so
void stack(Args args, OutMetas& out) {
  const auto list = tensors(args, 0);
  TORCH_CHECK(!list.empty(), "stack expects a non-empty TensorList");
  const int64_t rank = list[0].dim(), dim = wrap(args[1].toInt(), rank + 1);
  c10::List<Tensor> parts;
  for (size_t i = 0; i < list.size(); ++i) {
    const Tensor& t = list[i];
    TORCH_CHECK(t.sizes() == list[0].sizes(), "stack expects each tensor to be equal size, but got ", list[0].sizes(),
                " at entry 0 and ", t.sizes(), " at entry ", i);
    Tensor part = meta_like(t);
    if (dim == rank) {
      DimVector sizes(t.sizes().begin(), t.sizes().end()), strides(t.strides().begin(), t.strides().end());
      sizes.push_back(1);
      strides.push_back(1);
      part.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    }
    parts.push_back(std::move(part));
  }
  OutMetas joined;
  structured("cat", {parts, dim}, joined);
  if (dim == rank) return add(out, joined[0].sizes, joined[0].strides, joined[0].dtype);
  DimVector sizes(list[0].sizes().begin(), list[0].sizes().end());
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(list.size()));
  const auto strides = at::detail::computeStride(joined[0].sizes, joined[0].strides, DimVector(sizes));
  if (strides) {
    add(out, sizes, *strides, joined[0].dtype);
  } else {
    add_contiguous(out, sizes, joined[0].dtype);
  }
}

// self dim start length
void narrow_copy(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  DimVector sizes(self.sizes().begin(), self.sizes().end());
  TORCH_CHECK(!sizes.empty(), "narrow() cannot be applied to a 0-dim tensor.");
  sizes[wrap(args[1].toInt(), self.dim())] = args[3].toInt();
  add_contiguous(out, sizes, self.scalar_type());
}

// self groups
void channel_shuffle(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const int64_t groups = args[1].toInt();
  TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ", self.sizes());
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive. Value of groups:", groups);
  TORCH_CHECK(self.size(1) % groups == 0, "Number of channels must be divisible by groups. Got ", self.size(1),
              " channels and ", groups, " groups.");
  on_cuda() ? add_like_contiguous(out, self) : add_like_suggested(out, self);
}

// self mask value: a contiguous copy of the broadcast self
void masked_fill(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0), mask = tensor(args, 1);
  TORCH_CHECK(mask.scalar_type() == ScalarType::Bool, "masked_fill_ only supports boolean masks, but got mask with ",
              "dtype ", mask.scalar_type());
  if (args[2].isTensor()) {
    TORCH_CHECK(tensor(args, 2).dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor ",
                "with ", tensor(args, 2).dim(), " dimension(s).");
  }
  add_contiguous(out, at::infer_size_dimvector(self.sizes(), mask.sizes()), self.scalar_type());
}

// self mask source
void masked_scatter(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0), mask = tensor(args, 1), source = tensor(args, 2);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "masked_scatter: expected self and source to have same ",
              "dtypes but got ", self.scalar_type(), " and ", source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == ScalarType::Bool, "masked_scatter_ only supports boolean masks, but got mask with ",
              "dtype ", mask.scalar_type());
  add_contiguous(out, at::infer_size_dimvector(self.sizes(), mask.sizes()), self.scalar_type());
}

// grad mask sizes
void masked_scatter_backward(Args args, OutMetas& out) {
  add_contiguous(out, ints(args, 2), tensor(args, 0).scalar_type());
}

// grad input_sizes dim size step
void unfold_backward(Args args, OutMetas& out) { add_contiguous(out, ints(args, 1), tensor(args, 0).scalar_type()); }

// A copy, which an in-place op then writes.
void like(Args args, OutMetas& out) { add_like(out, tensor(args, 0)); }

// values [t, …] offsets max_lengths padding -> [b, max_lengths…, …]
void jagged_to_padded(Args args, OutMetas& out) {
  const Tensor values = tensor(args, 0);
  const auto offsets = tensors(args, 1);
  TORCH_CHECK(!offsets.empty() && offsets[0].dim() == 1 && values.dim() > 0,
              "_jagged_to_padded_dense_forward: expected values with a dimension and vectors of offsets");
  DimVector sizes = {offsets[0].size(0) - 1};
  for (const int64_t length : ints(args, 2)) sizes.push_back(length);
  sizes.append(values.sizes().begin() + 1, values.sizes().end());
  add_contiguous(out, sizes, values.scalar_type());
}

constexpr RuleRow kRows[] = {
    {"_jagged_to_padded_dense_forward", jagged_to_padded},
    {"channel_shuffle", channel_shuffle},
    {"clone", clone},
    {"flip", flip},
    {"index_fill.int_Scalar", like},
    {"index_fill.int_Tensor", like},
    {"masked_fill.Scalar", masked_fill},
    {"masked_fill.Tensor", masked_fill},
    {"masked_scatter", masked_scatter},
    {"masked_scatter_backward", masked_scatter_backward},
    {"narrow_copy", narrow_copy},
    {"repeat", repeat},
    {"repeat_interleave.Tensor", repeat_interleave},
    {"roll", roll},
    {"stack", stack},
    {"unfold_backward", unfold_backward},
};

}  // namespace

RuleRows layout_rules() { return kRows; }

}  // namespace mycelya::rules
