// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What a session has beside its storages, as text, for a checkpoint:
//   state = { line }
//   line  = "dtype" number | "flag" name=value | "generator" id hex          the hex of the generator's own state
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <charconv>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "exec/Dtype.h"
#include "exec/session/Executor.h"
#include "exec/session/Flags.h"

namespace mycelya::exec {
namespace {

constexpr char kHex[] = "0123456789abcdef";

std::string Hex(const at::Tensor& bytes) {
  const auto* p = static_cast<const uint8_t*>(bytes.const_data_ptr());
  std::string out;
  out.reserve(2 * bytes.nbytes());
  for (size_t i = 0; i < bytes.nbytes(); ++i) {
    out += kHex[p[i] >> 4];
    out += kHex[p[i] & 15];
  }
  return out;
}

at::Tensor FromHex(const std::string& text) {
  TORCH_CHECK_VALUE(text.size() % 2 == 0, "The state of a generator has half a byte.");
  at::Tensor out = at::empty({static_cast<int64_t>(text.size() / 2)}, at::kByte);
  auto* p = static_cast<uint8_t*>(out.mutable_data_ptr());
  for (size_t i = 0; i < text.size(); i += 2) {
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, p[i / 2], 16);
    TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + i + 2, "The state of a generator is no hex.");
  }
  return out;
}

}  // namespace

std::string Executor::State() {
  std::ostringstream out;
  out << "dtype " << ToCode(c10::get_default_dtype_as_scalartype()) << '\n';
  for (const std::string& flag : FlagsThatWereSet()) out << "flag " << flag << '\n';
  std::vector<uint64_t> ids{0};
  for (const auto& [id, generator] : generators_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const uint64_t id : ids) {
    at::Generator generator = GeneratorOf(id);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    out << "generator " << id << ' ' << Hex(generator.get_state()) << '\n';
  }
  return std::move(out).str();
}

void Executor::SetState(const std::string& state) {
  std::istringstream in(state);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "dtype") {
      uint32_t dtype = 0;
      words >> dtype;
      c10::set_default_dtype(c10::scalarTypeToTypeMeta(ToScalarType(dtype)));
    } else if (kind == "flag") {
      SetFlag(std::string_view(line).substr(kind.size() + 1));
    } else if (kind == "generator") {
      uint64_t id = 0;
      std::string hex;
      words >> id >> hex;
      at::Generator generator = GeneratorOf(id);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(FromHex(hex));
    } else {
      TORCH_CHECK_VALUE(false, "The state of a session has no line \"", kind.substr(0, 40), "\".");
    }
    TORCH_CHECK_VALUE(kind == "flag" || !words.fail(), "A line of the state of a session is cut: \"",
                      line.substr(0, 40), "\".");
  }
}

std::vector<Content> Executor::Contents() const {
  std::vector<Content> out;
  out.reserve(table_.size());
  for (const auto& [id, held] : table_) out.push_back({id, held.poison ? kPoisoned : held.storage.nbytes()});
  std::sort(out.begin(), out.end(), [](const Content& a, const Content& b) { return a.id < b.id; });
  return out;
}

}  // namespace mycelya::exec
