// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "Generator.h"

#include <ATen/core/GeneratorForPrivateuseone.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <atomic>
#include <mutex>

#include "Client.h"
#include "Recorder.h"
#include "State.h"

namespace mycelya {
namespace {

std::atomic<uint64_t> next_id{1};

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  GeneratorImpl(c10::DeviceIndex device, uint64_t id)
      : c10::GeneratorImpl(c10::Device(kDevice, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), id_(id) {}

  static c10::DeviceType device_type() { return kDevice; }

  // The worker makes a generator when it first sees its id, with PyTorch's default seed.
  uint64_t id() const { return id_; }

  void set_current_seed(uint64_t seed) override {
    check_not_forked();
    static const uint64_t hash = [] {
      const std::string name = "mycelya::manual_seed";
      define_op(name_hash(name), name);
      return name_hash(name);
    }();
    seed_ = seed;
    const Origin origin = current_origin();
    Recorder& r = recorder(device().index());
    std::lock_guard<SpinLock> guard(r.lock);
    r.begin(hash, MYC_R_EFFECT, 2, 0, origin);
    r.tag(MYC_W_GEN);
    r.param(id_);
    r.tag(MYC_W_NUMBER, MYC_N_I64);
    r.param(seed);
    r.end();
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    const uint64_t fresh = c10::detail::getNonDeterministicRandom();
    set_current_seed(fresh);
    return fresh;
  }
  void set_offset(uint64_t) override { no_state("set_offset"); }
  uint64_t get_offset() const override { no_state("get_offset"); }
  void set_state(const c10::TensorImpl&) override { no_state("set_state"); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { no_state("get_state"); }

 private:
  GeneratorImpl* clone_impl() const override { no_state("clone_state"); }

  [[noreturn]] static void no_state(const char* what) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "A mycelya generator cannot ", what,
                                ": its state is on the worker, and this version can only seed it. Use manual_seed().");
  }

  const uint64_t id_;
  uint64_t seed_ = c10::default_rng_seed_val;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto& all = *new std::array<at::Generator, kMaxDevices>();
  static auto& mutex = *new std::mutex();
  if (device < 0) device = current_device();
  TORCH_CHECK(device < kMaxDevices, "mycelya:", static_cast<int>(device), " does not exist.");
  const std::lock_guard<std::mutex> guard(mutex);
  auto& g = all[device];
  if (!g.defined()) g = at::make_generator<GeneratorImpl>(device, uint64_t{0});
  return g;
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<GeneratorImpl>(device < 0 ? current_device() : device, next_id.fetch_add(1));
}

uint64_t generator_id(const at::Generator& g, c10::DeviceIndex device) {
  TORCH_CHECK(g.defined() && g.device().type() == kDevice, "Expected a 'mycelya' device type for generator but found '",
              g.defined() ? g.device().str() : std::string("none"), "'");
  TORCH_CHECK(g.device().index() == device, "Expected a generator of mycelya:", static_cast<int>(device),
              " but found one of ", g.device(), ".");
  return static_cast<GeneratorImpl*>(g.unsafeGetGeneratorImpl())->id();
}

}  // namespace mycelya
