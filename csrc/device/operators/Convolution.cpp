// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include "device/record/Special.h"

namespace mycelya {

void ConvolutionBackwardArgs(std::vector<c10::IValue>& args) {
  // grad_output input weight | stride padding dilation transposed output_padding groups output_mask
  const auto mask = args.back().toBoolList();
  c10::IValue bias_sizes;
  if (mask.get(2)) bias_sizes = std::vector<int64_t>{args[0].toTensor().size(1)};
  args.insert(args.begin() + 3, std::move(bias_sizes));
}

}  // namespace mycelya
