// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The table of guards, and the checks of index values.
#include "exec/guards/Guards.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "exec/guards/GuardOperands.h"

namespace mycelya::exec {

// One operand whose elements are indices.
struct IndexRule {
  // What the indices count: the size of a dim, all elements, the size of a dim that an argument names, or an argument.
  enum class Of : uint8_t { kNone, kDim, kElements, kDimArgument, kArgument };
  uint8_t index = 0;        // the argument with the indices
  Of of = Of::kNone;        //
  uint8_t counted = 0;      // the tensor whose size bounds them; kArgument: the size
  int8_t dim = 0;           // kDim: the dim, from the end if negative; kDimArgument: the argument that names it
  bool negative = false;    // indices may count from the end
  int8_t ignored = -1;      // an argument with an index that is not used
  bool everywhere = false;  // ATen's kernels for CPUs do not check them either
};

struct Guard {
  std::string_view op;  // without namespace, overload and the _ of in-place forms
  GuardCheck check = nullptr;
  IndexRule rule;
  bool unneeded_on_cpu = false;  // ATen's kernels for CPUs do what `check` does
};

namespace {

using Of = IndexRule::Of;

// In order. Operators of which only `rule` is set, and not everywhere, check indices themselves on a CPU.
constexpr Guard kGuards[] = {
    {"_adaptive_avg_pool2d", &CheckAdaptivePool, {}},
    {"_adaptive_avg_pool2d_backward", &CheckAdaptiveAvgPool2dBackward, {}},
    {"_adaptive_avg_pool3d", &CheckAdaptivePool, {}},
    {"_adaptive_avg_pool3d_backward", &CheckAdaptiveAvgPool3dBackward, {}},
    {"_batch_norm_with_update", &CheckBatchNorm, {}},
    {"_cdist_backward", &CheckDistanceBackward, {}},
    {"_cholesky_solve_helper", &CheckBufferOfCholeskySolve, {}},
    {"_convert_indices_from_coo_to_csr", &CheckCooToCsr, {}},
    {"_convert_indices_from_csr_to_coo", &CheckCsrToCoo, {}},
    {"_ctc_loss", &CheckCtcLoss, {}},
    {"_ctc_loss_backward", &CheckCtcLossBackward, {}},
    {"_cummax_helper", &CheckCumulation, {}},
    {"_cummin_helper", &CheckCumulation, {}},
    {"_deform_conv2d_backward", &CheckDeformConvBackward, {}},
    {"_embedding_bag", &CheckEmbeddingBag, {1, Of::kDim, 0, 0}},
    {"_embedding_bag_dense_backward", &CheckEmbeddingBagBackward, {}},
    {"_embedding_bag_forward_only", &CheckEmbeddingBag, {1, Of::kDim, 0, 0}},
    {"_embedding_bag_per_sample_weights_backward", nullptr, {2, Of::kDim, 1, 0}},
    {"_fft_c2c", &CheckFft, {}},
    {"_fft_c2r", &CheckFftToReal, {}},
    {"_fft_r2c", &CheckFft, {}},
    {"_foreach_copy", &CheckForeachCopy, {}},
    {"_fused_adagrad", &CheckFusedOptimizer, {}},
    {"_fused_adam", &CheckFusedOptimizer, {}},
    {"_fused_adamw", &CheckFusedOptimizer, {}},
    {"_fused_moving_avg_obs_fq_helper", &CheckMovingAverageObserver, {}},
    {"_fused_sgd", &CheckFusedOptimizer, {}},
    {"_index_put_impl", &CheckIndexList, {}, true},
    {"_linalg_eigvals", &CheckEigenvalues, {}},
    {"_log_softmax_backward_data", &CheckSoftmaxBackward, {}},
    {"_logcumsumexp", &CheckLogCumSum, {}},
    {"_masked_softmax_backward", &CheckSoftmaxBackward, {}},
    {"_native_batch_norm_legit", &CheckBatchNorm, {}},
    {"_pdist_backward", &CheckPairDistanceBackward, {}},
    {"_ps_roi_align_backward", &CheckPsRoiAlignBackward, {}},
    {"_ps_roi_pool_backward", &CheckPsRoiPoolBackward, {}},
    {"_roi_align_backward", &CheckRoiAlignBackward, {}},
    {"_roi_pool_backward", &CheckRoiPoolBackward, {}},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", &CheckAttentionBackward, {}},
    {"_segment_reduce_backward", &CheckSegmentReduceBackward, {}},
    {"_slow_conv2d_backward", &CheckSlowConvBackward, {}},
    {"_softmax_backward_data", &CheckSoftmaxBackward, {}},
    {"_transform_bias_rescale_qkv", &CheckTransformBiasRescaleQkv, {}},
    {"_weight_norm_interface", &CheckWeightNorm, {}},
    {"_weight_norm_interface_backward", &CheckWeightNormBackward, {}},
    {"adaptive_avg_pool2d", &CheckAdaptivePool, {}},
    {"adaptive_avg_pool3d", &CheckAdaptivePool, {}},
    {"adaptive_avg_pool3d_backward", &CheckAdaptiveAvgPool3dBackward, {}},
    {"adaptive_max_pool2d", &CheckAdaptivePool, {}},
    {"adaptive_max_pool2d_backward", &CheckMaxPool2dBackward, {}},
    {"adaptive_max_pool3d", &CheckAdaptivePool, {}},
    {"adaptive_max_pool3d_backward", &CheckMaxPool3dBackward, {}},
    {"batch_norm_backward", &CheckBatchNormBackward, {}},
    {"binomial", &CheckBinomial, {}},
    {"deform_conv2d", &CheckDeformConv, {}},
    {"embedding", nullptr, {1, Of::kDim, 0, 0}},
    {"embedding_dense_backward", &CheckEmbeddingBackward, {}},
    {"embedding_renorm", nullptr, {1, Of::kDim, 0, 0}},
    {"expect_within", nullptr, {0, Of::kArgument, 1, 0, false, 2, true}},
    {"fractional_max_pool2d_backward", &CheckFractionalPool2dBackward, {}},
    {"fractional_max_pool3d_backward", &CheckFractionalPool3dBackward, {}},
    {"gather", nullptr, {2, Of::kDimArgument, 0, 1}},
    {"grid_sampler_2d", &CheckGridSampler, {}},
    {"grid_sampler_2d_backward", &CheckGridSampler, {}},
    {"grid_sampler_3d", &CheckGridSampler, {}},
    {"grid_sampler_3d_backward", &CheckGridSampler, {}},
    {"index", &CheckIndexList, {}, true},
    {"index_add", nullptr, {2, Of::kDimArgument, 0, 1}},
    {"index_copy", nullptr, {2, Of::kDimArgument, 0, 1}},
    {"index_fill", nullptr, {2, Of::kDimArgument, 0, 1, true}},
    {"index_put", &CheckIndexList, {}, true},
    {"index_reduce", nullptr, {2, Of::kDimArgument, 0, 1}},
    {"index_select", nullptr, {2, Of::kDimArgument, 0, 1}},
    {"linalg_eigvals", &CheckEigenvalues, {}},
    {"max_pool2d_with_indices_backward", &CheckMaxPool2dBackward, {}},
    {"max_pool3d_with_indices_backward", &CheckMaxPool3dBackward, {}},
    {"max_unpool2d", &CheckUnpool, {}, true},
    {"max_unpool3d", &CheckUnpool, {}, true},
    {"multi_margin_loss", nullptr, {1, Of::kDim, 0, -1}},
    {"multi_margin_loss_backward", nullptr, {2, Of::kDim, 1, -1}},
    {"multilabel_margin_loss_backward", &CheckMultilabelMargin, {}, true},
    {"multilabel_margin_loss_forward", &CheckMultilabelMargin, {}, true},
    {"multinomial", &CheckProbabilities, {}, true},
    {"native_batch_norm", &CheckBatchNorm, {}},
    {"native_batch_norm_backward", &CheckBatchNormBackward, {}},
    {"native_group_norm", &CheckGroupNorm, {}},
    {"nll_loss2d_backward", nullptr, {2, Of::kDim, 1, 1, false, 5}},
    {"nll_loss2d_forward", nullptr, {1, Of::kDim, 0, 1, false, 4}},
    {"nll_loss_backward", nullptr, {2, Of::kDim, 1, -1, false, 5}},
    {"nll_loss_forward", nullptr, {1, Of::kDim, 0, -1, false, 4}},
    {"polygamma", &CheckPoles, {}},
    {"ps_roi_align", &CheckPsRoiAlign, {}},
    {"ps_roi_pool", &CheckPsRoiPool, {}},
    {"put", nullptr, {1, Of::kElements, 0, 0, true}},
    {"random", &CheckRandomFrom, {}},
    {"range", &CheckRange, {}},
    {"reflection_pad1d", &CheckPadding, {}},
    {"reflection_pad1d_backward", &CheckReflectionPad1dBackward, {}},
    {"reflection_pad2d", &CheckPadding, {}},
    {"reflection_pad2d_backward", &CheckReflectionPad2dBackward, {}},
    {"reflection_pad3d", &CheckPadding, {}},
    {"reflection_pad3d_backward", &CheckReflectionPad3dBackward, {}},
    {"replication_pad1d", &CheckPadding, {}},
    {"replication_pad1d_backward", &CheckPadding, {}},
    {"replication_pad2d", &CheckPadding, {}},
    {"replication_pad2d_backward", &CheckPadding, {}},
    {"replication_pad3d", &CheckPadding, {}},
    {"replication_pad3d_backward", &CheckPadding, {}},
    {"roi_align", &CheckRoiAlign, {}},
    {"roi_pool", &CheckRoiPool, {}},
    {"rrelu_with_noise", &CheckRreluNoise, {}},
    {"scatter", nullptr, {2, Of::kDimArgument, 0, 1}},
    {"scatter_add", nullptr, {2, Of::kDimArgument, 0, 1}},
    {"scatter_reduce", nullptr, {2, Of::kDimArgument, 0, 1}},
    {"segment_reduce", &CheckSegmentReduce, {}},
    {"smooth_l1_loss_backward", &CheckSmoothL1Backward, {}},
    {"special_chebyshev_polynomial_t", &CheckPolynomial, {}},
    {"special_chebyshev_polynomial_u", &CheckPolynomial, {}},
    {"special_chebyshev_polynomial_v", &CheckPolynomial, {}},
    {"special_chebyshev_polynomial_w", &CheckPolynomial, {}},
    {"special_hermite_polynomial_h", &CheckPolynomial, {}},
    {"special_hermite_polynomial_he", &CheckPolynomial, {}},
    {"special_laguerre_polynomial_l", &CheckPolynomial, {}},
    {"special_legendre_polynomial_p", &CheckPolynomial, {}},
    {"special_shifted_chebyshev_polynomial_t", &CheckPolynomial, {}},
    {"special_shifted_chebyshev_polynomial_u", &CheckPolynomial, {}},
    {"special_shifted_chebyshev_polynomial_v", &CheckPolynomial, {}},
    {"special_shifted_chebyshev_polynomial_w", &CheckPolynomial, {}},
    {"special_zeta", &CheckPoles, {}},
    {"take", nullptr, {1, Of::kElements, 0, 0, true}},
    {"unfold_backward", &CheckUnfoldBackward, {}},
};

constexpr bool Ordered() {
  for (size_t i = 1; i < std::size(kGuards); ++i) {
    if (kGuards[i - 1].op >= kGuards[i].op) return false;
  }
  return true;
}
static_assert(Ordered(), "GuardOf searches in order");

// The name without namespace, overload and the _ of in-place forms.
std::string_view Base(std::string_view name) {
  const size_t colons = name.find("::");
  if (colons != std::string_view::npos) name.remove_prefix(colons + 2);
  name = name.substr(0, name.find('.'));
  if (name.size() > 1 && name.back() == '_') name.remove_suffix(1);
  return name;
}

void CheckIndices(const Operands& o, const IndexRule& rule) {
  if (!o.Given(rule.index) || !o.Given(rule.counted)) return;
  const at::Tensor counted = rule.of == Of::kArgument ? at::Tensor() : o.Tensor(rule.counted);
  int64_t size = rule.of == Of::kArgument ? o.Int(rule.counted) : counted.numel();
  if (rule.of == Of::kDim || rule.of == Of::kDimArgument) {
    int64_t dim = rule.of == Of::kDim ? rule.dim : o.Int(rule.dim);
    if (counted.dim() == 0) {
      size = 1;
    } else {
      if (dim < 0) dim += counted.dim();
      if (dim < 0 || dim >= counted.dim()) return;  // ATen says so
      size = counted.size(dim);
    }
  }
  const bool ignores = rule.ignored >= 0 && o.Given(rule.ignored);
  const int64_t ignored = ignores ? o.Int(rule.ignored) : 0;
  o.RequireRange(o.Tensor(rule.index), "index", rule.negative ? -size : 0, size, ignores ? &ignored : nullptr);
}

}  // namespace

const Guard* GuardOf(const std::string& name, bool apart) {
  // Operators of other libraries may have names of PyTorch's behind their namespace.
  constexpr std::string_view kGuarded[] = {"aten::", "mycelya::", "torchvision::"};
  if (std::none_of(std::begin(kGuarded), std::end(kGuarded), [&](auto of) { return name.starts_with(of); })) {
    return nullptr;
  }
  static constexpr Guard kUpsample{"", &CheckScales, {}};
  const std::string_view base = Base(name);
  if (base.starts_with("upsample_") || base.starts_with("_upsample_")) return &kUpsample;
  const Guard* const end = std::end(kGuards);
  const Guard* g =
      std::lower_bound(std::begin(kGuards), end, base, [](const Guard& a, std::string_view b) { return a.op < b; });
  if (g == end || g->op != base) return nullptr;
  const bool on_cpu = (g->check != nullptr && !g->unneeded_on_cpu) || g->rule.everywhere;
  return on_cpu || apart ? g : nullptr;
}

bool ReadsIndices(const Guard& guard) { return guard.rule.of != Of::kNone || guard.check == &CheckIndexList; }

void CheckOperands(const Guard& guard, const std::string& name, const torch::jit::Stack& arguments) {
  const Operands o(name, arguments);
  if (guard.check != nullptr) guard.check(o);
  if (guard.rule.of != Of::kNone) CheckIndices(o, guard.rule);
}

void CheckOut(const std::string& name, const at::Tensor& out) {
  if (C10_LIKELY(out.is_non_overlapping_and_dense())) return;
  int64_t places = out.numel() == 0 ? 0 : 1;
  for (int64_t d = 0; d < out.dim(); ++d) places += (out.size(d) - 1) * out.stride(d);
  TORCH_CHECK(out.numel() == 0 || out.numel() <= places, name, ": an out= tensor of sizes ", out.sizes(),
              " and strides ", out.strides(), " has several elements at one place.");
}

// ---- Operands ----

void Operands::Fail(const std::string& text) const { TORCH_CHECK(false, name_, ": ", text); }

std::vector<at::Tensor> Operands::OptionalTensors(size_t i) const {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& v : stack_[i].toListRef()) tensors.push_back(v.isNone() ? at::Tensor() : v.toTensor());
  return tensors;
}

