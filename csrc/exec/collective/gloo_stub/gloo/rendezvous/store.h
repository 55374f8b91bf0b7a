// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_EXEC_COLLECTIVE_GLOO_STUB_GLOO_RENDEZVOUS_STORE_H_
#define MYCELYA_EXEC_COLLECTIVE_GLOO_STUB_GLOO_RENDEZVOUS_STORE_H_

#include <gloo/context.h>

#include <string>
#include <vector>

namespace gloo::rendezvous {

// The base of a class in PyTorch's header, which is not made here.
struct Store {
  virtual ~Store() = default;
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
  virtual bool has_v2_support() = 0;
  virtual std::vector<std::vector<char>> multi_get(const std::vector<std::string>&) = 0;
  virtual void multi_set(const std::vector<std::string>&, const std::vector<std::vector<char>>&) = 0;
  virtual void append(const std::string&, const std::vector<char>&) = 0;
  virtual int64_t add(const std::string&, int64_t) = 0;
};

}  // namespace gloo::rendezvous

#endif  // MYCELYA_EXEC_COLLECTIVE_GLOO_STUB_GLOO_RENDEZVOUS_STORE_H_
