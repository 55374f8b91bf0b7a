// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Registers operators with the dispatcher. Those of the op table are registered by name, because a backend fallback is
// the dispatcher's last choice and would miss most of them. The fallback only refuses. Hand-written operators register
// themselves (operators/, sparse/).

#include "device/pytorch/Register.h"

#include <torch/library.h>

#include <mutex>

#include "device/pytorch/Others.h"
#include "device/record/Op.h"
#include "device/record/Record.h"
#include "device/record/Unboxed.h"

namespace mycelya {

std::atomic<bool> fallbacks_registered{false};

namespace {

torch::CppFunction Kernel(const std::string& name) {
  if (auto twin = Unboxed(name)) return std::move(*twin);
  if (const auto kernel = SpecialOf(name).kernel) return kernel();
  return torch::CppFunction::makeFromBoxedFunction<&Record>();
}

}  // namespace

void RegisterOps() {
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
  for (const char* name : WholeOps()) {
    if (known(name)) library->impl(name, Kernel(name));
  }
  for (const char* name : RefusedOps()) {
    if (known(name)) library->impl(name, torch::CppFunction::makeFromBoxedFunction<&Refuse>());
  }
}

namespace {

// Operators on layouts that this device does not have raise a readable error instead of the dispatcher's list of
// backends.
template <const char* kReason>
void RefuseLayout(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, handle.schema().name(), " cannot run on mycelya: ", kReason,
                              ", or run it on the CPU: move its inputs with .cpu() and the result back with "
                              ".to(\"mycelya\").");
}
constexpr char kSparse[] = "sparse tensors are not supported. Use strided ones";
constexpr char kCompressed[] = "sparse compressed tensors are not supported. Use strided ones";
constexpr char kQuantized[] = "quantized tensors are not supported. Use strided ones";
constexpr char kNested[] =
    "nested tensors of the strided layout are not supported. Make a jagged one, "
    "torch.nested.nested_tensor(tensors, layout=torch.jagged)";

void Fallback(c10::DispatchKey key, torch::CppFunction&& f) {
  auto* leaked = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  leaked->fallback(std::move(f));
}

// Each fallback visits all operators of PyTorch, which takes milliseconds that an import must not cost.
void RegisterFallbacksOnce() {
  using K = c10::DispatchKey;
  Fallback(K::PrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RunHereOrRefuse>());
  Fallback(K::SparsePrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RefuseLayout<kSparse>>());
  Fallback(K::SparseCsrPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RefuseLayout<kCompressed>>());
  Fallback(K::QuantizedPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RefuseLayout<kQuantized>>());
  Fallback(K::NestedTensorPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RefuseLayout<kNested>>());
  Fallback(K::AutocastPrivateUse1, torch::CppFunction::makeFallthrough());
}

}  // namespace

void RegisterFallbacksSlow() {
  static std::once_flag once;
  std::call_once(once, [] {
    RegisterFallbacksOnce();
    fallbacks_registered.store(true, std::memory_order_release);
  });
}

}  // namespace mycelya
