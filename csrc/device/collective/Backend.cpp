// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/collective/Backend.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "device/client/Client.h"
#include "device/collective/Age.h"
#include "device/record/Failure.h"
#include "device/record/Origin.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"

namespace mycelya {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

std::atomic<int64_t> next_group{1};

// A collective that is recorded is done for this process. Its future has no devices: c10d would record an event of
// each, and wait for it.
class Recorded final : public c10d::Work {
 public:
  Recorded(OpType type, std::vector<at::Tensor> results)
      : Work(-1, type),
        results_(std::move(results)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
    future_->markCompleted(c10::IValue(results_));
    finish();
  }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const std::vector<at::Tensor> results_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Receives whose waits are recorded when the program waits, so that what it does before does not wait for a sender.
class Receiving final : public c10d::Work {
 public:
  Receiving(std::vector<at::Tensor> results, std::function<void()> record_wait)
      : Work(-1, OpType::RECV), results_(std::move(results)), record_wait_(std::move(record_wait)) {
    finish();
  }
  ~Receiving() override {
    if (InBadFork()) return;
    try {
      synchronize();
    } catch (...) {  // the session has ended
    }
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    if (record_wait_) std::exchange(record_wait_, {})();
  }
  std::vector<at::Tensor> result() override {
    synchronize();
    return results_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    synchronize();
    return c10::make_intrusive<Recorded>(OpType::RECV, results_)->getFuture();
  }

 private:
  const std::vector<at::Tensor> results_;
  std::function<void()> record_wait_;
};

Backend::Works Done(OpType type, std::vector<at::Tensor> results = {}) {
  return c10::make_intrusive<Recorded>(type, std::move(results));
}

bool OnCpu(const at::Tensor& t) { return t.device().is_cpu(); }
bool OnCpu(const std::vector<at::Tensor>& list) { return list.empty() || OnCpu(list[0]); }

const at::Tensor& Only(const std::vector<at::Tensor>& list) {
  TORCH_CHECK_VALUE(list.size() == 1, "A collective of a mycelya device takes one tensor, not ", list.size(), ".");
  return list[0];
}

// The memory of the elements, if nothing else lies between them.
at::Tensor MemoryOf(const at::Tensor& t) {
  return t.is_non_overlapping_and_dense() ? t.as_strided({t.numel()}, {1}) : t.contiguous();
}

// Elements that a worker sends or receives. What is received is copied to t in the end. in_any_order: for collectives
// that compute each element alone. As Gloo does, they take the elements in the order of their memory: a sum of floats
// depends on where an element lies.
class Dense {
 public:
  explicit Dense(const at::Tensor& t, bool in_any_order = false)
      : of_(t), dense_(in_any_order && !t.is_conj() && !t.is_neg() ? MemoryOf(t) : Resolve(t).contiguous()) {}
  const at::Tensor& operator*() const { return dense_; }
  void Store() const {
    if (!dense_.is_alias_of(of_)) of_.copy_(dense_.view(of_.sizes()));
  }

 private:
  const at::Tensor of_, dense_;
};

// c10d calls backends below autograd; others may not.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

// Sends what is recorded: another rank may wait for it while this process waits for that rank.
void SendAll() {
  for (int i = 0; i < DeviceCount(); ++i) {
    Recorder& r = RecorderOf(static_cast<c10::DeviceIndex>(i));
    const Origin origin = WithCaller(RecordOrigin());
    const std::lock_guard<SpinLock> guard(r.lock);
    r.Cut(MYC_CUT_COMM, origin);
  }
}

std::string Line() { return PlaceText(GetClient(), CurrentOrigin()); }

}  // namespace

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
                 c10::intrusive_ptr<c10d::Backend> cpu)
    : c10d::Backend(rank, size),
      store_(std::move(store)),
      options_(c10::make_intrusive<Options>("mycelya", timeout)),
      cpu_(std::move(cpu)) {
  if (size == 1) return;
  try {
    Join(CurrentDevice());
  } catch (...) {  // who has no collective on the device does not care
    failure_ = std::current_exception();
  }
}

