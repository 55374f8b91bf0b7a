// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Fourier transforms.

#include <c10/util/strides.h>

#include <algorithm>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

// The strides of a result of MKL or cuFFT: the batch dims are outside, in the order of the input's strides, and the
// transformed dims are inside, in the given order.
DimVector Transformed(IntArrayRef sizes, IntArrayRef strides, IntArrayRef dims) {
  const auto rank = static_cast<int64_t>(sizes.size());
  DimVector order;
  for (int64_t d = 0; d < rank; ++d) order.push_back(d);
  const auto batch_end = std::partition(
      order.begin(), order.end(), [&](int64_t d) { return std::find(dims.begin(), dims.end(), d) == dims.end(); });
  std::sort(order.begin(), batch_end, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::copy(dims.begin(), dims.end(), batch_end);
  DimVector result(sizes.begin(), sizes.end());
  int64_t step = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    result[*d] = step;
    step *= sizes[*d];
  }
  return result;
}

void AddTransformed(OutMetas& out, IntArrayRef sizes, IntArrayRef strides, IntArrayRef dims, ScalarType dtype) {
  Add(out, sizes, Transformed(sizes, strides, dims), dtype);
}

DimVector WrappedDims(const Tensor& self, IntArrayRef dims) {
  DimVector wrapped;
  for (const int64_t d : dims) wrapped.push_back(Wrap(d, self.dim()));
  return wrapped;
}

// cuFFT transforms at most three dims at once.
constexpr size_t kDimsOfCufft = 3;

// Whether CUDA transforms all dims of a real operand or result at once. It does not where the first two dims are 0 and
// 1, which is slow.
bool AtOnce(IntArrayRef dims) {
  return dims.size() <= kDimsOfCufft && !(dims.size() >= 2 && dims[0] == 0 && dims[1] == 1);
}

// The strides after CUDA's complex transforms of some dims: the innermost ones first, three at once.
DimVector TransformedInSteps(IntArrayRef sizes, DimVector strides, DimVector dims) {
  while (!dims.empty()) {
    std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
    const size_t n = std::min(kDimsOfCufft, dims.size());
    strides = Transformed(sizes, strides, IntArrayRef(dims).slice(dims.size() - n));
    dims.resize(dims.size() - n);
  }
  return strides;
}

// The dims to transform: by falling stride, except for the last `kept` ones.
DimVector TransformOrder(const Tensor& self, const DimVector& dims, int kept) {
  DimVector order = WrappedDims(self, dims);
  std::sort(order.begin(), order.end() - kept, [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  return order;
}

DimVector SizesOf(const Tensor& t) { return DimVector(t.sizes().begin(), t.sizes().end()); }
DimVector StridesOf(const Tensor& t) { return DimVector(t.strides().begin(), t.strides().end()); }

// self dim normalization forward
void ComplexToComplex(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(self.is_complex(), "Expected a complex tensor");
  const auto dims = IntsAt(args, 1);
  if (dims.empty()) {
    AddLike(out, self);
  } else if (OnCuda()) {
    Add(out, self.sizes(), TransformedInSteps(self.sizes(), StridesOf(self), WrappedDims(self, dims)),
        self.scalar_type());
  } else {
    AddTransformed(out, self.sizes(), self.strides(), TransformOrder(self, dims, 0), self.scalar_type());
  }
}

// cuFFT's half of a bfloat16 spectrum is converted to float; other dtypes have their complex counterpart.
ScalarType SpectrumType(ScalarType dtype) {
  return dtype == ScalarType::BFloat16 ? ScalarType::ComplexFloat : c10::toComplexType(dtype);
}

void RealToComplexOnCuda(const Tensor& self, const DimVector& dims, bool onesided, OutMetas& out) {
  const ScalarType dtype = SpectrumType(self.scalar_type());
  const int64_t last = dims.back();
  auto half = SizesOf(self);
  half[last] = half[last] / 2 + 1;
  if (AtOnce(dims)) {
    return AddTransformed(out, onesided ? IntArrayRef(half) : self.sizes(), self.strides(), dims, dtype);
  }
  // The last dim first. The other half of the spectrum is filled in at the end, in another tensor.
  const auto strides = Transformed(half, self.strides(), {last});
  if (onesided || half[last] == self.size(last)) {
    Add(out, half, TransformedInSteps(half, strides, DimVector(dims.begin(), dims.end() - 1)), dtype);
  } else {
    AddContiguous(out, self.sizes(), dtype);
  }
}

// self dim normalization onesided
void RealToComplex(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()), "Expected a real tensor");
  if (OnCuda()) return RealToComplexOnCuda(self, WrappedDims(self, IntsAt(args, 1)), args[3].toBool(), out);
  auto sizes = SizesOf(self);
  const auto dims = TransformOrder(self, IntsAt(args, 1), 1);
  if (args[3].toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  AddTransformed(out, sizes, self.strides(), dims, c10::toComplexType(self.scalar_type()));
}

void ComplexToRealOnCuda(const Tensor& self, const DimVector& dims, int64_t last_size, OutMetas& out) {
  const ScalarType dtype = RealType(self.scalar_type());
  auto sizes = SizesOf(self);
  sizes[dims.back()] = last_size;
  if (AtOnce(dims)) {  // of a contiguous copy, because cuFFT may overwrite its operand
    AddTransformed(out, sizes, c10::contiguous_strides(self.sizes()), dims, dtype);
  } else {
    const auto strides = TransformedInSteps(self.sizes(), StridesOf(self), DimVector(dims.begin(), dims.end() - 1));
    AddTransformed(out, sizes, strides, {dims.back()}, dtype);
  }
}

// self dim normalization last_dim_size: complex over all but the last dim, then real over that
void ComplexToReal(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(self.is_complex(), "Expected a complex tensor");
  const auto dims = IntsAt(args, 1);
  if (OnCuda()) return ComplexToRealOnCuda(self, WrappedDims(self, dims), args[3].toInt(), out);
  DimVector strides = StridesOf(self);
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

constexpr RuleRow kSpectralRows[] = {
    {"_fft_c2c", ComplexToComplex},
    {"_fft_c2r", ComplexToReal},
    {"_fft_r2c", RealToComplex},
};

}  // namespace

RuleRows SpectralRules() { return kSpectralRows; }

}  // namespace mycelya::rules
