// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <atomic>
#include <mutex>

#include "device/client/Client.h"
#include "device/client/State.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"
#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

std::atomic<uint64_t> next_generator{1};

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  GeneratorImpl(c10::DeviceIndex device, uint64_t id)
      : c10::GeneratorImpl(c10::Device(kDevice, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        id_(id),
        life_(RecorderOf(device).life()) {}

  static c10::DeviceType device_type() { return kDevice; }

  // The worker makes a generator when it first sees its id, with PyTorch's default seed.
  uint64_t id() const { return id_; }

  void set_current_seed(uint64_t seed) override {
    if (id_ == 0) {
      // Only noted: torch.manual_seed seeds all devices, also those that are not running.
      RecorderOf(device().index()).NoteSeed(seed, RecordOrigin());
    } else {
      RecordOwn(device().index(), "mycelya::manual_seed", {GeneratorId{id_}, static_cast<int64_t>(seed)});
      life_ = RecorderOf(device().index()).life();
    }
    seed_ = seed;
    seeded_ = true;
    seed_state_.reset();
  }

  // A worker that was started since then does not know the generator.
  void Revive() {
    const uint64_t life = RecorderOf(device().index()).life();
    if (id_ != 0 && life_.exchange(life) != life && seeded_) set_current_seed(seed_);
  }

  uint64_t current_seed() const override {
    if (seed_state_.defined()) {
      // Both of PyTorch's layouts begin with the seed.
      seed_ = ToCpu(seed_state_.narrow(0, 0, 8)).view(at::kLong).item<int64_t>();
      seed_state_.reset();
    }
    return seed_;
  }
  uint64_t seed() override {
    const uint64_t fresh = c10::detail::getNonDeterministicRandom();
    set_current_seed(fresh);
    return fresh;
  }

  at::Tensor State() const {
    const auto index = device().index();
    at::Tensor bytes = MakeVector(at::kByte, state_bytes(), index);
    RecordOwn(index, "mycelya::get_rng_state", {GeneratorId{id_}}, bytes);
    return bytes;
  }
  void set_state(const at::Tensor& state) {
    const auto index = device().index();
    TORCH_CHECK_TYPE(state.scalar_type() == at::kByte && state.dim() == 1 && state.layout() == at::kStrided,
                     "RNG state must be a torch.ByteTensor with one dimension, got ", state.toString(), " of shape ",
                     state.sizes(), ".");
    TORCH_CHECK(state.numel() == state_bytes(), "RNG state is wrong size: a generator of this device has ",
                state_bytes(), " bytes, got ", state.numel(), ".");
    const at::Tensor here = state.is_cpu() ? ToDevice(state, index) : state.contiguous();
    TORCH_CHECK(here.device() == device(), "RNG state is on ", here.device(), ", its generator on ", device(),
                ": move it with .cpu().");
    RecordOwn(index, "mycelya::set_rng_state", {GeneratorId{id_}, here});
    // A copy, because the caller may write the tensor. It is read only when the seed is requested.
    seed_state_ = here.clone();
  }

  void set_state(const c10::TensorImpl& new_state) override {
    set_state(at::Tensor::wrap_tensor_impl(
        c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&new_state))));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return ToCpu(State()).getIntrusivePtr(); }

  // Only CUDA's generator has an offset: its state is the seed and the offset.
  void set_offset(uint64_t offset) override {
    if (!Counts()) {
      TORCH_CHECK(offset == 0, "A generator of a CPU worker has no offset, got ", offset, ".");
      return;
    }
    at::Tensor bytes = at::empty({16}, at::kByte);
    auto* words = reinterpret_cast<uint64_t*>(bytes.mutable_data_ptr());
    words[0] = current_seed();
    words[1] = offset;
    set_state(bytes);
  }
  uint64_t get_offset() const override {
    if (!Counts()) return 0;
    return ToCpu(State().narrow(0, 8, 8)).view(at::kLong).item<int64_t>();
  }

 private:
  int64_t state_bytes() const {
    static const int64_t cpu = at::detail::createCPUGenerator().get_state().numel();
    return Counts() ? 16 : cpu;
  }

  bool Counts() const { return WorkerOf(device().index()) == Worker::kCuda; }

  GeneratorImpl* clone_impl() const override;

  const uint64_t id_;
  std::atomic<uint64_t> life_;  // of the worker that has its state
  bool seeded_ = false;
  mutable uint64_t seed_ = c10::default_rng_seed_val;
  mutable at::Tensor seed_state_;  // if defined, it holds the seed
};

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index(), next_generator.fetch_add(1));
  copy->set_state(State());
  return copy;
}

GeneratorImpl& ImplOf(const at::Generator& g) {
  TORCH_CHECK(g.defined() && g.device().type() == kDevice, "Expected a 'mycelya' device type for generator but found '",
              g.defined() ? g.device().str() : std::string("none"), "'");
  return *static_cast<GeneratorImpl*>(g.unsafeGetGeneratorImpl());
}

}  // namespace

const at::Generator& DefaultGenerator(c10::DeviceIndex device) {
  static auto& all = *new std::array<at::Generator, kMaxDevices>();
  static auto& mutex = *new std::mutex();
  if (device < 0) device = CurrentDevice();
  TORCH_CHECK(device < kMaxDevices, "mycelya:", static_cast<int>(device), " does not exist.");
  const std::lock_guard<std::mutex> guard(mutex);
  auto& g = all[device];
  if (!g.defined()) g = at::make_generator<GeneratorImpl>(device, uint64_t{0});
  return g;
}

at::Generator NewGenerator(c10::DeviceIndex device) {
  return at::make_generator<GeneratorImpl>(device < 0 ? CurrentDevice() : device, next_generator.fetch_add(1));
}

uint64_t GetGeneratorId(const at::Generator& g, c10::DeviceIndex device) {
  const GeneratorImpl& impl = ImplOf(g);
  TORCH_CHECK(g.device().index() == device, "Expected a generator of mycelya:", static_cast<int>(device),
              " but found one of ", g.device(), ".");
  return impl.id();
}

void ReviveGenerator(const at::Generator& g, c10::DeviceIndex device) {
  GetGeneratorId(g, device);
  ImplOf(g).Revive();
}

at::Tensor GetRngState(const at::Generator& g) { return ImplOf(g).State(); }

void SetRngState(const at::Generator& g, const at::Tensor& state) { ImplOf(g).set_state(state); }

}  // namespace mycelya
