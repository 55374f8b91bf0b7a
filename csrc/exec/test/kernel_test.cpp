// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Kernels against ATen, op by op and as whole loop nests.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "exec/test/KernelWords.h"

namespace mycelya::exec::test {
namespace {

using T = c10::ScalarType;

at::Tensor Call(const char* name, const char* overload, std::vector<c10::IValue> args) {
  torch::jit::Stack stack(std::make_move_iterator(args.begin()), std::make_move_iterator(args.end()));
  c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(stack);
  return stack[0].toTensor();
}

double At(const at::Tensor& t, int64_t i) { return t.data_ptr<double>()[i]; }

// Elements that differ by more than `ulps` of the dtype, and by more than `slack` of the wanted value; NaNs are equal.
void ExpectSame(const at::Tensor& got, const at::Tensor& want, double ulps, const std::string& what, double slack = 0) {
  ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what;
  ASSERT_EQ(got.numel(), want.numel()) << what;
  if (!c10::isFloatingType(got.scalar_type())) {
    EXPECT_TRUE(got.reshape(-1).equal(want.reshape(-1))) << what;
    return;
  }
  const double epsilon = got.scalar_type() == T::Double  ? 0x1p-52
                         : got.scalar_type() == T::Float ? 0x1p-23
                         : got.scalar_type() == T::Half  ? 0x1p-10
                                                         : 0x1p-7;
  const at::Tensor g = got.to(T::Double).reshape(-1).contiguous(), w = want.to(T::Double).reshape(-1).contiguous();
  for (int64_t i = 0; i < g.numel(); ++i) {
    const double a = At(g, i), b = At(w, i);
    if ((std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b))) continue;
    const double error = std::abs(a - b), small = got.scalar_type() == T::Double ? 1e-307 : 1e-37;
    const bool close =
        (ulps > 0 || slack > 0) && error <= std::max(ulps * epsilon, slack) * std::max(std::abs(b), small) + slack;
    ASSERT_TRUE(close) << what << " element " << i << ": " << a << ", not " << b;
  }
}

at::Tensor Specials(T dtype, int64_t shift) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> v = {0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 7, -7, 1e-3, 88, -88, 100.25, -100.25};
  if (c10::isFloatingType(dtype)) {
    v.insert(v.end(), {inf, -inf, nan, 1e-40, -1e-40, 1e30, -1e30, 3e38, 12345.678, 1e-310});
  } else {
    v.insert(v.end(), {127, 128, 255, -128, 32767, -32768, 2147483647.0, -2147483648.0});
  }
  std::vector<double> all;
  for (size_t i = 0; i < v.size(); ++i) {
    for (size_t j = 0; j < v.size(); ++j) all.push_back(shift == 0 ? v[i] : v[j]);
  }
  at::Tensor t = at::tensor(all, at::kDouble);
  if (c10::isFloatingType(dtype)) return t.to(dtype);
  at::Tensor whole = t.to(T::Long);
  if (dtype == T::Long) {  // and where 64 bits overflow
    whole.data_ptr<int64_t>()[0] = std::numeric_limits<int64_t>::max();
    whole.data_ptr<int64_t>()[1] = std::numeric_limits<int64_t>::min();
  }
  return whole.to(dtype);
}