std::vector<int64_t> Operands::Numbers(size_t i) const {
  if (!IsTensor(i)) return Ints(i);
  Require(Given(i) && c10::isIntegralType(Tensor(i).scalar_type(), /*includeBool=*/false), "lengths must be integers.");
  const at::Tensor t = Tensor(i).to(c10::Device(c10::DeviceType::CPU), c10::ScalarType::Long).contiguous();
  const auto* data = t.const_data_ptr<int64_t>();
  return {data, data + t.numel()};
}

int64_t Operands::Size(size_t i, int64_t d) const {
  const at::Tensor& t = Tensor(i);
  Require(d < t.dim() && d >= -t.dim(), "an operand of sizes ", t.sizes(), " has no dim ", d, ".");
  return t.size(d);
}

void Operands::RequireSizes(size_t i, const char* what, at::IntArrayRef sizes) const {
  Require(Given(i), what, " is missing.");
  Require(Tensor(i).sizes() == sizes, what, " has sizes ", Tensor(i).sizes(), ", not ", sizes, ".");
}

void Operands::RequireRank(size_t i, const char* what, int64_t at_least, int64_t at_most) const {
  Require(Given(i), what, " is missing.");
  const int64_t rank = Tensor(i).dim();
  Require(rank >= at_least && rank <= at_most, what, " has ", rank, " dims, not ", at_least,
          at_most == at_least ? "" : " or more", ".");
}

