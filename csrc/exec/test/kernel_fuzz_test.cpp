// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Random kernels against an interpreter that computes one point at a time, and damaged words.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "exec/test/KernelWords.h"

namespace mycelya::exec::test {
namespace {

using T = c10::ScalarType;
using Random = std::mt19937_64;

struct Value {
  double real = 0;
  int64_t whole = 0;
};

int64_t Draw(Random& r, int64_t below) { return static_cast<int64_t>(r() % static_cast<uint64_t>(below)); }

// Ops with exact results in every class, so that the order of reductions does not matter.
struct Op {
  uint64_t op;
  int operands;
};
const std::map<uint64_t, std::vector<Op>> kOps = {
    {MYC_K_F64,
     {{MYC_K_NEG, 1},
      {MYC_K_ABS, 1},
      {MYC_K_RELU, 1},
      {MYC_K_SIGN, 1},
      {MYC_K_ADD, 2},
      {MYC_K_SUB, 2},
      {MYC_K_MAXIMUM, 2},
      {MYC_K_MINIMUM, 2}}},
    {MYC_K_I64,
     {{MYC_K_NEG, 1},
      {MYC_K_NOT, 1},
      {MYC_K_ADD, 2},
      {MYC_K_SUB, 2},
      {MYC_K_MUL, 2},
      {MYC_K_AND, 2},
      {MYC_K_XOR, 2},
      {MYC_K_MAXIMUM, 2}}},
    {MYC_K_B8, {{MYC_K_NOT, 1}, {MYC_K_AND, 2}, {MYC_K_OR, 2}, {MYC_K_XOR, 2}, {MYC_K_MINIMUM, 2}}},
};

int64_t Wrap(uint64_t v) { return static_cast<int64_t>(v); }

Value Compute(uint64_t op, uint64_t cls, Value a, Value b, Value c) {
  const bool real = cls == MYC_K_F64;
  const auto w = [](uint64_t v) { return Value{0, Wrap(v)}; };
  const auto x = static_cast<uint64_t>(a.whole), y = static_cast<uint64_t>(b.whole);
  switch (op) {
    case MYC_K_NEG:
      return real ? Value{-a.real} : w(-x);
    case MYC_K_ABS:
      return {std::abs(a.real)};
    case MYC_K_RELU:
      return {a.real < 0 ? 0 : a.real};
    case MYC_K_SIGN:
      return {a.real > 0 ? 1.0 : a.real < 0 ? -1.0 : 0.0};
    case MYC_K_NOT:
      return cls == MYC_K_B8 ? w(x ^ 1) : w(~x);
    case MYC_K_ADD:
      return real ? Value{a.real + b.real} : w(x + y);
    case MYC_K_SUB:
      return real ? Value{a.real - b.real} : w(x - y);
    case MYC_K_MUL:
      return w(x * y);
    case MYC_K_AND:
      return w(x & y);
    case MYC_K_OR:
      return w(x | y);
    case MYC_K_XOR:
      return w(x ^ y);
    case MYC_K_MAXIMUM:
      return real ? Value{std::max(a.real, b.real)} : w(static_cast<uint64_t>(std::max(a.whole, b.whole)));
    case MYC_K_MINIMUM:
      return real ? Value{std::min(a.real, b.real)} : w(static_cast<uint64_t>(std::min(a.whole, b.whole)));
    case MYC_K_EQ:
      return {0, real ? a.real == b.real : a.whole == b.whole};
    case MYC_K_LT:
      return {0, real ? a.real < b.real : a.whole < b.whole};
    case MYC_K_FMA:
      return {std::fma(a.real, b.real, c.real)};
    case MYC_K_WHERE:
      return a.whole != 0 ? b : c;
  }
  ADD_FAILURE() << "no meaning for " << op;
  return {};
}

struct Instr {
  uint64_t op, cls;
  uint64_t a = 0, b = 0, c = 0;
  bool row = false;     // one value per kept point
  bool hidden = false;  // may be infinite: no further instruction uses it, since sums of infinities are no numbers
};

// One random kernel and one instance of it.
class Case {
 public:
  // spots: with one reduced dim, and many values that differ from a constant at one of its points only.
  explicit Case(uint64_t seed, bool spots = false) : r_(seed) {
    const int64_t rank = spots ? 1 + Draw(r_, 3) : Draw(r_, 4);
    reduced_ = spots ? 1 : Draw(r_, 2) == 0 ? 0 : Draw(r_, rank + 1);
    for (int64_t d = 0; d < rank; ++d) {
      static constexpr int64_t kSizes[] = {1, 2, 3, 5, 17, 64, 100, 1};
      sizes_.push_back(Draw(r_, 40) == 0 && d < rank - reduced_ ? 0 : kSizes[Draw(r_, 8)]);
    }
    if (rank > 0 && Draw(r_, 4) == 0) sizes_[Draw(r_, rank)] = 300 + Draw(r_, 3000);
    int64_t points = 1;  // the interpreter is slow
    for (int64_t& size : sizes_) {
      size = std::min(size, std::max<int64_t>(1, 6000 / points));
      points *= std::max<int64_t>(1, size);
    }
    code_ = std::make_unique<Code>(KernelWords{static_cast<uint64_t>(rank)}, reduced_);
    MakeOperands();
    MakeInstrs(spots);
  }

