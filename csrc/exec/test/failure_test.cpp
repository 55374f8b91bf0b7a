// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A failed step leaves the storages as the ops before it have left them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

TEST(Failure, LeavesWhatEarlierOpsHaveLeft) {
  Session s;
  for (const uint64_t id : {1, 2, 3}) s.Upload(id, Range(6));
  Builder b;
  const uint64_t in = b.Buffer(), other = b.Buffer(), third = b.Buffer();
  const uint64_t x = b.Tensor(in, MYC_F32, {2, 3}), w = b.Tensor(other, MYC_F32, {2, 3});
  const uint64_t v = b.Tensor(third, MYC_F32, {2, 3});
  const uint64_t bad = b.Fresh(MYC_F32, {2, 2}), early = b.Fresh(MYC_F32, {2, 3}), late = b.Fresh(MYC_F32, {2, 3});
  const uint64_t ebuf = 4, lbuf = 5;  // the buffers of the last two
  b.Record(1);
  b.Call("aten::neg_", {T(w)}, {});
  b.Record(3);
  b.Call("aten::mm", {T(x), T(x)}, {bad});  // step 1 fails: [2,3] @ [2,3]
  b.Record(4);
  b.Call("aten::add_.Tensor", {T(w), T(x), Int(1)}, {});
  b.Call("aten::abs", {T(x)}, {late});
  b.Record(2);
  b.Call("aten::neg", {T(x)}, {early});  // of an earlier op, after the failed step
  b.Record(5);
  b.Call("aten::neg_", {T(v)}, {});
  b.Version(other, 1, other);
  b.Version(other, 4, other);
  b.Version(third, 5, third);
  b.Version(ebuf, 2, ebuf);
  b.Version(lbuf, 4, lbuf);
  const auto errors =
      s.Run(b, {}, {{in, 1}, {other, 2}, {third, 3}}, {{other, 2}, {third, 3}, {3, 4}, {ebuf, 5}, {lbuf, 6}}, 77);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].step, 1u);
  EXPECT_EQ(errors[0].kind, MYC_E_RUNTIME);
  EXPECT_NE(errors[0].text.find("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), std::string::npos);
  EXPECT_TRUE(at::equal(s.ReadF32(1, {6}).tensor, Range(6)));
  EXPECT_TRUE(at::equal(s.ReadF32(2, {6}).tensor, -Range(6)));  // op 1 has run, op 4 has not
  EXPECT_TRUE(at::equal(s.ReadF32(3, {6}).tensor, Range(6)));
  EXPECT_TRUE(at::equal(s.ReadF32(5, {6}).tensor, -Range(6)));
  for (const uint64_t id : {4, 6}) {
    const Got got = s.ReadF32(id, {1});
    EXPECT_EQ(got.kind, MYC_E_RUNTIME) << id;
    EXPECT_EQ(got.text, errors[0].text) << id;
    EXPECT_EQ(got.call, 77u) << id;
    EXPECT_EQ(got.step, 1u) << id;
  }

  // A step that needs what was not made fails with the first cause.
  Builder later;
  const uint64_t y = later.Fresh(MYC_F32, {2, 2}), z = later.Fresh(MYC_F32, {2, 2});
  later.Call("aten::neg", {T(y)}, {z});
  const auto inherited = s.Run(later, {}, {{0, 4}}, {{1, 9}}, 78);
  ASSERT_EQ(inherited.size(), 1u);
  EXPECT_EQ(inherited[0].cause_call, 77u);
  EXPECT_EQ(inherited[0].cause_step, 1u);
  EXPECT_EQ(s.ReadF32(9, {1}).call, 77u);

  // A poisoned storage can be freed and bound again.
  s.Free({4, 9});
  EXPECT_EQ(s.ReadF32(4, {1}).text, "Storage 4 does not exist on the worker.");
  EXPECT_TRUE(s.Run(later, {}, {{0, 1}}, {{1, 9}}, 79).empty());
  EXPECT_EQ(s.ReadF32(9, {4}).kind, MYC_OK);
}

TEST(Failure, AContentThatIsGoneIsPoison) {
  Session s;
  s.Upload(1, Range(4));
  s.Upload(2, Range(4));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4}), y = b.Fresh(MYC_F32, {4}), z = b.Fresh(MYC_F32, {4});
  b.Record(3);
  b.Call("aten::neg_", {T(x)}, {});  // of a later op than the one that fails
  b.Record(2);
  b.Call("aten::mm", {T(y), T(y)}, {z});
  b.Version(0, 3, 0);
  EXPECT_EQ(s.Run(b, {}, {{0, 1}, {1, 2}}, {{0, 1}}).size(), 1u);
  EXPECT_EQ(s.ReadF32(1, {4}).kind, MYC_E_RUNTIME);
  EXPECT_EQ(s.ReadF32(2, {4}).kind, MYC_OK);
}

