// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A decoded program: the words of csrc/abi/mycelya.h with every index checked, operators looked up, and each argument
// converted to the type in its operator's schema. So a run cannot go out of bounds or pass a value of a wrong type.
#ifndef MYCELYA_EXEC_PROGRAM_PROGRAM_H_
#define MYCELYA_EXEC_PROGRAM_PROGRAM_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/Error.h"
#include "exec/Words.h"
#include "exec/backend/Device.h"
#include "exec/guards/Guards.h"
#include "exec/kernel/Kernel.h"
#include "exec/memory/Geometry.h"

namespace mycelya::exec {

// A size, stride, offset or byte count: a constant, or the index of a parameter.
struct Dim {
  bool param = false;
  int64_t value = 0;

  int64_t At(const uint64_t* params) const { return param ? static_cast<int64_t>(params[value]) : value; }
};

struct TensorRow {
  uint32_t buffer = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  uint32_t rank = 0;
  bool contiguous = false;
  uint32_t dims = 0;  // into Program::dims: rank sizes, then rank strides unless contiguous
  Dim offset;         // elements
};

// How a run makes the IValue of an argument.
enum class ArgKind : uint8_t {
  kConstant,      // constant
  kTensor,        // tensors[index]
  kInt,           // params[index] as int64
  kIntAsReal,     // params[index] as int64, converted to double
  kReal,          // params[index] as double bits
  kBool,          // params[index] != 0
  kComplex,       // params[index], params[index + 1] as double bits
  kNumber,        // constant is a 0-dim CPU tensor; its element is overwritten with params[index …]
  kDeviceNumber,  // like kNumber, and the operator gets a tensor with this element on the device
  kGenerator,     // generator params[index] of the session
  kList           // items[index, index + count)
};
// What a schema's list holds. No program carries strings: such a list is the schema's default.
enum class ListOf : uint8_t {
  kTensor = MYC_L_TENSORS,
  kOptionalTensor = MYC_L_OPT_TENSORS,
  kInt = MYC_L_INTS,
  kReal = MYC_L_FLOATS,
  kBool = MYC_L_BOOLS,
  kScalar = MYC_L_SCALARS,
  kString
};

struct Arg {
  ArgKind kind = ArgKind::kConstant;
  ListOf list = ListOf::kTensor;
  uint32_t index = 0;
  uint32_t count = 0;
  c10::IValue constant;
};

enum class ReturnKind : uint8_t { kTensor, kTensorList, kIgnored };

// A range of one of Program's vectors.
struct Range {
  uint32_t begin = 0;
  uint32_t end = 0;
};

enum class StepKind : uint8_t { kCall, kSeed, kDefaultDtype, kCopy, kAlloc, kClone, kFree, kResize, kFused, kKernel };

struct Step {
  StepKind kind = StepKind::kFree;
  // kCall
  std::optional<c10::OperatorHandle> op;
  const Guard* guard = nullptr;  // checks the arguments of the call; null: nothing to check
  std::string name;
  Range args;     // Program::args
  Range results;  // Program::results
  Range written;  // Program::written_tensors, the operands the schema marks as written
  std::vector<ReturnKind> returns;
  bool writes_out = false;  // the written operands are out= arguments
  bool dynamic = false;  // data-dependent shapes: result 0 holds the shapes of the operator's results, which follow it
  bool draws = false;    // it takes random numbers; kFused: one of its steps does
  bool known = false;    // kCall: its result, an index of a later step, is computed on the host too
  bool sets_flag = false;  // it also runs after a failure, and in a call that is skipped
  uint32_t record = 0;     // of the op that the step belongs to, from 1 on; 0: of none
  // All kinds. Poison in a buffer of `reads` fails the step. If the step does not run, the buffers of `spoils` are
  // poisoned.
  Range reads;   // Program::buffers
  Range spoils;  // Program::buffers
  // kFused: `a` fused steps follow, then `b` plain steps that have the same effect. kKernel: kernel; its instances are
  // `args`, a range of Program::kernel_ats. kCopy: dst tensor. kAlloc, kFree, kResize: buffer. kClone: new buffer.
  // kSeed: parameter with the generator. kDefaultDtype: MYC_* dtype.
  uint32_t a = 0;
  uint32_t b = 0;  // kFused; kCopy: src tensor; kClone: old buffer; kSeed: parameter with the seed
  Dim bytes;       // kAlloc, kResize
};

// An operand of a kernel instance. made: the step allocates the tensor's buffer.
struct KernelUse {
  uint32_t tensor = 0;
  bool made = false;
};

// A number argument of a kernel instance: a literal or a parameter.
struct KernelValue {
  enum class From : uint8_t { kLiteral, kReal, kWhole, kElement };
  From from = From::kLiteral;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // kElement
  uint32_t param = 0;
  KernelNumber literal;
};

// One instance of a kernel.
struct KernelAt {
  uint32_t sizes = 0;    // into Program::dims
  uint32_t uses = 0;     // into Program::kernel_uses
  uint32_t numbers = 0;  // into Program::kernel_values
};

struct Buffer {
  c10::Storage storage;
  PoisonPtr poison;
  uint64_t input = 0;    // the id of the storage that the call bound to the buffer; 0 after the buffer is replaced
  c10::Storage on_host;  // as in Held
};

// A version of an output's storage: from one record on, up to that of the next version, the storage has this content.
struct Version {
  uint32_t record = 0;
  uint32_t buffer = 0;  // kNoBuffer: the content is lost
  uint32_t writer = 0;  // the record of the last step that has written the buffer; 0: none has
};
inline constexpr uint32_t kNoBuffer = UINT32_MAX;

// A group's machine code is compared with its operators before it is used. Without memory for both, that waits for
// `pause` more calls.
struct Trial {
  enum class Is : uint8_t { kDue, kGood, kWrong };
  Is is = Is::kDue;
  uint32_t pause = 0;

