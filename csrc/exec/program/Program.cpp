// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Parses words to a Program. The functions are in the order of the grammar in csrc/abi/mycelya.h.
#include "exec/program/Program.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/program/Allowed.h"

namespace mycelya::exec {
namespace {

constexpr uint64_t kMaxSteps = 1 << 20;
constexpr char kSeedOp[] = "mycelya::manual_seed";
constexpr char kDefaultDtypeOp[] = "mycelya::set_default_dtype";
constexpr char kFlagOp[] = "mycelya::set_flag";
constexpr char kCommPrefix[] = "mycelya::comm_";

// An operator that writes running statistics, although its schema does not say so: the argument with the mean, which
// the variance follows, and the argument that says whether it does, or -1.
struct RunningStats {
  const char* op;
  int mean, training;
};
constexpr RunningStats kRunningStats[] = {
#include "exec/program/running_stats.inc"
};

class Parser {
 public:
  Parser(const uint64_t* words, uint64_t n, const Device& device)
      : in_(words, n), device_(device.device()), apart_(device.apart()) {}

  std::unique_ptr<Program> operator()() {
    p_.nparams = in_.Index("the number of parameters", kMaxParams + 1);
    p_.nbuffers = in_.Index("the number of buffers", kMaxBuffers + 1);
    for (uint32_t n = in_.Count("inputs"); n > 0; --n) Buffer();
    for (uint32_t n = in_.Count("outputs"); n > 0; --n) outputs_.push_back(Buffer());
    for (uint32_t n = in_.Count("operators"); n > 0; --n) ops_.push_back(in_.Text("an operator's name"));
    const uint32_t ntensors = in_.Count("tensors", 5);
    p_.tensors.reserve(ntensors);
    for (uint32_t i = 0; i < ntensors; ++i) ParseTensor();
    IndexTensors();
    const uint32_t nkernels = in_.Count("kernels", 5);
    for (uint32_t i = 0; i < nkernels; ++i) p_.kernels.push_back(ParseKernel(in_));
    const uint32_t nsteps = in_.Count("steps", 3);
    p_.steps.reserve(nsteps);
    for (uint32_t i = 0; i < nsteps; ++i) ParseStep();
    for (uint32_t i = 0; i < nsteps; ++i) {
      const StepKind kind = p_.steps[i].kind;
      TORCH_CHECK_VALUE(kind != StepKind::kKernel, "BUG: step ", i, " is a kernel outside of a fused group.");
      if (kind == StepKind::kFused) i = ResolveFused(i);
    }
    ParseVersions();
    in_.End();
    if (apart_) MarkKnown();
    p_.work.buffers.resize(p_.nbuffers);
    p_.work.tensors.resize(p_.tensors.size());
    p_.work.allocated_by.resize(p_.nbuffers);
    return std::move(program_);
  }

 private:
  Dim ParseDim(const char* what) {
    const auto v = static_cast<int64_t>(in_.Next(what));
    if (v >= 0) return {false, v};
    TORCH_CHECK_VALUE(~v < p_.nparams, "BUG: word ", in_.at() - 1, " of the program is parameter ", ~v, " of ",
                      p_.nparams, ", for ", what, ".");
    return {true, ~v};
  }

  void ParseTensor() {
    TensorRow t;
    t.buffer = in_.Index("a tensor's buffer", p_.nbuffers);
    t.dtype = ToScalarType(in_.Next("a tensor's dtype"));
    t.rank = in_.Index("a tensor's rank", kMaxRank + 1);
    t.dims = static_cast<uint32_t>(p_.dims.size());
    for (uint32_t i = 0; i < t.rank; ++i) p_.dims.push_back(ParseDim("a size"));
    t.contiguous = in_.Index("a tensor's contiguity", 2) != 0;
    for (uint32_t i = 0; !t.contiguous && i < t.rank; ++i) p_.dims.push_back(ParseDim("a stride"));
    t.offset = ParseDim("a storage offset");
    p_.tensors.push_back(t);
  }

