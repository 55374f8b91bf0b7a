// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Pairs of operations in one step, against the two operations in ATen.
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "exec/kernel/Code.h"
#include "exec/test/KernelWords.h"

namespace mycelya::exec::test {
namespace {

constexpr uint64_t kPairOps[] = {MYC_K_ADD, MYC_K_SUB, MYC_K_MUL};

at::Tensor Do(uint64_t op, const at::Tensor& a, const at::Tensor& b) {
  if (op == MYC_K_ADD) return at::add(a, b);
  return op == MYC_K_SUB ? at::sub(a, b) : at::mul(a, b);
}

// Compares bits, except for the bits of NaNs.
void ExpectSameFloats(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  const at::Tensor x = got.contiguous(), y = want.expand_as(got).contiguous();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float a = x.const_data_ptr<float>()[i], b = y.const_data_ptr<float>()[i];
    const bool same = std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
    ASSERT_TRUE(same) << what << " element " << i << ": " << a << ", not " << b;
  }
}

size_t Steps(const Kernel& k) { return k.code->along.passes.at(0).steps.size(); }

// Values whose products and sums round, and values that overflow, vanish and have signs. They would reveal a fused
// multiply-add or a wrong operand.
at::Tensor Values(int64_t n) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const at::Tensor specials =
      at::tensor({0.0f, -0.0f, 1.0f, inf, -inf, nan, 3e38f, -3e38f, 1e-40f, -1e-40f, 1e-30f, 0x1.000002p0f});
  at::Tensor t = at::randn({n});
  for (int64_t i = 0; i < n; i += 3) {
    t.data_ptr<float>()[i] = specials.data_ptr<float>()[(i * 7 + n) % specials.numel()];
  }
  return t;
}

TEST(KernelPairs, AllOfThem) {
  for (const int64_t n : {1, 15, 33, 1000, 5003}) {
    const at::Tensor x = Values(n), y = at::randn({n}), z = Values(n).roll(1);
    for (int ones = 0; ones < 8; ++ones) {
      const bool one_a = ones & 1, one_b = ones & 2, one_c = ones & 4;
      if ((one_a && one_b) || (n == 1 && ones != 0)) continue;
      const at::Tensor a = one_a ? x.slice(0, 2, 3) : x, b = one_b ? y.slice(0, 1, 2) : y,
                       c = one_c ? z.slice(0, 3, 4) : z;
      for (const uint64_t first : kPairOps) {
        for (const uint64_t then : kPairOps) {
          for (const bool right : {false, true}) {
            const at::Tensor out = at::zeros({n});
            Code code({1});
            const uint64_t i = code.Of(a, MYC_K_READ, {n}), j = code.Of(b, MYC_K_READ, {n}),
                           k = code.Of(c, MYC_K_READ, {n}), to = code.Of(out, MYC_K_WRITE, {n});
            const uint64_t r = code.Load(i, kF), s = code.Load(j, kF), t = code.Load(k, kF),
                           v = code.Op(first, kF, r, s);
            code.Store(to, right ? code.Op(then, kF, t, v) : code.Op(then, kF, v, t));
            const auto kernel = code.Parse();
            EXPECT_EQ(Steps(*kernel), 4 - one_a - one_b - one_c);
            const Instance at({n}, {a, b, c, out});
            RunOn(*kernel, {&at});
            const at::Tensor want = Do(first, a, b);
            ExpectSameFloats(out, right ? Do(then, c, want) : Do(then, want, c),
                             std::to_string(first) + " then " + std::to_string(then) + " of " + std::to_string(n) +
                                 " ones " + std::to_string(ones) + (right ? " right" : " left"));
          }
        }
      }
    }
  }
}

// A result with two uses is not merged, and a chain in place may overwrite its operand.
TEST(KernelPairs, OfChains) {
  const int64_t n = 40000;
  const at::Tensor x = Values(n), y = at::randn({n});
  for (const bool used_twice : {false, true}) {
    const at::Tensor in = x.clone(), other = at::zeros({n});
    Code code({1});
    const uint64_t i = code.Of(in, MYC_K_READ | MYC_K_WRITE, {n}), j = code.Of(y, MYC_K_READ, {n}),
                   o = code.Of(other, MYC_K_WRITE, {n});
    const uint64_t r = code.Load(i, kF), s = code.Load(j, kF);
    const uint64_t a = code.Op(MYC_K_MUL, kF, r, s), b = code.Op(MYC_K_SUB, kF, r, a), c = code.Op(MYC_K_ADD, kF, b, s),
                   d = code.Op(MYC_K_MUL, kF, c, r), e = code.Op(MYC_K_SUB, kF, s, d);
    code.Store(i, e);
    code.Store(o, used_twice ? c : r);
    const auto kernel = code.Parse();
    EXPECT_EQ(Steps(*kernel), 2 + 3);
    const Instance at({n}, {in, y, other});
    RunOn(*kernel, {&at});
    const at::Tensor sum = x - x * y + y;
    ExpectSameFloats(in, y - sum * x, "in place");
    ExpectSameFloats(other, used_twice ? sum : x, "the other");
  }
}

// The last operand is a row value: one value per row along rows, a tile in lanes.
TEST(KernelPairs, WithRows) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{40, 5}, {200, 64}, {6, 3000}}) {
    const at::Tensor x = at::randn(sizes), y = at::randn(sizes), out = at::zeros(sizes);
    Code code({2}, 1);
    const uint64_t i = code.Of(x, MYC_K_READ, sizes), j = code.Of(y, MYC_K_READ, sizes),
                   to = code.Of(out, MYC_K_WRITE, sizes);
    const uint64_t r = code.Load(i, kF), s = code.Load(j, kF), most = code.Op(MYC_K_MAX, kF, r);
    const uint64_t v = code.Op(MYC_K_MUL, kF, code.Op(MYC_K_SUB, kF, r, most), s);
    code.Store(to, code.Op(MYC_K_SUB, kF, most, code.Op(MYC_K_ADD, kF, v, r)));
    RunOn(code, Instance(sizes, {x, y, out}));
    const at::Tensor rows = x.amax(1, true);
    ExpectSameFloats(out, rows - ((x - rows) * y + x), "rows of " + std::to_string(sizes[1]));
  }
}

}  // namespace
}  // namespace mycelya::exec::test
