// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Kernels against ATen: whole loops.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>

#include "exec/test/KernelCompare.h"
#include "exec/test/KernelWords.h"

namespace mycelya::exec::test {
namespace {

using T = c10::ScalarType;

// A view with these sizes in one of several layouts. broadcast: some sizes are 1.
at::Tensor Layout(const std::vector<int64_t>& sizes, int kind, T dtype) {
  const auto fill = [dtype](at::IntArrayRef s) { return at::randint(-9, 9, s, at::kLong).to(dtype); };
  const int64_t rank = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> s = sizes;
  switch (kind) {
    case 1: {  // transposed
      std::vector<int64_t> order;
      for (int64_t d = rank; d-- > 0;) order.push_back(d);
      for (int64_t d = 0; d < rank; ++d) s[d] = sizes[order[d]];
      return fill(s).permute(order);
    }
    case 2:  // every second of the inner dim
      s.back() *= 2;
      return fill(s).slice(rank - 1, 0, s.back(), 2);
    case 3:  // a window
      for (int64_t& v : s) v += 3;
      {
        at::Tensor t = fill(s);
        for (int64_t d = 0; d < rank; ++d) t = t.slice(d, 1, 1 + sizes[d]);
        return t;
      }
    case 4:
      s.back() = std::min<int64_t>(s.back(), 1);
      return fill(s);
    case 5:
      s.front() = std::min<int64_t>(s.front(), 1);
      return fill(s);
    default:
      return fill(s);
  }
}

TEST(Kernel, Layouts) {
  const std::vector<std::vector<int64_t>> shapes = {
      {1},       {7},       {1000},      {5, 3}, {1, 9},    {300, 2},     {2, 3000},      {64, 64},
      {129, 65}, {3, 5, 7}, {17, 1, 33}, {0, 4}, {4, 0, 3}, {2, 2, 2, 2}, {9, 40, 3, 11}, {70, 1100}};
  for (const auto& sizes : shapes) {
    for (const T dtype : {T::Float, T::BFloat16, T::Int, T::Double, T::Char}) {
      for (int kind = 0; kind < 36; ++kind) {
        const int out_kind = kind % 4;
        const at::Tensor a = Layout(sizes, kind % 6, dtype), b = Layout(sizes, kind / 6, dtype),
                         out = Layout(sizes, out_kind, dtype);
        Code c({sizes.size()});
        const uint64_t p = c.Of(a, MYC_K_READ, sizes), q = c.Of(b, MYC_K_READ, sizes),
                       to = c.Of(out, MYC_K_WRITE, sizes);
        const uint64_t x = c.Load(p, ClassOf(dtype)), y = c.Load(q, ClassOf(dtype));
        c.Store(to, c.Op(MYC_K_SUB, ClassOf(dtype), x, y));
        RunOn(c, Instance(sizes, {a, b, out}));
        ASSERT_TRUE(out.equal(Call("aten::sub", "Tensor", {a, b, 1}).expand_as(out)))
            << sizes << " " << dtype << " " << kind;
      }
    }
  }
}

TEST(Kernel, SpacesAndIndices) {
  // The same points as [6, 10] and as [60], and the index along a dim.
  const at::Tensor a = Layout({6, 10}, 1, T::Long), b = at::arange(60), out = at::zeros({6, 10}, at::kLong),
                   dim = at::zeros({6, 10}, at::kLong);
  Code c({2, 1});
  const uint64_t p = c.Operand(T::Long, MYC_K_READ, {0, 1}), q = c.Operand(T::Long, MYC_K_READ, {0}, 1);
  const uint64_t to = c.Operand(T::Long, MYC_K_WRITE, {0, 1}), d = c.Operand(T::Long, MYC_K_WRITE, {0, 1});
  const uint64_t x = c.Load(p, MYC_K_I64);
  c.Store(to, c.Op(MYC_K_ADD, MYC_K_I64, x, c.Load(q, MYC_K_I64)));
  const uint64_t i = c.Op(MYC_K_INDEX, MYC_K_I64, 0), j = c.Op(MYC_K_INDEX, MYC_K_I64, 1);
  c.Store(d, c.Op(MYC_K_SUB, MYC_K_I64, i, j));
  RunOn(c, Instance({6, 10, 60}, {a, b, out, dim}));
  EXPECT_TRUE(out.equal(a + b.view({6, 10})));
  EXPECT_TRUE(dim.equal(at::arange(6).unsqueeze(1) - at::arange(10)));
}

TEST(Kernel, InPlaceAndSwap) {
  for (const int64_t n : {1, 63, 5000}) {
    const at::Tensor x = at::randn({n}), y = at::randn({n}), x0 = x.clone(), y0 = y.clone();
    Code c({1});
    const uint64_t p = c.Of(x, MYC_K_READ | MYC_K_WRITE, {n}), q = c.Of(y, MYC_K_READ, {n}),
                   w = c.Of(y, MYC_K_WRITE, {n});
    const uint64_t r = c.Load(p, MYC_K_F32);
    c.Store(p, c.Load(q, MYC_K_F32));
    c.Store(w, r);
    RunOn(c, Instance({n}, {x, y, y}));
    EXPECT_TRUE(x.equal(y0));
    EXPECT_TRUE(y.equal(x0));

    Code e({1});  // a load after a store, and a value used after its memory is written
    const uint64_t o = e.Of(x, MYC_K_READ | MYC_K_WRITE, {n}), v = e.Of(y, MYC_K_WRITE, {n});
    const uint64_t s = e.Load(o, MYC_K_F32);
    e.Store(o, e.Op(MYC_K_ADD, MYC_K_F32, s, s));
    e.Store(v, e.Op(MYC_K_MUL, MYC_K_F32, e.Load(o, MYC_K_F32), s));
    RunOn(e, Instance({n}, {x, y}));
    EXPECT_TRUE(x.equal(y0 + y0));
    EXPECT_TRUE(y.equal(y0 * y0));
  }
}

TEST(Kernel, NumbersAndInstances) {
  Code c({1});
  const uint64_t p = c.Operand(T::Half, MYC_K_READ | MYC_K_WRITE, {0}), one = c.Operand(T::Float, MYC_K_READ, {});
  const uint64_t n = c.Number(), r = c.Load(p, MYC_K_F32), f = c.Load(one, MYC_K_F32);
  const uint64_t scale = c.Op(MYC_K_MUL, MYC_K_F32, c.Op(MYC_K_NUMBER, MYC_K_F32, n), f);
  c.Store(p, c.Op(MYC_K_MUL, MYC_K_F32, r, scale));
  const auto k = c.Parse();
  std::vector<Instance> instances;
  std::vector<const Instance*> all;
  std::vector<at::Tensor> want;
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t size = i * 37 % 5000;
    const at::Tensor x = at::randn({size}).to(T::Half);
    want.push_back((x.to(T::Float) * static_cast<float>(i * 0.5)).to(T::Half));
    instances.emplace_back(std::vector<int64_t>{size}, std::vector<at::Tensor>{x, at::full({}, 0.5f)},
                           std::vector<KernelNumber>{{i % 2 == 0, static_cast<double>(i), i}});
  }
  for (const Instance& i : instances) all.push_back(&i);
  RunOn(*k, all);
  for (size_t i = 0; i < want.size(); ++i) ExpectSame(instances[i].tensors[0], want[i], 0, "instance");
}

TEST(Kernel, Reductions) {
  for (const T dtype : {T::Float, T::Double, T::Long, T::BFloat16, T::Bool}) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {1, 1}, {3, 5}, {4, 1000}, {1000, 4}, {1, 300000}, {2, 100001}, {130, 70}, {5, 0}, {0, 5}, {33, 4100}}) {
      for (int layout = 0; layout < 4; ++layout) {
        const at::Tensor x = Layout(sizes, layout, dtype);
        const uint64_t cls = ClassOf(dtype);
        const T result = cls == MYC_K_F32 ? T::Float : dtype;
        const at::Tensor sum = at::zeros({sizes[0]}, x.options().dtype(result)), most = at::zeros_like(sum),
                         least = at::zeros_like(sum), count = at::zeros({sizes[0]}, at::kDouble);
        Code c({2}, 1);
        const uint64_t in = c.Of(x, MYC_K_READ, sizes);
        std::vector<uint64_t> outs;
        for (const at::Tensor& t : {sum, most, least, count})
          outs.push_back(c.Operand(t.scalar_type(), MYC_K_WRITE, {0}));
        const uint64_t r = c.Load(in, cls);
        const bool empty = sizes[1] == 0 && sizes[0] != 0;
        c.Store(outs[0], cls == MYC_K_B8 ? c.Op(MYC_K_CONST, cls) : c.Op(MYC_K_SUM, cls, r));
        c.Store(outs[1], empty ? c.Op(MYC_K_CONST, cls) : c.Op(MYC_K_MAX, cls, r));
        c.Store(outs[2], empty ? c.Op(MYC_K_CONST, cls) : c.Op(MYC_K_MIN, cls, r));
        c.Store(outs[3], c.Op(MYC_K_COUNT, MYC_K_F64));
        RunOn(c, Instance(sizes, {x, sum, most, least, count}));
        const std::string what =
            std::string(c10::toString(dtype)) + " " + std::to_string(sizes[0]) + " " + std::to_string(sizes[1]);
        if (cls != MYC_K_B8) ExpectSame(sum, at::sum(x, 1, false, result), 0, what, 1e-6);
        if (!empty && x.numel() > 0) {
          ExpectSame(most.to(dtype), Call("aten::amax", "", {x, std::vector<int64_t>{1}, false}), 0, what);
          ExpectSame(least.to(dtype), Call("aten::amin", "", {x, std::vector<int64_t>{1}, false}), 0, what);
        }
        EXPECT_TRUE(count.equal(at::full({sizes[0]}, static_cast<double>(sizes[1]), at::kDouble)));
      }
    }
  }
}

