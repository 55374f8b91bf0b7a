// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A failed step poisons everything that depends on it, is reported once, and does not affect other steps.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

TEST(Poison, FlowsThroughResultsWritesAndStorages) {
  Session s;
  s.Upload(1, Range(6));
  s.Upload(2, Range(6));
  Builder b;
  const uint64_t in = b.Buffer(), other = b.Buffer();
  const uint64_t x = b.Tensor(in, MYC_F32, {2, 3}), w = b.Tensor(other, MYC_F32, {2, 3});
  const uint64_t bad = b.Fresh(MYC_F32, {2, 2}), next = b.Fresh(MYC_F32, {2, 2}), good = b.Fresh(MYC_F32, {2, 3});
  b.Call("aten::neg", {T(x)}, {good});                   // 0
  b.Call("aten::mm", {T(x), T(x)}, {bad});               // 1 fails: [2,3] @ [2,3]
  b.Call("aten::neg", {T(bad)}, {next});                 // 2 skipped
  b.Call("aten::add_.Tensor", {T(w), T(next), Int(1)});  // 3 skipped, poisons storage 2
  b.Clone(b.Buffer(), 3);                                // 4 skipped
  b.Call("aten::abs", {T(good)}, {good});                // 5 runs
  const auto errors = s.Run(b, {}, {{in, 1}, {other, 2}}, {{2, 3}, {3, 4}, {4, 5}, {5, 6}}, 77);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].step, 1u);
  EXPECT_EQ(errors[0].kind, MYC_E_RUNTIME);
  EXPECT_NE(errors[0].text.find("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), std::string::npos);
  for (const uint64_t id : {2, 3, 4, 6}) {
    const Got got = s.ReadF32(id, {1});
    EXPECT_EQ(got.kind, MYC_E_RUNTIME) << id;
    EXPECT_EQ(got.text, errors[0].text) << id;
    EXPECT_EQ(got.call, 77u) << id;
    EXPECT_EQ(got.step, 1u) << id;
  }
  EXPECT_TRUE(at::equal(s.ReadF32(5, {6}).tensor, Range(6)));
  EXPECT_TRUE(at::equal(s.ReadF32(1, {6}).tensor, Range(6)));

  // Poison reaches the next program with its first cause and without a further report.
  Builder later;
  const uint64_t y = later.Fresh(MYC_F32, {2, 2}), z = later.Fresh(MYC_F32, {2, 2});
  later.Call("aten::neg", {T(y)}, {z});
  EXPECT_TRUE(s.Run(later, {}, {{0, 3}}, {{1, 9}}, 78).empty());
  EXPECT_EQ(s.ReadF32(9, {1}).call, 77u);

  // A poisoned storage can be freed and bound again.
  s.Free({3});
  EXPECT_EQ(s.ReadF32(3, {1}).text, "Storage 3 does not exist on the worker.");
  EXPECT_TRUE(s.Run(later, {}, {{0, 1}}, {{1, 9}}, 79).empty());
  EXPECT_EQ(s.ReadF32(9, {4}).kind, MYC_OK);
}

TEST(Poison, EndsWhereABufferIsMadeAnew) {
  Session s;
  s.Upload(1, Range(4));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4}), y = b.Fresh(MYC_F32, {4}), z = b.Fresh(MYC_F32, {4});
  b.Call("aten::mm", {T(x), T(x)}, {y});
  b.Free(1);
  b.Copy(y, x);  // made again
  b.Call("aten::mm", {T(x), T(x)}, {z});
  b.Call("aten::neg", {T(x)}, {z});
  const auto errors = s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 3}});
  EXPECT_EQ(errors.size(), 2u);
  EXPECT_TRUE(at::equal(s.ReadF32(2, {4}).tensor, Range(4)));
  EXPECT_TRUE(at::equal(s.ReadF32(3, {4}).tensor, -Range(4)));
}

