// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Fused groups: kernels as steps of a program, and the plain steps that replace them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/all.h>
#include <ATen/ops/any.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/item.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "exec/test/Specimen.h"

namespace mycelya::exec::test {
namespace {

// A program of that kernel. The plain operator computes 2 - x, so the result shows which one ran.
struct Sample {
  Builder b;
  uint64_t in = 0, out = 0, checked = 0;

  // With `indices`, a call checks in front of the kernel that those indices are below 3, or -1.
  explicit Sample(D size, uint64_t plain = 1, bool indices = false) {
    const uint64_t n = b.Param();
    checked = b.Buffer();
    in = b.Buffer();
    out = b.Buffer();
    const uint64_t x = b.Tensor(in, MYC_F32, {P(n)}), y = b.Tensor(out, MYC_F32, {P(n)});
    const uint64_t kernel = b.Kernel(OneMinus());
    b.Fused(1 + indices, plain);
    if (indices) b.Call("mycelya::expect_within", {T(b.Tensor(checked, MYC_I64, {D(2)})), Int(3), Int(-1)});
    b.Launch(kernel, {size.word, x, 0, y, 1});
    b.Call("aten::rsub.Scalar", {T(x), Float(2), Int(1)}, {y});
  }
};

TEST(Fused, RunsItsKernels) {
  Session s;
  s.Upload(1, Range(6));
  Sample p(P(0));
  EXPECT_TRUE(s.Run(p.b, {6}, {{p.in, 1}}, {{p.out, 2}}).empty());
  EXPECT_TRUE(at::equal(s.ReadF32(2, {6}).tensor, 1 - Range(6)));
  EXPECT_EQ(s.fused().groups, 1u);
  EXPECT_EQ(s.fused().kernels, 1u);
  EXPECT_EQ(s.fused().calls, 1u);
}

TEST(Fused, HasTheTimesOfTheStepsThatRan) {
  Session s;
  s.Upload(1, Range(6));
  enum { kGroup, kKernel, kPlain, kSteps };
  for (const bool fits : {true, false}) {
    Sample p(fits ? P(0) : D(5));
    const std::vector<uint64_t>& times = s.Time(kSteps);
    EXPECT_TRUE(s.Run(p.b, {6}, {{p.in, 1}}, {{p.out, 2}}).empty());
    const int ran = fits ? kKernel : kPlain;
    for (int i = 0; i < kSteps; ++i) EXPECT_EQ(times[2 * i] != 0, i == ran) << i;
    EXPECT_LE(times[2 * ran], times[2 * ran + 1]);
  }
}

TEST(Fused, RunsTheOperatorsWhereSizesDoNotFit) {
  Session s;
  s.Upload(1, Range(6));
  for (const int64_t size : {5, 7}) {
    Sample p(size);
    EXPECT_TRUE(s.Run(p.b, {6}, {{p.in, 1}}, {{p.out, 2}}).empty());
    EXPECT_TRUE(at::equal(s.ReadF32(2, {6}).tensor, 2 - Range(6)));
    EXPECT_EQ(s.fused().groups, 0u);
  }
}

TEST(Fused, MayHaveNoOperators) {
  Builder b;
  const uint64_t n = b.Param(), in = b.Buffer(), x = b.Tensor(in, MYC_F32, {P(n)}), kernel = b.Kernel(OneMinus());
  b.Fused(1, 0);
  b.Launch(kernel, {P(n).word, x, 0, x, 0});
  Session s;
  s.Upload(1, Range(6));
  EXPECT_TRUE(s.Run(b, {6}, {{in, 1}}, {}).empty());
  EXPECT_TRUE(at::equal(s.ReadF32(1, {6}).tensor, 1 - Range(6)));
}

TEST(Fused, LeavesErrorsToTheOperators) {
  Session s;
  s.Upload(1, Range(6));
  Sample p(P(0));
  // A view past the end of its storage, and a storage that does not exist.
  for (const uint64_t id : {1, 7}) {
    const auto errors = s.Run(p.b, {9}, {{p.in, id}}, {{p.out, 2}});
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_EQ(errors[0].step, 2u);
    EXPECT_NE(s.ReadF32(2, {1}).kind, MYC_OK);
  }
  // Poison spreads without a further report.
  EXPECT_TRUE(s.Run(p.b, {6}, {{p.in, 2}}, {{p.out, 3}}).empty());
  EXPECT_NE(s.ReadF32(3, {1}).kind, MYC_OK);
}

// z[i] = not mask[i]. A call before the kernel draws the mask. The plain operator draws z instead.
Words Not() {
  const uint64_t b8 = uint64_t{MYC_K_B8} << 8;
  return {1,
          1,
          0,
          2,
          MYC_BOOL,
          MYC_K_READ,
          0,
          1,
          1,
          MYC_BOOL,
          MYC_K_WRITE,
          0,
          1,
          1,
          0,
          3,  //
          MYC_K_LOAD | b8,
          0,
          0,
          0,
          MYC_K_NOT | b8,
          0,
          0,
          0,
          MYC_K_STORE | b8,
          1,
          1,
          0};
}

struct Drawing {
  Builder b;
  uint64_t out = 0;

