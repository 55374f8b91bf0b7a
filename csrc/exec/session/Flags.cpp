// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "exec/session/Flags.h"

#include <ATen/Context.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace mycelya::exec {
namespace {

using Values = std::vector<std::string>;

int64_t Number(const std::string& s) {
  size_t end = 0;
  int64_t n = 0;
  try {
    n = std::stoll(s, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  TORCH_CHECK_VALUE(end == s.size() && !s.empty(), "BUG: ", s, " is not a number.");
  return n;
}

struct Setter {
  size_t values;
  std::function<void(const Values&)> set;
};

Setter Bool(void (at::Context::*set)(bool)) {
  return {1, [set](const Values& v) { (at::globalContext().*set)(Number(v[0]) != 0); }};
}

// The second value allows split-k; older versions of PyTorch do not have it.
Setter Reduction(void (at::Context::*set)(bool, bool)) {
  return {2, [set](const Values& v) { (at::globalContext().*set)(Number(v[0]) != 0, Number(v[1]) != 0); }};
}
[[maybe_unused]] Setter Reduction(void (at::Context::*set)(bool)) {
  return {2, [set](const Values& v) { (at::globalContext().*set)(Number(v[0]) != 0); }};
}

const std::unordered_map<std::string, Setter>& Setters() {
  using C = at::Context;
  static const auto& leaked = *new std::unordered_map<std::string, Setter>{
      {"deterministic_algorithms",
       {2,
        [](const Values& v) { at::globalContext().setDeterministicAlgorithms(Number(v[0]) != 0, Number(v[1]) != 0); }}},
      {"deterministic_fill_uninitialized_memory", Bool(&C::setDeterministicFillUninitializedMemory)},
      {"float32_matmul_precision", {1, [](const Values& v) { at::globalContext().setFloat32MatmulPrecision(v[0]); }}},
      {"fp32_precision_setter",
       {3,
        [](const Values& v) {
          at::globalContext().setFloat32Precision(at::str2backend(v[0]), at::str2op(v[1]), at::str2precision(v[2]));
        }}},
      {"cublas_allow_tf32", Bool(&C::setAllowTF32CuBLAS)},
      {"cublas_allow_fp16_reduced_precision_reduction", Reduction(&C::setAllowFP16ReductionCuBLAS)},
      {"cublas_allow_bf16_reduced_precision_reduction", Reduction(&C::setAllowBF16ReductionCuBLAS)},
      {"cublas_allow_fp16_accumulation", Bool(&C::setAllowFP16AccumulationCuBLAS)},
      {"cudnn_enabled", Bool(&C::setUserEnabledCuDNN)},
      {"cudnn_benchmark", Bool(&C::setBenchmarkCuDNN)},
      {"cudnn_deterministic", Bool(&C::setDeterministicCuDNN)},
      {"cudnn_allow_tf32", Bool(&C::setAllowTF32CuDNN)},
      {"mkldnn_enabled", Bool(&C::setUserEnabledMkldnn)},
      {"mkldnn_deterministic", Bool(&C::setDeterministicMkldnn)},
      {"onednn_allow_tf32", Bool(&C::setAllowTF32OneDNN)},
      {"nnpack_enabled", Bool(&C::setUserEnabledNNPACK)},
      {"cpu_allow_fp16_reduced_precision_reduction", Bool(&C::setAllowFP16ReductionCPU)},
      {"math_sdp_allow_fp16_bf16_reduction", Bool(&C::setAllowFP16BF16ReductionMathSDP)},
  };
  return leaked;
}

std::vector<std::string>& Set() {
  static auto& leaked = *new std::vector<std::string>();
  return leaked;
}

}  // namespace

void SetFlag(std::string_view flag) {
  const size_t equals = std::min(flag.find('='), flag.size());
  const std::string name(flag.substr(0, equals));
  std::istringstream text{std::string(flag.substr(std::min(equals + 1, flag.size())))};
  const Values values{std::istream_iterator<std::string>(text), std::istream_iterator<std::string>()};
  const auto found = Setters().find(name);
  TORCH_CHECK_NOT_IMPLEMENTED(found != Setters().end(), "The worker's PyTorch has no flag ", name, ".");
  TORCH_CHECK_VALUE(values.size() == found->second.values, "BUG: ", name, " takes ", found->second.values,
                    " values, not ", values.size(), ".");
  found->second.set(values);
  std::vector<std::string>& set = Set();
  std::erase_if(set, [&](const std::string& other) { return other.starts_with(name + '='); });
  set.emplace_back(flag);
}

const std::vector<std::string>& FlagsThatWereSet() { return Set(); }

}  // namespace mycelya::exec
