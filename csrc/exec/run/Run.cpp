// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The step loop: inputs to buffers, each step or its poison, buffers to outputs.
#include "exec/run/Run.h"

#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/run/Buffers.h"
#include "exec/run/Kernels.h"
#include "exec/run/Launches.h"
#include "exec/run/Operator.h"

namespace mycelya::exec {
namespace {

class Runner {
 public:
  Runner(Executor& executor, Program& program, const Call& call, myc_step_error* errors, int32_t capacity,
         myc_fused* fused)
      : executor_(executor),
        p_(program),
        call_(call),
        errors_(errors),
        capacity_(capacity),
        fused_(*fused),
        launches_(call.launches, call.n_launches),
        buffers_(executor, program, call.params),
        operators_(buffers_),
        kernels_(buffers_) {}

  int32_t operator()() {
    try {
      CheckCall();
    } catch (...) {
      RefuseCall();
      return failed_;
    }
    BindInputs();
    for (uint32_t i = 0; i < p_.steps.size(); ++i) {
      if (p_.steps[i].kind == StepKind::kFused) {
        i = ExecuteFused(i);
      } else {
        ExecuteAlone(i);
      }
    }
    if (cause_) {
      BindAfterFailure();
    } else {
      BindOutputs();
    }
    try {
      launches_.End();
    } catch (...) {
      Report(kNoStep, CurrentFailure());
    }
    return failed_;
  }

 private:
  // ---- The call as a whole ----

  void CheckCall() const {
    TORCH_CHECK_VALUE(call_.n_params == p_.nparams, "BUG: the program has ", p_.nparams, " parameters, the call ",
                      call_.n_params, ".");
    std::vector<bool> seen(p_.nbuffers);
    for (uint64_t i = 0; i < call_.n_inputs; ++i) {
      const uint64_t buffer = call_.inputs[2 * i], id = call_.inputs[2 * i + 1];
      TORCH_CHECK_VALUE(buffer < p_.nbuffers && !seen[buffer] && id != 0, "BUG: input ", i,
                        " of the call binds buffer ", buffer, " of ", p_.nbuffers, " to storage ", id,
                        "; a buffer is bound once.");
      seen[buffer] = true;
    }
    std::fill(seen.begin(), seen.end(), false);
    for (uint64_t i = 0; i < call_.n_outputs; ++i) {
      const uint64_t buffer = call_.outputs[2 * i];
      TORCH_CHECK_VALUE(buffer < p_.nbuffers && !seen[buffer], "BUG: output ", i, " of the call is buffer ", buffer,
                        " of ", p_.nbuffers, "; a buffer is an output once.");
      seen[buffer] = true;
    }
  }

  // Poisons the new storages of a call that cannot run.
  void RefuseCall() {
    const PoisonPtr poison = Report(kNoStep, CurrentFailure());
    for (uint64_t i = 0; i < call_.n_outputs; ++i) {
      if (call_.outputs[2 * i + 1] != 0) executor_.PoisonNew(call_.outputs[2 * i + 1], poison);
    }
  }

  void BindInputs() {
    for (uint64_t i = 0; i < call_.n_inputs; ++i) {
      Buffer& b = buffers_.At(static_cast<uint32_t>(call_.inputs[2 * i]));
      b.input = call_.inputs[2 * i + 1];
      Held* held = executor_.Find(b.input);
      if (held == nullptr) continue;  // the first step that reads it fails
      if (held->poison) {
        b.poison = held->poison;
      } else {
        b.storage = executor_.Borrow(*held);
      }
    }
  }

  void BindOutputs() {
    for (uint64_t i = 0; i < call_.n_outputs; ++i) {
      const auto buffer = static_cast<uint32_t>(call_.outputs[2 * i]);
      const uint64_t id = call_.outputs[2 * i + 1];
      if (id == 0) continue;
      Buffer& b = buffers_.At(buffer);
      if (!b.storage && !b.poison) {
        try {
          buffers_.StorageOf(buffer);
        } catch (...) {
          b.poison = Report(kNoStep, CurrentFailure());
        }
      }
      if (b.poison) {
        executor_.BindPoison(id, b.poison);
      } else {
        executor_.Bind(id, b.storage);
      }
    }
  }