Backend::~Backend() { Leave(); }

void Backend::Leave() noexcept {
  if (group_ == 0 || InBadFork()) return;
  try {
    RecordOwn(device_, "mycelya::comm_leave", {group_});
  } catch (...) {  // the session has ended, and its groups with it
  }
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (cpu_) cpu_->setTimeout(timeout);
}

c10d::Backend& Backend::Cpu() {
  TORCH_CHECK(
      cpu_, "This group has no backend for tensors on the CPU: use init_process_group(\"cpu:gloo,mycelya:mycelya\").");
  SendAll();
  return *cpu_;
}

// ---- Rendezvous: see exec/collective/Relay.h ----

namespace {

void PutText(std::string& out, const std::string& text) {
  const auto n = static_cast<uint32_t>(text.size());
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(n >> shift & 0xff));
  out += text;
}

std::string TakeText(std::string_view& from) {
  uint32_t n = 0;
  for (size_t i = 0; i < 4; ++i) n |= static_cast<uint32_t>(static_cast<uint8_t>(from.at(i))) << 8 * i;
  std::string text(from.substr(4, n));
  TORCH_CHECK(text.size() == n, "BUG: the worker's message of a rendezvous is cut.");
  from.remove_prefix(4 + n);
  return text;
}

// One exchange with the worker: entries for it, and its news.
std::string Exchange(c10::DeviceIndex device, int64_t group, int rank, int size, std::chrono::milliseconds timeout,
                     const std::string& entries) {
  at::Tensor cpu = at::empty({static_cast<int64_t>(entries.size())}, at::kByte);
  if (!entries.empty()) std::memcpy(cpu.mutable_data_ptr(), entries.data(), entries.size());
  const at::Tensor there = cpu.to(c10::Device(kDevice, device));
  OutMeta m;
  m.defined = true;
  m.dtype = at::kByte;
  m.sizes = {MYC_JOIN_BYTES};
  m.strides = {1};
  const at::Tensor answer = MakeTensor(m, device);
  RecordOwn(device, "mycelya::comm_join", {group, rank, size, static_cast<int64_t>(timeout.count()), there}, answer);
  const at::Tensor here = ToCpu(answer);
  const auto* bytes = static_cast<const char*>(here.const_data_ptr());
  uint64_t n = 0;
  std::memcpy(&n, bytes, sizeof n);
  TORCH_CHECK(n <= MYC_JOIN_BYTES - sizeof n, "BUG: the worker's message of a rendezvous has ", n, " bytes.");
  return std::string(bytes + sizeof n, n);
}

}  // namespace

void Backend::Join(c10::DeviceIndex device) {
  device_ = device;
  const int64_t group = next_group++;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(std::to_string(joins_++), store_);
  std::string entries;
  std::vector<std::string> wanted;
  const auto until = std::chrono::steady_clock::now() + options_->timeout;
  for (;;) {
    const std::string news = Exchange(device, group, getRank(), getSize(), options_->timeout, entries);
    entries.clear();
    for (std::string_view rest = news; !rest.empty();) {
      const char what = rest[0];
      rest.remove_prefix(1);
      std::string first = TakeText(rest);
      const std::string second = TakeText(rest);
      switch (what) {
        case 'S':
          store->set(first, std::vector<uint8_t>(second.begin(), second.end()));
          break;
        case 'W':
          wanted.push_back(std::move(first));
          break;
        case 'R':
          group_ = group;
          return;
        default:
          TORCH_CHECK(false, "Rank ", getRank(), " does not find the workers of the ", getSize() - 1,
                      " other ranks: ", first);
      }
    }
    SendAll();
    const NoGil no_gil;
    for (const std::string& key : wanted) {
      const std::vector<uint8_t> value = store->get(key);  // waits for the other rank
      entries.push_back('S');
      PutText(entries, key);
      PutText(entries, std::string(value.begin(), value.end()));
    }
    wanted.clear();
    TORCH_CHECK(std::chrono::steady_clock::now() < until, "Rank ", getRank(), " has waited for the workers of the ",
                getSize() - 1, " other ranks for ", options_->timeout.count(), " ms.");
  }
}

