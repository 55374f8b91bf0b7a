// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Convolutions as they reach a device: the shapes are checked, and one-dimensional operands are two-dimensional now.

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

// Whether a transposed convolution pads its result by a stride or more. Neither oneDNN nor cuDNN supports that, and
// PyTorch's own loops give contiguous results.
bool PadsByStrides(Args args, size_t first) {
  const auto stride = IntsAt(args, first), output_padding = IntsAt(args, first + 4);
  const bool transposed = args[first + 3].toBool();
  for (size_t i = 0; transposed && i < output_padding.size(); ++i) {
    if (output_padding[i] >= stride[stride.size() == 1 ? 0 : i]) return true;
  }
  return false;
}

// Whether the CPU convolves volumes with oneDNN, which supports channels-last, or with its own loops, which do not. For
// small float32 volumes it chooses by size.
bool VolumeInOneDnn(Args args, const Tensor& input, const Tensor& weight, size_t first) {
  if (PadsByStrides(args, first)) return false;
  const ScalarType dtype = input.scalar_type();
  if (dtype != ScalarType::Float) return dtype == ScalarType::BFloat16 || dtype == ScalarType::Half;
  constexpr int64_t kSmall = 20480;  // elements of a batch of [c, d, h]; at::native's threshold
  return args[first + 5].toInt() > 1 || (weight.size(-1) > 3 && weight.size(-2) > 3) || input.size(0) > 1 ||
         input.size(0) * input.size(1) * input.size(2) * input.size(3) > kSmall;
}

// Channels-last if an operand asks for it. `first`: index of the stride argument.
MemoryFormat ConvolutionFormat(Args args, const Tensor& input, const Tensor& weight, size_t first) {
  const bool volume = input.dim() == 5;
  const auto wanted = volume ? MemoryFormat::ChannelsLast3d : MemoryFormat::ChannelsLast;
  const bool asked = input.suggest_memory_format() == wanted || weight.suggest_memory_format() == wanted;
  if (!asked) return MemoryFormat::Contiguous;
  const bool available = OnCuda() ? input.scalar_type() != ScalarType::Double && !PadsByStrides(args, first)
                                  : !volume || VolumeInOneDnn(args, input, weight, first);
  return available ? wanted : MemoryFormat::Contiguous;
}

// input [n, c, *] weight bias? stride padding dilation transposed output_padding groups
void Convolution(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), weight = TensorAt(args, 1);
  const auto stride = IntsAt(args, 3), padding = IntsAt(args, 4), dilation = IntsAt(args, 5),
             output_padding = IntsAt(args, 7);
  const bool transposed = args[6].toBool();
  const auto at = [](const DimVector& v, size_t i) { return v.size() == 1 ? v[0] : v[i]; };
  DimVector sizes{input.size(0), transposed ? weight.size(1) * args[8].toInt() : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const size_t i = d - 2;
    const int64_t reach = at(dilation, i) * (weight.size(d) - 1);
    if (transposed) {
      sizes.push_back((input.size(d) - 1) * at(stride, i) - 2 * at(padding, i) + reach + at(output_padding, i) + 1);
    } else {
      sizes.push_back((input.size(d) + 2 * at(padding, i) - reach - 1) / at(stride, i) + 1);
    }
  }
  AddFormat(out, sizes, input.scalar_type(), ConvolutionFormat(args, input, weight, 3));
}

// grad input weight stride padding dilation transposed output_padding groups mask
void ConvolutionBackward(Args args, OutMetas& out) {
  const Tensor grad = TensorAt(args, 0), input = TensorAt(args, 1), weight = TensorAt(args, 2);
  const auto format = ConvolutionFormat(args, input, weight, 3);
  MaskAt(args, 9, 0) ? AddFormat(out, input.sizes(), input.scalar_type(), format) : AddUndefined(out);
  MaskAt(args, 9, 1) ? AddFormat(out, weight.sizes(), weight.scalar_type(), format) : AddUndefined(out);
  MaskAt(args, 9, 2) ? AddContiguous(out, {grad.size(1)}, weight.scalar_type()) : AddUndefined(out);
}

constexpr RuleRow kConvolutionRows[] = {
    {"convolution_backward_overrideable", ConvolutionBackward},
    {"convolution_overrideable", Convolution},
};

}  // namespace

RuleRows ConvolutionRules() { return kConvolutionRows; }

}  // namespace mycelya::rules
