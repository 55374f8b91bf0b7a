// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/memory/System.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

namespace mycelya::exec {
namespace {

constexpr uint64_t kNone = UINT64_MAX;

// Bytes left for operators, threads and other parts of this process: their calls of malloc do not check what is free.
constexpr uint64_t kReserve = uint64_t{64} << 20;

uint64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : kNone;  // no file, or "max"
}

// The number after a word at the start of a line; `otherwise` if there is no such line.
uint64_t NumberAfter(const std::string& path, const std::string& word, uint64_t otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, word.size(), word) == 0) return std::stoull(line.substr(word.size()));
  }
  return otherwise;
}

uint64_t Less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// Calls f(folder, version) for each control group of this process that has a folder for memory. A limit applies to all
// groups below it.
template <typename F>
void EachGroup(F f) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" in version 2, "<number>:memory:/path" in version 1.
    const size_t name = line.find(':') + 1, colon = line.find(':', name);
    if (colon == std::string::npos) continue;
    const std::string controller = line.substr(name, colon - name);
    if (!controller.empty() && controller != "memory") continue;
    const int version = controller.empty() ? 2 : 1;
    const std::string root = version == 2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::string path = line.substr(colon + 1);
    while (!path.empty() && path[0] == '/') {
      f(root + path, version);
      path.resize(path.rfind('/'));
    }
    f(root, version);
  }
}

uint64_t LimitOf(const std::string& group, int version) {
  return NumberIn(group + (version == 2 ? "/memory.max" : "/memory.limit_in_bytes"));
}

uint64_t FreeOf(const std::string& group, int version) {
  const uint64_t limit = LimitOf(group, version);
  if (limit == kNone) return kNone;
  const uint64_t used = NumberIn(group + (version == 2 ? "/memory.current" : "/memory.usage_in_bytes"));
  const std::string files = version == 2 ? "inactive_file " : "total_inactive_file ";
  return used == kNone ? limit : Less(limit, Less(used, NumberAfter(group + "/memory.stat", files, 0)));
}

// Of private memory.
uint64_t OwnLimit() {
  rlimit limit{};
  return getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : kNone;
}

uint64_t MemoryOfMachine() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) : 0;
}

}  // namespace

uint64_t MemoryOfProcess() {
  uint64_t least = std::min(MemoryOfMachine(), OwnLimit());
  EachGroup([&](const std::string& group, int version) { least = std::min(least, LimitOf(group, version)); });
  return least;
}

uint64_t FreeMemory() {
  constexpr uint64_t kKi = 1024;
  uint64_t least = NumberAfter("/proc/meminfo", "MemAvailable:", MemoryOfMachine() / kKi) * kKi +
                   NumberAfter("/proc/meminfo", "SwapFree:", 0) * kKi;
  if (const uint64_t limit = OwnLimit(); limit != kNone) {
    least = std::min(least, Less(limit, NumberAfter("/proc/self/status", "VmData:", 0) * kKi));
  }
  EachGroup([&](const std::string& group, int version) { least = std::min(least, FreeOf(group, version)); });
  return Less(least, kReserve);
}

}  // namespace mycelya::exec