// ATen's sqrt of f64 is MKL's, which is off by one at times.
struct Row {
  uint64_t op;
  const char* name;
  const char* overload;
  int operands;
  double ulps;
};
const Row kRows[] = {
    {MYC_K_NEG, "aten::neg", "", 1, 0},
    {MYC_K_ABS, "aten::abs", "", 1, 0},
    {MYC_K_SQRT, "aten::sqrt", "", 1, 1},
    {MYC_K_RSQRT, "aten::rsqrt", "", 1, 2},
    {MYC_K_EXP, "aten::exp", "", 1, 2},
    {MYC_K_LOG, "aten::log", "", 1, 2},
    {MYC_K_SIN, "aten::sin", "", 1, 2},
    {MYC_K_COS, "aten::cos", "", 1, 2},
    {MYC_K_TANH, "aten::tanh", "", 1, 2},
    {MYC_K_SIGMOID, "aten::sigmoid", "", 1, 2},
    {MYC_K_RELU, "aten::relu", "", 1, 0},
    {MYC_K_RECIPROCAL, "aten::reciprocal", "", 1, 0},
    {MYC_K_FLOOR, "aten::floor", "", 1, 0},
    {MYC_K_CEIL, "aten::ceil", "", 1, 0},
    {MYC_K_SIGN, "aten::sign", "", 1, 0},
    {MYC_K_ERF, "aten::erf", "", 1, 2},
    {MYC_K_EXP2, "aten::exp2", "", 1, 2},
    {MYC_K_LOG2, "aten::log2", "", 1, 2},
    {MYC_K_LOG1P, "aten::log1p", "", 1, 2},
    {MYC_K_EXPM1, "aten::expm1", "", 1, 2},
    {MYC_K_TRUNC, "aten::trunc", "", 1, 0},
    {MYC_K_NEAREST, "aten::round", "", 1, 0},
    {MYC_K_ISNAN, "aten::isnan", "", 1, 0},
    {MYC_K_NOT, "aten::bitwise_not", "", 1, 0},
    {MYC_K_ADD, "aten::add", "Tensor", 2, 0},
    {MYC_K_SUB, "aten::sub", "Tensor", 2, 0},
    {MYC_K_MUL, "aten::mul", "Tensor", 2, 0},
    {MYC_K_DIV, "aten::div", "Tensor", 2, 0},
    {MYC_K_POW, "aten::pow", "Tensor_Tensor", 2, 2},
    {MYC_K_MAXIMUM, "aten::maximum", "", 2, 0},
    {MYC_K_MINIMUM, "aten::minimum", "", 2, 0},
    {MYC_K_EQ, "aten::eq", "Tensor", 2, 0},
    {MYC_K_NE, "aten::ne", "Tensor", 2, 0},
    {MYC_K_LT, "aten::lt", "Tensor", 2, 0},
    {MYC_K_LE, "aten::le", "Tensor", 2, 0},
    {MYC_K_GT, "aten::gt", "Tensor", 2, 0},
    {MYC_K_GE, "aten::ge", "Tensor", 2, 0},
    {MYC_K_AND, "aten::bitwise_and", "Tensor", 2, 0},
    {MYC_K_OR, "aten::bitwise_or", "Tensor", 2, 0},
    {MYC_K_XOR, "aten::bitwise_xor", "Tensor", 2, 0},
    {MYC_K_ATAN2, "aten::atan2", "", 2, 2},
    {MYC_K_FMOD, "aten::fmod", "Tensor", 2, 0},
    {MYC_K_REMAINDER, "aten::remainder", "Tensor", 2, 0},
};

bool Truth(uint64_t op) { return (op >= MYC_K_EQ && op <= MYC_K_GE) || op == MYC_K_ISNAN; }

bool Takes(uint64_t op, uint64_t cls) {
  Code c({1});
  const uint64_t a = c.Op(MYC_K_CONST, cls);
  const bool binary = op >= MYC_K_ADD;
  c.Op(op, Truth(op) ? static_cast<uint64_t>(MYC_K_B8) : cls, a, binary ? a : 0);
  try {
    c.Parse();
  } catch (const c10::ValueError&) {
    return false;
  }
  return true;
}

// Equal but for the sign of a zero, which ATen's maximum takes from either operand.
at::Tensor NoSign(const at::Tensor& t) { return c10::isFloatingType(t.scalar_type()) ? t + 0.0 : t; }

