// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Runs that lack memory: what they free, in which order the steps run then, and what a failure says.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <fstream>
#include <optional>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kUnit = 128 * kMiB;  // the bytes of a tensor
constexpr int64_t kFloats = kUnit / 4;

// For its lifetime, the process may take memory for so many more tensors.
class RoomFor {
 public:
  explicit RoomFor(int tensors) {
    myc_exec_trim();
    std::ifstream status("/proc/self/status");
    uint64_t now = 0;
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmData:", 0) == 0) now = std::stoull(line.substr(7)) * 1024;
    }
    // The allocator leaves 64 MiB to others, unless it has asked for the limit before.
    getrlimit(RLIMIT_DATA, &before_);
    rlimit limit = before_;
    limit.rlim_cur = now + static_cast<uint64_t>(tensors) * kUnit + 96 * kMiB;
    setrlimit(RLIMIT_DATA, &limit);
  }
  ~RoomFor() { setrlimit(RLIMIT_DATA, &before_); }

 private:
  rlimit before_{};
};

void UploadFull(Session& s, uint64_t id, float value) { s.Upload(id, at::full({kFloats}, value)); }

float First(Session& s, uint64_t id) {
  const Got got = s.ReadF32(id, {1});
  return got.kind == MYC_OK ? got.tensor.item<float>() : -1000;
}

TEST(InOrder, AnInputThatTheSessionHasFreedEndsWithItsLastUse) {
  Session s;
  UploadFull(s, 1, 2);
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {kFloats}), y = b.Fresh(MYC_F32, {kFloats}), z = b.Fresh(MYC_F32, {kFloats});
  b.Call("aten::neg", {T(x)}, {y});
  b.Call("aten::exp", {T(y)}, {z});
  {
    const RoomFor room(1);
    EXPECT_RUNS(s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 3}}, 1, {1}));
  }
  EXPECT_EQ(First(s, 2), -2);
  EXPECT_EQ(First(s, 3), std::exp(-2.0f));
}

TEST(InOrder, AnInputThatTheSessionKeepsStays) {
  Session s;
  UploadFull(s, 1, 2);
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {kFloats}), y = b.Fresh(MYC_F32, {kFloats}), z = b.Fresh(MYC_F32, {kFloats});
  b.Call("aten::neg", {T(x)}, {y});
  b.Call("aten::exp", {T(y)}, {z});
  const RoomFor room(1);
  const auto errors = s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 3}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].step, 1u);
  EXPECT_EQ(errors[0].kind, MYC_E_MEMORY);
  EXPECT_EQ(errors[0].text.rfind("Out of memory: 128.0 MiB wanted on cpu. Of its ", 0), 0u) << errors[0].text;
  EXPECT_NE(errors[0].text.find(" are free; the tensors of this session take 128.0 MiB."), std::string::npos)
      << errors[0].text;
  EXPECT_EQ(First(s, 1), 2);
}

// Two values of the size of x, each reduced to a number later.
Builder TwoSums(uint64_t* sums) {
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {kFloats}), y = b.Fresh(MYC_F32, {kFloats}), z = b.Fresh(MYC_F32, {kFloats});
  sums[0] = b.Fresh(MYC_F32, {});
  sums[1] = b.Fresh(MYC_F32, {});
  b.Record(1);
  b.Call("aten::neg", {T(x)}, {y});
  b.Record(3);
  b.Call("aten::abs", {T(x)}, {z});
  b.Record(2);
  b.Call("aten::amax", {T(y), Ints({0}), Bool(false)}, {sums[0]});
  b.Free(1);
  b.Record(4);
  b.Call("aten::amax", {T(z), Ints({0}), Bool(false)}, {sums[1]});
  b.Free(2);
  return b;
}

TEST(InOrder, StepsRunInTheOrderOfTheOps) {
  Session s;
  UploadFull(s, 1, 2);
  uint64_t sums[2];
  const Builder b = TwoSums(sums);
  {
    const RoomFor room(1);
    EXPECT_RUNS(s.Run(b, {}, {{0, 1}}, {{3, 2}, {4, 3}}));
  }
  EXPECT_EQ(First(s, 2), -2);
  EXPECT_EQ(First(s, 3), 2);
}