  // Groups the tensors by buffer, so that a freed buffer can drop its tensors.
  void IndexTensors() {
    p_.tensors_of.resize(p_.nbuffers);
    for (const TensorRow& t : p_.tensors) ++p_.tensors_of[t.buffer].end;
    uint32_t at = 0;
    for (Range& r : p_.tensors_of) {
      const uint32_t n = r.end;
      r = {at, at};
      at += n;
    }
    p_.by_buffer.resize(p_.tensors.size());
    for (uint32_t i = 0; i < p_.tensors.size(); ++i) p_.by_buffer[p_.tensors_of[p_.tensors[i].buffer].end++] = i;
  }

  uint32_t Buffer() { return in_.Index("a buffer", p_.nbuffers); }
  uint32_t Tensor() { return in_.Index("a tensor index", p_.tensors.size()); }
  uint32_t BufferOf(uint32_t tensor) const { return p_.tensors[tensor].buffer; }

  Range AddBuffers(const std::vector<uint32_t>& buffers) {
    const auto begin = static_cast<uint32_t>(p_.buffers.size());
    p_.buffers.insert(p_.buffers.end(), buffers.begin(), buffers.end());
    return {begin, static_cast<uint32_t>(p_.buffers.size())};
  }

  void ParseStep() {
    Step s;
    const uint64_t kind = in_.Next("a step");
    s.record = in_.Index("a record", UINT32_MAX);
    switch (kind) {
      case MYC_S_CALL:
        ParseCall(s);
        break;
      case MYC_S_COPY:
        s.kind = StepKind::kCopy;
        s.a = Tensor();
        s.b = Tensor();
        s.reads = AddBuffers({BufferOf(s.b), BufferOf(s.a)});
        s.spoils = AddBuffers({BufferOf(s.a)});
        break;
      case MYC_S_ALLOC:
        s.kind = StepKind::kAlloc;
        s.a = Buffer();
        s.bytes = ParseDim("a size in bytes");
        s.spoils = AddBuffers({s.a});
        break;
      case MYC_S_CLONE:
        s.kind = StepKind::kClone;
        s.a = Buffer();
        s.b = Buffer();
        s.reads = AddBuffers({s.b});
        s.spoils = AddBuffers({s.a});
        break;
      case MYC_S_FREE:
        s.kind = StepKind::kFree;
        s.a = Buffer();
        break;
      case MYC_S_RESIZE:
        s.kind = StepKind::kResize;
        s.a = Buffer();
        s.bytes = ParseDim("a size in bytes");
        s.reads = AddBuffers({s.a});
        s.spoils = AddBuffers({s.a});
        break;
      case MYC_S_FUSED:
        s.kind = StepKind::kFused;
        s.a = in_.Index("a number of kernels", kMaxSteps);
        s.b = in_.Index("a number of steps", kMaxSteps);
        break;
      case MYC_S_KERNEL:
        ParseKernelStep(s);
        break;
      default:
        TORCH_CHECK_VALUE(false, "BUG: word ", in_.at() - 2, " of the program is ", kind, ", which starts no step.");
    }
    s.sets_flag = s.kind == StepKind::kDefaultDtype || s.name == kFlagOp;
    p_.joins = p_.joins || s.name.rfind(kCommPrefix, 0) == 0;
    p_.steps.push_back(std::move(s));
  }

  void ParseVersions() {
    p_.versions_of.resize(p_.nbuffers);
    const uint32_t n = in_.Count("versions", 4);
    for (uint32_t i = 0; i < n; ++i) {
      Range& of = p_.versions_of[outputs_[in_.Index("an output", outputs_.size())]];
      TORCH_CHECK_VALUE(of.end == of.begin || of.end == i, "BUG: version ", i,
                        " stands apart from those of its output.");
      if (of.end == of.begin) of.begin = i;
      of.end = i + 1;
      Version v;
      v.record = in_.Index("a record", UINT32_MAX);
      const uint32_t buffer = in_.Index("a buffer", uint64_t{p_.nbuffers} + 1);
      v.buffer = buffer == 0 ? kNoBuffer : buffer - 1;
      v.writer = in_.Index("a record", UINT32_MAX);
      p_.versions.push_back(v);
    }
  }

