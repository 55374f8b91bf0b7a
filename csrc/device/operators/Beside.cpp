// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/operators/Beside.h"

#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/client/Client.h"
#include "device/record/Failure.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"
#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

// The most bytes that a worker passes at once (maxPass in worker/session/pass.go).
constexpr int64_t kMostBytes = 256 << 20;

// A window on a tensor's storage, in elements.
struct Window {
  at::Tensor of;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;

  explicit Window(const at::Tensor& t)
      : of(t), sizes(t.sizes().vec()), strides(t.strides().vec()), offset(t.storage_offset()) {}
  // n elements in the order of memory, from the first one of a dense tensor on.
  Window(const at::Tensor& dense, int64_t first, int64_t n)
      : of(dense), sizes({n}), strides({1}), offset(dense.storage_offset() + first) {}

  int64_t Bytes() const { return c10::multiply_integers(sizes) * static_cast<int64_t>(of.itemsize()); }
};

std::string ListText(at::IntArrayRef values) {
  std::string text;
  for (const int64_t v : values) text += (text.empty() ? "" : ",") + std::to_string(v);
  return "[" + text + "]";
}

// Asks the client library; runtime/kept.go lists the questions. Returns the ticket.
uint64_t Ask(c10::DeviceIndex device, const std::string& question, Origin origin) {
  auto error = std::make_unique<myc_error>();
  const uint64_t ticket =
      ClientFor(device).ask(device, question.data(), question.size(), WithCaller(origin), error.get());
  if (ticket == 0) Raise(*error);
  return ticket;
}

// Has the worker make the window's elements ready for another device, and waits for that. Returns the answer.
std::string Pass(const Window& window, c10::DeviceIndex to, Origin origin) {
  const auto& impl = *window.of.unsafeGetTensorImpl();
  const Storage& s = *StorageOf(impl);
  const auto device = s.device_index();
  CheckAlive(s);
  {
    Recorder& r = RecorderOf(device);
    const std::lock_guard<SpinLock> guard(r.lock);
    if (!s.defined) r.DefineStorage(impl, origin);
    r.Read(s, origin, true);
  }
  const uint64_t ticket =
      Ask(device,
          R"({"What":"pass","To":)" + std::to_string(to) + R"(,"Views":[{"Storage":)" + std::to_string(s.id) +
              R"(,"DType":)" + std::to_string(DtypeCode(window.of.scalar_type())) + R"(,"Sizes":)" +
              ListText(window.sizes) + R"(,"Strides":)" + ListText(window.strides) + R"(,"Offset":)" +
              std::to_string(window.offset) + "}]}",
          origin);
  Await(device, ticket);
  return TextOf([&](char* to, uint64_t n, myc_error* error) { return GetClient().answer(ticket, to, n, error); });
}

// Makes an undefined storage with the window's elements in row-major order. False: see CopyBeside.
bool PassTo(const Window& window, Storage& s) {
  const auto to = s.device_index();
  const Origin origin = RecordOrigin();
  StartWorker(to);
  CutBeforeUpload(to, origin);
  const std::string passed = Pass(window, to, origin);
  if (passed.find(R"("aside":true)") != std::string::npos) return false;
  const uint64_t ticket = Ask(to,
                              R"({"What":"take","Passed":)" + passed + R"(,"Storage":)" + std::to_string(s.id) +
                                  R"(,"Bytes":)" + std::to_string(window.Bytes()) + "}",
                              origin);
  s.defined = true;
  s.SetPlace(origin);
  s.epoch = RecorderOf(to).life();  // no trace has seen it
  Await(to, ticket);                // it has ended, unless too much is on its way
  return true;
}

at::Tensor NewOn(c10::DeviceIndex device, at::IntArrayRef sizes, at::ScalarType dtype) {
  OutMeta m;
  m.defined = true;
  m.dtype = dtype;
  m.sizes.assign(sizes.begin(), sizes.end());
  const auto strides = c10::contiguous_strides(sizes);
  m.strides.assign(strides.begin(), strides.end());
  return MakeTensor(m, device);
}

// Writes a dense tensor's elements, in the order of memory, to a contiguous tensor with as many elements.
bool PassInParts(const at::Tensor& dense, const at::Tensor& out) {
  const int64_t all = dense.numel(), most = kMostBytes / static_cast<int64_t>(dense.itemsize());
  const at::Tensor flat = out.view({all});
  for (int64_t first = 0; first < all; first += most) {
    const int64_t n = std::min(most, all - first);
    const at::Tensor part = NewOn(out.device().index(), {n}, dense.scalar_type());
    if (!PassTo(Window(dense, first, n), *StorageOf(*part.unsafeGetTensorImpl()))) return false;
    RecordCopy(flat.narrow(0, first, n), part);
  }
  return true;
}

// Whether a tensor has all bytes of its storage, which no op has written yet.
bool IsNew(const at::Tensor& t) {
  const Storage& s = *StorageOf(*t.unsafeGetTensorImpl());
  return !s.defined && t.storage_offset() == 0 && t.is_non_overlapping_and_dense() &&
         static_cast<size_t>(t.numel()) * t.itemsize() == s.nbytes();
}

}  // namespace

bool CopyBeside(const at::Tensor& from, const at::Tensor& dst) {
  if (from.numel() == 0 && dst.numel() == 0) return true;
  // The source converts, as on CUDA.
  const at::Tensor src = Resolve(from.to(dst.scalar_type()));
  const bool large = src.numel() * static_cast<int64_t>(src.itemsize()) > kMostBytes;
  if (IsNew(dst) && src.sizes() == dst.sizes()) {
    Storage& s = *StorageOf(*dst.unsafeGetTensorImpl());
    const bool same = src.is_non_overlapping_and_dense() && src.strides() == dst.strides();
    if (!large && same) return PassTo(Window(src, 0, src.numel()), s);
    if (!large && dst.is_contiguous()) return PassTo(Window(src), s);
    if (dst.is_contiguous()) return PassInParts(src.contiguous(), dst);
  }
  const at::Tensor there = NewOn(dst.device().index(), src.sizes(), src.scalar_type());
  const bool passed =
      large ? PassInParts(src.contiguous(), there) : PassTo(Window(src), *StorageOf(*there.unsafeGetTensorImpl()));
  if (!passed) return false;
  RecordCopy(dst, there.expand_as(dst));
  return true;
}

}  // namespace mycelya
