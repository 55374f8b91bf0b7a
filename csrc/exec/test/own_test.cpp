// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Results with data-dependent shapes, and the operators of namespace mycelya.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

Got Words64(Session& s, uint64_t id, int64_t n) { return s.Read(id, MYC_I64, c10::ScalarType::Long, {n}, {1}); }

TEST(Dynamic, TheFirstResultSaysTheShapesOfTheOthers) {
  Session s;
  Builder b;
  const uint64_t x = b.Tensor(b.Buffer(), MYC_F32, {2, 3});
  const uint64_t shapes = b.Fresh(MYC_I64, {MYC_SHAPE_WORDS}), result = b.Fresh(MYC_U8, {0});
  b.Call("aten::nonzero", {T(x)}, {shapes, result}, MYC_R_DYNAMIC);
  s.Upload(1, at::tensor({0.f, 1.f, 0.f, 2.f, 0.f, 3.f}));
  ASSERT_TRUE(s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 3}}).empty());
  const Got words = Words64(s, 2, MYC_SHAPE_WORDS);
  ASSERT_EQ(words.kind, MYC_OK) << words.text;
  const auto* w = words.tensor.const_data_ptr<int64_t>();
  EXPECT_EQ(w[0], MYC_I64);
  EXPECT_EQ(w[1], 2);
  EXPECT_EQ(w[2], 3);
  EXPECT_EQ(w[3], 2);
  const std::vector<int64_t> strides = {w[2 + MYC_SHAPE_RANK], w[3 + MYC_SHAPE_RANK]};
  const Got got = s.Read(3, MYC_I64, c10::ScalarType::Long, {3, 2}, strides);
  ASSERT_EQ(got.kind, MYC_OK) << got.text;
  EXPECT_TRUE(at::equal(got.tensor, at::tensor({0, 1, 1, 0, 1, 2}, at::kLong).view({3, 2})));
}

TEST(Dynamic, SeveralResultsAndNothingFound) {
  Session s;
  Builder b;
  const uint64_t x = b.Tensor(b.Buffer(), MYC_I64, {0});
  const uint64_t shapes = b.Fresh(MYC_I64, {3 * MYC_SHAPE_WORDS});
  const uint64_t unique = b.Fresh(MYC_U8, {0}), inverse = b.Fresh(MYC_U8, {0}), counts = b.Fresh(MYC_U8, {0});
  b.Call("aten::_unique2", {T(x), Bool(true), Bool(true), Bool(true)}, {shapes, unique, inverse, counts},
         MYC_R_DYNAMIC);
  s.Upload(1, at::empty({0}, at::kLong));
  ASSERT_TRUE(s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 3}, {3, 4}, {4, 5}}).empty());
  const Got words = Words64(s, 2, 3 * MYC_SHAPE_WORDS);
  for (int i = 0; i < 3; ++i) {
    const auto* w = words.tensor.const_data_ptr<int64_t>() + i * MYC_SHAPE_WORDS;
    EXPECT_EQ(w[0], MYC_I64);
    EXPECT_EQ(w[1], 1);
    EXPECT_EQ(w[2], 0);
  }
}

TEST(Dynamic, AFailurePoisonsShapesAndResults) {
  Session s;
  Builder b;
  const uint64_t x = b.Tensor(b.Buffer(), MYC_I64, {1});
  const uint64_t shapes = b.Fresh(MYC_I64, {MYC_SHAPE_WORDS}), result = b.Fresh(MYC_U8, {0});
  b.Call("aten::bincount", {T(x), None(), Int(0)}, {shapes, result}, MYC_R_DYNAMIC);
  s.Upload(1, at::tensor({-1}, at::kLong));
  ASSERT_EQ(s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 3}}).size(), 1u);
  EXPECT_NE(Words64(s, 2, MYC_SHAPE_WORDS).kind, MYC_OK);
  EXPECT_NE(s.Read(3, MYC_U8, c10::ScalarType::Byte, {0}, {1}).kind, MYC_OK);
}

