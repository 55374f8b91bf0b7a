// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Words to Kernel, and whether an instance fits it. kernel/ has what runs.
#include "exec/kernel/Kernel.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/kernel/Code.h"
#include "exec/kernel/OpTable.h"

namespace mycelya::exec {
namespace {

using kernel::kNone;
using kernel::Level;
using kernel::Node;

// The most reductions in a row. Each needs a pass with its own lists.
constexpr uint32_t kMaxStages = 32;
constexpr const char* kClassNames[] = {"nothing", "F32", "F64", "I64", "B8"};

class Parser {
 public:
  explicit Parser(Reader& in) : in_(in), tiles_(kernel::TilesOfThisCpu()) {}

  std::unique_ptr<const Kernel> operator()() {
    const uint32_t nspaces = in_.Index("the number of a kernel's index spaces", MYC_K_MAX_SPACES + 1);
    TORCH_CHECK_VALUE(nspaces > 0, "BUG: a kernel has no index space.");
    for (uint32_t i = 0; i < nspaces; ++i) {
      k_.spaces.push_back(in_.Index("the rank of a kernel's index space", MYC_K_MAX_RANK + 1));
    }
    k_.reduced = in_.Index("the number of reduced dims", k_.spaces[0] + 1);
    TORCH_CHECK_VALUE(nspaces == 1 || k_.reduced == 0, "BUG: a kernel with reduced dims has ", nspaces,
                      " index spaces.");
    const uint32_t noperands = in_.Count("operands of a kernel", 4);
    TORCH_CHECK_VALUE(noperands <= MYC_K_MAX_OPERANDS, "BUG: a kernel has ", noperands, " operands.");
    for (uint32_t i = 0; i < noperands; ++i) ParseOperand();
    k_.numbers = in_.Index("the number of a kernel's numbers", MYC_K_MAX_NUMBERS + 1);
    const uint32_t ninstrs = in_.Count("instructions of a kernel", 4);
    TORCH_CHECK_VALUE(ninstrs <= MYC_K_MAX_INSTRS, "BUG: a kernel has ", ninstrs, " instructions.");
    stored_.resize(noperands);
    for (at_ = 0; at_ < ninstrs; ++at_) {
      registers_.push_back(ParseInstr());
    }
    for (uint32_t i = 0; i < noperands; ++i) {
      TORCH_CHECK_VALUE(stored_[i] == ((k_.operands[i].access & MYC_K_WRITE) != 0), "BUG: operand ", i,
                        " of a kernel is to be written, but no instruction stores it.");
    }
    kernel::MakeSchedules(k_, &code_);
    k_.code = std::make_shared<const Kernel::Code>(std::move(code_));
    return std::move(kernel_);
  }

 private:
  void ParseOperand() {
    KernelOperand o;
    o.dtype = ToScalarType(in_.Next("the dtype of a kernel's operand"));
    TORCH_CHECK_VALUE(RegisterClass(o.dtype) != 0, "BUG: a kernel has an operand of dtype ", o.dtype, ".");
    o.access = in_.Index("the access to a kernel's operand", (MYC_K_READ | MYC_K_WRITE) + 1);
    TORCH_CHECK_VALUE(o.access != 0, "BUG: operand ", k_.operands.size(), " of a kernel is neither read nor written.");
    o.space = in_.Index("the index space of a kernel's operand", k_.spaces.size());
    const uint32_t rank = in_.Index("the rank of a kernel's operand", MYC_K_MAX_RANK + 1);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < rank; ++i) {
      const uint64_t along = in_.Next("the dim along which an operand runs");
      if (along == MYC_K_MAX_RANK + 1) {
        TORCH_CHECK_VALUE(o.taken < 0 && o.space == 0 && o.access == MYC_K_READ, "BUG: operand ", k_.operands.size(),
                          " of a kernel can't be taken from, because of its index space, access or dims.");
        o.taken = static_cast<int>(i);
        o.along.push_back(kTaken);
        continue;
      }
      TORCH_CHECK_VALUE(along <= k_.spaces[o.space], "BUG: the dim along which an operand runs is ", along, " of ",
                        k_.spaces[o.space] + 1, ".");
      TORCH_CHECK_VALUE(along == 0 || (seen & 1u << along) == 0, "BUG: operand ", k_.operands.size(),
                        " of a kernel runs twice along dim ", along - 1, ".");
      seen |= 1u << along;
      o.along.push_back(static_cast<int8_t>(static_cast<int>(along) - 1));
    }
    k_.narrow = k_.narrow || o.dtype == c10::ScalarType::Half || o.dtype == c10::ScalarType::BFloat16;
    k_.operands.push_back(std::move(o));
  }

