// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// For tests: a builder of program words, and the executor's C ABI as a C++ object.
#ifndef MYCELYA_EXEC_TEST_SESSION_H_
#define MYCELYA_EXEC_TEST_SESSION_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "abi/mycelya.h"

extern "C" {
uint32_t myc_exec_abi_version(void);
myc_exec* myc_exec_new(const char*, int32_t, myc_error*);
void myc_exec_delete(myc_exec*);
uint64_t myc_exec_info(myc_exec*, char*, uint64_t);
myc_prog* myc_exec_prepare(myc_exec*, const uint64_t*, uint64_t, myc_error*);
void myc_exec_drop(myc_exec*, myc_prog*);
int32_t myc_exec_run(myc_exec*, myc_prog*, const uint64_t*, uint64_t, const uint64_t*, uint64_t, const uint64_t*,
                     uint64_t, const uint64_t*, uint64_t, const uint64_t*, uint64_t, uint64_t, myc_step_error*, int32_t,
                     myc_fused*, uint64_t*);
void* myc_exec_upload_begin(myc_exec*, uint64_t, uint64_t, myc_error*);
int32_t myc_exec_upload_end(myc_exec*, uint64_t, myc_error*);
int32_t myc_exec_read(myc_exec*, const myc_view*, const void**, uint64_t*, void**, uint64_t*, uint32_t*, myc_error*);
void myc_exec_read_done(myc_exec*, void*);
void myc_exec_free(myc_exec*, const uint64_t*, uint64_t);
void myc_exec_poison(myc_exec*, const uint64_t*, uint64_t, uint64_t, uint32_t, const myc_error*);
int32_t myc_exec_sync(myc_exec*, myc_error*);
void myc_exec_usage(myc_exec*, uint64_t*, uint64_t*);
void myc_exec_leave(myc_exec*, int32_t);
void myc_exec_trim();
}

namespace mycelya::exec::test {

using Words = std::vector<uint64_t>;

struct D {  // a dim: 7 is a constant, P(2) a parameter
  uint64_t word = 0;
  D(int64_t v) : word(static_cast<uint64_t>(v)) {}  // NOLINT: implicit, so that a dim is written as a number
};
inline D P(uint64_t param) { return {~static_cast<int64_t>(param)}; }

inline Words None() { return {MYC_W_NONE}; }
inline Words T(uint64_t tensor) { return {MYC_W_TENSOR, tensor}; }
inline Words Number(uint64_t kind, uint64_t param) { return {MYC_W_NUMBER, kind, param}; }
inline Words Scalar(uint64_t dtype, uint64_t param) { return {MYC_W_SCALAR, dtype, param}; }
inline Words Size(uint64_t param) { return {MYC_W_SIZE, param}; }
inline Words Int(int64_t v) { return {MYC_W_INT, static_cast<uint64_t>(v)}; }
inline Words Float(double v) { return {MYC_W_FLOAT, std::bit_cast<uint64_t>(v)}; }
inline Words Bool(bool v) { return {MYC_W_BOOL, v}; }
inline Words Dtype(uint64_t d) { return {MYC_W_DTYPE, d}; }
inline Words Layout() { return {MYC_W_LAYOUT, 0}; }
inline Words Device() { return {MYC_W_DEVICE, 0}; }
inline Words Generator(uint64_t param) { return {MYC_W_GEN, param}; }
inline Words Bytes(const std::string& s) {
  Words w(1 + (s.size() + 7) / 8);
  w[0] = s.size();
  std::memcpy(w.data() + 1, s.data(), s.size());
  return w;
}
inline Words Str(const std::string& s) {
  Words w = Bytes(s);
  w.insert(w.begin(), MYC_W_STR);
  return w;
}
inline Words List(uint64_t kind, const std::vector<Words>& items) {
  Words w = {MYC_W_LIST, kind, items.size()};
  for (const Words& i : items) w.insert(w.end(), i.begin(), i.end());
  return w;
}
inline Words Ints(const std::vector<int64_t>& values) {
  std::vector<Words> items;
  for (int64_t v : values) items.push_back(Int(v));
  return List(MYC_L_INTS, items);
}

// Builds the words of a program. Buffers and parameters are counted as they are made. Each step has a record of its own
// with its number plus one, unless Record sets another one.
class Builder {
 public:
  uint64_t Buffer() { return nbuffers_++; }
  uint64_t Param() { return nparams_++; }

