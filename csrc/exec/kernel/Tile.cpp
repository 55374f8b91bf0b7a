// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The instructions of tile programs, compiled once per CPU capability: CPU_CAPABILITY is DEFAULT, AVX2 or AVX512. All
// code here has internal linkage or is in ATen's namespace of the capability. It must not call standard-library
// functions that may be emitted as shared inline functions, because the linker would use one capability's copy for all.
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

struct Same {};  // for R: the result has the operands' class

// A loop over an expression on values of type T, which the compiler vectorises. R is the type of the result.
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

// No `restrict`, because d may be an operand. ivdep says that iterations are independent.
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

// The quotient of integers, rounded down, and the remainders with the sign of the dividend and of the divisor. A call
// in front of the kernels has ruled out the divisor 0, but a worker must survive it. The least integer divided by -1
// traps too; its quotient wraps here.
template <class T>
inline T FloorQuotient(T a, T b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<T>(U<T>(0) - U<T>(a));
  const T q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
template <class T>
inline T WholeFmod(T a, T b) {
  return b == 0 || b == -1 ? 0 : a % b;
}
template <class T>
inline T WholeRemainder(T a, T b) {
  const T m = WholeFmod(a, b);
  return m != 0 && (a < 0) != (b < 0) ? m + b : m;
}

// A loop over an expression on ATen's vectors of type V, with the results of ATen's kernels.
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

// Applies f to f32 values; the last values are in a partial vector.
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
// x / y for one y in a third of the time of divisions: a product with the reciprocal, corrected twice. By Markstein's
// theorem this is the rounded quotient if all intermediate values are normal numbers. Otherwise the vector is divided.
void DivideByOne(void* d, const void* a, const void* b, const void*, int64_t n) {
  constexpr uint32_t kLeast = 67u << 23, kSpan = 120u << 23;  // exponents from 2^-60 upwards
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

// Functions of f32 from Math.h.
template <class T, class F, math::F32s (*f)(math::F32s)>
Fn OneMath(uint32_t shape) {
  if constexpr (std::is_same_v<T, float>) return shape == 0 ? Real<f> : nullptr;
  if constexpr (!std::is_same_v<T, float>) return OneVec<T, F>(shape);
}

// An op on f32 with a result rounded to bf16, without a store and a load in between.
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

GatherFn GatherOf(c10::ScalarType dtype) {
  return ForDtype(dtype, [](auto c) -> GatherFn { return Gather<decltype(c)>; });
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

}  // namespace
}  // namespace mycelya::exec::kernel

#include "exec/kernel/TileReduce.h"

namespace mycelya::exec::kernel {
namespace {

constexpr Tiles kTiles = {Compute, Rounded, PairOp, Cast, Round, Reduce, ReduceLanes, LoadOf, StoreOf, Index, GatherOf};

}  // namespace

#if defined(CPU_CAPABILITY_AVX512)
const Tiles& TilesAvx512() { return kTiles; }
#elif defined(CPU_CAPABILITY_AVX2)
const Tiles& TilesAvx2() { return kTiles; }
#else
const Tiles& TilesDefault() { return kTiles; }
#endif

}  // namespace mycelya::exec::kernel
