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
void add_transformed(OutMetas& out, IntArrayRef sizes, IntArrayRef strides, IntArrayRef dims, ScalarType dtype) {
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
  add(out, sizes, result, dtype);
}

// The dims to transform: by falling stride, except for the last `kept` ones.
DimVector transform_order(const Tensor& self, const DimVector& dims, int kept) {
  DimVector order;
  for (const int64_t d : dims) order.push_back(wrap(d, self.dim()));
  std::sort(order.begin(), order.end() - kept, [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  return order;
}

DimVector sizes_of(const Tensor& t) { return DimVector(t.sizes().begin(), t.sizes().end()); }

// self dim normalization forward
void complex_to_complex(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK(self.is_complex(), "Expected a complex tensor");
  const auto dims = ints(args, 1);
  if (dims.empty()) {
    add_like(out, self);
  } else {
    add_transformed(out, self.sizes(), self.strides(), transform_order(self, dims, 0), self.scalar_type());
  }
}

// self dim normalization onesided
void real_to_complex(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()), "Expected a real tensor");
  auto sizes = sizes_of(self);
  const auto dims = transform_order(self, ints(args, 1), 1);
  if (args[3].toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  add_transformed(out, sizes, self.strides(), dims, c10::toComplexType(self.scalar_type()));
}

// self dim normalization last_dim_size: complex over all but the last dim, then real over that
void complex_to_real(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK(self.is_complex(), "Expected a complex tensor");
  const auto dims = ints(args, 1);
  DimVector strides(self.strides().begin(), self.strides().end());
  if (dims.size() > 1) {
    OutMetas between;
    add_transformed(between, self.sizes(), strides, transform_order(self, DimVector(dims.begin(), dims.end() - 1), 0),
                    self.scalar_type());
    strides.assign(between[0].strides.begin(), between[0].strides.end());
  }
  const int64_t last = wrap(dims.back(), self.dim());
  auto sizes = sizes_of(self);
  sizes[last] = args[3].toInt();
  add_transformed(out, sizes, strides, {last}, real_type(self.scalar_type()));
}

constexpr RuleRow kRows[] = {
    {"_fft_c2c", complex_to_complex},
    {"_fft_c2r", complex_to_real},
    {"_fft_r2c", real_to_complex},
};

}  // namespace

RuleRows spectral_rules() { return kRows; }

}  // namespace mycelya::rules