TEST(Dynamic, ResultsHaveToBeCounted) {
  Session s;
  Builder none, list;
  const uint64_t x = none.Tensor(none.Buffer(), MYC_I64, {1});
  none.Call("aten::nonzero", {T(x)}, {}, MYC_R_DYNAMIC);
  EXPECT_NE(s.Refusal(none.Done()), "accepted");
  const uint64_t y = list.Tensor(list.Buffer(), MYC_I64, {1});
  list.Call("aten::nonzero", {T(y)}, {list.Fresh(MYC_I64, {MYC_SHAPE_WORDS})}, MYC_R_DYNAMIC);
  EXPECT_NE(s.Refusal(list.Done()), "accepted");
}

TEST(Own, AGeneratorsStateIsTakenAndGivenInOrder) {
  Session s;
  Builder b;
  const uint64_t gen = b.Param(), seed = b.Param();
  const uint64_t state = b.Fresh(MYC_U8, {5056}), first = b.Fresh(MYC_F32, {7}), again = b.Fresh(MYC_F32, {7});
  b.Call("mycelya::manual_seed", {Generator(gen), Number(MYC_N_I64, seed)});
  b.Call("mycelya::get_rng_state", {Generator(gen)}, {state});
  b.Call("mycelya::test_rand", {Ints({7}), Generator(gen)}, {first});
  b.Call("mycelya::set_rng_state", {Generator(gen), T(state)});
  b.Call("mycelya::test_rand", {Ints({7}), Generator(gen)}, {again});
  ASSERT_TRUE(s.Run(b, {4, 11}, {}, {{1, 1}, {2, 2}}).empty());
  EXPECT_TRUE(at::equal(s.ReadF32(1, {7}).tensor, s.ReadF32(2, {7}).tensor));
  EXPECT_TRUE(at::equal(s.ReadF32(1, {7}).tensor, at::rand({7}, at::detail::createCPUGenerator(11))));
}

TEST(Own, AStateThatIsNoneIsAnErrorOfItsStep) {
  Session s;
  Builder b;
  const uint64_t gen = b.Param();
  b.Call("mycelya::set_rng_state", {Generator(gen), T(b.Tensor(b.Buffer(), MYC_U8, {3}))});
  s.Upload(1, at::tensor({1, 2, 3}, at::kByte));
  EXPECT_EQ(s.Run(b, {0}, {{0, 1}}, {}).size(), 1u);
}

TEST(Own, TimePassesBetweenEvents) {
  Session s;
  Builder b;
  const uint64_t one = b.Param(), two = b.Param();
  const uint64_t time = b.Fresh(MYC_F64, {});
  b.Call("mycelya::record_event", {Number(MYC_N_I64, one)});
  b.Call("mycelya::test_rand", {Ints({100000}), None()}, {b.Fresh(MYC_F32, {100000})});
  b.Call("mycelya::record_event", {Number(MYC_N_I64, two)});
  b.Call("mycelya::elapsed", {Number(MYC_N_I64, one), Number(MYC_N_I64, two)}, {time});
  b.Call("mycelya::forget_event", {Number(MYC_N_I64, one)});
  myc_prog* p = s.Prepare(b);
  ASSERT_TRUE(s.Run(p, {1, 2}, {}, {{0, 1}}).empty());
  const Got got = s.Read(1, MYC_F64, c10::ScalarType::Double, {}, {});
  EXPECT_GT(got.tensor.item<double>(), 0);
  Builder late;
  const uint64_t a = late.Param(), z = late.Param();
  late.Call("mycelya::elapsed", {Number(MYC_N_I64, a), Number(MYC_N_I64, z)}, {late.Fresh(MYC_F64, {})});
  const auto errors = s.Run(late, {1, 2}, {}, {{0, 2}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].text.find("was not recorded"), std::string::npos) << errors[0].text;
}

