// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What a tile program can do, compiled once per CPU capability: CPU_CAPABILITY is DEFAULT, AVX2 or AVX512. Everything
// here has internal linkage or lies in ATen's namespace of the capability, and nothing of the standard library is
// called that could be emitted as a shared inline function: the linker would take one capability's for all. It is one
// table of what an instruction is for a class and a shape, and longer than 600 lines because the instructions are many.
#include "exec/kernel/Tile.h"

#include <ATen/cpu/vec/vec.h>

#include <type_traits>

#include "abi/mycelya.h"
#include "exec/kernel/Elements.h"
#include "exec/kernel/Math.h"
#include "exec/kernel/Pairs.h"

namespace mycelya::exec::kernel {
namespace {

using at::vec::Vectorized;

template <class T>
inline constexpr bool kFloats = std::is_floating_point_v<T>;

template <class T>
struct Unsigned {
  using Type = T;
};
template <>
struct Unsigned<int64_t> {
  using Type = uint64_t;  // wraps
};
template <class T>
using U = typename Unsigned<T>::Type;

inline float Magnitude(float a) { return __builtin_fabsf(a); }
inline double Magnitude(double a) { return __builtin_fabs(a); }
inline int64_t Magnitude(int64_t a) { return a < 0 ? static_cast<int64_t>(-U<int64_t>(a)) : a; }

struct Same {};  // as R: the result has the operands' class

// An expression on values a and b of type T, in a loop that the compiler vectorises. R is the class of the result.
#define MYC_LOOP(name, result, ...)                                 \
  struct name {                                                     \
    using R = result;                                               \
    template <class T>                                              \
    static inline auto Do(T a, T b, T) {                            \
      using To = std::conditional_t<std::is_same_v<R, Same>, T, R>; \
      return static_cast<To>(__VA_ARGS__);                          \
    }                                                               \
  };
MYC_LOOP(Copy, Same, a)

// Without `restrict`, for d may be an operand; ivdep says that iterations are independent all the same.
template <class T, class F, uint32_t shape>
void Plain(void* d, const void* a, const void* b, const void*, int64_t n) {
  using R = std::conditional_t<std::is_same_v<typename F::R, Same>, T, typename F::R>;
  auto* out = static_cast<R*>(d);
  const auto* x = static_cast<const T*>(a);
  const auto* y = b == nullptr ? x : static_cast<const T*>(b);
  if (n <= 0) return;
  const T x0 = *x, y0 = *y;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    out[i] = F::template Do<T>(shape & kOneA ? x0 : x[i], shape & kOneB ? y0 : y[i], T());
  }
}

template <class T>
struct Int {
  using Type = T;
};
template <>
struct Int<float> {
  using Type = uint32_t;
};
template <>
struct Int<double> {
  using Type = uint64_t;
};

template <class Real, uint32_t shape>
void Where(void* d, const void* a, const void* b, const void* c, int64_t n) {
  using T = typename Int<Real>::Type;
  auto* out = static_cast<T*>(d);
  const auto* w = static_cast<const uint8_t*>(a);
  const auto* x = static_cast<const T*>(b);
  const auto* y = static_cast<const T*>(c);
  if (n <= 0) return;
  const T x0 = *x, y0 = *y;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T u = shape & kOneB ? x0 : x[i], v = shape & kOneC ? y0 : y[i];
    const T mask = static_cast<T>(-static_cast<T>(w[i]));
    out[i] = static_cast<T>((u & mask) | (v & ~mask));
  }
}

// An expression on ATen's vectors a, b and c of type V: its results are those of ATen's kernels.
#define MYC_VEC(name, ...)                                   \
  struct name {                                              \
    template <class V>                                       \
    static inline V Do(const V& a, const V& b, const V& c) { \
      return __VA_ARGS__;                                    \
    }                                                        \
  };
