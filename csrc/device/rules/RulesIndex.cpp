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

void CheckIndexType(const Tensor& index, const char* name, const char* argument) {
  TORCH_CHECK(index.scalar_type() == kLong || index.scalar_type() == ScalarType::Int, "Expected tensor for argument #",
              argument, " to have one of the following scalar types: Long, Int; but got ", index.toString(),
              " instead (while checking arguments for ", name, ")");
}

// weight [v, d] indices [*] … -> [*, d]
void Embedding(Args args, OutMetas& out) {
  const Tensor weight = TensorAt(args, 0), indices = TensorAt(args, 1);
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  CheckIndexType(indices, "embedding", "1 'indices'");
  DimVector sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.push_back(weight.size(1));
  AddContiguous(out, sizes, weight.scalar_type());
}

// grad [*, d] indices num_weights … -> [num_weights, d]
void EmbeddingBackward(Args args, OutMetas& out) {
  const Tensor grad = TensorAt(args, 0);
  CheckIndexType(TensorAt(args, 1), "embedding_backward", "2 'indices'");
  AddContiguous(out, {args[2].toInt(), grad.size(-1)}, grad.scalar_type());
}

// self dim index [k]
void IndexSelect(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), index = TensorAt(args, 2);
  const int64_t dim = Wrap(args[1].toInt(), self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(index.scalar_type() == kLong || index.scalar_type() == ScalarType::Int,
              "index_select(): Expected dtype int32 or int64 for index");
  TORCH_CHECK(self.dim() > 0 || index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ",
              index.numel(), " value(s)");
  TORCH_CHECK(index.numel() == 0 || self.dim() == 0 || self.size(dim) > 0,
              "index_select(): self indexing axis dim should be positive");
  DimVector sizes(self.sizes().begin(), self.sizes().end());
  if (!sizes.empty()) sizes[dim] = index.numel();
  AddContiguous(out, sizes, self.scalar_type());
}

// self indices: a list of optional tensors, none of them a mask.
void Index(Args args, OutMetas& out) {
  c10::List<std::optional<Tensor>> indices;
  for (const c10::IValue& item : args[1].toListRef()) {
    if (item.isNone() || !item.toTensor().defined()) {
      indices.push_back(std::nullopt);
      continue;
    }
    const Tensor& t = item.toTensor();
    indices.push_back(MetaLike(t));  // indices may lie on the CPU
  }
  Structured("index.Tensor", {MetaLike(TensorAt(args, 0)), indices}, out);
}

// self dim index source …: whether the index is empty. The structured shape functions of index_add and index_reduce
// read the first slice, which does not exist then.
bool AddsNothing(Args args, const char* name, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), index = TensorAt(args, 2), source = TensorAt(args, 3);
  if (index.numel() != 0 || index.dim() > 1) return false;
  const int64_t dim = Wrap(args[1].toInt(), self.dim());
  TORCH_CHECK(source.size(dim) == 0, name, ": Number of indices (0) should be equal to source.size(dim): (",
              source.size(dim), "), for dim: ", dim);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), name, ": self and source must have the same scalar type");
  AddContiguous(out, self.sizes(), self.scalar_type());
  return true;
}

// Their structured shape functions slice the result, which has no device yet. So all operands are on device meta.
void IndexAdd(Args args, OutMetas& out) {
  // self dim index source alpha
  if (AddsNothing(args, "index_add_()", out)) return;
  Structured("index_add",
             {MetaLike(TensorAt(args, 0)), args[1], MetaLike(TensorAt(args, 2)), MetaLike(TensorAt(args, 3)), args[4]},
             out);
}

void IndexReduce(Args args, OutMetas& out) {
  // self dim index source reduce include_self
  if (AddsNothing(args, "index_reduce_()", out)) return;
  Structured("index_reduce",
             {MetaLike(TensorAt(args, 0)), args[1], MetaLike(TensorAt(args, 2)), MetaLike(TensorAt(args, 3)), args[4],
              args[5]},
             out);
}

// self indices values …: a copy of self
void IndexPut(Args args, OutMetas& out) { AddLike(out, TensorAt(args, 0)); }

// self index source …: a copy of self
void Put(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), index = TensorAt(args, 1), source = TensorAt(args, 2);
  TORCH_CHECK(index.scalar_type() == kLong, "put_(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "put_(): self and source expected to have the same dtype, ",
              "but got self.dtype = ", self.scalar_type(), " and source.dtype = ", source.scalar_type());
  TORCH_CHECK_INDEX(source.numel() == index.numel(),
                    "put_(): Expected source and index to have the same number of elements, but got source.numel() = ",
                    source.numel(), ", index.numel() = ", index.numel());
  TORCH_CHECK_INDEX(self.numel() != 0 || index.numel() == 0, "put_(): Tried to put elements into an empty tensor");
  AddLike(out, self);
}

// self index
void Take(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), index = TensorAt(args, 1);
  TORCH_CHECK(index.scalar_type() == kLong, "take(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK_INDEX(!(self.numel() == 0 && index.numel() != 0), "take(): tried to take from an empty tensor");
  AddLikeContiguous(out, index, self.scalar_type());
}

ScalarType PositionType(bool int32) { return int32 ? ScalarType::Int : kLong; }