  // The dims along which an operand runs, as bits.
  uint32_t DimsOf(const KernelOperand& o) const {
    uint32_t dims = 0;
    for (const int8_t d : o.along) {
      if (d >= 0) dims |= 1u << d;
    }
    return dims;
  }
  uint32_t KeptDims() const { return (1u << (k_.spaces[0] - k_.reduced)) - 1; }
  Level LevelOf(uint32_t dims) const {
    if (dims == 0) return Level::kUniform;
    return k_.reduced != 0 && (dims & ~KeptDims()) == 0 ? Level::kRow : Level::kElement;
  }

  static bool IsFloat(uint32_t cls) { return cls == MYC_K_F32 || cls == MYC_K_F64; }

  static bool Jumps(const Node& n) {
    switch (n.op) {
      case MYC_K_CAST:
        return IsFloat(n.in) && !IsFloat(n.cls);
      case MYC_K_FLOOR:
      case MYC_K_CEIL:
      case MYC_K_TRUNC:
      case MYC_K_NEAREST:
      case MYC_K_SIGN:
      case MYC_K_FMOD:
      case MYC_K_REMAINDER:
        return IsFloat(n.in);
      default:
        return n.op >= MYC_K_EQ && n.op <= MYC_K_GE && IsFloat(n.in);
    }
  }

  uint32_t Add(const Node& n) {
    k_.jumps = k_.jumps || Jumps(n);
    code_.nodes.push_back(n);
    holds_.push_back(Holds(n));
    return static_cast<uint32_t>(code_.nodes.size() - 1);
  }
  const Node& At(uint32_t node) const { return code_.nodes[node]; }

  // The node of a register that an instruction uses.
  uint32_t Use(uint64_t reg) const {
    TORCH_CHECK_VALUE(reg < registers_.size(), "BUG: register ", reg,
                      " of a kernel is used before it is made, by instruction ", at_, ".");
    TORCH_CHECK_VALUE(registers_[reg] != kNone, "BUG: instruction ", reg,
                      " of a kernel makes no register, but instruction ", at_, " uses it.");
    return registers_[reg];
  }

  // Broadcasts a value to a level.
  uint32_t Raise(uint32_t node, Level level) {
    if (At(node).level >= level) return node;
    Node n;
    n.op = kernel::kCopyOp;
    n.cls = n.in = At(node).cls;
    n.level = level;
    n.stage = At(node).stage;
    n.from[0] = node;
    return Add(n);
  }

  // A dtype that can hold every value of the node, so that rounding to it changes at most a NaN's bits; else Undefined.
  c10::ScalarType Holds(const Node& n) const {
    const auto of = [&](uint32_t i) { return holds_[n.from[i]]; };
    switch (n.op) {
      case MYC_K_LOAD:
      case MYC_K_TAKE:
        return k_.operands[n.operand].dtype;
      case MYC_K_ROUND:
        return static_cast<c10::ScalarType>(n.bits);
    }
    const kernel::OpRow& row = kernel::RowOf(n.op);
    if (!row.keeps) return c10::ScalarType::Undefined;
    const c10::ScalarType last = of(row.operands - 1);
    for (uint32_t i = row.condition ? 1 : 0; i < row.operands; ++i) {
      if (of(i) != last) return c10::ScalarType::Undefined;
    }
    return last;
  }

