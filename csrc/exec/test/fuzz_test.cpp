// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Damaged programs, parameters and bindings may fail, but the process must survive and a sanitizer must find nothing.
// MYC_FUZZ sets the number of mutations.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "exec/test/Specimen.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

namespace mycelya::exec::test {
namespace {

int Mutations() {
  const char* text = std::getenv("MYC_FUZZ");
  return text != nullptr ? std::atoi(text) : 20000;
}

class Fuzz : public ::testing::Test {
 protected:
  // A mutated size may request any amount of memory. Limit the address space, so that such requests fail instead of
  // swapping. A sanitizer has its own limit (allocator_may_return_null=1:max_allocation_size_mb=256) and needs the
  // address space.
  void SetUp() override {
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limited{rlim_t{3} << 30, before_.rlim_max};
    if (!kSanitized) setrlimit(RLIMIT_AS, &limited);
  }
  void TearDown() override { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST_F(Fuzz, MutatedProgramsAndCallsNeverCrash) {
  const Words specimen = Specimen();
  const Words params = {3, 4, Bits(0.5), 0};
  std::mt19937_64 random(1);
  const auto below = [&](uint64_t n) { return random() % n; };
  const auto mutate = [&](Words& w) {
    if (w.empty()) return;
    uint64_t& word = w[below(w.size())];
    switch (below(6)) {
      case 0:
        word ^= uint64_t{1} << below(64);
        break;
      case 1:
        word = below(20);
        break;
      case 2:
        word += below(5) - 2;
        break;
      case 3:
        word = random();
        break;
      case 4:
        word = w[below(w.size())];
        break;
      default:
        w.erase(w.begin() + static_cast<int64_t>(below(w.size())));
    }
  };
  int prepared = 0, ran = 0;
  auto session = std::make_unique<Session>();
  const int n = Mutations();
  for (int round = 0; round < n; ++round) {
    if (round % 256 == 0) session = std::make_unique<Session>();  // drops programs and generators
    Session& s = *session;
    s.Free({1, 2, 3, 4});
    s.Upload(1, at::arange(12, c10::ScalarType::Float));
    s.Upload(2, at::arange(1, c10::ScalarType::Long));
    Words words = specimen, call = params;
    Words bindings = {0, 1, 1, 2};
    const uint64_t target = below(8);
    for (uint64_t i = below(3) + 1; i-- > 0;) mutate(target == 0 ? call : target == 1 ? bindings : words);
    myc_error e{};
    myc_prog* p = s.Prepare(words, &e);
    if (p == nullptr) continue;
    ++prepared;
    Pairs inputs;
    for (size_t i = 0; i + 1 < bindings.size(); i += 2) inputs.emplace_back(bindings[i], bindings[i + 1]);
    s.Run(p, call, inputs, {{3, 3}, {4, 4}}, static_cast<uint64_t>(round));
    ran += s.failed() == 0;
    s.ReadF32(1, {3});
    s.ReadF32(4, {2});
    s.Drop(p);
  }
  std::printf("%d mutations: %d prepared, %d ran without an error\n", n, prepared, ran);
  // Some mutations must fail and some must succeed.
  EXPECT_GT(prepared, n / 20);
  EXPECT_GT(ran, n / 100);
  EXPECT_LT(ran, prepared);
}

TEST_F(Fuzz, TheSpecimenItselfRuns) {
  Session s;
  s.Upload(1, at::arange(12, c10::ScalarType::Float));
  s.Upload(2, at::arange(1, c10::ScalarType::Long));
  myc_error e{};
  myc_prog* p = s.Prepare(Specimen(), &e);
  ASSERT_NE(p, nullptr) << e.text;
  const auto errors = s.Run(p, {3, 4, Bits(0.5), 0}, {{0, 1}, {1, 2}}, {{3, 3}, {4, 4}});
  EXPECT_TRUE(errors.empty()) << errors[0].step << ": " << errors[0].text;
}

}  // namespace
}  // namespace mycelya::exec::test
