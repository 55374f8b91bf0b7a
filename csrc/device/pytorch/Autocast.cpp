// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Automatic mixed precision: the op lists of CUDA, which are PyTorch's own, and what libraries do on CUDA, under the
// key of this device.

#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "device/record/Op.h"

namespace at::autocast {
namespace {

// Autocast may have made its input f16 or bf16; the fused form with logits is safe.
Tensor RefuseBinaryCrossEntropy(const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: their gradient "
              "overflows in half precision. Use binary_cross_entropy_with_logits or BCEWithLogitsLoss, which take "
              "what comes before the sigmoid, or turn autocast off around them.");
}

// Casts operands to float32, and the results back to the dtype of the first operand. The indices of roi_pool and others
// are cast as well, as torchvision does; those of nms, which returns nothing else, are not.
void InFloat32(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const size_t first = stack->size() - op.schema().arguments().size();
  const ScalarType dtype = (*stack)[first].toTensor().scalar_type();
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) value = cached_cast(kFloat, value.toTensor(), c10::DeviceType::PrivateUse1);
  }
  op.callBoxed(stack);
  if (op.schema().name() == "torchvision::nms") return;
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = (*stack)[i].toTensor().to(dtype);
}

}  // namespace

// The library need not be loaded yet.
TORCH_LIBRARY_IMPL(torchvision, AutocastPrivateUse1, m) {
  for (const mycelya::LibraryOp& op : mycelya::kLibraryOps) {
    if (op.casts) m.impl(op.name, torch::CppFunction::makeFromBoxedFunction<&InFloat32>());
  }
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define MYC_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define MYC_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define MYC_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define MYC_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(MYC_LOWER)
  AT_FORALL_FP32(MYC_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(MYC_FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(MYC_PROMOTE)
  m.impl("binary_cross_entropy", &RefuseBinaryCrossEntropy);
}

}  // namespace at::autocast
