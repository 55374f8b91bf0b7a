// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/Error.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace mycelya::exec {
namespace {

Failure From(int32_t kind, const c10::Error& e) { return {kind, e.what_without_backtrace()}; }

// PyTorch's CPU allocator reports exhaustion as a plain error, so look at the text.
int32_t KindOfPlain(const c10::Error& e) {
  return std::strstr(e.what_without_backtrace(), "DefaultCPUAllocator: ") != nullptr ? MYC_E_MEMORY : MYC_E_RUNTIME;
}

}  // namespace

Failure CurrentFailure() {
  try {
    throw;
  }
#define MYC_CATCH(kind, type)  \
  catch (const c10::type& e) { \
    return From(kind, e);      \
  }
  MYC_ERROR_TABLE(MYC_CATCH)
#undef MYC_CATCH
  catch (const c10::Error& e) {
    return From(KindOfPlain(e), e);
  }
  catch (const std::bad_alloc&) {
    return {MYC_E_MEMORY, "The executor is out of CPU memory."};
  }
  catch (const std::exception& e) {
    return {MYC_E_RUNTIME, e.what()};
  }
  catch (...) {
    return {MYC_E_RUNTIME, "An operator threw something that is not a C++ exception class."};
  }
}

void Fill(myc_error* out, int32_t kind, std::string_view text) noexcept {
  if (out == nullptr) return;
  out->kind = kind;
  size_t n = std::min(text.size(), sizeof(out->text) - 1);
  if (n < text.size()) {
    // A byte 10xxxxxx continues a UTF-8 character: step back until the cut is before a first byte.
    while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  }
  std::memcpy(out->text, text.data(), n);
  out->text[n] = 0;
}

}  // namespace mycelya::exec
