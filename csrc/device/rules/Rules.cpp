// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The table of rules, and the two alternatives to a rule: PyTorch's structured shape functions and the Meta key.

#include "device/rules/Rules.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "device/rules/MetaTable.h"
#include "device/rules/RulesInternal.h"

namespace mycelya {
namespace rules {
namespace {

std::atomic<Worker (*)(c10::DeviceIndex)> worker_of{nullptr};
thread_local c10::DeviceIndex device_of_call = 0;

using RuleTable = std::unordered_map<std::string_view, Rule>;

RuleTable MakeTable() {
  RuleTable table;
  for (RuleRows (*rows)() :
       {AttentionRules, ConvolutionRules, FactoryRules, ForeachRules, IndexRules, LayoutRules, LinalgRules, LossRules,
        NormRules, PointwiseRules, PoolRules, QuantizeRules, RandomRules, ReduceRules, SpectralRules}) {
    for (const RuleRow& row : rows()) {
      const bool fresh = table.emplace(row.name, row.rule).second;
      TORCH_INTERNAL_ASSERT(fresh, "BUG: two shape rules for aten::", row.name);
    }
  }
  return table;
}

Rule FindRule(std::string_view name) {
  static const auto* const table = new RuleTable(MakeTable());
  auto found = table->find(name);
  return found == table->end() ? nullptr : found->second;
}

// The tensors of a boxed result, in order.
void AddValues(OutMetas& out, at::ArrayRef<c10::IValue> values) {
  for (const c10::IValue& value : values) {
    if (value.isNone()) {
      AddUndefined(out);
    } else if (value.isTensor()) {
      AddMeta(out, value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& t : value.toTensorVector()) AddMeta(out, t);
    }
  }
}

// CPU tensors stay: 0-dim ones take part in type promotion and device checks as in the real call.
c10::IValue ToMeta(const c10::IValue& value) {
  if (value.isTensor()) {
    const Tensor& t = value.toTensor();
    return t.defined() && !t.is_cpu() ? c10::IValue(MetaLike(t)) : value;
  }
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(t.defined() && !t.is_cpu() ? MetaLike(t) : t);
    return list;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(item.isNone() ? std::optional<Tensor>() : std::optional<Tensor>(ToMeta(item).toTensor()));
    }
    return list;
  }
  if (value.isDevice()) return c10::Device(c10::kMeta);
  if (value.isGenerator()) return c10::IValue();
  return value;
}

}  // namespace

bool OnCuda() {
  const auto of = worker_of.load(std::memory_order_relaxed);
  return of != nullptr && of(device_of_call) == Worker::kCuda;
}

bool HasRule(std::string_view functional_name) { return FindRule(functional_name) != nullptr; }

void Structured(std::string_view functional_name, Args args, OutMetas& out) {
  const std::string_view base = functional_name.substr(0, functional_name.find('.'));
  const std::string_view overload = functional_name.substr(std::min(base.size() + 1, functional_name.size()));
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + std::string(base)).c_str(),
                                                                 std::string(overload).c_str());
  OutMetas own;
  const bool found = InferByMeta(functional_name, op, args, own);
  TORCH_INTERNAL_ASSERT(found, "BUG: aten::", functional_name, " has no structured shape function");
  out.append(own.begin(), own.end());
}

void Infer(std::string_view functional_name, Args args, OutMetas& out) {
  if (const Rule rule = FindRule(functional_name)) {
    rule(args, out);
  } else {
    Structured(functional_name, args, out);
  }
}

}  // namespace rules

void SetWorkers(Worker (*of)(c10::DeviceIndex)) { rules::worker_of.store(of, std::memory_order_relaxed); }

CallOn::CallOn(c10::DeviceIndex device) : before_(std::exchange(rules::device_of_call, device)) {}
CallOn::~CallOn() { rules::device_of_call = before_; }

bool InferByRule(std::string_view functional_name, at::ArrayRef<c10::IValue> args, OutMetas& out) {
  const rules::Rule rule = rules::FindRule(functional_name);
  if (rule == nullptr) return false;
  out.clear();
  rule(args, out);
  return true;
}

bool InferByMeta(std::string_view functional_name, const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args,
                 OutMetas& out) {
  const MetaRow* row = FindMeta(functional_name);
  if (row == nullptr) return false;
  // Below autograd, because views that a shape function makes must not enter a history.
  at::AutoDispatchBelowADInplaceOrView guard;
  torch::jit::Stack stack(args.begin(), args.end());
  const auto run = [&] {
    row->fn.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    out.clear();
    rules::AddValues(out, stack);
  };
  run();
  const auto loose = [](const c10::IValue& arg) { return arg.isTensor() && rules::Loose(arg.toTensor()); };
  if (rules::OnCuda()) {
    // cuSOLVER's right singular vectors are row-major. PyTorch's function asks for tensors on CUDA.
    if (functional_name == "_linalg_svd") {
      const auto strides = c10::contiguous_strides(out[2].sizes);
      out[2].strides.assign(strides.begin(), strides.end());
    }
    return true;
  }
  if (std::none_of(args.begin(), args.end(), loose)) return true;
  // The dtype in which the operands meet is known only now: that of the result or, for comparisons, the common one.
  at::ScalarType dtype = out[0].dtype;
  if (dtype == at::kBool) {
    std::vector<at::Tensor> operands;
    for (const c10::IValue& arg : args) {
      if (arg.isTensor() && arg.toTensor().defined()) operands.push_back(arg.toTensor());
    }
    dtype = rules::CommonType(operands);
  }
  const bool meet = op.hasTag(at::Tag::pointwise) || ColumnsOf(functional_name).Has(kMeetsDTypes);
  const auto copied = [&](const c10::IValue& arg) { return loose(arg) && arg.toTensor().scalar_type() != dtype; };
  if (!meet || std::none_of(args.begin(), args.end(), copied)) return true;
  stack.assign(args.begin(), args.end());
  for (c10::IValue& arg : stack) {
    if (arg.isTensor() && arg.toTensor().defined()) arg = rules::Copied(arg.toTensor(), dtype);
  }
  run();
  return true;
}

bool HasRule(std::string_view functional_name) { return rules::HasRule(functional_name); }

bool RunMeta(std::string_view name, const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args) {
  const MetaRow* row = FindMeta(name);
  if (row == nullptr) return false;
  at::AutoDispatchBelowADInplaceOrView guard;
  torch::jit::Stack stack(args.begin(), args.end());
  try {
    row->fn.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::NotImplementedError& error) {
    // If the strides of an out= tensor do not suit the kernel, the kernel gets a proxy, whose content is copied at the
    // end. All checks have passed by then. Here the proxy is a meta tensor.
    if (error.msg().find("Cannot copy out of meta tensor") == std::string::npos) throw;
  }
  return true;
}

void InferByMetaKey(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args, OutMetas& out) {
  at::AutoDispatchBelowADInplaceOrView guard;
  torch::jit::Stack stack;
  stack.reserve(args.size());
  for (const c10::IValue& arg : args) stack.push_back(rules::ToMeta(arg));
  op.callBoxed(&stack);
  out.clear();
  rules::AddValues(out, stack);
}

}  // namespace mycelya