  void ParseKernelStep(Step& s) {
    s.kind = StepKind::kKernel;
    s.a = in_.Index("a kernel", p_.kernels.size());
    const Kernel& kernel = *p_.kernels[s.a];
    uint32_t nsizes = 0;
    for (const uint32_t rank : kernel.spaces) nsizes += rank;
    const uint32_t n = in_.Count("instances");
    s.args.begin = static_cast<uint32_t>(p_.kernel_ats.size());
    std::vector<uint32_t> reads, spoils;
    for (uint32_t i = 0; i < n; ++i) {
      // An instance without sizes, operands and numbers has no words, so the words do not bound their number.
      TORCH_CHECK_VALUE(nsizes + kernel.operands.size() + kernel.numbers > 0 || n <= 1, "BUG: ", n,
                        " instances of a kernel that has no sizes, operands or numbers.");
      KernelAt at;
      at.sizes = static_cast<uint32_t>(p_.dims.size());
      for (uint32_t j = 0; j < nsizes; ++j) p_.dims.push_back(ParseDim("a size of a kernel"));
      at.uses = static_cast<uint32_t>(p_.kernel_uses.size());
      for (const KernelOperand& operand : kernel.operands) ParseUse(operand, reads, spoils);
      at.numbers = static_cast<uint32_t>(p_.kernel_values.size());
      for (uint32_t j = 0; j < kernel.numbers; ++j) ParseValue();
      p_.kernel_ats.push_back(at);
    }
    s.args.end = static_cast<uint32_t>(p_.kernel_ats.size());
    s.reads = AddBuffers(reads);
    s.spoils = AddBuffers(spoils);
  }

  void ParseUse(const KernelOperand& operand, std::vector<uint32_t>& reads, std::vector<uint32_t>& spoils) {
    const KernelUse use{Tensor(), in_.Index("whether a buffer is made", 2) != 0};
    const TensorRow& row = p_.tensors[use.tensor];
    TORCH_CHECK_VALUE(row.dtype == operand.dtype && row.rank == operand.along.size(), "BUG: tensor ", use.tensor,
                      " has ", row.rank, " dims of ", row.dtype, ", the kernel's operand ", operand.along.size(),
                      " of ", operand.dtype, ".");
    TORCH_CHECK_VALUE(!use.made || operand.access == MYC_K_WRITE, "BUG: tensor ", use.tensor,
                      " is read by the kernel that makes it.");
    if (!use.made) reads.push_back(row.buffer);
    if ((operand.access & MYC_K_WRITE) != 0) spoils.push_back(row.buffer);
    p_.kernel_uses.push_back(use);
  }

  void ParseValue() {
    const Word w = ParseArgument();
    KernelValue v;
    v.param = static_cast<uint32_t>(w.value);
    if (w.tag == MYC_W_FLOAT) {
      v.literal.real = std::bit_cast<double>(w.value);
    } else if (w.tag == MYC_W_INT || w.tag == MYC_W_BOOL) {
      v.literal = {true, 0, static_cast<int64_t>(w.value)};
    } else if (w.tag == MYC_W_NUMBER && w.kind != MYC_N_C128) {
      v.from = w.kind == MYC_N_F64 ? KernelValue::From::kReal : KernelValue::From::kWhole;
    } else {
      TORCH_CHECK_VALUE(w.tag == MYC_W_SCALAR, "BUG: a kernel's number is written with tag ", w.tag, ".");
      v.from = KernelValue::From::kElement;
      v.dtype = ToScalarType(w.kind);
      TORCH_CHECK_VALUE(!c10::isComplexType(v.dtype), "BUG: a kernel's number is ", v.dtype, ".");
    }
    p_.kernel_values.push_back(v);
  }