  // Whether a call runs the operators; counts it.
  bool Refuses() { return is == Is::kWrong || (pause > 0 && pause-- > 0); }
};

// State of one run. It is kept between runs for its capacity.
struct Workspace {
  std::vector<Buffer> buffers;
  std::vector<at::Tensor> tensors;  // made on first use; dropped when their buffer changes
  torch::jit::Stack stack;
  uint64_t group = 0;                  // counts the fused groups that have been looked at
  std::vector<uint64_t> allocated_by;  // by buffer: the last group that allocates it
  // By a group with the entries of its launches: whether machine code gives what the operators give.
  std::unordered_map<uint64_t, Trial> trials;
  // Of the current kernel step.
  std::vector<int64_t> sizes;
  std::vector<KernelOperandAt> operands;
  std::vector<int64_t> extents;  // of the operands: sizes, then strides
  std::vector<KernelNumber> numbers;
  std::vector<KernelInstance> instances;
};

struct Program {
  uint32_t nparams = 0;
  uint32_t nbuffers = 0;
  bool joins = false;  // it has collectives, in which other workers wait for this one
  std::vector<TensorRow> tensors;
  std::vector<Dim> dims;
  std::vector<std::unique_ptr<const Kernel>> kernels;
  std::vector<Step> steps;
  std::vector<KernelAt> kernel_ats;
  std::vector<KernelUse> kernel_uses;
  std::vector<KernelValue> kernel_values;
  std::vector<Arg> args;
  std::vector<Arg> items;
  std::vector<uint32_t> results;  // 0 or tensor + 1
  std::vector<uint32_t> written_tensors;
  std::vector<uint32_t> buffers;
  std::vector<Version> versions;   // by output, and for each by record
  std::vector<Range> versions_of;  // by the output's buffer: versions
  std::vector<Range> tensors_of;   // by buffer: Program::by_buffer
  std::vector<uint32_t> by_buffer;
  Workspace work;
};

// Throws ValueError if the words are not a program, NotImplementedError if this PyTorch lacks an operator.
std::unique_ptr<Program> Parse(const uint64_t* words, uint64_t n, const Device& device);

// Reads an argument and converts it to the type in the schema. Appends the items of lists to program.items. Throws
// TypeError with the names of the operator and the argument if the types do not match.
Arg FitArg(Reader& in, const c10::Argument& to, const std::string& op, c10::Device device, Program& program);

// A 0-dim tensor on the device with the element of a CPU tensor. Nothing waits for the device.
at::Tensor FilledLike(const at::Tensor& element, c10::Device device);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_PROGRAM_PROGRAM_H_