  // Sets the operands of an instruction, and from them its level and stage.
  void Take(Node& n, const uint64_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      n.from[i] = Use(words[i]);
      n.level = std::max(n.level, At(n.from[i]).level);
      n.stage = std::max(n.stage, At(n.from[i]).stage);
    }
    for (uint32_t i = count; i < 3; ++i) CheckUnused(words[i]);
  }
  void CheckUnused(uint64_t word) const {
    TORCH_CHECK_VALUE(word == 0, "BUG: an unused word of instruction ", at_, " of a kernel is ", word, ".");
  }

  uint32_t ParseInstr() {
    const uint64_t head = in_.Next("an instruction of a kernel");
    uint64_t words[3];
    for (uint64_t& w : words) w = in_.Next("an instruction of a kernel");
    Node n;
    n.op = head & 0xff;
    n.cls = (head >> 8) & 0xff;
    TORCH_CHECK_VALUE(head >> 16 == 0, "BUG: the head of instruction ", at_, " of a kernel is ", head, ".");
    if (n.op == MYC_K_STORE) return ParseStore(n, words);
    TORCH_CHECK_VALUE(n.cls >= MYC_K_F32 && n.cls <= MYC_K_B8, "BUG: ", n.cls, " is not the class of a register.");
    n.in = n.cls;
    switch (n.op) {
      case MYC_K_LOAD:
      case MYC_K_TAKE:
        return ParseRead(n, words);
      case MYC_K_NUMBER:
        TORCH_CHECK_VALUE(words[0] < k_.numbers, "BUG: a kernel has no number ", words[0], ", only ", k_.numbers, ".");
        n.bits = words[0];
        if (words[1] != 0) {
          const c10::ScalarType dtype = ToScalarType(words[1]);
          TORCH_CHECK_VALUE(RegisterClass(dtype) != 0, "BUG: a kernel's number is to be one of ", dtype, ".");
          k_.held.emplace_back(static_cast<uint32_t>(words[0]), dtype);
        }
        Rest(words, 2);
        return Add(n);
      case MYC_K_CONST:
        TORCH_CHECK_VALUE(n.cls != MYC_K_B8 || words[0] <= 1, "BUG: ", words[0], " is not a bool.");
        n.bits = words[0];
        Rest(words, 1);
        return Add(n);
      case MYC_K_COUNT:
        TORCH_CHECK_VALUE(k_.reduced != 0, "BUG: instruction ", at_,
                          " counts reduced points, but its kernel has no reduced dims.");
        TORCH_CHECK_VALUE(n.cls != MYC_K_B8, "BUG: a kernel counts points as a B8.");
        Rest(words, 0);
        return Add(n);
      case MYC_K_INDEX: {
        TORCH_CHECK_VALUE(words[0] < k_.spaces[0], "BUG: a kernel has no dim ", words[0], ", only ", k_.spaces[0], ".");
        CheckClass(n.cls, MYC_K_I64);
        const auto dim = static_cast<uint32_t>(words[0]);
        n.operand = static_cast<uint32_t>(k_.operands.size() + code_.index_dims.size());
        code_.index_dims.push_back(dim);
        n.level = LevelOf(1u << dim);
        Rest(words, 1);
        return Add(n);
      }
      case MYC_K_CAST:
        Take(n, words, 1);
        n.in = At(n.from[0]).cls;
        return Add(n);
      case MYC_K_ROUND: {
        const c10::ScalarType dtype = ToScalarType(words[1]);
        n.bits = static_cast<uint64_t>(dtype);
        words[1] = 0;
        Take(n, words, 1);
        CheckClass(n.cls, At(n.from[0]).cls);
        TORCH_CHECK_VALUE(tiles_.round(n.cls, dtype) != nullptr, "BUG: a kernel rounds a ", kClassNames[n.cls], " to ",
                          dtype, ".");
        return holds_[n.from[0]] == dtype ? n.from[0] : Add(n);
      }
      default:
        return kernel::Reduces(n.op) ? ParseReduction(n, words) : ParseCompute(n, words);
    }
  }

