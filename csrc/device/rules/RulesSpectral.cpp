// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Fourier transforms.

#include <algorithm>
#include <numeric>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

// Results of MKL and cuFFT have the batch dims outside, in the order of the input's strides, and the transformed dims
// inside, in the order of the transforms.
void AddTransformed(OutMetas& out, IntArrayRef sizes, IntArrayRef strides, IntArrayRef dims, ScalarType dtype) {
  const auto rank = static_cast<int64_t>(sizes.size());
  DimVector order(rank);
  std::iota(order.begin(), order.end(), 0);
  const auto batch_end = std::partition(
      order.begin(), order.end(), [&](int64_t d) { return std::find(dims.begin(), dims.end(), d) == dims.end(); });
  std::sort(order.begin(), batch_end, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::copy(dims.begin(), dims.end(), batch_end);
  DimVector result(rank);
  int64_t step = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    result[*d] = step;
    step *= sizes[*d];
  }
  Add(out, sizes, result, dtype);
}

// The dims to transform: by falling stride, except for the last `kept` ones.
DimVector TransformOrder(const Tensor& self, const DimVector& dims, int kept) {
  DimVector order;
  for (const int64_t d : dims) order.push_back(Wrap(d, self.dim()));
  std::sort(order.begin(), order.end() - kept, [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  return order;
}

DimVector SizesOf(const Tensor& t) { return DimVector(t.sizes().begin(), t.sizes().end()); }

// self dim normalization forward
void ComplexToComplex(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(self.is_complex(), "Expected a complex tensor");
  const auto dims = IntsAt(args, 1);
  if (dims.empty()) {
    AddLike(out, self);
  } else {
    AddTransformed(out, self.sizes(), self.strides(), TransformOrder(self, dims, 0), self.scalar_type());
  }
}

// self dim normalization onesided
void RealToComplex(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()), "Expected a real tensor");
  auto sizes = SizesOf(self);
  const auto dims = TransformOrder(self, IntsAt(args, 1), 1);
  if (args[3].toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  AddTransformed(out, sizes, self.strides(), dims, c10::toComplexType(self.scalar_type()));
}

// self dim normalization last_dim_size: complex over all but the last dim, then real over that
void ComplexToReal(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(self.is_complex(), "Expected a complex tensor");
  const auto dims = IntsAt(args, 1);
  DimVector strides(self.strides().begin(), self.strides().end());
  if (dims.size() > 1) {
    OutMetas between;
    AddTransformed(between, self.sizes(), strides, TransformOrder(self, DimVector(dims.begin(), dims.end() - 1), 0),
                   self.scalar_type());
    strides.assign(between[0].strides.begin(), between[0].strides.end());
  }
  const int64_t last = Wrap(dims.back(), self.dim());
  auto sizes = SizesOf(self);
  sizes[last] = args[3].toInt();
  AddTransformed(out, sizes, strides, {last}, RealType(self.scalar_type()));
}

constexpr RuleRow kRows[] = {
    {"_fft_c2c", ComplexToComplex},
    {"_fft_c2r", ComplexToReal},
    {"_fft_r2c", RealToComplex},
};

}  // namespace

RuleRows SpectralRules() { return kRows; }

}  // namespace mycelya::rules
