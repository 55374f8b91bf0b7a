// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Functions that the rule files share: reading arguments, writing results, and TensorIterator without memory.
#ifndef MYCELYA_DEVICE_RULES_RULESINTERNAL_H_
#define MYCELYA_DEVICE_RULES_RULESINTERNAL_H_

#include <ATen/DimVector.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>

#include <optional>

#include "device/rules/Rules.h"

namespace mycelya::rules {

using at::DimVector;
using at::IntArrayRef;
using at::MemoryFormat;
using at::ScalarType;
using at::Tensor;
using Args = at::ArrayRef<c10::IValue>;
using Rule = void (*)(Args, OutMetas&);

struct RuleRow {
  const char* name;
  Rule rule;
};
using RuleRows = at::ArrayRef<RuleRow>;

// One function per rule file.
RuleRows attention_rules();
RuleRows convolution_rules();
RuleRows factory_rules();
RuleRows foreach_rules();
RuleRows index_rules();
RuleRows layout_rules();
RuleRows linalg_rules();
RuleRows loss_rules();
RuleRows norm_rules();
RuleRows pointwise_rules();
RuleRows pool_rules();
RuleRows quantize_rules();
RuleRows random_rules();
RuleRows reduce_rules();
RuleRows spectral_rules();

// True if programs run on CUDA, where some results differ from the CPU's.
bool on_cuda();

// --- Arguments. An absent tensor reads as an undefined one.
Tensor tensor(Args args, size_t i);
bool has(Args args, size_t i);
DimVector ints(Args args, size_t i);  // a list, or one number as a list of one
std::optional<DimVector> maybe_ints(Args args, size_t i);
std::optional<ScalarType> maybe_dtype(Args args, size_t i);
bool mask(Args args, size_t i, size_t bit);  // bit of a bool[n] output mask
// Values of a list of tensors.
std::vector<Tensor> tensors(Args args, size_t i);

// --- Results, appended.
void add(OutMetas& out, IntArrayRef sizes, IntArrayRef strides, ScalarType dtype);
void add_contiguous(OutMetas& out, IntArrayRef sizes, ScalarType dtype);
void add_format(OutMetas& out, IntArrayRef sizes, ScalarType dtype, MemoryFormat format);
// As empty_like with memory_format preserve: the same strides if dense, else the same order of dims.
void add_like(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype = std::nullopt);
// As a contiguous tensor of t's sizes.
void add_like_contiguous(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype = std::nullopt);
// In t's suggested memory format.
void add_like_suggested(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype = std::nullopt);
void add_undefined(OutMetas& out);
void add_meta(OutMetas& out, const at::TensorBase& t);

bool has_rule(std::string_view functional_name);
// Appends the results that the rule or else the structured shape function of an overload infers.
void infer(std::string_view functional_name, Args args, OutMetas& out);
// The same, by the structured shape function alone.
void structured(std::string_view functional_name, Args args, OutMetas& out);

// A stand-in for a tensor: the same metadata, device meta.
Tensor meta_like(const Tensor& t);
// A Python number as ATen sees it when it meets a tensor.
Tensor wrapped(const c10::Scalar& number);

// --- Elementwise results: TensorIterator's own code decides sizes, strides and dtype.
// How the dtype of the results follows from that of the operands.
enum class Promote {
  kNone,   // operands and result have one dtype
  kAny,    // operands may have any dtypes; the result's is given
  kTypes,  // type promotion
  kFloat,  // type promotion, integers to the default float
};
// The dtype in which operands meet. On the CPU, TensorIterator copies operands of another dtype. Copies are dense,
// which shows in the strides of the results.
ScalarType common_type(at::ArrayRef<Tensor> operands);
// Whether a copy of the tensor has other strides.
bool loose(const Tensor& t);
// A stand-in for an operand of a computation in a dtype: for its copy, if it has another dtype.
Tensor copied(const Tensor& t, ScalarType dtype);
// n results of the broadcast shape. dtype: given for kAny, else nullopt.
void elementwise(OutMetas& out, std::initializer_list<Tensor> operands, Promote promote,
                 std::optional<ScalarType> dtype = std::nullopt, int n = 1);

// --- Small facts.
ScalarType real_type(ScalarType dtype);  // the dtype of a complex dtype's parts, else the dtype itself
int64_t wrap(int64_t dim, int64_t rank);

}  // namespace mycelya::rules

#endif  // MYCELYA_DEVICE_RULES_RULESINTERNAL_H_
