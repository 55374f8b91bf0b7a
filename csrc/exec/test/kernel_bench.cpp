// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Kernels against ATen's operators in the same run, with warm memory. Prints ms and ratios. Arguments: a part of the
// names of the benchmarks to run, the number of threads (2).
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/log.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "exec/test/KernelWords.h"

namespace mycelya::exec::test {
namespace {

// The minimum of each in ms. Repeats are interleaved, so that noise affects all of them.
std::vector<double> Times(const std::vector<std::function<void()>>& variants, int repeats = 15) {
  std::vector<double> best(variants.size(), 1e30);
  for (int r = 0; r < repeats; ++r) {
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto start = std::chrono::steady_clock::now();
      variants[v]();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
      best[v] = std::min(best[v], took.count());
    }
  }
  return best;
}

const char* only = "";  // a part of the names of the benchmarks to run

void Print(const char* what, const std::vector<std::function<void()>>& variants, const char* other, int repeats = 15) {
  if (std::strstr(what, only) == nullptr) return;
  const std::vector<double> ms = Times(variants, repeats);
  std::printf("%-28s kernel %8.3f ms, %s %8.3f ms: %.2f\n", what, ms[0], other, ms[1], ms[0] / ms[1]);
}

uint64_t Constant(Code& c, double v) { return c.Op(MYC_K_CONST, MYC_K_F32, std::bit_cast<uint64_t>(v)); }

// The chain below, hand-written with ATen's vectors for the capability that this file is compiled for.
void Fused(const at::Tensor& x, const at::Tensor& out) {
  using V = at::vec::Vectorized<float>;
  const float* a = x.const_data_ptr<float>();
  float* o = out.data_ptr<float>();
  at::parallel_for(0, x.numel() / V::size(), 2048, [=](int64_t begin, int64_t end) {
    const V zero(0), one(1);
    for (int64_t i = begin * V::size(); i < end * V::size(); i += V::size()) {
      const V v = V::loadu(a + i);
      const V s = one / (one + (zero - v * V(1.001f)).exp());
      ((s + (v * V(0.5f)).tanh()) + at::vec::maximum(v, zero)).store(o + i);
    }
  });
}

void Elementwise(int64_t n) {
  const at::Tensor x = at::randn({n}), y = at::randn({n}), out = at::zeros_like(x);
  at::Tensor reference = at::zeros_like(x);
  const std::vector<int64_t> sizes = {n};
  {
    Code c({1});
    const uint64_t in = c.Of(x, MYC_K_READ, sizes), to = c.Of(out, MYC_K_WRITE, sizes);
    const uint64_t r = c.Load(in, MYC_K_F32);
    const uint64_t a = c.Op(MYC_K_SIGMOID, MYC_K_F32, c.Op(MYC_K_MUL, MYC_K_F32, r, Constant(c, 1.001)));
    const uint64_t b = c.Op(MYC_K_TANH, MYC_K_F32, c.Op(MYC_K_MUL, MYC_K_F32, r, Constant(c, 0.5)));
    const uint64_t d = c.Op(MYC_K_RELU, MYC_K_F32, r);
    c.Store(to, c.Op(MYC_K_ADD, MYC_K_F32, c.Op(MYC_K_ADD, MYC_K_F32, a, b), d));
    const auto k = c.Parse();
    const Instance i(sizes, {x, out});
    Print("transcendental chain", {[&] { RunOn(*k, {&i}); }, [&] { Fused(x, reference); }}, "fused loop");
  }
  {
    Code c({1});
    const uint64_t in = c.Of(x, MYC_K_READ, sizes), two = c.Of(y, MYC_K_READ, sizes),
                   to = c.Of(out, MYC_K_WRITE, sizes);
    const uint64_t r = c.Load(in, MYC_K_F32), s = c.Load(two, MYC_K_F32);
    uint64_t v = c.Op(MYC_K_MUL, MYC_K_F32, r, Constant(c, 1.001));
    v = c.Op(MYC_K_ADD, MYC_K_F32, v, s);
    v = c.Op(MYC_K_SUB, MYC_K_F32, v, Constant(c, 0.5));
    v = c.Op(MYC_K_MAXIMUM, MYC_K_F32, v, r);
    v = c.Op(MYC_K_ADD, MYC_K_F32, v, Constant(c, 2));
    c.Store(to, c.Op(MYC_K_MUL, MYC_K_F32, v, s));
    const auto k = c.Parse();
    const Instance i(sizes, {x, y, out});
    Print("arithmetic chain", {[&] { RunOn(*k, {&i}); }, [&] { at::add_out(reference, x, y); }}, "at::add_out");
  }
}

// Five ops on bf16, each rounded as operators are, against one of them.
void Brain(int64_t n) {
  const at::Tensor x = at::randn({n}).to(c10::ScalarType::BFloat16), out = at::zeros_like(x);
  at::Tensor reference = at::zeros_like(x);
  const std::vector<int64_t> sizes = {n};
  Code c({1});
  const uint64_t in = c.Of(x, MYC_K_READ, sizes), to = c.Of(out, MYC_K_WRITE, sizes), r = c.Load(in, MYC_K_F32);
  uint64_t v = r;
  const auto op = [&](uint64_t op, uint64_t other) {
    v = c.Op(MYC_K_ROUND, MYC_K_F32, c.Op(op, MYC_K_F32, v, other), ToCode(c10::ScalarType::BFloat16));
  };
  op(MYC_K_MUL, Constant(c, 1.5));
  op(MYC_K_ADD, Constant(c, 2));
  op(MYC_K_MUL, r);
  op(MYC_K_SUB, Constant(c, 0.5));
  op(MYC_K_MUL, r);
  c.Store(to, v);
  const auto k = c.Parse();
  const Instance i(sizes, {x, out});
  Print("bf16 chain", {[&] { RunOn(*k, {&i}); }, [&] { at::add_out(reference, x, x); }}, "at::add_out");
}

// Functions on data in the caches.
void Functions(int64_t n) {
  const at::Tensor x = at::randn({n}), out = at::zeros_like(x);
  at::Tensor reference = at::zeros_like(x);
  const std::vector<int64_t> sizes = {n};
  const auto measure = [&](const char* name, const auto& make, const std::function<void()>& aten) {
    Code c({1});
    const uint64_t in = c.Of(x, MYC_K_READ, sizes), to = c.Of(out, MYC_K_WRITE, sizes);
    c.Store(to, make(c, c.Load(in, MYC_K_F32)));
    const auto k = c.Parse();
    const Instance i(sizes, {x, out});
    Print(name, {[&] { RunOn(*k, {&i}); }, aten}, "ATen", 60);
  };
  const auto op = [](uint64_t op) { return [op](Code& c, uint64_t r) { return c.Op(op, MYC_K_F32, r); }; };
  measure("exp", op(MYC_K_EXP), [&] { at::exp_out(reference, x); });
  measure("log", op(MYC_K_LOG), [&] { at::log_out(reference, x); });
  measure("tanh", op(MYC_K_TANH), [&] { at::tanh_out(reference, x); });
  measure("sigmoid", op(MYC_K_SIGMOID), [&] { at::sigmoid_out(reference, x); });
  measure("erf", op(MYC_K_ERF), [&] { at::erf_out(reference, x); });
  const auto gelu = [](Code& c, uint64_t r) {
    const uint64_t e = c.Op(MYC_K_ERF, MYC_K_F32, c.Op(MYC_K_MUL, MYC_K_F32, r, Constant(c, 0.7071067811865476)));
    return c.Op(MYC_K_MUL, MYC_K_F32, c.Op(MYC_K_MUL, MYC_K_F32, r, Constant(c, 0.5)),
                c.Op(MYC_K_ADD, MYC_K_F32, e, Constant(c, 1)));
  };
  measure("GELU", gelu, [&] { at::gelu_out(reference, x); });
}

void Transposed(int64_t n) {
  const at::Tensor a = at::randn({n, n}), b = at::randn({n, n}).t(), out = at::zeros_like(a);
  at::Tensor reference = at::zeros_like(a);
  const std::vector<int64_t> sizes = {n, n};
  Code c({2});
  const uint64_t x = c.Of(a, MYC_K_READ, sizes), y = c.Of(b, MYC_K_READ, sizes), to = c.Of(out, MYC_K_WRITE, sizes);
  const uint64_t r = c.Load(x, MYC_K_F32);
  c.Store(to, c.Op(MYC_K_ADD, MYC_K_F32, r, c.Load(y, MYC_K_F32)));
  const auto k = c.Parse();
  const Instance i(sizes, {a, b, out});
  Print("a + b.t()", {[&] { RunOn(*k, {&i}); }, [&] { at::add_out(reference, a, b); }}, "at::add_out");
}

void Reductions(int64_t rows, int64_t cols) {
  const std::vector<int64_t> sizes = {rows, cols};
  const at::Tensor x = at::randn({rows, cols}), out = at::zeros_like(x);
  at::Tensor reference = at::zeros_like(x);
  {
    Code c({2}, 1);
    const uint64_t in = c.Of(x, MYC_K_READ, sizes), to = c.Of(out, MYC_K_WRITE, sizes);
    const uint64_t r = c.Load(in, MYC_K_F32);
    const uint64_t e = c.Op(MYC_K_EXP, MYC_K_F32, c.Op(MYC_K_SUB, MYC_K_F32, r, c.Op(MYC_K_MAX, MYC_K_F32, r)));
    c.Store(to, c.Op(MYC_K_DIV, MYC_K_F32, e, c.Op(MYC_K_SUM, MYC_K_F32, e)));
    const auto k = c.Parse();
    const Instance i(sizes, {x, out});
    Print("softmax", {[&] { RunOn(*k, {&i}); }, [&] { at::_softmax_out(reference, x, 1, false); }}, "at::_softmax_out");
  }
  {
    const at::Tensor w = at::randn({cols}), b = at::randn({cols}), mean = at::zeros({rows, 1}),
                     rstd = at::zeros({rows, 1});
    at::Tensor mean2 = at::zeros({rows, 1}), rstd2 = at::zeros({rows, 1});
    Code c({2}, 1);
    const uint64_t in = c.Of(x, MYC_K_READ, sizes), wt = c.Of(w, MYC_K_READ, sizes), bt = c.Of(b, MYC_K_READ, sizes);
    const uint64_t to = c.Of(out, MYC_K_WRITE, sizes), to_mean = c.Of(mean, MYC_K_WRITE, sizes),
                   to_rstd = c.Of(rstd, MYC_K_WRITE, sizes);
    const uint64_t n = c.Op(MYC_K_COUNT, MYC_K_F32), r = c.Load(in, MYC_K_F32);
    const uint64_t m = c.Op(MYC_K_DIV, MYC_K_F32, c.Op(MYC_K_SUM, MYC_K_F32, r), n);
    const uint64_t d = c.Op(MYC_K_SUB, MYC_K_F32, r, m);
    const uint64_t v = c.Op(MYC_K_DIV, MYC_K_F32, c.Op(MYC_K_SUM, MYC_K_F32, c.Op(MYC_K_MUL, MYC_K_F32, d, d)), n);
    const uint64_t s = c.Op(MYC_K_RSQRT, MYC_K_F32, c.Op(MYC_K_ADD, MYC_K_F32, v, Constant(c, 1e-5)));
    const uint64_t y = c.Op(MYC_K_MUL, MYC_K_F32, c.Op(MYC_K_MUL, MYC_K_F32, d, s), c.Load(wt, MYC_K_F32));
    c.Store(to, c.Op(MYC_K_ADD, MYC_K_F32, y, c.Load(bt, MYC_K_F32)));
    c.Store(to_mean, m);
    c.Store(to_rstd, s);
    const auto k = c.Parse();
    const Instance i(sizes, {x, w, b, out, mean, rstd});
    Print(
        "layer norm",
        {[&] { RunOn(*k, {&i}); }, [&] { at::native_layer_norm_out(reference, mean2, rstd2, x, {cols}, w, b, 1e-5); }},
        "at::native_layer_norm_out");
  }
  for (const bool transposed : {false, true}) {
    const at::Tensor t = transposed ? x.t() : x;
    at::Tensor sum = at::zeros({t.size(0), 1}), sum2 = at::zeros({t.size(0)});
    const std::vector<int64_t> s = t.sizes().vec();
    Code c({2}, 1);
    const uint64_t in = c.Of(t, MYC_K_READ, s), to = c.Of(sum, MYC_K_WRITE, s);
    c.Store(to, c.Op(MYC_K_SUM, MYC_K_F32, c.Load(in, MYC_K_F32)));
    const auto k = c.Parse();
    const Instance i(s, {t, sum});
    Print(transposed ? "sum of columns" : "sum of rows", {[&] { RunOn(*k, {&i}); }, [&] { at::sum_out(sum2, t, 1); }},
          "at::sum_out");
  }
  {
    const at::Tensor t = x.view({-1}), sum = at::zeros({1});
    at::Tensor sum2 = at::zeros({});
    Code c({1}, 1);
    const uint64_t in = c.Of(t, MYC_K_READ, {t.numel()}), to = c.Of(sum, MYC_K_WRITE, {t.numel()});
    c.Store(to, c.Op(MYC_K_SUM, MYC_K_F32, c.Load(in, MYC_K_F32)));
    const auto k = c.Parse();
    const Instance i({t.numel()}, {t, sum});
    Print("sum of all", {[&] { RunOn(*k, {&i}); }, [&] { at::sum_out(sum2, t, at::IntArrayRef{0}); }}, "at::sum_out");
  }
}

// The shape of an optimizer: many small tensors, in place.
void Many(int count, int64_t n) {
  std::vector<Instance> instances;
  std::vector<at::Tensor> xs, gs;
  Code c({1});
  const std::vector<int64_t> sizes = {n};
  for (int i = 0; i < count; ++i) {
    xs.push_back(at::randn({n}));
    gs.push_back(at::randn({n}));
    instances.emplace_back(sizes, std::vector<at::Tensor>{xs.back(), gs.back()},
                           std::vector<KernelNumber>{{false, -0.001, 0}});
  }
  const uint64_t x = c.Of(xs[0], MYC_K_READ | MYC_K_WRITE, sizes), g = c.Of(gs[0], MYC_K_READ, sizes);
  const uint64_t r = c.Load(x, MYC_K_F32),
                 d = c.Op(MYC_K_MUL, MYC_K_F32, c.Load(g, MYC_K_F32), c.Op(MYC_K_NUMBER, MYC_K_F32, c.Number()));
  c.Store(x, c.Op(MYC_K_ADD, MYC_K_F32, r, d));
  const auto k = c.Parse();
  std::vector<const Instance*> all;
  for (const Instance& i : instances) all.push_back(&i);
  char name[64];
  std::snprintf(name, sizeof name, "%d tensors of %lld", count, static_cast<long long>(n));
  Print(name,
        {[&] { RunOn(*k, all); },
         [&] {
           for (int i = 0; i < count; ++i) xs[i].add_(gs[i], -0.001);
         }},
        "add_", 50);
}

}  // namespace

int Main(const char* part, int threads) {
  only = part;
  at::set_num_threads(threads);
  c10::InferenceMode inference;
  std::printf("capability %s, %d threads\n", at::get_cpu_capability().c_str(), at::get_num_threads());
  Functions(256 << 10);
  Elementwise(16 << 20);
  Brain(16 << 20);
  Transposed(4096);
  Reductions(4096, 1024);
  Reductions(65536, 10);
  Many(200, 64);
  Many(200, 4096);
  return 0;
}

}  // namespace mycelya::exec::test

int main(int n, char** args) { return mycelya::exec::test::Main(n > 1 ? args[1] : "", n > 2 ? std::atoi(args[2]) : 2); }
