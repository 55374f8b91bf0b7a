// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/session/Executor.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "abi/size_text.h"
#include "exec/collective/Group.h"
#include "exec/memory/Geometry.h"

namespace mycelya::exec {
namespace {

thread_local Executor* current = nullptr;

c10::Storage NewStorage(c10::Allocator* allocator, uint64_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= INT64_MAX / 2, "No device has ", bytes, " bytes of memory.");
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
                      /*resizable=*/true);
}

// Nanoseconds since 1970.
uint64_t Now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// What such a process ends with; the client shows it.
constexpr int kBrokenDevice = 70;

// Ends the process: nothing in it can use the device. The worker tells the client what the process has written last.
[[noreturn]] void End(const std::string& why, c10::Device device) {
  std::fprintf(stderr, "The session has ended, because its process cannot use %s any more: %s.\n", device.str().c_str(),
               why.c_str());
  std::fflush(stderr);
  std::_Exit(kBrokenDevice);
}

}  // namespace

StepTimes::StepTimes(const Device& device, uint64_t* words, uint64_t steps)
    : device_(device), words_(words), steps_(steps) {
  std::fill_n(words, 2 * steps, 0);
}

void StepTimes::Begin(uint64_t step) noexcept {
  End();
  if (step >= steps_) return;
  open_ = step + 1;
  words_[2 * step] = Now();
}

void StepTimes::End() noexcept {
  if (open_ == 0) return;
  try {
    device_.Synchronize();
  } catch (...) {  // the step that has failed, or the next one, reports it
  }
  words_[2 * open_ - 1] = Now();
  open_ = 0;
}

Scope::Scope(c10::Device device) {
  if (!device.is_cpu()) device_.reset_device(device);
}

Executor::Executor(const std::string& device, int32_t threads)
    : device_(MakeDevice(device)), groups_(std::make_unique<Groups>()) {
  TORCH_CHECK_VALUE(threads >= 0, "A worker can't have ", threads, " threads.");
  if (threads > 0) at::set_num_threads(threads);
  threads_ = at::get_num_threads();
  Seed(0, c10::default_rng_seed_val);
}

Executor::~Executor() = default;

void Executor::Leave(int32_t cores) const {
  if (device_->is_cpu()) at::set_num_threads(std::max(1, threads_ - std::max(0, cores)));
}

Failure Executor::TakeFailure() const {
  Failure f = CurrentFailure();
  try {
    if (const std::string why = device_->Broken(); !why.empty()) End(why, device_->device());
    if (f.kind == MYC_E_MEMORY) f.text = MemoryText(f.text.substr(0, f.text.find('\n')));
  } catch (const std::exception& e) {  // the device does not answer
    End(e.what(), device_->device());
  }
  return f;
}

// What a session that lacks memory is told. text: the allocator's reason.
std::string Executor::MemoryText(const std::string& text) const {
  uint64_t storages, held;
  Usage(&storages, &held);
  const uint64_t wanted = device_->TakeRefused();
  return (wanted != 0 ? "Out of memory: " + SizeText(wanted) + " wanted on " + device_->device().str() + "." : text) +
         " Of its " + SizeText(device_->MemoryBytes()) + ", " + SizeText(device_->FreeBytes()) +
         " are free; the tensors of this session take " + SizeText(held) + ".";
}

Executor& Executor::Current() {
  TORCH_CHECK(current != nullptr, "BUG: no program runs on this thread.");
  return *current;
}

Executor::Running::Running(Executor& executor) { current = &executor; }

Executor::Running::~Running() { current = nullptr; }

c10::Storage Executor::Allocate(uint64_t bytes) const { return NewStorage(device_->Memory(), bytes); }

c10::Storage Executor::AllocateHost(uint64_t bytes) const { return NewStorage(device_->HostMemory(), bytes); }

const at::Generator& Executor::GeneratorOf(uint64_t id) {
  if (id == 0) return at::globalContext().defaultGenerator(device_->device());
  auto it = generators_.find(id);
  if (it != generators_.end()) return it->second;
  at::Generator made = device_->is_cpu() ? at::detail::createCPUGenerator()
                                         : at::globalContext()
                                               .getAcceleratorHooksInterface(device_->device().type())
                                               .getNewGenerator(device_->device().index());
  return generators_.emplace(id, std::move(made)).first->second;
}

void Executor::Seed(uint64_t id, uint64_t seed) {
  at::Generator generator = GeneratorOf(id);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

Held* Executor::Find(uint64_t id) {
  auto it = table_.find(id);
  return it == table_.end() ? nullptr : &it->second;
}

void Executor::Bind(uint64_t id, c10::Storage storage, c10::Storage on_host) {
  table_[id] = {std::move(storage), nullptr, std::move(on_host)};
}

void Executor::BindPoison(uint64_t id, PoisonPtr poison) {
  table_[id] = {c10::Storage(), std::move(poison), c10::Storage()};
}

void Executor::PoisonNew(uint64_t id, PoisonPtr poison) {
  if (Find(id) == nullptr) BindPoison(id, std::move(poison));
}

void Executor::Free(const uint64_t* ids, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    table_.erase(ids[i]);
    uploads_.erase(ids[i]);
  }
}

void Executor::Usage(uint64_t* storages, uint64_t* bytes) const {
  *storages = table_.size();
  *bytes = 0;
  for (const auto& [id, held] : table_) {
    if (held.storage) *bytes += held.storage.nbytes();
  }
}

c10::Storage Executor::Borrow(Held& held) {
  if (!lent_.empty() && lent_.count(held.storage.unsafeGetStorageImpl()) != 0) {
    c10::Storage copy = Allocate(held.storage.nbytes());
    BytesOf(copy).copy_(BytesOf(held.storage));
    held.storage = std::move(copy);
  }
  return held.storage;
}

}  // namespace mycelya::exec