// self boundaries out_int32 right
void Bucketize(Args args, OutMetas& out) {
  const Tensor boundaries = TensorAt(args, 1);
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  const Tensor self = TensorAt(args, 0);  // undefined for a number
  AddContiguous(out, self.defined() ? self.sizes() : IntArrayRef(), PositionType(args[2].toBool()));
}

// sorted_sequence self out_int32 right side? sorter?
void Searchsorted(Args args, OutMetas& out) {
  const Tensor boundaries = TensorAt(args, 0), self = TensorAt(args, 1);
  const int64_t rank = self.defined() ? self.dim() : 0;
  bool matched = boundaries.dim() == rank;
  for (int64_t i = 0; matched && i + 1 < rank; ++i) matched = boundaries.size(i) == self.size(i);
  TORCH_CHECK(boundaries.dim() == 1 || (rank > 0 && matched), "torch.searchsorted(): boundaries tensor should be 1 ",
              "dimension or the first N-1 dimensions of boundaries tensor and input value tensor must match, but we ",
              "got boundaries tensor ", boundaries.sizes(), " and input value tensor ",
              self.defined() ? self.sizes() : IntArrayRef());
  AddContiguous(out, self.defined() ? self.sizes() : IntArrayRef(), PositionType(args[2].toBool()));
}

// self size fill_value -> [size, rank]
void NonzeroStatic(Args args, OutMetas& out) {
  const int64_t size = args[1].toInt();
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  const int64_t rank = TensorAt(args, 0).dim();
  if (OnCuda()) {
    Add(out, {size, rank}, {1, size}, kLong);  // CUDA finds the indices of one dim after the other
  } else {
    AddContiguous(out, {size, rank}, kLong);
  }
}

enum BagMode { kBagSum = 0, kBagMean = 1, kBagMax = 2 };

// weight [v, d] indices [k] offsets [b] scale_grad_by_freq mode sparse per_sample_weights? include_last_offset
// padding_idx -> output [b, d], bag of each index, size of each bag, index of each maximum
void EmbeddingBag(Args args, OutMetas& out) {
  const Tensor weight = TensorAt(args, 0), indices = TensorAt(args, 1), offsets = TensorAt(args, 2);
  TORCH_CHECK(offsets.dim() == 1, "embedding_bag: offsets has to be a 1D Tensor, but got Tensor of dimension ",
              offsets.dim());
  const int64_t bags = offsets.size(0) - (args[7].toBool() ? 1 : 0), features = weight.size(1);
  const int64_t mode = args[4].toInt();
  const ScalarType type = offsets.scalar_type();
  AddContiguous(out, {bags, features}, weight.scalar_type());
  if (OnCuda()) {
    AddContiguous(out, {indices.size(0)}, indices.scalar_type());
    AddContiguous(out, {offsets.size(0)}, indices.scalar_type());
    mode == kBagMax ? AddContiguous(out, {bags, features}, indices.scalar_type())
                    : AddContiguous(out, {0}, indices.scalar_type());
    return;
  }
  // The CPU's fast path for sums needs no map from indices to bags.
  const bool narrow = weight.scalar_type() == ScalarType::Float || weight.scalar_type() == ScalarType::Half ||
                      weight.scalar_type() == ScalarType::BFloat16;
  const Tensor scale = TensorAt(args, 6);
  const bool fast = mode == kBagSum && narrow && weight.stride(1) == 1 && args[8].toInt() < 0 &&
                    (!scale.defined() || scale.stride(0) == 1);
  AddContiguous(out, {fast ? 0 : indices.size(0)}, type);
  AddContiguous(out, {bags}, type);
  mode == kBagMax ? AddContiguous(out, {bags, features}, type) : AddContiguous(out, {bags}, type);
}

void AddBagGradient(OutMetas& out, Args args, size_t num_weights) {
  const Tensor grad = TensorAt(args, 0);
  AddContiguous(out, {args[num_weights].toInt(), grad.size(1)}, grad.scalar_type());
}

// grad indices offset2bag bag_size maximum_indices num_weights …
void EmbeddingBagDenseBackward(Args args, OutMetas& out) { AddBagGradient(out, args, 5); }

// grad weight indices …
void EmbeddingBagScaleBackward(Args args, OutMetas& out) {
  AddContiguous(out, {TensorAt(args, 2).size(0)}, TensorAt(args, 0).scalar_type());
}

constexpr RuleRow kIndexRows[] = {
    {"_embedding_bag", EmbeddingBag},
    {"_embedding_bag_dense_backward", EmbeddingBagDenseBackward},
    {"_embedding_bag_forward_only", EmbeddingBag},
    {"_embedding_bag_per_sample_weights_backward", EmbeddingBagScaleBackward},
    {"bucketize.Scalar", Bucketize},
    {"bucketize.Tensor", Bucketize},
    {"embedding", Embedding},
    {"embedding_dense_backward", EmbeddingBackward},
    {"index.Tensor", Index},
    {"index_add", IndexAdd},
    {"index_put", IndexPut},
    {"index_reduce", IndexReduce},
    {"index_select", IndexSelect},
    {"nonzero_static", NonzeroStatic},
    {"put", Put},
    {"searchsorted.Scalar", Searchsorted},
    {"searchsorted.Tensor", Searchsorted},
    {"take", Take},
};

}  // namespace

RuleRows IndexRules() { return kIndexRows; }

}  // namespace mycelya::rules