TEST(Own, MemoryIsToldAndOtherNamesAreRefused) {
  Session s;
  Builder b;
  b.Call("mycelya::memory_info", {}, {b.Fresh(MYC_I64, {2})});
  ASSERT_TRUE(s.Run(b, {}, {}, {{0, 1}}).empty());
  const Got got = Words64(s, 1, 2);
  const auto* words = got.tensor.const_data_ptr<int64_t>();
  EXPECT_GT(words[0], 0);
  EXPECT_GE(words[1], words[0]);
  Builder other;
  other.Call("mycelya::no_such_op", {}, {});
  EXPECT_NE(s.Refusal(other.Done()).find("no operator mycelya::no_such_op"), std::string::npos);
  Builder foreign;
  foreign.Call("prim::device", {}, {});
  EXPECT_NE(s.Refusal(foreign.Done()).find("aten, its own"), std::string::npos);
}

TEST(Own, FlagsThatAreNoneAreErrorsOfTheirSteps) {
  Session s;
  const auto text = [&](const std::string& flag) {
    Builder b;
    b.Call("mycelya::set_flag", {Str(flag)});
    const auto errors = s.Run(b, {}, {}, {});
    return errors.empty() ? std::string() : errors[0].text;
  };
  EXPECT_EQ(text("cudnn_benchmark=1"), "");
  EXPECT_EQ(text("cudnn_benchmark=0"), "");
  EXPECT_NE(text("no_such_flag=1").find("no flag no_such_flag"), std::string::npos);
  EXPECT_NE(text("cudnn_benchmark").find("takes 1 values, not 0"), std::string::npos);
  EXPECT_NE(text("cudnn_benchmark=1 2").find("takes 1 values, not 2"), std::string::npos);
  EXPECT_NE(text("cudnn_benchmark=yes").find("yes is not a number"), std::string::npos);
  EXPECT_NE(text("").find("no flag"), std::string::npos);
}

// A token is recognised by its storage: no value that a client sends can name a graph.
TEST(Own, AttentionNeedsTheTokenOfItsForwardCall) {
  Session s;
  Builder b;
  const uint64_t wanted = b.Param();
  const uint64_t grad = b.Tensor(b.Buffer(), MYC_F32, {1, 1, 2, 4}), token = b.Tensor(b.Buffer(), MYC_I64, {1});
  const uint64_t dq = b.Fresh(MYC_F32, {1, 1, 2, 4});
  b.Call("mycelya::attention_backward",
         {T(grad), T(token), T(grad), T(grad), T(grad), None(), Number(MYC_N_I64, wanted)},
         {dq, Builder::kNoTensor, Builder::kNoTensor, Builder::kNoTensor});
  s.Upload(1, at::rand({1, 1, 2, 4}));
  s.Upload(2, at::tensor({0x7f0000000000}, at::kLong));
  const auto errors = s.Run(b, {1}, {{0, 1}, {1, 2}}, {{2, 3}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].text.find("kept nothing for its gradient"), std::string::npos) << errors[0].text;
}

TEST(Literals, ATensorArgumentTakesANumberThatIsTheSameInEveryCall) {
  Session s;
  Builder b;
  const uint64_t x = b.Fresh(MYC_I64, {2}), y = b.Fresh(MYC_I64, {2}), z = b.Fresh(MYC_F32, {2}),
                 w = b.Fresh(MYC_BOOL, {2});
  b.Call("aten::mul.Tensor", {T(x), Int(-3)}, {y});
  b.Call("aten::mul.Tensor", {T(x), Float(0.5)}, {z});  // a Python number: an i64 becomes f32, not f64
  b.Call("aten::eq.Tensor", {T(x), Bool(true)}, {w});
  s.Upload(1, at::tensor({1, 5}, at::kLong));
  for (int run = 0; run < 2; ++run) {
    ASSERT_TRUE(s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 3}, {3, 4}}).empty());
    EXPECT_TRUE(at::equal(Words64(s, 2, 2).tensor, at::tensor({-3, -15}, at::kLong)));
    EXPECT_TRUE(at::equal(s.ReadF32(3, {2}).tensor, at::tensor({0.5f, 2.5f})));
    EXPECT_TRUE(at::equal(s.Read(4, MYC_BOOL, c10::ScalarType::Bool, {2}, {1}).tensor,
                          at::tensor({1, 0}, at::kLong).to(at::kBool)));
    s.Free({2, 3, 4});
  }
}

