// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Storages: transfers, bounds, and the steps that allocate, copy, resize and free buffers.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

TEST(Threads, AreLeftToOthers) {
  Session s;
  const int all = at::get_num_threads();
  s.Leave(1);
  EXPECT_EQ(at::get_num_threads(), std::max(1, all - 1));
  s.Leave(1000);
  EXPECT_EQ(at::get_num_threads(), 1);
  s.Leave(0);
  EXPECT_EQ(at::get_num_threads(), all);
}

TEST(Transfer, RoundTripOfViews) {
  Session s;
  const at::Tensor x = Range(24);
  s.Upload(1, x);
  EXPECT_SAME(s.ReadF32(1, {24}), x);
  EXPECT_SAME(s.Read(1, MYC_F32, at::kFloat, {4, 3}, {1, 6}, 2), x.as_strided({4, 3}, {1, 6}, 2).contiguous());
  EXPECT_SAME(s.Read(1, MYC_F32, at::kFloat, {2, 5}, {0, 1}, 19), x.as_strided({2, 5}, {0, 1}, 19).contiguous());
  EXPECT_SAME(s.Read(1, MYC_F32, at::kFloat, {}, {}, 23), x[23]);
  EXPECT_SAME(s.Read(1, MYC_I32, at::kInt, {2}, {1}, 4), x.narrow(0, 4, 2).view(at::kInt));
  EXPECT_SAME(s.Read(1, MYC_F32, at::kFloat, {0, 7}, {7, 1}, 24), at::empty({0, 7}));
}

TEST(Transfer, EveryDtype) {
  Session s;
  static constexpr c10::ScalarType kTypes[MYC_DTYPES] = {c10::ScalarType::Undefined,
                                                         at::kByte,
                                                         at::kChar,
                                                         at::kShort,
                                                         at::kInt,
                                                         at::kLong,
                                                         at::kHalf,
                                                         at::kFloat,
                                                         at::kDouble,
                                                         at::kComplexHalf,
                                                         at::kComplexFloat,
                                                         at::kComplexDouble,
                                                         at::kBool,
                                                         at::kBFloat16,
                                                         at::kFloat8_e5m2,
                                                         at::kFloat8_e4m3fn,
                                                         at::kFloat8_e5m2fnuz,
                                                         at::kFloat8_e4m3fnuz,
                                                         at::kUInt16,
                                                         at::kUInt32,
                                                         at::kUInt64};
  const at::Tensor bytes = at::arange(64, at::kByte).bitwise_and(1);
  for (uint32_t d = 1; d < MYC_DTYPES; ++d) {
    s.Upload(d, bytes);
    const auto n = static_cast<int64_t>(64 / c10::elementSize(kTypes[d]));
    const Got got = s.Read(d, d, kTypes[d], {n / 2}, {2});
    ASSERT_EQ(got.kind, MYC_OK) << d << got.text;
    EXPECT_TRUE(at::equal(got.tensor.view(at::kByte),
                          bytes.view(kTypes[d]).as_strided({n / 2}, {2}).contiguous().view(at::kByte)))
        << d;
  }
}

struct RefusedView {
  std::vector<int64_t> sizes, strides;
  int64_t offset;
  int32_t kind;
  const char* text;
};

// Views of f32[6] that must be refused.
std::vector<RefusedView> RefusedViews() {
  const int64_t big = int64_t{1} << 62;
  const int32_t index = MYC_E_INDEX, value = MYC_E_VALUE;
  return {
      {{7}, {1}, 0, index, "A view f32[7] with strides [1] and offset 0 needs 28 bytes, but its storage has 24."},
      {{2, 3},
       {3, 1},
       1,
       index,
       "A view f32[2,3] with strides [3,1] and offset 1 needs 28 bytes, but its storage has 24."},
      {{1}, {1}, 6, index, "A view f32[1] with strides [1] and offset 6 needs 28 bytes, but its storage has 24."},
      {{2}, {6}, 0, index, "A view f32[2] with strides [6] and offset 0 needs 28 bytes, but its storage has 24."},
      {{-1},
       {1},
       0,
       value,
       "The geometry f32[-1] with strides [1] and offset 0 has a negative size, stride or offset."},
      {{2},
       {-1},
       3,
       value,
       "The geometry f32[2] with strides [-1] and offset 3 has a negative size, stride or offset."},
      {{2},
       {1},
       -1,
       value,
       "The geometry f32[2] with strides [1] and offset -1 has a negative size, stride or offset."},
      {{3},
       {big},
       0,
       value,
       "The geometry f32[3] with strides [4611686018427387904] and offset 0 reaches beyond what 63 bits can count."},
      {{big, 4},
       {0, 0},
       0,
       value,
       "The geometry f32[4611686018427387904,4] with strides [0,0] and offset 0 reaches beyond what 63 bits can "
       "count."},
      {{0, big, big},
       {0, 0, 0},
       0,
       value,
       "The geometry f32[0,4611686018427387904,4611686018427387904] with strides [0,0,0] and offset 0 reaches beyond "
       "what "
       "63 bits can count."},
      {{1},
       {1},
       big,
       value,
       "The geometry f32[1] with strides [1] and offset 4611686018427387904 reaches beyond what 63 bits can count."}};
}

