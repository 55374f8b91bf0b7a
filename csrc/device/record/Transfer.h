// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// All transfers of bytes between the CPU and a device. operators/Transfer.cpp defines them.
#ifndef MYCELYA_DEVICE_RECORD_TRANSFER_H_
#define MYCELYA_DEVICE_RECORD_TRANSFER_H_

#include <ATen/core/Tensor.h>

#include <memory>

#include "abi/mycelya.h"
#include "device/record/Origin.h"
#include "device/tensor/Storage.h"

namespace mycelya {

// A contiguous device tensor with the elements of a CPU tensor. The CPU tensor may be changed after the return, except
// with non_blocking from pinned memory: then only after a wait for the device.
at::Tensor ToDevice(const at::Tensor& cpu, c10::DeviceIndex device, bool non_blocking = false);

// Cuts the trace, then reads the tensor's elements into a new contiguous CPU tensor. Waits.
at::Tensor ToCpu(const at::Tensor& tensor);

// An asynchronous read of the values at the time of construction.
class Download {
 public:
  // Into a new contiguous CPU tensor, or into `out`, which has the tensor's sizes and dtype and is contiguous.
  explicit Download(const at::Tensor& tensor, at::Tensor out = {});
  // Of all bytes of a storage, which no pending record may write. Nobody waits for it yet, so it is no round trip.
  Download(const Storage& s, Origin origin);
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;
  ~Download();  // the memory is not written afterwards

  size_t bytes() const { return out_.nbytes(); }
  // Whether Wait() would return at once.
  bool Done();
  // Waits, and raises nothing.
  bool Succeeds();
  // The filled CPU tensor. Throws the error of the op that computes it.
  at::Tensor Wait();
  // Waits if the read writes the storage of `cpu`, and throws as Wait() does.
  void WaitIfInto(const at::Tensor& cpu);

 private:
  c10::DeviceIndex device_;
  at::Tensor out_;
  uint64_t ticket_ = 0;  // 0: done
  std::unique_ptr<myc_error> failed_;
};

// Whether a tensor's elements in row-major order are the bytes of its storage.
bool CoversStorage(const at::Tensor& t);

// aten::_copy_from: copies src's elements to dst, converted and broadcast. One of them may be on the CPU.
at::Tensor CopyFrom(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// Cuts the trace before storages that no record makes, if that frees much memory. Throws if the machine is stopped.
void CutBeforeUpload(c10::DeviceIndex device, Origin origin);

// flush sends the open trace; synchronize also waits for everything that was sent.
void Flush(c10::DeviceIndex device);
void Synchronize(c10::DeviceIndex device);
// Whether a Synchronize() would have nothing to wait for. Sends the open trace and does not wait.
bool Query(c10::DeviceIndex device);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_TRANSFER_H_