  void Check(const std::string& what) {
    Interpret();
    RunOn(*code_, Instance(sizes_, tensors_));
    for (size_t i = 0; i < outs_.size(); ++i) {
      ASSERT_TRUE(tensors_[outs_[i]].equal(wanted_[i]))
          << what << " sizes " << sizes_ << " reduced " << reduced_ << " operand " << outs_[i];
    }
  }

 private:
  int64_t Rank() const { return static_cast<int64_t>(sizes_.size()); }

  // A tensor along the given dims, in a random layout.
  at::Tensor Tensor(const std::vector<int64_t>& dims, T dtype) {
    std::vector<int64_t> order(dims.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::shuffle(order.begin(), order.end(), r_);
    std::vector<int64_t> shape(dims.size()), back(dims.size());
    for (size_t i = 0; i < order.size(); ++i) {
      shape[i] = dims[order[i]] == kTaken ? 1 + Draw(r_, 6) : sizes_[dims[order[i]]];
      back[order[i]] = static_cast<int64_t>(i);
    }
    const int64_t skip = !dims.empty() && Draw(r_, 3) == 0 ? 2 : 1;
    if (skip == 2) shape.back() *= 2;
    at::Tensor t = at::randint(-20, 20, shape, at::kLong).to(dtype);
    if (skip == 2) t = t.slice(static_cast<int64_t>(dims.size()) - 1, 0, shape.back(), 2);
    return t.permute(back);
  }

  uint64_t AddOperand(const std::vector<int64_t>& dims, T dtype, uint64_t access) {
    std::vector<int> along(dims.begin(), dims.end());
    tensors_.push_back(Tensor(dims, dtype));
    dims_.push_back(dims);
    return code_->Operand(dtype, access, along);
  }
  std::vector<int64_t> Dims(int64_t n) const {
    std::vector<int64_t> d;
    for (int64_t i = 0; i < n; ++i) d.push_back(i);
    return d;
  }

  void MakeOperands() {
    for (const T dtype : {T::Double, T::Long, T::Bool, T::Int, T::Double}) {
      std::vector<int64_t> dims;
      for (const int64_t d : Dims(Rank())) {
        if (Draw(r_, 4) != 0) dims.push_back(d);
      }
      if (Draw(r_, 3) == 0)
        dims.insert(dims.begin() + Draw(r_, static_cast<int64_t>(dims.size()) + 1), static_cast<int64_t>(kTaken));
      AddOperand(dims, dtype, MYC_K_READ);
    }
    inputs_ = tensors_.size();
    rewritten_.resize(inputs_);
  }

  uint64_t Add(Instr i) {
    instrs_.push_back(i);
    return code_->Op(i.op, i.cls, i.a, i.b, i.c);
  }
  uint64_t Pick(uint64_t cls) {
    std::vector<uint64_t> of;
    for (size_t i = 0; i < instrs_.size(); ++i) {
      if (instrs_[i].cls == cls && instrs_[i].op != MYC_K_STORE && !instrs_[i].hidden) of.push_back(i);
    }
    return of[Draw(r_, static_cast<int64_t>(of.size()))];
  }
  bool Taken(size_t operand) const {
    return std::find(dims_[operand].begin(), dims_[operand].end(), kTaken) != dims_[operand].end();
  }
  bool RowOf(uint64_t reg) const { return instrs_[reg].row; }

  uint64_t Const(uint64_t cls, double real, int64_t whole) {
    return Add({MYC_K_CONST, cls, cls == MYC_K_F64 ? std::bit_cast<uint64_t>(real) : static_cast<uint64_t>(whole), 0, 0,
                true, std::isinf(real)});
  }
  // Adds a value that can differ from a constant at one point of a row only, and perhaps a reduction of that value.
  void AddSpot(uint64_t index, uint64_t cls) {
    std::vector<uint64_t> rows, conditions;
    for (size_t i = 0; i < instrs_.size(); ++i) {
      if (instrs_[i].row && instrs_[i].cls == MYC_K_I64) rows.push_back(i);
      if (instrs_[i].row && instrs_[i].cls == MYC_K_B8) conditions.push_back(i);
    }
    const uint64_t spot = rows[Draw(r_, static_cast<int64_t>(rows.size()))], value = Pick(cls), other = Pick(cls);
    uint64_t here = Draw(r_, 2) == 0 ? Add({MYC_K_EQ, MYC_K_B8, index, spot}) : Add({MYC_K_EQ, MYC_K_B8, spot, index});
    if (!conditions.empty() && Draw(r_, 2) == 0) {
      const uint64_t only = conditions[Draw(r_, static_cast<int64_t>(conditions.size()))];
      here = Draw(r_, 2) == 0 ? Add({MYC_K_AND, MYC_K_B8, here, only}) : Add({MYC_K_AND, MYC_K_B8, only, here});
    }
    constexpr double kHuge = std::numeric_limits<double>::infinity();
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    switch (Draw(r_, 4)) {
      case 0:
        Add({MYC_K_WHERE, cls, here, value, other});
        break;
      case 1: {
        const uint64_t where = Add({MYC_K_WHERE, cls, here, value, Const(cls, 0, 0)});
        Add({cls == MYC_K_B8 ? MYC_K_MAX + 0ull : MYC_K_SUM + 0ull, cls, where, 0, 0, true});
        break;
      }
      case 2: {
        const uint64_t least = Const(cls, -kHuge, cls == MYC_K_B8 ? 0 : ~kMost);
        const uint64_t where = Add({MYC_K_WHERE, cls, here, value, least, false, true});
        Add({MYC_K_MAX, cls, where, 0, 0, true, true});
        Add({MYC_K_MAXIMUM, cls, instrs_.size() - 1, Const(cls, -50, 0), 0, true});
        break;
      }
      case 3: {
        const uint64_t most = Const(cls, kHuge, cls == MYC_K_B8 ? 1 : kMost);
        const uint64_t where = Add({MYC_K_WHERE, cls, here, value, most, false, true});
        Add({MYC_K_MIN, cls, where, 0, 0, true, true});
        Add({MYC_K_MINIMUM, cls, instrs_.size() - 1, Const(cls, 50, 1), 0, true});
        break;
      }
    }
  }

  // The index along a dim, moved by a number. The indices may wrap around.
  uint64_t Run(size_t kept) {
    const int64_t d = Draw(r_, Rank());
    const bool row = static_cast<size_t>(d) < kept;
    const uint64_t index = Add({MYC_K_INDEX, MYC_K_I64, static_cast<uint64_t>(d), 0, 0, row});
    const uint64_t by = Const(MYC_K_I64, 0, Draw(r_, 8) == 0 ? INT64_MAX - Draw(r_, 3) : Draw(r_, 12) - 4);
    return Add({Draw(r_, 2) == 0 ? MYC_K_ADD + 0ull : MYC_K_SUB + 0ull, MYC_K_I64, index, by, 0, row});
  }

  void MakeInstrs(bool spots) {
    const auto kept = static_cast<size_t>(Rank() - reduced_);
    const auto row_of = [&](size_t i) {
      return std::all_of(dims_[i].begin(), dims_[i].end(), [&](int64_t d) { return d < static_cast<int64_t>(kept); });
    };
    for (size_t i = 0; i < inputs_; ++i) {
      if (!Taken(i)) Add({MYC_K_LOAD, ClassOf(tensors_[i].scalar_type()), i, 0, 0, row_of(i)});
    }
    for (const uint64_t cls : {MYC_K_I64, MYC_K_B8, MYC_K_F64}) Const(cls, 2, 1);
    Add({MYC_K_CONST, MYC_K_F64, std::bit_cast<uint64_t>(3.0), 0, 0, true});
    Add({MYC_K_CONST, MYC_K_I64, 5, 0, 0, true});
    if (Rank() > 0) {
      const int64_t d = Draw(r_, Rank());
      Add({MYC_K_INDEX, MYC_K_I64, static_cast<uint64_t>(d), 0, 0, static_cast<size_t>(d) < kept});
    }
    const uint64_t last = spots ? Add({MYC_K_INDEX, MYC_K_I64, static_cast<uint64_t>(Rank() - 1)}) : 0;
    const int64_t n = 1 + Draw(r_, 25);
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t classes[] = {MYC_K_F64, MYC_K_I64, MYC_K_B8};
      const uint64_t cls = classes[Draw(r_, 3)];
      if (spots && Draw(r_, 2) == 0) {
        AddSpot(last, cls);
        continue;
      }
      const int64_t what = Draw(r_, 10);
      const uint64_t a = Pick(cls), b = Pick(cls);
      const auto from = static_cast<size_t>(Draw(r_, static_cast<int64_t>(inputs_)));
      if (Taken(from) && Draw(r_, 2) == 0) {
        const uint64_t position = Rank() > 0 && Draw(r_, 2) == 0 ? Run(kept) : Pick(MYC_K_I64);
        Add({MYC_K_TAKE, ClassOf(tensors_[from].scalar_type()), from, position, 0, row_of(from) && RowOf(position)});
      } else if (what == 0) {
        const uint64_t c = Pick(MYC_K_B8);
        Add({MYC_K_WHERE, cls, c, a, b, RowOf(a) && RowOf(b) && RowOf(c)});
      } else if (what == 9 && cls == MYC_K_F64) {  // a product with 1 or -1, so that results stay exact
        const uint64_t c = Pick(cls);
        Add({MYC_K_SIGN, cls, a, 0, 0, RowOf(a)});
        Add({MYC_K_FMA, cls, instrs_.size() - 1, b, c, RowOf(a) && RowOf(b) && RowOf(c)});
      } else if (what == 1) {
        Add({MYC_K_LT, MYC_K_B8, a, b, 0, RowOf(a) && RowOf(b)});
      } else if (what == 2 && cls != MYC_K_F64) {  // a real may be too large for an integer
        Add({MYC_K_CAST, cls == MYC_K_I64 ? MYC_K_B8 + 0ull : MYC_K_I64 + 0ull, a, 0, 0, RowOf(a)});
      } else if (what <= 4 && reduced_ > 0) {
        const uint64_t ops[] = {MYC_K_SUM, MYC_K_MAX, MYC_K_MIN};
        const uint64_t op = cls == MYC_K_B8 ? ops[1 + Draw(r_, 2)] : ops[Draw(r_, 3)];
        Add({op, cls, a, 0, 0, true});
      } else {
        const auto& ops = kOps.at(cls);
        const Op& op = ops[Draw(r_, static_cast<int64_t>(ops.size()))];
        Add({op.op, cls, a, op.operands == 2 ? b : 0, 0, RowOf(a) && (op.operands == 1 || RowOf(b))});
      }
    }
    const int64_t stores = 1 + Draw(r_, 3);
    for (int64_t i = 0; i < stores; ++i) {
      const T dtypes[] = {T::Double, T::Long, T::Bool, T::Short};
      const T dtype = dtypes[Draw(r_, 4)];
      const uint64_t reg = Pick(ClassOf(dtype));
      const bool row = reduced_ > 0 && RowOf(reg) && Draw(r_, 3) != 0;
      std::vector<int64_t> dims = Dims(row ? static_cast<int64_t>(kept) : Rank());
      std::shuffle(dims.begin(), dims.end(), r_);
      const auto in = static_cast<size_t>(Draw(r_, static_cast<int64_t>(inputs_)));
      const bool in_place = !row && !Taken(in) && static_cast<int64_t>(dims_[in].size()) == Rank() && !rewritten_[in] &&
                            tensors_[in].scalar_type() == dtype;
      if (in_place) dims = dims_[in];
      const uint64_t operand = AddOperand(dims, dtype, MYC_K_WRITE);
      if (in_place) {
        tensors_[operand] = tensors_[in];
        rewritten_[in] = true;
      }
      outs_.push_back(operand);
      wanted_.push_back(tensors_[operand].clone());
      Add({MYC_K_STORE, 0, operand, reg, 0, row});
    }
  }

