// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/rules/RulesColumns.h"

#include <unordered_map>

namespace mycelya {

Columns ColumnsOf(std::string_view name) {
  static const auto& rows = *new std::unordered_map<std::string_view, Columns>{
#define MYC_OPERATOR(name, ...) {name, Columns{__VA_ARGS__}},
#include "device/rules/operators.inc"
  };
  static const auto& groups = *new std::unordered_map<std::string_view, uint32_t>{
#define MYC_ONE_OF(name, group_facts) {name, group_facts},
#include "device/rules/operators.inc"
  };
  const auto row = rows.find(name);
  Columns columns = row == rows.end() ? Columns{} : row->second;
  if (const auto group = groups.find(name); group != groups.end()) columns.facts |= group->second;
#define MYC_FAMILY(prefix, family_facts) \
  if (name.starts_with(prefix)) columns.facts |= (family_facts);
#include "device/rules/operators.inc"
  return columns;
}

}  // namespace mycelya