void Backend::Enter(const at::Tensor& t) {
  TORCH_CHECK(t.device().type() == kDevice, "A collective of the backend mycelya got a tensor on ", t.device(), ".");
  const c10::DeviceIndex device = t.device().index();
  const std::lock_guard<std::mutex> guard(mutex_);
  if (device != device_ && !used_) {
    Leave();
    group_ = 0;
    failure_ = nullptr;
    Join(device);
  }
  if (failure_) std::rethrow_exception(failure_);
  used_ = true;
  TORCH_CHECK_VALUE(device == device_, "This group has collectives on mycelya:", static_cast<int>(device_),
                    ", and this tensor is on mycelya:", static_cast<int>(device), ": a rank has one device.");
}

int64_t Backend::Next(const at::Tensor& t) {
  Enter(t);
  GetCounters().peer_bytes.fetch_add(t.nbytes(), std::memory_order_relaxed);
  return number_++;
}

// ---- Collectives ----

void Backend::Await(const at::Tensor& out, const OwnArgument& input, int64_t number) {
  RecordOwn(device_, "mycelya::comm_wait", {Written{out}, input, group_, number});
  SendSoon(device_);
}

void Backend::AllReduce(const at::Tensor& t, const ReduceOp& op) {
  const bool mean = op == ReduceOp::AVG;
  const Dense dense(t, true);
  const int64_t number = Next(t), code = mean ? ReduceOp::SUM : static_cast<int64_t>(op.op_);
  RecordOwn(device_, "mycelya::comm_all_reduce", {Written{*dense}, group_, number, code, std::string_view(Line())});
  Await(*dense, {}, number);
  if (mean) (*dense).div_(getSize());
  dense.Store();
}

void Backend::Broadcast(const at::Tensor& t, int64_t root) {
  const Dense dense(t, true);
  const int64_t number = Next(t);
  RecordOwn(device_, "mycelya::comm_broadcast", {Written{*dense}, group_, number, root, std::string_view(Line())});
  Await(*dense, {}, number);
  dense.Store();
}

void Backend::AllGather(const at::Tensor& out, const at::Tensor& input) {
  TORCH_CHECK_VALUE(out.numel() == input.numel() * getSize(), "all_gather: ", getSize(), " inputs of ", input.sizes(),
                    " do not fit into an output of ", out.sizes(), ".");
  const Dense to(out), from(input);
  const int64_t number = Next(out);
  RecordOwn(device_, "mycelya::comm_all_gather", {Written{*to}, *from, group_, number, std::string_view(Line())});
  Await(*to, *from, number);
  to.Store();
}

void Backend::ReduceScatter(const at::Tensor& out, const at::Tensor& input, bool in_parts, const ReduceOp& op) {
  TORCH_CHECK_VALUE(input.numel() == out.numel() * getSize(), "reduce_scatter: ", getSize(), " outputs of ",
                    out.sizes(), " do not have the elements of an input of ", input.sizes(), ".");
  const bool mean = op == ReduceOp::AVG;
  const Dense to(out), from(input);
  const int64_t number = Next(input), code = mean ? ReduceOp::SUM : static_cast<int64_t>(op.op_);
  RecordOwn(device_, "mycelya::comm_reduce_scatter",
            {Written{*to}, *from, int64_t{in_parts}, group_, number, code, std::string_view(Line())});
  Await(*to, *from, number);
  if (mean) (*to).div_(getSize());
  to.Store();
}

Backend::Works Backend::endCoalescing() {
  coalesces_ = false;
  return c10::make_intrusive<Receiving>(Tensors{}, [works = std::exchange(coalesced_, {})] {
    for (const Works& work : works) work->wait();
  });
}

Backend::Works Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) {
  if (OnCpu(tensors)) return Cpu().allreduce(tensors, o);
  const BelowAutograd below;
  AllReduce(Only(tensors), o.reduceOp);
  return Done(OpType::ALLREDUCE, tensors);
}