// The error of comparing two values, "" if none. other: their operand.
std::string Compared(const at::Tensor& got, const at::Tensor& want, const at::Tensor& other = at::tensor({0.f})) {
  Session s;
  Builder b;
  const auto dtype = [](const at::Tensor& t) { return t.scalar_type() == at::kFloat ? MYC_F32 : MYC_I64; };
  const uint64_t first = b.Fresh(MYC_I64, {}), out = b.Fresh(MYC_I64, {});
  const uint64_t x = b.Fresh(dtype(got), {got.numel()}), y = b.Fresh(dtype(want), {want.numel()});
  const uint64_t o = b.Fresh(MYC_F32, {1});
  b.Call("mycelya::expect_close", {T(first), T(x), T(y), List(MYC_L_TENSORS, {T(o)}), Str("my::op"), Float(1e-4)});
  b.Call("mycelya::after", {T(out), T(first)});
  b.Call("aten::neg", {T(out)}, {b.Fresh(MYC_I64, {})});  // buffer 5
  s.Upload(1, at::tensor(0, at::kLong));
  s.Upload(2, at::tensor(7, at::kLong));
  s.Upload(3, got);
  s.Upload(4, want);
  s.Upload(5, other);
  const auto errors = s.Run(b, {}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}}, {{5, 9}});
  const Got read = s.Read(9, MYC_I64, c10::ScalarType::Long, {}, {});
  EXPECT_EQ(errors.empty(), read.kind == MYC_OK) << "what comes after fails too";
  return errors.empty() ? "" : errors[0].text;
}

TEST(Compare, FindsWhatDiffersByMoreThanRounding) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Compared(at::tensor({1.f, inf, -inf, nan}), at::tensor({1.00001f, inf, -inf, nan})), "");
  EXPECT_EQ(Compared(at::empty({0}), at::empty({0})), "");
  EXPECT_EQ(Compared(at::tensor({3, 4}, at::kLong), at::tensor({3, 4}, at::kLong)), "");
  const auto fails = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  fails(Compared(at::tensor({1.f, 2.f}), at::tensor({1.f, 2.1f})),
        "my::op as the kernels would compute it, and by itself: 1 of 2 elements differ");
  fails(Compared(at::tensor({1.f, 2.f}), at::tensor({1.f, 2.1f})), "element 1 is 2 instead of 2.1");
  fails(Compared(at::tensor({1.f, nan}), at::tensor({1.f, 2.f})), "element 1 is nan");
  fails(Compared(at::tensor({1.f, 2.f}), at::tensor({1.f, nan})), "instead of nan");
  fails(Compared(at::tensor({1.f, inf}), at::tensor({1.f, -inf})), "is inf instead of -inf");
  fails(Compared(at::tensor({1.f, inf}), at::tensor({1.f, 3e38f})), "is inf");
  fails(Compared(at::tensor({3, 4}, at::kLong), at::tensor({3, 5}, at::kLong)), "element 1 is 4 instead of 5");
  fails(Compared(at::tensor({3.f}), at::tensor({3.f, 4.f})), "f32[1] instead of f32[2]");
  // Cancellation: a hundred times the expected value, but within the rounding of its operands.
  fails(Compared(at::tensor({1e-7f}), at::tensor({1e-9f})), "element 0 is 1e-07");
  EXPECT_EQ(Compared(at::tensor({1e-7f}), at::tensor({1e-9f}), at::tensor({1.f})), "");
}

}  // namespace
}  // namespace mycelya::exec::test
