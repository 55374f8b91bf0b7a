// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A group of workers, each with a rank, that compute collectives. A thread of its own runs them in their order, while
// the session goes on.
//
// Before a collective runs, each worker tells all others what it is about to run: so a mismatch, or a worker that has
// failed, is an error that names both sides, and no worker waits within a collective for one that will not come.
#ifndef MYCELYA_EXEC_COLLECTIVE_GROUP_H_
#define MYCELYA_EXEC_COLLECTIVE_GROUP_H_

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "exec/backend/Device.h"
#include "exec/collective/Nccl.h"
#include "exec/collective/Relay.h"

namespace mycelya::exec {

struct Member {
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{};
  std::string host;      // the address at which the other workers reach this one
  const Device& device;  // of its tensors
};

// What a worker is about to run. All members of a group run the same.
struct Collective {
  int64_t number = 0;            // among those of the group, from 0
  std::string kind;              // "all_reduce"
  int64_t dtype = 0, numel = 0;  // of the elements of each member; numel -1: members differ
  int64_t detail = 0;            // a root, or a way to reduce
  std::string line;              // of the program: "train.py:31"
};

class Group {
 public:
  // Begins to find the other members. Exchange() until it is ready; see Relay.
  explicit Group(Member member);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();  // as Abort

  std::string Exchange(std::string_view entries, size_t most, std::chrono::milliseconds limit);

  using Run = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;
  // Begins a collective. run begins it for the engine, on the group's thread, once all members are about to. What it
  // uses must not change until Wait.
  void Begin(Collective what, Run run);
  // Waits until a collective or a receive has ended. Throws its error.
  void Wait(int64_t number);
  // Begins to send to one member, or to receive from it: only the two of them take part. A send
  // copies the tensor, so that no later operator waits for the send. The number of a receive is negative.
  void Send(const at::Tensor& t, int to, int tag);
  void Receive(int64_t number, at::Tensor& t, int from, int tag);
  // Waits for the sends.
  void Finish();

  // This worker runs no collective any more. Tells the other members why, and closes the connections to them.
  void Abort(const std::string& why) noexcept;

 private:
  struct Task {
    Collective what;
    Run run;
    std::shared_ptr<void> begun;  // on a GPU: the point of its work after which it runs
  };
  struct Done {
    std::exception_ptr error;
    c10::intrusive_ptr<c10d::Work> work;  // on a GPU, where nothing has waited for it
  };
  // Between this member and another one.
  struct Transfer {
    c10::intrusive_ptr<c10d::Work> work;
    std::vector<at::Tensor> memory;
    int other;
  };
  void Meet();
  void Work();
  // Tells all members what this one is about to run, or why it has failed, and hears the same from them. Throws if one
  // of them runs something else, has failed, or does not answer.
  void Agree(const Collective& what);
  std::string Waits(const Collective& what) const;  // how its errors begin
  void Tell(int64_t number, const at::Tensor& words) noexcept;
  // Waits for a transfer. Throws if it has failed, with what it could not do.
  void Finish(const Transfer& transfer, const char* what, std::chrono::milliseconds limit) const;
  // Waits for sends, at most `limit` for each. Throws the error of one that has failed.
  void FinishSends(std::chrono::milliseconds limit);
  c10d::Backend& Engine();
  void CheckCpu() const;  // for sends and receives

  const Member member_;
  const c10::intrusive_ptr<Relay> relay_;
  c10::intrusive_ptr<c10d::Backend> engine_, control_;
  Nccl* nccl_ = nullptr;  // the engine, on a GPU
  // Of the session's thread.
  std::deque<Transfer> sends_;
  std::map<int64_t, Transfer> receives_;  // by number

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::map<int64_t, Done> done_;                         // by number
  std::vector<c10::intrusive_ptr<c10d::Work>> hearing_;  // what the thread waits for
  int64_t told_ = 0;                                     // the other members wait for what this one says about it
  bool ready_ = false, ending_ = false;
  std::exception_ptr failure_;  // of the group: no collective runs any more
  std::thread thread_;
};

// The groups that a session is in.
class Groups {
 public:
  Group& Make(int64_t id, const Member& member);  // id: the client's
  Group& At(int64_t id);
  void Leave(int64_t id);
  void Abort(const std::string& why) noexcept;  // all of them

 private:
  std::map<int64_t, std::unique_ptr<Group>> groups_;
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_COLLECTIVE_GROUP_H_
