// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Every place where bytes cross between the CPU and a device.
#ifndef MYCELYA_DEVICE_OPERATORS_TRANSFER_H_
#define MYCELYA_DEVICE_OPERATORS_TRANSFER_H_

#include <ATen/core/Tensor.h>

#include <memory>

#include "abi/mycelya.h"

namespace mycelya {

// A device tensor with the elements of a CPU tensor, contiguous. The CPU tensor may be changed as soon as this returns;
// non-blocking, if it is pinned and lies on this host, only after a wait for the device.
at::Tensor to_device(const at::Tensor& cpu, c10::DeviceIndex device, bool non_blocking = false);

// Cuts the trace, then reads the tensor's elements into a new contiguous CPU tensor. Waits.
at::Tensor to_cpu(const at::Tensor& tensor);

// A read that has begun: of the values as they are now, which nobody waits for yet.
class Download {
 public:
  // Into a new contiguous CPU tensor, or into `out`, which has the tensor's sizes and dtype and is contiguous.
  explicit Download(const at::Tensor& tensor, at::Tensor out = {});
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;
  ~Download();  // the memory is not written any more after it

  // Whether wait() would return at once.
  bool done();
  // The CPU tensor, filled. Throws the error of the op that computes it; called once.
  at::Tensor wait();
  // Waits if it fills the storage of a CPU tensor, and throws as wait() does.
  void wait_if_into(const at::Tensor& cpu);

 private:
  at::Tensor out_;
  uint64_t ticket_ = 0;  // 0: over
  std::unique_ptr<myc_error> failed_;
};

// aten::_copy_from: dst takes src's elements, converted and broadcast; either may be on the CPU.
at::Tensor copy_from(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// Sends what is recorded; waits for all that was sent.
void flush(c10::DeviceIndex device);
void synchronize(c10::DeviceIndex device);
// Whether a synchronize() would find nothing to wait for. Sends what is recorded, and doesn't wait.
bool query(c10::DeviceIndex device);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_OPERATORS_TRANSFER_H_