TEST(Failure, AVersionInAnotherStoragesBufferIsCopied) {
  Session s;
  s.Upload(1, Range(4));
  s.Upload(2, -Range(4));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4}), y = b.Fresh(MYC_F32, {4}), z = b.Fresh(MYC_F32, {4});
  b.Record(2);
  b.Call("aten::mm", {T(x), T(y)}, {z});
  b.Record(1);
  b.Clone(b.Buffer(), 1);
  Words versions = {0, 1, 2, 0};  // op 1 has given storage 1 the content of storage 2, whose buffer nothing has written
  b.Raw(versions);
  EXPECT_EQ(s.Run(b, {}, {{0, 1}, {1, 2}}, {{0, 1}}).size(), 1u);
  EXPECT_TRUE(at::equal(s.ReadF32(1, {4}).tensor, -Range(4)));
  Builder write;
  const uint64_t w = write.Fresh(MYC_F32, {4});
  write.Call("aten::zero_", {T(w)}, {});
  EXPECT_TRUE(s.Run(write, {}, {{0, 1}}, {{0, 1}}).empty());
  EXPECT_TRUE(at::equal(s.ReadF32(2, {4}).tensor, -Range(4)));
}

TEST(Failure, AFailedListWritesNothing) {
  Session s;
  s.Upload(1, Range(4));
  s.Upload(2, Range(4));
  s.Upload(3, Range(3));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4}), y = b.Fresh(MYC_F32, {4}), z = b.Fresh(MYC_F32, {3});
  b.Call("aten::_foreach_add_.List", {List(MYC_L_TENSORS, {T(x), T(y)}), List(MYC_L_TENSORS, {T(z), T(z)}), Int(1)});
  EXPECT_EQ(s.Run(b, {}, {{0, 1}, {1, 2}, {2, 3}}, {{0, 1}, {1, 2}}).size(), 1u);
  for (const uint64_t id : {1, 2}) EXPECT_TRUE(at::equal(s.ReadF32(id, {4}).tensor, Range(4))) << id;
}

TEST(Failure, MissingStoragesFailTheirFirstUse) {
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

TEST(Failure, StoragesThatACallFreesEndBeforeItsSteps) {
  Session s;
  s.Upload(1, Range(4));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4}), y = b.Fresh(MYC_F32, {4});
  b.Call("aten::neg", {T(x)}, {y});
  EXPECT_TRUE(s.Run(b, {}, {{0, 1}}, {{1, 1}}, 1, {1}).empty());
  EXPECT_TRUE(at::equal(s.ReadF32(1, {4}).tensor, -Range(4)));
}

TEST(Failure, KindsAreThoseOfPythonsExceptions) {
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
  c.Record(3);  // each step is of an earlier op than the one before, so it runs although that has failed
  c.Call("aten::_softmax", {T(y), Int(5), Bool(false)}, {q});
  c.Record(2);
  c.Call("aten::repeat", {T(y), List(MYC_L_INTS, {Size(m)})}, {q});
  c.Record(1);
  c.Call("aten::batch_norm_stats", {T(y), Float(1)}, {q, Builder::kNoTensor});  // CUDA only
  const auto errors = s.Run(c, {uint64_t{1} << 46}, {{0, 1}}, {});
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors[0].kind, MYC_E_NOT_IMPLEMENTED) << errors[0].text;  // the first op
  EXPECT_EQ(errors[1].kind, MYC_E_INDEX) << errors[1].text;
  EXPECT_EQ(errors[2].kind, MYC_E_MEMORY) << errors[2].text;
}

TEST(Failure, AllAreCountedAndTheFirstOpsComesFirst) {
  Session s;
  s.Upload(1, Range(4));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4});
  for (uint64_t i = 0; i < 12; ++i) {
    b.Record(12 - i);
    b.Call("aten::mm", {T(x), T(x)}, {b.Fresh(MYC_F32, {4})});
  }
  const auto errors = s.Run(b, {}, {{0, 1}}, {});
  EXPECT_EQ(s.failed(), 12);
  ASSERT_EQ(errors.size(), 8u);
  EXPECT_EQ(errors[0].step, 11u);  // of the first op
}

}  // namespace
}  // namespace mycelya::exec::test