TEST(Kernel, Ops) {
  int tried = 0;
  for (const T dtype : {T::Float, T::Double, T::Long, T::Bool}) {
    const uint64_t cls = ClassOf(dtype);
    const at::Tensor x = Specials(dtype, 0), y = Specials(dtype, 1);
    for (const Row& row : kRows) {
      if (!Takes(row.op, cls)) continue;
      ++tried;
      // Tiles with tiles and, for each operand, one value.
      for (int one = 0; one < (row.operands == 2 ? 3 : 1); ++one) {
        for (int64_t pick = 0; pick < (one == 0 ? 1 : 20); ++pick) {
          const at::Tensor a = one == 1 ? y.slice(0, pick, pick + 1) : x;
          at::Tensor b = one == 2 ? y.slice(0, pick, pick + 1) : y;
          if ((row.op == MYC_K_FMOD || row.op == MYC_K_REMAINDER) && one == 1) {
            b = b.clone();  // ATen's scalar loop divides by subnormal numbers, its vectors don't
            if (c10::isFloatingType(dtype)) b.masked_fill_(b.abs() < 1e-30, 3);
          }
          const at::Tensor out = at::zeros(x.sizes(), x.options().dtype(Truth(row.op) ? T::Bool : dtype));
          Code c({1});
          const uint64_t p = c.Of(a, MYC_K_READ, x.sizes().vec()), q = c.Of(b, MYC_K_READ, x.sizes().vec());
          const uint64_t to = c.Of(out, MYC_K_WRITE, x.sizes().vec());
          const uint64_t r = c.Load(p, cls), s = c.Load(q, cls);
          c.Store(to,
                  c.Op(row.op, Truth(row.op) ? static_cast<uint64_t>(MYC_K_B8) : cls, r, row.operands == 2 ? s : 0));
          RunOn(c, Instance(x.sizes().vec(), {a, b, out}));
          std::vector<c10::IValue> args = {a};
          if (row.operands == 2) args.emplace_back(b.expand_as(x));
          if (row.operands == 2 && one == 1) args[0] = a.expand_as(x).contiguous();
          if (one == 2) args[1] = b.expand_as(x).contiguous();
          if (row.op == MYC_K_ADD || row.op == MYC_K_SUB) args.emplace_back(1);
          at::Tensor want = Call(row.name, row.overload, args), got = out;
          if (row.op == MYC_K_MAXIMUM || row.op == MYC_K_MINIMUM) {
            want = NoSign(want);
            got = NoSign(got);
          }
          ExpectSame(got, want, row.ulps,
                     std::string(row.name) + " of " + c10::toString(dtype) + " shape " + std::to_string(one));
          if (testing::Test::HasFatalFailure()) break;
        }
      }
    }
  }
  EXPECT_EQ(tried, 39 * 2 + 19 + 12);
}

// What is written out for f32 (kernel/Math.h) is within 2 ulp of the exact value, over all exponents; 1 / (1 + e^-x) is
// 0 where e^-x is infinite, as ATen's. An odd number of values leaves some for a vector that isn't full.
TEST(Kernel, FunctionsOfF32) {
  struct Function {
    uint64_t op;
    const char* name;
    double (*exact)(double);
  };
  const Function functions[] = {
      {MYC_K_EXP, "exp", std::exp},
      {MYC_K_LOG, "log", std::log},
      {MYC_K_TANH, "tanh", std::tanh},
      {MYC_K_SIGMOID, "sigmoid", [](double x) { return x < -0x1.62e42ep6 ? 0 : 1 / (1 + std::exp(-x)); }},
      {MYC_K_ERF, "erf", std::erf}};
  constexpr uint32_t kStep = 9973;
  const int64_t n = (uint64_t{1} << 32) / kStep;
  const at::Tensor x = at::zeros({n}), out = at::zeros({n});
  for (int64_t i = 0; i < n; ++i) x.data_ptr<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(i) * kStep);
  const float inf = std::numeric_limits<float>::infinity();
  const float specials[] = {-0.0f, inf, -inf, std::nanf(""), 1, -1, 0x1p-149f, -0x1p-149f, 0x1p-126f};
  std::copy(std::begin(specials), std::end(specials), x.data_ptr<float>() + n - std::size(specials));
  for (const Function& f : functions) {
    Code c({1});
    const uint64_t in = c.Of(x, MYC_K_READ, {n}), to = c.Of(out, MYC_K_WRITE, {n});
    c.Store(to, c.Op(f.op, MYC_K_F32, c.Load(in, MYC_K_F32)));
    RunOn(c, Instance({n}, {x, out}));
    double worst = 0, at = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float v = x.data_ptr<float>()[i], got = out.data_ptr<float>()[i];
      const double exact = f.exact(v);
      const auto nearest = static_cast<float>(exact);
      if (std::isnan(exact) || std::isinf(nearest) || exact == 0) {
        ASSERT_TRUE(std::isnan(exact) ? std::isnan(got) : got == nearest && std::signbit(got) == std::signbit(nearest))
            << f.name << " of " << v << " is " << got;
        continue;
      }
      const double ulp = std::ldexp(1, std::max(std::ilogb(exact), -126) - 23);
      const double error = std::abs(got - exact) / ulp;
      ASSERT_FALSE(std::isnan(error)) << f.name << " of " << v << " is " << got;
      if (error > worst) {
        worst = error;
        at = v;
      }
    }
    EXPECT_LE(worst, 2) << f.name << " of " << at;
  }
}