  uint32_t ParseRead(Node& n, const uint64_t* words) {
    const bool takes = n.op == MYC_K_TAKE;
    const KernelOperand& o = Operand(words[0], MYC_K_READ, "read");
    TORCH_CHECK_VALUE(takes == (o.taken >= 0), "BUG: instruction ", at_, " of a kernel ",
                      takes ? "takes from operand " : "loads operand ", words[0],
                      takes ? ", which has no dim for that." : ", which has no place without a position.");
    CheckClass(n.cls, RegisterClass(o.dtype));
    n.operand = static_cast<uint32_t>(words[0]);
    n.level = LevelOf(DimsOf(o));
    if (takes) {
      const uint64_t position[3] = {words[1], words[2], 0};
      Take(n, position, 1);
      CheckClass(At(n.from[0]).cls, MYC_K_I64);
      n.run = RunOf(n.from[0]);
      code_.takes = true;
    } else {
      Rest(words, 1);
    }
    return Add(n);
  }

  // The INDEX operand from which a value differs by a uniform value; kNone: there is none.
  uint32_t RunOf(uint32_t node) const {
    for (;;) {
      const Node& n = At(node);
      if (n.op == MYC_K_INDEX) return n.operand;
      if ((n.op != MYC_K_ADD && n.op != MYC_K_SUB) || At(n.from[1]).level != Level::kUniform) return kNone;
      node = n.from[0];
    }
  }

  uint32_t ParseReduction(Node& n, const uint64_t* words) {
    TORCH_CHECK_VALUE(k_.reduced != 0, "BUG: instruction ", at_, " reduces, but its kernel has no reduced dims.");
    Take(n, words, 1);
    CheckClass(n.cls, At(n.from[0]).cls);
    TORCH_CHECK_VALUE(tiles_.reduce(n.op, n.cls) != nullptr, "BUG: a kernel can't reduce values of class ",
                      kClassNames[n.cls], ".");
    n.from[0] = Raise(n.from[0], Level::kElement);
    n.level = Level::kRow;
    ++n.stage;
    TORCH_CHECK_VALUE(n.stage <= kMaxStages, "BUG: instruction ", at_, " reduces a value that depends on ", kMaxStages,
                      " reductions in a row.");
    code_.picks = code_.picks || kernel::RowOf(n.op).start != kernel::Start::kZero;
    return Add(n);
  }

  uint32_t ParseCompute(Node& n, const uint64_t* words) {
    const kernel::OpRow& row = kernel::RowOf(n.op);
    TORCH_CHECK_VALUE(row.group == kernel::Group::kCompute, "BUG: there is no kernel instruction ", n.op, ".");
    const uint32_t count = row.operands;
    Take(n, words, count);
    n.in = At(n.from[count - 1]).cls;
    TORCH_CHECK_VALUE((row.takes >> n.in & 1) != 0, "BUG: no kernel's instruction ", n.op, " takes a ",
                      kClassNames[n.in], ".");
    for (uint32_t i = 0; i < count; ++i) {
      CheckClass(At(n.from[i]).cls, row.condition && i == 0 ? static_cast<uint32_t>(MYC_K_B8) : n.in);
    }
    CheckClass(n.cls, row.truth ? static_cast<uint32_t>(MYC_K_B8) : n.in);
    if (row.condition) n.from[0] = Raise(n.from[0], n.level);
    return Add(n);
  }

