// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What PyTorch's header of its Gloo backend needs of Gloo's own headers, which PyTorch's package does not have. Nothing
// here is used but as a name.
#ifndef MYCELYA_EXEC_COLLECTIVE_GLOO_STUB_GLOO_CONTEXT_H_
#define MYCELYA_EXEC_COLLECTIVE_GLOO_STUB_GLOO_CONTEXT_H_

#include <chrono>

namespace gloo {

struct Context {
  void setTimeout(std::chrono::milliseconds);
};

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

}  // namespace gloo

#endif  // MYCELYA_EXEC_COLLECTIVE_GLOO_STUB_GLOO_CONTEXT_H_
