// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A number of bytes as text, for error messages of both libraries.
#ifndef MYCELYA_ABI_SIZE_TEXT_H_
#define MYCELYA_ABI_SIZE_TEXT_H_

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>

namespace mycelya {

// "1.5 GiB"; "17 bytes" below 1000.
inline std::string SizeText(uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + " bytes";
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double n = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; n >= 1000 && unit + 1 < std::size(kUnits); ++unit) n /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %s", n, kUnits[unit]);
  return text;
}

}  // namespace mycelya

#endif  // MYCELYA_ABI_SIZE_TEXT_H_
