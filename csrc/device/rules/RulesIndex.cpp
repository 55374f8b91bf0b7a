// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Gathers: results whose shape follows from the shape of an index.

#include <ATen/core/List.h>

#include <algorithm>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

constexpr ScalarType kLong = ScalarType::Long;

void check_index_type(const Tensor& index, const char* name, const char* argument) {
  TORCH_CHECK(index.scalar_type() == kLong || index.scalar_type() == ScalarType::Int, "Expected tensor for argument #",
              argument, " to have one of the following scalar types: Long, Int; but got ", index.toString(),
              " instead (while checking arguments for ", name, ")");
}

// weight [v, d] indices [*] … -> [*, d]
void embedding(Args args, OutMetas& out) {
  const Tensor weight = tensor(args, 0), indices = tensor(args, 1);
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  check_index_type(indices, "embedding", "1 'indices'");
  DimVector sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.push_back(weight.size(1));
  add_contiguous(out, sizes, weight.scalar_type());
}

// grad [*, d] indices num_weights … -> [num_weights, d]
void embedding_backward(Args args, OutMetas& out) {
  const Tensor grad = tensor(args, 0);
  check_index_type(tensor(args, 1), "embedding_backward", "2 'indices'");
  add_contiguous(out, {args[2].toInt(), grad.size(-1)}, grad.scalar_type());
}

// self dim index [k]
void index_select(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0), index = tensor(args, 2);
  const int64_t dim = wrap(args[1].toInt(), self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(index.scalar_type() == kLong || index.scalar_type() == ScalarType::Int,
              "index_select(): Expected dtype int32 or int64 for index");
  TORCH_CHECK(self.dim() > 0 || index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ",
              index.numel(), " value(s)");
  TORCH_CHECK(index.numel() == 0 || self.dim() == 0 || self.size(dim) > 0,
              "index_select(): self indexing axis dim should be positive");
  DimVector sizes(self.sizes().begin(), self.sizes().end());
  if (!sizes.empty()) sizes[dim] = index.numel();
  add_contiguous(out, sizes, self.scalar_type());
}

// self indices: a list of optional tensors, none of them a mask.
void index(Args args, OutMetas& out) {
  c10::List<std::optional<Tensor>> indices;
  for (const c10::IValue& item : args[1].toListRef()) {
    if (item.isNone() || !item.toTensor().defined()) {
      indices.push_back(std::nullopt);
      continue;
    }
    const Tensor& t = item.toTensor();
    indices.push_back(meta_like(t));  // indices may lie on the CPU
  }
  structured("index.Tensor", {meta_like(tensor(args, 0)), indices}, out);
}

// self dim index source …: whether the index is empty. The structured shape functions of index_add and index_reduce
// read the first slice, which does not exist then.
bool adds_nothing(Args args, const char* name, OutMetas& out) {
  const Tensor self = tensor(args, 0), index = tensor(args, 2), source = tensor(args, 3);
  if (index.numel() != 0 || index.dim() > 1) return false;
  const int64_t dim = wrap(args[1].toInt(), self.dim());
  TORCH_CHECK(source.size(dim) == 0, name, ": Number of indices (0) should be equal to source.size(dim): (",
              source.size(dim), "), for dim: ", dim);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), name, ": self and source must have the same scalar type");
  add_contiguous(out, self.sizes(), self.scalar_type());
  return true;
}

// Their structured shape functions slice the result, which has no device yet. So all operands are on device meta.
void index_add(Args args, OutMetas& out) {
  // self dim index source alpha
  if (adds_nothing(args, "index_add_()", out)) return;
  structured("index_add",
             {meta_like(tensor(args, 0)), args[1], meta_like(tensor(args, 2)), meta_like(tensor(args, 3)), args[4]},
             out);
}

void index_reduce(Args args, OutMetas& out) {
  // self dim index source reduce include_self
  if (adds_nothing(args, "index_reduce_()", out)) return;
  structured(
      "index_reduce",
      {meta_like(tensor(args, 0)), args[1], meta_like(tensor(args, 2)), meta_like(tensor(args, 3)), args[4], args[5]},
      out);
}

// self indices values …: a copy of self
void index_put(Args args, OutMetas& out) { add_like(out, tensor(args, 0)); }

// self index source …: a copy of self
void put(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0), index = tensor(args, 1), source = tensor(args, 2);
  TORCH_CHECK(index.scalar_type() == kLong, "put_(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "put_(): self and source expected to have the same dtype, ",
              "but got self.dtype = ", self.scalar_type(), " and source.dtype = ", source.scalar_type());
  TORCH_CHECK_INDEX(source.numel() == index.numel(),
                    "put_(): Expected source and index to have the same number of elements, but got source.numel() = ",
                    source.numel(), ", index.numel() = ", index.numel());
  TORCH_CHECK_INDEX(self.numel() != 0 || index.numel() == 0, "put_(): Tried to put elements into an empty tensor");
  add_like(out, self);
}

// self index
void take(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0), index = tensor(args, 1);
  TORCH_CHECK(index.scalar_type() == kLong, "take(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK_INDEX(!(self.numel() == 0 && index.numel() != 0), "take(): tried to take from an empty tensor");
  add_like_contiguous(out, index, self.scalar_type());
}

