// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Failures as the C ABI carries them: a kind (MYC_E_*) and a text of whole sentences.
#ifndef MYCELYA_EXEC_ERROR_H_
#define MYCELYA_EXEC_ERROR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "abi/mycelya.h"

namespace mycelya::exec {

struct Failure {
  int32_t kind = MYC_E_RUNTIME;
  std::string text;
};

// Why a buffer or a storage has no content: the step that failed. All results that depend on the step share it.
struct Poison {
  uint64_t call = 0;
  uint32_t step = 0;
  Failure failure;
};
using PoisonPtr = std::shared_ptr<const Poison>;

// The step number of a failure that belongs to a call as a whole.
inline constexpr uint32_t kNoStep = UINT32_MAX;

// Classifies the exception being handled. Call it only inside a catch block. Throws only bad_alloc.
Failure CurrentFailure();

// Copies the text, cut at a whole UTF-8 character if it doesn't fit. Does nothing if out is null.
void Fill(myc_error* out, int32_t kind, std::string_view text) noexcept;
inline void Fill(myc_error* out, const Failure& f) noexcept { Fill(out, f.kind, f.text); }

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_ERROR_H_