  uint32_t ParseStore(Node& n, const uint64_t* words) {
    TORCH_CHECK_VALUE(n.cls == 0 || (n.cls >= MYC_K_F32 && n.cls <= MYC_K_B8), "BUG: ", n.cls,
                      " is not the class of a register.");
    const KernelOperand& o = Operand(words[0], MYC_K_WRITE, "written");
    TORCH_CHECK_VALUE(!stored_[words[0]], "BUG: operand ", words[0], " of a kernel is stored twice.");
    stored_[words[0]] = true;
    CheckUnused(words[2]);
    uint32_t from = Use(words[1]);
    if (At(from).op == MYC_K_ROUND && At(from).bits == static_cast<uint64_t>(o.dtype)) {
      from = At(from).from[0];  // the store rounds
    }
    CheckClass(At(from).cls, RegisterClass(o.dtype));
    CheckClass(n.cls == 0 ? At(from).cls : n.cls, At(from).cls);
    const uint32_t dims = DimsOf(o), all = (1u << k_.spaces[o.space]) - 1;
    const bool rows = k_.reduced != 0 && dims == KeptDims() && At(from).level != Level::kElement;
    TORCH_CHECK_VALUE(rows || dims == all, "BUG: operand ", words[0], " of a kernel is stored by instruction ", at_,
                      ", but does not run along all dims.");
    n.level = rows ? Level::kRow : Level::kElement;
    n.stage = At(from).stage;
    n.operand = static_cast<uint32_t>(words[0]);
    n.in = n.cls = At(from).cls;
    n.from[0] = Raise(from, n.level);
    Add(n);
    return kNone;
  }

  const KernelOperand& Operand(uint64_t i, uint32_t access, const char* what) const {
    TORCH_CHECK_VALUE(i < k_.operands.size(), "BUG: a kernel has no operand ", i, ", only ", k_.operands.size(), ".");
    TORCH_CHECK_VALUE((k_.operands[i].access & access) != 0, "BUG: operand ", i, " of a kernel is ", what,
                      " by instruction ", at_, ", which its access does not allow.");
    return k_.operands[i];
  }
  void CheckClass(uint32_t got, uint32_t want) const {
    TORCH_CHECK_VALUE(got == want, "BUG: instruction ", at_, " of a kernel has a ", kClassNames[got], " where a ",
                      kClassNames[want], " belongs.");
  }
  void Rest(const uint64_t* words, uint32_t used) const {
    for (uint32_t i = used; i < 3; ++i) CheckUnused(words[i]);
  }

  Reader& in_;
  const kernel::Tiles& tiles_;
  std::unique_ptr<Kernel> kernel_ = std::make_unique<Kernel>();
  Kernel& k_ = *kernel_;
  Kernel::Code code_;
  std::vector<uint32_t> registers_;     // nodes by instruction
  std::vector<c10::ScalarType> holds_;  // by node
  std::vector<bool> stored_;
  uint32_t at_ = 0;
};

bool Multiply(int64_t a, int64_t b, int64_t* out) { return !__builtin_mul_overflow(a, b, out); }

}  // namespace

std::unique_ptr<const Kernel> ParseKernel(Reader& in) { return Parser(in)(); }