TEST(Transfer, ViewsOutsideTheirStorageAreRefused) {
  Session s;
  s.Upload(1, Range(6));
  for (const RefusedView& c : RefusedViews()) {
    const myc_view view{1,        MYC_F32, static_cast<uint32_t>(c.sizes.size()), c.sizes.data(), c.strides.data(),
                        c.offset, 0};
    const void* out = nullptr;
    uint64_t bytes = 0, call = 0;
    uint32_t step = 0;
    void* handle = nullptr;
    myc_error e{};
    EXPECT_EQ(myc_exec_read(s.get(), &view, &out, &bytes, &handle, &call, &step, &e), c.kind);
    EXPECT_STREQ(e.text, c.text);
    EXPECT_EQ(handle, nullptr);
  }
  EXPECT_EQ(s.Read(7, MYC_F32, at::kFloat, {1}, {1}).text, "Storage 7 does not exist on the worker.");
  EXPECT_EQ(s.Read(1, 99, at::kFloat, {1}, {1}).text, "BUG: 99 is not the number of a dtype.");
}

TEST(Transfer, UploadsMakeStoragesOnce) {
  Session s;
  myc_error e{};
  s.Upload(1, Range(2));
  EXPECT_EQ(myc_exec_upload_begin(s.get(), 1, 8, &e), nullptr);
  EXPECT_STREQ(e.text, "BUG: storage 1 exists on the worker; an upload would overwrite it.");
  EXPECT_EQ(myc_exec_upload_begin(s.get(), 0, 8, &e), nullptr);
  EXPECT_EQ(myc_exec_upload_end(s.get(), 5, &e), MYC_E_VALUE);
  EXPECT_STREQ(e.text, "BUG: no upload of storage 5 has begun.");
  EXPECT_EQ(myc_exec_upload_begin(s.get(), 2, uint64_t{1} << 46, &e), nullptr);  // 64 TiB
  EXPECT_EQ(e.kind, MYC_E_MEMORY) << e.text;
  EXPECT_EQ(myc_exec_upload_begin(s.get(), 2, UINT64_MAX, &e), nullptr);
  EXPECT_EQ(e.kind, MYC_E_MEMORY) << e.text;
  // An upload in progress is not a storage, and free ends it.
  EXPECT_NE(myc_exec_upload_begin(s.get(), 3, 0, &e), nullptr);
  EXPECT_EQ(s.Usage().first, 1u);
  s.Free({3, 1, 77});
  EXPECT_EQ(myc_exec_upload_end(s.get(), 3, &e), MYC_E_VALUE);
  EXPECT_EQ(s.Usage(), (std::pair<uint64_t, uint64_t>{0, 0}));
  // An upload of 0 bytes is valid.
  EXPECT_NE(myc_exec_upload_begin(s.get(), 4, 0, &e), nullptr);
  EXPECT_EQ(myc_exec_upload_end(s.get(), 4, &e), MYC_OK);
  EXPECT_EQ(s.Read(4, MYC_F32, at::kFloat, {3, 0}, {1, 1}).kind, MYC_OK);
}