void Operands::RequireOrdered(const at::Tensor& t, const char* what) const {
  const int64_t n = t.size(-1);
  if (n < 2) return;
  Require(!t.narrow(-1, 1, n - 1).lt(t.narrow(-1, 0, n - 1)).any().item<bool>(), what, " must not decrease.");
}

void Operands::RequireSameDtype(std::initializer_list<size_t> operands) const {
  const at::Tensor* first = nullptr;
  for (const size_t i : operands) {
    if (!Given(i)) continue;
    const at::Tensor& t = Tensor(i);
    if (first == nullptr) first = &t;
    Require(t.scalar_type() == first->scalar_type(), "operands have dtypes ", first->scalar_type(), " and ",
            t.scalar_type(), "; they must be the same.");
  }
}

// In the words of the CPU's kernel. A NaN fails both comparisons.
void CheckProbabilities(const Operands& o) {
  const at::Tensor& t = o.Tensor(0);
  if (!t.is_floating_point() || t.numel() == 0) return;  // the operator says so
  const auto [least, greatest] = at::aminmax(t);
  const at::Tensor both = at::stack({least, greatest}).to(c10::Device(c10::DeviceType::CPU), c10::ScalarType::Double);
  const auto* bounds = both.const_data_ptr<double>();
  TORCH_CHECK(bounds[0] >= 0 && bounds[1] < std::numeric_limits<double>::infinity(),
              "probability tensor contains either `inf`, `nan` or element < 0");
}

