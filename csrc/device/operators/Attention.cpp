// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The choice of kernel of scaled_dot_product_attention, and the operator that leaves the choice to the worker.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/GradMode.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include "device/client/Client.h"
#include "device/client/Lives.h"
#include "device/record/Record.h"
#include "device/rules/Rules.h"

namespace mycelya {
namespace {

// The kernels that PyTorch may choose from, as bits of the worker's operator.
constexpr int64_t kFlash = 1, kEfficient = 2, kMath = 4, kCudnn = 8, kAll = 15;

int64_t Enabled() {
  const auto& c = at::globalContext();
  return (c.userEnabledFlashSDP() ? kFlash : 0) | (c.userEnabledMemEfficientSDP() ? kEfficient : 0) |
         (c.userEnabledMathSDP() ? kMath : 0) | (c.userEnabledCuDNNSDP() ? kCudnn : 0);
}

// Whether fused kernels accept such keys or values.
bool Fits(const at::Tensor& query, const at::Tensor& t) {
  return query.dim() == 4 && t.dim() == 4 && t.device() == query.device() && t.scalar_type() == query.scalar_type() &&
         t.size(0) == query.size(0) && t.size(1) > 0 && query.size(1) % t.size(1) == 0;
}

// For a CPU worker, PyTorch's CPU choice is used here: it depends only on shapes, dtypes and PyTorch's switches. A CUDA
// worker chooses by itself in mycelya::attention. So does a CPU worker if the program enables only OVERRIDEABLE.
int64_t FusedSdpChoice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                       bool gqa) {
  const bool own = Enabled() == 0 && at::globalContext().userEnabledOverrideableSDP();
  if (own || WorkerOf(query.device().index()) == Worker::kCuda) {
    // The math kernel handles sizes that broadcast.
    const bool fused = own || ((Enabled() & ~kMath) != 0 && Fits(query, key) && Fits(query, value));
    return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
  }
  static const auto choice =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", "").typed<decltype(FusedSdpChoice)>();
  return choice.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query, key, value, mask, dropout, causal, scale,
                           gqa);
}

// A fresh tensor [b, h, l, e] with memory layout [b, l, h, e], as CUDA's kernels return it.
at::Tensor HeadsInside(at::IntArrayRef sizes, at::ScalarType dtype, c10::DeviceIndex device) {
  OutMeta m;
  m.defined = true;
  m.dtype = dtype;
  m.sizes.assign(sizes.begin(), sizes.end());
  const int64_t h = sizes[1], l = sizes[2], e = sizes[3];
  const std::initializer_list<int64_t> strides = {l * h * e, e, h * e, 1};
  m.strides.assign(strides.begin(), strides.end());
  return MakeTensor(m, device);
}

OwnArgument Given(const std::optional<at::Tensor>& t) {
  if (!t || !t->defined()) return std::monostate();
  return Resolve(*t);
}

// Returns the result, and as "philox_seed" the token that keeps the worker's autograd graph alive.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
          const std::optional<at::Tensor>& bias, double dropout, bool causal, bool /*debug*/,
          std::optional<double> scale) {
  TORCH_CHECK(Fits(query, key) && Fits(query, value) && key.size(1) == value.size(1) && key.size(2) == value.size(2) &&
                  key.size(3) == query.size(3),
              "scaled_dot_product_attention on mycelya: expected query [batch, heads, length, features], key [batch, "
              "groups, keys, features] and value [batch, groups, keys, values] of one dtype on one device, got ",
              query.sizes(), " ", query.scalar_type(), " ", query.device(), ", ", key.sizes(), " ", key.scalar_type(),
              " ", key.device(), " and ", value.sizes(), " ", value.scalar_type(), " ", value.device());
  TORCH_CHECK(!bias || !bias->defined() || bias->device() == query.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", query.device(),
              " and ", bias->device(), "! (when checking argument attn_mask of scaled_dot_product_attention). ",
              DevicesText(query.device(), bias->device()));
  const bool learning = at::GradMode::is_enabled();
  int64_t grads = 0, bit = 1;
  for (const at::Tensor& t : {query, key, value, bias.value_or(at::Tensor())}) {
    if (learning && t.defined() && t.requires_grad()) grads |= bit;
    bit <<= 1;
  }
  const auto device = query.device().index();
  const at::Tensor result =
      HeadsInside({query.size(0), query.size(1), query.size(2), value.size(3)}, query.scalar_type(), device);
  const at::Tensor token = MakeVector(at::kLong, 1, device);
  const int64_t backends = Enabled() == 0 ? kAll : Enabled();
  RecordOwn(device, "mycelya::attention",
            {Resolve(query), Resolve(key), Resolve(value), Given(bias), dropout, static_cast<int64_t>(causal),
             scale ? OwnArgument(*scale) : OwnArgument(), grads, backends},
            {result, token}, dropout > 0 ? MYC_R_RNG : 0);
  return {result, {}, {}, {}, query.size(2), key.size(2), token, {}, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> AttentionBackward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> wanted, const at::Tensor&, const at::Tensor&, const at::Tensor&,
    const at::Tensor&, c10::SymInt, c10::SymInt, double, bool, const at::Tensor& token, const at::Tensor&,
    std::optional<double>) {
  const auto device = query.device().index();
  at::Tensor results[4];
  const at::Tensor* operands[] = {&query, &key, &value, &bias};
  int64_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    if (!wanted[i] || !operands[i]->defined()) continue;
    bits |= int64_t{1} << i;
    const at::Tensor& t = *operands[i];
    if (i < 3) {
      results[i] = HeadsInside(t.sizes(), t.scalar_type(), device);
    } else {
      OutMeta m;
      m.defined = true;
      m.dtype = t.scalar_type();
      m.sizes.assign(t.sizes().begin(), t.sizes().end());
      const auto strides = c10::contiguous_strides(t.sizes());
      m.strides.assign(strides.begin(), strides.end());
      results[i] = MakeTensor(m, device);
    }
  }
  // The worker's graph uses the operands' memory, so the call names them: they must not change before it.
  RecordOwn(device, "mycelya::attention_backward",
            {Resolve(grad), token, Resolve(query), Resolve(key), Resolve(value), Given(bias), bits}, results, 0);
  return {results[0], results[1], results[2], results[3]};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &FusedSdpChoice);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &Attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &AttentionBackward);
}

}  // namespace
}  // namespace mycelya

// PyTorch's dispatch table for the choice is in its own namespace.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &mycelya::FusedSdpChoice)
}  // namespace at::native
