// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Lists as PyTorch's boxed kernels expect them. A list carries the type of its elements, and unboxing checks that type.
#ifndef MYCELYA_EXEC_PROGRAM_LISTS_H_
#define MYCELYA_EXEC_PROGRAM_LISTS_H_

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "exec/program/Program.h"

namespace mycelya::exec {

inline c10::TypePtr ElementType(ListOf of) {
  switch (of) {
    case ListOf::kTensor:
      return c10::TensorType::get();
    case ListOf::kOptionalTensor:
      return c10::OptionalType::ofTensor();
    case ListOf::kInt:
      return c10::IntType::get();
    case ListOf::kReal:
      return c10::FloatType::get();
    case ListOf::kBool:
      return c10::BoolType::get();
    case ListOf::kScalar:
      return c10::NumberType::get();
    case ListOf::kString:
      return c10::StringType::get();
  }
  TORCH_CHECK(false, "BUG: ", static_cast<int>(of), " is not a kind of list.");
}

// item(i) returns the IValue of element i, which has the type of the list's elements.
template <typename F>
c10::IValue MakeList(ListOf of, uint32_t n, F item) {
  c10::impl::GenericList list(ElementType(of));
  list.reserve(n);
  for (uint32_t i = 0; i < n; ++i) list.push_back(item(i));
  return list;
}

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_PROGRAM_LISTS_H_