TEST(Poison, AFailedWriteSpoilsEveryOperandItWrites) {
  Session s;
  s.Upload(1, Range(4));
  s.Upload(2, Range(4));
  s.Upload(3, Range(3));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4}), y = b.Fresh(MYC_F32, {4}), z = b.Fresh(MYC_F32, {3});
  b.Call("aten::_foreach_add_.List", {List(MYC_L_TENSORS, {T(x), T(y)}), List(MYC_L_TENSORS, {T(x), T(z)}), Int(1)});
  EXPECT_EQ(s.Run(b, {}, {{0, 1}, {1, 2}, {2, 3}}, {}).size(), 1u);
  EXPECT_EQ(s.ReadF32(1, {4}).kind, MYC_E_RUNTIME);
  EXPECT_EQ(s.ReadF32(2, {4}).kind, MYC_E_RUNTIME);
  EXPECT_EQ(s.ReadF32(3, {3}).kind, MYC_OK);
}

TEST(Poison, MissingStoragesFailTheirFirstUse) {
  Session s;
  s.Upload(1, Range(4));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4}), y = b.Fresh(MYC_F32, {4}), z = b.Fresh(MYC_F32, {4});
  b.Call("aten::neg", {T(x)}, {z});
  b.Call("aten::add.Tensor", {T(x), T(y), Int(1)}, {z});
  b.Call("aten::neg_", {T(y)});
  const auto errors = s.Run(b, {}, {{0, 1}, {1, 40}}, {{2, 2}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].step, 1u);
  EXPECT_EQ(errors[0].text, "Storage 40 does not exist on the worker.");
  EXPECT_EQ(s.ReadF32(2, {4}).text, errors[0].text);
  EXPECT_EQ(s.Usage().first, 2u);  // 40 still doesn't exist

  Builder pass;
  pass.Buffer();
  pass.Buffer();
  const auto unused = s.Run(pass, {}, {{0, 41}}, {{0, 3}, {1, 4}});
  ASSERT_EQ(unused.size(), 2u);
  EXPECT_EQ(unused[0].step, UINT32_MAX);
  EXPECT_EQ(unused[0].text, "Storage 41 does not exist on the worker.");
  EXPECT_EQ(unused[1].text, "BUG: buffer 1 is used before a step has made it.");
  EXPECT_EQ(s.ReadF32(4, {1}).text, unused[1].text);
}

TEST(Poison, KindsAreThoseOfPythonsExceptions) {
  Session s;
  s.Upload(1, Range(4));
  Builder b;
  const uint64_t n = b.Param();
  const uint64_t x = b.Fresh(MYC_F32, {4}), r = b.Fresh(MYC_F32, {4});
  b.Call("aten::_softmax", {T(x), Int(5), Bool(false)}, {r});
  b.Call("aten::repeat", {T(x), List(MYC_L_INTS, {Size(n)})}, {r});
  b.Call("aten::special_i0e_", {}, {});
  EXPECT_NE(s.Refusal(b.Done()), "accepted");  // no such operator
  Builder c;
  const uint64_t m = c.Param(), y = c.Fresh(MYC_F32, {4}), q = c.Fresh(MYC_F32, {4});
  c.Call("aten::_softmax", {T(y), Int(5), Bool(false)}, {q});
  c.Call("aten::repeat", {T(y), List(MYC_L_INTS, {Size(m)})}, {q});
  c.Call("aten::batch_norm_stats", {T(y), Float(1)}, {q, Builder::kNoTensor});  // CUDA only
  const auto errors = s.Run(c, {uint64_t{1} << 46}, {{0, 1}}, {});
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors[0].kind, MYC_E_INDEX) << errors[0].text;
  EXPECT_EQ(errors[1].kind, MYC_E_MEMORY) << errors[1].text;
  EXPECT_EQ(errors[2].kind, MYC_E_NOT_IMPLEMENTED) << errors[2].text;
}

TEST(Poison, AllFailuresAreCountedAndTheFirstDescribed) {
  Session s;
  s.Upload(1, Range(4));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4});
  for (int i = 0; i < 12; ++i) b.Call("aten::mm", {T(x), T(x)}, {b.Fresh(MYC_F32, {4})});
  const auto errors = s.Run(b, {}, {{0, 1}}, {});
  EXPECT_EQ(s.failed(), 12);
  ASSERT_EQ(errors.size(), 8u);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(errors[i].step, i);
}

}  // namespace
}  // namespace mycelya::exec::test
