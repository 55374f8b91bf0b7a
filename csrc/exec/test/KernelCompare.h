// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// For tests of kernels: calls of ATen's operators by name, and the comparison of results.
#ifndef MYCELYA_EXEC_TEST_KERNELCOMPARE_H_
#define MYCELYA_EXEC_TEST_KERNELCOMPARE_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace mycelya::exec::test {

inline at::Tensor Call(const char* name, const char* overload, std::vector<c10::IValue> args) {
  torch::jit::Stack stack(std::make_move_iterator(args.begin()), std::make_move_iterator(args.end()));
  c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(stack);
  return stack[0].toTensor();
}

inline double At(const at::Tensor& t, int64_t i) { return t.data_ptr<double>()[i]; }

// Elements may differ by `ulps` of the dtype, or by `slack` relative to the expected value. NaNs are equal.
inline void ExpectSame(const at::Tensor& got, const at::Tensor& want, double ulps, const std::string& what,
                       double slack = 0) {
  ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what;
  ASSERT_EQ(got.numel(), want.numel()) << what;
  if (!c10::isFloatingType(got.scalar_type())) {
    EXPECT_TRUE(got.reshape(-1).equal(want.reshape(-1))) << what;
    return;
  }
  const double epsilon = got.scalar_type() == c10::ScalarType::Double  ? 0x1p-52
                         : got.scalar_type() == c10::ScalarType::Float ? 0x1p-23
                         : got.scalar_type() == c10::ScalarType::Half  ? 0x1p-10
                                                                       : 0x1p-7;
  const at::Tensor g = got.to(c10::ScalarType::Double).reshape(-1).contiguous(),
                   w = want.to(c10::ScalarType::Double).reshape(-1).contiguous();
  for (int64_t i = 0; i < g.numel(); ++i) {
    const double a = At(g, i), b = At(w, i);
    if ((std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b))) continue;
    const double error = std::abs(a - b), small = got.scalar_type() == c10::ScalarType::Double ? 1e-307 : 1e-37;
    const bool close =
        (ulps > 0 || slack > 0) && error <= std::max(ulps * epsilon, slack) * std::max(std::abs(b), small) + slack;
    ASSERT_TRUE(close) << what << " element " << i << ": " << a << ", not " << b;
  }
}

}  // namespace mycelya::exec::test

#endif  // MYCELYA_EXEC_TEST_KERNELCOMPARE_H_
