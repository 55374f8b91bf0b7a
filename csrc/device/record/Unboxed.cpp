// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Unboxed.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/threshold_backward_ops.h>

#include <array>
#include <unordered_map>

#include "device/record/Op.h"
#include "device/record/Record.h"

namespace mycelya {
namespace {

using Borrow = c10::MaybeOwnedTraits<at::Tensor>;

// An IValue that holds no reference of its own to the tensor.
c10::IValue ToBorrowed(const at::Tensor& t) { return Borrow::createBorrow(t); }
c10::IValue ToBorrowed(const std::optional<at::Tensor>& t) { return t.has_value() ? ToBorrowed(*t) : c10::IValue(); }
template <class T>
c10::IValue ToBorrowed(const T& value) {
  return value;
}

// The arguments of a call, for the duration of the call.
template <size_t kArguments>
struct Borrowed {
  ~Borrowed() {
    for (c10::IValue& value : values) {
      if (value.isTensor()) std::move(value).toTensor().unsafeReleaseTensorImpl();
    }
  }
  std::array<c10::IValue, kArguments> values;
};

template <class A>
constexpr bool is_operand =
    std::is_same_v<std::remove_cvref_t<A>, at::Tensor> || std::is_same_v<std::remove_cvref_t<A>, at::Scalar>;

using Fresh = c10::SmallVector<at::Tensor, 4>;

template <class R, size_t... k>
R TupleOf(Fresh& fresh, std::index_sequence<k...>) {
  return {std::move(fresh[k])...};
}

template <class Operator, class Schema = typename Operator::schema>
struct Twin;
template <class Operator, class R, class... A>
struct Twin<Operator, R(A...)> {
  static R Call(A... arguments) {
    static const Op& op =
        OpFor(c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name));
    if constexpr ((is_operand<A> && ...)) {
      if (op.columns.shortcut != Shortcut::kNone) {
        ShortCall call;
        (call.Put(arguments), ...);
        at::Tensor result;
        if (C10_LIKELY(RecordShort(op, call, result))) {
          if constexpr (std::is_same_v<R, at::Tensor&>) {
            return std::get<0>(std::tie(arguments...));
          } else {
            return result;
          }
        }
      }
    }
    Fresh fresh;
    const Borrowed<sizeof...(A)> borrowed{{ToBorrowed(arguments)...}};
    if (C10_UNLIKELY(!RecordPlain(op, borrowed.values, fresh))) {
      torch::jit::Stack stack(borrowed.values.begin(), borrowed.values.end());
      Record(op.handle, &stack);
      fresh.clear();
      for (c10::IValue& value : stack) fresh.push_back(std::move(value).toTensor());
    }
    if constexpr (std::is_same_v<R, at::Tensor&>) {
      return std::get<0>(std::tie(arguments...));  // in place
    } else if constexpr (std::is_same_v<R, at::Tensor>) {
      return std::move(fresh[0]);
    } else {
      return TupleOf<R>(fresh, std::make_index_sequence<std::tuple_size_v<R>>());
    }
  }
};

// An operator with a number as its second operand. PyTorch would make a CPU tensor of it and call the tensor overload.
template <class Operator, class... A>
at::Tensor WithNumber(const at::Tensor& self, const at::Scalar& other, A... more) {
  static const Op& op = OpFor(c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name));
  ShortCall call;
  call.Put(self);
  call.Put(other);
  (call.Put(more), ...);
  at::Tensor result;
  if (C10_LIKELY(RecordShort(op, call, result))) return result;
  return Operator::call(self, at::native::wrapped_scalar_tensor(other), more...);
}

template <class Operator>
torch::CppFunction Make() {
  return torch::CppFunction(&Twin<Operator>::Call);
}

using Makers = std::unordered_map<std::string, torch::CppFunction (*)()>;

template <class... Operators>
Makers GetMakers() {
  Makers all;
  const auto add = [&](std::string name, const std::string& overload, auto maker) {
    name = name.substr(std::string_view("aten::").size());
    all.emplace(overload.empty() ? name : name + "." + overload, maker);
  };
  (add(Operators::name, Operators::overload_name, &Make<Operators>), ...);
  return all;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("add.Scalar", &WithNumber<at::_ops::add_Tensor, const at::Scalar&>);
  m.impl("sub.Scalar", &WithNumber<at::_ops::sub_Tensor, const at::Scalar&>);
  m.impl("mul.Scalar", &WithNumber<at::_ops::mul_Tensor>);
  m.impl("div.Scalar", &WithNumber<at::_ops::div_Tensor>);
}

std::optional<torch::CppFunction> Unboxed(const std::string& name) {
  using namespace at::_ops;
  static const Makers all =
      GetMakers<add_Tensor, add__Tensor, sub_Tensor, mul_Tensor, mul__Tensor, div_Tensor, mm, bmm, addmm, relu, gelu,
                threshold_backward, sum, sum_dim_IntList, _softmax, _softmax_backward_data, native_layer_norm>();
  const auto found = all.find(name);
  if (found == all.end()) return std::nullopt;
  return found->second();
}

}  // namespace mycelya
