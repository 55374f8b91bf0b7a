// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// One call of a PyTorch operator: arguments to a stack, the boxed call, results to buffers.
#ifndef MYCELYA_EXEC_RUN_OPERATOR_H_
#define MYCELYA_EXEC_RUN_OPERATOR_H_

#include <optional>

#include "exec/run/Buffers.h"

namespace mycelya::exec {

class OperatorRunner {
 public:
  explicit OperatorRunner(RunBuffers& buffers)
      : buffers_(buffers), executor_(buffers.executor()), program_(buffers.program()), work_(buffers.work()) {}

  // Throws what the operator throws, and RuntimeError if its results differ from what the client inferred.
  void Run(const Step& step);
  // Computes a step that is `known` on the host too. False: its operands are not known there, so what it writes is not
  // known there any more. Never throws.
  bool RunOnHost(const Step& step);
  void RunKnown(const Step& step);  // runs it on both

  // Calls whose guard had to read an index from the device.
  uint32_t waits = 0;

 private:
  void Check(const Step& step);
  std::optional<c10::IValue> HostValue(const Arg& arg);
  c10::IValue Value(const Arg& arg);
  c10::IValue TensorValue(uint32_t index);
  static at::Tensor NumberValue(const at::Tensor& element, const uint64_t* param);

  void CheckKept(const Step& step, uint32_t index);
  void ResolveConjugate(uint32_t index);

  void CheckCount(const Step& step) const;
  void TakeResults(const Step& step);
  void TakeResult(const Step& step, uint32_t entry, at::Tensor t);
  void TakeDynamicResults(const Step& step);
  void TakeDynamicResult(const Step& step, uint32_t entry, at::Tensor t, int64_t* words);
  bool OwnsBytes(const at::Tensor& t, uint64_t bytes) const;

  RunBuffers& buffers_;
  Executor& executor_;
  const Program& program_;
  Workspace& work_;
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_OPERATOR_H_