Backend::Works Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) {
  if (OnCpu(tensors)) return Cpu().allreduce_coalesced(tensors, o);
  const BelowAutograd below;
  for (const at::Tensor& t : tensors) AllReduce(t, o.reduceOp);
  return Done(OpType::ALLREDUCE_COALESCED, tensors);
}

Backend::Works Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) {
  if (OnCpu(tensors)) return Cpu().broadcast(tensors, o);
  const BelowAutograd below;
  Broadcast(Only(tensors), o.rootRank);
  return Done(OpType::BROADCAST, tensors);
}

// Only the root has the result; the other ranks keep their tensors.
Backend::Works Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& o) {
  if (OnCpu(tensors)) return Cpu().reduce(tensors, o);
  const BelowAutograd below;
  const at::Tensor& t = Only(tensors);
  AllReduce(getRank() == o.rootRank ? t : t.clone(), o.reduceOp);
  return Done(OpType::REDUCE, tensors);
}

Backend::Works Backend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) {
  if (OnCpu(inputs)) return Cpu().allgather(outputs, inputs, o);
  const BelowAutograd below;
  const at::Tensor& input = Only(inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(getSize()),
                    "all_gather needs a list of ", getSize(), " outputs.");
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), getSize());
  const at::Tensor all = at::empty(sizes, input.options());
  AllGather(all, input);
  for (int r = 0; r < getSize(); ++r) outputs[0][r].copy_(all[r]);
  return Done(OpType::ALLGATHER, outputs[0]);
}

Backend::Works Backend::_allgather_base(at::Tensor& out, at::Tensor& input, const c10d::AllgatherOptions& o) {
  if (OnCpu(input)) return Cpu()._allgather_base(out, input, o);
  const BelowAutograd below;
  AllGather(out, input);
  return Done(OpType::_ALLGATHER_BASE, {out});
}

Backend::Works Backend::allgather_into_tensor_coalesced(Tensors& outs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& o) {
  if (OnCpu(inputs)) return Cpu().allgather_into_tensor_coalesced(outs, inputs, o);
  const BelowAutograd below;
  for (size_t i = 0; i < outs.size(); ++i) AllGather(outs[i], inputs[i]);
  return Done(OpType::COALESCED, outs);
}

Backend::Works Backend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& o) {
  if (OnCpu(inputs)) return Cpu().gather(outputs, inputs, o);
  const BelowAutograd below;
  const at::Tensor& input = Only(inputs);
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), getSize());
  const at::Tensor all = at::empty(sizes, input.options());
  AllGather(all, input);
  if (getRank() != o.rootRank) return Done(OpType::GATHER);
  for (int r = 0; r < getSize(); ++r) outputs.at(0).at(r).copy_(all[r]);
  return Done(OpType::GATHER, outputs[0]);
}

Backend::Works Backend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& o) {
  if (OnCpu(outputs)) return Cpu().scatter(outputs, inputs, o);
  const BelowAutograd below;
  const at::Tensor& out = Only(outputs);
  std::vector<int64_t> sizes = out.sizes().vec();
  sizes.insert(sizes.begin(), getSize());
  const at::Tensor all = getRank() == o.rootRank ? at::stack(inputs.at(0)) : at::empty(sizes, out.options());
  Broadcast(all, o.rootRank);
  out.copy_(all[getRank()]);
  return Done(OpType::SCATTER, outputs);
}

Backend::Works Backend::reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& o) {
  if (OnCpu(outputs)) return Cpu().reduce_scatter(outputs, inputs, o);
  const BelowAutograd below;
  ReduceScatter(Only(outputs), at::stack(inputs.at(0)), true, o.reduceOp);
  return Done(OpType::REDUCE_SCATTER, outputs);
}

Backend::Works Backend::_reduce_scatter_base(at::Tensor& out, at::Tensor& input, const c10d::ReduceScatterOptions& o) {
  if (OnCpu(out)) return Cpu()._reduce_scatter_base(out, input, o);
  const BelowAutograd below;
  ReduceScatter(out, input, false, o.reduceOp);
  return Done(OpType::_REDUCE_SCATTER_BASE, {out});
}

