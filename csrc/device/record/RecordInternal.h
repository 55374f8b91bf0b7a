// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Functions that Record.cpp, which has the path of a call, shares with the files of its parts.
#ifndef MYCELYA_DEVICE_RECORD_RECORDINTERNAL_H_
#define MYCELYA_DEVICE_RECORD_RECORDINTERNAL_H_

#include <c10/util/SmallVector.h>

#include <span>
#include <utility>

#include "device/record/Op.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/tensor/Storage.h"

namespace mycelya {

inline bool Ours(const at::Tensor& t) { return t.defined() && t.device().type() == kDevice; }

// Calls f(argument, element, tensor) with each defined tensor of the arguments; element: of a list. A tensor in a list
// is a reference into the IValue's list.
template <class F>
void EachTensor(const Op& op, at::ArrayRef<c10::IValue> args, F&& f) {
  for (size_t i = 0; i < args.size(); ++i) {
    switch (op.args[i].kind) {
      case Kind::kTensor:
        if (args[i].isTensor() && args[i].toTensor().defined()) f(i, size_t{0}, args[i].toTensor());
        break;
      case Kind::kTensors:
      case Kind::kOptTensors: {
        if (args[i].isNone()) break;
        const auto list = args[i].toListRef();
        for (size_t k = 0; k < list.size(); ++k) {
          if (list[k].isTensor() && list[k].toTensor().defined()) f(i, k, list[k].toTensor());
        }
        break;
      }
      default:
        break;
    }
  }
}

// ---- Record.cpp ----

// Turns autograd's own threads off for this thread. Backward then runs in the thread that calls it: with that thread's
// Python frames, in its order, and without 30 us of hand-over. It does so once per Python thread: a user may turn them
// on again.
void KeepBackwardInThisThreadSlow();
inline void KeepBackwardInThisThread(const Thread& thread = this_thread) {
  if (C10_UNLIKELY(!thread.keeps_backward)) KeepBackwardInThisThreadSlow();
}

// ---- RecordWords.cpp ----

// Writes an argument as words of the trace.
void RecordArgument(Recorder& r, const Argument& a, const c10::IValue& v, bool write);
// The element of a 0-dim CPU tensor.
void NumberArgument(Recorder& r, const at::Tensor& t);
void ScalarArgument(Recorder& r, char number_class, const c10::Scalar& s);

// A result's dtype, sizes and strides from the MYC_SHAPE_WORDS words that a worker has sent (abi/mycelya.h). The words
// are not trusted: what no tensor of a worker can have is an error that names the op.
OutMeta ShapeOfWords(const std::string& op, const int64_t* word);

// ---- RecordShort.cpp ----

// The same as record_short in Record.h for a call on the stack.
bool RecordShort(const Op& op, torch::jit::Stack* stack);

// ---- RecordViews.cpp ----

// Some operators (clone, matrix products) reach us with a conjugate or negative view as it is. The worker has no such
// bits, only elements.
inline bool IsLazyView(const at::Tensor& t) { return Ours(t) && (t.is_conj() || t.is_neg()); }

using WrittenViews = c10::SmallVector<std::pair<size_t, at::Tensor>, 2>;  // their indices, and the views

// Replaces lazy views by resolved copies. written gets the index and the view of each argument that the op writes.
void ResolveViews(const Op& op, std::span<c10::IValue> args, WrittenViews& written);
// The arguments are resolved copies of the lazy views in written: the op writes the copies, which then go to the views.
void RecordThrough(const Op& op, torch::jit::Stack* stack, const WrittenViews& written);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_RECORDINTERNAL_H_