  uint64_t Tensor(uint64_t buffer, uint64_t dtype, const std::vector<D>& sizes) {
    return Add(buffer, dtype, sizes, nullptr, D(0));
  }
  uint64_t Tensor(uint64_t buffer, uint64_t dtype, const std::vector<D>& sizes, const std::vector<D>& strides,
                  D offset) {
    return Add(buffer, dtype, sizes, &strides, offset);
  }
  // A tensor on a buffer of its own.
  uint64_t Fresh(uint64_t dtype, const std::vector<D>& sizes) { return Tensor(Buffer(), dtype, sizes); }

  // results: tensors, or kNoTensor for a result that is not used.
  static constexpr uint64_t kNoTensor = UINT64_MAX;
  void Call(const std::string& op, const std::vector<Words>& args, const std::vector<uint64_t>& results = {},
            uint64_t flags = 0) {
    Step(MYC_S_CALL, {Name(op)});
    steps_.push_back(args.size());
    for (const Words& a : args) Append(a);
    steps_.push_back(results.size());
    for (uint64_t r : results) steps_.push_back(r + 1);
    steps_.push_back(flags);
  }
  void Copy(uint64_t dst, uint64_t src) { Step(MYC_S_COPY, {dst, src}); }
  void Alloc(uint64_t buffer, D bytes) { Step(MYC_S_ALLOC, {buffer, bytes.word}); }
  void Clone(uint64_t to, uint64_t from) { Step(MYC_S_CLONE, {to, from}); }
  void Free(uint64_t buffer) { Step(MYC_S_FREE, {buffer}); }
  void Resize(uint64_t buffer, D bytes) { Step(MYC_S_RESIZE, {buffer, bytes.word}); }

  // A kernel in the words of the grammar, and steps: a fused group is nfused fused steps, then nplain plain steps.
  uint64_t Kernel(const Words& w) {
    kernels_.insert(kernels_.end(), w.begin(), w.end());
    return nkernels_++;
  }
  void Fused(uint64_t nfused, uint64_t nplain) { Step(MYC_S_FUSED, {nfused, nplain}); }
  void Launch(uint64_t kernel, const Words& instance) {
    Step(MYC_S_KERNEL, {kernel, 1});
    Append(instance);
  }

  Words Done() const {
    Words w = {nparams_, nbuffers_, 0};
    // Every buffer is an output of a program with versions, which so name an output by its buffer.
    w.push_back(versions_.empty() ? 0 : nbuffers_);
    for (uint64_t i = 0; !versions_.empty() && i < nbuffers_; ++i) w.push_back(i);
    w.push_back(ops_.size());
    for (const std::string& op : ops_) {
      const Words name = Bytes(op);
      w.insert(w.end(), name.begin(), name.end());
    }
    w.push_back(ntensors_);
    w.insert(w.end(), tensors_.begin(), tensors_.end());
    w.push_back(nkernels_);
    w.insert(w.end(), kernels_.begin(), kernels_.end());
    w.push_back(nsteps_);
    w.insert(w.end(), steps_.begin(), steps_.end());
    w.push_back(versions_.size() / 4);
    w.insert(w.end(), versions_.begin(), versions_.end());
    return w;
  }

  // The record of the next steps.
  void Record(uint64_t record) { record_ = record; }
  // From this record on, the storage of an output has what the record's step leaves in `buffer`.
  void Version(uint64_t output, uint64_t record, uint64_t buffer) {
    versions_.insert(versions_.end(), {output, record, buffer + 1, record});
  }

  // Four words of a version as they are.
  void Raw(const Words& version) { versions_.insert(versions_.end(), version.begin(), version.end()); }

