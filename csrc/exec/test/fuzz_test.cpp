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

#include "exec/test/Session.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

namespace mycelya::exec::test {
namespace {

// A program with every kind of step, small enough that most mutations still reach the kernels.
Words Specimen() {
  Builder b;
  const uint64_t n = b.Param(), k = b.Param(), f = b.Param(), g = b.Param();
  const uint64_t in = b.Buffer(), index = b.Buffer();
  const uint64_t x = b.Tensor(in, MYC_F32, {P(n), P(k)});
  const uint64_t xt = b.Tensor(in, MYC_F32, {P(k), P(n)}, {1, P(k)}, 0);
  const uint64_t row = b.Tensor(in, MYC_F32, {P(k)}, {1}, P(k));
  const uint64_t i = b.Tensor(index, MYC_I64, {1});
  const uint64_t mm = b.Fresh(MYC_F32, {P(n), P(n)}), sum = b.Fresh(MYC_F64, {P(n)});
  const uint64_t cat = b.Fresh(MYC_F32, {6, P(k)}), picked = b.Fresh(MYC_F32, {1, P(k)});
  const uint64_t norm = b.Fresh(MYC_F32, {P(n), P(k)}), noise = b.Fresh(MYC_F32, {P(n), P(k)});
  const uint64_t part = b.Fresh(MYC_F32, {P(k)}), rest = b.Fresh(MYC_F32, {P(k)});
  const uint64_t twin = b.Buffer(), made = b.Buffer();
  const uint64_t t = b.Tensor(twin, MYC_F32, {P(n), P(k)});
  b.Call("mycelya::manual_seed", {Generator(g), Number(MYC_N_I64, n)});
  b.Clone(twin, in);
  b.Call("aten::mm", {T(x), T(xt)}, {mm});
  b.Call("aten::mul_.Tensor", {T(row), Number(MYC_N_F64, f)});
  b.Call("aten::mul.Tensor", {T(x), Scalar(MYC_F16, k)}, {norm});
  b.Call("aten::sum.dim_IntList", {T(mm), Ints({-1}), Bool(false), Dtype(MYC_F64)}, {sum});
  b.Call("aten::cat", {List(MYC_L_TENSORS, {T(x), T(x)}), Int(0)}, {cat});
  b.Call("aten::index.Tensor", {T(x), List(MYC_L_OPT_TENSORS, {T(i), None()})}, {picked});
  b.Call("aten::native_layer_norm", {T(t), List(MYC_L_INTS, {Size(k)}), T(row), None(), Float(1e-5)},
         {norm, Builder::kNoTensor, Builder::kNoTensor});
  b.Call("aten::_foreach_mul_.ScalarList",
         {List(MYC_L_TENSORS, {T(t), T(cat)}), List(MYC_L_SCALARS, {Float(2), Number(MYC_N_F64, f)})});
  b.Call("aten::uniform_", {T(t), Float(0), Float(1), Generator(g)});
  b.Call("aten::full_like", {T(t), Float(1), Dtype(MYC_F32), Layout(), Device(), Bool(false), None()}, {noise});
  b.Call("aten::gelu", {T(t), Str("tanh")}, {noise});
  b.Call("aten::_foreach_neg", {List(MYC_L_TENSORS, {T(row), T(row)})}, {part, rest});
  b.Alloc(made, P(n));
  b.Resize(made, 64);
  b.Copy(t, x);
  b.Resize(twin, 48);
  b.Free(made);
  b.Free(2);
  return b.Done();
}

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
