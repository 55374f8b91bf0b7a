// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Collectives among GPUs by NCCL's C API. They run in the device's second stream, beside its other work. A call begins
// one and does not wait; the work that it returns makes the current stream wait.
#ifndef MYCELYA_EXEC_COLLECTIVE_NCCL_H_
#define MYCELYA_EXEC_COLLECTIVE_NCCL_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "exec/backend/Device.h"

namespace mycelya::exec {

// Functions of libnccl, which have had these types since version 2.0. Results are 0, or a number for error_text.
// dtype and reduce are NCCL's numbers.
struct NcclApi {
  struct Id {
    char bytes[128];
  };
  int (*get_unique_id)(Id*);
  int (*comm_init_rank)(void** comm, int size, Id, int rank);
  int (*comm_abort)(void* comm);
  int (*all_reduce)(const void* from, void* to, size_t n, int dtype, int reduce, void* comm, void* stream);
  int (*broadcast)(const void* from, void* to, size_t n, int dtype, int root, void* comm, void* stream);
  int (*all_gather)(const void* from, void* to, size_t n, int dtype, void* comm, void* stream);
  int (*reduce_scatter)(const void* from, void* to, size_t n, int dtype, int reduce, void* comm, void* stream);
  int (*send)(const void* from, size_t n, int dtype, int peer, void* comm, void* stream);
  int (*receive)(void* to, size_t n, int dtype, int peer, void* comm, void* stream);
  int (*group_start)();
  int (*group_end)();
  const char* (*error_text)(int);
  const char* (*last_error)(void* comm);

  static const NcclApi& Get();  // of the library that PyTorch has loaded, else of the system's; throws if there is none
};

class Nccl final : public c10d::Backend {
 public:
  using Works = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Sizes = std::vector<int64_t>;

  // Waits for the other members.
  Nccl(const NcclApi& api, const Device& device, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);
  ~Nccl() override;

  const std::string getBackendName() const override { return "nccl"; }
  // What begins next runs after this point of the device's work.
  void After(std::shared_ptr<void> mark) { after_ = std::move(mark); }

  Works allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  Works broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  Works _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  Works _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  Works reduce_scatter(Tensors&, std::vector<Tensors>&, const c10d::ReduceScatterOptions&) override;
  Works alltoall_base(at::Tensor&, at::Tensor&, Sizes&, Sizes&, const c10d::AllToAllOptions&) override;

 private:
  Works Begin(c10d::OpType type, const char* what, const std::function<int(void* stream)>& call);
  void Check(int status, const char* what) const;

  const NcclApi& api_;
  const Device& device_;
  void* comm_ = nullptr;
  std::shared_ptr<void> after_;
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_COLLECTIVE_NCCL_H_