TEST(Transfer, AReadKeepsItsBytesWhileProgramsWrite) {
  Session s;
  s.Upload(1, Range(4));
  const int64_t four = 4, one = 1;
  const myc_view view{1, MYC_F32, 1, &four, &one, 0, 0};
  const void* data = nullptr;
  uint64_t bytes = 0, call = 0;
  uint32_t step = 0;
  void* handle = nullptr;
  myc_error e{};
  ASSERT_EQ(myc_exec_read(s.get(), &view, &data, &bytes, &handle, &call, &step, &e), MYC_OK);
  Builder b;
  b.Call("aten::neg_", {T(b.Fresh(MYC_F32, {4}))});
  EXPECT_RUNS(s.Run(b, {}, {{0, 1}}, {}));
  EXPECT_EQ(std::memcmp(data, Range(4).const_data_ptr(), 16), 0);
  EXPECT_SAME(s.ReadF32(1, {4}), -Range(4));
  s.Free({1});
  EXPECT_EQ(std::memcmp(data, Range(4).const_data_ptr(), 16), 0);
  myc_exec_read_done(s.get(), handle);
}

TEST(Steps, AllocCopyClone) {
  Session s;
  s.Upload(1, Range(6));
  Builder b;
  const uint64_t in = b.Buffer(), out = b.Buffer(), made = b.Buffer(), twin = b.Buffer(), n = b.Param();
  const uint64_t x = b.Tensor(in, MYC_F32, {2, 3});
  const uint64_t xt = b.Tensor(in, MYC_F32, {3, 2}, {1, 3}, 0);
  const uint64_t o = b.Tensor(out, MYC_F32, {4, 2});
  const uint64_t tail = b.Tensor(out, MYC_F32, {3, 2}, {2, 1}, 2);
  const uint64_t m = b.Tensor(made, MYC_F64, {3, 2});
  b.Alloc(out, P(n));
  b.Call("aten::zero_", {T(o)});
  b.Copy(tail, xt);  // into a buffer that exists
  b.Copy(m, xt);     // makes the buffer, with conversion
  b.Clone(twin, in);
  b.Call("aten::neg_", {T(x)});
  EXPECT_RUNS(s.Run(b, {32}, {{in, 1}}, {{out, 2}, {made, 3}, {twin, 4}}));
  const at::Tensor t = Range(6).view({2, 3}).t().contiguous();
  EXPECT_SAME(s.ReadF32(2, {4, 2}), at::cat({at::full({1, 2}, 0.0f), t}));
  EXPECT_SAME(s.Read(3, MYC_F64, at::kDouble, {3, 2}, {2, 1}), t.to(at::kDouble));
  EXPECT_SAME(s.ReadF32(4, {6}), Range(6));
  EXPECT_SAME(s.ReadF32(1, {6}), -Range(6));
  EXPECT_EQ(s.Usage(), (std::pair<uint64_t, uint64_t>{4, 24 + 32 + 48 + 24}));
}

TEST(Steps, ResizeKeepsTheCommonPrefixAndTheIdentity) {
  Session s;
  Builder b;
  const uint64_t in = b.Buffer(), n = b.Param(), k = b.Param();
  const uint64_t two = b.Tensor(in, MYC_F32, {2}), all = b.Tensor(in, MYC_F32, {P(k)});
  b.Call("aten::neg_", {T(two)});
  b.Resize(in, P(n));
  b.Call("aten::neg_", {T(two)});
  b.Call("aten::mul_.Tensor", {T(all), T(two)});
  myc_prog* p = s.Prepare(b);
  s.Upload(1, Range(4));
  auto errors = s.Run(p, {8, 2}, {{in, 1}}, {});
  EXPECT_RUNS(errors);
  EXPECT_SAME(s.ReadF32(1, {2}), Range(2));
  EXPECT_EQ(s.Usage().second, 8u);
  errors = s.Run(p, {12, 4}, {{in, 1}}, {});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].text, "A view f32[4] with strides [1] and offset 0 needs 16 bytes, but its storage has 12.");
  s.Upload(2, Range(4));
  errors = s.Run(p, {static_cast<uint64_t>(-8), 2}, {{in, 2}}, {});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].text, "BUG: a buffer can't have -8 bytes.");
  // Smaller than a tensor of an earlier step needs.
  s.Upload(3, Range(4));
  errors = s.Run(p, {4, 1}, {{in, 3}}, {});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].text, "A view f32[2] with strides [1] and offset 0 needs 8 bytes, but its storage has 4.");
}

