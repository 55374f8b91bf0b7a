// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Op.h"

#include <ATen/core/jit_type.h>
#include <ATen/core/op_registration/op_registration.h>

#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "device/client/Client.h"
#include "device/record/Recorder.h"

namespace mycelya {
namespace {

struct Row {
  const char* functional;
  const char* classes;
  const char* refusal;  // nullptr for a whole op
  bool dynamic = false;
};

struct Table {
  std::unordered_map<std::string_view, Row> rows;
  std::vector<const char*> whole, refused;

  Table() {
#define MYC_WHOLE(name, functional, classes)   \
  rows[name] = {functional, classes, nullptr}; \
  whole.push_back(name);
#define MYC_DYNAMIC(name, functional, classes)       \
  rows[name] = {functional, classes, nullptr, true}; \
  whole.push_back(name);
#define MYC_REFUSE(name, reason) \
  rows[name] = {"", "", reason}; \
  refused.push_back(name);
#include "device/record/optable.inc"
#undef MYC_WHOLE
#undef MYC_DYNAMIC
#undef MYC_REFUSE
  }
};

const Table& GetTable() {
  static const auto& leaked = *new Table();
  return leaked;
}

Kind KindOf(const c10::TypePtr& type) {
  using T = c10::TypeKind;
  switch (type->kind()) {
    case T::TensorType:
      return Kind::kTensor;
    case T::IntType:
    case T::SymIntType:
      return Kind::kInt;
    case T::FloatType:
    case T::SymFloatType:
      return Kind::kFloat;
    case T::BoolType:
    case T::SymBoolType:
      return Kind::kBool;
    case T::NumberType:
      return Kind::kScalar;
    case T::StringType:
      return Kind::kString;
    case T::ScalarTypeType:
      return Kind::kDType;
    case T::LayoutType:
      return Kind::kLayout;
    case T::DeviceObjType:
      return Kind::kDevice;
    case T::MemoryFormatType:
      return Kind::kMemoryFormat;
    case T::GeneratorType:
      return Kind::kGenerator;
    case T::OptionalType:
      return KindOf(type->castRaw<c10::OptionalType>()->getElementType());
    case T::ListType: {
      const auto element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == T::OptionalType) return Kind::kOptTensors;
      switch (KindOf(element)) {
        case Kind::kTensor:
          return Kind::kTensors;
        case Kind::kInt:
          return Kind::kInts;
        case Kind::kFloat:
          return Kind::kFloats;
        case Kind::kBool:
          return Kind::kBools;
        case Kind::kScalar:
          return Kind::kScalars;
        default:
          return Kind::kOther;
      }
    }
    default:
      return Kind::kOther;
  }
}

// The class of an argument of an op without a row, or of an argument that the row does not cover.
char DefaultClass(Kind kind, const c10::TypePtr& type) {
  switch (kind) {
    case Kind::kFloat:
    case Kind::kFloats:
    case Kind::kScalar:
    case Kind::kScalars:
      return 'v';
    case Kind::kInt:
    case Kind::kInts:
      return type->str().find("SymInt") != std::string::npos ? 's' : 'l';
    default:
      return 'l';
  }
}

std::mutex ops_mutex;  // guards growth of the map below
// Open addressing by schema address. The table never shrinks, so readers need no lock. It has 8192 slots for about
// 3,100 aten overloads.
constexpr size_t kSlots = 8192;
struct Slot {
  std::atomic<const void*> key{nullptr};
  const Op* op = nullptr;
};
auto& slots = *new std::array<Slot, kSlots>();
size_t used = 0;

const Op* MakeOp(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  std::string name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  return new Op(handle, std::move(name));
}

// What holds for an operator of a library without a row.
void SetOfOthers(Op& op) {
  op.dynamic = true;         // unless the library knows the shapes (HasStaticShape)
  op.flags |= MYC_R_EFFECT;  // what else it does is not known
  if (op.writes_out) op.refusal = "it is an out= form";
  for (const auto& r : op.handle.schema().returns()) {
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite()) op.refusal = "it returns a view";
  }
  for (const Return& r : op.returns) {
    if (r.list) op.refusal = "it returns a list of tensors, and their number is not known";
  }
}

}  // namespace