TEST(InOrder, WithoutMemoryTheFirstStepFails) {
  Session s;
  UploadFull(s, 1, 2);
  uint64_t sums[2];
  const Builder b = TwoSums(sums);
  const RoomFor room(0);
  const auto errors = s.Run(b, {}, {{0, 1}}, {{3, 2}, {4, 3}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].step, 0u);
  EXPECT_EQ(First(s, 1), 2);
}

TEST(InOrder, OpsAfterTheFailedOneHaveNoEffect) {
  Session s;
  UploadFull(s, 1, 2);
  s.Upload(5, Range(4));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {kFloats}), y = b.Fresh(MYC_F32, {kFloats});
  const uint64_t z = b.Fresh(MYC_F32, {2 * kFloats}), early = b.Fresh(MYC_F32, {}), w = b.Fresh(MYC_F32, {4});
  const uint64_t late = b.Fresh(MYC_F32, {4});
  b.Call("aten::neg", {T(x)}, {y});
  b.Call("aten::cat", {List(MYC_L_TENSORS, {T(x), T(x)}), Int(0)}, {z});  // twice the size: it never fits
  b.Call("aten::amax", {T(y), Ints({0}), Bool(false)}, {early});
  b.Call("aten::neg", {T(w)}, {late});
  b.Call("aten::neg_", {T(w)}, {});
  b.Free(1);
  b.Version(3, 3, 3);
  b.Version(4, 5, 4);
  b.Version(5, 4, 5);
  const RoomFor room(1);
  const auto errors = s.Run(b, {}, {{0, 1}, {4, 5}}, {{3, 2}, {4, 5}, {5, 6}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].step, 1u);
  EXPECT_EQ(s.ReadF32(2, {}).kind, MYC_E_MEMORY);
  EXPECT_EQ(s.ReadF32(6, {4}).kind, MYC_E_MEMORY);
  EXPECT_TRUE(at::equal(s.ReadF32(5, {4}).tensor, Range(4)));
}

TEST(InOrder, RandomNumbersAreThoseOfTheFirstTry) {
  const auto draw = [](bool tight) {
    Session s;
    UploadFull(s, 1, 0.5);
    s.Upload(2, at::full({64}, 0.5));
    Builder b;
    const uint64_t x = b.Fresh(MYC_F32, {kFloats}), p = b.Fresh(MYC_F32, {64});
    const uint64_t y = b.Fresh(MYC_F32, {kFloats}), z = b.Fresh(MYC_F32, {kFloats});
    const uint64_t few = b.Fresh(MYC_F32, {64}), more = b.Fresh(MYC_F32, {64}), g = b.Param();
    const uint64_t most = b.Fresh(MYC_F32, {});
    b.Record(1);
    b.Call("aten::neg", {T(x)}, {y});
    b.Record(3);
    b.Call("mycelya::test_bernoulli", {T(x), Generator(g)}, {z});
    b.Record(4);
    b.Call("mycelya::test_bernoulli", {T(p), Generator(g)}, {few});
    b.Record(2);
    b.Call("aten::amax", {T(y), Ints({0}), Bool(false)}, {most});
    b.Free(2);
    b.Record(5);
    b.Call("mycelya::test_bernoulli", {T(p), Generator(g)}, {more});
    myc_prog* program = s.Prepare(b);
    std::optional<RoomFor> room;
    if (tight) room.emplace(1);
    EXPECT_RUNS(s.Run(program, {0}, {{0, 1}, {1, 2}}, {{3, 3}, {4, 4}, {5, 5}, {6, 6}}));
    return at::cat({s.ReadF32(4, {64}).tensor, s.ReadF32(5, {64}).tensor, s.ReadF32(6, {1}).tensor});
  };
  EXPECT_TRUE(at::equal(draw(true), draw(false)));
}

}  // namespace
}  // namespace mycelya::exec::test
