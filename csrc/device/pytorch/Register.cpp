// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Registers operators with the dispatcher. Those of the op table are registered by name, because a backend fallback is
// the dispatcher's last choice and would miss most of them. The fallback only refuses. Hand-written operators register
// themselves at load (operators/, sparse/).

#include "device/tensor/Register.h"

#include <torch/library.h>

#include <mutex>

#include "device/pytorch/Others.h"
#include "device/record/Op.h"
#include "device/record/Record.h"
#include "device/record/Unboxed.h"

namespace mycelya {

std::atomic<bool> operators_registered{false};

namespace {

using K = c10::DispatchKey;

torch::CppFunction Kernel(const std::string& name) {
  if (auto twin = Unboxed(name)) return std::move(*twin);
  if (const auto kernel = SpecialOf(name).kernel) return kernel();
  return torch::CppFunction::makeFromBoxedFunction<&Record>();
}

// PyTorch dispatches these factories themselves, so they may be called before the first tensor.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"tril_indices", "triu_indices"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&Record>());
  }
}

// Registers the op table for the device. An operator for which somebody else has registered a kernel keeps it.
void RegisterOps() {
  // Leaked: deregistering at exit would race with threads that still run.
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", K::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto is_free = [&](const char* name) {
    const std::string_view n(name);
    const auto dot = n.find('.');
    const auto found =
        dispatcher.findOp({"aten::" + std::string(n.substr(0, dot)),
                           dot == std::string_view::npos ? std::string() : std::string(n.substr(dot + 1))});
    return found && !found->hasKernelForDispatchKey(K::PrivateUse1);  // an older PyTorch lacks some
  };
  for (const char* name : WholeOps()) {
    if (is_free(name)) library->impl(name, Kernel(name));
  }
  for (const char* name : RefusedOps()) {
    if (is_free(name)) library->impl(name, torch::CppFunction::makeFromBoxedFunction<&Refuse>());
  }
}

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

void RegisterFallbacks() {
  Fallback(K::PrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RunHereOrRefuse>());
  Fallback(K::SparsePrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RefuseLayout<kSparse>>());
  Fallback(K::SparseCsrPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RefuseLayout<kCompressed>>());
  Fallback(K::QuantizedPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RefuseLayout<kQuantized>>());
  Fallback(K::NestedTensorPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&RefuseLayout<kNested>>());
  Fallback(K::AutocastPrivateUse1, torch::CppFunction::makeFallthrough());
}

}  // namespace

void RegisterOperatorsSlow() {
  static std::once_flag once;
  std::call_once(once, [] {
    RegisterOps();
    RegisterFallbacks();
    operators_registered.store(true, std::memory_order_release);
  });
}

}  // namespace mycelya
