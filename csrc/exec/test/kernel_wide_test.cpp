// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Reductions whose reduced points are shared by threads.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>

#include "exec/test/KernelWords.h"

namespace mycelya::exec::test {
namespace {

class KernelWide : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(4); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  const int before_ = at::get_num_threads();
};

// The last pass reads an operand again after the first store to it.
TEST_F(KernelWide, InPlace) {
  for (const int64_t n : {5000, 20000, 100000}) {
    const at::Tensor x = at::randn({n}), was = x.clone(), out = at::zeros({n});
    Code c({1}, 1);
    const uint64_t io = c.Of(x, MYC_K_READ | MYC_K_WRITE, {n}), to = c.Of(out, MYC_K_WRITE, {n}), r = c.Load(io, kF),
                   e = c.Op(MYC_K_EXP, kF, r);
    c.Store(io, c.Op(MYC_K_DIV, kF, e, c.Op(MYC_K_SUM, kF, e)));
    const uint64_t s = c.Op(MYC_K_SIN, kF, r);
    c.Store(to, c.Op(MYC_K_DIV, kF, s, c.Op(MYC_K_MAX, kF, s)));
    RunOn(c, Instance({n}, {x, out}));
    EXPECT_TRUE(x.allclose(was.exp() / was.exp().sum(), 1e-5, 0)) << n;
    EXPECT_TRUE(out.allclose(was.sin() / was.sin().amax(), 1e-5, 1e-7)) << n;
  }
}

// An element of each row is read after the sum over the row, and the row is overwritten.
TEST_F(KernelWide, OneElementInPlace) {
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{1, 50000}, {3, 9000}, {40, 100}, {300, 10}, {100, 2000}}) {
    const int64_t rows = sizes[0], n = sizes[1];
    const at::Tensor x = at::rand(sizes), was = x.clone(), at = at::randint(-1, n, {rows, 1}, at::kLong),
                     out = at::zeros({rows, 1});
    Code c({2}, 1);
    const uint64_t io = c.Of(x, MYC_K_READ | MYC_K_WRITE, sizes), to = c.Of(out, MYC_K_WRITE, sizes),
                   index = c.Of(at, MYC_K_READ, sizes), r = c.Load(io, kF);
    const uint64_t share = c.Op(MYC_K_DIV, kF, r, c.Op(MYC_K_SUM, kF, r));
    const uint64_t here = c.Op(MYC_K_EQ, MYC_K_B8, c.Op(MYC_K_INDEX, MYC_K_I64, 1), c.Load(index, MYC_K_I64));
    const uint64_t least = c.Op(MYC_K_CONST, kF, std::bit_cast<uint64_t>(-std::numeric_limits<double>::infinity()));
    c.Store(to, c.Op(MYC_K_MAX, kF, c.Op(MYC_K_WHERE, kF, here, share, least)));
    c.Store(io, c.Op(MYC_K_NEG, kF, r));
    RunOn(c, Instance(sizes, {x, out, at}));
    EXPECT_TRUE(x.equal(-was)) << rows;
    const at::Tensor want = (was / was.sum(1, true)).gather(1, at.clamp_min(0));
    EXPECT_TRUE(out.allclose(want.masked_fill(at < 0, -std::numeric_limits<double>::infinity()), 1e-5)) << rows;
  }
}

// Threads share rows, or columns.
TEST_F(KernelWide, Columns) {
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{300, 70}, {5000, 100}, {1000, 1024}, {700, 1500}, {9, 4000}}) {
    const at::Tensor x = at::randint(-1000, 1000, sizes, at::kLong), sum = at::zeros({sizes[1]}, at::kLong),
                     most = at::zeros({sizes[1]}, at::kLong);
    const at::Tensor real = x.to(at::kFloat), real_sum = at::zeros({sizes[1]});
    Code c({2}, 1);  // the kept dim comes first in the index space
    const uint64_t w = MYC_K_I64, in = c.Operand(at::kLong, MYC_K_READ, {1, 0}), r = c.Load(in, w);
    const uint64_t floats = c.Operand(at::kFloat, MYC_K_READ, {1, 0}), v = c.Load(floats, kF);
    const uint64_t to = c.Operand(at::kLong, MYC_K_WRITE, {0}), to_most = c.Operand(at::kLong, MYC_K_WRITE, {0}),
                   to_real = c.Operand(at::kFloat, MYC_K_WRITE, {0});
    c.Store(to, c.Op(MYC_K_SUM, w, c.Op(MYC_K_MUL, w, r, r)));
    c.Store(to_most, c.Op(MYC_K_MAX, w, r));
    c.Store(to_real, c.Op(MYC_K_SUM, kF, v));
    RunOn(c, Instance({sizes[1], sizes[0]}, {x, real, sum, most, real_sum}));
    EXPECT_TRUE(sum.equal((x * x).sum(0))) << sizes[1];
    EXPECT_TRUE(most.equal(x.amax(0))) << sizes[1];
    EXPECT_TRUE(real_sum.equal(x.sum(0).to(at::kFloat))) << sizes[1];
  }
}

}  // namespace
}  // namespace mycelya::exec::test
