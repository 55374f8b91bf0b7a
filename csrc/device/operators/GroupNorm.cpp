// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Group normalisation on CUDA.
#include <ATen/ops/contiguous.h>

#include "device/client/Client.h"
#include "device/record/Record.h"
#include "device/record/Special.h"
#include "device/rules/Rules.h"

namespace mycelya {

// PyTorch passes channels-last operands to devices other than CUDA. Before 2.15, CUDA's kernels only work with
// contiguous ones, and the backward does not check that. args: input weight …, or grad input …
void RecordGroupNorm(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const size_t n = handle.schema().arguments().size();
  for (size_t i = 0; i < 2; ++i) {
    c10::IValue& arg = torch::jit::peek(*stack, i, n);
    if (!arg.isTensor() || !arg.toTensor().defined() || arg.toTensor().is_contiguous()) continue;
    const at::Tensor t = arg.toTensor();
    if (!kGroupNormKeepsFormat && WorkerOf(t.device().index()) == Worker::kCuda) arg = t.contiguous();
  }
  Record(handle, stack);
}

}  // namespace mycelya
