// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/program/Words.h"

#include <c10/util/Exception.h>

#include <cstring>

#include "abi/mycelya.h"
#include "exec/Dtype.h"

namespace mycelya::exec {

uint64_t NumberWords(uint64_t kind) { return kind == MYC_N_C128 ? 2 : 1; }
uint64_t ScalarWords(uint64_t dtype) { return dtype == MYC_C128 ? 2 : 1; }

uint64_t Reader::Next(const char* what) {
  TORCH_CHECK_VALUE(at_ < n_, "BUG: ", of_, " ends after ", n_, " words, before ", what, ".");
  return words_[at_++];
}

uint32_t Reader::Index(const char* what, uint64_t limit) {
  const uint64_t v = Next(what);
  TORCH_CHECK_VALUE(v < limit && v < UINT32_MAX, "BUG: word ", at_ - 1, " of ", of_, " is ", v, ", but ", what,
                    " must be below ", limit, ".");
  return static_cast<uint32_t>(v);
}

uint32_t Reader::Count(const char* what, uint64_t words_per_item) {
  const uint64_t v = Next(what);
  TORCH_CHECK_VALUE(v <= (n_ - at_) / words_per_item && v < UINT32_MAX, "BUG: word ", at_ - 1, " of ", of_, " is ", v,
                    ", more ", what, " than the ", n_ - at_, " words after it can hold.");
  return static_cast<uint32_t>(v);
}

std::string Reader::Text(const char* what) {
  const uint64_t bytes = Next(what);
  TORCH_CHECK_VALUE(bytes <= (n_ - at_) * 8, "BUG: ", what, " of ", bytes, " bytes does not fit into the ", n_ - at_,
                    " words after it.");
  std::string s(bytes, 0);
  std::memcpy(s.data(), words_ + at_, bytes);  // words and hosts are little endian
  at_ += (bytes + 7) / 8;
  return s;
}

const uint64_t* Reader::Span(const char* what, uint64_t n) {
  TORCH_CHECK_VALUE(n <= n_ - at_, "BUG: ", what, " of ", n, " words does not fit into the ", n_ - at_,
                    " words after it.");
  at_ += n;
  return words_ + at_ - n;
}

Word Reader::Argument(uint64_t ntensors, uint64_t nparams, bool in_list) {
  Word w;
  w.tag = Next("an argument");
  switch (w.tag) {
    case MYC_W_NONE:
      break;
    case MYC_W_TENSOR:
      w.value = Index("a tensor index", ntensors);
      break;
    case MYC_W_NUMBER:
      w.kind = Next("the kind of a number");
      TORCH_CHECK_VALUE(w.kind >= MYC_N_F64 && w.kind <= MYC_N_C128, "BUG: ", w.kind, " is not a kind of number.");
      w.value = Index("a parameter index", nparams);
      TORCH_CHECK_VALUE(w.value + NumberWords(w.kind) <= nparams, "BUG: a complex number's second half is parameter ",
                        w.value + 1, " of ", nparams, ".");
      break;
    case MYC_W_SCALAR:
      w.kind = Next("the dtype of a scalar");
      ToScalarType(w.kind);
      w.value = Index("a parameter index", nparams);
      TORCH_CHECK_VALUE(w.value + ScalarWords(w.kind) <= nparams, "BUG: a complex scalar's second half is parameter ",
                        w.value + 1, " of ", nparams, ".");
      break;
    case MYC_W_SIZE:
    case MYC_W_GEN:
      w.value = Index("a parameter index", nparams);
      break;
    case MYC_W_INT:
    case MYC_W_FLOAT:
    case MYC_W_BOOL:
    case MYC_W_DTYPE:
    case MYC_W_LAYOUT:
    case MYC_W_DEVICE:
    case MYC_W_MEMFMT:
      w.value = Next("a literal");
      break;
    case MYC_W_STR:
      w.text = Text("a string");
      break;
    case MYC_W_LIST: {
      TORCH_CHECK_VALUE(!in_list, "BUG: a list holds a list at word ", at_ - 1, " of the program.");
      w.kind = Next("the kind of a list");
      TORCH_CHECK_VALUE(w.kind >= MYC_L_TENSORS && w.kind <= MYC_L_SCALARS, "BUG: ", w.kind, " is not a kind of list.");
      const uint32_t n = Count("items of a list");
      w.items.reserve(n);
      for (uint32_t i = 0; i < n; ++i) w.items.push_back(Argument(ntensors, nparams, true));
      break;
    }
    default:
      TORCH_CHECK_VALUE(false, "BUG: word ", at_ - 1, " of the program is ", w.tag,
                        ", which is not the tag of an argument.");
  }
  return w;
}

void Reader::End() const { TORCH_CHECK_VALUE(at_ == n_, "BUG: ", of_, " has ", n_ - at_, " words too many."); }

}  // namespace mycelya::exec
