// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Flags.h"

#include <algorithm>
#include <mutex>

namespace mycelya {
namespace {

struct Flag {
  std::string name, value;
  uint64_t version;
};

std::mutex flags_mutex;

// In the order of their versions. Leaked, because threads may outlive static objects.
std::vector<Flag>& AllFlags() {
  static auto* all = new std::vector<Flag>();
  return *all;
}

}  // namespace

std::atomic<uint64_t> flags_version{0};

void SetFlag(const std::string& name, const std::string& value) {
  std::lock_guard<std::mutex> guard(flags_mutex);
  auto& all = AllFlags();
  all.erase(std::remove_if(all.begin(), all.end(), [&](const Flag& f) { return f.name == name; }), all.end());
  all.push_back({name, value, flags_version.load(std::memory_order_relaxed) + 1});
  flags_version.fetch_add(1, std::memory_order_release);
}

std::vector<std::string> FlagsSince(uint64_t& version) {
  std::lock_guard<std::mutex> guard(flags_mutex);
  std::vector<std::string> found;
  for (const Flag& f : AllFlags()) {
    if (f.version > version) found.push_back(f.name + "=" + f.value);
  }
  version = flags_version.load(std::memory_order_relaxed);
  return found;
}

}  // namespace mycelya
