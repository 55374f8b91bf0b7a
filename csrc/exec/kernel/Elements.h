// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Moves elements of all dtypes between memory and tiles. Part of Tile.cpp, whose rules apply here too.
#ifndef MYCELYA_EXEC_KERNEL_ELEMENTS_H_
#define MYCELYA_EXEC_KERNEL_ELEMENTS_H_

#include <ATen/cpu/vec/vec.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace mycelya::exec::kernel {
namespace {

// Formats of elements in memory. From and To convert one element; FromRow and ToRow convert contiguous elements.
template <class M, class T>
struct Plainly {
  using Memory = M;
  using Class = T;
  static inline T From(M v) { return static_cast<T>(v); }
  static inline M To(T v) { return static_cast<M>(v); }
  static void FromRow(T* d, const M* s, int64_t n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) d[i] = From(s[i]);
  }
  static void ToRow(M* d, const T* s, int64_t n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) d[i] = To(s[i]);
  }
};

struct Truth : Plainly<uint8_t, uint8_t> {
  static inline uint8_t From(uint8_t v) { return v != 0; }
  static void FromRow(uint8_t* d, const uint8_t* s, int64_t n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) d[i] = s[i] != 0;
  }
};

struct Brain {
  using Memory = uint16_t;
  using Class = float;
  static inline float From(uint16_t v) { return __builtin_bit_cast(float, static_cast<uint32_t>(v) << 16); }
  static inline uint32_t Rounded(float v) {
    const auto bits = __builtin_bit_cast(uint32_t, v);
    return v != v ? 0x7fc00000 : (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  }
  static inline uint16_t To(float v) { return static_cast<uint16_t>(Rounded(v) >> 16); }
  static void FromRow(float* d, const uint16_t* s, int64_t n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) d[i] = From(s[i]);
  }
  static void ToRow(uint16_t* d, const float* s, int64_t n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) d[i] = To(s[i]);
  }
};

struct Half {
  using Memory = uint16_t;
  using Class = float;
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  static inline float From(uint16_t v) { return _cvtsh_ss(v); }
  static inline uint16_t To(float v) { return _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT); }
  static void FromRow(float* d, const uint16_t* s, int64_t n) {
    int64_t i = 0;
#if defined(CPU_CAPABILITY_AVX512)
    for (; i + 16 <= n; i += 16) {
      _mm512_storeu_ps(d + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + i))));
    }
#endif
    for (; i + 8 <= n; i += 8) {
      _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s + i))));
    }
    for (; i < n; ++i) d[i] = From(s[i]);
  }
  static void ToRow(uint16_t* d, const float* s, int64_t n) {
    int64_t i = 0;
#if defined(CPU_CAPABILITY_AVX512)
    for (; i + 16 <= n; i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(d + i),
                          _mm512_cvtps_ph(_mm512_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i + 8 <= n; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(d + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; ++i) d[i] = To(s[i]);
  }
#else
  static inline float From(uint16_t v) { return c10::detail::fp16_ieee_to_fp32_value(v); }
  static inline uint16_t To(float v) { return c10::detail::fp16_ieee_from_fp32_value(v); }
  static void FromRow(float* d, const uint16_t* s, int64_t n) {
    for (int64_t i = 0; i < n; ++i) d[i] = From(s[i]);
  }
  static void ToRow(uint16_t* d, const float* s, int64_t n) {
    for (int64_t i = 0; i < n; ++i) d[i] = To(s[i]);
  }
#endif
};

// If one dim has a large stride and the other a small one, an inner loop along the small one uses each cache line once.
template <class C>
void Load(void* to, const void* from, int64_t n0, int64_t s0, int64_t n1, int64_t s1) {
  auto* d = static_cast<typename C::Class*>(to);
  const auto* s = static_cast<const typename C::Memory*>(from);
  if (s0 == 1) {
    for (int64_t j = 0; j < n1; ++j) C::FromRow(d + j * n0, s + j * s1, n0);
  } else if (s0 == 0) {
    for (int64_t j = 0; j < n1; ++j) {
      const auto v = C::From(s[j * s1]);
      for (int64_t i = 0; i < n0; ++i) d[j * n0 + i] = v;
    }
  } else if (s1 == 1 && n1 >= 8) {
    int64_t i = 0;
    for (; i + 4 <= n0; i += 4) {
      const auto* r = s + i * s0;
      auto* e = d + i;
      for (int64_t j = 0; j < n1; ++j) {
        e[j * n0] = C::From(r[j]);
        e[j * n0 + 1] = C::From(r[s0 + j]);
        e[j * n0 + 2] = C::From(r[2 * s0 + j]);
        e[j * n0 + 3] = C::From(r[3 * s0 + j]);
      }
    }
    for (; i < n0; ++i) {
      for (int64_t j = 0; j < n1; ++j) d[j * n0 + i] = C::From(s[i * s0 + j]);
    }
  } else {
    for (int64_t j = 0; j < n1; ++j) {
      for (int64_t i = 0; i < n0; ++i) d[j * n0 + i] = C::From(s[j * s1 + i * s0]);
    }
  }
}

// Elements at offsets. Runs of neighbours are moved together.
template <class C>
void Gather(void* to, const void* from, const int64_t* at, int64_t n) {
  auto* d = static_cast<typename C::Class*>(to);
  const auto* s = static_cast<const typename C::Memory*>(from);
  for (int64_t i = 0; i < n;) {
    int64_t run = 1;
    while (i + run < n && at[i + run] == at[i] + run) ++run;
    C::FromRow(d + i, s + at[i], run);
    i += run;
  }
}

template <class C>
void Store(void* to, const void* from, int64_t n0, int64_t s0, int64_t n1, int64_t s1) {
  auto* d = static_cast<typename C::Memory*>(to);
  const auto* s = static_cast<const typename C::Class*>(from);
  if (s0 == 1) {
    for (int64_t j = 0; j < n1; ++j) C::ToRow(d + j * s1, s + j * n0, n0);
  } else if (s1 == 1 && n1 >= 8) {
    for (int64_t i = 0; i < n0; ++i) {
      for (int64_t j = 0; j < n1; ++j) d[i * s0 + j] = C::To(s[j * n0 + i]);
    }
  } else {
    for (int64_t j = 0; j < n1; ++j) {
      for (int64_t i = 0; i < n0; ++i) d[j * s1 + i * s0] = C::To(s[j * n0 + i]);
    }
  }
}

// Calls f with the format of a dtype, for each dtype that kernels support.
template <class F>
auto ForDtype(c10::ScalarType dtype, const F& f) -> decltype(f(Half())) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return f(Plainly<float, float>());
    case c10::ScalarType::Double:
      return f(Plainly<double, double>());
    case c10::ScalarType::Long:
      return f(Plainly<int64_t, int64_t>());
    case c10::ScalarType::Int:
      return f(Plainly<int32_t, int64_t>());
    case c10::ScalarType::Short:
      return f(Plainly<int16_t, int64_t>());
    case c10::ScalarType::Char:
      return f(Plainly<int8_t, int64_t>());
    case c10::ScalarType::Byte:
      return f(Plainly<uint8_t, int64_t>());
    case c10::ScalarType::UInt16:
      return f(Plainly<uint16_t, int64_t>());
    case c10::ScalarType::UInt32:
      return f(Plainly<uint32_t, int64_t>());
    case c10::ScalarType::Bool:
      return f(Truth());
    case c10::ScalarType::Half:
      return f(Half());
    case c10::ScalarType::BFloat16:
      return f(Brain());
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_ELEMENTS_H_
