// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Values that the client knows without the worker: the bytes of small uploads, and what exact operators make of them. A
// read of such a value costs no round trip: PyTorch's CPU kernels compute it in this process when it is read.
#ifndef MYCELYA_DEVICE_RECORD_KNOWN_H_
#define MYCELYA_DEVICE_RECORD_KNOWN_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <optional>
#include <vector>

#include "device/record/Op.h"
#include "device/rules/Rules.h"
#include "device/tensor/Storage.h"

namespace mycelya {

// Contents of storages that are larger are not known.
constexpr size_t kMostKnownBytes = 64 << 10;

// The content of a storage at one time. It never changes: a write gives the storage another content.
class Known final : public c10::intrusive_ptr_target {
 public:
  // An operand of a computation. If `content` is set, the operand is a view of it. If `number` is set, the operand is
  // this CPU tensor without dims. If neither is set, only the operand's shape matters.
  struct Operand {
    size_t argument = 0, element = 0;  // element: of a list
    c10::intrusive_ptr<Known> content;
    at::Tensor number;
    int64_t bytes = 0;  // of the storage
    at::ScalarType dtype;
    c10::SmallVector<int64_t, 5> sizes, strides;
    int64_t offset = 0;
  };
  struct Computation {
    const Op* op;
    std::vector<c10::IValue> args;  // without the operands
    std::vector<Operand> operands;
    int written = -1;  // the argument that the operator writes: its storage is the result; -1: the result is fresh
    OutMeta result;    // if it is fresh
  };

  // bytes: a CPU tensor whose storage is the content.
  Known(at::Tensor bytes, uint64_t generation);
  Known(Computation computation, uint64_t generation);
  ~Known() override;

  // Computes the content, once. Returns false if the CPU cannot compute it; then no later call can either.
  bool Compute();
  // A view of the content, which must have been computed.
  at::Tensor View(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) const;
  // Computations on the longest way to bytes.
  uint32_t depth() const { return depth_.load(std::memory_order_relaxed); }
  uint64_t generation() const { return generation_; }

 private:
  bool Run();

  const uint64_t generation_;
  at::Tensor bytes_;  // undefined: not computed
  std::optional<Computation> computation_;
  std::atomic<uint32_t> depth_{0};
};

// What is done with the values that the client knows.
enum class LocalReads : uint8_t {
  kOff,      // nothing is known
  kOn,       // reads are answered with them
  kChecked,  // the worker is asked, and its answers are compared with them
};
// The environment decides: MYCELYA_LOCAL, and kChecked with MYCELYA_CHECK=2. Tests change it. Returns the old one.
LocalReads SetLocalReads(LocalReads reads);
// Bytes that are kept now.
int64_t KnownBytes();

// Keeps the bytes of a small upload. dense: all of the storage.
void KnowUpload(Storage& s, const at::Tensor& dense);

// What is known about the operands of a call, and then about its result.
class KnownCall {
 public:
  // Whether the result of such a call may be known. Takes no lock; computes operands that many calls have made.
  static bool MayBe(const Op& op, at::ArrayRef<c10::IValue> args);
  // Before the record: takes the operands. The caller holds the recorder's lock until Give has returned.
  void Take(const Op& op, at::ArrayRef<c10::IValue> args, c10::DeviceIndex device);
  // After the record: the storage of the result, or the written one, has a known content if the operands had one.
  void Give(at::ArrayRef<at::Tensor> fresh);

 private:
  std::optional<Known::Computation> computation_;
  uint64_t generation_ = 0;
  Storage* written_ = nullptr;
};

// The results of an operator with data-dependent shapes on operands that are all known; nullopt: they are not.
std::optional<std::vector<at::Tensor>> KnownResults(const Op& op, at::ArrayRef<c10::IValue> args);

// Writes the elements of t, row-major, to `out`, if the client knows them. False: the worker must be asked.
bool Answer(const at::Tensor& t, void* out);
// If reads are checked: the elements that the client knows, before the worker is asked. Else undefined.
at::Tensor Expected(const at::Tensor& t);
// Throws if the worker has sent other elements to `out`. Undefined: nothing is compared.
void CheckAnswer(const at::Tensor& expected, const void* out);

// An operator that had been recorded has failed, so the contents of storages are not what the records say. A worker's
// loss needs no call.
void ForgetKnown(c10::DeviceIndex device);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_KNOWN_H_
