// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Calls the operators that programs may call with hostile arguments: wrong ranks and dtypes, wild indices, NaN, extreme
// numbers, overlapping and expanded operands, absent tensors, lists of wrong lengths. A process of its own runs the
// programs. If it dies, the parent notes the call and starts another one. The exit code is 1 if a call ended a process,
// took longer than a minute, or returned memory that no operand holds.
//
//   mycelya_operator_fuzz [--count 400000] [--seed 1] [--first 0] [--only name] [--all] [--words]
//
// A program depends only on the seed and its number: --first n --count 1 repeats it. --all takes all operators of aten.
// --words runs nothing and writes the programs for tests/hostile, which sends them to a worker.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

using c10::TypeKind;

constexpr int64_t kStorageBytes = 4096;
constexpr double kSlow = 6, kHang = 60;  // seconds
constexpr uint64_t kPerSession = 512;
// The allocator fills new and freed memory with these bytes (main sets it so).
constexpr int kFreed = 0xA5, kNew = 0x5A;
// A run of this many of them is no value that a kernel computed.
constexpr int kLeak = 24;

constexpr std::string_view kAllowed[] = {
#include "exec/program/Allowed.inc"
};

constexpr std::string_view kLibrary[] = {
#define MYC_LIBRARY_OP(name, dynamic, casts) name,
#include "abi/library_ops.inc"
#undef MYC_LIBRARY_OP
};

// The state that parent and child share.
struct Shared {
  volatile uint64_t at;     // number of the program that runs
  volatile double slowest;  // of the finished programs since the parent looked, in seconds
  volatile uint64_t refused, failed, ran, leaks;
  char call[4096];  // of the program that runs
  char slow_call[4096];
  char leak_call[4096];
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Made {
  uint64_t tensor;
  std::string text;
};

// Makes one program. The operands share the storages 1 to kStorages.
class Maker {
 public:
  static constexpr uint64_t kStorages = 6;

  Maker(uint64_t seed, uint64_t number) : random_(seed * 0x9E3779B97F4A7C15u + number) {
    for (uint64_t i = 0; i < kStorages; ++i) b_.Buffer();
    fits_ = Chance(60);
    for (uint64_t i = Below(5); i > 0; --i) shape_.push_back(Small());
    dtype_ = Chance(60) ? static_cast<uint64_t>(MYC_F32) : 1 + Below(13);
  }

  uint64_t Below(uint64_t n) { return random_() % n; }
  bool Chance(uint64_t percent) { return Below(100) < percent; }

  // Adds the call. Returns the number of fresh tensors, all of which are outputs, or 0.
  uint64_t Call(const std::string& name, const c10::FunctionSchema& schema) {
    text_ = name + "(";
    std::vector<Words> args;
    for (const c10::Argument& a : schema.arguments()) {
      if (!args.empty()) text_ += ", ";
      args.push_back(Argument(a));
    }
    text_ += ")";
    uint64_t tensors = 0, lists = 0;
    for (const c10::Argument& r : schema.returns()) {
      if (r.alias_info() != nullptr && r.alias_info()->isWrite()) continue;
      tensors += r.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
      lists += r.type()->isSubtypeOf(*c10::ListType::ofTensors());
    }
    if (lists > 0 || tensors == 0) {
      // A list of results must be as long as the operator makes it; unused results need no shapes.
      b_.Call(name, args, std::vector<uint64_t>(tensors + lists * Below(4), Builder::kNoTensor));
      return 0;
    }
    std::vector<uint64_t> results = {b_.Fresh(MYC_I64, {static_cast<int64_t>(tensors * MYC_SHAPE_WORDS)})};
    for (uint64_t i = 0; i < tensors; ++i) results.push_back(b_.Fresh(MYC_U8, {0}));
    b_.Call(name, args, results, MYC_R_DYNAMIC);
    return tensors;
  }

  Words Done() const { return b_.Done(); }
  const std::string& text() const { return text_; }

