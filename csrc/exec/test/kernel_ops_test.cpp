// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Kernels against ATen, op by op.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "exec/test/KernelCompare.h"
#include "exec/test/KernelWords.h"

namespace mycelya::exec::test {
namespace {

using T = c10::ScalarType;

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

// ATen's sqrt of f64 is MKL's, which may have an error of one ulp.
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
    {MYC_K_ERFC, "aten::erfc", "", 1, 2},
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
    {MYC_K_FLOOR_DIVIDE, "aten::floor_divide", "", 2, 0},
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

// Drops the sign of zeros, which ATen's maximum takes from either operand.
at::Tensor NoSign(const at::Tensor& t) { return c10::isFloatingType(t.scalar_type()) ? t + 0.0 : t; }

TEST(Kernel, Ops) {
  int tried = 0;
  for (const T dtype : {T::Float, T::Double, T::Long, T::Bool}) {
    const uint64_t cls = ClassOf(dtype);
    const at::Tensor x = Specials(dtype, 0), y = Specials(dtype, 1);
    for (const Row& row : kRows) {
      if (!Takes(row.op, cls)) continue;
      ++tried;
      // Two tiles, and one value with a tile for each operand.
      for (int one = 0; one < (row.operands == 2 ? 3 : 1); ++one) {
        for (int64_t pick = 0; pick < (one == 0 ? 1 : 20); ++pick) {
          const at::Tensor a = one == 1 ? y.slice(0, pick, pick + 1) : x;
          at::Tensor b = one == 2 ? y.slice(0, pick, pick + 1) : y;
          if (row.op == MYC_K_FMOD || row.op == MYC_K_REMAINDER || row.op == MYC_K_FLOOR_DIVIDE) {
            // ATen's scalar loop divides by subnormal numbers; its vectors do not.
            if (c10::isFloatingType(dtype) && one == 1) b = b.masked_fill(b.abs() < 1e-30, 3);
            if (dtype == T::Long) b = b.masked_fill((b == 0).logical_or(b == -1), 3);  // see Division
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
  // All rows take floats of both classes, except four of bits and one of integers. 22 take integers and 12 take bools.
  EXPECT_EQ(tried, 2 * (static_cast<int>(std::size(kRows)) - 5) + 22 + 12);
}

// Quotients by 0, and of the least integer by -1, must not end the process, whatever the words of a program say.
TEST(Kernel, Division) {
  constexpr int64_t least = std::numeric_limits<int64_t>::min();
  const std::vector<int64_t> by = {0, -1, 0, -1, 2, -2};
  const at::Tensor x = at::tensor({least, least, int64_t{7}, int64_t{7}, int64_t{-7}, int64_t{-7}}), y = at::tensor(by);
  const std::vector<std::pair<uint64_t, std::vector<int64_t>>> ops = {
      {MYC_K_FLOOR_DIVIDE, {0, least, 0, -7, -4, 3}},
      {MYC_K_REMAINDER, {0, 0, 0, 0, 1, -1}},
      {MYC_K_FMOD, {0, 0, 0, 0, -1, -1}},
  };
  for (const auto& [op, want] : ops) {
    const at::Tensor out = at::empty_like(x);
    const std::vector<int64_t> sizes = x.sizes().vec();
    Code c({1});
    const uint64_t p = c.Of(x, MYC_K_READ, sizes), q = c.Of(y, MYC_K_READ, sizes), to = c.Of(out, MYC_K_WRITE, sizes);
    const uint64_t r = c.Load(p, MYC_K_I64);
    c.Store(to, c.Op(op, MYC_K_I64, r, c.Load(q, MYC_K_I64)));
    RunOn(c, Instance(sizes, {x, y, out}));
    EXPECT_TRUE(out.equal(at::tensor(want))) << op;
  }
}

// The functions of kernel/Math.h are within 2 ulp of the exact value for all exponents. As in ATen, 1 / (1 + e^-x) is 0
// if e^-x is infinite. The odd number of values leaves a partial vector.
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

// Division by one value multiplies by its reciprocal, with the same bits.
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
    const auto some = [&](const at::Tensor& t) {  // numbers whose products and sums round, mixed with special values
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
      // The conversion of a float out of an integer's range is undefined in C++.
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

}  // namespace
}  // namespace mycelya::exec::test
