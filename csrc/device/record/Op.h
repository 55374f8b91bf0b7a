// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What the recorder knows about an operator. It is derived once, from the schema, the op table and the catalogue.
#ifndef MYCELYA_DEVICE_RECORD_OP_H_
#define MYCELYA_DEVICE_RECORD_OP_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "abi/mycelya.h"
#include "device/record/Special.h"
#include "device/rules/RulesColumns.h"

namespace mycelya {

// Begins the numbers of Kind that are lists.
inline constexpr uint8_t kLists = 32;

// The schema's type of an argument: the tag that a value of it has in a trace, or kLists and the kind of the list. The
// literals that a number becomes have tags of their own: see RecordWords.cpp.
enum class Kind : uint8_t {
  kOther = 0,  // the op cannot be recorded when such an argument is given
  kTensor = MYC_W_TENSOR,
  kScalar = MYC_W_NUMBER,
  kInt = MYC_W_INT,
  kFloat = MYC_W_FLOAT,
  kBool = MYC_W_BOOL,
  kDType = MYC_W_DTYPE,
  kLayout = MYC_W_LAYOUT,
  kDevice = MYC_W_DEVICE,
  kMemoryFormat = MYC_W_MEMFMT,
  kString = MYC_W_STR,
  kGenerator = MYC_W_GEN,
  kTensors = kLists + MYC_L_TENSORS,
  kOptTensors = kLists + MYC_L_OPT_TENSORS,
  kInts = kLists + MYC_L_INTS,
  kFloats = kLists + MYC_L_FLOATS,
  kBools = kLists + MYC_L_BOOLS,
  kScalars = kLists + MYC_L_SCALARS
};

struct Argument {
  Kind kind;
  // The class of a number: 'l' literal (hashed), 's' size, 'v' value, 'b' literal if 0 or 1, else value.
  char number_class;
  bool write;
};

struct Return {
  int alias;  // index of the written argument that is returned, or -1 for a fresh tensor
  bool list;
};

// An operator of another library that workers may run: a row of csrc/abi/library_ops.inc.
struct LibraryOp {
  const char* name;
  bool dynamic, casts;
};
inline constexpr LibraryOp kLibraryOps[] = {
#define MYC_LIBRARY_OP(name, dynamic, casts) {name, dynamic, casts},
#include "abi/library_ops.inc"
#undef MYC_LIBRARY_OP
};

struct Op {
  // classes: the classes of its arguments, as in the op table; null: those of its row.
  Op(const c10::OperatorHandle& handle, std::string name, const char* classes = nullptr);

  c10::OperatorHandle handle;
  std::string full_name;  // "aten::add.Tensor"
  std::string name;       // "add.Tensor"
  uint64_t hash;          // of full_name
  uint32_t flags = 0;     // MYC_R_*
  std::vector<Argument> args;
  std::vector<Return> returns;
  uint32_t fresh_returns = 0;  // of returns
  std::vector<int> writes;     // written arguments
  bool writes_out = false;     // they are out= arguments, which may be resized
  bool takes_other = false;    // an argument of Kind::kOther
  bool takes_codes = false;    // a generator or a dtype, which a record may not be able to hold
  bool dynamic = false;        // its shapes are data-dependent: only the worker knows them
  std::string functional;      // the overload whose inference applies, "" if none
  std::optional<c10::OperatorHandle> functional_handle;
  Columns columns;                     // what the catalogue knows about it
  Special special;                     // the functions that its row names
  std::string refusal;                 // why it cannot be recorded, "" if it can
  const LibraryOp* library = nullptr;  // its row, if it is one of another library
  bool of_others = false;              // it is of another library, and has no row
  const Op* recorded = nullptr;        // the op whose name and schema go into the trace: this, or recorded_as

  // Whether every device computes it to the same bits, at least of integers and booleans.
  bool IsExact() const { return columns.Has(kExact) || columns.Has(kExactOnIntegers); }
  // The same with an operand of this dtype.
  bool IsExactOn(at::ScalarType t) const {
    return columns.Has(kExact) || (columns.Has(kExactOnIntegers) && at::isIntegralType(t, true));
  }
};

// Looks an operator up by its schema's address: one pointer comparison for a known one.
const Op& OpFor(const c10::OperatorHandle& handle);

// Names (without "aten::") that are recorded whole, and those that are refused.
const std::vector<const char*>& WholeOps();
const std::vector<const char*>& RefusedOps();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_OP_H_