 private:
  uint64_t Add(uint64_t buffer, uint64_t dtype, const std::vector<D>& sizes, const std::vector<D>* strides, D offset) {
    tensors_.insert(tensors_.end(), {buffer, dtype, sizes.size()});
    for (const D& d : sizes) tensors_.push_back(d.word);
    tensors_.push_back(strides == nullptr);
    if (strides != nullptr) {
      for (const D& d : *strides) tensors_.push_back(d.word);
    }
    tensors_.push_back(offset.word);
    return ntensors_++;
  }
  void Step(uint64_t kind, const Words& w) {
    ++nsteps_;
    steps_.push_back(kind);
    steps_.push_back(record_ != 0 ? record_ : nsteps_);
    Append(w);
  }
  uint64_t Name(const std::string& op) {
    const auto at = std::find(ops_.begin(), ops_.end(), op);
    const auto number = static_cast<uint64_t>(at - ops_.begin());
    if (at == ops_.end()) ops_.push_back(op);
    return number;
  }
  void Append(const Words& w) { steps_.insert(steps_.end(), w.begin(), w.end()); }

  uint64_t nparams_ = 0, nbuffers_ = 0, ntensors_ = 0, nkernels_ = 0, nsteps_ = 0;
  uint64_t record_ = 0;
  Words tensors_, kernels_, steps_, versions_;
  std::vector<std::string> ops_;
};

struct StepError {
  uint32_t step;
  int32_t kind;
  std::string text;
  uint64_t cause_call;
  uint32_t cause_step;
};

inline std::string Errors(const std::vector<StepError>& errors) {
  std::string s;
  for (const StepError& e : errors) s += std::to_string(e.step) + ": " + e.text + "\n";
  return s;
}

// gtest and ATen/ops/equal.h must be included where these are used.
#define EXPECT_RUNS(...) EXPECT_EQ(Errors(__VA_ARGS__), "")
#define EXPECT_SAME(got, want) EXPECT_TRUE(at::equal((got).tensor, (want))) << (got).text

inline at::Tensor Range(int64_t n) { return at::arange(n, c10::ScalarType::Float); }

// The result of a read: a tensor, or an error and, for poison, the call and step that failed.
struct Got {
  at::Tensor tensor;
  int32_t kind = MYC_OK;
  std::string text;
  uint64_t call = 0;
  uint32_t step = 0;
};

using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;  // (buffer, storage id)

class Session {
 public:
  explicit Session(const char* device = "cpu") {
    myc_error e{};
    exec_ = myc_exec_new(device, 1, &e);
    if (exec_ == nullptr) throw std::runtime_error(e.text);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    for (myc_prog* p : programs_) myc_exec_drop(exec_, p);
    myc_exec_delete(exec_);
  }

  myc_exec* get() const { return exec_; }

  // Returns null and sets the error if the program is refused.
  myc_prog* Prepare(const Words& words, myc_error* e) {
    // A copy of exactly this size, so that a sanitizer finds a read past the end.
    std::unique_ptr<uint64_t[]> exact(new uint64_t[words.size()]);
    std::copy(words.begin(), words.end(), exact.get());
    myc_prog* p = myc_exec_prepare(exec_, exact.get(), words.size(), e);
    if (p != nullptr) programs_.push_back(p);
    return p;
  }
  myc_prog* Prepare(const Builder& b) {
    myc_error e{};
    myc_prog* p = Prepare(b.Done(), &e);
    if (p == nullptr) throw std::runtime_error(e.text);
    return p;
  }
  // The error text of a program that must be refused.
  std::string Refusal(const Words& words, int32_t* kind = nullptr) {
    myc_error e{};
    if (Prepare(words, &e) != nullptr) return "accepted";
    if (kind != nullptr) *kind = e.kind;
    return e.text;
  }
  void Drop(myc_prog* p) {
    std::erase(programs_, p);
    myc_exec_drop(exec_, p);
  }

