// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The one boxed function behind every recorded operator.
#ifndef MYCELYA_DEVICE_RECORD_RECORD_H_
#define MYCELYA_DEVICE_RECORD_RECORD_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>
#include <variant>

#include "abi/mycelya.h"
#include "device/rules/Rules.h"

namespace mycelya {

struct Op;
class Storage;

// Infers, records, and puts the results on the stack.
void Record(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// The same for a call that needs no special case; fresh gets its new results. False: nothing is done, and the caller
// must call Record().
bool RecordPlain(const Op& op, at::ArrayRef<c10::IValue> args, c10::SmallVector<at::Tensor, 4>& fresh);

// The arguments of a call that may take the short path; see Shortcut.
struct ShortCall {
  static constexpr size_t kMost = 5;
  struct Operand {
    const at::Tensor* tensor;   // either this
    const c10::Scalar* number;  // or this
  };
  Operand operands[kMost];
  size_t n = 0;

  void Put(const at::Tensor& t) { operands[n++] = {&t, nullptr}; }
  void Put(const c10::Scalar& s) { operands[n++] = {nullptr, &s}; }  // the number may be in place of a tensor
};
// Does all that record_plain does, for a call that is simple enough. result gets the new result of an op that does not
// write. False: nothing is done.
bool RecordShort(const Op& op, const ShortCall& call, at::Tensor& result);

// Raises NotImplementedError naming the op, why, and what to do.
void Refuse(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// A tensor on a device with fresh, undefined storage.
at::Tensor MakeTensor(const OutMeta& meta, c10::DeviceIndex device);
at::Tensor MakeVector(at::ScalarType dtype, int64_t size, c10::DeviceIndex device);

// Changes the size of a storage and keeps the common prefix of its content.
void ResizeBytes(Storage& s, int64_t bytes);

// Copies a conjugate or negative view into memory of its own, as clone does; t itself if it is neither. ATen's sign of
// a complex zero depends on the layouts, so the copy goes straight to the format's layout.
at::Tensor Resolve(const at::Tensor& t, at::MemoryFormat format = at::MemoryFormat::Preserve);

// Records "aten::copy_"(dst, src) between tensors of one device.
void RecordCopy(const at::Tensor& dst, const at::Tensor& src);

// Records one of the worker's own operators (csrc/abi/mycelya.h). name is the full name, as "mycelya::elapsed".
// Results are fresh tensors of make_tensor, or undefined.
struct GeneratorId {
  uint64_t id;
};
struct Written {  // an operand that the operator writes
  at::Tensor tensor;
};
using OwnArgument =
    std::variant<std::monostate, GeneratorId, int64_t, double, std::string_view, at::IntArrayRef, at::Tensor, Written>;
void RecordOwn(c10::DeviceIndex device, const char* name, std::initializer_list<OwnArgument> args,
               at::ArrayRef<at::Tensor> results = {}, uint32_t flags = MYC_R_EFFECT);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_RECORD_H_
