// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The c10d backend of the device. A collective is recorded like any operator, and the workers compute it among
// themselves: no element passes through this process. Tensors on the CPU are left to another backend.
#ifndef MYCELYA_DEVICE_COLLECTIVE_BACKEND_H_
#define MYCELYA_DEVICE_COLLECTIVE_BACKEND_H_

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "device/record/Record.h"

namespace mycelya {

class Backend final : public c10d::Backend {
 public:
  using Works = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using Sizes = std::vector<int64_t>;

  // store: of the ranks' processes, with keys of this group only. cpu: for tensors on the CPU. Waits for the workers of
  // all ranks. If one does not come, collectives on the device raise why.
  Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
          c10::intrusive_ptr<c10d::Backend> cpu);
  ~Backend() override;

  const std::string getBackendName() const override { return "mycelya"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  uint64_t getSequenceNumberForGroup() override { return number_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  // Collectives of one call are computed one by one; its work waits for its sends and receives.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalesces_ = true; }
  Works endCoalescing() override;

  Works allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  Works allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  Works broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  Works reduce(Tensors&, const c10d::ReduceOptions&) override;
  Works allgather(Lists&, Tensors&, const c10d::AllgatherOptions&) override;
  Works _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  Works allgather_into_tensor_coalesced(Tensors&, Tensors&, const c10d::AllgatherOptions&) override;
  Works gather(Lists&, Tensors&, const c10d::GatherOptions&) override;
  Works scatter(Tensors&, Lists&, const c10d::ScatterOptions&) override;
  Works reduce_scatter(Tensors&, Lists&, const c10d::ReduceScatterOptions&) override;
  Works _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  Works reduce_scatter_tensor_coalesced(Tensors&, Tensors&, const c10d::ReduceScatterOptions&) override;
  Works alltoall_base(at::Tensor&, at::Tensor&, Sizes&, Sizes&, const c10d::AllToAllOptions&) override;
  Works alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  Works send(Tensors&, int to, int tag) override;
  Works recv(Tensors&, int from, int tag) override;
  Works barrier(const c10d::BarrierOptions&) override;

 private:
  // For tensors on the CPU: what is recorded is sent first, because other ranks may wait for it.
  c10d::Backend& Cpu();
  // Makes the workers find each other. All ranks make a group at the same time, as for Gloo: at its first collective,
  // ranks that use groups in other orders would wait for each other.
  void Join(c10::DeviceIndex device);
  void Leave() noexcept;
  void Enter(const at::Tensor& t);    // before a collective with it
  int64_t Next(const at::Tensor& t);  // as Enter, and the number of the collective
  // Records the wait for a collective, which names what it writes and reads.
  void Await(const at::Tensor& out, const OwnArgument& input, int64_t number);
  Works Coalesced(Works work);  // noted for endCoalescing
  void AllReduce(const at::Tensor& t, const c10d::ReduceOp& op);
  void Broadcast(const at::Tensor& t, int64_t root);
  void AllGather(const at::Tensor& out, const at::Tensor& input);
  // in_parts: the program has a list of inputs, which Gloo adds in another order than one tensor.
  void ReduceScatter(const at::Tensor& out, const at::Tensor& input, bool in_parts, const c10d::ReduceOp& op);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  const c10::intrusive_ptr<c10d::Backend> cpu_;
  std::mutex mutex_;
  int64_t joins_ = 0;             // how often Join was called
  int64_t group_ = 0;             // the number of the group in this process; 0: Join has not succeeded
  c10::DeviceIndex device_ = -1;  // the device of the last Join; -1: there was none
  std::exception_ptr failure_;    // the error of the constructor's Join
  bool used_ = false;             // a collective was recorded
  int64_t number_ = 0;            // of the next collective
  int64_t receives_ = 0;          // so far
  bool coalesces_ = false;
  std::vector<Works> coalesced_;  // since startCoalescing
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_COLLECTIVE_BACKEND_H_