 private:
  int64_t Small() {
    static constexpr int64_t kSizes[] = {0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 9, 16, 17};
    return kSizes[Below(std::size(kSizes))];
  }
  int64_t Number() {
    static constexpr int64_t kExtremes[] = {std::numeric_limits<int64_t>::min(),
                                            std::numeric_limits<int64_t>::max(),
                                            std::numeric_limits<int32_t>::max(),
                                            std::numeric_limits<int32_t>::min(),
                                            int64_t{1} << 40,
                                            -(int64_t{1} << 40),
                                            1000003,
                                            -1000003,
                                            4096,
                                            -7};
    if (Chance(12)) return kExtremes[Below(std::size(kExtremes))];
    return Chance(80) ? static_cast<int64_t>(Below(5)) : static_cast<int64_t>(Below(40)) - 20;
  }
  double Real() {
    static constexpr double kReals[] = {std::numeric_limits<double>::quiet_NaN(),
                                        std::numeric_limits<double>::infinity(),
                                        -std::numeric_limits<double>::infinity(),
                                        1e300,
                                        -1e300,
                                        1e-320,
                                        0,
                                        -0.0,
                                        1e18};
    if (Chance(25)) return kReals[Below(std::size(kReals))];
    return static_cast<double>(Below(2000)) / 400 - 1;
  }
  Words Note(const std::string& text, Words w) {
    text_ += text;
    return w;
  }

  // Whether an argument of this name holds indices or lengths.
  static bool Indexes(const std::string& name) {
    for (const char* word : {"ind", "target", "length", "offset", "bag", "boundaries", "sorter", "pivots", "labels"}) {
      if (name.find(word) != std::string::npos) return true;
    }
    return false;
  }

  Words Tensor(const std::string& name) {
    uint64_t dtype = Chance(88) ? dtype_ : 1 + Below(20);
    if (Indexes(name) && Chance(90)) dtype = Chance(80) ? MYC_I64 : MYC_I32;
    if (name == "mask" || name == "condition") dtype = MYC_BOOL;
    std::vector<int64_t> sizes = shape_;
    if (!fits_ || Chance(25)) {
      sizes.clear();
      for (uint64_t i = Below(6); i > 0; --i) sizes.push_back(Small());
    }
    if (Chance(10) && !sizes.empty()) sizes[Below(sizes.size())] = Small();
    if (Chance(15) && !sizes.empty()) sizes.pop_back();
    int64_t room = kStorageBytes / 16, stride = 1;
    std::vector<int64_t> strides(sizes.size());
    for (size_t i = sizes.size(); i-- > 0;) {
      strides[i] = stride;
      if (stride * std::max<int64_t>(sizes[i], 1) > room || Chance(3)) strides[i] = 0;
      if (strides[i] != 0) stride *= std::max<int64_t>(sizes[i], 1);
    }
    if (Chance(15) && sizes.size() > 1) {
      std::swap(sizes[0], sizes.back());
      std::swap(strides[0], strides.back());
    }
    if (Chance(1) && !sizes.empty()) {
      // More elements than the storage holds, but not so many that each operator is slow.
      int64_t others = 1;
      for (size_t i = 1; i < sizes.size(); ++i) others *= std::max<int64_t>(sizes[i], 1);
      sizes[0] = std::max<int64_t>(1, (int64_t{1} << (10 + Below(11))) / others);
      strides[0] = 0;
    }
    const int64_t offset = Chance(85) ? 0 : static_cast<int64_t>(Below(4));
    const uint64_t buffer = Below(kStorages);
    std::vector<D> ds(sizes.begin(), sizes.end()), dst(strides.begin(), strides.end());
    const uint64_t t = b_.Tensor(buffer, dtype, ds, dst, offset);
    std::string text = "t" + std::to_string(buffer) + ":" + std::to_string(dtype) + "[";
    for (size_t i = 0; i < sizes.size(); ++i) text += (i ? "," : "") + std::to_string(sizes[i]);
    text += "]{";
    for (size_t i = 0; i < sizes.size(); ++i) text += (i ? "," : "") + std::to_string(strides[i]);
    return Note(text + "}+" + std::to_string(offset), T(t));
  }