TEST(Kernel, ReductionsKeepNans) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{2, 300}, {300, 2}, {1, 400000}}) {
    at::Tensor x = at::randn(sizes);
    x.view({-1}).slice(0, x.numel() - 1, x.numel()).fill_(std::numeric_limits<float>::quiet_NaN());
    const at::Tensor most = at::zeros({sizes[0]});
    Code c({2}, 1);
    const uint64_t in = c.Of(x, MYC_K_READ, sizes), to = c.Operand(T::Float, MYC_K_WRITE, {0});
    c.Store(to, c.Op(MYC_K_MAX, MYC_K_F32, c.Load(in, MYC_K_F32)));
    RunOn(c, Instance(sizes, {x, most}));
    ExpectSame(most, Call("aten::amax", "", {x, std::vector<int64_t>{1}, false}), 0, "max");
  }
}

TEST(Kernel, Softmax) {
  for (const T dtype : {T::Float, T::Double, T::BFloat16}) {
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{3, 7}, {64, 1000}, {5000, 10}, {2, 150000}, {100, 49}}) {
      for (int layout = 0; layout < 4; ++layout) {
        for (const bool in_place : {false, true}) {
          const at::Tensor x = Layout(sizes, layout, dtype), out = in_place ? x : at::empty_like(x);
          const at::Tensor want = at::_softmax(x.contiguous(), 1, false);
          Code c({2}, 1);
          const uint64_t cls = ClassOf(dtype), in = c.Of(x, MYC_K_READ, sizes), to = c.Of(out, MYC_K_WRITE, sizes);
          const uint64_t r = c.Load(in, cls),
                         e = c.Op(MYC_K_EXP, cls, c.Op(MYC_K_SUB, cls, r, c.Op(MYC_K_MAX, cls, r)));
          c.Store(to, c.Op(MYC_K_DIV, cls, e, c.Op(MYC_K_SUM, cls, e)));
          RunOn(c, Instance(sizes, {x, out}));
          ExpectSame(out, want, 0, "softmax", dtype == T::Double ? 1e-12 : dtype == T::Float ? 2e-6 : 1e-2);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Kernel, LayerNorm) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{3, 7}, {64, 1000}, {500, 12}, {2, 200000}}) {
    const int64_t cols = sizes[1];
    const at::Tensor x = at::randn(sizes), w = at::randn({cols}), b = at::randn({cols}), out = at::zeros(sizes),
                     mean = at::zeros({sizes[0], 1}), rms = at::zeros(sizes);
    Code c({2}, 1);
    const uint64_t in = c.Of(x, MYC_K_READ, sizes), wt = c.Of(w, MYC_K_READ, sizes), bt = c.Of(b, MYC_K_READ, sizes);
    const uint64_t to = c.Of(out, MYC_K_WRITE, sizes), to_mean = c.Operand(T::Float, MYC_K_WRITE, {0, -1}),
                   to_rms = c.Of(rms, MYC_K_WRITE, sizes);
    const uint64_t f = MYC_K_F32, n = c.Op(MYC_K_COUNT, f), r = c.Load(in, f),
                   m = c.Op(MYC_K_DIV, f, c.Op(MYC_K_SUM, f, r), n);
    const uint64_t eps = c.Op(MYC_K_CONST, f, std::bit_cast<uint64_t>(1e-5));
    const uint64_t d = c.Op(MYC_K_SUB, f, r, m);
    const uint64_t v = c.Op(MYC_K_DIV, f, c.Op(MYC_K_SUM, f, c.Op(MYC_K_MUL, f, d, d)), n);
    const uint64_t s = c.Op(MYC_K_RSQRT, f, c.Op(MYC_K_ADD, f, v, eps));
    c.Store(to, c.Op(MYC_K_ADD, f, c.Op(MYC_K_MUL, f, c.Op(MYC_K_MUL, f, d, s), c.Load(wt, f)), c.Load(bt, f)));
    c.Store(to_mean, m);
    const uint64_t q = c.Op(MYC_K_DIV, f, c.Op(MYC_K_SUM, f, c.Op(MYC_K_MUL, f, r, r)), n);
    c.Store(to_rms, c.Op(MYC_K_MUL, f, r, c.Op(MYC_K_RSQRT, f, c.Op(MYC_K_ADD, f, q, eps))));
    RunOn(c, Instance(sizes, {x, w, b, out, mean, rms}));
    const auto [want, want_mean, want_rstd] = at::native_layer_norm(x, {cols}, w, b, 1e-5);
    ExpectSame(out, want, 0, "layer norm", 1e-5);
    ExpectSame(mean, want_mean, 0, "mean", 1e-6);
    ExpectSame(rms, x * (at::mean(x * x, 1, true) + 1e-5).rsqrt(), 0, "rms norm", 1e-5);
  }
}

