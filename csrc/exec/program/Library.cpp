// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/program/Library.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace mycelya::exec {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGuarded[] = {
#define MYC_LIBRARY_OP(name, dynamic, casts) name,
#include "abi/library_ops.inc"
#undef MYC_LIBRARY_OP
};
static_assert(std::is_sorted(std::begin(kGuarded), std::end(kGuarded)), "binary_search needs an order");

// The first of these that exists is loaded. Its name depends on the version of torchvision.
constexpr const char* kLibraries[] = {"torchvision/_C_stable.so", "torchvision/_C.so"};

// Nothing is ever unloaded: registrations with the dispatcher stay.
void* Open(const fs::path& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); }

// Loads a shared library, or those in the folder of a package. A package has others, too: modules of Python need
// symbols that this process does not have, and are not loaded. Returns why nothing was, "" if something was.
std::string LoadOne(const fs::path& at) {
  std::error_code unknown;
  if (!fs::is_directory(at, unknown)) return Open(at) == nullptr ? dlerror() : "";
  std::vector<fs::path> files;
  for (auto f = fs::recursive_directory_iterator(at, unknown); f != fs::recursive_directory_iterator();
       f.increment(unknown)) {
    if (f->path().extension() == ".so") files.push_back(f->path());
  }
  std::sort(files.begin(), files.end());
  std::string why = "it has no shared library";
  bool loaded = false;
  for (const fs::path& file : files) {
    if (Open(file) != nullptr) {
      loaded = true;
    } else {
      why = dlerror();
    }
  }
  return loaded ? "" : why;
}

// What the worker's owner allows: names of packages beside torch, and paths of shared libraries.
std::vector<std::string> AllowedLibraries() {
  const char* value = std::getenv("MYCELYA_LIBRARIES");
  std::vector<std::string> names;
  std::istringstream words(value == nullptr ? "" : value);
  for (std::string name; std::getline(words, name, ',');) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

// Loads all libraries. Returns the operators that have come with those that the owner allows.
std::set<std::string> LoadLibraries() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &info) == 0 || info.dli_fname == nullptr) return {};
  const fs::path lib = fs::path(info.dli_fname).parent_path();  // <packages>/torch/lib
  const fs::path packages = lib.parent_path().parent_path();
  // Libraries name libtorch and its parts without a path, so they must be loaded already.
  if (Open(lib / "libtorch.so") == nullptr) return {};
  for (const char* name : kLibraries) {
    std::error_code unknown;
    if (!fs::exists(packages / name, unknown)) continue;
    Open(packages / name);
    break;
  }
  const std::vector<std::string> libraries = AllowedLibraries();
  if (libraries.empty()) return {};
  std::set<std::string> before, allowed;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) before.insert(c10::toString(op));
  for (const std::string& name : libraries) {
    const std::string why = LoadOne(packages / name);  // an absolute path stays as it is
    if (why.empty()) continue;
    std::fprintf(stderr, "MYCELYA_LIBRARIES: the worker cannot load %s: %s.\n", name.c_str(), why.c_str());
  }
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (std::string name = c10::toString(op); !before.contains(name)) allowed.insert(std::move(name));
  }
  return allowed;
}

}  // namespace

bool IsGuardedLibraryOperator(std::string_view name) {
  return std::binary_search(std::begin(kGuarded), std::end(kGuarded), name);
}

std::optional<c10::OperatorHandle> FindLibraryOperator(const std::string& name) {
  static const bool only_guarded = AllowedLibraries().empty();
  const bool guarded = IsGuardedLibraryOperator(name);
  if (only_guarded && !guarded) return std::nullopt;  // nothing is loaded for a name that cannot be found
  static const std::set<std::string>& allowed = *new std::set<std::string>(LoadLibraries());
  if (!guarded && !allowed.contains(name)) return std::nullopt;
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
}

}  // namespace mycelya::exec
