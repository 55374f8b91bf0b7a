// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The engine for GPUs, with a stand-in for NCCL: members are threads, and their tensors are in CPU memory. It notes
// each call, in the order in which a device's two streams would get it.
#include "exec/collective/Nccl.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

namespace mycelya::exec::nccl_test {
namespace {

constexpr int kMembers = 3;

std::mutex world_mutex;  // guards what follows
std::condition_variable world_changed;
std::map<std::pair<int, int>, std::deque<std::vector<char>>> mail;  // by sender and receiver

struct Member {
  int rank = 0;
  int marks = 0;
  std::vector<std::string> calls;
  std::vector<std::function<void()>> sends, receives;  // of a group
};
thread_local Member* me = nullptr;
thread_local int fails = 0;  // what the next call returns

int Note(const std::string& call, void* stream) {
  me->calls.push_back(call + (stream == &me->calls ? "" : " in another stream"));
  return std::exchange(fails, 0);
}

size_t BytesOf(int dtype) { return std::map<int, size_t>{{1, 1}, {2, 4}, {4, 8}, {7, 4}}.at(dtype); }

void Post(int to, const void* from, size_t bytes) {
  const std::lock_guard<std::mutex> guard(world_mutex);
  const char* first = static_cast<const char*>(from);
  mail[{me->rank, to}].emplace_back(first, first + bytes);
  world_changed.notify_all();
}

std::vector<char> Take(int from) {
  std::unique_lock<std::mutex> lock(world_mutex);
  auto& box = mail[{from, me->rank}];
  world_changed.wait(lock, [&] { return !box.empty(); });
  std::vector<char> bytes = std::move(box.front());
  box.pop_front();
  return bytes;
}

std::vector<std::vector<char>> Exchange(const void* from, size_t bytes) {
  for (int r = 0; r < kMembers; ++r) Post(r, from, bytes);
  std::vector<std::vector<char>> all;
  for (int r = 0; r < kMembers; ++r) all.push_back(Take(r));
  return all;
}

template <typename T>
void ReduceInto(void* to, const std::vector<std::vector<char>>& all, size_t first, size_t n, int reduce) {
  for (size_t i = 0; i < n; ++i) {
    const auto of = [&](int r) { return reinterpret_cast<const T*>(all[r].data())[first + i]; };
    T value = of(0);
    for (int r = 1; r < kMembers; ++r) {
      value = reduce == 0   ? value + of(r)
              : reduce == 1 ? value * of(r)
              : reduce == 2 ? std::max(value, of(r))
                            : std::min(value, of(r));
    }
    static_cast<T*>(to)[i] = value;
  }
}

void Reduce(void* to, const std::vector<std::vector<char>>& all, size_t first, size_t n, int dtype, int reduce) {
  if (dtype == 7) return ReduceInto<float>(to, all, first, n, reduce);
  if (dtype == 1) return ReduceInto<uint8_t>(to, all, first, n, reduce);
  return ReduceInto<int64_t>(to, all, first, n, reduce);
}

std::string Text(size_t n, int dtype, int more) {
  return std::to_string(n) + " of dtype " + std::to_string(dtype) + ", " + std::to_string(more);
}

NcclApi StandIn() {
  NcclApi api{};
  api.get_unique_id = [](NcclApi::Id* id) {
    std::strcpy(id->bytes, "the members");
    return 0;
  };
  api.comm_init_rank = [](void** comm, int size, NcclApi::Id id, int rank) {
    EXPECT_EQ(size, kMembers);
    EXPECT_STREQ(id.bytes, "the members");
    EXPECT_EQ(rank, me->rank);
    *comm = me;
    return 0;
  };
  api.comm_abort = [](void* comm) {
    static_cast<Member*>(comm)->calls.push_back("abort");
    return 0;
  };
  api.all_reduce = [](const void* from, void* to, size_t n, int dtype, int reduce, void*, void* stream) {
    if (const int failed = Note("all_reduce " + Text(n, dtype, reduce), stream)) return failed;
    Reduce(to, Exchange(from, n * BytesOf(dtype)), 0, n, dtype, reduce);
    return 0;
  };
  api.broadcast = [](const void* from, void* to, size_t n, int dtype, int root, void*, void* stream) {
    const std::vector<char> of_root = Exchange(from, n * BytesOf(dtype))[root];
    std::memcpy(to, of_root.data(), of_root.size());
    return Note("broadcast " + Text(n, dtype, root), stream);
  };
  api.all_gather = [](const void* from, void* to, size_t n, int dtype, void*, void* stream) {
    const auto all = Exchange(from, n * BytesOf(dtype));
    for (int r = 0; r < kMembers; ++r) {
      std::memcpy(static_cast<char*>(to) + r * all[r].size(), all[r].data(), all[r].size());
    }
    return Note("all_gather " + Text(n, dtype, 0), stream);
  };
  api.reduce_scatter = [](const void* from, void* to, size_t n, int dtype, int reduce, void*, void* stream) {
    Reduce(to, Exchange(from, kMembers * n * BytesOf(dtype)), me->rank * n, n, dtype, reduce);
    return Note("reduce_scatter " + Text(n, dtype, reduce), stream);
  };
  api.send = [](const void* from, size_t n, int dtype, int peer, void*, void* stream) {
    me->sends.push_back([=] { Post(peer, from, n * BytesOf(dtype)); });
    return Note("send " + Text(n, dtype, peer), stream);
  };
  api.receive = [](void* to, size_t n, int dtype, int peer, void*, void* stream) {
    me->receives.push_back([=] {
      const std::vector<char> got = Take(peer);
      EXPECT_EQ(got.size(), n * BytesOf(dtype));
      std::memcpy(to, got.data(), got.size());
    });
    return Note("receive " + Text(n, dtype, peer), stream);
  };
  api.group_start = [] {
    me->calls.push_back("group");
    return 0;
  };
  api.group_end = [] {
    for (const auto& send : std::exchange(me->sends, {})) send();
    for (const auto& receive : std::exchange(me->receives, {})) receive();
    me->calls.push_back("end of the group");
    return 0;
  };
  api.error_text = [](int) { return "unhandled error"; };
  api.last_error = [](void*) { return "the cable is cut"; };
  return api;
}

// A device with two streams that notes how they wait for each other.
class Streamed final : public Device {
 public:
  explicit Streamed(Member* member) : Device(c10::Device(c10::kCPU)), member_(member) {}