  int64_t Offset(const at::Tensor& t, const std::vector<int64_t>& dims, const std::vector<int64_t>& at) const {
    int64_t offset = 0;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] != kTaken) offset += at[dims[i]] * t.stride(static_cast<int64_t>(i));
    }
    return offset;
  }
  // The offset of a position along the dim from which an operand is taken.
  int64_t Shift(uint64_t operand, int64_t position) const {
    const at::Tensor& t = tensors_[operand];
    const auto d = std::find(dims_[operand].begin(), dims_[operand].end(), kTaken) - dims_[operand].begin();
    return std::clamp<int64_t>(position, 0, t.size(d) - 1) * t.stride(d);
  }
  static Value Get(const at::Tensor& t, int64_t offset) {
    switch (t.scalar_type()) {
      case T::Double:
        return {static_cast<const double*>(t.data_ptr())[offset], 0};
      case T::Long:
        return {0, static_cast<const int64_t*>(t.data_ptr())[offset]};
      case T::Int:
        return {0, static_cast<const int32_t*>(t.data_ptr())[offset]};
      default:
        return {0, static_cast<const uint8_t*>(t.data_ptr())[offset]};
    }
  }
  static void Put(const at::Tensor& t, int64_t offset, Value v) {
    switch (t.scalar_type()) {
      case T::Double:
        static_cast<double*>(t.data_ptr())[offset] = v.real;
        break;
      case T::Long:
        static_cast<int64_t*>(t.data_ptr())[offset] = v.whole;
        break;
      case T::Short:
        static_cast<int16_t*>(t.data_ptr())[offset] = static_cast<int16_t>(v.whole);
        break;
      default:
        static_cast<uint8_t*>(t.data_ptr())[offset] = static_cast<uint8_t>(v.whole);
        break;
    }
  }

  // Computes all registers of all reduced points of one kept point at a time.
  void Interpret() {
    const int64_t kept = Rank() - reduced_;
    int64_t rows = 1, points = 1;
    for (int64_t d = 0; d < Rank(); ++d) (d < kept ? rows : points) *= sizes_[d];
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<std::vector<Value>> reg(instrs_.size(), std::vector<Value>(points));
      std::vector<std::vector<int64_t>> at(points, std::vector<int64_t>(Rank()));
      for (int64_t p = 0; p < points; ++p) {
        int64_t k = row, f = p;
        for (int64_t d = Rank() - 1; d >= 0; --d) {
          int64_t& left = d < kept ? k : f;
          at[p][d] = left % sizes_[d];
          left /= sizes_[d];
        }
      }
      for (size_t i = 0; i < instrs_.size(); ++i) {
        const Instr& s = instrs_[i];
        Value reduced = reg.empty() || points == 0 || s.op == MYC_K_SUM
                            ? Value{}
                            : reg[s.op < MYC_K_NEG ? std::min<uint64_t>(s.a, i) : 0][0];
        for (int64_t p = 0; p < points; ++p) {
          switch (s.op) {
            case MYC_K_LOAD:
              reg[i][p] = Get(tensors_[s.a], Offset(tensors_[s.a], dims_[s.a], at[p]));
              break;
            case MYC_K_TAKE:
              reg[i][p] = Get(tensors_[s.a], Offset(tensors_[s.a], dims_[s.a], at[p]) + Shift(s.a, reg[s.b][p].whole));
              break;
            case MYC_K_CONST:
              reg[i][p] = {std::bit_cast<double>(s.a), static_cast<int64_t>(s.a)};
              break;
            case MYC_K_INDEX:
              reg[i][p] = {0, at[p][s.a]};
              break;
            case MYC_K_CAST:
              reg[i][p] = {0, s.cls == MYC_K_B8 ? reg[s.a][p].whole != 0 : reg[s.a][p].whole};
              break;
            case MYC_K_STORE: {
              const size_t out = s.a - inputs_;
              Put(wanted_[out], Offset(wanted_[out], dims_[s.a], at[p]), reg[s.b][p]);
              break;
            }
            case MYC_K_SUM:
            case MYC_K_MAX:
            case MYC_K_MIN: {
              const uint64_t pair = s.op == MYC_K_SUM   ? MYC_K_ADD + 0u
                                    : s.op == MYC_K_MAX ? MYC_K_MAXIMUM + 0u
                                                        : MYC_K_MINIMUM + 0u;
              reduced = Compute(pair, s.cls, reduced, reg[s.a][p], {});
              break;
            }
            default: {
              const uint64_t in = s.op == MYC_K_LT ? instrs_[s.a].cls : s.cls;
              reg[i][p] = Compute(s.op, in, reg[s.a][p], reg[s.b][p], reg[s.c][p]);
            }
          }
        }
        if (s.op == MYC_K_SUM || s.op == MYC_K_MAX || s.op == MYC_K_MIN)
          std::fill(reg[i].begin(), reg[i].end(), reduced);
      }
    }
  }

  Random r_;
  int64_t reduced_ = 0;
  std::vector<int64_t> sizes_;
  std::unique_ptr<Code> code_;
  std::vector<at::Tensor> tensors_, wanted_;
  std::vector<std::vector<int64_t>> dims_;
  std::vector<Instr> instrs_;
  std::vector<uint64_t> outs_;
  size_t inputs_ = 0;
  std::vector<bool> rewritten_;  // by input: a store is to its memory
};

