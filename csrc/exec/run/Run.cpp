// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/run/Run.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DynamicCast.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/program/Lists.h"
#include "exec/run/Launches.h"

namespace mycelya::exec {
namespace {

// What planned launches take the beginning of a buffer to be a multiple of, in bytes: their widest access.
constexpr uint64_t kAlignment = 16;

class Runner {
 public:
  Runner(Executor& executor, Program& program, const Call& call, myc_step_error* errors, int32_t cap, myc_fused* fused)
      : executor_(executor),
        p_(program),
        work_(program.work),
        call_(call),
        errors_(errors),
        cap_(cap),
        fused_(*fused),
        launches_(call.launches, call.n_launches) {}

  ~Runner() {
    for (Buffer& b : work_.buffers) b = {};
    for (at::Tensor& t : work_.tensors) t.reset();
    work_.stack.clear();
  }

  int32_t operator()() {
    try {
      CheckCall();
    } catch (...) {
      RefuseCall();
      return failed_;
    }
    BindInputs();
    for (uint32_t i = 0; i < p_.steps.size(); ++i) {
      const Step& step = p_.steps[i];
      if (step.kind == StepKind::kFused) {
        i = ExecuteFused(i);
        continue;
      }
      if (PoisonPtr poison = FindPoison(step)) {
        Spoil(step, poison);
        continue;
      }
      try {
        Execute(step);
      } catch (...) {
        Fail(i, step);
      }
    }
    BindOutputs();
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
                        " of ", p_.nbuffers, "; a buffer is handed out once.");
      seen[buffer] = true;
    }
  }