  Words Argument(const c10::Argument& a) { return Value(a.real_type(), a.name()); }

  Words Value(const c10::TypePtr& type, const std::string& name) {
    switch (type->kind()) {
      case TypeKind::OptionalType:
        if (Chance(35)) return Note("none", None());
        return Value(type->expectRef<c10::OptionalType>().getElementType(), name);
      case TypeKind::TensorType:
        if (Chance(2)) return Note("none", None());
        if (Chance(3)) return Note("7", Int(7));
        return Tensor(name);
      case TypeKind::IntType:
      case TypeKind::SymIntType: {
        const int64_t v = Number();
        return Note(std::to_string(v), Int(v));
      }
      case TypeKind::FloatType: {
        const double v = Real();
        return Note(std::to_string(v), Float(v));
      }
      case TypeKind::BoolType: {
        const bool v = Chance(50);
        return Note(v ? "true" : "false", Bool(v));
      }
      case TypeKind::NumberType: {
        if (Chance(10)) return Note("true", Bool(true));
        if (Chance(50)) return Value(c10::IntType::get(), name);
        return Value(c10::FloatType::get(), name);
      }
      case TypeKind::StringType: {
        static const char* const kWords[] = {
            "sum", "mean",    "prod", "amax",  "amin", "max", "min",  "none", "tanh",     "floor", "trunc",   "U",
            "L",   "reduced", "left", "right", "add",  "",    "gels", "x",    "multiply", "r",     "complete"};
        const std::string w = kWords[Below(std::size(kWords))];
        return Note("'" + w + "'", Str(w));
      }
      case TypeKind::ScalarTypeType: {
        const uint64_t d = Chance(70) ? dtype_ : 1 + Below(20);
        return Note("dtype " + std::to_string(d), Dtype(d));
      }
      case TypeKind::LayoutType:
        return Note("strided", Layout());
      case TypeKind::MemoryFormatType: {
        const uint64_t format = Below(5);
        return Note("format " + std::to_string(format), Words{MYC_W_MEMFMT, format});
      }
      case TypeKind::DeviceObjType:
        return Note("device", Device());
      case TypeKind::ListType:
        return ListValue(type->expectRef<c10::ListType>().getElementType(), name);
      default:
        return Note("none", None());
    }
  }

  Words ListValue(const c10::TypePtr& element, const std::string& name) {
    uint64_t kind = MYC_L_INTS;
    if (element->kind() == TypeKind::TensorType) kind = MYC_L_TENSORS;
    if (element->kind() == TypeKind::OptionalType) kind = MYC_L_OPT_TENSORS;
    if (element->kind() == TypeKind::FloatType) kind = MYC_L_FLOATS;
    if (element->kind() == TypeKind::BoolType) kind = MYC_L_BOOLS;
    if (element->kind() == TypeKind::NumberType) kind = MYC_L_SCALARS;
    static constexpr uint64_t kLengths[] = {0, 1, 1, 2, 2, 2, 3, 3, 4, 6};
    if (!length_set_ || Chance(25)) {
      length_ = Chance(40) ? shape_.size() : kLengths[Below(std::size(kLengths))];
      length_set_ = true;
    }
    std::vector<Words> items;
    text_ += "[";
    const bool sizes = kind == MYC_L_INTS && Chance(25);  // such as a correct input_sizes
    const uint64_t n = sizes ? shape_.size() : length_;
    for (uint64_t i = 0; i < n; ++i) {
      if (i > 0) text_ += ", ";
      items.push_back(sizes ? Note(std::to_string(shape_[i]), Int(shape_[i])) : Value(element, name));
    }
    text_ += "]";
    return List(kind, items);
  }