  // ---- Failures ----

  PoisonPtr Report(uint32_t step, Failure failure) {
    auto poison = std::make_shared<const Poison>(Poison{call_.id, step, std::move(failure)});
    Describe(step, *poison);
    return poison;
  }

  void Describe(uint32_t step, const Poison& cause) {
    if (failed_ < capacity_) {
      errors_[failed_].step = step;
      errors_[failed_].cause_call = cause.call;
      errors_[failed_].cause_step = cause.step;
      Fill(&errors_[failed_].error, cause.failure);
    }
    ++failed_;
  }

  PoisonPtr FindPoison(const Step& s) const {
    for (uint32_t i = s.reads.begin; i < s.reads.end; ++i) {
      const Buffer& b = buffers_.At(p_.buffers[i]);
      if (b.poison) return b.poison;
    }
    return nullptr;
  }

  // The buffers that a step should have made or written have no content in this run.
  void Spoil(const Step& s, const PoisonPtr& poison) {
    for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) {
      buffers_.DropTensors(p_.buffers[i]);
      Buffer& b = buffers_.At(p_.buffers[i]);
      b.storage = c10::Storage();
      b.poison = poison;
    }
  }

  // A step has failed. The first cause is the failure whose op comes first.
  void Stop(uint32_t number, const Step& s, const PoisonPtr& poison) {
    if (!cause_) stopped_at_ = number;
    if (!cause_ || s.record < failed_record_) {
      cause_ = poison;
      failed_record_ = s.record;
    }
    Spoil(s, poison);
  }

  void Fail(uint32_t number, const Step& s) {
    p_.work.stack.clear();
    const PoisonPtr poison = Report(number, CurrentFailure());
    Stop(number, s, poison);
    // Poison inputs that do not exist, so that each of them is reported once.
    for (uint32_t i = s.reads.begin; i < s.reads.end; ++i) {
      Buffer& b = buffers_.At(p_.buffers[i]);
      if (!b.storage && !b.poison && b.input != 0) b.poison = poison;
    }
  }

  // A step needs a poisoned buffer. Poison of an earlier call is a failure of this step.
  void Inherit(uint32_t number, const Step& s, const PoisonPtr& poison) {
    if (poison->call == call_.id) return Spoil(s, poison);
    Describe(number, *poison);
    Stop(number, s, poison);
  }

  // After a failure, only the steps of earlier ops run, and those without an effect on tensors.
  bool Runs(const Step& s) const {
    return !cause_ || s.settles || (s.record != 0 && s.record < failed_record_);
  }

  // Marks the buffers that the run may have overwritten.
  std::vector<bool> Overwritten() const {
    std::vector<bool> out(p_.nbuffers);
    const auto mark = [&](const Step& s) {
      for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) out[p_.buffers[i]] = true;
    };
    for (uint32_t i = 0; i < stopped_at_; ++i) {
      const Step& s = p_.steps[i];
      // Kernels and the plain steps in their place write the same storages.
      if (s.kind == StepKind::kFused && stopped_at_ > i + s.a) i += s.a;
      mark(p_.steps[i]);
    }
    if (p_.steps[stopped_at_].kind == StepKind::kKernel) mark(p_.steps[stopped_at_]);
    for (const uint32_t i : late_) mark(p_.steps[i]);
    return out;
  }

  // Says whether the step that has failed would have written a buffer.
  bool Fails(int64_t buffer) const {
    const Range r = p_.steps[stopped_at_].spoils;
    return std::find(p_.buffers.begin() + r.begin, p_.buffers.begin() + r.end, buffer) != p_.buffers.begin() + r.end;
  }