// Division by one value is not done by dividing, where that is exact.
TEST(Kernel, DivisionByOne) {
  for (int i = 0; i < 200; ++i) {
    const int64_t n = 20000 + i;
    const at::Tensor x = at::randn({n}) * std::ldexp(1.0, (i % 13 - 6) * 11),
                     y = at::randn({1}) * std::ldexp(1.0, (i % 11 - 5) * 13);
    const at::Tensor out = at::empty_like(x);
    Code c({1});
    const uint64_t p = c.Of(x, MYC_K_READ, {n}), q = c.Of(y, MYC_K_READ, {n}), to = c.Of(out, MYC_K_WRITE, {n});
    const uint64_t r = c.Load(p, MYC_K_F32);
    c.Store(to, c.Op(MYC_K_DIV, MYC_K_F32, r, c.Load(q, MYC_K_F32)));
    RunOn(c, Instance({n}, {x, y, out}));
    ASSERT_TRUE(out.equal(Call("aten::div", "Tensor", {x, y.expand({n}).contiguous()})));
  }
}

TEST(Kernel, ProductAndSumRoundedOnce) {
  const int64_t n = 5003;
  for (const T dtype : {T::Float, T::Double}) {
    const at::Tensor x = Specials(dtype, 0), y = Specials(dtype, 1);
    const auto some = [&](const at::Tensor& t) {  // numbers whose products and sums round, between special ones
      at::Tensor out = at::randn({n}).to(dtype);
      for (int64_t i = 0; i < n; i += 3) out[i].copy_(t[i * 7 % t.numel()]);
      return out;
    };
    const at::Tensor factors[] = {some(x), some(y)}, addends = some(x).roll(1);
    for (int one = 0; one < 7; ++one) {
      const at::Tensor a = one & 1 ? factors[0].slice(0, 1, 2) : factors[0],
                       b = one & 2 ? factors[1].slice(0, 5, 6) : factors[1],
                       c = one & 4 ? addends.slice(0, 7, 8) : addends, out = at::empty_like(addends);
      Code code({1});
      const uint64_t i = code.Of(a, MYC_K_READ, {n}), j = code.Of(b, MYC_K_READ, {n}), k = code.Of(c, MYC_K_READ, {n});
      const uint64_t to = code.Of(out, MYC_K_WRITE, {n}), r = code.Load(i, ClassOf(dtype)),
                     s = code.Load(j, ClassOf(dtype));
      code.Store(to, code.Op(MYC_K_FMA, ClassOf(dtype), r, s, code.Load(k, ClassOf(dtype))));
      RunOn(code, Instance({n}, {a, b, c, out}));
      const auto whole = [](const at::Tensor& t) { return t.expand({n}).contiguous(); };
      ExpectSame(out, Call("aten::addcmul", "", {whole(c), whole(a), whole(b), 1}), 0, "fma " + std::to_string(one));
    }
  }
}

