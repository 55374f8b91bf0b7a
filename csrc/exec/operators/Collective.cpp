// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Collectives among workers. An operator begins one; comm_wait waits until it has run. Their numbers count the
// collectives of a group; those of receives are negative. line: the line of the program, for errors of other workers.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "abi/mycelya.h"
#include "exec/collective/Group.h"
#include "exec/session/Executor.h"

namespace mycelya::exec {
namespace {

constexpr char kPeers[] = "MYCELYA_PEERS";
// How long a worker waits for news of a rendezvous before it answers that there are none.
constexpr std::chrono::milliseconds kNewsWait{1000};

Group& GroupOf(int64_t id) { return Executor::Current().groups().At(id); }

// One exchange of the rendezvous of a new group: takes what other members have set, and returns what is new here, as
// u8[MYC_JOIN_BYTES]: its length in 8 bytes, and the message. See Relay.
at::Tensor Join(int64_t group, int64_t rank, int64_t size, int64_t timeout_ms, const at::Tensor& entries) {
  TORCH_CHECK_VALUE(size > 0 && rank >= 0 && rank < size, "There is no rank ", rank, " in a group of ", size, ".");
  const char* host = std::getenv(kPeers);
  TORCH_CHECK(host != nullptr && *host != 0, "This worker has no address at which other workers reach it. Its owner ",
              "gives it one with ", kPeers, ".");
  const Member member{static_cast<int>(rank), static_cast<int>(size), std::chrono::milliseconds(timeout_ms), host,
                      Executor::Current().device()};
  const at::Tensor cpu = entries.cpu().contiguous();
  const std::string_view text(static_cast<const char*>(cpu.const_data_ptr()), cpu.nbytes());
  const std::string news =
      Executor::Current().groups().Make(group, member).Exchange(text, MYC_JOIN_BYTES - sizeof(uint64_t), kNewsWait);
  at::Tensor out = at::zeros({MYC_JOIN_BYTES}, at::kByte);
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  const uint64_t n = news.size();
  std::memcpy(to, &n, sizeof n);
  std::memcpy(to + sizeof n, news.data(), news.size());
  return out;
}

void Leave(int64_t group) { Executor::Current().groups().Leave(group); }

Collective What(int64_t number, const char* kind, const at::Tensor& t, int64_t detail, c10::string_view line) {
  return {number,    kind,   static_cast<int64_t>(t.scalar_type()),
          t.numel(), detail, std::string(line.data(), line.size())};
}

// The elements as one dimension: Gloo wants other shapes of outputs than c10d.
at::Tensor Flat(const at::Tensor& t) {
  TORCH_CHECK_VALUE(t.is_contiguous(), "BUG: a collective has a tensor that is not contiguous.");
  return t.view({-1});
}

c10d::ReduceOp ReduceOf(int64_t code) {
  constexpr int64_t kLast = c10d::ReduceOp::BXOR;
  TORCH_CHECK_VALUE(code >= 0 && code <= kLast, "BUG: ", code, " is no way to reduce.");
  return c10d::ReduceOp(static_cast<c10d::ReduceOp::RedOpType>(code));
}

void AllReduce(const at::Tensor& self, int64_t group, int64_t number, int64_t reduce, c10::string_view line) {
  c10d::AllreduceOptions options;
  options.reduceOp = ReduceOf(reduce);
  GroupOf(group).Begin(What(number, "all_reduce", self, reduce, line), [self = Flat(self), options](c10d::Backend& b) {
    std::vector<at::Tensor> one{self};
    return b.allreduce(one, options);
  });
}

void Broadcast(const at::Tensor& self, int64_t group, int64_t number, int64_t root, c10::string_view line) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  GroupOf(group).Begin(What(number, "broadcast", self, root, line), [self = Flat(self), options](c10d::Backend& b) {
    std::vector<at::Tensor> one{self};
    return b.broadcast(one, options);
  });
}

void AllGather(at::Tensor out, at::Tensor input, int64_t group, int64_t number, c10::string_view line) {
  GroupOf(group).Begin(
      What(number, "all_gather", input, 0, line),
      [out = Flat(out), input = Flat(input)](c10d::Backend& b) mutable { return b._allgather_base(out, input); });
}

void ReduceScatter(at::Tensor out, at::Tensor input, int64_t in_parts, int64_t group, int64_t number, int64_t reduce,
                   c10::string_view line) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = ReduceOf(reduce);
  GroupOf(group).Begin(What(number, "reduce_scatter", out, reduce, line),
                       [out = Flat(out), input = Flat(input), in_parts, options](c10d::Backend& b) mutable {
                         if (in_parts == 0) return b._reduce_scatter_base(out, input, options);
                         std::vector<at::Tensor> outs{out};
                         std::vector<std::vector<at::Tensor>> parts{input.split(out.numel())};
                         return b.reduce_scatter(outs, parts, options);
                       });
}

void AllToAll(at::Tensor out, at::Tensor input, at::IntArrayRef out_sizes, at::IntArrayRef in_sizes, int64_t group,
              int64_t number, c10::string_view line) {
  Collective what = What(number, "all_to_all", input, 0, line);
  what.numel = -1;  // members may send and receive different numbers of elements
  GroupOf(group).Begin(std::move(what),
                       [out, input, outs = out_sizes.vec(), ins = in_sizes.vec()](c10d::Backend& b) mutable {
                         return b.alltoall_base(out, input, outs, ins);
                       });
}

void Send(const at::Tensor& self, int64_t group, int64_t to, int64_t tag) {
  GroupOf(group).Send(self, static_cast<int>(to), static_cast<int>(tag));
}

void Receive(at::Tensor self, int64_t group, int64_t number, int64_t from, int64_t tag) {
  GroupOf(group).Receive(number, self, static_cast<int>(from), static_cast<int>(tag));
}

// out: what the collective writes. input: what it reads besides; it is named so that its memory stays until then.
void Wait(const at::Tensor& /*out*/, const std::optional<at::Tensor>& /*input*/, int64_t group, int64_t number) {
  GroupOf(group).Wait(number);
}

TORCH_LIBRARY_FRAGMENT(mycelya, m) {
  m.def("comm_join(int group, int rank, int size, int timeout_ms, Tensor entries) -> Tensor", &Join);
  m.def("comm_leave(int group) -> ()", &Leave);
  m.def("comm_all_reduce(Tensor(a!) self, int group, int number, int reduce, str line) -> ()", &AllReduce);
  m.def("comm_broadcast(Tensor(a!) self, int group, int number, int root, str line) -> ()", &Broadcast);
  m.def("comm_all_gather(Tensor(a!) out, Tensor input, int group, int number, str line) -> ()", &AllGather);
  m.def(
      "comm_reduce_scatter(Tensor(a!) out, Tensor input, int in_parts, int group, int number, int reduce, str line) -> "
      "()",
      &ReduceScatter);
  m.def(
      "comm_all_to_all(Tensor(a!) out, Tensor input, int[] out_sizes, int[] in_sizes, int group, int number, "
      "str line) -> ()",
      &AllToAll);
  m.def("comm_send(Tensor self, int group, int to, int tag) -> ()", &Send);
  m.def("comm_receive(Tensor(a!) self, int group, int number, int source, int tag) -> ()", &Receive);
  m.def("comm_wait(Tensor(a!) out, Tensor? input, int group, int number) -> ()", &Wait);
}

}  // namespace
}  // namespace mycelya::exec
