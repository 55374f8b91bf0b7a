// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The step loop: inputs to buffers, each step or its poison, buffers to outputs.
#include "exec/run/Run.h"

#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/collective/Group.h"
#include "exec/run/Buffers.h"
#include "exec/run/InOrder.h"
#include "exec/run/Kernels.h"
#include "exec/run/Launches.h"
#include "exec/run/Operator.h"
#include "exec/run/RandomState.h"
#include "exec/run/Trial.h"

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
    executor_.progress.Call(call_.id);
    try {
      BindInputs();
    } catch (...) {  // no memory for a copy of a storage that a read holds
      RefuseCall();
      return failed_;
    }
    executor_.Free(call_.frees, call_.n_frees);
    for (uint32_t i = 0; i < p_.steps.size() && !in_order_; ++i) {
      if (p_.steps[i].kind == StepKind::kFused) {
        i = ExecuteFused(i);
      } else {
        ExecuteAlone(i);
      }
    }
    executor_.progress.Idle();
    fused_.waits = operators_.waits;
    if (cause_) {
      if (p_.joins) executor_.groups().Abort(cause_->failure.text);
      BindAfterFailure();
    } else {
      BindOutputs();
    }
    try {
      launches_.End();
    } catch (...) {
      Report(kNoStep, executor_.TakeFailure());
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
    const PoisonPtr poison = Report(kNoStep, executor_.TakeFailure());
    if (p_.joins) executor_.groups().Abort(poison->failure.text);
    executor_.Free(call_.frees, call_.n_frees);
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
        b.on_host = held->on_host;
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
          b.poison = Report(kNoStep, executor_.TakeFailure());
        }
      }
      if (b.poison) {
        executor_.BindPoison(id, b.poison);
      } else {
        if (b.input != 0 && b.input != id) buffers_.ForgetHostCopy(b);  // two ids have this memory
        executor_.Bind(id, b.storage, b.on_host);
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
    if (failed_ < capacity_) Put(failed_, step, cause);
    ++failed_;
  }

  // Makes the failure that was described last the first of errors_.
  void PutFirst(uint32_t step, const Poison& cause) {
    if (capacity_ == 0) return;
    if (failed_ <= capacity_) {
      std::swap(errors_[0], errors_[failed_ - 1]);
    } else {
      Put(0, step, cause);
    }
  }

  void Put(int32_t at, uint32_t step, const Poison& cause) {
    errors_[at].step = step;
    errors_[at].cause_call = cause.call;
    errors_[at].cause_step = cause.step;
    Fill(&errors_[at].error, cause.failure);
  }

  PoisonPtr FindPoison(const Step& s) const {
    for (uint32_t i = s.reads.begin; i < s.reads.end; ++i) {
      const Buffer& b = buffers_.At(p_.buffers[i]);
      if (b.poison) return b.poison;
    }
    return nullptr;
  }

  // What a step should have made or written is not there, or is not what the step would have left.
  void Spoil(const Step& s, const PoisonPtr& poison) {
    for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) buffers_.At(p_.buffers[i]).poison = poison;
  }

  // A step has failed. The first cause is the failure whose op comes first.
  void Stop(uint32_t number, const Step& s, const PoisonPtr& poison) {
    if (!cause_) stopped_at_ = in_order_ ? in_order_->begin() : number;
    if (!cause_ || s.record < failed_record_) {
      cause_ = poison;
      failed_record_ = s.record;
      PutFirst(number, *poison);
    }
    Spoil(s, poison);
  }

  void Fail(uint32_t number, const Step& s, Failure failure) {
    p_.work.stack.clear();
    const PoisonPtr poison = Report(number, std::move(failure));
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

  // After a failure, only the steps of earlier ops run, and those that set flags. Nothing is freed: a storage may need
  // the content.
  bool Runs(const Step& s) const {
    if (!cause_ || s.sets_flag) return true;
    return s.kind != StepKind::kFree && s.record != 0 && s.record < failed_record_;
  }

  // By buffer: the record of the last step that has written it; 0: none has, kUnknown: it is not known.
  std::vector<uint32_t> Writers() const {
    std::vector<uint32_t> out(p_.nbuffers);
    const auto mark = [&](const Step& s, uint32_t record) {
      for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) out[p_.buffers[i]] = record == 0 ? kUnknown : record;
    };
    for (uint32_t i = 0; i < stopped_at_; ++i) {
      const Step& s = p_.steps[i];
      // Kernels leave the same buffers as the plain steps in their place, which have the records.
      if (s.kind == StepKind::kFused && stopped_at_ > i + s.a) {
        i += s.a;
      } else {
        mark(s, s.kind == StepKind::kFused ? kUnknown : s.record);
      }
    }
    if (!in_order_ && p_.steps[stopped_at_].kind == StepKind::kKernel) mark(p_.steps[stopped_at_], kUnknown);
    for (const uint32_t i : late_) mark(p_.steps[i], p_.steps[i].record);
    return out;
  }

  // Leaves the storage of each output as the ops before the failed one have left it.
  void BindAfterFailure() {
    const std::vector<uint32_t> writers = Writers();
    std::vector<bool> bound(p_.nbuffers);
    for (uint64_t i = 0; i < call_.n_outputs; ++i) {
      const auto buffer = static_cast<uint32_t>(call_.outputs[2 * i]);
      const uint64_t id = call_.outputs[2 * i + 1];
      if (id != 0) BindVersion(id, p_.versions_of[buffer], writers, bound);
    }
  }

  void BindVersion(uint64_t id, Range versions, const std::vector<uint32_t>& writers, std::vector<bool>& bound) {
    const Held* held = executor_.Find(id);
    if (held != nullptr && held->poison) return;
    uint32_t record = 0;
    for (uint32_t i = versions.begin; i < versions.end && p_.versions[i].record < failed_record_; ++i) {
      record = p_.versions[i].record;
    }
    if (record == 0) {  // no op before the failed one writes it
      if (held == nullptr || IsOverwritten(id, writers)) executor_.BindPoison(id, cause_);
      return;
    }
    for (uint32_t i = versions.begin; i < versions.end; ++i) {
      const Version& v = p_.versions[i];
      if (v.record != record || v.buffer == kNoBuffer || writers[v.buffer] != v.writer) continue;
      const Buffer& b = buffers_.At(v.buffer);
      if (!b.storage) continue;
      const bool shared = bound[v.buffer] || (b.input != 0 && b.input != id);
      bound[v.buffer] = true;
      try {
        return executor_.Bind(id, shared ? buffers_.CloneOf(b.storage) : b.storage);
      } catch (...) {  // no memory for the copy
        break;
      }
    }
    executor_.BindPoison(id, cause_);
  }

  // Says whether the run has overwritten the content that a storage had before.
  bool IsOverwritten(uint64_t id, const std::vector<uint32_t>& writers) const {
    for (uint64_t i = 0; i < call_.n_inputs; ++i) {
      if (call_.inputs[2 * i + 1] == id) return writers[call_.inputs[2 * i]] != 0;
    }
    return false;
  }

  // ---- Steps ----

  void ExecuteAlone(uint32_t number) {
    const Step& s = p_.steps[number];
    if (!Runs(s)) return Spoil(s, cause_);
    if (const PoisonPtr poison = FindPoison(s)) return Inherit(number, s, poison);
    if (C10_UNLIKELY(s.draws)) random_.Save(buffers_, number, number + 1);
    executor_.progress.Step(number);
    Failure failure;
    try {
      Execute(s);
      if (cause_) late_.push_back(number);
      return;
    } catch (...) {
      failure = executor_.TakeFailure();
    }
    if (failure.kind != MYC_E_MEMORY || cause_ || !ExecuteInOrder(number)) Fail(number, s, std::move(failure));
  }

  // Whether a step may run again after it has failed for lack of memory.
  bool Repeats(const Step& s) const { return s.spoils.begin != s.spoils.end && buffers_.WritesOnlyNew(s); }

  // Memory has run out in a step, or in the group that begins there. Runs the rest of the program in the order of its
  // ops. False: the step may have written something, so that nothing can be done.
  bool ExecuteInOrder(uint32_t at) {
    p_.work.stack.clear();
    const Step& first = p_.steps[at];
    if (first.kind != StepKind::kFused && !Repeats(first)) return false;
    if (first.draws) random_.Restore();
    in_order_.emplace(buffers_, call_, at, fused_ran_);
    std::unordered_map<uint32_t, Failure> shortages;  // of steps that wait for memory
    for (;;) {
      std::optional<uint32_t> next = in_order_->Next();
      const bool stuck = !next;
      if (stuck) next = in_order_->Stuck();
      if (!next) return true;
      const Step& s = p_.steps[*next];
      if (!Runs(s)) {
        Spoil(s, cause_);
      } else if (const PoisonPtr poison = FindPoison(s)) {
        Inherit(*next, s, poison);
      } else if (stuck) {
        Fail(*next, s, std::move(shortages[*next]));
      } else {
        if (s.draws) random_.Save(buffers_, *next, *next + 1);
        executor_.progress.Step(*next);
        try {
          Execute(s);
          late_.push_back(*next);
        } catch (...) {
          Failure failure = executor_.TakeFailure();
          p_.work.stack.clear();
          if (failure.kind == MYC_E_MEMORY && !cause_ && Repeats(s)) {
            if (s.draws) random_.Restore();
            shortages[*next] = std::move(failure);
            in_order_->Short(*next);
            continue;
          }
          Fail(*next, s, std::move(failure));
        }
      }
      in_order_->Done(*next);
    }
  }

  void Execute(const Step& s) {
    if (apart_ && !s.known) buffers_.ForgetHostCopies(s);
    switch (s.kind) {
      case StepKind::kCall:
        return s.known ? operators_.RunKnown(s) : operators_.Run(s);
      case StepKind::kDefaultDtype:
        return c10::set_default_dtype(c10::scalarTypeToTypeMeta(ToScalarType(s.a)));
      case StepKind::kSeed:
        return executor_.Seed(call_.params[s.a], call_.params[s.b]);
      case StepKind::kCopy:
        return buffers_.Copy(s);
      case StepKind::kAlloc:
        return buffers_.SetStorage(s.a, executor_.Allocate(buffers_.BytesAt(s.bytes)));
      case StepKind::kClone:
        return buffers_.Clone(s);
      case StepKind::kFree:
        return buffers_.SetStorage(s.a, c10::Storage());
      case StepKind::kResize:
        return buffers_.Resize(s);
      case StepKind::kKernel:
        return kernels_.Run(s);
      case StepKind::kFused:
        break;
    }
    TORCH_CHECK(false, "BUG: ", static_cast<int>(s.kind), " is not a kind of step that runs by itself.");
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
      Fail(number, fused, executor_.TakeFailure());
      return end - 1;
    }
    if (!AllRun(plain, end) || FindPoison(fused) || !kernels_.Fit(first, plain)) return plain - 1;
    if (code && !kernels_.Aligned(group_)) return plain - 1;
    if (code) {
      Trial& trial = p_.work.trials[TrialOf(number, group_)];
      if (trial.Refuses()) return plain - 1;
      if (trial.is == Trial::Is::kDue) return Try(number, trial);
    }
    if (C10_UNLIKELY(fused.draws)) random_.Save(buffers_, first, plain);
    Failure failure;
    const uint32_t failed = ExecuteKernels(number, code, &failure);
    if (failed == end) {
      CountFused(first, plain, end);
      for (uint32_t i = plain; apart_ && i < end; ++i) {
        const Step& s = p_.steps[i];
        if (!s.known || !operators_.RunOnHost(s)) buffers_.ForgetHostCopies(s);
      }
      fused_ran_.push_back(number);
      for (uint32_t i = plain; cause_ && i < end; ++i) late_.push_back(i);
      return end - 1;
    }
    if (apart_) buffers_.ForgetHostCopies(fused);
    if (!NoneRan(first, failed)) {
      Fail(failed, fused, std::move(failure));
      return end - 1;
    }
    if (fused.draws) random_.Restore();
    if (failure.kind == MYC_E_MEMORY && !cause_) ExecuteInOrder(number);
    return plain - 1;
  }

  // Runs the kernels of a group. Returns the end of the group, or the step that has failed; the group's own number if
  // there is no memory for what the kernels make.
  uint32_t ExecuteKernels(uint32_t number, bool code, Failure* failure) {
    const Step& fused = p_.steps[number];
    const uint32_t first = number + 1, plain = first + fused.a;
    uint32_t i = number;
    try {
      kernels_.Allocate(first, plain);
      size_t at = 0;  // in group_
      for (i = first; i < plain; ++i) {
        const Step& s = p_.steps[i];
        if (cause_ && s.kind == StepKind::kFree) continue;  // see Runs
        executor_.progress.Step(i);
        if (!code || s.kind != StepKind::kKernel) {
          Execute(s);
          continue;
        }
        const size_t begin = at;
        while (at < group_.size() && group_[at].step == i) ++at;
        kernels_.LaunchCode(i, c10::ArrayRef<Launch>(group_).slice(begin, at - begin));
      }
      return plain + fused.b;
    } catch (...) {
      *failure = executor_.TakeFailure();
      return i;
    }
  }

  // Whether all these steps run. After a failure a group whose ops all come before it runs as kernels, as it would have
  // done without the failure: kernels may round otherwise than operators.
  bool AllRun(uint32_t begin, uint32_t end) const {
    for (uint32_t i = begin; cause_ && i < end; ++i) {
      const Step& s = p_.steps[i];
      if (!Runs(s) && s.kind != StepKind::kFree) return false;
    }
    return true;
  }

  // Whether the step that has failed is before the first kernel of a group. Then what the group has allocated is freed.
  bool NoneRan(uint32_t first, uint32_t failed) {
    for (uint32_t i = first; i <= failed; ++i) {
      if (p_.steps[i].kind == StepKind::kKernel) return false;
    }
    for (uint32_t i = first; i < failed; ++i) {
      const Range made = p_.steps[i].spoils;
      for (uint32_t j = made.begin; j < made.end; ++j) buffers_.SetStorage(p_.buffers[j], c10::Storage());
    }
    return true;
  }

  // ---- Machine code on trial ----

  // Runs the kernels of a group on copies of what they write, then the group's operators, and compares. The call has
  // the results of the operators. Returns the last step of the group, or the one before its operators if they are to
  // run.
  uint32_t Try(uint32_t number, Trial& trial) {
    const Step& fused = p_.steps[number];
    const uint32_t first = number + 1, plain = first + fused.a, end = plain + fused.b;
    TrialRun run(buffers_, number);
    Failure failure;
    uint32_t failed = number;
    if (fused.draws) random_.Save(buffers_, first, plain);
    try {
      run.Begin();
      failed = ExecuteKernels(number, /*code=*/true, &failure);
    } catch (...) {
      failure = executor_.TakeFailure();
    }
    run.End();
    if (fused.draws) random_.Restore();
    if (failed != end) {
      NoTrial(number, trial, failure);
      return plain - 1;
    }
    for (uint32_t i = plain; i < end && !in_order_; ++i) ExecuteAlone(i);
    if (cause_ || in_order_) return end - 1;
    try {
      const std::string difference = run.Difference();
      if (difference.empty()) {
        trial.is = Trial::Is::kGood;
        ++fused_.tried;
      } else {
        Wrong(number, trial, difference);
      }
    } catch (...) {
      NoTrial(number, trial, executor_.TakeFailure());
    }
    return end - 1;
  }

  void NoTrial(uint32_t number, Trial& trial, const Failure& failure) {
    constexpr uint32_t kPause = 64;  // calls
    if (failure.kind != MYC_E_MEMORY) return Wrong(number, trial, failure.text);
    trial.pause = kPause;
  }

  void Wrong(uint32_t number, Trial& trial, const std::string& text) {
    trial.is = Trial::Is::kWrong;
    ++fused_.tried;
    if (fused_.wrong++ != 0) return;
    fused_.step = number;
    const size_t n = std::min(text.find('\n'), text.size());
    fused_.text[text.copy(fused_.text, std::min(n, sizeof fused_.text - 1))] = 0;
  }

  void CountFused(uint32_t first, uint32_t plain, uint32_t end) {
    ++fused_.groups;
    for (uint32_t i = first; i < end; ++i) {
      if (p_.steps[i].kind == StepKind::kKernel) ++fused_.kernels;
      if (i >= plain && p_.steps[i].kind == StepKind::kCall) ++fused_.calls;
    }
  }

  static constexpr uint32_t kUnknown = UINT32_MAX;

  Executor& executor_;
  const bool apart_ = executor_.device().apart();  // then buffers may have copies on the host
  Program& p_;
  const Call& call_;
  myc_step_error* errors_;
  int32_t capacity_;
  int32_t failed_ = 0;
  myc_fused& fused_;
  // After a failure.
  PoisonPtr cause_;             // the first one in the order of the ops
  uint32_t failed_record_ = 0;  // of its op
  uint32_t stopped_at_ = 0;     // the step that failed first
  std::vector<uint32_t> late_;  // the steps that have run since then; in order: all since the one that began it
  Launches launches_;
  std::vector<Launch> group_;  // launches of the current fused group
  RunBuffers buffers_;
  OperatorRunner operators_;
  KernelRunner kernels_;
  RandomState random_;               // before the last step that draws
  std::vector<uint32_t> fused_ran_;  // the groups that have run as kernels
  std::optional<InOrder> in_order_;  // once memory has run out
};

}  // namespace

void SetFlags(Executor& executor, Program& program, const uint64_t* params, uint64_t n_params) {
  TORCH_CHECK_VALUE(n_params == program.nparams, "BUG: the program has ", program.nparams, " parameters, the call ",
                    n_params, ".");
  const Executor::Running running(executor);
  if (program.joins) executor.groups().Abort("an earlier call of it has failed");
  RunBuffers buffers(executor, program, params);
  OperatorRunner operators(buffers);
  for (const Step& s : program.steps) {
    if (!s.sets_flag) continue;
    if (s.kind == StepKind::kDefaultDtype) {
      c10::set_default_dtype(c10::scalarTypeToTypeMeta(ToScalarType(s.a)));
    } else {
      operators.Run(s);
    }
  }
}

int32_t Run(Executor& executor, Program& program, const Call& call, myc_step_error* errors, int32_t capacity,
            myc_fused* fused) {
  const Executor::Running running(executor);
  return Runner(executor, program, call, errors, capacity, fused)();
}

}  // namespace mycelya::exec