TEST(Kernel, RowValuesEverywhere) {
  // A reduction of a row value, the index of a kept point, and a row value stored at all points.
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{40, 9}, {5, 700}}) {
    const at::Tensor x = at::randint(-9, 9, sizes, at::kLong), row = at::randint(-9, 9, {sizes[0], 1}, at::kLong);
    const at::Tensor sum = at::zeros({sizes[0]}, at::kLong), all = at::zeros(sizes, at::kLong);
    Code c({2}, 1);
    const uint64_t w = MYC_K_I64, in = c.Of(x, MYC_K_READ, sizes), r = c.Operand(T::Long, MYC_K_READ, {0, -1});
    const uint64_t to = c.Operand(T::Long, MYC_K_WRITE, {0}), to_all = c.Of(all, MYC_K_WRITE, sizes);
    const uint64_t v = c.Load(r, w), copies = c.Op(MYC_K_SUM, w, v), i = c.Op(MYC_K_INDEX, w, 0);
    const uint64_t j = c.Op(MYC_K_SUM, w, c.Op(MYC_K_MUL, w, c.Op(MYC_K_INDEX, w, 1), c.Load(in, w)));
    c.Store(to, c.Op(MYC_K_ADD, w, c.Op(MYC_K_ADD, w, copies, i), j));
    c.Store(to_all, copies);
    RunOn(c, Instance(sizes, {x, row, sum, all}));
    const at::Tensor times = row.squeeze(1) * sizes[1];
    EXPECT_TRUE(sum.equal(times + at::arange(sizes[0]) + at::sum(x * at::arange(sizes[1]), 1)));
    EXPECT_TRUE(all.equal(times.unsqueeze(1).expand(sizes)));
  }
}

