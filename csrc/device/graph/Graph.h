// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A graph of operators that torch.compile has made (mycelya_torch/_graphs.py). It is a list of steps over numbered
// slots, which hold tensors, lists of tensors and numbers. Running it calls each operator below autograd, so the
// recorder sees the same calls as from Python code, without the cost of Python.
#ifndef MYCELYA_DEVICE_GRAPH_GRAPH_H_
#define MYCELYA_DEVICE_GRAPH_GRAPH_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/record/Origin.h"

namespace mycelya {

struct Graph {
  enum class Code : uint8_t {
    kCall,
    kItem,  // an element of a list of tensors
    // Integers:
    kAdd,
    kSub,
    kMul,
    kFloorDiv,  // rounds down, as Python's //
    kMod,       // has the sign of the divisor, as Python's %
    kNeg,
    kMax,
    kMin,
    // Of a tensor:
    kSize,
    kStride,
    kNumel,
    kOffset
  };

  // A constant, or the value of a slot.
  struct Operand {
    c10::IValue constant;
    int32_t slot = -1;
    bool last = false;  // nothing uses the slot afterwards
  };

  // kNumber: a tensor in place of a number, as in x + 1.
  enum class Form : uint8_t { kOne, kInts, kTensors, kOptionalTensors, kNumber };
  struct Argument {
    Form form = Form::kOne;
    c10::SmallVector<Operand, 1> parts;
  };

  struct Step {
    Code code = Code::kCall;
    std::optional<c10::OperatorHandle> op;  // of kCall
    std::vector<Argument> args;
    std::vector<Operand> results;  // slots; `last`: nothing uses the result
    Origin origin{};
  };

  size_t inputs = 0;
  size_t slots = 0;
  std::vector<Step> steps;
  std::vector<Operand> outputs;
  std::vector<int32_t> unused;  // inputs

  // The step with this name, as mycelya_torch/_graphs.py spells it.
  static Code CodeOf(const std::string& name);

  // Runs the steps. values: one for each slot, of which the inputs are set; it gets what is left. Any number of threads
  // may run a graph at the same time. The caller does not hold the GIL.
  std::vector<c10::IValue> Run(std::vector<c10::IValue>& values) const;
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_GRAPH_GRAPH_H_
