// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The store with which workers find each other. A worker opens no connection to a store. The worker's
// client asks the worker again and again which keys it has set and which keys it waits for. The client takes the values
// of those keys from the store of all clients.
#ifndef MYCELYA_EXEC_COLLECTIVE_RELAY_H_
#define MYCELYA_EXEC_COLLECTIVE_RELAY_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace mycelya::exec {

// A message is a sequence of entries: a byte that says what it is, and two texts, each with its length before it (4
// bytes, little endian).
enum class News : uint8_t {
  kSet = 'S',     // a key and its value
  kWanted = 'W',  // a key, and nothing
  kReady = 'R',   // nothing, and nothing: no more news will come
  kFailed = 'F',  // why, and nothing: no more news will come
};

class Relay final : public c10d::Store {
 public:
  explicit Relay(std::chrono::milliseconds timeout) : Store(timeout) {}

  // Takes the client's entries, all of kind kSet, and returns at most `most` bytes of new ones, as soon as there are
  // any. It returns "" after `limit`.
  std::string Exchange(std::string_view entries, size_t most, std::chrono::milliseconds limit);

  // Ends the exchange: why is "" if the group is ready.
  void End(const std::string& why);

  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  struct Entry {
    News what;
    std::string first, second;
  };
  void Post(Entry entry);

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::string, std::vector<uint8_t>> known_;
  std::set<std::string> wanted_;
  std::vector<Entry> news_;  // entries that Exchange has not returned yet
  bool ended_ = false;
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_COLLECTIVE_RELAY_H_
