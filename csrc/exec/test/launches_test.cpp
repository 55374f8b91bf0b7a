// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The words of launches: the executor must check every number that it uses. tests/launch runs launches.
#include "exec/run/Launches.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <random>

namespace mycelya::exec::test {
namespace {

// A program of three groups: a kernel on two instances of two operands; a call and a kernel; that kernel alone.
Program Sample(bool draws = true) {
  Program p;
  auto kernel = std::make_unique<Kernel>();
  kernel->operands.resize(2);
  p.kernels.push_back(std::move(kernel));
  const auto add = [&p, draws](StepKind kind, uint32_t a) {
    Step s;
    s.kind = kind;
    s.a = a;
    if (kind == StepKind::kKernel) s.args = {0, 2};
    if (kind == StepKind::kCall && draws) s.results = {0, 1};
    p.steps.push_back(std::move(s));
  };
  add(StepKind::kFused, 1);
  add(StepKind::kKernel, 0);
  add(StepKind::kFused, 2);
  add(StepKind::kCall, 0);
  add(StepKind::kKernel, 0);
  add(StepKind::kFused, 1);
  add(StepKind::kKernel, 0);
  return p;
}

// A group of one launch by value and one by table.
std::vector<uint64_t> Good(uint64_t step = 0) {
  // clang-format off
  return {step, 2,
          step + 1, 77, 3, 128, 1, 0, 64, 2, 2, 1, 0, 3, 1, 1, 10, 20, 30, 0,
          step + 1, 78, 2, 32, 8, 1, 0, 0, 1, 1, 2, 2, 0, 40, 41, 1, 50, 51, 2, 1, uint64_t{5} << 32};
  // clang-format on
}

std::string Refusal(const std::vector<uint64_t>& words, uint32_t step = 0, bool draws = true) {
  const Program p = Sample(draws);
  std::vector<Launch> out;
  try {
    Launches launches(words.data(), words.size());
    launches.Take(p, step, &out);
    launches.End();
  } catch (const c10::ValueError& e) {
    return e.what_without_backtrace();
  }
  return "accepted";
}

TEST(Launches, AreDecoded) {
  const Program p = Sample();
  std::vector<uint64_t> words = Good(), more = Good(5);
  words.insert(words.end(), more.begin(), more.end());
  Launches launches(words.data(), words.size());
  std::vector<Launch> out;
  ASSERT_TRUE(launches.Take(p, 0, &out));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].entry, 77u);
  EXPECT_EQ(out[0].grid, 3u);
  EXPECT_EQ(out[0].block_x, 128u);
  EXPECT_EQ(out[0].scratch, 64u);
  EXPECT_EQ(out[0].scratch_word, 2u);
  EXPECT_EQ(out[0].operands.vec(), (std::vector<uint64_t>{1, 0}));
  EXPECT_EQ(out[0].InstanceOf(0), 1u);
  EXPECT_EQ(out[0].WordsOf(0)[2], 30u);
  EXPECT_TRUE(out[1].table);
  EXPECT_EQ(out[1].InstanceOf(1), 1u);
  EXPECT_EQ(out[1].WordsOf(1)[0], 50u);
  EXPECT_EQ(out[1].chunks.vec(), (std::vector<uint64_t>{1, uint64_t{5} << 32}));
  EXPECT_FALSE(launches.Take(p, 2, &out));
  EXPECT_TRUE(out.empty());
  EXPECT_TRUE(launches.Take(p, 5, &out));
  launches.End();
  EXPECT_FALSE(launches.Take(p, 5, &out));
}

TEST(Launches, AreRefused) {
  EXPECT_EQ(Refusal(Good()), "accepted");
  EXPECT_EQ(Refusal({}), "accepted");
  // A word of Good, a value that it must not have, and a part of the message.
  const struct {
    size_t at;
    uint64_t value;
    const char* why;
  } cases[] = {
      {0, 7, "a fused step must be below 7"},
      {1, 99, "more launches than the"},
      {2, 0, "step 0 has a launch, but is not a kernel of its group"},
      {2, 2, "a kernel's step must be below 2"},
      {3, 0, "entry 0 is launched"},
      {4, 0, "with 0 blocks"},
      {4, uint64_t{1} << 31, "a number of blocks must be below"},
      {5, 0, "blocks of 0 x 1 threads"},
      {5, 1025, "a number of threads must be below 1025"},
      {6, 9, "blocks of 128 x 9 threads"},
      {7, 2, "whether arguments are in a table must be below 2"},
      {9, 1, "the address of scratch memory in word 1"},
      {9, 3, "the address of scratch memory in word 3"},
      {11, 2, "names operand 2 of 2"},
      {13, 1, "a struct of 1 words has 2 addresses"},
      {13, 513, "words of a struct must be below 513"},
      {14, 0, "a launch has 0 structs"},
      {15, 2, "names instance 2 of 2"},
      {19, 1, "a launch of 3 blocks has 1 chunks"},
      {39, 2, "a block uses struct 2 of 2"},
      {38, 1, "a launch of 2 blocks has 1 chunks"},
  };
  for (const auto& c : cases) {
    std::vector<uint64_t> words = Good();
    words[c.at] = c.value;
    EXPECT_NE(Refusal(words).find(c.why), std::string::npos)
        << "word " << c.at << " = " << c.value << ": " << Refusal(words);
  }
  std::vector<uint64_t> words = Good();
  words.push_back(0);
  EXPECT_NE(Refusal(words).find("BUG: the launches has 1 words too many"), std::string::npos);
  EXPECT_NE(Refusal(Good(), 5).find("words too many"), std::string::npos) << "a group that is never taken";
  EXPECT_NE(Refusal(Good(2), 2).find("step 2 has launches, but its group begins with calls that have results"),
            std::string::npos);
  EXPECT_EQ(Refusal(Good(2), 2, false).find("BUG: step 2 has launches, but"), std::string::npos);
  for (size_t n = 1; n < Good().size(); ++n) {
    words = Good();
    words.resize(n);
    EXPECT_NE(Refusal(words), "accepted") << n;
  }
}

// Whatever the words are, nothing is read beyond them, and accepted launches name only existing steps, operands and
// instances.
TEST(Launches, AnyWords) {
  std::mt19937_64 random(1);
  const Program p = Sample();
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint64_t> words = Good();
    for (int i = 0; i < 3; ++i) words[random() % words.size()] = random() % 4 == 0 ? random() : random() % 80;
    const std::unique_ptr<uint64_t[]> exact(new uint64_t[words.size()]);  // a sanitizer sees a read past the end
    std::copy(words.begin(), words.end(), exact.get());
    std::vector<Launch> out;
    try {
      Launches(exact.get(), words.size()).Take(p, 0, &out);
    } catch (const c10::ValueError&) {
      continue;
    }
    for (const Launch& l : out) {
      for (const uint64_t operand : l.operands) ASSERT_LT(operand, 2u);
      for (uint32_t i = 0; i < l.nstructs; ++i) ASSERT_LT(l.InstanceOf(i) + 0 * l.WordsOf(i)[0], 2u);
    }
  }
}

}  // namespace
}  // namespace mycelya::exec::test
