// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The state of the generators that a step draws from, for a step that is repeated after it has failed.
#ifndef MYCELYA_EXEC_RUN_RANDOMSTATE_H_
#define MYCELYA_EXEC_RUN_RANDOMSTATE_H_

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "exec/run/Buffers.h"

namespace mycelya::exec {

class RandomState {
 public:
  // Of the generators of steps [begin, end).
  void Save(RunBuffers& buffers, uint32_t begin, uint32_t end);
  void Restore() const;

 private:
  // A CPU generator's state as a tensor takes 10 us, its parts 0.1 us.
  struct Saved {
    at::Generator generator;
    at::mt19937 engine{0};
    std::optional<float> next_float;
    std::optional<double> next_double;
    at::Tensor other;  // of a generator that is not a CPU's
  };
  void Add(const at::Generator& generator);

  std::vector<Saved> saved_;
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_RANDOMSTATE_H_
