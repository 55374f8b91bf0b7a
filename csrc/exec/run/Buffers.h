// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Buffers of one run and the tensors on them. Every step uses these functions, so they are inline.
#ifndef MYCELYA_EXEC_RUN_BUFFERS_H_
#define MYCELYA_EXEC_RUN_BUFFERS_H_

#include <cstdint>
#include <utility>

#include "exec/memory/Geometry.h"
#include "exec/program/Program.h"
#include "exec/session/Executor.h"

namespace mycelya::exec {

class RunBuffers {
 public:
  RunBuffers(Executor& executor, Program& program, const uint64_t* params)
      : executor_(executor), program_(program), work_(program.work), params_(params) {}
  RunBuffers(const RunBuffers&) = delete;
  RunBuffers& operator=(const RunBuffers&) = delete;
  // The workspace keeps its capacity and drops its contents.
  ~RunBuffers() {
    for (Buffer& b : work_.buffers) b = {};
    for (at::Tensor& t : work_.tensors) t.reset();
    work_.stack.clear();
  }

  Executor& executor() const { return executor_; }
  const Program& program() const { return program_; }
  Workspace& work() { return work_; }
  const uint64_t* params() const { return params_; }
  Buffer& At(uint32_t buffer) { return work_.buffers[buffer]; }
  const Buffer& At(uint32_t buffer) const { return work_.buffers[buffer]; }

  // Throws RuntimeError if the buffer has no content.
  const c10::Storage& StorageOf(uint32_t buffer) const {
    const Buffer& b = work_.buffers[buffer];
    if (!b.storage) {
      TORCH_CHECK(b.input == 0, "Storage ", b.input, " does not exist on the worker.");
      TORCH_CHECK(false, "BUG: buffer ", buffer, " is used before a step has made it.");
    }
    return b.storage;
  }

  // Whether no buffer that a step writes exists before it.
  bool WritesOnlyNew(const Step& s) const {
    for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) {
      const Buffer& b = At(program_.buffers[i]);
      if (b.storage || b.input != 0) return false;
    }
    return true;
  }

  void DropTensors(uint32_t buffer) {
    const Range r = program_.tensors_of[buffer];
    for (uint32_t i = r.begin; i < r.end; ++i) work_.tensors[program_.by_buffer[i]].reset();
  }

  void SetStorage(uint32_t buffer, c10::Storage storage) {
    DropTensors(buffer);
    work_.buffers[buffer] = {std::move(storage), nullptr, 0, {}};
  }

  // The result is valid until the next call of GeometryOf or TensorOf.
  const Geometry& GeometryOf(const TensorRow& row) {
    const Dim* dim = program_.dims.data() + row.dims;
    geometry_.dtype = row.dtype;
    geometry_.sizes.resize(row.rank);
    for (int64_t& size : geometry_.sizes) size = (dim++)->At(params_);
    if (row.contiguous) {
      geometry_.SetContiguous();
    } else {
      geometry_.strides.resize(row.rank);
      for (int64_t& stride : geometry_.strides) stride = (dim++)->At(params_);
    }
    geometry_.offset = row.offset.At(params_);
    return geometry_;
  }

  // The tensor is made on first use and checked against its storage.
  const at::Tensor& TensorOf(uint32_t index) {
    at::Tensor& t = work_.tensors[index];
    if (!t.defined()) {
      const TensorRow& row = program_.tensors[index];
      t = MakeTensor(StorageOf(row.buffer), GeometryOf(row));
    }
    return t;
  }

  // Gives the tensor's buffer an uninitialised storage of the size that the tensor needs.
  void AllocateFor(const TensorRow& row) { SetStorage(row.buffer, executor_.Allocate(GeometryOf(row).Bytes())); }

  // Steps on whole buffers.
  void Copy(const Step& s);
  void Clone(const Step& s);
  void Resize(const Step& s);  // keeps the storage's identity
  uint64_t BytesAt(const Dim& dim) const;
  c10::Storage CloneOf(const c10::Storage& old) const;

  // A step is about to write buffers, so their copies on the host are not theirs any more.
  void ForgetHostCopies(const Step& s);
  void ForgetHostCopy(Buffer& b);

 private:
  Executor& executor_;
  Program& program_;
  Workspace& work_;
  const uint64_t* params_;
  Geometry geometry_;
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_BUFFERS_H_