namespace {

// Whether a dtype can hold a number. PyTorch refuses to convert numbers that are too large.
bool Holds(c10::ScalarType dtype, const KernelNumber& n) {
  const double real = std::abs(n.integral ? static_cast<double>(n.whole) : n.real);
  const auto whole = [&n](auto of) {
    using Of = std::numeric_limits<decltype(of)>;
    return n.integral && n.whole >= static_cast<int64_t>(Of::lowest()) && n.whole <= static_cast<int64_t>(Of::max());
  };
  switch (dtype) {
    case c10::ScalarType::Half:
      return !(real > 65504) || std::isinf(real);
    case c10::ScalarType::BFloat16:
      return !(real > 0x1.fep127) || std::isinf(real);
    case c10::ScalarType::Float:
      return !(real > std::numeric_limits<float>::max()) || std::isinf(real);
    case c10::ScalarType::Byte:
      return whole(uint8_t());
    case c10::ScalarType::Char:
      return whole(int8_t());
    case c10::ScalarType::Short:
      return whole(int16_t());
    case c10::ScalarType::Int:
      return whole(int32_t());
    case c10::ScalarType::Long:
      return n.integral;
    case c10::ScalarType::UInt16:
      return whole(uint16_t());
    case c10::ScalarType::UInt32:
      return whole(uint32_t());
    case c10::ScalarType::Bool:
      return whole(bool());
    default:
      return true;
  }
}

// Whether two points of a tensor may be the same element. The element's final value would then depend on the loop
// order.
bool MayOverlap(const KernelOperandAt& t, size_t rank) {
  for (size_t d = 0; d < rank; ++d) {
    if (t.sizes[d] == 0) return false;
  }
  for (size_t d = 0; d < rank; ++d) {
    if (t.sizes[d] == 1) continue;
    int64_t below = 0;  // the reach of the dims with smaller strides
    for (size_t e = 0; e < rank; ++e) {
      const bool smaller = t.strides[e] < t.strides[d] || (t.strides[e] == t.strides[d] && e < d);
      if (smaller && t.sizes[e] > 1) below += (t.sizes[e] - 1) * t.strides[e];
    }
    if (t.strides[d] <= below) return true;
  }
  return false;
}

}  // namespace

bool Fits(const Kernel& kernel, const KernelInstance& at, const char** why) {
  const auto no = [why](const char* text) {
    *why = text;
    return false;
  };
  std::vector<const int64_t*> spaces;
  const int64_t* sizes = at.sizes;
  int64_t points = 0;
  for (size_t f = 0; f < kernel.spaces.size(); ++f) {
    int64_t n = 1;
    bool empty = false;
    for (uint32_t d = 0; d < kernel.spaces[f]; ++d) {
      if (sizes[d] < 0) return no("a size is negative");
      empty = empty || sizes[d] == 0;
      if (sizes[d] != 0 && !Multiply(n, sizes[d], &n)) return no("it has more points than can be counted");
    }
    if (empty) n = 0;
    if (f > 0 && n != points) return no("its index spaces differ in their number of points");
    points = n;
    spaces.push_back(sizes);
    sizes += kernel.spaces[f];
  }
  for (size_t i = 0; i < kernel.operands.size(); ++i) {
    const KernelOperand& o = kernel.operands[i];
    int64_t reach = 1;
    for (size_t d = 0; d < o.along.size(); ++d) {
      const int64_t size = at.operands[i].sizes[d], stride = at.operands[i].strides[d];
      if (o.along[d] == kTaken) {
        if (size <= 0) return no("an operand has nothing to take");
      } else if (size != (o.along[d] < 0 ? 1 : spaces[o.space][o.along[d]])) {
        return no("an operand's size is not that of its index space");
      }
      if (stride < 0) return no("a stride is negative");
      int64_t far = 0;
      if (size > 1 && (!Multiply(size - 1, stride, &far) || __builtin_add_overflow(reach, far, &reach))) {
        return no("an operand is too large");
      }
    }
    if (!Multiply(reach, static_cast<int64_t>(c10::elementSize(o.dtype)), &reach)) return no("an operand is too large");
    if ((o.access & MYC_K_WRITE) != 0 && MayOverlap(at.operands[i], o.along.size()))
      return no("it writes an element twice");
  }
  for (const auto& [number, dtype] : kernel.held) {
    if (!Holds(dtype, at.numbers[number])) return no("a dtype can't hold a number");
  }
  if (points == 0) {
    int64_t kept = 1;
    for (uint32_t d = 0; d < kernel.spaces[0] - kernel.reduced; ++d) kept = kept == 0 || at.sizes[d] == 0 ? 0 : 1;
    if (kept != 0 && kernel.code->picks) return no("a maximum or minimum of no elements has no value");
  }
  return true;
}

}  // namespace mycelya::exec