template <class V>
inline V RemainderOf(const V& a, const V& b) {
  const V m = a.fmod(b), zero(0);
  return V::blendv(m, m + b, (m != zero) & ((b < zero) ^ (m < zero)));
}

template <class T, class F, uint32_t shape>
void Vec(void* d, const void* a, const void* b, const void*, int64_t n) {
  using V = Vectorized<T>;
  constexpr int64_t kN = V::size();
  auto* out = static_cast<T*>(d);
  const auto* x = static_cast<const T*>(a);
  const auto* y = b == nullptr ? x : static_cast<const T*>(b);
  if (n <= 0) return;
  const V x0(*x), y0(*y);
  int64_t i = 0;
  for (; i + kN <= n; i += kN) {
    const V v = shape & kOneA ? x0 : V::loadu(x + i), w = shape & kOneB ? y0 : V::loadu(y + i);
    F::Do(v, w, w).store(out + i);
  }
  if (i == n) return;
  const int64_t rest = n - i;
  const V v = shape & kOneA ? x0 : V::loadu(x + i, rest), w = shape & kOneB ? y0 : V::loadu(y + i, rest);
  F::Do(v, w, w).store(out + i, static_cast<int>(rest));
}

// The same of three operands.
template <class T, class F, uint32_t shape>
void Vec3(void* d, const void* a, const void* b, const void* c, int64_t n) {
  using V = Vectorized<T>;
  constexpr int64_t kN = V::size();
  auto* out = static_cast<T*>(d);
  const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b), *z = static_cast<const T*>(c);
  if (n <= 0) return;
  const V x0(*x), y0(*y), z0(*z);
  int64_t i = 0;
  for (; i + kN <= n; i += kN) {
    F::Do(shape & kOneA ? x0 : V::loadu(x + i), shape & kOneB ? y0 : V::loadu(y + i),
          shape & kOneC ? z0 : V::loadu(z + i))
        .store(out + i);
  }
  if (i == n) return;
  const int64_t rest = n - i;
  F::Do(shape & kOneA ? x0 : V::loadu(x + i, rest), shape & kOneB ? y0 : V::loadu(y + i, rest),
        shape & kOneC ? z0 : V::loadu(z + i, rest))
      .store(out + i, static_cast<int>(rest));
}

// f on f32, the last values of n in a vector of their own.
template <math::F32s (*f)(math::F32s)>
void Real(void* d, const void* a, const void*, const void*, int64_t n) {
  constexpr int64_t kN = math::kVectorBytes / sizeof(float);
  auto* out = static_cast<float*>(d);
  const auto* x = static_cast<const float*>(a);
  math::F32s v;
  int64_t i = 0;
  for (; i + kN <= n; i += kN) {
    __builtin_memcpy(&v, x + i, sizeof v);
    v = f(v);
    __builtin_memcpy(out + i, &v, sizeof v);
  }
  if (i == n) return;
#if defined(CPU_CAPABILITY_AVX512)
  const auto rest = static_cast<__mmask16>((1u << (n - i)) - 1);
  _mm512_mask_storeu_ps(out + i, rest, f(_mm512_maskz_loadu_ps(rest, x + i)));
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256i rest =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n - i)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  _mm256_maskstore_ps(out + i, rest, f(_mm256_maskload_ps(x + i, rest)));
#else
  float some[kN] = {};
  for (int64_t j = i; j < n; ++j) some[j - i] = x[j];
  __builtin_memcpy(&v, some, sizeof v);
  v = f(v);
  __builtin_memcpy(some, &v, sizeof v);
  for (int64_t j = i; j < n; ++j) out[j] = some[j - i];
#endif
}

