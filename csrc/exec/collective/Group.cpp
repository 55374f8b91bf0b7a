// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/collective/Group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

namespace mycelya::exec {
namespace {

// How long a member tries to tell the others that it has failed.
constexpr std::chrono::milliseconds kLastWords{2000};

// What a member says, as bytes that all members send in one size.
struct Words {
  int64_t number, dtype, numel, detail;
  char failed;  // 1: text says why, and there is no collective
  char kind[31];
  char text[448];
};

void PutText(char* to, size_t room, std::string_view text) {
  const size_t n = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

at::Tensor Encode(const Collective& what, std::string_view failure) {
  at::Tensor bytes = at::zeros({sizeof(Words)}, at::kByte);
  auto& words = *static_cast<Words*>(bytes.mutable_data_ptr());
  words.number = what.number;
  words.dtype = what.dtype;
  words.numel = what.numel;
  words.detail = what.detail;
  words.failed = !failure.empty();
  PutText(words.kind, sizeof words.kind, what.kind);
  PutText(words.text, sizeof words.text, failure.empty() ? what.line : failure);
  return bytes;
}

Words Decode(const at::Tensor& bytes) {
  Words words;
  std::memcpy(&words, bytes.const_data_ptr(), sizeof words);
  words.kind[sizeof words.kind - 1] = words.text[sizeof words.text - 1] = 0;
  return words;
}

std::string Place(const std::string& line) { return line.empty() ? "" : ", " + line; }

// "all_reduce #12 of 8 elements, train.py:31"
std::string Describe(const Words& w) {
  const std::string elements = w.numel < 0 ? "" : " of " + std::to_string(w.numel) + " elements";
  return std::string(w.kind) + " #" + std::to_string(w.number) + elements + Place(w.text);
}

}  // namespace

Group::Group(Member member)
    : member_(std::move(member)), relay_(c10::make_intrusive<Relay>(member_.timeout)), thread_([this] {
        try {
          Meet();
        } catch (const std::exception& e) {
          {
            const std::lock_guard<std::mutex> guard(mutex_);
            failure_ = std::current_exception();
          }
          relay_->End(e.what());
          return;
        }
        relay_->End("");
        Work();
      }) {}

Group::~Group() {
  try {
    FinishSends(kLastWords);
  } catch (const std::exception&) {  // the receiver notices
  }
  Abort("its session has ended");
}

std::string Group::Exchange(std::string_view entries, size_t most, std::chrono::milliseconds limit) {
  return relay_->Exchange(entries, most, limit);
}

void Group::Meet() {
  const auto make = [&](const char* name) {
    auto options = c10d::ProcessGroupGloo::Options::create(member_.timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(member_.host));
    const auto store = c10::make_intrusive<c10d::PrefixStore>(name, relay_);
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, member_.rank, member_.size, options);
  };
  control_ = make("control");
  if (member_.device.is_cpu()) {
    engine_ = make("data");
  } else {
    const auto store = c10::make_intrusive<c10d::PrefixStore>("nccl", relay_);
    auto nccl = c10::make_intrusive<Nccl>(NcclApi::Get(), member_.device, store, member_.rank, member_.size);
    nccl_ = nccl.get();
    engine_ = std::move(nccl);
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  ready_ = true;
  changed_.notify_all();
}

void Group::Begin(Collective what, Run run) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  tasks_.push_back({std::move(what), std::move(run), nccl_ ? member_.device.Mark(Stream::kCurrent) : nullptr});
  changed_.notify_all();
}

void Group::Wait(int64_t number) {
  if (const auto found = receives_.find(number); found != receives_.end()) {
    const Transfer receive = std::move(found->second);
    receives_.erase(found);
    Finish(receive, "receive from", member_.timeout);
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return done_.count(number) > 0 || failure_; });
  Done done{failure_, nullptr};
  if (const auto found = done_.find(number); found != done_.end()) {
    done = std::move(found->second);
    done_.erase(found);
  }
  if (done.error) std::rethrow_exception(done.error);
  if (done.work) done.work->wait();
}

c10d::Backend& Group::Engine() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  TORCH_CHECK(ready_, "BUG: a group is used before it is ready.");
  return *engine_;
}

void Group::Send(const at::Tensor& t, int to, int tag) {
  CheckCpu();
  while (!sends_.empty() && sends_.front().work->isCompleted()) {
    Finish(sends_.front(), "send to", member_.timeout);
    sends_.pop_front();
  }
  Transfer send{nullptr, {t.clone()}, to};
  send.work = Engine().send(send.memory, to, tag);
  sends_.push_back(std::move(send));
}

void Group::Receive(int64_t number, at::Tensor& t, int from, int tag) {
  CheckCpu();
  Transfer receive{nullptr, {t}, from};
  receive.work = Engine().recv(receive.memory, from, tag);
  receives_[number] = std::move(receive);
}

void Group::CheckCpu() const {
  TORCH_CHECK_NOT_IMPLEMENTED(!nccl_, "Workers on GPUs do not send to one another yet: use a collective.");
}

void Group::Finish() { FinishSends(member_.timeout); }

void Group::FinishSends(std::chrono::milliseconds limit) {
  while (!sends_.empty()) {
    const Transfer send = std::move(sends_.front());
    sends_.pop_front();
    Finish(send, "send to", limit);
  }
}

