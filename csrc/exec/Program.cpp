// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Words to Program. The order here is the order of the grammar in csrc/abi/mycelya.h.
#include "Program.h"

#include <algorithm>

#include "Dtype.h"
#include "mycelya.h"

namespace mycelya::exec {
namespace {

constexpr char kSeedOp[] = "mycelya::manual_seed";
constexpr char kDefaultDtypeOp[] = "mycelya::set_default_dtype";

// Operators that a client has no business to name.
struct Refusal {
  const char* op;  // without overload
  const char* why;
};
constexpr Refusal kRefused[] = {
    {"aten::from_file", "it reads the worker's files"},
    {"aten::_reshape_alias", "it makes a view without checking it against its storage"},
};

// Views of strided storages in other layouts can't be made here, so those ops fail by their result; only the namespace
// and the table above have to be looked at.
void CheckAllowed(const std::string& name) {
  TORCH_CHECK_VALUE(name.rfind("aten::", 0) == 0 || name.rfind("mycelya::", 0) == 0,
                    "A worker runs operators of aten and its own only, not ", name, ".");
  for (const Refusal& r : kRefused) {
    TORCH_CHECK_VALUE(name != r.op, "A worker doesn't run ", name, ": ", r.why, ".");
  }
}

class Parser {
 public:
  Parser(const uint64_t* words, uint64_t n, c10::Device device) : in_(words, n), device_(device) {}

  std::unique_ptr<Program> operator()() {
    p_.nparams = in_.Index("the number of parameters", kMaxParams + 1);
    p_.nbuffers = in_.Index("the number of buffers", kMaxBuffers + 1);
    const uint32_t ntensors = in_.Count("tensors", 6);
    p_.tensors.reserve(ntensors);
    for (uint32_t i = 0; i < ntensors; ++i) ParseTensor();
    IndexTensors();
    const uint32_t nsteps = in_.Count("steps", 2);
    p_.steps.reserve(nsteps);
    for (uint32_t i = 0; i < nsteps; ++i) ParseStep();
    in_.End();
    p_.work.buffers.resize(p_.nbuffers);
    p_.work.tensors.resize(p_.tensors.size());
    return std::move(program_);
  }

 private:
  Dim ParseDim(const char* what) {
    if (in_.Index(what, 2) == 0) return {false, static_cast<int64_t>(in_.Next(what))};
    return {true, in_.Index(what, p_.nparams)};
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

  // by_buffer: the tensors grouped by buffer, so that a freed buffer finds its own.
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
    switch (const uint64_t kind = in_.Next("a step")) {
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
      default:
        TORCH_CHECK_VALUE(false, "BUG: word ", in_.at() - 1, " of the program is ", kind, ", which starts no step.");
    }
    p_.steps.push_back(std::move(s));
  }

  void ParseCall(Step& s) {
    s.name = in_.Text("an operator's name");
    std::vector<Word> words(in_.Count("arguments"));
    for (Word& w : words) w = in_.Argument(p_.tensors.size(), p_.nparams);
    const uint32_t nresults = in_.Count("results");
    s.results.begin = static_cast<uint32_t>(p_.results.size());
    for (uint32_t i = 0; i < nresults; ++i) p_.results.push_back(in_.Index("a result", p_.tensors.size() + 1));
    s.results.end = static_cast<uint32_t>(p_.results.size());
    s.dynamic = (in_.Index("flags", (MYC_R_RNG | MYC_R_EFFECT | MYC_R_DYNAMIC) + 1) & MYC_R_DYNAMIC) != 0;
    if (s.name == kSeedOp) {
      PlanSeed(s, words);
    } else if (s.name == kDefaultDtypeOp) {
      TORCH_CHECK_TYPE(words.size() == 1 && words[0].tag == MYC_W_DTYPE && s.results.begin == s.results.end,
                       "BUG: ", kDefaultDtypeOp, " takes a dtype and returns nothing.");
      s.kind = StepKind::kDefaultDtype;
      s.a = static_cast<uint32_t>(words[0].value);
      TORCH_CHECK_VALUE(c10::isFloatingType(ToScalarType(s.a)), "The default dtype must be floating, got ",
                        ToScalarType(s.a), ".");
    } else {
      PlanCall(s, words);
    }
  }