TEST(Kernel, Where) {
  for (const T dtype : {T::Float, T::Double, T::Long, T::Bool}) {
    const at::Tensor x = Specials(dtype, 0), y = Specials(dtype, 1), w = Specials(T::Bool, 1).slice(0, 0, x.numel());
    const at::Tensor mask = at::randint(2, x.sizes(), at::kLong).to(T::Bool);
    for (int one = 0; one < 8; ++one) {
      const at::Tensor m = one & 1 ? mask.slice(0, 3, 4) : mask, a = one & 2 ? x.slice(0, 5, 6) : x,
                       b = one & 4 ? y.slice(0, 7, 8) : y, out = at::empty_like(x);
      Code c({1});
      const std::vector<int64_t> sizes = x.sizes().vec();
      const uint64_t i = c.Of(m, MYC_K_READ, sizes), j = c.Of(a, MYC_K_READ, sizes), k = c.Of(b, MYC_K_READ, sizes);
      const uint64_t to = c.Of(out, MYC_K_WRITE, sizes), r = c.Load(i, MYC_K_B8), s = c.Load(j, ClassOf(dtype));
      c.Store(to, c.Op(MYC_K_WHERE, ClassOf(dtype), r, s, c.Load(k, ClassOf(dtype))));
      RunOn(c, Instance(sizes, {m, a, b, out}));
      ExpectSame(out, Call("aten::where", "self", {m, a, b}).expand_as(x), 0, "where " + std::to_string(one));
    }
  }
}

TEST(Kernel, CastsAndRounds) {
  const std::vector<T> dtypes = {T::Float, T::Double, T::Half, T::BFloat16, T::Long,
                                 T::Int,   T::Short,  T::Char, T::Byte,     T::Bool};
  for (const T from : dtypes) {
    for (const T to : dtypes) {
      at::Tensor x = Specials(from, 0);
      // Floats that don't fit an integer have no meaning in C++.
      if (c10::isFloatingType(from) && !c10::isFloatingType(to) && to != T::Bool) {
        x = at::randint(0, 127, {3000}, at::kLong).to(T::Double).add(0.25).to(from);
      }
      const at::Tensor out = at::zeros(x.sizes(), x.options().dtype(to));
      const at::Tensor rounded = at::zeros(x.sizes(), x.options().dtype(ClassOf(to) == MYC_K_F32   ? T::Float
                                                                        : ClassOf(to) == MYC_K_I64 ? T::Long
                                                                                                   : to));
      Code c({1});
      const std::vector<int64_t> sizes = x.sizes().vec();
      const uint64_t in = c.Of(x, MYC_K_READ, sizes), o = c.Of(out, MYC_K_WRITE, sizes),
                     p = c.Of(rounded, MYC_K_WRITE, sizes);
      uint64_t r = c.Load(in, ClassOf(from));
      if (ClassOf(from) != ClassOf(to)) r = c.Op(MYC_K_CAST, ClassOf(to), r);
      c.Store(o, r);
      c.Store(p, c.Op(MYC_K_ROUND, ClassOf(to), r, ToCode(to)));
      RunOn(c, Instance(sizes, {x, out, rounded}));
      const std::string what = std::string(c10::toString(from)) + " to " + c10::toString(to);
      ExpectSame(out, x.to(to), 0, what);
      ExpectSame(rounded, x.to(to).to(rounded.scalar_type()), 0, what + " rounded");
    }
  }
}

// A view with the sizes, in one of several layouts; broadcast: some sizes are 1.
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

TEST(Kernel, FramesAndIndices) {
  // The same points as [6, 10] and as [60]; and the index along a dim.
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

TEST(Kernel, Folds) {
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

TEST(Kernel, FoldsKeepNans) {
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
  // A fold of a value of the kept points, their index, and a row value stored for all points.
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
    at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t end) {  // no threads of threads
      if (begin == 0) RunOn(c, Instance({x.numel()}, {x, sum, out}));
    });
    ExpectSame(out, x.exp() - sum, 0, "nested", 1e-6);

    // Threads that share out the units of two instances, whole rows of a fold.
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