  void RefuseCall() {
    const PoisonPtr poison = Report(kNoStep, CurrentFailure());
    for (uint64_t i = 0; i < call_.n_outputs; ++i) {
      if (call_.outputs[2 * i + 1] != 0) executor_.BindPoison(call_.outputs[2 * i + 1], poison);
    }
    std::vector<bool> spoiled(p_.nbuffers);
    for (const Step& s : p_.steps) {
      for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) spoiled[p_.buffers[i]] = true;
    }
    for (uint64_t i = 0; i < call_.n_inputs; ++i) {
      const uint64_t buffer = call_.inputs[2 * i], id = call_.inputs[2 * i + 1];
      if (buffer < p_.nbuffers && spoiled[buffer] && executor_.Find(id) != nullptr) executor_.BindPoison(id, poison);
    }
  }

  void BindInputs() {
    for (uint64_t i = 0; i < call_.n_inputs; ++i) {
      Buffer& b = work_.buffers[call_.inputs[2 * i]];
      b.input = call_.inputs[2 * i + 1];
      Held* held = executor_.Find(b.input);
      if (held == nullptr) continue;  // the first step that needs it fails
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
      Buffer& b = work_.buffers[buffer];
      if (!b.storage && !b.poison) {
        try {
          StorageOf(buffer);
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
    if (failed_ < cap_) {
      errors_[failed_].step = step;
      Fill(&errors_[failed_].error, failure);
    }
    ++failed_;
    return std::make_shared<const Poison>(Poison{call_.id, step, std::move(failure)});
  }

  PoisonPtr FindPoison(const Step& s) const {
    for (uint32_t i = s.reads.begin; i < s.reads.end; ++i) {
      const Buffer& b = work_.buffers[p_.buffers[i]];
      if (b.poison) return b.poison;
    }
    return nullptr;
  }

  void Spoil(const Step& s, const PoisonPtr& poison) {
    for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) SetPoison(p_.buffers[i], poison);
  }

  void SetPoison(uint32_t buffer, const PoisonPtr& poison) {
    DropTensors(buffer);
    Buffer& b = work_.buffers[buffer];
    b.storage = c10::Storage();
    b.poison = poison;
    // The storage was written in place, so it is lost even if no output names it.
    if (b.input != 0 && executor_.Find(b.input) != nullptr) executor_.BindPoison(b.input, poison);
  }

  void Fail(uint32_t number, const Step& s) {
    work_.stack.clear();
    const PoisonPtr poison = Report(number, CurrentFailure());
    Spoil(s, poison);
    // An input that doesn't exist is reported once.
    for (uint32_t i = s.reads.begin; i < s.reads.end; ++i) {
      Buffer& b = work_.buffers[p_.buffers[i]];
      if (!b.storage && !b.poison && b.input != 0) b.poison = poison;
    }
  }

  // ---- Buffers and tensors ----

  const c10::Storage& StorageOf(uint32_t buffer) const {
    const Buffer& b = work_.buffers[buffer];
    if (!b.storage) {
      TORCH_CHECK(b.input == 0, "Storage ", b.input, " does not exist on the worker.");
      TORCH_CHECK(false, "BUG: buffer ", buffer, " is used before a step has made it.");
    }
    return b.storage;
  }

  void DropTensors(uint32_t buffer) {
    const Range r = p_.tensors_of[buffer];
    for (uint32_t i = r.begin; i < r.end; ++i) work_.tensors[p_.by_buffer[i]].reset();
  }

  void SetStorage(uint32_t buffer, c10::Storage storage) {
    DropTensors(buffer);
    work_.buffers[buffer] = {std::move(storage), nullptr, 0};
  }

  const Geometry& GeometryOf(const TensorRow& row) {
    const Dim* dim = p_.dims.data() + row.dims;
    geometry_.dtype = row.dtype;
    geometry_.sizes.resize(row.rank);
    for (int64_t& size : geometry_.sizes) size = (dim++)->At(call_.params);
    if (row.contiguous) {
      geometry_.SetContiguous();
    } else {
      geometry_.strides.resize(row.rank);
      for (int64_t& stride : geometry_.strides) stride = (dim++)->At(call_.params);
    }
    geometry_.offset = row.offset.At(call_.params);
    return geometry_;
  }

  const at::Tensor& TensorOf(uint32_t index) {
    at::Tensor& t = work_.tensors[index];
    if (!t.defined()) {
      const TensorRow& row = p_.tensors[index];
      t = MakeTensor(StorageOf(row.buffer), GeometryOf(row));
    }
    return t;
  }

  uint64_t BytesAt(const Dim& dim) const {
    const int64_t bytes = dim.At(call_.params);
    TORCH_CHECK_VALUE(bytes >= 0, "BUG: a buffer can't have ", bytes, " bytes.");
    return static_cast<uint64_t>(bytes);
  }

  // ---- Steps ----

  void Execute(const Step& s) {
    switch (s.kind) {
      case StepKind::kCall:
        return ExecuteCall(s);
      case StepKind::kDefaultDtype:
        return c10::set_default_dtype(c10::scalarTypeToTypeMeta(ToScalarType(s.a)));
      case StepKind::kSeed:
        return executor_.Seed(call_.params[s.a], call_.params[s.b]);
      case StepKind::kCopy:
        return ExecuteCopy(s);
      case StepKind::kAlloc:
        return SetStorage(s.a, executor_.Allocate(BytesAt(s.bytes)));
      case StepKind::kClone: {
        const c10::Storage& old = StorageOf(s.b);
        c10::Storage copy = executor_.Allocate(old.nbytes());
        BytesOf(copy).copy_(BytesOf(old));
        return SetStorage(s.a, std::move(copy));
      }
      case StepKind::kFree:
        return SetStorage(s.a, c10::Storage());
      case StepKind::kResize:
        return ExecuteResize(s);
      case StepKind::kKernel:
        return ExecuteKernel(s);
      case StepKind::kFused:
        break;
    }
    TORCH_CHECK(false, "BUG: no such step.");
  }

  // ---- Kernels ----

  // Runs the kernels of a fused if they can run here, else leaves it to the steps that are there in their place; these
  // also say what is wrong with an operand or a call, and what poison spreads to. Returns the last step that is done
  // with.
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
    if (FindPoison(fused) || !KernelsFit(first, plain) || (code && !Aligned())) return plain - 1;
    size_t at = 0;  // in group_
    for (uint32_t i = first; i < plain; ++i) {
      const Step& s = p_.steps[i];
      try {
        if (code && s.kind == StepKind::kKernel) {
          const size_t begin = at;
          while (at < group_.size() && group_[at].step == i) ++at;
          LaunchKernel(i, c10::ArrayRef<Launch>(group_).slice(begin, at - begin));
        } else {
          Execute(s);
        }
      } catch (...) {
        if (s.kind == StepKind::kCall) return plain - 1;
        Fail(i, fused);
        return end - 1;
      }
    }
    ++fused_.groups;
    for (uint32_t i = first; i < end; ++i) {
      if (p_.steps[i].kind == StepKind::kKernel) ++fused_.kernels;
      if (i >= plain && p_.steps[i].kind == StepKind::kCall) ++fused_.calls;
    }
    return end - 1;
  }

  bool KernelsFit(uint32_t begin, uint32_t end) {
    made_.clear();
    try {
      for (uint32_t i = begin; i < end; ++i) {
        const Step& s = p_.steps[i];
        if (s.kind == StepKind::kAlloc) made_.push_back(s.a);
        for (uint32_t j = s.spoils.begin; s.kind == StepKind::kCall && j < s.spoils.end; ++j) {
          made_.push_back(p_.buffers[j]);
        }
        if (s.kind == StepKind::kKernel && !KernelFits(s)) return false;
      }
    } catch (...) {  // an operand that isn't there, or not as large
      return false;
    }
    return true;
  }

  bool KernelFits(const Step& s) {
    const Kernel& kernel = *p_.kernels[s.a];
    std::vector<Geometry> geometries(kernel.operands.size());
    std::vector<KernelOperandAt> operands(kernel.operands.size());
    for (uint32_t i = s.args.begin; i < s.args.end; ++i) {
      const KernelAt& at = p_.kernel_ats[i];
      for (size_t j = 0; j < operands.size(); ++j) {
        const KernelUse& use = p_.kernel_uses[at.uses + j];
        const TensorRow& row = p_.tensors[use.tensor];
        if (use.made) {
          made_.push_back(row.buffer);
        } else if (std::find(made_.begin(), made_.end(), row.buffer) == made_.end()) {
          TensorOf(use.tensor);
        }
        geometries[j] = GeometryOf(row);
        operands[j] = {nullptr, geometries[j].sizes.data(), geometries[j].strides.data()};
      }
      SizesOf(kernel, at);
      work_.numbers.clear();
      if (!kernel.held.empty()) NumbersOf(kernel, at);
      const char* why = nullptr;
      if (!Fits(kernel, {work_.sizes.data(), operands.data(), work_.numbers.data()}, &why)) return false;
    }
    return true;
  }

  // Puts the sizes of an instance at the end of the workspace's, which are empty but for those of instances before it.
  void SizesOf(const Kernel& kernel, const KernelAt& at, bool append = false) {
    if (!append) work_.sizes.clear();
    size_t n = 0;
    for (const uint32_t rank : kernel.frames) n += rank;
    for (size_t i = 0; i < n; ++i) work_.sizes.push_back(p_.dims[at.sizes + i].At(call_.params));
  }

  void ExecuteKernel(const Step& s) {
    const Kernel& kernel = *p_.kernels[s.a];
    work_.sizes.clear();
    work_.operands.clear();
    work_.numbers.clear();
    work_.instances.clear();
    for (uint32_t i = s.args.begin; i < s.args.end; ++i) {
      const KernelAt& at = p_.kernel_ats[i];
      SizesOf(kernel, at, /*append=*/true);
      for (size_t j = 0; j < kernel.operands.size(); ++j) {
        const KernelUse& use = p_.kernel_uses[at.uses + j];
        if (use.made) {
          const TensorRow& row = p_.tensors[use.tensor];
          SetStorage(row.buffer, executor_.Allocate(GeometryOf(row).Bytes()));
        }
        const at::Tensor& t = TensorOf(use.tensor);
        work_.operands.push_back({static_cast<char*>(t.mutable_data_ptr()), t.sizes().data(), t.strides().data()});
      }
      NumbersOf(kernel, at);
    }
    // The vectors don't move any more.
    const int64_t* sizes = work_.sizes.data();
    const KernelOperandAt* operands = work_.operands.data();
    const KernelNumber* numbers = work_.numbers.data();
    const uint32_t n = s.args.end - s.args.begin;
    const size_t nsizes = n == 0 ? 0 : work_.sizes.size() / n;
    for (uint32_t i = 0; i < n; ++i) {
      work_.instances.push_back({sizes, operands, numbers});
      sizes += nsizes;
      operands += kernel.operands.size();
      numbers += kernel.numbers;
    }
    RunKernel(kernel, work_.instances);
  }

  // Where the buffer of an instance's operand begins.
  uint64_t AddressOf(const Launch& launch, uint32_t at, size_t operand) const {
    const KernelAt& instance = p_.kernel_ats[p_.steps[launch.step].args.begin + launch.InstanceOf(at)];
    const TensorRow& row = p_.tensors[p_.kernel_uses[instance.uses + operand].tensor];
    return reinterpret_cast<uint64_t>(work_.buffers[row.buffer].storage.mutable_data());
  }

  // Whether buffers that are there begin where launches have them begin.
  bool Aligned() const {
    for (const Launch& l : group_) {
      for (uint32_t i = 0; i < l.nstructs; ++i) {
        for (const uint64_t operand : l.operands) {
          const KernelAt& at = p_.kernel_ats[p_.steps[l.step].args.begin + l.InstanceOf(i)];
          const uint32_t buffer = p_.tensors[p_.kernel_uses[at.uses + operand].tensor].buffer;
          const bool made = std::find(made_.begin(), made_.end(), buffer) != made_.end();
          if (!made && AddressOf(l, i, operand) % kAlignment != 0) return false;
        }
      }
    }
    return true;
  }

  // Starts the machine code of a kernel step.
  void LaunchKernel(uint32_t number, c10::ArrayRef<Launch> launches) {
    const Step& s = p_.steps[number];
    const Kernel& kernel = *p_.kernels[s.a];
    for (uint32_t i = s.args.begin; i < s.args.end; ++i) {
      for (size_t j = 0; j < kernel.operands.size(); ++j) {
        const KernelUse& use = p_.kernel_uses[p_.kernel_ats[i].uses + j];
        if (use.made) {
          const TensorRow& row = p_.tensors[use.tensor];
          SetStorage(row.buffer, executor_.Allocate(GeometryOf(row).Bytes()));
        }
        TensorOf(use.tensor);  // which sees to it that it lies in its buffer
      }
    }
    uint64_t scratch = 0, table = 0;
    for (const Launch& l : launches) {
      scratch = std::max(scratch, l.scratch);
      if (l.table) table += uint64_t{l.nstructs} * l.words + l.chunks.size();
    }
    // Memory goes back to the device's allocator at the end of this; who gets it next, comes after these launches.
    c10::Storage memory, host;
    if (scratch != 0) memory = executor_.Allocate(scratch);
    arguments_.clear();
    for (const Launch& l : launches) {
      for (uint32_t i = 0; i < l.nstructs; ++i) Relocate(l, i, memory);
      if (l.table) arguments_.insert(arguments_.end(), l.chunks.begin(), l.chunks.end());
    }
    c10::Storage there;
    if (table != 0) {
      host = executor_.AllocateHost(table * sizeof(uint64_t));
      there = executor_.Allocate(host.nbytes());
      auto* to = static_cast<uint64_t*>(host.mutable_data());
      const uint64_t* from = arguments_.data();
      for (const Launch& l : launches) {
        const uint64_t n = uint64_t{l.nstructs} * l.words + l.chunks.size();
        if (l.table) to = std::copy_n(from, n, to);
        from += n;
      }
      // Host memory of the device stays as it is until the copy has been made.
      BytesOf(there).copy_(BytesOf(host), /*non_blocking=*/true);
    }
    const uint64_t* words = arguments_.data();
    auto* in_table = static_cast<uint64_t*>(there ? there.mutable_data() : nullptr);
    for (const Launch& l : launches) {
      const uint64_t structs = uint64_t{l.nstructs} * l.words;
      const uint64_t* chunks = in_table + (l.table ? structs : 0);
      const void* arguments[] = {&in_table, &chunks};
      if (!l.table) arguments[0] = words;
      Start(number, {reinterpret_cast<void*>(l.entry), l.grid, l.block_x, l.block_y, arguments, l.table ? 2 : 1});
      words += structs + l.chunks.size();
      if (l.table) in_table += structs + l.chunks.size();
    }
  }

  // Adds addresses to the words of a struct, at the end of arguments_.
  void Relocate(const Launch& l, uint32_t at, const c10::Storage& scratch) {
    const size_t begin = arguments_.size();
    const uint64_t* words = l.WordsOf(at);
    arguments_.insert(arguments_.end(), words, words + l.words);
    for (size_t i = 0; i < l.operands.size(); ++i) {
      const uint64_t address = AddressOf(l, at, l.operands[i]);
      TORCH_CHECK(address % kAlignment == 0, "Memory for operand ", l.operands[i], " of a kernel begins at ", address,
                  ", which is not a multiple of ", kAlignment, ".");
      arguments_[begin + i] += address;
    }
    if (l.scratch != 0) arguments_[begin + l.scratch_word] += reinterpret_cast<uint64_t>(scratch.mutable_data());
  }

  void Start(uint32_t number, const CodeLaunch& launch) const {
    try {
      executor_.device().Launch(launch);
    } catch (const c10::Error& e) {
      TORCH_CHECK(false, "Kernel ", p_.steps[number].a, " of step ", number,
                  " could not be started: ", e.what_without_backtrace());
    }
  }

  void NumbersOf(const Kernel& kernel, const KernelAt& at) {
    for (uint32_t i = 0; i < kernel.numbers; ++i) work_.numbers.push_back(NumberOf(p_.kernel_values[at.numbers + i]));
  }

  KernelNumber NumberOf(const KernelValue& v) const {
    const uint64_t* param = call_.params + v.param;
    switch (v.from) {
      case KernelValue::From::kLiteral:
        return v.literal;
      case KernelValue::From::kReal:
        return {false, std::bit_cast<double>(*param), 0};
      case KernelValue::From::kWhole:
        return {true, 0, static_cast<int64_t>(*param)};
      case KernelValue::From::kElement:
        break;
    }
    // Any byte but 0 and 1 in a bool is undefined behaviour.
    if (v.dtype == c10::ScalarType::Bool) return {true, 0, *param != 0 ? 1 : 0};
    if (c10::isFloatingType(v.dtype)) return {false, c10::fetch_and_cast<double>(v.dtype, param), 0};
    return {true, 0, c10::fetch_and_cast<int64_t>(v.dtype, param)};
  }

  void ExecuteCopy(const Step& s) {
    const TensorRow& row = p_.tensors[s.a];
    const Buffer& b = work_.buffers[row.buffer];
    if (!b.storage && b.input == 0) SetStorage(row.buffer, executor_.Allocate(GeometryOf(row).Bytes()));
    TensorOf(s.a).copy_(TensorOf(s.b));
  }

  // The storage keeps its identity: its id, and other buffers bound to it, see the new size.
  void ExecuteResize(const Step& s) {
    c10::Storage storage = StorageOf(s.a);
    c10::Storage fresh = executor_.Allocate(BytesAt(s.bytes));
    Geometry prefix;
    prefix.dtype = c10::ScalarType::Byte;
    prefix.sizes = {static_cast<int64_t>(std::min(storage.nbytes(), fresh.nbytes()))};
    prefix.SetContiguous();
    MakeTensor(fresh, prefix).copy_(MakeTensor(storage, prefix));
    for (uint32_t b = 0; b < p_.nbuffers; ++b) {
      if (work_.buffers[b].storage && work_.buffers[b].storage.is_alias_of(storage)) DropTensors(b);
    }
    const size_t bytes = fresh.nbytes();
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(fresh.set_data_ptr(at::DataPtr()));
    storage.set_nbytes(bytes);
  }

  void ExecuteCall(const Step& s) {
    torch::jit::Stack& stack = work_.stack;
    stack.clear();
    for (uint32_t i = s.args.begin; i < s.args.end; ++i) stack.push_back(Value(p_.args[i]));
    s.op->callBoxed(stack);
    for (uint32_t i = s.written.begin; i < s.written.end; ++i) {
      CheckKept(s, p_.written_tensors[i]);
      SettleConjugate(p_.written_tensors[i]);
    }
    s.dynamic ? TakeDynamicResults(s) : TakeResults(s);
    stack.clear();
  }

  c10::IValue Value(const Arg& a) {
    const uint64_t* param = call_.params + a.index;
    switch (a.kind) {
      case ArgKind::kConstant:
        return a.constant;
      case ArgKind::kTensor: {
        // ATen takes two operands in one TensorImpl to overlap, even where they have no elements.
        const at::Tensor& t = TensorOf(a.index);
        return t.numel() == 0 ? t.alias() : t;
      }
      case ArgKind::kInt:
        return static_cast<int64_t>(*param);
      case ArgKind::kIntAsReal:
        return static_cast<double>(static_cast<int64_t>(*param));
      case ArgKind::kReal:
        return std::bit_cast<double>(*param);
      case ArgKind::kBool:
        return *param != 0;
      case ArgKind::kComplex:
        return c10::complex<double>(std::bit_cast<double>(param[0]), std::bit_cast<double>(param[1]));
      case ArgKind::kNumber: {
        const at::Tensor& t = a.constant.toTensor();
        // Any byte but 0 and 1 in a bool is undefined behaviour in the kernels.
        const uint64_t boolean = *param != 0;
        const void* from = t.scalar_type() == c10::ScalarType::Bool ? &boolean : param;
        std::memcpy(t.mutable_data_ptr(), from, t.itemsize());
        return t;
      }
      case ArgKind::kGenerator:
        return executor_.GeneratorOf(*param);
      case ArgKind::kList:
        return MakeList(a.list, a.count, [&](uint32_t i) { return Value(p_.items[a.index + i]); });
    }
    TORCH_CHECK(false, "BUG: no such argument.");
  }

  // An operator may resize what it writes; the client has told nobody, so its views would be wrong from here on.
  void CheckKept(const Step& s, uint32_t index) {
    const TensorRow& row = p_.tensors[index];
    const at::Tensor& t = TensorOf(index);
    const Geometry& g = GeometryOf(row);
    // Strides of dims of size 1, and of a tensor without elements, address nothing: kernels do with them what they
    // like.
    const bool same = t.sizes() == g.sizes && (t.numel() == 0 || g.SameLayout(t.strides()));
    TORCH_CHECK(same && t.scalar_type() == g.dtype && (t.storage_offset() == g.offset || t.numel() == 0) &&
                    t.storage().is_alias_of(work_.buffers[row.buffer].storage),
                "BUG: ", s.name, " turned an operand that it writes from ", g.Text(), " into ",
                TypeText(t.scalar_type(), t.sizes()), " with strides ", ListText(t.strides()), " and offset ",
                t.storage_offset(), ".");
  }

  // A solver may make what it writes a conjugate view; the client's has the elements.
  void SettleConjugate(uint32_t index) {
    if (C10_LIKELY(!TensorOf(index).is_conj())) return;
    at::Tensor t = TensorOf(index);
    t._set_conj(false);
    t.conj_physical_();
  }

  void TakeResults(const Step& s) {
    TORCH_CHECK(work_.stack.size() == s.returns.size(), "BUG: ", s.name, " left ", work_.stack.size(), " of ",
                s.returns.size(), " returns.");
    uint32_t returned = 0;
    for (size_t i = 0; i < s.returns.size(); ++i) {
      if (s.returns[i] == ReturnKind::kTensor) ++returned;
      if (s.returns[i] == ReturnKind::kTensorList) returned += static_cast<uint32_t>(work_.stack[i].toListRef().size());
    }
    const uint32_t inferred = s.results.end - s.results.begin;
    TORCH_CHECK(returned == inferred, "BUG: ", s.name, " returned ", returned, " tensors, the client inferred ",
                inferred, ".");
    uint32_t next = s.results.begin;
    for (size_t i = 0; i < s.returns.size(); ++i) {
      c10::IValue value = std::move(work_.stack[i]);
      if (s.returns[i] == ReturnKind::kTensor) {
        TakeResult(s, p_.results[next++], value.isNone() ? at::Tensor() : std::move(value).toTensor());
      } else if (s.returns[i] == ReturnKind::kTensorList) {
        c10::List<at::Tensor> list = std::move(value).toTensorList();
        for (size_t j = 0; j < list.size(); ++j) TakeResult(s, p_.results[next++], list.extract(j));
      }
    }
  }

  // entry: 0 or tensor + 1
  void TakeResult(const Step& s, uint32_t entry, at::Tensor t) {
    if (entry == 0) return;
    const TensorRow& row = p_.tensors[entry - 1];
    const Geometry& g = GeometryOf(row);
    const uint64_t bytes = g.Bytes();
    TORCH_CHECK(t.defined(), "BUG: ", s.name, " returned an undefined tensor, the client inferred ",
                TypeText(g.dtype, g.sizes), ".");
    TORCH_CHECK(t.layout() == c10::Layout::Strided && t.scalar_type() == g.dtype && t.sizes() == g.sizes,
                "BUG: ", s.name, " returned ", TypeText(t.scalar_type(), t.sizes()),
                t.layout() == c10::Layout::Strided ? "" : " in a layout that isn't strided", ", the client inferred ",
                TypeText(g.dtype, g.sizes), ".");
    if (!OwnsBytes(t, bytes) || g.offset != 0 || !g.SameLayout(t.strides())) {
      c10::Storage storage = executor_.Allocate(bytes);
      at::Tensor declared = MakeTensor(storage, g);
      declared.copy_(t);
      SetStorage(row.buffer, std::move(storage));
      work_.tensors[entry - 1] = std::move(declared);
      return;
    }
    const bool exact = t.strides() == g.strides && !t.unsafeGetTensorImpl()->is_wrapped_number();
    SetStorage(row.buffer, t.storage());
    if (exact) work_.tensors[entry - 1] = std::move(t);
  }

  // The client learns the shapes from the first result.
  void TakeDynamicResults(const Step& s) {
    const uint32_t n = s.results.end - s.results.begin - 1;
    at::Tensor words = at::zeros({static_cast<int64_t>(n) * MYC_SHAPE_WORDS}, at::kLong);
    auto* word = words.mutable_data_ptr<int64_t>();
    uint32_t next = s.results.begin + 1;
    for (size_t i = 0; i < s.returns.size(); ++i) {
      if (s.returns[i] != ReturnKind::kTensor) continue;
      at::Tensor t = work_.stack[i].isNone() ? at::Tensor() : std::move(work_.stack[i]).toTensor();
      const uint32_t entry = p_.results[next++];
      if (t.defined()) {
        TakeDynamicResult(s, entry, std::move(t), word);
      } else if (entry != 0) {
        SetStorage(p_.tensors[entry - 1].buffer, executor_.Allocate(0));
      }
      word += MYC_SHAPE_WORDS;
    }
    TakeResult(s, p_.results[s.results.begin], words.to(executor_.device().device()));
  }

  void TakeDynamicResult(const Step& s, uint32_t entry, at::Tensor t, int64_t* word) {
    TORCH_CHECK(t.layout() == c10::Layout::Strided && t.dim() <= MYC_SHAPE_RANK, s.name,
                " returned a tensor that can't be sent: ", TypeText(t.scalar_type(), t.sizes()), ".");
    if (t.is_conj() || t.is_neg() || t._is_zerotensor()) t = t.clone();
    Geometry g;
    g.dtype = t.scalar_type();
    g.sizes.assign(t.sizes().begin(), t.sizes().end());
    bool repeats = false;
    for (int64_t i = 0; i < t.dim() && t.numel() > 0; ++i) repeats |= t.size(i) > 1 && t.stride(i) == 0;
    if (!repeats) {
      g.strides.assign(t.strides().begin(), t.strides().end());
    } else {
      g.SetContiguous();
    }
    word[0] = ToCode(g.dtype);
    word[1] = t.dim();
    std::copy(g.sizes.begin(), g.sizes.end(), word + 2);
    std::copy(g.strides.begin(), g.strides.end(), word + 2 + MYC_SHAPE_RANK);
    if (entry == 0) return;
    const uint32_t buffer = p_.tensors[entry - 1].buffer;
    if (OwnsBytes(t, g.Bytes()) && g.SameLayout(t.strides())) return SetStorage(buffer, t.storage());
    c10::Storage storage = executor_.Allocate(g.Bytes());
    MakeTensor(storage, g).copy_(t);
    SetStorage(buffer, std::move(storage));
  }

  // Whether nothing else can see the tensor's memory, and the memory is all the tensor's.
  bool OwnsBytes(const at::Tensor& t, uint64_t bytes) const {
    return t.device() == executor_.device().device() && t.use_count() == 1 && t.storage().use_count() == 1 &&
           t.storage().nbytes() == bytes && t.storage_offset() == 0 && !t.is_conj() && !t.is_neg() &&
           !t._is_zerotensor();
  }

  Executor& executor_;
  Program& p_;
  Workspace& work_;
  const Call& call_;
  myc_step_error* errors_;
  int32_t cap_;
  int32_t failed_ = 0;
  myc_fused& fused_;
  Launches launches_;
  std::vector<Launch> group_;        // of the fused at hand
  std::vector<uint64_t> arguments_;  // of the launches of a kernel: structs and chunks
  Geometry geometry_;
  std::vector<uint32_t> made_;  // by the kernels at hand
};

}  // namespace

int32_t Run(Executor& executor, Program& program, const Call& call, myc_step_error* errors, int32_t cap,
            myc_fused* fused) {
  const Executor::Running running(executor);
  return Runner(executor, program, call, errors, cap, fused)();
}

}  // namespace mycelya::exec