  std::mt19937_64 random_;
  Builder b_;
  std::string text_;
  bool fits_ = false;  // most operands have one shape
  std::vector<int64_t> shape_;
  uint64_t dtype_ = MYC_F32;
  uint64_t length_ = 0;
  bool length_set_ = false;
};

// ---- The child ----

// Content of the storages: small floats, floats with NaN, valid indices, wild integers, zeros, random bytes.
std::vector<at::Tensor> Contents() {
  std::mt19937_64 random(7);
  std::vector<at::Tensor> all;
  for (uint64_t i = 0; i < Maker::kStorages; ++i) {
    at::Tensor t = at::empty({kStorageBytes}, c10::ScalarType::Byte);
    auto* words = static_cast<int64_t*>(t.mutable_data_ptr());
    auto* floats = static_cast<float*>(t.mutable_data_ptr());
    for (int64_t j = 0; j < kStorageBytes / 8; ++j) {
      const int64_t wild = static_cast<int64_t>(random());
      words[j] = i == 2 ? wild & 3 : i == 3 ? (j % 3 == 0 ? wild >> (wild & 63) : (wild & 15) - 4) : i == 4 ? 0 : wild;
    }
    for (int64_t j = 0; i < 2 && j < kStorageBytes / 4; ++j) {
      floats[j] = static_cast<float>(random() % 1000) / 250 - 1;
      if (i == 1 && j % 7 == 0) floats[j] = j % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 3e38F;
    }
    all.push_back(t);
  }
  return all;
}

// Whether bytes hold a long run of what the allocator fills memory with.
bool Leaks(const at::Tensor& t) {
  const auto* bytes = static_cast<const uint8_t*>(t.const_data_ptr());
  int run = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(t.nbytes()); ++i) {
    run = bytes[i] == kFreed || bytes[i] == kNew ? run + 1 : 0;
    if (run >= kLeak) return true;
  }
  return false;
}

// Reads the results 100 and up, whose shapes are in storage 99.
bool AnyLeaks(Session& s, uint64_t tensors) {
  const Got shapes = s.Read(99, MYC_I64, c10::ScalarType::Long, {static_cast<int64_t>(tensors * MYC_SHAPE_WORDS)}, {1});
  if (shapes.kind != MYC_OK) return false;
  const auto* words = shapes.tensor.const_data_ptr<int64_t>();
  for (uint64_t i = 0; i < tensors; ++i, words += MYC_SHAPE_WORDS) {
    int64_t bytes = words[0] == MYC_F32 || words[0] == MYC_I32 ? 4 : 8, n = 1;
    if (words[0] != MYC_F32 && words[0] != MYC_I64 && words[0] != MYC_F64 && words[0] != MYC_I32) continue;
    for (int64_t d = 0; d < words[1]; ++d) n *= words[2 + d];
    if (n == 0 || n > (1 << 20)) continue;
    const Got got = s.Read(100 + i, MYC_U8, c10::ScalarType::Byte, {n * bytes}, {1});
    if (got.kind == MYC_OK && Leaks(got.tensor)) return true;
  }
  return false;
}

using Operators = std::vector<c10::OperatorHandle>;

std::string NameOf(const c10::OperatorHandle& op) {
  const c10::OperatorName& n = op.operator_name();
  return n.overload_name.empty() ? n.name : n.name + "." + n.overload_name;
}

// Operators whose result has no content by definition.
bool IsUninitialised(const std::string& name) { return name.find("empty") != std::string::npos; }

void RunOne(Session& s, Shared& shared, const Operators& ops, uint64_t seed, uint64_t number,
            const std::vector<at::Tensor>& contents) {
  const c10::OperatorHandle& op = ops[number % ops.size()];
  const std::string name = NameOf(op);
  Maker m(seed, number);
  const uint64_t tensors = m.Call(name, op.schema());
  std::snprintf(shared.call, sizeof shared.call, "%s", m.text().c_str());
  shared.at = number;
  const double start = Now();
  Pairs inputs, outputs;
  Words ids;
  for (uint64_t i = 0; i < Maker::kStorages; ++i) ids.push_back(i + 1);
  for (uint64_t i = 0; i <= 8; ++i) ids.push_back(99 + i);
  s.Free(ids);
  for (uint64_t i = 0; i < Maker::kStorages; ++i) {
    s.Upload(i + 1, contents[i]);
    inputs.emplace_back(i, i + 1);
  }
  for (uint64_t i = 0; i < (tensors > 0 ? tensors + 1 : 0); ++i) outputs.emplace_back(Maker::kStorages + i, 99 + i);
  myc_error e{};
  myc_prog* p = s.Prepare(m.Done(), &e);
  if (p == nullptr) {
    shared.refused = shared.refused + 1;
    return;
  }
  s.Run(p, {}, inputs, outputs, number + 1);
  s.failed() == 0 ? shared.ran = shared.ran + 1 : shared.failed = shared.failed + 1;
  if (s.failed() == 0 && tensors > 0 && !IsUninitialised(name) && AnyLeaks(s, tensors)) {
    shared.leaks = shared.leaks + 1;
    if (shared.leaks == 1) std::snprintf(shared.leak_call, sizeof shared.leak_call, "%s", m.text().c_str());
  }
  s.Drop(p);
  const double took = Now() - start;
  if (took <= shared.slowest) return;
  shared.slowest = took;
  std::snprintf(shared.slow_call, sizeof shared.slow_call, "%s", m.text().c_str());
}

