// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Bounded reading of a program's words, up to arguments that have no type yet.
#ifndef MYCELYA_EXEC_PROGRAM_WORDS_H_
#define MYCELYA_EXEC_PROGRAM_WORDS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace mycelya::exec {

// One argument as written. Which of the fields mean something depends on the tag; see "arg" in csrc/abi/mycelya.h.
struct Word {
  uint64_t tag = 0;    // MYC_W_*
  uint64_t kind = 0;   // MYC_N_* of a NUMBER, dtype of a SCALAR, MYC_L_* of a LIST
  uint64_t value = 0;  // tensor or parameter index, or the literal's bits
  std::string text;
  std::vector<Word> items;
};

// Counts that the words name without spelling them out, so that a short program can't ask for much memory.
inline constexpr uint64_t kMaxParams = 1 << 24;
inline constexpr uint64_t kMaxBuffers = 1 << 20;

class Reader {
 public:
  // of: what the words are, for messages.
  Reader(const uint64_t* words, uint64_t n, const char* of = "the program") : words_(words), n_(n), of_(of) {}

  // Each throws ValueError, naming `what` and the position, rather than read past the end or return something larger
  // than allowed.
  uint64_t Next(const char* what);
  uint32_t Index(const char* what, uint64_t limit);               // < limit
  uint32_t Count(const char* what, uint64_t words_per_item = 1);  // items that can still follow
  std::string Text(const char* what);                             // length in bytes, then its words
  const uint64_t* Span(const char* what, uint64_t n);             // so many words as they are

  // Tensor and parameter indices are checked, literals are not: that needs the schema.
  Word Argument(uint64_t ntensors, uint64_t nparams, bool in_list = false);

  void End() const;
  bool ended() const { return at_ == n_; }
  uint64_t at() const { return at_; }

 private:
  const uint64_t* words_;
  uint64_t n_;
  const char* of_;
  uint64_t at_ = 0;
};

// How many parameters hold a number of this kind (MYC_N_*), or a 0-dim tensor's element of this dtype.
uint64_t NumberWords(uint64_t kind);
uint64_t ScalarWords(uint64_t dtype);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_PROGRAM_WORDS_H_
