// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The table that gen_meta.py writes: PyTorch's own structured shape functions, boxed.
#ifndef MYCELYA_DEVICE_RULES_METATABLE_H_
#define MYCELYA_DEVICE_RULES_METATABLE_H_

#include <ATen/core/boxing/KernelFunction.h>

#include <string_view>
#include <vector>

namespace mycelya {

struct MetaRow {
  const char* name;  // "add.Tensor", "add_.Tensor", "add.out"
  c10::KernelFunction fn;
};

// The row of an overload, or null. The table is built at the first call.
const MetaRow* FindMeta(std::string_view name);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RULES_METATABLE_H_
