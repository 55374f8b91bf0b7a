// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// For tests: a builder of kernel words, and instances on tensors.
#ifndef MYCELYA_EXEC_TEST_KERNELWORDS_H_
#define MYCELYA_EXEC_TEST_KERNELWORDS_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/kernel/Kernel.h"

namespace mycelya::exec::test {

using KernelWords = std::vector<uint64_t>;

constexpr uint64_t kF = MYC_K_F32;

class Code {
 public:
  explicit Code(KernelWords spaces, uint64_t reduced = 0) : spaces_(std::move(spaces)), reduced_(reduced) {}

  // along: dims of the index space, -1 for a dim of size 1, kTaken.
  uint64_t Operand(c10::ScalarType dtype, uint64_t access, const std::vector<int>& along, uint64_t space = 0) {
    operands_.insert(operands_.end(), {ToCode(dtype), access, space, along.size()});
    for (const int d : along) operands_.push_back(static_cast<uint64_t>(d == kTaken ? MYC_K_MAX_RANK + 1 : d + 1));
    return noperands_++;
  }
  uint64_t Number() { return nnumbers_++; }
  uint64_t Op(uint64_t op, uint64_t cls, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) {
    instrs_.insert(instrs_.end(), {op | cls << 8, a, b, c});
    return ninstrs_++;
  }
  uint64_t Load(uint64_t operand, uint64_t cls) { return Op(MYC_K_LOAD, cls, operand); }
  void Store(uint64_t operand, uint64_t reg) { Op(MYC_K_STORE, 0, operand, reg); }
  // A tensor of the rank of space 0, broadcast where its size is 1.
  uint64_t Of(const at::Tensor& t, uint64_t access, const std::vector<int64_t>& sizes) {
    std::vector<int> along;
    for (int64_t d = 0; d < t.dim(); ++d) {
      const size_t at = sizes.size() - static_cast<size_t>(t.dim() - d);
      along.push_back(t.size(d) == 1 && sizes[at] != 1 ? -1 : static_cast<int>(at));
    }
    return Operand(t.scalar_type(), access, along);
  }

  KernelWords Done() const {
    KernelWords w = {spaces_.size()};
    w.insert(w.end(), spaces_.begin(), spaces_.end());
    w.push_back(reduced_);
    w.push_back(noperands_);
    w.insert(w.end(), operands_.begin(), operands_.end());
    w.push_back(nnumbers_);
    w.push_back(ninstrs_);
    w.insert(w.end(), instrs_.begin(), instrs_.end());
    return w;
  }
  std::unique_ptr<const Kernel> Parse() const {
    const KernelWords w = Done();
    Reader in(w.data(), w.size());
    auto k = ParseKernel(in);
    in.End();
    return k;
  }

 private:
  KernelWords spaces_;
  uint64_t reduced_;
  uint64_t noperands_ = 0, nnumbers_ = 0, ninstrs_ = 0;
  KernelWords operands_, instrs_;
};

inline uint64_t ClassOf(c10::ScalarType d) {
  if (d == c10::ScalarType::Double) return MYC_K_F64;
  if (d == c10::ScalarType::Bool) return MYC_K_B8;
  return c10::isFloatingType(d) ? MYC_K_F32 : MYC_K_I64;
}

// One instance with the memory that it points to.
struct Instance {
  std::vector<int64_t> sizes;
  std::vector<at::Tensor> tensors;
  std::vector<KernelNumber> numbers;
  std::vector<KernelOperandAt> operands;

  Instance(std::vector<int64_t> s, std::vector<at::Tensor> t, std::vector<KernelNumber> n = {})
      : sizes(std::move(s)), tensors(std::move(t)), numbers(std::move(n)) {
    for (const at::Tensor& x : tensors) {
      operands.push_back({static_cast<char*>(x.data_ptr()), x.sizes().data(), x.strides().data()});
    }
  }
  KernelInstance At() const { return {sizes.data(), operands.data(), numbers.data()}; }
};

inline void RunOn(const Kernel& k, const std::vector<const Instance*>& instances) {
  std::vector<KernelInstance> at;
  for (const Instance* i : instances) {
    at.push_back(i->At());
    const char* why = nullptr;
    if (!Fits(k, at.back(), &why)) throw std::runtime_error(why);
  }
  RunKernel(k, at);
}
inline void RunOn(const Code& code, const Instance& i) { RunOn(*code.Parse(), {&i}); }

}  // namespace mycelya::exec::test

#endif  // MYCELYA_EXEC_TEST_KERNELWORDS_H_
