// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/Words.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstring>

#include "abi/mycelya.h"
#include "exec/Dtype.h"

namespace mycelya::exec {

namespace {

struct Row {
  const char* name = "?";
  uint32_t head = 0;
  uint32_t payload = 0;  // 0: no argument has this tag
};

// The rows of the catalogue, by tag.
constexpr std::array<Row, MYC_W_LIST + 1> kRows = [] {
  std::array<Row, MYC_W_LIST + 1> rows{};
#define MYC_ROW(tag, name, head, payload) rows[tag] = {name, head, payload};
  MYC_ARGUMENT_TABLE(MYC_ROW)
#undef MYC_ROW
  return rows;
}();

struct Number {
  uint64_t dtype = 0;
  uint64_t params = 0;
};

// The rows of the catalogue, by MYC_N_*.
constexpr std::array<Number, MYC_N_C128 + 1> kNumbers = [] {
  std::array<Number, MYC_N_C128 + 1> rows{};
#define MYC_ROW(kind, dtype, params) rows[kind] = {dtype, params};
  MYC_NUMBER_TABLE(MYC_ROW)
#undef MYC_ROW
  return rows;
}();

// The number of parameters that hold an argument. The head has been checked.
uint64_t Params(const Row& row, uint64_t head) {
  if (row.head == MYC_HEAD_NUMBER) return kNumbers[head].params;
  return row.head == MYC_HEAD_DTYPE && head == MYC_C128 ? 2 : 1;
}

void CheckHead(const Row& row, uint64_t head) {
  if (row.head == MYC_HEAD_NUMBER) {
    TORCH_CHECK_VALUE(head >= MYC_N_F64 && head <= MYC_N_C128, "BUG: ", head, " is not a kind of number.");
  } else if (row.head == MYC_HEAD_DTYPE) {
    ToScalarType(head);
  } else {
    TORCH_CHECK_VALUE(head >= MYC_L_TENSORS && head <= MYC_L_SCALARS, "BUG: ", head, " is not a kind of list.");
  }
}

}  // namespace

const char* NameOf(const Word& word) { return word.tag < kRows.size() ? kRows[word.tag].name : "?"; }

uint64_t NumberDtype(uint64_t kind) { return kNumbers[kind].dtype; }

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

Word Reader::Argument(uint64_t ntensors, uint64_t nparams) {
  Word w;
  w.tag = Next("an argument");
  TORCH_CHECK_VALUE(w.tag < kRows.size() && kRows[w.tag].payload != 0, "BUG: word ", at_ - 1, " of the program is ",
                    w.tag, ", which is not the tag of an argument.");
  const Row& row = kRows[w.tag];
  if (row.head != MYC_HEAD_NOTHING) CheckHead(row, w.kind = Next("the kind of an argument"));
  switch (row.payload) {
    case MYC_PAYLOAD_TENSOR:
      w.value = Index("a tensor index", ntensors);
      break;
    case MYC_PAYLOAD_PARAM:
      w.value = Index("a parameter index", nparams);
      TORCH_CHECK_VALUE(w.value + Params(row, w.kind) <= nparams, "BUG: the second half of ", row.name,
                        " is parameter ", w.value + 1, " of ", nparams, ".");
      break;
    case MYC_PAYLOAD_WORD:
    case MYC_PAYLOAD_HEAD:
      w.value = Next("a literal");
      break;
    case MYC_PAYLOAD_TEXT:
      w.text = Text("a string");
      break;
    case MYC_PAYLOAD_ITEMS:
      w.value = Count("items of a list");
      break;
    default:
      break;
  }
  return w;
}

void Reader::End() const { TORCH_CHECK_VALUE(at_ == n_, "BUG: ", of_, " has ", n_ - at_, " words too many."); }

}  // namespace mycelya::exec