Backend::Works Backend::reduce_scatter_tensor_coalesced(Tensors& outs, Tensors& inputs,
                                                        const c10d::ReduceScatterOptions& o) {
  if (OnCpu(outs)) return Cpu().reduce_scatter_tensor_coalesced(outs, inputs, o);
  const BelowAutograd below;
  for (size_t i = 0; i < outs.size(); ++i) ReduceScatter(outs[i], inputs[i], false, o.reduceOp);
  return Done(OpType::COALESCED, outs);
}

Backend::Works Backend::alltoall_base(at::Tensor& out, at::Tensor& input, Sizes& out_sizes, Sizes& in_sizes,
                                      const c10d::AllToAllOptions& o) {
  if (OnCpu(out)) return Cpu().alltoall_base(out, input, out_sizes, in_sizes, o);
  const BelowAutograd below;
  const Dense to(out), from(input);
  const int64_t number = Next(out);
  RecordOwn(device_, "mycelya::comm_all_to_all",
            {Written{*to}, *from, at::IntArrayRef(out_sizes), at::IntArrayRef(in_sizes), group_, number,
             std::string_view(Line())});
  Await(*to, *from, number);
  to.Store();
  return Done(OpType::ALLTOALL_BASE, {out});
}

// As one all_to_all of flat tensors.
Backend::Works Backend::alltoall(Tensors& outs, Tensors& inputs, const c10d::AllToAllOptions& o) {
  if (OnCpu(outs)) return Cpu().alltoall(outs, inputs, o);
  const BelowAutograd below;
  Sizes out_sizes, in_sizes;
  Tensors flat;
  for (const at::Tensor& t : outs) out_sizes.push_back(t.numel());
  for (const at::Tensor& t : inputs) {
    in_sizes.push_back(t.numel());
    flat.push_back(t.reshape({-1}));
  }
  at::Tensor input = at::cat(flat);
  int64_t total = 0;
  for (const int64_t n : out_sizes) total += n;
  at::Tensor out = at::empty({total}, input.options());
  alltoall_base(out, input, out_sizes, in_sizes, o);
  int64_t begin = 0;
  for (const at::Tensor& t : outs) {
    t.copy_(out.narrow(0, begin, t.numel()).view(t.sizes()));
    begin += t.numel();
  }
  return Done(OpType::ALLTOALL, outs);
}

Backend::Works Backend::send(Tensors& tensors, int to, int tag) {
  if (OnCpu(tensors)) return Coalesced(Cpu().send(tensors, to, tag));
  const BelowAutograd below;
  const Dense dense(Only(tensors));
  Enter(*dense);
  GetCounters().peer_bytes.fetch_add((*dense).nbytes(), std::memory_order_relaxed);
  RecordOwn(device_, "mycelya::comm_send", {*dense, group_, int64_t{to}, int64_t{tag}});
  SendSoon(device_);
  return Done(OpType::SEND);
}

Backend::Works Backend::recv(Tensors& tensors, int from, int tag) {
  if (OnCpu(tensors)) return Coalesced(Cpu().recv(tensors, from, tag));
  const BelowAutograd below;
  const Dense dense(Only(tensors));
  Enter(*dense);
  const int64_t number = -++receives_;
  RecordOwn(device_, "mycelya::comm_receive", {Written{*dense}, group_, number, int64_t{from}, int64_t{tag}});
  SendSoon(device_);
  // The work keeps this backend, and with it the group.
  auto self = c10::intrusive_ptr<Backend>::unsafe_reclaim_from_nonowning(this);
  return Coalesced(c10::make_intrusive<Receiving>(tensors, [self = std::move(self), dense, number] {
    const BelowAutograd below;
    self->Await(*dense, {}, number);
    dense.Store();
  }));
}

Backend::Works Backend::Coalesced(Works work) {
  if (coalesces_) coalesced_.push_back(work);
  return work;
}

Backend::Works Backend::barrier(const c10d::BarrierOptions& o) {
  c10d::BarrierOptions plain;
  plain.timeout = o.timeout;
  plain.asyncOp = o.asyncOp;
  return Cpu().barrier(plain);
}

}  // namespace mycelya