#if defined(CPU_CAPABILITY_AVX512)
// x / y for one y, a third of the time of divisions: a product with the reciprocal, corrected twice. By Markstein's
// theorem that is the rounded quotient, if nothing in between leaves the range of normal numbers; else the vector is
// divided.
void DivideByOne(void* d, const void* a, const void* b, const void*, int64_t n) {
  constexpr uint32_t kLeast = 67u << 23, kSpan = 120u << 23;  // exponents from 2^-60 on
  auto* out = static_cast<float*>(d);
  const auto* x = static_cast<const float*>(a);
  if (n <= 0) return;
  const float y0 = *static_cast<const float*>(b);
  const __m512 y = _mm512_set1_ps(y0), inverse = _mm512_set1_ps(1 / y0);
  const bool fits = (__builtin_bit_cast(uint32_t, y0) & 0x7fffffff) - kLeast < kSpan;
  const __m512i least = _mm512_set1_epi32(kLeast), span = _mm512_set1_epi32(kSpan),
                magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t i = 0; i < n; i += 16) {
    const auto rest = static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
    const __m512 v = _mm512_maskz_loadu_ps(rest, x + i);
    const __m512i bits = _mm512_sub_epi32(_mm512_and_si512(_mm512_castps_si512(v), magnitude), least);
    __m512 q;
    if (fits && _mm512_cmplt_epu32_mask(bits, span) == 0xffff) {
      q = _mm512_mul_ps(v, inverse);
      q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, y, v), inverse, q);
      q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, y, v), inverse, q);
    } else {
      q = _mm512_div_ps(v, y);
    }
    _mm512_mask_storeu_ps(out + i, rest, q);
  }
}
#endif

template <class T, class F, bool vec>
Fn Shaped(uint32_t shape) {
  switch (shape & (kOneA | kOneB)) {
    case 0:
      if constexpr (vec) return Vec<T, F, 0>;
      if constexpr (!vec) return Plain<T, F, 0>;
      break;
    case kOneA:
      if constexpr (vec) return Vec<T, F, kOneA>;
      if constexpr (!vec) return Plain<T, F, kOneA>;
      break;
    case kOneB:
      if constexpr (vec) return Vec<T, F, kOneB>;
      if constexpr (!vec) return Plain<T, F, kOneB>;
      break;
  }
  return nullptr;
}

template <class T>
Fn WhereOf(uint32_t shape) {
  switch (shape) {
    case 0:
      return Where<T, 0>;
    case kOneB:
      return Where<T, kOneB>;
    case kOneC:
      return Where<T, kOneC>;
    case kOneB | kOneC:
      return Where<T, kOneB | kOneC>;
  }
  return nullptr;
}

template <class T, class F>
Fn Vec3Of(uint32_t shape) {
  switch (shape) {
    case 0:
      return Vec3<T, F, 0>;
    case kOneA:
      return Vec3<T, F, kOneA>;
    case kOneB:
      return Vec3<T, F, kOneB>;
    case kOneC:
      return Vec3<T, F, kOneC>;
    case kOneA | kOneB:
      return Vec3<T, F, kOneA | kOneB>;
    case kOneA | kOneC:
      return Vec3<T, F, kOneA | kOneC>;
    case kOneB | kOneC:
      return Vec3<T, F, kOneB | kOneC>;
  }
  return nullptr;
}

template <class T, class F>
Fn One(uint32_t shape) {
  return shape == 0 ? Plain<T, F, 0> : nullptr;
}
template <class T, class F>
Fn OneVec(uint32_t shape) {
  return shape == 0 ? Vec<T, F, 0> : nullptr;
}

// What is written out for f32.
template <class T, class F, math::F32s (*f)(math::F32s)>
Fn OneMath(uint32_t shape) {
  if constexpr (std::is_same_v<T, float>) return shape == 0 ? Real<f> : nullptr;
  if constexpr (!std::is_same_v<T, float>) return OneVec<T, F>(shape);
}

// An op on f32 whose result is rounded to bf16, without a store and a load between the two.
template <class F>
struct InBrain {
  using R = Same;
  template <class T>
  static inline T Do(T a, T b, T) {
    return __builtin_bit_cast(float, Brain::Rounded(F::template Do<T>(a, b, T())));
  }
};