  // The input buffer of a storage, or -1.
  int64_t InputOf(uint64_t id) const {
    for (uint64_t i = 0; i < call_.n_inputs; ++i) {
      if (call_.inputs[2 * i + 1] == id) return static_cast<int64_t>(call_.inputs[2 * i]);
    }
    return -1;
  }

  // Leaves each output's storage as the ops before the failed one have left it.
  void BindAfterFailure() {
    const std::vector<bool> overwritten = Overwritten();
    for (uint64_t i = 0; i < call_.n_outputs; ++i) {
      const auto buffer = static_cast<uint32_t>(call_.outputs[2 * i]);
      const uint64_t id = call_.outputs[2 * i + 1];
      if (id == 0) continue;
      const Buffer& b = buffers_.At(buffer);
      const Written& written = p_.written[buffer];
      const Held* held = executor_.Find(id);
      if (held != nullptr && held->poison) continue;
      if (written.last < failed_record_) {  // all writes come before the failure
        if (b.storage) {
          executor_.Bind(id, b.storage);
        } else {
          executor_.BindPoison(id, b.poison ? b.poison : cause_);
        }
        continue;
      }
      const int64_t input = held == nullptr ? -1 : InputOf(id);
      const bool spoilt = input >= 0 && (overwritten[input] || (failed_record_ != written.first && Fails(input)));
      if (held == nullptr || failed_record_ > written.first || spoilt) executor_.BindPoison(id, cause_);
    }
  }

  // ---- Steps ----

  void ExecuteAlone(uint32_t number) {
    const Step& s = p_.steps[number];
    if (!Runs(s)) return Spoil(s, cause_);
    if (const PoisonPtr poison = FindPoison(s)) return Inherit(number, s, poison);
    try {
      Execute(s);
      if (cause_) late_.push_back(number);
    } catch (...) {
      Fail(number, s);
    }
  }

  void Execute(const Step& s) {
    switch (s.kind) {
      case StepKind::kCall:
        return operators_.Run(s);
      case StepKind::kDefaultDtype:
        return c10::set_default_dtype(c10::scalarTypeToTypeMeta(ToScalarType(s.a)));
      case StepKind::kSeed:
        return executor_.Seed(call_.params[s.a], call_.params[s.b]);
      case StepKind::kCopy:
        return Copy(s);
      case StepKind::kAlloc:
        return buffers_.SetStorage(s.a, executor_.Allocate(BytesAt(s.bytes)));
      case StepKind::kClone:
        return Clone(s);
      case StepKind::kFree:
        return buffers_.SetStorage(s.a, c10::Storage());
      case StepKind::kResize:
        return Resize(s);
      case StepKind::kKernel:
        return kernels_.Run(s);
      case StepKind::kFused:
        break;
    }
    TORCH_CHECK(false, "BUG: ", static_cast<int>(s.kind), " is not a kind of step that runs by itself.");
  }

  uint64_t BytesAt(const Dim& dim) const {
    const int64_t bytes = dim.At(call_.params);
    TORCH_CHECK_VALUE(bytes >= 0, "BUG: a buffer can't have ", bytes, " bytes.");
    return static_cast<uint64_t>(bytes);
  }

  void Copy(const Step& s) {
    const TensorRow& row = p_.tensors[s.a];
    const Buffer& b = buffers_.At(row.buffer);
    if (!b.storage && b.input == 0) buffers_.AllocateFor(row);
    buffers_.TensorOf(s.a).copy_(buffers_.TensorOf(s.b));
  }

  void Clone(const Step& s) {
    const c10::Storage& old = buffers_.StorageOf(s.b);
    c10::Storage copy = executor_.Allocate(old.nbytes());
    BytesOf(copy).copy_(BytesOf(old));
    buffers_.SetStorage(s.a, std::move(copy));
  }

