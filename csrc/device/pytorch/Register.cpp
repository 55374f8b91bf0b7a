// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Registers operators with the dispatcher. Those of the op table are registered by name, because a backend fallback is
// the dispatcher's last choice and would miss most of them. The fallback only refuses. Hand-written operators register
// themselves (operators/, sparse/).

#include "device/pytorch/Register.h"

#include <torch/library.h>

#include <mutex>

#include "device/record/Op.h"
#include "device/record/Record.h"
#include "device/record/Unboxed.h"

namespace mycelya {

std::atomic<bool> fallbacks_registered{false};

namespace {

torch::CppFunction kernel(const std::string& name) {
  if (auto twin = unboxed(name)) return std::move(*twin);
  if (const auto kernel = special_of(name).kernel) return kernel();
  return torch::CppFunction::makeFromBoxedFunction<&record>();
}

}  // namespace

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
    if (known(name)) library->impl(name, kernel(name));
  }
  for (const char* name : refused_ops()) {
    if (known(name)) library->impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

namespace {

// Operators on layouts that this device does not have raise a readable error instead of the dispatcher's list of
// backends.
template <const char* kLayout>
void refuse_layout(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, handle.schema().name(), " cannot run on mycelya: ", kLayout,
      " tensors are not supported. Use strided ones, or run it on the CPU: move its inputs with "
      ".cpu() and the result back with .to(\"mycelya\").");
}
constexpr char kSparse[] = "sparse", kCompressed[] = "sparse compressed", kQuantized[] = "quantized",
               kNested[] = "nested";

void fallback(c10::DispatchKey key, torch::CppFunction&& f) {
  auto* leaked = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  leaked->fallback(std::move(f));
}

// Each fallback visits all operators of PyTorch, which takes milliseconds that an import must not cost.
void register_fallbacks_once() {
  using K = c10::DispatchKey;
  fallback(K::PrivateUse1, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  fallback(K::SparsePrivateUse1, torch::CppFunction::makeFromBoxedFunction<&refuse_layout<kSparse>>());
  fallback(K::SparseCsrPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&refuse_layout<kCompressed>>());
  fallback(K::QuantizedPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&refuse_layout<kQuantized>>());
  fallback(K::NestedTensorPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&refuse_layout<kNested>>());
  fallback(K::AutocastPrivateUse1, torch::CppFunction::makeFallthrough());
}

}  // namespace

void register_fallbacks_slow() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_fallbacks_once();
    fallbacks_registered.store(true, std::memory_order_release);
  });
}

}  // namespace mycelya