void Group::Finish(const Transfer& transfer, const char* what, std::chrono::milliseconds limit) const {
  try {
    transfer.work->wait(limit);
  } catch (const std::exception& e) {
    TORCH_CHECK(false, "Rank ", member_.rank, " cannot ", what, " rank ", transfer.other, ": ", e.what());
  }
}

void Group::Work() {
  const c10::InferenceMode inference(true);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !tasks_.empty() || ending_; });
    if (ending_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    Done done;
    try {
      Agree(task.what);
      if (nccl_) nccl_->After(std::move(task.begun));
      done.work = task.run(*engine_);
      if (!nccl_) std::exchange(done.work, nullptr)->wait();
    } catch (const c10::Error&) {
      done.error = std::current_exception();
    } catch (const std::exception& e) {  // of Gloo
      const std::string text = Waits(task.what) + ", and the exchange with another rank fails: " + e.what();
      done.error = std::make_exception_ptr(std::runtime_error(text));
    }
    task.run = nullptr;  // what it keeps is free before the session goes on
    lock.lock();
    const std::exception_ptr error = done.error;
    done_[task.what.number] = std::move(done);
    if (error && !failure_) failure_ = error;
    changed_.notify_all();
    if (error) return;
  }
}

std::string Group::Waits(const Collective& what) const {
  return "Rank " + std::to_string(member_.rank) + " waits in " + Describe(Decode(Encode(what, "")));
}

void Group::Agree(const Collective& what) {
  const at::Tensor mine = Encode(what, "");
  std::vector<at::Tensor> theirs(member_.size);
  std::vector<c10::intrusive_ptr<c10d::Work>> heard(member_.size);
  std::vector<std::string> lost(member_.size);  // why there is nothing to be heard
  const auto tag = static_cast<int>(what.number & 0x7fffffff);
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (ending_) std::rethrow_exception(failure_);
    told_ = what.number + 1;
    for (int r = 0; r < member_.size; ++r) {
      if (r == member_.rank) continue;
      theirs[r] = at::empty({sizeof(Words)}, at::kByte);
      std::vector<at::Tensor> one{theirs[r]};
      try {
        heard[r] = control_->recv(one, r, tag);
      } catch (const std::exception& e) {  // the connection has ended already
        lost[r] = e.what();
        continue;
      }
      hearing_.push_back(heard[r]);
    }
  }
  Tell(what.number, mine);
  const std::string me = Waits(what);
  for (int r = 0; r < member_.size; ++r) {
    if (r == member_.rank) continue;
    bool has_come = false;
    try {
      has_come = heard[r] && heard[r]->wait(member_.timeout);
    } catch (const std::exception& e) {
      lost[r] = e.what();
    }
    TORCH_CHECK(has_come, me, ", and rank ", r,
                " does not take part: ", lost[r].empty() ? "this worker has stopped" : lost[r]);
    const Words words = Decode(theirs[r]);
    TORCH_CHECK(!words.failed, me, ", but rank ", r, " has failed: ", words.text);
    const Words own = Decode(mine);
    TORCH_CHECK(std::strcmp(words.kind, own.kind) == 0 && words.number == own.number && words.dtype == own.dtype &&
                    words.numel == own.numel && words.detail == own.detail,
                me, ", but rank ", r, " is at ", Describe(words), ".");
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  hearing_.clear();
}

void Group::Tell(int64_t number, const at::Tensor& words) noexcept {
  const auto tag = static_cast<int>(number & 0x7fffffff);
  std::vector<c10::intrusive_ptr<c10d::Work>> sent;
  for (int r = 0; r < member_.size; ++r) {
    if (r == member_.rank) continue;
    try {
      std::vector<at::Tensor> one{words};
      sent.push_back(control_->send(one, r, tag));
    } catch (const std::exception&) {  // the member is lost; hearing from it says so
    }
  }
  for (const auto& work : sent) {
    try {
      work->wait(kLastWords);
    } catch (const std::exception&) {
    }
  }
}

void Group::Abort(const std::string& why) noexcept {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (std::exchange(ending_, true)) return;
    if (!failure_) failure_ = std::make_exception_ptr(std::runtime_error(why));
    for (const auto& work : hearing_) work->abort();
    changed_.notify_all();
  }
  relay_->End(why);
  for (auto& [number, receive] : receives_) receive.work->abort();
  receives_.clear();
  sends_.clear();
  thread_.join();
  Collective none;
  none.number = told_;
  if (control_) Tell(none.number, Encode(none, why));
  engine_.reset();
  control_.reset();
}

Group& Groups::Make(int64_t id, const Member& member) {
  std::unique_ptr<Group>& group = groups_[id];
  if (!group) group = std::make_unique<Group>(member);
  return *group;
}

Group& Groups::At(int64_t id) {
  const auto found = groups_.find(id);
  TORCH_CHECK(found != groups_.end(), "This worker was started after its process had made the group: call ",
              "destroy_process_group() and init_process_group() again.");
  return *found->second;
}

void Groups::Leave(int64_t id) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return;
  const std::unique_ptr<Group> group = std::move(found->second);
  groups_.erase(found);
  group->Finish();
}

void Groups::Abort(const std::string& why) noexcept {
  for (const auto& [id, group] : groups_) group->Abort(why);
}

}  // namespace mycelya::exec