int64_t Times(int64_t usual) {
  const char* n = std::getenv("MYC_FUZZ");
  return n == nullptr ? usual : std::atoll(n);
}

TEST(KernelFuzz, AgainstOnePointAtATime) {
  for (int64_t seed = 0; seed < Times(400); ++seed) {
    Case(static_cast<uint64_t>(seed)).Check("seed " + std::to_string(seed));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(KernelFuzz, Spots) {
  for (int64_t seed = 0; seed < Times(1000); ++seed) {
    Case(static_cast<uint64_t>(seed), true).Check("seed " + std::to_string(seed));
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Damaged words are refused with a ValueError or make some kernel.
TEST(KernelFuzz, Words) {
  Code c({2}, 1);
  const uint64_t x = c.Operand(T::Float, MYC_K_READ, {0, 1}), y = c.Operand(T::Float, MYC_K_WRITE, {0, 1}),
                 n = c.Number();
  const uint64_t f = MYC_K_F32, r = c.Load(x, f), e = c.Op(MYC_K_EXP, f, c.Op(MYC_K_SUB, f, r, c.Op(MYC_K_MAX, f, r)));
  c.Store(y, c.Op(MYC_K_MUL, f, c.Op(MYC_K_DIV, f, e, c.Op(MYC_K_SUM, f, e)), c.Op(MYC_K_NUMBER, f, n)));
  const KernelWords words = c.Done();
  Random random(1);
  int64_t refused = 0;
  const int64_t times = Times(30000);
  for (int64_t i = 0; i < times; ++i) {
    KernelWords w = words;
    for (int64_t j = 1 + Draw(random, 3); j > 0; --j) {
      uint64_t& word = w[Draw(random, static_cast<int64_t>(w.size()))];
      switch (Draw(random, 4)) {
        case 0:
          word = random();
          break;
        case 1:
          word ^= 1ull << Draw(random, 64);
          break;
        case 2:
          word = static_cast<uint64_t>(Draw(random, 80));
          break;
        default:
          word += static_cast<uint64_t>(Draw(random, 3)) - 1;
          break;
      }
    }
    if (Draw(random, 10) == 0) w.resize(Draw(random, static_cast<int64_t>(w.size())));
    const std::unique_ptr<uint64_t[]> exact(new uint64_t[w.size()]);
    std::copy(w.begin(), w.end(), exact.get());
    Reader in(exact.get(), w.size());
    try {
      ParseKernel(in);
      in.End();
    } catch (const c10::ValueError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, times / 2);
  EXPECT_LT(refused, times);
}

}  // namespace
}  // namespace mycelya::exec::test