[[noreturn]] void Child(Shared& shared, const Operators& ops, uint64_t seed, uint64_t first, uint64_t end) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A wild size may ask for any amount of memory.
  const rlimit memory{rlim_t{3} << 30, rlim_t{3} << 30}, core{0, 0};
  setrlimit(RLIMIT_AS, &memory);
  setrlimit(RLIMIT_CORE, &core);
  const int null = open("/dev/null", O_WRONLY);
  dup2(null, STDOUT_FILENO);  // MKL reports refused arguments there
  if (std::getenv("MYC_FUZZ_STDERR") == nullptr) dup2(null, STDERR_FILENO);
  at::set_num_threads(1);
  const std::vector<at::Tensor> contents = Contents();
  auto session = std::make_unique<Session>();
  for (uint64_t i = first; i < end; ++i) {
    if ((i - first) % kPerSession == kPerSession - 1) session = std::make_unique<Session>();
    RunOne(*session, shared, ops, seed, i, contents);
  }
  shared.at = end;
  _exit(0);
}

// ---- The parent ----

struct Finding {
  uint64_t count = 0;
  std::string how, call;
  uint64_t number = 0;
};
using Findings = std::map<std::string, Finding>;

std::string OperatorOf(const char* call) {
  const std::string text = call;
  return text.substr(0, text.find('('));
}

void Note(Findings& all, const char* call, const std::string& how, uint64_t number) {
  Finding& f = all[how.substr(0, 5) + " " + OperatorOf(call)];
  if (f.count++ > 0) return;
  f = {1, how, call, number};
  std::printf("program %lu: %s: %.600s\n", number, how.c_str(), call);
  std::fflush(stdout);
}

// Waits for the child. Returns the number of the first program that has not run.
uint64_t Watch(pid_t child, Shared& shared, uint64_t end, Findings& found) {
  uint64_t last = UINT64_MAX;
  double since = Now();
  for (;;) {
    int status = 0;
    const bool ended = waitpid(child, &status, WNOHANG) == child;
    if (shared.slowest > kSlow) {
      Note(found, shared.slow_call, "slow: " + std::to_string(static_cast<int>(shared.slowest)) + " s", shared.at);
      shared.slowest = 0;
    }
    if (shared.leaks > 0) {
      Note(found, shared.leak_call, "leak", shared.at);
      shared.leaks = 0;
    }
    if (ended) {
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return end;
      const std::string how = WIFSIGNALED(status) ? std::string("crash: ") + strsignal(WTERMSIG(status))
                                                  : "crash: exit " + std::to_string(WEXITSTATUS(status));
      Note(found, shared.call, how, shared.at);
      return shared.at + 1;
    }
    if (shared.at != last) {
      last = shared.at;
      since = Now();
    } else if (Now() - since > kHang) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      Note(found, shared.call, "hang", shared.at);
      return shared.at + 1;
    }
    usleep(2000);
  }
}

void Put(const void* bytes, uint64_t n) { std::fwrite(bytes, 1, n, stdout); }
void PutNumber(uint64_t n) { Put(&n, sizeof n); }

