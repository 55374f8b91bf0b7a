// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/collective/Nccl.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstring>
#include <utility>

namespace mycelya::exec {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

// A collective in the second stream. wait() lets what follows in the current stream run after it.
class Queued final : public c10d::Work {
 public:
  Queued(OpType type, const Device& device, std::shared_ptr<void> end)
      : Work(-1, type), device_(device), end_(std::move(end)) {
    finish();
  }
  bool wait(std::chrono::milliseconds) override {
    device_.After(Stream::kCurrent, end_);
    return true;
  }

 private:
  const Device& device_;
  const std::shared_ptr<void> end_;
};

int DtypeOf(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kChar:
      return 0;
    case at::kByte:
    case at::kBool:
      return 1;
    case at::kInt:
      return 2;
    case at::kLong:
      return 4;
    case at::kHalf:
      return 6;
    case at::kFloat:
      return 7;
    case at::kDouble:
      return 8;
    case at::kBFloat16:
      return 9;
    default:
      TORCH_CHECK_TYPE(false, "NCCL has no tensors of dtype ", t.scalar_type(), ".");
  }
}

int ReduceOf(const ReduceOp& op, const at::Tensor& t) {
  const bool logical = t.scalar_type() == at::kBool;  // a byte of 0 or 1
  switch (op.op_) {
    case ReduceOp::SUM:
      return logical ? 2 : 0;  // whether there is a 1
    case ReduceOp::PRODUCT:
      return 1;
    case ReduceOp::MAX:
      return 2;
    case ReduceOp::MIN:
      return 3;
    default:
      TORCH_CHECK_VALUE(false, "NCCL reduces by SUM, PRODUCT, MIN, MAX and AVG only.");
  }
}

}  // namespace

const NcclApi& NcclApi::Get() {
  static const NcclApi api = [] {
    void* lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(lib != nullptr, "This worker has no NCCL: ", dlerror(), ".");
    NcclApi found{};
    const auto find = [&](const char* name, auto* f) {
      *f = reinterpret_cast<std::remove_pointer_t<decltype(f)>>(dlsym(lib, name));
      TORCH_CHECK(*f != nullptr, "NCCL has no function ", name, ".");
    };
    find("ncclGetUniqueId", &found.get_unique_id);
    find("ncclCommInitRank", &found.comm_init_rank);
    find("ncclCommAbort", &found.comm_abort);
    find("ncclAllReduce", &found.all_reduce);
    find("ncclBroadcast", &found.broadcast);
    find("ncclAllGather", &found.all_gather);
    find("ncclReduceScatter", &found.reduce_scatter);
    find("ncclSend", &found.send);
    find("ncclRecv", &found.receive);
    find("ncclGroupStart", &found.group_start);
    find("ncclGroupEnd", &found.group_end);
    find("ncclGetErrorString", &found.error_text);
    find("ncclGetLastError", &found.last_error);
    return found;
  }();
  return api;
}

Nccl::Nccl(const NcclApi& api, const Device& device, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size)
    : Backend(rank, size), api_(api), device_(device) {
  constexpr char kKey[] = "id";
  NcclApi::Id id{};
  if (rank == 0) {
    Check(api_.get_unique_id(&id), "begin a group");
    store->set(kKey, std::vector<uint8_t>(id.bytes, id.bytes + sizeof id.bytes));
  } else {
    const std::vector<uint8_t> given = store->get(kKey);
    TORCH_CHECK(given.size() == sizeof id.bytes, "BUG: an id of NCCL has ", given.size(), " bytes.");
    std::memcpy(id.bytes, given.data(), sizeof id.bytes);
  }
  const c10::DeviceGuard guard(device_.device());
  Check(api_.comm_init_rank(&comm_, size, id, rank), "join a group");
}

// Not destroy, which waits for the other members.
Nccl::~Nccl() {
  if (comm_ != nullptr) api_.comm_abort(comm_);
}

void Nccl::Check(int status, const char* what) const {
  if (status == 0) return;
  const char* more = api_.last_error(comm_);
  TORCH_CHECK(false, "NCCL can't ", what, ": ", api_.error_text(status),
              more != nullptr && *more != 0 ? std::string(" (") + more + ")" : "", ".");
}