  std::vector<StepError> Run(myc_prog* p, const Words& params, const Pairs& inputs, const Pairs& outputs,
                             uint64_t call = 1, const Words& frees = {}) {
    static constexpr int32_t kCap = 8;
    std::unique_ptr<myc_step_error[]> errs(new myc_step_error[kCap]);
    const Words in = Flat(inputs), out = Flat(outputs);
    failed_ = myc_exec_run(exec_, p, params.data(), params.size(), in.data(), inputs.size(), out.data(), outputs.size(),
                           frees.data(), frees.size(), nullptr, 0, call, errs.get(), kCap, &fused_,
                           times_.empty() ? nullptr : times_.data());
    std::vector<StepError> result;
    for (int32_t i = 0; i < std::min(failed_, kCap); ++i) {
      const myc_step_error& e = errs[i];
      result.push_back({e.step, e.error.kind, e.error.text, e.cause_call, e.cause_step});
    }
    return result;
  }
  std::vector<StepError> Run(const Builder& b, const Words& params, const Pairs& inputs, const Pairs& outputs,
                             uint64_t call = 1, const Words& frees = {}) {
    return Run(Prepare(b), params, inputs, outputs, call, frees);
  }
  int32_t failed() const { return failed_; }
  // Makes the next runs write the times of that many steps; returns them.
  Words& Time(size_t steps) {
    times_.assign(2 * steps, 0);
    return times_;
  }
  // The counts of fused groups, kernels and calls in the last run.
  const myc_fused& fused() const { return fused_; }

  // Uploads the bytes of t's storage as storage `id`.
  void Upload(uint64_t id, const at::Tensor& t) {
    myc_error e{};
    void* to = myc_exec_upload_begin(exec_, id, t.storage().nbytes(), &e);
    if (to == nullptr) throw std::runtime_error(e.text);
    if (t.storage().nbytes() != 0) std::memcpy(to, t.storage().data(), t.storage().nbytes());
    if (myc_exec_upload_end(exec_, id, &e) != MYC_OK) throw std::runtime_error(e.text);
  }

  Got Read(uint64_t id, uint32_t dtype, c10::ScalarType as, const std::vector<int64_t>& sizes,
           const std::vector<int64_t>& strides, int64_t offset = 0) {
    const myc_view view{id, dtype, static_cast<uint32_t>(sizes.size()), sizes.data(), strides.data(), offset, 0};
    const void* data = nullptr;
    uint64_t bytes = 0;
    void* handle = nullptr;
    myc_error e{};
    Got got;
    got.kind = myc_exec_read(exec_, &view, &data, &bytes, &handle, &got.call, &got.step, &e);
    got.text = e.text;
    if (got.kind != MYC_OK) return got;
    got.tensor = at::empty(sizes, as);
    if (got.tensor.nbytes() != bytes) throw std::runtime_error("a read gave " + std::to_string(bytes) + " bytes");
    if (bytes != 0) std::memcpy(got.tensor.mutable_data_ptr(), data, bytes);
    myc_exec_read_done(exec_, handle);
    return got;
  }
  Got ReadF32(uint64_t id, const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (size_t i = sizes.size(); i-- > 0; stride *= std::max<int64_t>(sizes[i], 1)) strides[i] = stride;
    return Read(id, MYC_F32, c10::ScalarType::Float, sizes, strides);
  }

  void Poison(const Words& ids, const std::string& text) {
    myc_error e{MYC_E_RUNTIME, {}};
    text.copy(e.text, sizeof e.text - 1);
    myc_exec_poison(exec_, ids.data(), ids.size(), 0, 0, &e);
  }
  void Free(const Words& ids) { myc_exec_free(exec_, ids.data(), ids.size()); }
  void Leave(int32_t cores) { myc_exec_leave(exec_, cores); }
  std::pair<uint64_t, uint64_t> Usage() const {
    uint64_t n = 0, bytes = 0;
    myc_exec_usage(exec_, &n, &bytes);
    return {n, bytes};
  }

 private:
  static Words Flat(const Pairs& pairs) {
    Words w;
    for (const auto& [buffer, id] : pairs) w.insert(w.end(), {buffer, id});
    return w;
  }

  myc_exec* exec_ = nullptr;
  std::vector<myc_prog*> programs_;
  int32_t failed_ = 0;
  Words times_;
  myc_fused fused_{};
};

inline uint64_t Bits(double v) { return std::bit_cast<uint64_t>(v); }

}  // namespace mycelya::exec::test

#endif  // MYCELYA_EXEC_TEST_SESSION_H_