#include "exec/kernel/TileOps.inc"
#undef MYC_LOOP
#undef MYC_VEC

Fn Compute(uint32_t op, uint32_t cls, uint32_t shape) {
  switch (cls) {
    case MYC_K_F32:
#if defined(CPU_CAPABILITY_AVX512)
      if (op == MYC_K_DIV && shape == kOneB) return DivideByOne;
#endif
      return op == kCopyOp ? Shaped<float, Copy, false>(shape) : FloatOp<float>(op, shape);
    case MYC_K_F64:
      return op == kCopyOp ? Shaped<double, Copy, false>(shape) : FloatOp<double>(op, shape);
    case MYC_K_I64:
      return op == kCopyOp ? Shaped<int64_t, Copy, false>(shape) : WholeOp<int64_t>(op, shape);
    case MYC_K_B8:
      return op == kCopyOp ? Shaped<uint8_t, Copy, false>(shape) : TruthOp<uint8_t>(op, shape);
  }
  return nullptr;
}

template <class From, class To, bool truth>
void CastTile(void* d, const void* a, const void*, const void*, int64_t n) {
  auto* out = static_cast<To*>(d);
  const auto* x = static_cast<const From*>(a);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (truth) out[i] = x[i] != From(0);
    if constexpr (!truth) out[i] = static_cast<To>(x[i]);
  }
}

template <class From>
Fn CastFrom(uint32_t to) {
  switch (to) {
    case MYC_K_F32:
      return CastTile<From, float, false>;
    case MYC_K_F64:
      return CastTile<From, double, false>;
    case MYC_K_I64:
      return CastTile<From, int64_t, false>;
    case MYC_K_B8:
      return CastTile<From, uint8_t, true>;
  }
  return nullptr;
}

Fn Cast(uint32_t from, uint32_t to) {
  switch (from) {
    case MYC_K_F32:
      return CastFrom<float>(to);
    case MYC_K_F64:
      return CastFrom<double>(to);
    case MYC_K_I64:
      return CastFrom<int64_t>(to);
    case MYC_K_B8:
      return CastFrom<uint8_t>(to);
  }
  return nullptr;
}

Fn Rounded(uint32_t op, c10::ScalarType dtype, uint32_t shape) {
  return dtype == c10::ScalarType::BFloat16 ? BrainOp(op, shape) : nullptr;
}

template <class C>
void RoundTile(void* d, const void* a, const void*, const void*, int64_t n) {
  constexpr int64_t kAtOnce = 256;
  typename C::Memory memory[kAtOnce];
  auto* out = static_cast<typename C::Class*>(d);
  const auto* x = static_cast<const typename C::Class*>(a);
  for (int64_t i = 0; i < n; i += kAtOnce) {
    const int64_t m = n - i < kAtOnce ? n - i : kAtOnce;
    C::ToRow(memory, x + i, m);
    C::FromRow(out + i, memory, m);
  }
}

void Index(void* to, const void* from, int64_t n0, int64_t s0, int64_t n1, int64_t s1) {
  auto* d = static_cast<int64_t*>(to);
  const int64_t first = *static_cast<const int64_t*>(from);
  for (int64_t j = 0; j < n1; ++j) {
    for (int64_t i = 0; i < n0; ++i) d[j * n0 + i] = first + j * s1 + i * s0;
  }
}

MoveFn LoadOf(c10::ScalarType dtype) {
  return ForDtype(dtype, [](auto c) -> MoveFn { return Load<decltype(c)>; });
}
MoveFn StoreOf(c10::ScalarType dtype) {
  return ForDtype(dtype, [](auto c) -> MoveFn { return Store<decltype(c)>; });
}

template <class T>
struct ClassOf;
template <>
struct ClassOf<float> {
  static constexpr uint32_t value = MYC_K_F32;
};
template <>
struct ClassOf<double> {
  static constexpr uint32_t value = MYC_K_F64;
};
template <>
struct ClassOf<int64_t> {
  static constexpr uint32_t value = MYC_K_I64;
};
template <>
struct ClassOf<uint8_t> {
  static constexpr uint32_t value = MYC_K_B8;
};

