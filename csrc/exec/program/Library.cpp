// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/program/Library.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

namespace mycelya::exec {
namespace {

constexpr std::string_view kOperators[] = {
#define MYC_LIBRARY_OP(name, dynamic, casts) name,
#include "abi/library_ops.inc"
#undef MYC_LIBRARY_OP
};
static_assert(std::is_sorted(std::begin(kOperators), std::end(kOperators)), "binary_search needs an order");

// The first of these that exists is loaded. Its name depends on the version of torchvision.
constexpr const char* kLibraries[] = {"torchvision/_C_stable.so", "torchvision/_C.so"};

void* Open(const std::filesystem::path& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); }

// Nothing is ever unloaded: registrations with the dispatcher stay.
void LoadLibraries() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &info) == 0 || info.dli_fname == nullptr) return;
  const std::filesystem::path lib = std::filesystem::path(info.dli_fname).parent_path();  // <packages>/torch/lib
  const std::filesystem::path packages = lib.parent_path().parent_path();
  for (const char* name : kLibraries) {
    std::error_code unknown;
    if (!std::filesystem::exists(packages / name, unknown)) continue;
    // The library names libtorch and its parts without a path, so they must be loaded already.
    if (Open(lib / "libtorch.so") != nullptr) Open(packages / name);
    return;
  }
}

}  // namespace

bool IsLibraryOperator(std::string_view name) {
  return std::binary_search(std::begin(kOperators), std::end(kOperators), name);
}

std::optional<c10::OperatorHandle> FindLibraryOperator(const std::string& name) {
  static std::once_flag loaded;
  std::call_once(loaded, LoadLibraries);
  return c10::Dispatcher::singleton().findSchema({name, ""});
}

}  // namespace mycelya::exec