  // Collects the buffers that the kernels of a fused group read and write. Returns the last step of the group.
  uint32_t ResolveFused(uint32_t number) {
    const uint64_t first = number + 1, plain = first + p_.steps[number].a, end = plain + p_.steps[number].b;
    TORCH_CHECK_VALUE(end <= p_.steps.size(), "BUG: step ", number, " is a group of the steps up to ", end, " of ",
                      p_.steps.size(), ".");
    std::vector<uint32_t> reads, spoils, made;
    bool calls = true;  // only calls so far: if one of them fails, the plain steps can still run
    for (uint64_t i = first; i < end; ++i) {
      const StepKind kind = p_.steps[i].kind;
      calls = calls && kind == StepKind::kCall;
      p_.steps[number].draws |= p_.steps[i].draws;
      const bool own = kind == StepKind::kKernel || kind == StepKind::kAlloc || kind == StepKind::kFree ||
                       (calls && (p_.steps[i].reads.begin == p_.steps[i].reads.end ||
                                  p_.steps[i].spoils.begin == p_.steps[i].spoils.end));
      TORCH_CHECK_VALUE(i < plain ? own : kind != StepKind::kKernel && kind != StepKind::kFused, "BUG: step ", i,
                        " is of a kind that the group of step ", number, " can't hold there.");
      if (i >= plain) continue;
      const Range r = p_.steps[i].reads, s = p_.steps[i].spoils;
      for (uint32_t j = r.begin; j < r.end; ++j) {
        if (std::find(made.begin(), made.end(), p_.buffers[j]) == made.end()) reads.push_back(p_.buffers[j]);
      }
      spoils.insert(spoils.end(), p_.buffers.begin() + s.begin, p_.buffers.begin() + s.end);
      if (kind == StepKind::kAlloc) made.push_back(p_.steps[i].a);
      if (kind == StepKind::kCall) made.insert(made.end(), p_.buffers.begin() + s.begin, p_.buffers.begin() + s.end);
      for (uint32_t j = p_.steps[i].args.begin; kind == StepKind::kKernel && j < p_.steps[i].args.end; ++j) {
        const KernelUse* use = p_.kernel_uses.data() + p_.kernel_ats[j].uses;
        for (size_t k = 0; k < p_.kernels[p_.steps[i].a]->operands.size(); ++k) {
          if (use[k].made) made.push_back(BufferOf(use[k].tensor));
        }
      }
    }
    p_.steps[number].reads = AddBuffers(reads);
    p_.steps[number].spoils = AddBuffers(spoils);
    return static_cast<uint32_t>(end - 1);
  }

  void ParseCall(Step& s) {
    s.name = ops_[in_.Index("an operator", ops_.size())];
    const uint32_t nargs = in_.Count("arguments");
    if (s.name == kSeedOp) {
      ResolveSeed(s, nargs);
    } else if (s.name == kDefaultDtypeOp) {
      ResolveDefaultDtype(s, nargs);
    } else {
      ResolveCall(s, nargs);
    }
  }

  void ParseResults(Step& s) {
    const uint32_t n = in_.Count("results");
    s.results.begin = static_cast<uint32_t>(p_.results.size());
    for (uint32_t i = 0; i < n; ++i) p_.results.push_back(in_.Index("a result", p_.tensors.size() + 1));
    s.results.end = static_cast<uint32_t>(p_.results.size());
    const uint64_t flags = in_.Index("flags", (MYC_R_RNG | MYC_R_EFFECT | MYC_R_DYNAMIC) + 1);
    s.dynamic = (flags & MYC_R_DYNAMIC) != 0;
    s.draws = s.draws || (flags & MYC_R_RNG) != 0;
  }

  Word ParseArgument() { return in_.Argument(p_.tensors.size(), p_.nparams); }

  void ResolveSeed(Step& s, uint32_t nargs) {
    bool fits = nargs == 2;
    const Word generator = fits ? ParseArgument() : Word(), seed = fits ? ParseArgument() : Word();
    fits = fits && generator.tag == MYC_W_GEN && seed.tag == MYC_W_NUMBER && seed.kind == MYC_N_I64;
    if (fits) ParseResults(s);
    TORCH_CHECK_TYPE(fits && s.results.begin == s.results.end, "BUG: ", kSeedOp,
                     " takes a generator and an integer and returns nothing.");
    s.kind = StepKind::kSeed;
    s.a = static_cast<uint32_t>(generator.value);
    s.b = static_cast<uint32_t>(seed.value);
  }

  void ResolveDefaultDtype(Step& s, uint32_t nargs) {
    const Word dtype = nargs == 1 ? ParseArgument() : Word();
    if (dtype.tag == MYC_W_DTYPE) ParseResults(s);
    TORCH_CHECK_TYPE(dtype.tag == MYC_W_DTYPE && s.results.begin == s.results.end, "BUG: ", kDefaultDtypeOp,
                     " takes a dtype and returns nothing.");
    s.kind = StepKind::kDefaultDtype;
    s.a = static_cast<uint32_t>(dtype.value);
    TORCH_CHECK_VALUE(c10::isFloatingType(ToScalarType(s.a)), "The default dtype must be floating, got ",
                      ToScalarType(s.a), ".");
  }