  void PlanSeed(Step& s, const std::vector<Word>& words) const {
    TORCH_CHECK_TYPE(words.size() == 2 && words[0].tag == MYC_W_GEN && words[1].tag == MYC_W_NUMBER &&
                         words[1].kind == MYC_N_I64 && s.results.begin == s.results.end,
                     "BUG: ", kSeedOp, " takes a generator and an integer and returns nothing.");
    s.kind = StepKind::kSeed;
    s.a = static_cast<uint32_t>(words[0].value);
    s.b = static_cast<uint32_t>(words[1].value);
  }

  void PlanCall(Step& s, const std::vector<Word>& words) {
    s.kind = StepKind::kCall;
    const size_t dot = s.name.find('.');
    const std::string base = s.name.substr(0, dot);
    CheckAllowed(base);
    s.op = c10::Dispatcher::singleton().findSchema(
        {base, dot == std::string::npos ? std::string() : s.name.substr(dot + 1)});
    TORCH_CHECK_NOT_IMPLEMENTED(s.op.has_value(), "The worker's PyTorch has no operator ", s.name, ".");
    const c10::FunctionSchema& schema = s.op->schema();
    PlanArgs(s, words, schema);
    PlanReturns(s, schema);
  }

  void PlanArgs(Step& s, const std::vector<Word>& words, const c10::FunctionSchema& schema) {
    const std::vector<c10::Argument>& to = schema.arguments();
    TORCH_CHECK_TYPE(words.size() <= to.size(), "BUG: ", s.name, " takes ", to.size(), " arguments, not ", words.size(),
                     ".");
    s.args.begin = static_cast<uint32_t>(p_.args.size());
    std::vector<uint32_t> reads, spoils;
    s.written.begin = static_cast<uint32_t>(p_.written_tensors.size());
    for (size_t i = 0; i < to.size(); ++i) {
      p_.args.push_back(i < words.size() ? FitArg(words[i], to[i], s.name, device_, p_) : DefaultOf(to[i], s.name));
      const bool written = to[i].alias_info() != nullptr && to[i].alias_info()->isWrite();
      const Arg& arg = p_.args.back();
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
    s.args.end = static_cast<uint32_t>(p_.args.size());
    s.written.end = static_cast<uint32_t>(p_.written_tensors.size());
    for (uint32_t i = s.results.begin; i < s.results.end; ++i) {
      if (p_.results[i] != 0) spoils.push_back(BufferOf(p_.results[i] - 1));
    }
    s.reads = AddBuffers(reads);
    s.spoils = AddBuffers(spoils);
  }

  static Arg DefaultOf(const c10::Argument& to, const std::string& op) {
    TORCH_CHECK_TYPE(to.default_value().has_value(), "BUG: ", op, " is not given its argument ", to.name(), ".");
    Arg a;
    a.constant = *to.default_value();
    return a;
  }

  void PlanReturns(Step& s, const c10::FunctionSchema& schema) const {
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
      TORCH_CHECK_TYPE(listed > 0 && !lists, "BUG: ", s.name, " can't say the shapes of its results.");
      --listed;
    }
    TORCH_CHECK_TYPE(lists ? listed >= tensors : listed == tensors, "BUG: ", s.name, " returns ", tensors,
                     " new tensors, but the program lists ", listed, " results.");
  }

  Reader in_;
  c10::Device device_;
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
  Program& p_ = *program_;
};

}  // namespace

std::unique_ptr<Program> Parse(const uint64_t* words, uint64_t n, c10::Device device) {
  return Parser(words, n, device)();
}

}  // namespace mycelya::exec
