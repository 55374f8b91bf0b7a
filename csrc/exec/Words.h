// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Reads a program's words with bounds checks. Arguments get their types later, from schemas.
#ifndef MYCELYA_EXEC_WORDS_H_
#define MYCELYA_EXEC_WORDS_H_

#include <cstdint>
#include <string>

namespace mycelya::exec {

// One argument as written. The row of its tag in csrc/abi/words.h says which fields are used. The items of a list
// follow in the words; the caller reads them.
struct Word {
  uint64_t tag = 0;    // MYC_W_*
  uint64_t kind = 0;   // the head: MYC_N_*, a dtype, or MYC_L_*
  uint64_t value = 0;  // tensor or parameter index, bits of a literal, or number of items
  std::string text;
};

// Bounds for counts without an item in the words, so that a short program can't allocate much memory.
inline constexpr uint64_t kMaxParams = 1 << 24;
inline constexpr uint64_t kMaxBuffers = 1 << 20;

class Reader {
 public:
  // of: the name of the words in messages.
  Reader(const uint64_t* words, uint64_t n, const char* of = "the program") : words_(words), n_(n), of_(of) {}

  // Each throws ValueError with `what` and the position if it would read past the end or return a value that is too
  // large.
  uint64_t Next(const char* what);
  uint32_t Index(const char* what, uint64_t limit);               // < limit
  uint32_t Count(const char* what, uint64_t words_per_item = 1);  // at most the items that the remaining words can hold
  std::string Text(const char* what);                             // a length in bytes, then the bytes in words
  const uint64_t* Span(const char* what, uint64_t n);             // the next n words

  // Checks tensor and parameter indices. Literals are checked with the schema.
  Word Argument(uint64_t ntensors, uint64_t nparams);

  void End() const;
  bool ended() const { return at_ == n_; }
  uint64_t at() const { return at_; }

 private:
  const uint64_t* words_;
  uint64_t n_;
  const char* of_;
  uint64_t at_ = 0;
};

// The name of an argument in messages, "a tensor".
const char* NameOf(const Word& word);

// The dtype of a Python number by its kind (MYC_N_*).
uint64_t NumberDtype(uint64_t kind);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_WORDS_H_
