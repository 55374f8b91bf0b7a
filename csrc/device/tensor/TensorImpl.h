// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The TensorImpl of our results: PyTorch's, in memory that its thread keeps for reuse. It has no state or behaviour of
// its own, because PyTorch copies it into plain TensorImpls.
#ifndef MYCELYA_DEVICE_TENSOR_TENSORIMPL_H_
#define MYCELYA_DEVICE_TENSOR_TENSORIMPL_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "device/tensor/Storage.h"

namespace mycelya {

class TensorImpl final : public c10::TensorImpl {
 public:
  // Has the effect of set_sizes_and_strides after the constructor. Strides must not be negative.
  TensorImpl(c10::Storage&& storage, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides)
      : c10::TensorImpl(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                        c10::scalarTypeToTypeMeta(dtype)) {
    const size_t rank = sizes.size();
    sizes_and_strides_.resize(rank);
    int64_t elements = 1;
    bool contiguous = true;
    for (size_t i = rank; i-- > 0;) {
      contiguous &= sizes[i] == 1 || strides[i] == elements;
      elements *= sizes[i];
      sizes_and_strides_.size_at_unchecked(i) = sizes[i];
      sizes_and_strides_.stride_at_unchecked(i) = strides[i];
    }
    numel_ = elements;
    // A new TensorImpl has the flags of a contiguous tensor that is not channels-last.
    if (C10_UNLIKELY(!contiguous || rank > 3)) refresh_contiguous();
  }

  static void* operator new(size_t bytes, Thread& thread) { return Take(thread.tensors, bytes); }
  static void operator delete(void* p, Thread& thread) { Give(thread.tensors, p); }
  static void operator delete(void* p) { Give(this_thread.tensors, p); }
};

inline at::Tensor NewTensor(c10::Storage&& storage, c10::ScalarType dtype, c10::IntArrayRef sizes,
                            c10::IntArrayRef strides, Thread& thread = this_thread) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::unsafe_steal_from_new(
      new (thread) TensorImpl(std::move(storage), dtype, sizes, strides)));
}

// A tensor with a fresh, undefined storage.
inline at::Tensor NewTensor(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t bytes,
                            c10::DeviceIndex device, Thread& thread) {
  return NewTensor(MakeStorage(bytes, device, thread), dtype, sizes, strides, thread);
}

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_TENSOR_TENSORIMPL_H_
