// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/graph/Graph.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace mycelya {
namespace {

using Values = std::vector<c10::IValue>;

c10::IValue Take(const Graph::Operand& o, Values& values) {
  if (o.slot < 0) return o.constant;
  return o.last ? std::move(values[o.slot]) : values[o.slot];
}

c10::IValue Take(const Graph::Argument& a, Values& values) {
  switch (a.form) {
    case Graph::Form::kInts: {
      std::vector<int64_t> list;
      list.reserve(a.parts.size());
      for (const auto& part : a.parts) list.push_back(Take(part, values).toInt());
      return c10::IValue(std::move(list));
    }
    case Graph::Form::kTensors: {
      c10::List<at::Tensor> list;
      list.reserve(a.parts.size());
      for (const auto& part : a.parts) list.push_back(Take(part, values).toTensor());
      return c10::IValue(std::move(list));
    }
    case Graph::Form::kOptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(a.parts.size());
      for (const auto& part : a.parts) {
        c10::IValue value = Take(part, values);
        list.push_back(value.isNone() ? std::nullopt : std::optional<at::Tensor>(std::move(value).toTensor()));
      }
      return c10::IValue(std::move(list));
    }
    case Graph::Form::kNumber:
      return at::native::wrapped_scalar_tensor(Take(a.parts[0], values).toScalar());
    default:
      return Take(a.parts[0], values);
  }
}

// The quotient rounded down. The smallest integer by -1 wraps, as all integers of PyTorch do.
int64_t FloorDiv(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "a graph of torch.compile divides the size ", a, " by 0");
  if (b == -1) return static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(a));
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t IntegerOf(Graph::Code code, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (code) {
    case Graph::Code::kAdd:
      return static_cast<int64_t>(x + y);
    case Graph::Code::kSub:
      return static_cast<int64_t>(x - y);
    case Graph::Code::kMul:
      return static_cast<int64_t>(x * y);
    case Graph::Code::kFloorDiv:
      return FloorDiv(a, b);
    case Graph::Code::kMod:
      return static_cast<int64_t>(x - static_cast<uint64_t>(FloorDiv(a, b)) * y);
    case Graph::Code::kNeg:
      return static_cast<int64_t>(uint64_t{0} - x);
    case Graph::Code::kMax:
      return std::max(a, b);
    default:
      return std::min(a, b);
  }
}

int64_t PropertyOf(Graph::Code code, const at::Tensor& t, int64_t dim) {
  switch (code) {
    case Graph::Code::kSize:
      return t.size(dim);
    case Graph::Code::kStride:
      return t.stride(dim);
    case Graph::Code::kNumel:
      return t.numel();
    default:
      return t.storage_offset();
  }
}

c10::IValue ValueOf(const Graph::Step& step, Values& values) {
  const c10::IValue first = Take(step.args[0], values);
  const c10::IValue second = step.args.size() > 1 ? Take(step.args[1], values) : c10::IValue(int64_t{0});
  if (step.code == Graph::Code::kItem) {
    const auto list = first.toListRef();
    int64_t i = second.toInt();
    if (i < 0) i += static_cast<int64_t>(list.size());
    TORCH_CHECK_INDEX(i >= 0 && i < static_cast<int64_t>(list.size()), "a graph of torch.compile reads element ",
                      second.toInt(), " of a list of ", list.size(), " tensors");
    return list[i];
  }
  if (step.code >= Graph::Code::kSize) return PropertyOf(step.code, first.toTensor(), second.toInt());
  return IntegerOf(step.code, first.toInt(), second.toInt());
}

}  // namespace

Graph::Code Graph::CodeOf(const std::string& name) {
  static constexpr std::array<std::string_view, 14> kNames = {
      "call", "item", "add", "sub", "mul", "floordiv", "mod", "neg", "max", "min", "size", "stride", "numel", "offset"};
  const auto* found = std::find(kNames.begin(), kNames.end(), name);
  TORCH_CHECK(found != kNames.end(), "BUG: a graph has no step ", name);
  return static_cast<Code>(found - kNames.begin());
}

std::vector<c10::IValue> Graph::Run(Values& values) const {
  // Neither autograd nor the tracking of views and versions: AOTAutograd does both for the graph's inputs and outputs.
  const at::AutoDispatchBelowADInplaceOrView below;
  PlaceScope place;
  for (const int32_t i : unused) values[i] = c10::IValue();
  torch::jit::Stack stack;
  stack.reserve(16);
  for (const Step& step : steps) {
    place.Set(step.origin);
    if (step.code != Code::kCall) {
      c10::IValue value = ValueOf(step, values);
      if (!step.results[0].last) values[step.results[0].slot] = std::move(value);
      continue;
    }
    for (const Argument& a : step.args) stack.push_back(Take(a, values));
    step.op->callBoxed(stack);
    TORCH_INTERNAL_ASSERT(stack.size() == step.results.size());
    for (size_t i = 0; i < stack.size(); ++i) {
      if (!step.results[i].last) values[step.results[i].slot] = std::move(stack[i]);
    }
    stack.clear();
  }
  std::vector<c10::IValue> results;
  results.reserve(outputs.size());
  for (const Operand& o : outputs) results.push_back(Take(o, values));
  return results;
}

}  // namespace mycelya