Op::Op(const c10::OperatorHandle& h, std::string full, const char* given)
    : handle(h), full_name(std::move(full)), hash(NameHash(full_name)), recorded(this) {
  constexpr std::string_view kAten = "aten::";
  const bool aten = std::string_view(full_name).substr(0, kAten.size()) == kAten;
  name = aten ? full_name.substr(kAten.size()) : full_name;
  const auto& schema = handle.schema();
  const char* classes = "";
  if (aten) {
    const auto row = GetTable().rows.find(name);
    if (row != GetTable().rows.end()) {
      functional = row->second.functional;
      classes = row->second.classes;
      dynamic = row->second.dynamic;
      if (row->second.refusal != nullptr) refusal = row->second.refusal;
    }
  } else {
    for (const LibraryOp& row : kLibraryOps) {
      if (full_name == row.name) library = &row;
    }
    dynamic = library != nullptr && library->dynamic;
    of_others = library == nullptr && given == nullptr;
  }
  if (given != nullptr) {
    classes = given;
    refusal.clear();  // PyTorch never dispatches it to this device, but the worker has it
  }
  const size_t n_classes = std::string_view(classes).size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& a = schema.arguments()[i];
    const Kind kind = KindOf(a.real_type());
    const bool write = a.alias_info() != nullptr && a.alias_info()->isWrite();
    args.push_back({kind, i < n_classes && classes[i] != '-' ? classes[i] : DefaultClass(kind, a.real_type()), write});
    if (kind == Kind::kGenerator) flags |= MYC_R_RNG;
    takes_other |= kind == Kind::kOther;
    takes_codes |= kind == Kind::kGenerator || kind == Kind::kDType;
    if (write) {
      writes.push_back(static_cast<int>(i));
      if (a.is_out()) writes_out = true;
    }
  }
  if (handle.hasTag(at::Tag::nondeterministic_seeded)) flags |= MYC_R_RNG;
  for (const auto& r : schema.returns()) {
    Return entry{-1, r.type()->kind() == c10::TypeKind::ListType};
    const auto* alias = r.alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for (const int w : writes) {
        if (schema.arguments()[w].alias_info()->beforeSets() == alias->beforeSets()) entry.alias = w;
      }
    }
    const bool tensor =
        r.type()->kind() == c10::TypeKind::TensorType ||
        (entry.list && r.type()->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType);
    if (!tensor && refusal.empty()) refusal = "it returns something other than tensors";
    returns.push_back(entry);
    fresh_returns += entry.alias < 0;
  }
  if (!functional.empty()) {
    const auto dot = functional.find('.');
    functional_handle = c10::Dispatcher::singleton().findSchema(
        {"aten::" + functional.substr(0, dot), dot == std::string::npos ? "" : functional.substr(dot + 1)});
  }
  if (aten && given == nullptr) {
    columns = ColumnsOf(name);
    special = SpecialOf(name);
    if (special.check == nullptr) special.check = SpecialOf(functional).check;
    if (writes.empty()) columns.facts &= ~kBumpsVersions;
  }
  if (of_others) SetOfOthers(*this);
  if (columns.Has(kAsserts)) flags |= MYC_R_EFFECT;
  if (columns.recorded_as != nullptr) {
    const std::string target = columns.recorded_as;
    const auto dot = target.find('.');
    recorded =
        new Op(c10::Dispatcher::singleton().findSchemaOrThrow(
                   target.substr(0, dot).c_str(), dot == std::string::npos ? "" : target.substr(dot + 1).c_str()),
               target, columns.classes);
  }
  if (recorded == this && refusal.empty()) DefineOp(hash, full_name);
}

const Op& OpFor(const c10::OperatorHandle& handle) {
  const void* key = &handle.schema();
  size_t i = (reinterpret_cast<uintptr_t>(key) * 0x9E3779B97F4A7C15ull) >> 51;
  for (;; i = (i + 1) & (kSlots - 1)) {
    const void* seen = slots[i].key.load(std::memory_order_acquire);
    if (C10_LIKELY(seen == key)) return *slots[i].op;
    if (seen == nullptr) break;
  }
  const Op* fresh = MakeOp(handle);  // without the mutex: it may look up another op
  std::lock_guard<std::mutex> guard(ops_mutex);
  for (;; i = (i + 1) & (kSlots - 1)) {
    const void* seen = slots[i].key.load(std::memory_order_relaxed);
    if (seen == key) {
      delete fresh;
      return *slots[i].op;
    }
    if (seen == nullptr) break;
  }
  TORCH_CHECK(++used < kSlots * 3 / 4, "mycelya met more than ", used, " operators; the table in Op.cpp is too small.");
  slots[i].op = fresh;
  slots[i].key.store(key, std::memory_order_release);
  return *fresh;
}

const std::vector<const char*>& WholeOps() { return GetTable().whole; }
const std::vector<const char*>& RefusedOps() { return GetTable().refused; }

}  // namespace mycelya
