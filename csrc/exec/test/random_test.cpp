// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Random numbers have the bits of PyTorch on the CPU.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

at::Generator Seeded(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

TEST(Random, ASessionStartsWithPyTorchsDefaultSeed) {
  Session s;
  Builder b;
  const uint64_t r = b.Fresh(MYC_F32, {100});
  b.Call("mycelya::test_rand", {Ints({100}), None()}, {r});
  ASSERT_TRUE(s.Run(b, {}, {}, {{0, 1}}).empty());
  EXPECT_TRUE(at::equal(s.ReadF32(1, {100}).tensor, at::rand({100}, Seeded(67280421310721))));
}

TEST(Random, ManualSeedSetsTheDefaultGenerator) {
  Session s;
  Builder b;
  const uint64_t gen = b.Param(), seed = b.Param();
  const uint64_t r = b.Fresh(MYC_F32, {1000}), n = b.Fresh(MYC_F32, {33}), given = b.Fresh(MYC_F32, {100});
  b.Call("mycelya::manual_seed", {Generator(gen), Number(MYC_N_I64, seed)});
  b.Call("mycelya::test_rand", {Ints({1000}), None()}, {r});
  b.Call("mycelya::test_randn", {Ints({33})}, {n});
  // The default generator, named by its id.
  b.Call("mycelya::test_rand", {Ints({100}), Generator(gen)}, {given});
  myc_prog* p = s.Prepare(b);
  for (const uint64_t value : {uint64_t{42}, uint64_t{0}, ~uint64_t{0}}) {
    ASSERT_TRUE(s.Run(p, {0, value}, {}, {{0, 1}, {1, 2}, {2, 3}}).empty());
    at::Generator want = Seeded(value);
    EXPECT_TRUE(at::equal(s.ReadF32(1, {1000}).tensor, at::rand({1000}, want)));
    EXPECT_TRUE(at::equal(s.ReadF32(2, {33}).tensor, at::randn({33}, want)));
    EXPECT_TRUE(at::equal(s.ReadF32(3, {100}).tensor, at::rand({100}, want)));
  }
}

TEST(Random, OtherGeneratorsHaveAStateOfTheirOwn) {
  Session s;
  Builder b;
  const uint64_t a = b.Param(), c = b.Param(), seed = b.Param();
  const uint64_t x = b.Fresh(MYC_F32, {64}), y = b.Fresh(MYC_F32, {64}), z = b.Fresh(MYC_F32, {64});
  b.Call("mycelya::manual_seed", {Generator(a), Number(MYC_N_I64, seed)});
  b.Call("mycelya::manual_seed", {Generator(c), Number(MYC_N_I64, seed)});
  b.Call("mycelya::test_rand", {Ints({64}), Generator(a)}, {x});
  b.Call("mycelya::test_rand", {Ints({64}), Generator(c)}, {y});
  b.Call("aten::normal_", {T(x), Float(1), Float(2), Generator(a)});
  b.Call("mycelya::test_bernoulli", {T(y), Generator(c)}, {z});
  ASSERT_TRUE(s.Run(b, {5, 6, 123}, {}, {{0, 1}, {1, 2}, {2, 3}}).empty());
  at::Generator first = Seeded(123), second = Seeded(123);
  at::rand({64}, first);
  const at::Tensor uniform = at::rand({64}, second);
  EXPECT_TRUE(at::equal(s.ReadF32(1, {64}).tensor, at::normal(1, 2, {64}, first)));
  EXPECT_TRUE(at::equal(s.ReadF32(2, {64}).tensor, uniform));
  EXPECT_TRUE(at::equal(s.ReadF32(3, {64}).tensor, at::bernoulli(uniform, second)));
}

}  // namespace
}  // namespace mycelya::exec::test