void Operands::RequireRange(const at::Tensor& t, const char* what, int64_t low, int64_t high,
                            const int64_t* ignored) const {
  Require(t.scalar_type() == c10::ScalarType::Long || t.scalar_type() == c10::ScalarType::Int, what, " has dtype ",
          t.scalar_type(), "; it must be int32 or int64.");
  if (t.numel() == 0) return;
  at::Tensor used = t;
  // An ignored element counts as `low`, which is in range unless the range is empty.
  if (ignored != nullptr && (*ignored < low || *ignored >= high)) used = t.masked_fill(t == *ignored, low);
  const auto [least, greatest] = at::aminmax(used);
  // One transfer, so that CUDA waits once.
  const at::Tensor both = at::stack({least, greatest}).to(c10::Device(c10::DeviceType::CPU), c10::ScalarType::Long);
  const auto* bounds = both.const_data_ptr<int64_t>();
  if (high <= low && ignored != nullptr && bounds[0] == low && bounds[1] == low) return;  // all are ignored
  const int64_t wrong = bounds[0] < low ? bounds[0] : bounds[1];
  TORCH_CHECK_INDEX(bounds[0] >= low && bounds[1] < high, name_, ": ", what, " ", wrong,
                    " is out of range; the smallest allowed is ", low, " and the largest is ", high - 1, ".");
}

}  // namespace mycelya::exec