Fn Round(uint32_t cls, c10::ScalarType dtype) {
  return ForDtype(dtype, [cls](auto c) -> Fn {
    using C = decltype(c);
    using T = typename C::Class;
    if (ClassOf<T>::value != cls) return nullptr;
    if constexpr (std::is_same_v<T, typename C::Memory>) return Plain<T, Copy, 0>;
    if constexpr (std::is_same_v<C, Brain>) return Plain<float, InBrain<Copy>, 0>;
    return RoundTile<C>;
  });
}

// The halves of the lanes are folded into one another until one is left.
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

// Sums in eight vectors, so that no addition waits for the one before it and errors stay small. The result, and what is
// added from tile to tile, is f64 for floats.
template <class T>
void FoldSum(void* d, const void* a, const void*, const void*, int64_t n) {
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

// The most or least of a vector's values.
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

// F of vectors, G of values. A value may be taken twice: the last vector overlaps with the one before it.
template <class T, class F, class G>
void FoldPick(void* d, const void* a, const void*, const void*, int64_t n) {
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
      return FoldPick<float, Vector, Real>;
    case MYC_K_F64:
      return FoldPick<double, Vector, Real>;
    case MYC_K_I64:
      return FoldPick<int64_t, Vector, Whole>;
    case MYC_K_B8:
      return FoldPick<uint8_t, Vector, Whole>;
  }
  return nullptr;
}

Fn Fold(uint32_t op, uint32_t cls) {
  if (op == MYC_K_MAX) return Pick<true>(cls);
  if (op == MYC_K_MIN) return Pick<false>(cls);
  if (op != MYC_K_SUM) return nullptr;
  switch (cls) {
    case MYC_K_F32:
      return FoldSum<float>;
    case MYC_K_F64:
      return FoldSum<double>;
    case MYC_K_I64:
      return FoldSum<int64_t>;
  }
  return nullptr;
}

template <class T, class F>
void LanesPick(void* d, const void* a, const void* b, const void* c, int64_t n) {
  Plain<T, F, 0>(d, d, a, c, n);
}

void LanesSum(void* d, const void* a, const void*, const void*, int64_t n) {
  auto* sums = static_cast<double*>(d);
  const auto* x = static_cast<const float*>(a);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(x[i]);
}

template <class T>
Fn LanesOf(uint32_t op) {
  if (op == MYC_K_MAX) return LanesPick<T, std::conditional_t<kFloats<T>, Maximum, MaximumWhole>>;
  if (op == MYC_K_MIN) return LanesPick<T, std::conditional_t<kFloats<T>, Minimum, MinimumWhole>>;
  return nullptr;
}

Fn Lanes(uint32_t op, uint32_t cls) {
  const bool sum = op == MYC_K_SUM;
  switch (cls) {
    case MYC_K_F32:
      return sum ? LanesSum : LanesOf<float>(op);
    case MYC_K_F64:
      return sum ? LanesPick<double, Add> : LanesOf<double>(op);
    case MYC_K_I64:
      return sum ? LanesPick<int64_t, Add> : LanesOf<int64_t>(op);
    case MYC_K_B8:
      return LanesOf<uint8_t>(op);
  }
  return nullptr;
}

constexpr Tiles kTiles = {Compute, Rounded, PairOp, Cast, Round, Fold, Lanes, LoadOf, StoreOf, Index};

}  // namespace

#if defined(CPU_CAPABILITY_AVX512)
const Tiles& TilesAvx512() { return kTiles; }
#elif defined(CPU_CAPABILITY_AVX2)
const Tiles& TilesAvx2() { return kTiles; }
#else
const Tiles& TilesDefault() { return kTiles; }
#endif

}  // namespace mycelya::exec::kernel