TEST(Steps, OutputsRebindAndInputsStay) {
  Session s;
  s.Upload(1, Range(3));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {3}), y = b.Fresh(MYC_F32, {3}), z = b.Fresh(MYC_F32, {3});
  b.Call("aten::neg", {T(x)}, {y});
  b.Call("aten::abs", {T(y)}, {z});
  b.Free(0);
  EXPECT_RUNS(s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 0}}));
  EXPECT_SAME(s.ReadF32(1, {3}), Range(3));
  EXPECT_EQ(s.Usage().first, 2u);
  EXPECT_RUNS(s.Run(b, {}, {{0, 2}}, {{1, 2}}));  // its own input
  EXPECT_SAME(s.ReadF32(2, {3}), Range(3));
}

// Counts the live blocks of a given size.
class WatchBlocks final : public c10::Allocator {
 public:
  WatchBlocks() : base_(c10::GetCPUAllocator()) {
    current = this;
    c10::SetCPUAllocator(this, /*priority=*/100);
  }
  ~WatchBlocks() override {
    c10::SetCPUAllocator(base_, /*priority=*/100);
    current = nullptr;
  }
  c10::DataPtr allocate(size_t n) override {
    if (n != kBytes) return base_->allocate(n);
    void* block = ::operator new(n);
    alive.insert(block);
    peak = std::max(peak, alive.size());
    return {block, block, &Delete, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t n) const override { base_->copy_data(to, from, n); }

  static constexpr size_t kBytes = 4096;
  std::set<void*> alive;
  size_t peak = 0;

 private:
  static void Delete(void* block) {
    current->alive.erase(block);
    ::operator delete(block);
  }
  static inline WatchBlocks* current = nullptr;
  c10::Allocator* base_;
};

TEST(Steps, FreeReleasesMemoryAtItsStep) {
  WatchBlocks watch;
  {
    Session s;
    s.Upload(1, at::full({1024}, 1.0f));
    ASSERT_EQ(watch.alive.size(), 1u);
    for (const bool frees : {true, false}) {
      Builder b;
      uint64_t x = b.Fresh(MYC_F32, {1024});
      for (int i = 0; i < 10; ++i) {
        const uint64_t buffer = b.Buffer();
        const uint64_t y = b.Tensor(buffer, MYC_F32, {1024});
        b.Call("aten::add.Tensor", {T(x), T(x), Int(1)}, {y});
        if (frees && buffer > 1) b.Free(buffer - 1);
        x = y;
      }
      watch.peak = 0;
      EXPECT_RUNS(s.Run(b, {}, {{0, 1}}, {{10, 2}}));
      EXPECT_EQ(watch.peak,
                frees ? 3u + 0u : 11u + 1u);  // input, operand, result; or all buffers and the old storage 2
      EXPECT_EQ(watch.alive.size(), 2u);      // only outputs remain
      EXPECT_SAME(s.ReadF32(2, {1024}), at::full({1024}, 1024.0f));
    }
    s.Free({1, 2});
    EXPECT_TRUE(watch.alive.empty());
  }
}

TEST(Steps, GeometryIsCheckedAgainstTheBuffer) {
  Session s;
  s.Upload(1, Range(6));
  Builder b;
  const uint64_t in = b.Buffer(), n = b.Param(), stride = b.Param(), offset = b.Param();
  const uint64_t x = b.Tensor(in, MYC_F32, {P(n)}, {P(stride)}, P(offset));
  const uint64_t r = b.Fresh(MYC_F32, {P(n)});
  b.Call("aten::neg", {T(x)}, {r});
  myc_prog* p = s.Prepare(b);
  EXPECT_RUNS(s.Run(p, {2, 5, 0}, {{in, 1}}, {}));
  for (const auto& [words, text] : std::vector<std::pair<Words, std::string>>{
           {{3, 3, 0}, "A view f32[3] with strides [3] and offset 0 needs 28 bytes, but its storage has 24."},
           {{2, 5, 1}, "A view f32[2] with strides [5] and offset 1 needs 28 bytes, but its storage has 24."},
           {{UINT64_MAX, 1, 0},
            "The geometry f32[-1] with strides [1] and offset 0 has a negative size, stride or offset."},
           {{2, uint64_t{1} << 62, uint64_t{1} << 62},
            "The geometry f32[2] with strides [4611686018427387904] and offset 4611686018427387904 reaches beyond "
            "what 63 bits can count."}}) {
    const auto errors = s.Run(p, words, {{in, 1}}, {{1, 9}});
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_EQ(errors[0].text, text);
    EXPECT_EQ(s.ReadF32(9, {1}).text, text);
    s.Free({9});
  }
}

}  // namespace
}  // namespace mycelya::exec::test
