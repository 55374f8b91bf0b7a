// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Which operators come to us: those of the op table by name, because a backend fallback is the dispatcher's last choice
// and would not see most of them; the fallback only refuses. The hand-written ones stand in Minimal.cpp.

#include "Register.h"

#include <torch/library.h>

#include "Op.h"
#include "Record.h"

namespace mycelya {

void register_ops() {
  // Leaked: deregistering at exit would race with threads that still run.
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto known = [&](const char* name) {
    // An older PyTorch lacks some.
    const std::string_view n(name);
    const auto dot = n.find('.');
    return dispatcher
        .findOp({"aten::" + std::string(n.substr(0, dot)),
                 dot == std::string_view::npos ? std::string() : std::string(n.substr(dot + 1))})
        .has_value();
  };
  for (const char* name : whole_ops()) {
    if (known(name)) library->impl(name, torch::CppFunction::makeFromBoxedFunction<&record>());
  }
  for (const char* name : refused_ops()) {
    if (known(name)) library->impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>()); }

// Autocast passes through: its op lists come with mixed precision.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace mycelya