TEST(Kernel, RunsOnAllThreads) {
  const int before = at::get_num_threads();
  at::Tensor one;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const at::Tensor x = at::arange(1 << 20).to(T::Float).sin(), sum = at::zeros({1}), out = at::empty_like(x);
    Code c({1}, 1);
    const uint64_t in = c.Of(x, MYC_K_READ, {x.numel()}), to = c.Operand(T::Float, MYC_K_WRITE, {-1}),
                   o = c.Of(out, MYC_K_WRITE, {x.numel()}), r = c.Load(in, MYC_K_F32),
                   s = c.Op(MYC_K_SUM, MYC_K_F32, r);
    c.Store(to, s);
    c.Store(o, c.Op(MYC_K_SUB, MYC_K_F32, c.Op(MYC_K_EXP, MYC_K_F32, r), s));
    RunOn(c, Instance({x.numel()}, {x, sum, out}));
    ExpectSame(out, x.exp() - sum, 0, "threads", 1e-6);
    ExpectSame(sum, at::sum(x.to(T::Double)).to(T::Float).view({1}), 0, "sum", 1e-4);
    at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t end) {  // no nested threads
      if (begin == 0) RunOn(c, Instance({x.numel()}, {x, sum, out}));
    });
    ExpectSame(out, x.exp() - sum, 0, "nested", 1e-6);

    // Threads share the units of two instances, which are whole rows of a reduction.
    const std::vector<int64_t> few = {300, 100}, many = {1000, 70};
    const at::Tensor a = at::arange(30000).to(T::Float).sin().view(few), a_out = at::empty_like(a),
                     b = at::arange(70000).to(T::Float).cos().view(many), b_out = at::empty_like(b);
    Code rows({2}, 1);
    const uint64_t row = rows.Of(a, MYC_K_READ, few), scaled = rows.Of(a_out, MYC_K_WRITE, few),
                   v = rows.Load(row, MYC_K_F32);
    rows.Store(scaled, rows.Op(MYC_K_DIV, MYC_K_F32, v, rows.Op(MYC_K_MAX, MYC_K_F32, v)));
    const Instance first(few, {a, a_out}), second(many, {b, b_out});
    RunOn(*rows.Parse(), {&first, &second});
    EXPECT_TRUE(a_out.equal(a / a.amax(1, true)));
    EXPECT_TRUE(b_out.equal(b / b.amax(1, true)));
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace mycelya::exec::test
