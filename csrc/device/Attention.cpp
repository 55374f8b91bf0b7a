// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// scaled_dot_product_attention asks here which kernel computes it.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include "Client.h"
#include "Rules.h"

namespace mycelya {
namespace {

// A worker on the CPU has the CPU's, and its choice looks only at shapes, dtypes and
// PyTorch's switches. On CUDA attention runs as the matrix products and softmax that it is made of.
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool gqa) {
  decide_worker();
  if (worker() == Worker::kCuda) return static_cast<int64_t>(sdp::SDPBackend::math);
  static const auto choice =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", "").typed<decltype(fused_sdp_choice)>();
  return choice.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query, key, value, mask, dropout, causal, scale,
                           gqa);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", &fused_sdp_choice); }

}  // namespace
}  // namespace mycelya

// PyTorch asks by this table, which is in its own namespace.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &mycelya::fused_sdp_choice)
}  // namespace at::native