Nccl::Works Nccl::Begin(OpType type, const char* what, const std::function<int(void* stream)>& call) {
  const c10::DeviceGuard guard(device_.device());
  device_.After(Stream::kSide, after_);
  Check(call(device_.SideStream()), what);
  return c10::make_intrusive<Queued>(type, device_, device_.Mark(Stream::kSide));
}

Nccl::Works Nccl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) {
  at::Tensor& t = tensors.at(0);
  const int dtype = DtypeOf(t), reduce = ReduceOf(o.reduceOp, t);
  return Begin(OpType::ALLREDUCE, "compute an all_reduce", [&](void* stream) {
    void* at = t.mutable_data_ptr();
    return api_.all_reduce(at, at, t.numel(), dtype, reduce, comm_, stream);
  });
}

Nccl::Works Nccl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) {
  at::Tensor& t = tensors.at(0);
  const int dtype = DtypeOf(t), root = static_cast<int>(o.rootRank);
  return Begin(OpType::BROADCAST, "broadcast", [&](void* stream) {
    void* at = t.mutable_data_ptr();
    return api_.broadcast(at, at, t.numel(), dtype, root, comm_, stream);
  });
}

Nccl::Works Nccl::_allgather_base(at::Tensor& out, at::Tensor& input, const c10d::AllgatherOptions&) {
  const int dtype = DtypeOf(input);
  return Begin(OpType::_ALLGATHER_BASE, "compute an all_gather", [&](void* stream) {
    return api_.all_gather(input.const_data_ptr(), out.mutable_data_ptr(), input.numel(), dtype, comm_, stream);
  });
}

Nccl::Works Nccl::_reduce_scatter_base(at::Tensor& out, at::Tensor& input, const c10d::ReduceScatterOptions& o) {
  const int dtype = DtypeOf(out), reduce = ReduceOf(o.reduceOp, out);
  return Begin(OpType::_REDUCE_SCATTER_BASE, "compute a reduce_scatter", [&](void* stream) {
    return api_.reduce_scatter(input.const_data_ptr(), out.mutable_data_ptr(), out.numel(), dtype, reduce, comm_,
                               stream);
  });
}

// The parts are one tensor, see exec/operators/Collective.cpp.
Nccl::Works Nccl::reduce_scatter(Tensors& outs, std::vector<Tensors>& parts, const c10d::ReduceScatterOptions& o) {
  at::Tensor whole = parts.at(0).at(0).as_strided({outs.at(0).numel() * getSize()}, {1});
  return _reduce_scatter_base(outs.at(0), whole, o);
}

Nccl::Works Nccl::alltoall_base(at::Tensor& out, at::Tensor& input, Sizes& out_sizes, Sizes& in_sizes,
                                const c10d::AllToAllOptions&) {
  const int dtype = DtypeOf(input);
  const auto rows = [&](const at::Tensor& t, const Sizes& sizes, int r) {
    return sizes.empty() ? t.size(0) / getSize() : sizes.at(r);
  };
  const auto row_bytes = [](const at::Tensor& t) {
    return t.size(0) == 0 ? 0 : static_cast<int64_t>(t.nbytes()) / t.size(0);
  };
  return Begin(OpType::ALLTOALL_BASE, "compute an all_to_all", [&](void* stream) {
    const auto* from = static_cast<const char*>(input.const_data_ptr());
    auto* to = static_cast<char*>(out.mutable_data_ptr());
    int failed = api_.group_start();
    for (int r = 0; r < getSize() && failed == 0; ++r) {
      const int64_t sent = rows(input, in_sizes, r) * row_bytes(input);
      const int64_t got = rows(out, out_sizes, r) * row_bytes(out);
      if (sent != 0) failed = api_.send(from, sent / input.itemsize(), dtype, r, comm_, stream);
      if (got != 0 && failed == 0) failed = api_.receive(to, got / out.itemsize(), dtype, r, comm_, stream);
      from += sent;
      to += got;
    }
    const int ended = api_.group_end();
    return failed != 0 ? failed : ended;
  });
}

}  // namespace mycelya::exec
