// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Makes libraries run with the libstdc++ of GCC 8, which torch's own wheels need (manylinux_2_28). Since C++20, str()
// of a string stream calls a function that libstdc++ has since GCC 11. The function below has its name and is hidden,
// so the linker resolves the library's calls to it. This file is compiled as C++17, whose str() all systems have.
#include <sstream>

#if defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
static_assert(__cplusplus < 202002L, "str() would call itself");

namespace mycelya {

__attribute__((visibility("hidden"))) std::string StringOf(const std::stringbuf& buffer) __asm__(
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");

std::string StringOf(const std::stringbuf& buffer) { return buffer.str(); }

}  // namespace mycelya
#endif
