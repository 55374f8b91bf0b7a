// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/tensor/Thread.h"

#include <new>

namespace mycelya {
namespace {

void Drop(Spares& spares) {
  while (spares.first != nullptr) {
    void* p = spares.first;
    spares.first = *static_cast<void**>(p);
    ::operator delete(p);
  }
  spares.count = 0;
}

// Frees the kept memory when the thread ends. Objects freed later, by destructors of other variables, are not kept.
struct Keeper {
  ~Keeper() {
    this_thread.keeps = false;
    Drop(this_thread.tensors);
    Drop(this_thread.storages);
  }
  bool used = false;  // after its destruction no other Keeper is made
};

}  // namespace

thread_local constinit Thread this_thread{};

void GiveSlow(Spares& spares, void* p) {
  static thread_local Keeper keeper;
  if (keeper.used) return ::operator delete(p);
  keeper.used = this_thread.keeps = true;
  Give(spares, p);
}

}  // namespace mycelya
