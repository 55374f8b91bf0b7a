// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/run/Kernels.h"

#include <c10/core/DynamicCast.h>

#include <algorithm>
#include <bit>

namespace mycelya::exec {
namespace {

// In bytes. The widest memory access of the machine code needs buffers that begin at a multiple of this.
constexpr uint64_t kAlignment = 16;

// ATen's code for the CPU computes blocks of up to 64 elements with vectors, and what is left one by one. In 16-bit
// floats the two round rsqrt, powers and products with a sum at other places; kernels round as the vectors do. A group
// with fewer points than this runs as operators, so that its results are ATen's. A list of tensors does not, because
// its operators are too slow.
constexpr double kFewPoints = 1024;

// Words of a launch in the table of arguments.
uint64_t TableWords(const Launch& l) { return uint64_t{l.nstructs} * l.words + l.chunks.size(); }

}  // namespace

// ---- Whether kernels fit ----

bool KernelRunner::Fit(uint32_t begin, uint32_t end) {
  ++work_.group;
  narrow_ = false;
  most_points_ = 0;
  try {
    for (uint32_t i = begin; i < end; ++i) {
      const Step& s = program_.steps[i];
      if (s.kind == StepKind::kAlloc) NoteAllocation(s.a);
      for (uint32_t j = s.spoils.begin; s.kind == StepKind::kCall && j < s.spoils.end; ++j) {
        NoteAllocation(program_.buffers[j]);
      }
      if (s.kind == StepKind::kKernel && !StepFits(s)) return false;
    }
  } catch (...) {  // an operand does not exist or its storage is too small
    return false;
  }
  return executor_.device().TakesCode() || !narrow_ || most_points_ >= kFewPoints;
}

bool KernelRunner::StepFits(const Step& s) {
  const Kernel& kernel = *program_.kernels[s.a];
  narrow_ = narrow_ || kernel.narrow;
  for (uint32_t i = s.args.begin; i < s.args.end; ++i) {
    const KernelAt& at = program_.kernel_ats[i];
    ClearInstances();
    for (size_t j = 0; j < kernel.operands.size(); ++j) {
      const KernelUse& use = program_.kernel_uses[at.uses + j];
      const TensorRow& row = program_.tensors[use.tensor];
      if (use.made) NoteAllocation(row.buffer);
      const Geometry& geometry = buffers_.GeometryOf(row);
      if (!IsAllocatedByGroup(row.buffer)) CheckWithin(buffers_.StorageOf(row.buffer), geometry);
      AppendOperand(nullptr, geometry);
    }
    AppendSizes(kernel, at);
    if (!kernel.held.empty()) AppendNumbers(kernel, at);
    SetExtents(kernel);
    most_points_ = std::max(most_points_, s.args.end - s.args.begin > 1 ? kFewPoints : PointsOf(kernel));
    const char* why = nullptr;
    if (!Fits(kernel, {work_.sizes.data(), work_.operands.data(), work_.numbers.data()}, &why)) return false;
  }
  return true;
}

double KernelRunner::PointsOf(const Kernel& kernel) const {
  double points = 1;  // a double: whether the sizes are possible is not known yet
  for (uint32_t d = 0; d < kernel.spaces[0]; ++d) points *= static_cast<double>(work_.sizes[d]);
  return points;
}

void KernelRunner::NoteAllocation(uint32_t buffer) { work_.allocated_by[buffer] = work_.group; }

bool KernelRunner::IsAllocatedByGroup(uint32_t buffer) const { return work_.allocated_by[buffer] == work_.group; }

bool KernelRunner::Aligned(c10::ArrayRef<Launch> launches) const {
  for (const Launch& l : launches) {
    for (uint32_t i = 0; i < l.nstructs; ++i) {
      for (const uint64_t operand : l.operands) {
        const uint32_t buffer = BufferOf(l, i, operand);
        if (!IsAllocatedByGroup(buffer) && AddressOf(buffer) % kAlignment != 0) return false;
      }
    }
  }
  return true;
}

// ---- What an instance is given ----

void KernelRunner::ClearInstances() {
  work_.sizes.clear();
  work_.operands.clear();
  work_.extents.clear();
  work_.numbers.clear();
  work_.instances.clear();
}

void KernelRunner::AppendOperand(char* data, const Geometry& geometry) {
  work_.operands.push_back({data, nullptr, nullptr});
  work_.extents.insert(work_.extents.end(), geometry.sizes.begin(), geometry.sizes.end());
  work_.extents.insert(work_.extents.end(), geometry.strides.begin(), geometry.strides.end());
}

void KernelRunner::SetExtents(const Kernel& kernel) {
  const int64_t* extents = work_.extents.data();
  const size_t n = kernel.operands.size();
  for (size_t i = 0; i < work_.operands.size(); ++i) {
    const size_t rank = kernel.operands[i % n].along.size();
    work_.operands[i].sizes = extents;
    work_.operands[i].strides = extents + rank;
    extents += 2 * rank;
  }
}

void KernelRunner::AppendSizes(const Kernel& kernel, const KernelAt& at) {
  size_t n = 0;
  for (const uint32_t rank : kernel.spaces) n += rank;
  for (size_t i = 0; i < n; ++i) work_.sizes.push_back(program_.dims[at.sizes + i].At(buffers_.params()));
}

void KernelRunner::AppendNumbers(const Kernel& kernel, const KernelAt& at) {
  for (uint32_t i = 0; i < kernel.numbers; ++i) {
    work_.numbers.push_back(NumberOf(program_.kernel_values[at.numbers + i]));
  }
}

KernelNumber KernelRunner::NumberOf(const KernelValue& v) const {
  const uint64_t* param = buffers_.params() + v.param;
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
  // A byte other than 0 and 1 in a bool is undefined behaviour.
  if (v.dtype == c10::ScalarType::Bool) return {true, 0, *param != 0 ? 1 : 0};
  if (c10::isFloatingType(v.dtype)) return {false, c10::fetch_and_cast<double>(v.dtype, param), 0};
  return {true, 0, c10::fetch_and_cast<int64_t>(v.dtype, param)};
}

// ---- Tile programs ----

void KernelRunner::Allocate(uint32_t begin, uint32_t end) {
  std::vector<uint32_t> made;
  try {
    for (uint32_t i = begin; i < end; ++i) {
      const Step& s = program_.steps[i];
      if (s.kind != StepKind::kKernel) continue;
      for (uint32_t j = s.args.begin; j < s.args.end; ++j) {
        const KernelAt& at = program_.kernel_ats[j];
        for (size_t k = 0; k < program_.kernels[s.a]->operands.size(); ++k) {
          const KernelUse& use = program_.kernel_uses[at.uses + k];
          if (!use.made) continue;
          const TensorRow& row = program_.tensors[use.tensor];
          buffers_.AllocateFor(row);
          made.push_back(row.buffer);
        }
      }
    }
  } catch (...) {
    for (const uint32_t buffer : made) buffers_.SetStorage(buffer, c10::Storage());
    throw;
  }
}

void KernelRunner::Run(const Step& s) {
  const Kernel& kernel = *program_.kernels[s.a];
  ClearInstances();
  for (uint32_t i = s.args.begin; i < s.args.end; ++i) {
    const KernelAt& at = program_.kernel_ats[i];
    AppendSizes(kernel, at);
    for (size_t j = 0; j < kernel.operands.size(); ++j) {
      const TensorRow& row = program_.tensors[program_.kernel_uses[at.uses + j].tensor];
      const Geometry& geometry = buffers_.GeometryOf(row);
      AppendOperand(AddressIn(buffers_.StorageOf(row.buffer), geometry), geometry);
    }
    AppendNumbers(kernel, at);
  }
  // The vectors have their final addresses now.
  SetExtents(kernel);
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

// ---- Machine code ----

// The buffer of an operand of the instance that struct `index` of the launch describes.
uint32_t KernelRunner::BufferOf(const Launch& l, uint32_t index, size_t operand) const {
  const KernelAt& at = program_.kernel_ats[program_.steps[l.step].args.begin + l.InstanceOf(index)];
  return program_.tensors[program_.kernel_uses[at.uses + operand].tensor].buffer;
}

uint64_t KernelRunner::AddressOf(uint32_t buffer) const {
  return reinterpret_cast<uint64_t>(buffers_.At(buffer).storage.mutable_data());
}

void KernelRunner::CheckOperands(const Kernel& kernel, const KernelAt& at) {
  for (size_t j = 0; j < kernel.operands.size(); ++j) {
    const TensorRow& row = program_.tensors[program_.kernel_uses[at.uses + j].tensor];
    CheckWithin(buffers_.StorageOf(row.buffer), buffers_.GeometryOf(row));
  }
}

void KernelRunner::LaunchCode(uint32_t number, c10::ArrayRef<Launch> launches) {
  const Step& s = program_.steps[number];
  for (uint32_t i = s.args.begin; i < s.args.end; ++i) {
    CheckOperands(*program_.kernels[s.a], program_.kernel_ats[i]);
  }
  uint64_t scratch_bytes = 0, table_words = 0;
  for (const Launch& l : launches) {
    scratch_bytes = std::max(scratch_bytes, l.scratch);
    if (l.table) table_words += TableWords(l);
  }
  // Scratch and table return to the device's allocator when this function ends. The allocator orders their next use
  // after these launches.
  c10::Storage scratch;
  if (scratch_bytes != 0) scratch = executor_.Allocate(scratch_bytes);
  arguments_.clear();
  for (const Launch& l : launches) {
    for (uint32_t i = 0; i < l.nstructs; ++i) AppendArguments(l, i, scratch);
    if (l.table) arguments_.insert(arguments_.end(), l.chunks.begin(), l.chunks.end());
  }
  c10::Storage table;
  if (table_words != 0) table = UploadTable(launches, table_words);
  const uint64_t* words = arguments_.data();
  auto* in_table = static_cast<uint64_t*>(table ? table.mutable_data() : nullptr);
  for (const Launch& l : launches) {
    const uint64_t structs = uint64_t{l.nstructs} * l.words;
    const uint64_t* chunks = in_table + (l.table ? structs : 0);
    const void* arguments[] = {&in_table, &chunks};
    if (!l.table) arguments[0] = words;
    LaunchEntry(number, {reinterpret_cast<void*>(l.entry), l.grid, l.block_x, l.block_y, arguments, l.table ? 2 : 1});
    words += structs + l.chunks.size();
    if (l.table) in_table += structs + l.chunks.size();
  }
}

// Appends the words of struct `index` to arguments_, and adds the addresses of operands and scratch memory to them.
void KernelRunner::AppendArguments(const Launch& l, uint32_t index, const c10::Storage& scratch) {
  const size_t begin = arguments_.size();
  const uint64_t* words = l.WordsOf(index);
  arguments_.insert(arguments_.end(), words, words + l.words);
  for (size_t i = 0; i < l.operands.size(); ++i) {
    const uint64_t address = AddressOf(BufferOf(l, index, l.operands[i]));
    TORCH_CHECK(address % kAlignment == 0, "Memory for operand ", l.operands[i], " of a kernel begins at ", address,
                ", which is not a multiple of ", kAlignment, ".");
    arguments_[begin + i] += address;
  }
  if (l.scratch != 0) arguments_[begin + l.scratch_word] += reinterpret_cast<uint64_t>(scratch.mutable_data());
}

// Copies the arguments of the launches with a table to the device.
c10::Storage KernelRunner::UploadTable(c10::ArrayRef<Launch> launches, uint64_t words) const {
  const c10::Storage host = executor_.AllocateHost(words * sizeof(uint64_t));
  c10::Storage table = executor_.Allocate(host.nbytes());
  auto* to = static_cast<uint64_t*>(host.mutable_data());
  const uint64_t* from = arguments_.data();
  for (const Launch& l : launches) {
    const uint64_t n = TableWords(l);
    if (l.table) to = std::copy_n(from, n, to);
    from += n;
  }
  // The host allocator does not reuse this memory before the copy is done.
  BytesOf(table).copy_(BytesOf(host), /*non_blocking=*/true);
  return table;
}

void KernelRunner::LaunchEntry(uint32_t number, const CodeLaunch& launch) const {
  try {
    executor_.device().Launch(launch);
  } catch (const c10::Error& e) {
    TORCH_CHECK(false, "Kernel ", program_.steps[number].a, " of step ", number,
                " could not be launched: ", e.what_without_backtrace());
  }
}

}  // namespace mycelya::exec