ScalarType position_type(bool int32) { return int32 ? ScalarType::Int : kLong; }

// self boundaries out_int32 right
void bucketize(Args args, OutMetas& out) {
  const Tensor boundaries = tensor(args, 1);
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  const Tensor self = tensor(args, 0);  // undefined for a number
  add_contiguous(out, self.defined() ? self.sizes() : IntArrayRef(), position_type(args[2].toBool()));
}

// sorted_sequence self out_int32 right side? sorter?
void searchsorted(Args args, OutMetas& out) {
  const Tensor boundaries = tensor(args, 0), self = tensor(args, 1);
  const int64_t rank = self.defined() ? self.dim() : 0;
  bool matched = boundaries.dim() == rank;
  for (int64_t i = 0; matched && i + 1 < rank; ++i) matched = boundaries.size(i) == self.size(i);
  TORCH_CHECK(boundaries.dim() == 1 || (rank > 0 && matched), "torch.searchsorted(): boundaries tensor should be 1 ",
              "dimension or the first N-1 dimensions of boundaries tensor and input value tensor must match, but we ",
              "got boundaries tensor ", boundaries.sizes(), " and input value tensor ",
              self.defined() ? self.sizes() : IntArrayRef());
  add_contiguous(out, self.defined() ? self.sizes() : IntArrayRef(), position_type(args[2].toBool()));
}

// self size fill_value -> [size, rank]
void nonzero_static(Args args, OutMetas& out) {
  const int64_t size = args[1].toInt();
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  add_contiguous(out, {size, tensor(args, 0).dim()}, kLong);
}

enum BagMode { kBagSum = 0, kBagMean = 1, kBagMax = 2 };

// weight [v, d] indices [k] offsets [b] scale_grad_by_freq mode sparse per_sample_weights? include_last_offset
// padding_idx -> output [b, d], bag of each index, size of each bag, index of each maximum
void embedding_bag(Args args, OutMetas& out) {
  const Tensor weight = tensor(args, 0), indices = tensor(args, 1), offsets = tensor(args, 2);
  TORCH_CHECK(offsets.dim() == 1, "embedding_bag: offsets has to be a 1D Tensor, but got Tensor of dimension ",
              offsets.dim());
  const int64_t bags = offsets.size(0) - (args[7].toBool() ? 1 : 0), features = weight.size(1);
  const int64_t mode = args[4].toInt();
  const ScalarType type = offsets.scalar_type();
  add_contiguous(out, {bags, features}, weight.scalar_type());
  if (on_cuda()) {
    add_contiguous(out, {indices.size(0)}, indices.scalar_type());
    add_contiguous(out, {offsets.size(0)}, indices.scalar_type());
    mode == kBagMax ? add_contiguous(out, {bags, features}, indices.scalar_type())
                    : add_contiguous(out, {0}, indices.scalar_type());
    return;
  }
  // The CPU's fast path for sums needs no map from indices to bags.
  const bool narrow = weight.scalar_type() == ScalarType::Float || weight.scalar_type() == ScalarType::Half ||
                      weight.scalar_type() == ScalarType::BFloat16;
  const Tensor scale = tensor(args, 6);
  const bool fast = mode == kBagSum && narrow && weight.stride(1) == 1 && args[8].toInt() < 0 &&
                    (!scale.defined() || scale.stride(0) == 1);
  add_contiguous(out, {fast ? 0 : indices.size(0)}, type);
  add_contiguous(out, {bags}, type);
  mode == kBagMax ? add_contiguous(out, {bags, features}, type) : add_contiguous(out, {bags}, type);
}

void add_bag_gradient(OutMetas& out, Args args, size_t num_weights) {
  const Tensor grad = tensor(args, 0);
  add_contiguous(out, {args[num_weights].toInt(), grad.size(1)}, grad.scalar_type());
}

// grad indices offset2bag bag_size maximum_indices num_weights …
void embedding_bag_dense_backward(Args args, OutMetas& out) { add_bag_gradient(out, args, 5); }

// grad weight indices …
void embedding_bag_scale_backward(Args args, OutMetas& out) {
  add_contiguous(out, {tensor(args, 2).size(0)}, tensor(args, 0).scalar_type());
}

constexpr RuleRow kRows[] = {
    {"_embedding_bag", embedding_bag},
    {"_embedding_bag_dense_backward", embedding_bag_dense_backward},
    {"_embedding_bag_forward_only", embedding_bag},
    {"_embedding_bag_per_sample_weights_backward", embedding_bag_scale_backward},
    {"bucketize.Scalar", bucketize},
    {"bucketize.Tensor", bucketize},
    {"embedding", embedding},
    {"embedding_dense_backward", embedding_backward},
    {"index.Tensor", index},
    {"index_add", index_add},
    {"index_put", index_put},
    {"index_reduce", index_reduce},
    {"index_select", index_select},
    {"nonzero_static", nonzero_static},
    {"put", put},
    {"searchsorted.Scalar", searchsorted},
    {"searchsorted.Tensor", searchsorted},
    {"take", take},
};

}  // namespace

RuleRows index_rules() { return kRows; }

}  // namespace mycelya::rules
