// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Words that ParseKernel refuses and instances that Fits refuses.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "exec/test/KernelWords.h"

namespace mycelya::exec::test {
namespace {

using T = c10::ScalarType;

std::string Refusal(const KernelWords& w) {
  try {
    Reader in(w.data(), w.size());
    ParseKernel(in);
    in.End();
  } catch (const c10::ValueError& e) {
    return e.msg();
  }
  return "accepted";
}

void ExpectRefused(const Code& c, const char* text) { EXPECT_EQ(Refusal(c.Done()), text); }

TEST(KernelRefusals, OneInstruction) {
  const auto one = [](uint64_t op, uint64_t cls, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) {
    Code code({1});
    code.Op(op, cls, a, b, c);
    return code;
  };
  ExpectRefused(one(MYC_K_NEG, MYC_K_F32, 0),
                "BUG: register 0 of a kernel is used before it is made, by instruction 0.");
  ExpectRefused(one(MYC_K_LOAD, MYC_K_F32, 0), "BUG: a kernel has no operand 0, only 0.");
  ExpectRefused(one(MYC_K_CONST, 9), "BUG: 9 is not the class of a register.");
  ExpectRefused(one(MYC_K_CONST, MYC_K_B8, 2), "BUG: 2 is not a bool.");
  ExpectRefused(one(MYC_K_CONST, MYC_K_F32, 0, 1), "BUG: an unused word of instruction 0 of a kernel is 1.");
  ExpectRefused(one(MYC_K_NUMBER, MYC_K_F32, 0), "BUG: a kernel has no number 0, only 0.");
  ExpectRefused(one(MYC_K_INDEX, MYC_K_I64, 1), "BUG: a kernel has no dim 1, only 1.");
  ExpectRefused(one(MYC_K_COUNT, MYC_K_I64),
                "BUG: instruction 0 counts reduced points, but its kernel has no reduced dims.");
  for (const uint64_t op : {MYC_K_DIV, MYC_K_POW, MYC_K_ATAN2}) {
    Code c({1});
    const uint64_t r = c.Op(MYC_K_CONST, MYC_K_I64);
    c.Op(op, MYC_K_I64, r, r);
    EXPECT_EQ(Refusal(c.Done()), "BUG: no kernel's instruction " + std::to_string(op) + " takes a I64.");
  }
  {
    Code c({1});
    c.Op(200, MYC_K_F32, c.Op(MYC_K_CONST, MYC_K_F32), 0, 0);
    ExpectRefused(c, "BUG: there is no kernel instruction 200.");
  }
  {
    Code c({1});
    c.Op(MYC_K_SUM, MYC_K_F32, c.Op(MYC_K_CONST, MYC_K_F32));
    ExpectRefused(c, "BUG: instruction 1 reduces, but its kernel has no reduced dims.");
  }
  {
    Code c({1});
    const uint64_t f = c.Op(MYC_K_CONST, MYC_K_F32), i = c.Op(MYC_K_CONST, MYC_K_I64);
    c.Op(MYC_K_ADD, MYC_K_F32, f, i);
    ExpectRefused(c, "BUG: instruction 2 of a kernel has a F32 where a I64 belongs.");
  }
}

TEST(KernelRefusals, OperandsAndSpaces) {
  {
    Code c({1});
    c.Operand(T::Float, MYC_K_WRITE, {0});
    ExpectRefused(c, "BUG: operand 0 of a kernel is to be written, but no instruction stores it.");
    const uint64_t r = c.Op(MYC_K_CONST, MYC_K_F32);
    c.Store(0, r);
    EXPECT_EQ(Refusal(c.Done()), "accepted");
    c.Store(0, r);
    ExpectRefused(c, "BUG: operand 0 of a kernel is stored twice.");
  }
  {
    Code c({2});
    c.Operand(T::Float, MYC_K_WRITE, {1});
    c.Store(0, c.Op(MYC_K_CONST, MYC_K_F32));
    ExpectRefused(c, "BUG: operand 0 of a kernel is stored by instruction 1, but does not run along all dims.");
  }
  {
    Code c({2}, 1);
    const uint64_t x = c.Operand(T::Float, MYC_K_READ, {0, 1}), y = c.Operand(T::Float, MYC_K_WRITE, {0});
    c.Store(y, c.Load(x, MYC_K_F32));
    ExpectRefused(c, "BUG: operand 1 of a kernel is stored by instruction 1, but does not run along all dims.");
  }
  {
    Code c({1});
    c.Load(c.Operand(T::Float, MYC_K_WRITE, {0}), MYC_K_F32);
    ExpectRefused(c, "BUG: operand 0 of a kernel is read by instruction 0, which its access does not allow.");
  }
  {
    Code c({1});
    c.Load(c.Operand(T::Half, MYC_K_READ, {0}), MYC_K_F64);
    ExpectRefused(c, "BUG: instruction 0 of a kernel has a F64 where a F32 belongs.");
  }
  {
    Code c({2});
    c.Operand(T::Half, MYC_K_READ, {1, 1});
    ExpectRefused(c, "BUG: operand 0 of a kernel runs twice along dim 1.");
  }
  for (const std::vector<int>& along : {std::vector<int>{kTaken, kTaken}, {0, kTaken}}) {
    Code c({1});
    c.Operand(T::Half, along.front() == 0 ? MYC_K_WRITE : MYC_K_READ, along);
    ExpectRefused(c, "BUG: operand 0 of a kernel can't be taken from, because of its index space, access or dims.");
  }
  {
    Code c({1});
    c.Load(c.Operand(T::Float, MYC_K_READ, {kTaken}), MYC_K_F32);
    ExpectRefused(c, "BUG: instruction 0 of a kernel loads operand 0, which has no place without a position.");
  }
  {
    Code c({1});
    const uint64_t x = c.Operand(T::Float, MYC_K_READ, {0}), i = c.Op(MYC_K_CONST, MYC_K_I64);
    c.Op(MYC_K_TAKE, MYC_K_F32, x, i);
    ExpectRefused(c, "BUG: instruction 1 of a kernel takes from operand 0, which has no dim for that.");
  }
  {
    Code c({1});
    const uint64_t x = c.Operand(T::Float, MYC_K_READ, {kTaken}), i = c.Op(MYC_K_CONST, MYC_K_F32);
    c.Op(MYC_K_TAKE, MYC_K_F32, x, i);
    ExpectRefused(c, "BUG: instruction 1 of a kernel has a F32 where a I64 belongs.");
  }
  for (const T dtype : {T::ComplexFloat, T::UInt64, T::Float8_e5m2}) {
    Code c({1});
    c.Operand(dtype, MYC_K_READ, {0});
    EXPECT_EQ(Refusal(c.Done()).rfind("BUG: a kernel has an operand of dtype ", 0), 0u);
  }
  {
    Code c({1}, 1);
    uint64_t r = c.Op(MYC_K_CONST, MYC_K_F32);
    for (int i = 0; i < 33; ++i) r = c.Op(MYC_K_SUM, MYC_K_F32, r);
    ExpectRefused(c, "BUG: instruction 33 reduces a value that depends on 32 reductions in a row.");
  }
  ExpectRefused(Code({1, 1}, 1), "BUG: a kernel with reduced dims has 2 index spaces.");
  ExpectRefused(Code({}), "BUG: a kernel has no index space.");
}

TEST(KernelRefusals, Instances) {
  const at::Tensor x = at::zeros({4, 5});
  Code c({2}, 1);
  c.Of(x, MYC_K_READ, {4, 5});
  c.Op(MYC_K_MAX, MYC_K_F32, c.Load(0, MYC_K_F32));
  const auto k = c.Parse();
  const auto fit = [&](std::vector<int64_t> sizes, std::vector<int64_t> of,
                       std::vector<int64_t> strides) -> std::string {
    const KernelOperandAt at = {nullptr, of.data(), strides.data()};
    const char* why = nullptr;
    return Fits(*k, {sizes.data(), &at, nullptr}, &why) ? "fits" : why;
  };
  EXPECT_EQ(fit({4, 5}, {4, 5}, {5, 1}), "fits");
  EXPECT_EQ(fit({4, 5}, {4, 4}, {5, 1}), "an operand's size is not that of its index space");
  EXPECT_EQ(fit({4, -5}, {4, -5}, {5, 1}), "a size is negative");
  EXPECT_EQ(fit({1ll << 40, 1ll << 40}, {1ll << 40, 1ll << 40}, {1, 1}), "it has more points than can be counted");
  EXPECT_EQ(fit({4, 5}, {4, 5}, {1ll << 62, 1}), "an operand is too large");
  EXPECT_EQ(fit({4, 5}, {4, 5}, {-5, 1}), "a stride is negative");
  EXPECT_EQ(fit({4, 0}, {4, 0}, {5, 1}), "a maximum or minimum of no elements has no value");
  EXPECT_EQ(fit({0, 0}, {0, 0}, {5, 1}), "fits");
}

TEST(KernelRefusals, Numbers) {
  const auto fit = [](at::ScalarType dtype, KernelNumber number) {
    const at::Tensor x = at::zeros({4}, dtype);
    Code c({1});
    c.Of(x, MYC_K_READ | MYC_K_WRITE, {4});
    c.Op(MYC_K_NUMBER, ClassOf(dtype), c.Number(), ToCode(dtype));
    c.Store(0, c.Load(0, ClassOf(dtype)));
    const Instance i({4}, {x}, {number});
    const char* why = nullptr;
    return Fits(*c.Parse(), i.At(), &why) ? "fits" : std::string(why);
  };
  const std::string none = "a dtype can't hold a number";
  for (const auto& [dtype, most] : std::map<at::ScalarType, double>{
           {at::kHalf, 65504}, {at::kBFloat16, 0x1.fep127}, {at::kFloat, std::numeric_limits<float>::max()}}) {
    EXPECT_EQ(fit(dtype, {false, most, 0}), "fits") << dtype;
    EXPECT_EQ(fit(dtype, {false, std::nextafter(-most, -HUGE_VAL), 0}), none) << dtype;
    EXPECT_EQ(fit(dtype, {false, -HUGE_VAL, 0}), "fits") << dtype;
    EXPECT_EQ(fit(dtype, {false, std::nan(""), 0}), "fits") << dtype;
  }
  EXPECT_EQ(fit(at::kHalf, {true, 0, -65505}), none);
  EXPECT_EQ(fit(at::kDouble, {false, 1e300, 0}), "fits");
  for (const auto& [dtype, ends] :
       std::map<at::ScalarType, std::pair<int64_t, int64_t>>{{at::kByte, {0, 255}},
                                                             {at::kChar, {-128, 127}},
                                                             {at::kShort, {-32768, 32767}},
                                                             {at::kInt, {INT32_MIN, INT32_MAX}},
                                                             {at::kUInt16, {0, 65535}},
                                                             {at::kUInt32, {0, UINT32_MAX}},
                                                             {at::kBool, {0, 1}}}) {
    EXPECT_EQ(fit(dtype, {true, 0, ends.first}), "fits") << dtype;
    EXPECT_EQ(fit(dtype, {true, 0, ends.second}), "fits") << dtype;
    EXPECT_EQ(fit(dtype, {true, 0, ends.first - 1}), none) << dtype;
    EXPECT_EQ(fit(dtype, {true, 0, ends.second + 1}), none) << dtype;
    EXPECT_EQ(fit(dtype, {false, 1, 0}), none) << dtype;
  }
  EXPECT_EQ(fit(at::kLong, {true, 0, INT64_MIN}), "fits");
  EXPECT_EQ(fit(at::kLong, {false, 1, 0}), none);
  Code c({1});
  c.Op(MYC_K_NUMBER, MYC_K_F32, c.Number(), ToCode(at::kComplexFloat));
  EXPECT_EQ(Refusal(c.Done()), "BUG: a kernel's number is to be one of ComplexFloat.");
}

}  // namespace
}  // namespace mycelya::exec::test
