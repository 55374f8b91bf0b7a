// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Reductions of tiles. Part of Tile.cpp, whose rules apply here too; included after the expressions that it uses.
#ifndef MYCELYA_EXEC_KERNEL_TILEREDUCE_H_
#define MYCELYA_EXEC_KERNEL_TILEREDUCE_H_

#include <cstdint>
#include <type_traits>

#include "abi/mycelya.h"
#include "exec/kernel/Tile.h"

namespace mycelya::exec::kernel {
namespace {

// Combines one half of the lanes with the other until one lane is left.
template <class T, class F, int64_t lanes>
inline T Halves(T* v) {
  if constexpr (lanes == 1) {
    return v[0];
  } else {
#pragma GCC ivdep
    for (int64_t j = 0; j < lanes / 2; ++j) v[j] = F::template Do<T>(v[j], v[j + lanes / 2], T());
    return Halves<T, F, lanes / 2>(v);
  }
}

template <class T>
inline T Total(const Vectorized<T>& v) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, float>) return _mm512_reduce_add_ps(v);
  if constexpr (std::is_same_v<T, double>) return _mm512_reduce_add_pd(v);
#endif
  T lanes[Vectorized<T>::size()];
  v.store(lanes);
  return Halves<T, Add, Vectorized<T>::size()>(lanes);
}

// Sums in eight vectors, so that additions do not wait for each other and errors stay small. The accumulator is f64 for
// floats.
template <class T>
void ReduceSum(void* d, const void* a, const void*, const void*, int64_t n) {
  const auto* x = static_cast<const T*>(a);
  if constexpr (kFloats<T>) {
    using V = Vectorized<T>;
    constexpr int64_t kN = V::size(), kVectors = 8;
    V sum(0), other(0);
    int64_t i = 0;
    if (n >= kN * kVectors) {
      V sums[kVectors];
      for (V& s : sums) s = V(0);
      for (; i + kN * kVectors <= n; i += kN * kVectors) {
        for (int64_t j = 0; j < kVectors; ++j) sums[j] = sums[j] + V::loadu(x + i + j * kN);
      }
      for (int64_t step = kVectors / 2; step > 1; step /= 2) {
        for (int64_t j = 0; j < step; ++j) sums[j] = sums[j] + sums[j + step];
      }
      sum = sums[0];
      other = sums[1];
    }
    for (; i + kN * 2 <= n; i += kN * 2) {
      sum = sum + V::loadu(x + i);
      other = other + V::loadu(x + i + kN);
    }
    if (i + kN <= n) {
      sum = sum + V::loadu(x + i);
      i += kN;
    }
    if (i < n) other = other + V::loadu(x + i, n - i);
    *static_cast<double*>(d) += Total(sum + other);
  } else {
    uint64_t sum = static_cast<uint64_t>(*static_cast<int64_t*>(d));
    for (int64_t i = 0; i < n; ++i) sum += static_cast<uint64_t>(x[i]);
    *static_cast<int64_t*>(d) = static_cast<int64_t>(sum);
  }
}

struct VMax {
  template <class V>
  static inline V Do(const V& a, const V& b) {
    return at::vec::maximum(a, b);
  }
};
struct VMin {
  template <class V>
  static inline V Do(const V& a, const V& b) {
    return at::vec::minimum(a, b);
  }
};

// The maximum or minimum of a vector's values.
template <class T, class F, class G>
inline T Best(const Vectorized<T>& all) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, float>) {
    Vectorized<T> v = all;
    v = F::Do(v, Vectorized<T>(_mm512_shuffle_f32x4(v, v, 0x4e)));
    v = F::Do(v, Vectorized<T>(_mm512_shuffle_f32x4(v, v, 0xb1)));
    v = F::Do(v, Vectorized<T>(_mm512_permute_ps(v, 0x4e)));
    return _mm512_cvtss_f32(F::Do(v, Vectorized<T>(_mm512_permute_ps(v, 0xb1))));
  }