  void ResolveCall(Step& s, uint32_t nargs) {
    s.kind = StepKind::kCall;
    s.op = FindAllowed(s.name);
    s.guard = GuardOf(s.name, apart_);
    s.draws = s.op->hasTag(at::Tag::nondeterministic_seeded);
    const c10::FunctionSchema& schema = s.op->schema();
    std::vector<uint32_t> spoils = ResolveArgs(s, nargs, schema);
    ParseResults(s);
    for (uint32_t i = s.results.begin; i < s.results.end; ++i) {
      if (p_.results[i] != 0) spoils.push_back(BufferOf(p_.results[i] - 1));
    }
    s.spoils = AddBuffers(spoils);
    ResolveReturns(s, schema);
  }

  // Returns the buffers that the call writes.
  std::vector<uint32_t> ResolveArgs(Step& s, uint32_t nargs, const c10::FunctionSchema& schema) {
    const std::vector<c10::Argument>& to = schema.arguments();
    TORCH_CHECK_TYPE(nargs <= to.size(), "BUG: ", s.name, " takes ", to.size(), " arguments, not ", nargs, ".");
    s.args.begin = static_cast<uint32_t>(p_.args.size());
    std::vector<uint32_t> reads, spoils;
    s.written.begin = static_cast<uint32_t>(p_.written_tensors.size());
    for (size_t i = 0; i < to.size(); ++i) {
      p_.args.push_back(i < nargs ? FitArg(in_, to[i], s.name, device_, p_) : DefaultOf(to[i], s.name));
      // Operators skip checks of their operands if this argument is true. That of segment_reduce allows lengths that do
      // not reach the end; its guard checks the rest.
      if (to[i].name() == "unsafe" && s.name != "aten::segment_reduce") p_.args.back() = Constant(false);
      const bool written = to[i].alias_info() != nullptr && to[i].alias_info()->isWrite();
      // A pointwise operator and cat may write elements that lie at one place, as in PyTorch. Other operators may then
      // write outside of their memory.
      const bool strided = s.op->hasTag(at::Tag::pointwise) || s.name == "aten::cat.out";
      s.writes_out = s.writes_out || (written && to[i].is_out() && !strided);
      const Arg& arg = p_.args.back();
      s.draws = s.draws || arg.kind == ArgKind::kGenerator;
      const uint32_t n = arg.kind == ArgKind::kList ? arg.count : 1;
      for (uint32_t j = 0; j < n; ++j) {
        const Arg& item = arg.kind == ArgKind::kList ? p_.items[arg.index + j] : arg;
        if (item.kind != ArgKind::kTensor) continue;
        reads.push_back(BufferOf(item.index));
        if (!written) continue;
        spoils.push_back(BufferOf(item.index));
        p_.written_tensors.push_back(item.index);
      }
    }
    for (const RunningStats& r : kRunningStats) {
      if (s.name == r.op) AddRunningStats(s, r, spoils);
    }
    s.args.end = static_cast<uint32_t>(p_.args.size());
    s.written.end = static_cast<uint32_t>(p_.written_tensors.size());
    s.reads = AddBuffers(reads);
    return spoils;
  }

  void AddRunningStats(const Step& s, const RunningStats& r, std::vector<uint32_t>& spoils) const {
    const Arg* args = p_.args.data() + s.args.begin;
    if (r.training >= 0 && args[r.training].kind == ArgKind::kConstant && !args[r.training].constant.toBool()) return;
    for (int i = r.mean; i < r.mean + 2; ++i) {
      if (args[i].kind == ArgKind::kTensor) spoils.push_back(BufferOf(args[i].index));
    }
  }

  static Arg Constant(c10::IValue value) {
    Arg a;
    a.constant = std::move(value);
    return a;
  }

  static Arg DefaultOf(const c10::Argument& to, const std::string& op) {
    TORCH_CHECK_TYPE(to.default_value().has_value(), "BUG: ", op, " is not given its argument ", to.name(), ".");
    return Constant(*to.default_value());
  }

