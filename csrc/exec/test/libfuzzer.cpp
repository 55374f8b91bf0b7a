// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// libFuzzer on the executor's C ABI: a program as words, its parameters, and the storages that it is bound to. The
// worker checks programs before it prepares them; here any words come. scripts/fuzz_exec.sh builds and runs it.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>

#include <random>

#include "exec/test/Specimen.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max);

namespace mycelya::exec::test {
namespace {

// An input is words: the numbers of parameters and of bindings (two words each), then these, then the program.
constexpr uint64_t kParams = 8, kBindings = 6;
constexpr uint64_t kStorages = 4;  // that exist, with the ids from 1 on
constexpr uint64_t kPerSession = 1000;
// Sizes in between ask for much memory and get it, which takes time and finds nothing. Most larger ones are refused.
constexpr uint64_t kLarge = 1024, kRefused = uint64_t{1} << 32;

Words Input(const Words& params, const Words& bindings, const Words& program) {
  Words w = {params.size(), bindings.size() / 2};
  w.insert(w.end(), params.begin(), params.end());
  w.insert(w.end(), bindings.begin(), bindings.end());
  w.insert(w.end(), program.begin(), program.end());
  return w;
}

const std::vector<Words>& Seeds() {
  static const std::vector<Words> seeds = {
      Input({3, 4, Bits(0.5), 0}, {0, 1, 1, 2}, Specimen()),
      Input({12}, {0, 1}, FusedSpecimen()),
  };
  return seeds;
}

void Run(const Words& input) {
  static std::unique_ptr<Session> session;
  static uint64_t runs = 0;
  if (runs++ % kPerSession == 0) session = std::make_unique<Session>();  // drops generators
  Session& s = *session;
  const uint64_t nparams = std::min(input[0], kParams), nbindings = std::min(input[1], kBindings);
  if (input.size() < 2 + nparams + 2 * nbindings) return;
  auto at = input.begin() + 2;
  const Words params(at, at + static_cast<int64_t>(nparams));
  at += static_cast<int64_t>(nparams);
  Pairs inputs;
  for (uint64_t i = 0; i < nbindings; ++i, at += 2) inputs.emplace_back(at[0], at[1]);
  const Words program(at, input.end());
  if (std::any_of(input.begin(), input.end(), [](uint64_t w) { return w >= kLarge && w < kRefused; })) return;

  for (uint64_t id = 1; id <= kStorages; ++id) {
    s.Free({id, kStorages + id});
    s.Upload(id, at::arange(id % 2 == 0 ? 1 : 12, id % 2 == 0 ? c10::ScalarType::Long : c10::ScalarType::Float));
  }
  myc_error e{};
  myc_prog* p = s.Prepare(program, &e);
  if (p == nullptr) return;
  s.Run(p, params, inputs, {{2, kStorages + 2}, {3, kStorages + 3}, {1, kStorages + 1}}, runs);
  for (uint64_t id = 1; id <= 2 * kStorages; ++id) s.ReadF32(id, {3});
  s.Drop(p);
}

}  // namespace
}  // namespace mycelya::exec::test

using mycelya::exec::test::Words;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  at::set_num_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Words words(size / sizeof(uint64_t));
  if (words.size() < 2) return 0;
  std::memcpy(words.data(), data, words.size() * sizeof(uint64_t));
  mycelya::exec::test::Run(words);
  return 0;
}

// Changes words, since most changes of bytes only make numbers large. One in 64 inputs is a seed again.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned int seed) {
  std::minstd_rand random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  Words words(size / sizeof(uint64_t));
  if (words.size() < 2 || below(64) == 0) {
    const auto& seeds = mycelya::exec::test::Seeds();
    words = seeds[below(seeds.size())];
  } else {
    std::memcpy(words.data(), data, words.size() * sizeof(uint64_t));
    if (below(4) == 0) return LLVMFuzzerMutate(data, size, max);
  }
  for (uint64_t i = below(3) + 1; i-- > 0 && !words.empty();) {
    const uint64_t at = below(words.size());
    switch (below(8)) {
      case 0:
        words[at] ^= uint64_t{1} << below(64);
        break;
      case 1:
        words[at] = below(20);
        break;
      case 2:
        words[at] += below(5) - 2;
        break;
      case 3:
        words[at] = (uint64_t{random()} << 33) ^ random();
        break;
      case 4:
        words[at] = words[below(words.size())];
        break;
      case 5:
        words.insert(words.begin() + static_cast<int64_t>(at), below(8));
        break;
      case 6: {  // a part again
        const uint64_t n = std::min<uint64_t>(1 + below(12), words.size() - at);
        const Words part(words.begin() + static_cast<int64_t>(at), words.begin() + static_cast<int64_t>(at + n));
        words.insert(words.begin() + static_cast<int64_t>(below(words.size())), part.begin(), part.end());
        break;
      }
      default:
        words.erase(words.begin() + static_cast<int64_t>(at));
    }
  }
  const size_t bytes = std::min(words.size() * sizeof(uint64_t), max / sizeof(uint64_t) * sizeof(uint64_t));
  std::memcpy(data, words.data(), bytes);
  return bytes;
}
