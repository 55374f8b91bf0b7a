// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What guards need to read arguments and to raise errors. Positions are those of the schema.
#ifndef MYCELYA_EXEC_GUARDS_GUARDOPERANDS_H_
#define MYCELYA_EXEC_GUARDS_GUARDOPERANDS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mycelya::exec {

// More than any memory holds; far from an overflow.
inline constexpr int64_t kMaxElements = int64_t{1} << 48;

class Operands {
 public:
  Operands(const std::string& name, const torch::jit::Stack& stack) : name_(name), stack_(stack) {}

  const std::string& name() const { return name_; }
  bool Given(size_t i) const {
    return i < stack_.size() && !stack_[i].isNone() && (!stack_[i].isTensor() || stack_[i].toTensor().defined());
  }
  size_t size() const { return stack_.size(); }
  bool IsTensor(size_t i) const { return stack_[i].isTensor(); }
  // Whether it is a list of tensors.
  bool IsList(size_t i) const { return i < stack_.size() && stack_[i].isTensorList(); }
  const at::Tensor& Tensor(size_t i) const { return stack_[i].toTensor(); }
  std::vector<at::Tensor> Tensors(size_t i) const { return stack_[i].toTensorVector(); }
  // The tensors of a list of optional tensors; absent ones are undefined.
  std::vector<at::Tensor> OptionalTensors(size_t i) const;
  bool IsReal(size_t i) const { return stack_[i].isDouble(); }
  double Real(size_t i) const { return stack_[i].toDouble(); }
  int64_t Int(size_t i) const { return stack_[i].toInt(); }
  bool Bool(size_t i) const { return stack_[i].toBool(); }
  at::Scalar Number(size_t i) const { return stack_[i].toScalar(); }
  std::vector<int64_t> Ints(size_t i) const { return stack_[i].toIntVector(); }
  std::string Text(size_t i) const { return stack_[i].toStringRef(); }

  // A list of integers, or an integer tensor on the CPU, as its elements.
  std::vector<int64_t> Numbers(size_t i) const;
  // Dim d of tensor i, which may count from the end.
  int64_t Size(size_t i, int64_t d) const;

  // Throws RuntimeError, as ATen's own checks do: "aten::x: <text>".
  template <typename... Text>
  void Require(bool holds, const Text&... text) const {
    if (C10_UNLIKELY(!holds)) Fail(c10::str(text...));
  }
  // Requires sizes of a tensor, and that the argument is given.
  void RequireSizes(size_t i, const char* what, at::IntArrayRef sizes) const;
  void RequireRank(size_t i, const char* what, int64_t at_least, int64_t at_most) const;
  // Requires that neighbours along the last dim do not decrease.
  void RequireOrdered(const at::Tensor& t, const char* what) const;
  void RequireSameDtype(std::initializer_list<size_t> operands) const;
  // Requires low <= each element < high. A dtype other than int32 and int64 is an error. On CUDA the bounds are reduced
  // on the device, and the call waits for them. `ignored`, if it is not null, is an element that is never out of range.
  void RequireRange(const at::Tensor& t, const char* what, int64_t low, int64_t high,
                    const int64_t* ignored = nullptr) const;

 private:
  [[noreturn]] void Fail(const std::string& text) const;

  const std::string& name_;
  const torch::jit::Stack& stack_;
};

// Checks of one operator, in the files Guard*.cpp.
using GuardCheck = void (*)(const Operands&);

void CheckAdaptiveAvgPool2dBackward(const Operands& o);
void CheckAdaptiveAvgPool3dBackward(const Operands& o);
void CheckAdaptivePool(const Operands& o);
void CheckAttentionBackward(const Operands& o);
void CheckBatchNorm(const Operands& o);
void CheckBatchNormBackward(const Operands& o);
void CheckBinomial(const Operands& o);
void CheckBufferOfCholeskySolve(const Operands& o);
void CheckCooToCsr(const Operands& o);
void CheckCsrToCoo(const Operands& o);
void CheckCtcLoss(const Operands& o);
void CheckCtcLossBackward(const Operands& o);
void CheckCumulation(const Operands& o);
void CheckDeformConv(const Operands& o);
void CheckDeformConvBackward(const Operands& o);
void CheckDistanceBackward(const Operands& o);
void CheckEigenvalues(const Operands& o);
void CheckEmbeddingBackward(const Operands& o);
void CheckEmbeddingBag(const Operands& o);
void CheckEmbeddingBagBackward(const Operands& o);
void CheckFft(const Operands& o);
void CheckFftToReal(const Operands& o);
void CheckForeachCopy(const Operands& o);
void CheckFractionalPool2dBackward(const Operands& o);
void CheckFractionalPool3dBackward(const Operands& o);
void CheckFusedOptimizer(const Operands& o);
void CheckGridSampler(const Operands& o);
void CheckGroupNorm(const Operands& o);
void CheckIndexList(const Operands& o);
void CheckLogCumSum(const Operands& o);
void CheckMaxPool2dBackward(const Operands& o);
void CheckMaxPool3dBackward(const Operands& o);
void CheckMovingAverageObserver(const Operands& o);
void CheckMultilabelMargin(const Operands& o);
void CheckPadding(const Operands& o);
void CheckPairDistanceBackward(const Operands& o);
void CheckPoles(const Operands& o);
void CheckPolynomial(const Operands& o);
void CheckProbabilities(const Operands& o);
void CheckPsRoiAlign(const Operands& o);
void CheckPsRoiAlignBackward(const Operands& o);
void CheckPsRoiPool(const Operands& o);
void CheckPsRoiPoolBackward(const Operands& o);
void CheckRandomFrom(const Operands& o);
void CheckRange(const Operands& o);
void CheckReflectionPad1dBackward(const Operands& o);
void CheckReflectionPad2dBackward(const Operands& o);
void CheckReflectionPad3dBackward(const Operands& o);
void CheckRoiAlign(const Operands& o);
void CheckRoiAlignBackward(const Operands& o);
void CheckRoiPool(const Operands& o);
void CheckRoiPoolBackward(const Operands& o);
void CheckRreluNoise(const Operands& o);
void CheckScales(const Operands& o);
void CheckSegmentReduce(const Operands& o);
void CheckSegmentReduceBackward(const Operands& o);
void CheckSlowConvBackward(const Operands& o);
void CheckSmoothL1Backward(const Operands& o);
void CheckSoftmaxBackward(const Operands& o);
void CheckTransformBiasRescaleQkv(const Operands& o);
void CheckUnfoldBackward(const Operands& o);
void CheckUnpool(const Operands& o);
void CheckWeightNorm(const Operands& o);
void CheckWeightNormBackward(const Operands& o);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_GUARDS_GUARDOPERANDS_H_
