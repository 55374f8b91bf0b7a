// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Kernel steps of a run: whether they fit, tile programs on a CPU, and launches of machine code on CUDA.
#ifndef MYCELYA_EXEC_RUN_KERNELS_H_
#define MYCELYA_EXEC_RUN_KERNELS_H_

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "exec/backend/Device.h"
#include "exec/run/Buffers.h"
#include "exec/run/Launches.h"

namespace mycelya::exec {

class KernelRunner {
 public:
  explicit KernelRunner(RunBuffers& buffers)
      : buffers_(buffers), executor_(buffers.executor()), program_(buffers.program()), work_(buffers.work()) {}

  // Whether all kernels among steps [begin, end) of a fused group can run: their operands exist, and sizes, strides and
  // numbers are what the kernels need.
  bool Fit(uint32_t begin, uint32_t end);
  // Whether the buffers that exist begin at addresses that the launches can use. Call Fit first.
  bool Aligned(c10::ArrayRef<Launch> launches) const;

  // Allocates what the kernels among these steps make, before any of them runs: a kernel that lacked memory would leave
  // some storages written and others not. Allocates nothing if it throws.
  void Allocate(uint32_t begin, uint32_t end);

  // Runs the instances of a kernel step as tile programs.
  void Run(const Step& step);
  // Runs a kernel step as machine code; the launches are those of this step.
  void LaunchCode(uint32_t step, c10::ArrayRef<Launch> launches);

 private:
  bool StepFits(const Step& step);
  // The points of the instance in the workspace.
  double PointsOf(const Kernel& kernel) const;
  // Of the group that Fit was called for last: buffers that its steps allocate.
  void NoteAllocation(uint32_t buffer);
  bool IsAllocatedByGroup(uint32_t buffer) const;

  // Instances are appended to the workspace. Call SetExtents when all are there.
  void ClearInstances();
  void AppendOperand(char* data, const Geometry& geometry);
  void SetExtents(const Kernel& kernel);
  void AppendSizes(const Kernel& kernel, const KernelAt& at);
  void AppendNumbers(const Kernel& kernel, const KernelAt& at);
  KernelNumber NumberOf(const KernelValue& value) const;
  void CheckOperands(const Kernel& kernel, const KernelAt& at);

  uint32_t BufferOf(const Launch& launch, uint32_t index, size_t operand) const;
  uint64_t AddressOf(uint32_t buffer) const;
  void AppendArguments(const Launch& launch, uint32_t index, const c10::Storage& scratch);
  c10::Storage UploadTable(c10::ArrayRef<Launch> launches, uint64_t words) const;
  void LaunchEntry(uint32_t step, const CodeLaunch& launch) const;

  RunBuffers& buffers_;
  Executor& executor_;
  const Program& program_;
  Workspace& work_;
  // Of the kernels that Fit has seen: whether one is narrow, and the most points of one.
  bool narrow_ = false;
  double most_points_ = 0;
  std::vector<uint64_t> arguments_;  // of the launches of one kernel step: structs and chunks
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_KERNELS_H_