  void ResolveReturns(Step& s, const c10::FunctionSchema& schema) const {
    uint32_t tensors = 0;
    bool lists = false;
    for (const c10::Argument& r : schema.returns()) {
      ReturnKind kind = ReturnKind::kIgnored;
      const bool written = r.alias_info() != nullptr && r.alias_info()->isWrite();
      if (!written && r.type()->isSubtypeOf(*c10::OptionalType::ofTensor())) kind = ReturnKind::kTensor;
      if (!written && r.type()->isSubtypeOf(*c10::ListType::ofTensors())) kind = ReturnKind::kTensorList;
      tensors += kind == ReturnKind::kTensor ? 1 : 0;
      lists = lists || kind == ReturnKind::kTensorList;
      s.returns.push_back(kind);
    }
    uint32_t listed = s.results.end - s.results.begin;
    if (s.dynamic) {
      TORCH_CHECK_TYPE(listed > 0 && !lists, "BUG: ", s.name,
                       " returns a list of tensors, so it can't return their shapes.");
      --listed;
    }
    TORCH_CHECK_TYPE(lists ? listed >= tensors : listed == tensors, "BUG: ", s.name, " returns ", tensors,
                     " new tensors, but the program lists ", listed, " results.");
  }

  // Marks the calls that make what guards read as indices, and those that these depend on, if they are cheap.
  void MarkKnown() {
    std::vector<bool> plain(p_.steps.size(), true), wanted(p_.nbuffers);
    for (uint32_t i = 0; i < p_.steps.size(); ++i) {
      const Step& s = p_.steps[i];
      for (uint32_t j = 0; s.kind == StepKind::kFused && j <= s.a; ++j) plain[i + j] = false;
    }
    const auto set = [&](Range buffers, bool to) {
      for (uint32_t i = buffers.begin; i < buffers.end; ++i) wanted[p_.buffers[i]] = to;
    };
    for (size_t i = p_.steps.size(); i-- > 0;) {
      Step& s = p_.steps[i];
      if (!plain[i]) continue;
      bool makes = false;
      for (uint32_t j = s.spoils.begin; j < s.spoils.end; ++j) makes = makes || wanted[p_.buffers[j]];
      s.known = makes && IsCheap(s);
      if (makes) set(s.spoils, false);
      if (s.known || (s.kind == StepKind::kCall && s.guard != nullptr)) set(s.reads, true);
    }
  }

  // Whether the call makes or writes one tensor of integers or bools, and the same one on each device.
  bool IsCheap(const Step& s) const {
    static constexpr std::string_view kCheap[] = {"_to_copy",  "add",       "arange",    "bitwise_and", "cat",
                                                  "clamp",     "clone",     "copy",      "cumsum",      "eq",
                                                  "flip",      "full",      "full_like", "ge",          "gt",
                                                  "le",        "lt",        "maximum",   "minimum",     "mul",
                                                  "ne",        "new_full",  "new_ones",  "new_zeros",   "ones",
                                                  "ones_like", "remainder", "repeat",    "roll",        "scalar_tensor",
                                                  "stack",     "sub",       "sum",       "tril",        "triu",
                                                  "where",     "zeros",     "zeros_like"};
    if (s.kind != StepKind::kCall || s.guard != nullptr || s.dynamic || s.draws) return false;
    const uint32_t results = s.results.end - s.results.begin, written = s.written.end - s.written.begin;
    if (results + written != 1) return false;
    const uint32_t made = results == 1 ? p_.results[s.results.begin] : p_.written_tensors[s.written.begin] + 1;
    std::string_view name = std::string_view(s.name).substr(0, s.name.find('.'));
    if (name.size() > 7 && name.back() == '_') name.remove_suffix(1);
    return made != 0 && c10::isIntegralType(p_.tensors[made - 1].dtype, /*includeBool=*/true) &&
           name.starts_with("aten::") &&
           std::find(std::begin(kCheap), std::end(kCheap), name.substr(6)) != std::end(kCheap);
  }

  Reader in_;
  std::vector<uint32_t> outputs_;  // buffers
  std::vector<std::string> ops_;
  c10::Device device_;
  bool apart_;
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
  Program& p_ = *program_;
};

}  // namespace

std::unique_ptr<Program> Parse(const uint64_t* words, uint64_t n, const Device& device) {
  return Parser(words, n, device)();
}

}  // namespace mycelya::exec