  // Keeps the identity of the storage: its id, and other buffers that share the storage, see the new size.
  void Resize(const Step& s) {
    c10::Storage storage = buffers_.StorageOf(s.a);
    c10::Storage fresh = executor_.Allocate(BytesAt(s.bytes));
    Geometry prefix;
    prefix.dtype = c10::ScalarType::Byte;
    prefix.sizes = {static_cast<int64_t>(std::min(storage.nbytes(), fresh.nbytes()))};
    prefix.SetContiguous();
    MakeTensor(fresh, prefix).copy_(MakeTensor(storage, prefix));
    for (uint32_t b = 0; b < p_.nbuffers; ++b) {
      if (buffers_.At(b).storage && buffers_.At(b).storage.is_alias_of(storage)) buffers_.DropTensors(b);
    }
    const size_t bytes = fresh.nbytes();
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(fresh.set_data_ptr(at::DataPtr()));
    storage.set_nbytes(bytes);
  }

  // ---- Fused groups ----

  // Runs the kernels of a fused group if they can run. Otherwise the group's plain steps run, which also report what is
  // wrong with an operand and spread poison. Returns the last step that needs no further work.
  uint32_t ExecuteFused(uint32_t number) {
    const Step& fused = p_.steps[number];
    const uint32_t first = number + 1, plain = first + fused.a, end = plain + fused.b;
    const bool code = executor_.device().TakesCode();
    try {
      if (code && !launches_.Take(p_, number, &group_)) return plain - 1;
    } catch (...) {
      Fail(number, fused);
      return end - 1;
    }
    if (cause_ || FindPoison(fused) || !kernels_.Fit(first, plain)) return plain - 1;
    if (code && !kernels_.Aligned(group_)) return plain - 1;
    size_t at = 0;  // in group_
    for (uint32_t i = first; i < plain; ++i) {
      const Step& s = p_.steps[i];
      try {
        if (code && s.kind == StepKind::kKernel) {
          const size_t begin = at;
          while (at < group_.size() && group_[at].step == i) ++at;
          kernels_.LaunchCode(i, c10::ArrayRef<Launch>(group_).slice(begin, at - begin));
        } else {
          Execute(s);
        }
      } catch (...) {
        if (s.kind != StepKind::kKernel && NoneRan(first, i)) return plain - 1;
        Fail(i, fused);
        return end - 1;
      }
    }
    CountFused(first, plain, end);
    return end - 1;
  }

  // Frees what the first steps of a group have allocated, unless a kernel is among them.
  bool NoneRan(uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; ++i) {
      if (p_.steps[i].kind == StepKind::kKernel) return false;
    }
    for (uint32_t i = first; i < end; ++i) {
      if (p_.steps[i].kind == StepKind::kAlloc) buffers_.SetStorage(p_.steps[i].a, c10::Storage());
    }
    return true;
  }

  void CountFused(uint32_t first, uint32_t plain, uint32_t end) {
    ++fused_.groups;
    for (uint32_t i = first; i < end; ++i) {
      if (p_.steps[i].kind == StepKind::kKernel) ++fused_.kernels;
      if (i >= plain && p_.steps[i].kind == StepKind::kCall) ++fused_.calls;
    }
  }

  Executor& executor_;
  Program& p_;
  const Call& call_;
  myc_step_error* errors_;
  int32_t capacity_;
  int32_t failed_ = 0;
  myc_fused& fused_;
  // After a failure.
  PoisonPtr cause_;              // the first one in the order of the ops
  uint32_t failed_record_ = 0;   // of its op
  uint32_t stopped_at_ = 0;      // the step that failed first
  std::vector<uint32_t> late_;   // the steps that have run since then
  Launches launches_;
  std::vector<Launch> group_;  // launches of the current fused group
  RunBuffers buffers_;
  OperatorRunner operators_;
  KernelRunner kernels_;
};

}  // namespace

int32_t Run(Executor& executor, Program& program, const Call& call, myc_step_error* errors, int32_t capacity,
            myc_fused* fused) {
  const Executor::Running running(executor);
  return Runner(executor, program, call, errors, capacity, fused)();
}

}  // namespace mycelya::exec
