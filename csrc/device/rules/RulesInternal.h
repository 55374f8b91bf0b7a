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
RuleRows AttentionRules();
RuleRows ConvolutionRules();
RuleRows FactoryRules();
RuleRows ForeachRules();
RuleRows IndexRules();
RuleRows LayoutRules();
RuleRows LinalgRules();
RuleRows LossRules();
RuleRows NormRules();
RuleRows PointwiseRules();
RuleRows PoolRules();
RuleRows QuantizeRules();
RuleRows RandomRules();
RuleRows ReduceRules();
RuleRows SpectralRules();

// True if the call's program runs on CUDA, where some results differ from the CPU's.
bool OnCuda();

// --- Arguments. An absent tensor reads as an undefined one.
Tensor TensorAt(Args args, size_t i);
bool Has(Args args, size_t i);
DimVector IntsAt(Args args, size_t i);  // a list, or one number as a list of one
std::optional<DimVector> MaybeInts(Args args, size_t i);
std::optional<ScalarType> MaybeDtype(Args args, size_t i);
bool MaskAt(Args args, size_t i, size_t bit);  // bit of a bool[n] output mask
// Values of a list of tensors.
std::vector<Tensor> TensorsAt(Args args, size_t i);

// --- Results, appended.
void Add(OutMetas& out, IntArrayRef sizes, IntArrayRef strides, ScalarType dtype);
void AddContiguous(OutMetas& out, IntArrayRef sizes, ScalarType dtype);
void AddFormat(OutMetas& out, IntArrayRef sizes, ScalarType dtype, MemoryFormat format);
// As empty_like with memory_format preserve: the same strides if dense, else the same order of dims.
void AddLike(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype = std::nullopt);
// As a contiguous tensor of t's sizes.
void AddLikeContiguous(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype = std::nullopt);
// In t's suggested memory format.
void AddLikeSuggested(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype = std::nullopt);
void AddUndefined(OutMetas& out);
void AddMeta(OutMetas& out, const at::TensorBase& t);
// Rules of results that are like the first argument, or contiguous with its sizes.
void Like(Args args, OutMetas& out);
void LikeContiguous(Args args, OutMetas& out);

bool HasRule(std::string_view functional_name);
// Appends the results that the rule or else the structured shape function of an overload infers.
void Infer(std::string_view functional_name, Args args, OutMetas& out);
// The same, by the structured shape function alone.
void Structured(std::string_view functional_name, Args args, OutMetas& out);

// A stand-in for a tensor: the same metadata, device meta.
Tensor MetaLike(const Tensor& t);
// A Python number as ATen sees it when it meets a tensor.
Tensor Wrapped(const c10::Scalar& number);

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
ScalarType CommonType(at::ArrayRef<Tensor> operands);
// Whether a copy of the tensor has other strides.
bool Loose(const Tensor& t);
// A stand-in for an operand of a computation in a dtype: for its copy, if it has another dtype.
Tensor Copied(const Tensor& t, ScalarType dtype);
// n results of the broadcast shape. dtype: given for kAny, else nullopt.
void Elementwise(OutMetas& out, std::initializer_list<Tensor> operands, Promote promote,
                 std::optional<ScalarType> dtype = std::nullopt, int n = 1);

// --- Small facts.
ScalarType RealType(ScalarType dtype);  // the dtype of a complex dtype's parts, else the dtype itself
int64_t Wrap(int64_t dim, int64_t rank);

}  // namespace mycelya::rules

#endif  // MYCELYA_DEVICE_RULES_RULESINTERNAL_H_
