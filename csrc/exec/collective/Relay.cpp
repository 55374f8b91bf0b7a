// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/collective/Relay.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace mycelya::exec {
namespace {

void PutText(std::string& out, std::string_view text) {
  const auto n = static_cast<uint32_t>(text.size());
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(n >> shift & 0xff));
  out += text;
}

std::string_view TakeText(std::string_view& from) {
  TORCH_CHECK_VALUE(from.size() >= 4, "A rendezvous has an entry without its end.");
  uint32_t n = 0;
  for (int i = 0; i < 4; ++i) n |= static_cast<uint32_t>(static_cast<uint8_t>(from[i])) << 8 * i;
  from.remove_prefix(4);
  TORCH_CHECK_VALUE(n <= from.size(), "A rendezvous has a text of ", n, " bytes in ", from.size(), ".");
  const std::string_view text = from.substr(0, n);
  from.remove_prefix(n);
  return text;
}

}  // namespace

std::string Relay::Exchange(std::string_view entries, size_t most, std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!entries.empty()) {
    const auto what = static_cast<News>(entries[0]);
    entries.remove_prefix(1);
    TORCH_CHECK_VALUE(what == News::kSet, "A client sets keys of a rendezvous, and does nothing else.");
    const std::string_view key = TakeText(entries), value = TakeText(entries);
    known_[std::string(key)] = std::vector<uint8_t>(value.begin(), value.end());
  }
  changed_.notify_all();
  changed_.wait_for(lock, limit, [&] { return !news_.empty(); });
  std::string out;
  size_t taken = 0;
  for (; taken < news_.size(); ++taken) {
    const Entry& e = news_[taken];
    if (out.size() + e.first.size() + e.second.size() + 9 > most) break;
    out.push_back(static_cast<char>(e.what));
    PutText(out, e.first);
    PutText(out, e.second);
  }
  TORCH_CHECK_VALUE(taken > 0 || news_.empty(), "A key of a rendezvous has ", news_[0].second.size(),
                    " bytes, and at most ", most, " can be sent.");
  news_.erase(news_.begin(), news_.begin() + static_cast<std::ptrdiff_t>(taken));
  return out;
}

void Relay::End(const std::string& why) {
  const std::lock_guard<std::mutex> guard(mutex_);
  ended_ = true;
  Post({why.empty() ? News::kReady : News::kFailed, why, ""});
}

// The caller holds the mutex.
void Relay::Post(Entry entry) {
  news_.push_back(std::move(entry));
  changed_.notify_all();
}

c10::intrusive_ptr<c10d::Store> Relay::clone() { return c10::intrusive_ptr<Relay>::reclaim_copy(this); }

void Relay::set(const std::string& key, const std::vector<uint8_t>& value) {
  const std::lock_guard<std::mutex> guard(mutex_);
  known_[key] = value;
  Post({News::kSet, key, std::string(value.begin(), value.end())});
}

std::vector<uint8_t> Relay::get(const std::string& key) {
  wait({key});
  const std::lock_guard<std::mutex> guard(mutex_);
  return known_.at(key);
}

int64_t Relay::add(const std::string& key, int64_t value) { TORCH_CHECK(false, "BUG: a rendezvous adds to a key."); }

bool Relay::deleteKey(const std::string& key) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return known_.erase(key) > 0;
}

bool Relay::check(const std::vector<std::string>& keys) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& k) { return known_.count(k) > 0; });
}

int64_t Relay::getNumKeys() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return static_cast<int64_t>(known_.size());
}

void Relay::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void Relay::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (const std::string& key : keys) {
    if (known_.count(key) == 0 && wanted_.insert(key).second) Post({News::kWanted, key, ""});
  }
  const auto all = [&] {
    return ended_ || std::all_of(keys.begin(), keys.end(), [&](const std::string& k) { return known_.count(k) > 0; });
  };
  TORCH_CHECK(changed_.wait_for(lock, timeout, all) && !ended_, "No answer has come for ", keys, " in ",
              timeout.count(), " ms.");
}

}  // namespace mycelya::exec