  std::string Name() const override { return ""; }
  uint64_t MemoryBytes() const override { return 0; }
  c10::Allocator* Memory() const override { return nullptr; }
  c10::Allocator* HostMemory() const override { return nullptr; }
  void Synchronize() const override {}
  void EmptyCache() const override {}
  uint64_t FreeBytes() const override { return 0; }
  void RecordEvent(int64_t) const override {}
  void ForgetEvent(int64_t) const override {}
  double Elapsed(int64_t, int64_t) const override { return 0; }

  std::shared_ptr<void> Mark(Stream stream) const override {
    const int number = ++member_->marks;
    member_->calls.push_back("mark " + std::to_string(number) + NameOf(stream));
    return std::make_shared<int>(number);
  }
  void After(Stream stream, const std::shared_ptr<void>& mark) const override {
    member_->calls.push_back("after mark " + std::to_string(*static_cast<int*>(mark.get())) + NameOf(stream));
  }
  void* SideStream() const override { return &member_->calls; }

 private:
  static std::string NameOf(Stream stream) { return stream == Stream::kSide ? " beside" : ""; }
  Member* const member_;
};

// Runs a function for each member. Returns their calls.
std::vector<std::vector<std::string>> WithMembers(const std::function<void(Nccl&, const Device&, int rank)>& body) {
  static const NcclApi api = StandIn();
  mail.clear();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Member> members(kMembers);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kMembers; ++rank) {
    threads.emplace_back([&, rank] {
      me = &members[rank];
      me->rank = rank;
      const Streamed device(me);
      const auto nccl = c10::make_intrusive<Nccl>(api, device, store, rank, kMembers);
      body(*nccl, device, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::vector<std::string>> calls;
  for (Member& member : members) calls.push_back(std::move(member.calls));
  return calls;
}

// What each member does: the collective runs after what the device was given, and what follows runs after it.
void Complete(Nccl& nccl, const Device& device, const std::function<c10::intrusive_ptr<c10d::Work>()>& begin) {
  nccl.After(device.Mark(Stream::kCurrent));
  begin()->wait();
}

TEST(Nccl, RunsBesideTheOtherWork) {
  const auto calls = WithMembers([](Nccl& nccl, const Device& device, int rank) {
    std::vector<at::Tensor> one{at::full({4}, rank + 1.5f)};
    Complete(nccl, device, [&] { return nccl.allreduce(one, {}); });
    EXPECT_TRUE(at::equal(one[0], at::full({4}, 7.5f)));
  });
  const std::vector<std::string> expected{"mark 1",        "after mark 1 beside", "all_reduce 4 of dtype 7, 0",
                                          "mark 2 beside", "after mark 2",        "abort"};
  for (const auto& of_one : calls) EXPECT_EQ(of_one, expected);
}

TEST(Nccl, HasTheValuesOfAllMembers) {
  WithMembers([](Nccl& nccl, const Device& device, int rank) {
    const at::Tensor mine = at::arange(6, at::kLong).add(10 * rank);
    std::vector<at::Tensor> one{mine.clone()};
    c10d::AllreduceOptions largest;
    largest.reduceOp = c10d::ReduceOp::MAX;
    Complete(nccl, device, [&] { return nccl.allreduce(one, largest); });
    EXPECT_TRUE(at::equal(one[0], at::arange(6, at::kLong).add(20)));

    std::vector<at::Tensor> bits{at::arange(3).eq(rank).logical_and(at::arange(3).ne(1))};
    Complete(nccl, device, [&] { return nccl.allreduce(bits, {}); });
    EXPECT_TRUE(at::equal(bits[0], at::arange(3).ne(1)));

    one[0] = mine.clone();
    c10d::BroadcastOptions from;
    from.rootRank = 1;
    Complete(nccl, device, [&] { return nccl.broadcast(one, from); });
    EXPECT_TRUE(at::equal(one[0], at::arange(6, at::kLong).add(10)));

    at::Tensor input = mine.clone(), all = at::zeros({18}, at::kLong);
    Complete(nccl, device, [&] { return nccl._allgather_base(all, input, {}); });
    EXPECT_TRUE(at::equal(all.view({3, 6}).select(1, 0), at::arange(3).mul(10)));

    at::Tensor part = at::zeros({2}, at::kLong);
    Complete(nccl, device, [&] { return nccl._reduce_scatter_base(part, input, {}); });
    const at::Tensor sums = at::arange(6, at::kLong).mul(3).add(30);
    EXPECT_TRUE(at::equal(part, sums.slice(0, 2 * rank, 2 * rank + 2)));

    std::vector<at::Tensor> outs{at::zeros({2}, at::kLong)};
    std::vector<std::vector<at::Tensor>> parts{input.split(2)};
    Complete(nccl, device, [&] { return nccl.reduce_scatter(outs, parts, {}); });
    EXPECT_TRUE(at::equal(outs[0], part));
  });
}

TEST(Nccl, SendsOtherNumbersOfRowsToEachMember) {
  const auto calls = WithMembers([](Nccl& nccl, const Device& device, int rank) {
    // Member r sends r rows of two elements to each member, also to itself.
    at::Tensor input = at::full({3 * rank, 2}, rank, at::kInt), out = at::zeros({3, 2}, at::kInt);
    std::vector<int64_t> sent(kMembers, rank), got{0, 1, 2};
    Complete(nccl, device, [&] { return nccl.alltoall_base(out, input, got, sent, {}); });
    EXPECT_TRUE(at::equal(out.select(1, 1), at::arange(1, 4, at::kInt).clamp_max(2)));

    at::Tensor even = at::arange(3, at::kLong).add(10 * rank), turned = at::zeros({3}, at::kLong);
    std::vector<int64_t> none;
    Complete(nccl, device, [&] { return nccl.alltoall_base(turned, even, none, none, {}); });
    EXPECT_TRUE(at::equal(turned, at::arange(3, at::kLong).mul(10).add(rank)));
  });
  const std::vector<std::string> first{"group", "receive 2 of dtype 2, 1", "receive 4 of dtype 2, 2",
                                       "end of the group"};
  EXPECT_EQ(std::vector<std::string>(calls[0].begin() + 2, calls[0].begin() + 6), first);
}

TEST(Nccl, SaysWhatFails) {
  WithMembers([](Nccl& nccl, const Device& device, int) {
    const auto text = [&](const std::function<void()>& call) -> std::string {
      nccl.After(device.Mark(Stream::kCurrent));
      try {
        call();
      } catch (const c10::Error& e) {
        return e.what_without_backtrace();
      }
      return "";
    };
    std::vector<at::Tensor> one{at::zeros({2})}, complex{at::zeros({2}, at::kComplexFloat)};
    c10d::AllreduceOptions bits;
    bits.reduceOp = c10d::ReduceOp::BXOR;
    fails = 2;
    EXPECT_EQ(text([&] { nccl.allreduce(one, {}); }),
              "NCCL can't compute an all_reduce: unhandled error (the cable is cut).");
    EXPECT_EQ(text([&] { nccl.allreduce(complex, {}); }), "NCCL has no tensors of dtype ComplexFloat.");
    EXPECT_EQ(text([&] { nccl.allreduce(one, bits); }), "NCCL reduces by SUM, PRODUCT, MIN, MAX and AVG only.");
  });
}

// PyTorch's packages for CUDA bring NCCL, which loads without a GPU.
TEST(Nccl, TheLibraryHasTheFunctions) {
  Dl_info torch{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&at::get_num_threads), &torch), 0);
  const std::string folder(torch.dli_fname, std::strrchr(torch.dli_fname, '/'));
  if (dlopen((folder + "/../../nvidia/nccl/lib/libnccl.so.2").c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    GTEST_SKIP() << "this PyTorch is not for CUDA: " << dlerror();
  }
  EXPECT_STREQ(NcclApi::Get().error_text(0), "no error");
}

}  // namespace
}  // namespace mycelya::exec::nccl_test
