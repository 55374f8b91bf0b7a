// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/program/Allowed.h"

#include <algorithm>
#include <string_view>

#include "exec/program/Library.h"

namespace mycelya::exec {
namespace {

constexpr std::string_view kAten = "aten::";
constexpr std::string_view kOwn = "mycelya::";

constexpr std::string_view kAllowed[] = {
#include "exec/program/Allowed.inc"
};
static_assert(std::is_sorted(std::begin(kAllowed), std::end(kAllowed)), "binary_search needs an order");

// All operators of the own namespace are in csrc/exec/operators. Each checks its arguments.
bool Allowed(std::string_view name) {
  if (name.substr(0, kOwn.size()) == kOwn) return true;
  return name.substr(0, kAten.size()) == kAten &&
         std::binary_search(std::begin(kAllowed), std::end(kAllowed), name.substr(kAten.size()));
}

}  // namespace

c10::OperatorHandle FindAllowed(const std::string& name) {
  const std::string_view text = name;
  if (text.substr(0, kAten.size()) != kAten && text.substr(0, kOwn.size()) != kOwn) {
    const std::optional<c10::OperatorHandle> op = FindLibraryOperator(name);
    TORCH_CHECK_NOT_IMPLEMENTED(op.has_value() || !IsGuardedLibraryOperator(text),
                                "The worker's environment has no library with the operator ", name, ".");
    TORCH_CHECK_VALUE(op.has_value(), "A worker runs operators of aten, its own, and those of libraries that its ",
                      "MYCELYA_LIBRARIES names, not ", name, ".");
    return *op;
  }
  const size_t dot = name.find('.');
  const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
  TORCH_CHECK_NOT_IMPLEMENTED(op.has_value(), "The worker's PyTorch has no operator ", name, ".");
  TORCH_CHECK_VALUE(Allowed(text), "A worker doesn't run ", name,
                    ": programs call only operators that are in the list ",
                    "that is generated from what the client records.");
  return *op;
}

}  // namespace mycelya::exec