#endif
  T lanes[Vectorized<T>::size()];
  all.store(lanes);
  return Halves<T, G, Vectorized<T>::size()>(lanes);
}

// F combines vectors, G values. The last vector overlaps the one before it, so values may be used twice.
template <class T, class F, class G>
void ReducePick(void* d, const void* a, const void*, const void*, int64_t n) {
  using V = Vectorized<T>;
  constexpr int64_t kN = V::size();
  const auto* x = static_cast<const T*>(a);
  auto* out = static_cast<T*>(d);
  if (n < kN) {
    for (int64_t i = 0; i < n; ++i) *out = G::template Do<T>(*out, x[i], T());
    return;
  }
  V best = V::loadu(x + n - kN);
  int64_t i = 0;
  if (n >= 4 * kN) {
    V v[4];
    for (int64_t j = 0; j < 4; ++j) v[j] = V::loadu(x + j * kN);
    for (i = 4 * kN; i + 4 * kN <= n; i += 4 * kN) {
      for (int64_t j = 0; j < 4; ++j) v[j] = F::Do(v[j], V::loadu(x + i + j * kN));
    }
    best = F::Do(best, F::Do(F::Do(v[0], v[1]), F::Do(v[2], v[3])));
  }
  for (; i + kN <= n; i += kN) best = F::Do(best, V::loadu(x + i));
  *out = G::template Do<T>(*out, Best<T, F, G>(best), T());
}

template <bool maximum>
Fn Pick(uint32_t cls) {
  using Vector = std::conditional_t<maximum, VMax, VMin>;
  using Real = std::conditional_t<maximum, Maximum, Minimum>;
  using Whole = std::conditional_t<maximum, MaximumWhole, MinimumWhole>;
  switch (cls) {
    case MYC_K_F32:
      return ReducePick<float, Vector, Real>;
    case MYC_K_F64:
      return ReducePick<double, Vector, Real>;
    case MYC_K_I64:
      return ReducePick<int64_t, Vector, Whole>;
    case MYC_K_B8:
      return ReducePick<uint8_t, Vector, Whole>;
  }
  return nullptr;
}

Fn Reduce(uint32_t op, uint32_t cls) {
  if (op == MYC_K_MAX) return Pick<true>(cls);
  if (op == MYC_K_MIN) return Pick<false>(cls);
  if (op != MYC_K_SUM) return nullptr;
  switch (cls) {
    case MYC_K_F32:
      return ReduceSum<float>;
    case MYC_K_F64:
      return ReduceSum<double>;
    case MYC_K_I64:
      return ReduceSum<int64_t>;
  }
  return nullptr;
}

template <class T, class F>
void ReduceLanesPick(void* d, const void* a, const void* b, const void* c, int64_t n) {
  Plain<T, F, 0>(d, d, a, c, n);
}

void ReduceLanesSum(void* d, const void* a, const void*, const void*, int64_t n) {
  auto* sums = static_cast<double*>(d);
  const auto* x = static_cast<const float*>(a);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(x[i]);
}

template <class T>
Fn ReduceLanesOf(uint32_t op) {
  if (op == MYC_K_MAX) return ReduceLanesPick<T, std::conditional_t<kFloats<T>, Maximum, MaximumWhole>>;
  if (op == MYC_K_MIN) return ReduceLanesPick<T, std::conditional_t<kFloats<T>, Minimum, MinimumWhole>>;
  return nullptr;
}

Fn ReduceLanes(uint32_t op, uint32_t cls) {
  const bool sum = op == MYC_K_SUM;
  switch (cls) {
    case MYC_K_F32:
      return sum ? ReduceLanesSum : ReduceLanesOf<float>(op);
    case MYC_K_F64:
      return sum ? ReduceLanesPick<double, Add> : ReduceLanesOf<double>(op);
    case MYC_K_I64:
      return sum ? ReduceLanesPick<int64_t, Add> : ReduceLanesOf<int64_t>(op);
    case MYC_K_B8:
      return ReduceLanesOf<uint8_t>(op);
  }
  return nullptr;
}

}  // namespace
}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_TILEREDUCE_H_