  explicit Drawing(bool last = false) {
    const uint64_t n = b.Param(), p = b.Param();
    const uint64_t drawn = b.Buffer();
    out = b.Buffer();
    const uint64_t mask = b.Tensor(drawn, MYC_BOOL, {P(n)}), z = b.Tensor(out, MYC_BOOL, {P(n)});
    const Words list = List(MYC_L_INTS, {Size(n)}), chance = Number(MYC_N_F64, p), contiguous = List(MYC_L_INTS, {});
    b.Fused(3, 1);
    if (!last) b.Call("mycelya::dropout_mask", {list, chance, contiguous}, {mask}, MYC_R_RNG);
    b.Launch(b.Kernel(Not()), {P(n).word, mask, 0, z, 1});
    if (last) b.Call("mycelya::dropout_mask", {list, chance, contiguous}, {mask}, MYC_R_RNG);
    b.Free(drawn);
    b.Call("mycelya::dropout_mask", {list, chance, contiguous}, {z}, MYC_R_RNG);
  }
};

TEST(Fused, DrawsInFrontOfItsKernels) {
  Session s;
  Drawing d;
  EXPECT_TRUE(s.Run(d.b, {6, std::bit_cast<uint64_t>(0.0)}, {}, {{d.out, 1}}).empty());
  EXPECT_FALSE(s.Read(1, MYC_BOOL, c10::kBool, {6}, {1}).tensor.any().item<bool>());
  EXPECT_TRUE(s.Run(d.b, {6, std::bit_cast<uint64_t>(1.0)}, {}, {{d.out, 1}}).empty());
  EXPECT_TRUE(s.Read(1, MYC_BOOL, c10::kBool, {6}, {1}).tensor.all().item<bool>());
}

TEST(Fused, LeavesTheErrorsOfACallToTheOperators) {
  Session s;
  Drawing d;
  const auto errors = s.Run(d.b, {6, std::bit_cast<uint64_t>(2.0)}, {}, {{d.out, 1}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].step, 4u);
  EXPECT_NE(errors[0].text.find("bernoulli_ expects p to be in [0, 1]"), std::string::npos) << errors[0].text;
}

TEST(Fused, ChecksIndicesInFrontOfItsKernels) {
  for (const auto& [index, fits] : {std::pair{0, true}, {2, true}, {-1, true}, {3, false}, {-2, false}}) {
    Session s;
    Sample p(P(0), 1, true);
    s.Upload(1, Range(6));
    s.Upload(3, at::tensor(std::vector<int64_t>{1, index}));
    EXPECT_TRUE(s.Run(p.b, {6}, {{p.in, 1}, {p.checked, 3}}, {{p.out, 2}}).empty());
    EXPECT_TRUE(at::equal(s.ReadF32(2, {6}).tensor, (fits ? 1 : 2) - Range(6))) << index;
    EXPECT_EQ(s.fused().groups, fits ? 1u : 0u) << index;
  }
}

TEST(Fused, CallsNothingAfterAKernel) {
  Session s;
  EXPECT_EQ(s.Refusal(Drawing(true).b.Done()), "BUG: step 2 is of a kind that the group of step 0 can't hold there.");
}

TEST(Fused, IsChecked) {
  Session s;
  Builder reads;
  const uint64_t read = reads.Fresh(MYC_F32, {D(2)});
  reads.Fused(1, 1);
  for (int i = 0; i < 2; ++i) reads.Call("aten::neg", {T(read)}, {reads.Fresh(MYC_F32, {D(2)})});
  EXPECT_EQ(s.Refusal(reads.Done()), "BUG: step 1 is of a kind that the group of step 0 can't hold there.");
  EXPECT_EQ(s.Refusal(Sample(P(0), 2).b.Done()), "BUG: step 0 is a group of the steps up to 4 of 3.");
  Builder alone;
  const uint64_t n = alone.Param();
  const uint64_t x = alone.Fresh(MYC_F32, {P(n)}), y = alone.Fresh(MYC_F32, {P(n)});
  alone.Launch(alone.Kernel(OneMinus()), {P(0).word, x, 0, y, 1});
  EXPECT_EQ(s.Refusal(alone.Done()), "BUG: step 0 is a kernel outside of a fused group.");
  Builder other;
  const uint64_t m = other.Param();
  const uint64_t u = other.Fresh(MYC_F64, {P(m)}), v = other.Fresh(MYC_F32, {P(m)});
  const uint64_t kernel = other.Kernel(OneMinus());
  other.Fused(1, 0);
  other.Launch(kernel, {P(0).word, u, 0, v, 1});
  EXPECT_EQ(s.Refusal(other.Done()), "BUG: tensor 0 has 1 dims of Double, the kernel's operand 1 of Float.");
}

}  // namespace
}  // namespace mycelya::exec::test