int WriteWords(uint64_t count, uint64_t seed, uint64_t first, const Operators& ops) {
  const std::vector<at::Tensor> contents = Contents();
  PutNumber(contents.size());
  for (const at::Tensor& t : contents) {
    PutNumber(t.nbytes());
    Put(t.const_data_ptr(), t.nbytes());
  }
  for (uint64_t i = first; i < first + count; ++i) {
    const c10::OperatorHandle& op = ops[i % ops.size()];
    Maker m(seed, i);
    m.Call(NameOf(op), op.schema());
    const Words words = m.Done();
    PutNumber(words.size());
    Put(words.data(), words.size() * sizeof(uint64_t));
    PutNumber(m.text().size());
    Put(m.text().data(), m.text().size());
  }
  return std::fflush(stdout) == 0 ? 0 : 2;
}

Operators Select(bool all, const std::string& only) {
  Operators ops;
  Builder names_one;  // an operator of a library, which the executor loads then
  names_one.Call(std::string(kLibrary[0]), {}, {});
  myc_error refused{};
  Session().Prepare(names_one.Done(), &refused);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    const std::string text = NameOf(*op);
    const bool own = text.rfind("mycelya::", 0) == 0, aten = text.rfind("aten::", 0) == 0;
    if (!own && !aten && std::find(std::begin(kLibrary), std::end(kLibrary), text) == std::end(kLibrary)) continue;
    if (aten && !all && !std::binary_search(std::begin(kAllowed), std::end(kAllowed), text.substr(6))) continue;
    if (only.empty() || text == only || text == "aten::" + only) ops.push_back(*op);
  }
  std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return NameOf(a) < NameOf(b); });
  return ops;
}

int Main(uint64_t count, uint64_t seed, uint64_t first, const Operators& ops) {
  auto* shared =
      static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED || ops.empty()) {
    std::fprintf(stderr, "no shared memory, or no operator has this name\n");
    return 2;
  }
  Findings found;
  const double start = Now();
  const uint64_t end = first + count;
  for (uint64_t at = first; at < end;) {
    std::fflush(stdout);
    shared->at = at;
    const uint64_t part = std::min(end, at + 20000);  // bounds what a process keeps
    const pid_t child = fork();
    if (child == 0) Child(*shared, ops, seed, at, part);
    at = Watch(child, *shared, part, found);
  }
  std::printf("%lu programs of %zu operators, seed %lu, %.0f s: %lu refused, %lu failed, %lu ran\n", count, ops.size(),
              seed, Now() - start, shared->refused, shared->failed, shared->ran);
  bool bad = false;
  for (const auto& [key, f] : found) {
    bad = bad || key.rfind("slow", 0) != 0;
    std::printf("%6lu  %-30s %s\n", f.count, f.how.c_str(), OperatorOf(f.call.c_str()).c_str());
  }
  return bad ? 1 : 0;
}

}  // namespace
}  // namespace mycelya::exec::test

int main(int argc, char** argv) {
  static constexpr char kTunables[] = "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0";
  const char* const set = std::getenv("GLIBC_TUNABLES");
  if (set == nullptr || std::string(set) != kTunables) {
    setenv("GLIBC_TUNABLES", kTunables, 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    execv("/proc/self/exe", argv);
  }
  uint64_t count = 400000, seed = 1, first = 0;
  std::string only;
  bool all = false, words = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--all") {
      all = true;
      continue;
    }
    if (flag == "--words") {
      words = true;
      continue;
    }
    const char* const value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--count")
      count = std::strtoull(value, nullptr, 10);
    else if (flag == "--seed")
      seed = std::strtoull(value, nullptr, 10);
    else if (flag == "--first")
      first = std::strtoull(value, nullptr, 10);
    else if (flag == "--only")
      only = value;
    else
      return std::fprintf(stderr, "unknown flag %s\n", flag.c_str()), 2;
  }
  const mycelya::exec::test::Operators ops = mycelya::exec::test::Select(all, only);
  return words ? mycelya::exec::test::WriteWords(count, seed, first, ops)
               : mycelya::exec::test::Main(count, seed, first, ops);
}
