// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// exp, log, tanh, sigmoid and erf of vectors of f32. Part of Tile.cpp, whose rules apply here too. These functions are
// inlined into loops, while ATen's vectors call a Sleef function per vector. The chain of kernel_bench with a sigmoid
// and a tanh takes half the time of the same loop on ATen's vectors (AVX-512, one thread).
//
// Polynomials are minimax fits (Lawson's iteration on Chebyshev points; coefficients are rounded to f32 one by one from
// the lowest, and the remaining ones are fitted again). The comment on each polynomial gives its error. Errors of
// functions are in units in the last place (ulp), against std:: in f64, with fused multiply-add (AVX2, AVX512) and
// without (DEFAULT). They are the largest errors on samples of all f32 (every 37th, 67th or 131st), so they are not
// bounds.
#ifndef MYCELYA_EXEC_KERNEL_MATH_H_
#define MYCELYA_EXEC_KERNEL_MATH_H_

#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
#include <immintrin.h>
#endif

#include <cstdint>

namespace mycelya::exec::kernel::math {
namespace {

#if defined(CPU_CAPABILITY_AVX512)
constexpr int kVectorBytes = 64;
#elif defined(CPU_CAPABILITY_AVX2)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
using F32s [[gnu::vector_size(kVectorBytes)]] = float;
using I32s [[gnu::vector_size(kVectorBytes)]] = int32_t;
using U32s [[gnu::vector_size(kVectorBytes)]] = uint32_t;

inline F32s All(float v) { return v - F32s{}; }
inline I32s Bits(F32s v) { return reinterpret_cast<I32s>(v); }
inline F32s Real(I32s v) { return reinterpret_cast<F32s>(v); }
// Integer operations on bits; they wrap.
inline I32s Sum(I32s a, I32s b) { return I32s(U32s(a) + U32s(b)); }

// a * b + c.
inline F32s Fma(F32s a, F32s b, F32s c) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// c[0] + c[1] x + …
template <int n>
inline F32s Poly(F32s x, const float (&c)[n]) {
  F32s p = All(c[n - 1]);
  for (int i = n - 2; i >= 0; --i) p = Fma(p, x, All(c[i]));
  return p;
}

// Adding this to a number of magnitude below 2^22 leaves the nearest integer in the low bits. The constant itself is
// even, and is shifted out when the integer becomes an exponent.
constexpr float kShifter = 0x1.8p23f;

// e^x as 2^n (1 + s + s² u).
struct Parts {
  F32s s, u;
  F32s shifted;  // kShifter + n
};
template <int n>
inline Parts Reduce(F32s x, const float (&c)[n]) {
  Parts p;
  p.shifted = Fma(x, All(0x1.715476p0f), All(kShifter));
  const F32s q = p.shifted - kShifter;
  p.s = Fma(q, All(-0x1.62ep-1f), x);  // the product is exact: 13 bits and 8
  p.s = Fma(q, All(-0x1.0bfbe8p-15f), p.s);
  p.u = Poly(p.s, c);
  return p;
}

// Error 2^-28.2 of e^s.
constexpr float kExp[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558b4p-5f, 0x1.1239ap-7f, 0x1.6a495ep-10f};

// 1.00 ulp, 0.99 without FMA.
inline F32s Exp(F32s x) {
  x = x < -105 ? All(-105) : x;  // a NaN stays a NaN
  x = x > 90 ? All(90) : x;
  const Parts p = Reduce(x, kExp);
  const F32s e = Fma(p.s * p.s, p.u, p.s) + 1;
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(e, p.shifted - kShifter);
#else
  // In two factors, because the smallest and largest powers of two are not normal numbers.
  const I32s n = Bits(p.shifted) - Bits(All(kShifter)), half = n >> 1;
  return e * Real((half + 127) << 23) * Real((n - half + 127) << 23);
#endif
}

// 1 / (1 + e^y), y = -x, as 0.5 / (2^(n-1) + (0.5 + 2^(n-1) (e^s - 1))), where no term is infinite. As in ATen, the
// result is 0 if e^y overflows. 2.00 ulp, on AVX512 for all f32 of magnitudes from 1e-6 to 20.
inline F32s Sigmoid(F32s x) {
  F32s y = -x;
  y = y > 89 ? All(89) : y;
  y = y < -80 ? All(-80) : y;
  const Parts p = Reduce(y, kExp);
  const F32s power = Real(Sum(Bits(p.shifted) << 23, Bits(All(0.5))));
  const F32s half = 0.5f / (power + Fma(power, Fma(p.s * p.s, p.u, p.s), All(0.5)));
  return x < -0x1.62e42ep6f ? All(0) : half;
}

// h / (h + 1) with h = (e^2|x| - 1) / 2, where e^2|x| - 1 is the exact 2^n - 1 plus a remainder. The quotient has an
// error of up to 2.4 ulp, so below 1/2 the result is h - h h / (h + 1), where the quotient is the small term. 1.83
// ulp, 1.98 without FMA.
inline F32s Tanh(F32s x) {
  const I32s sign = Bits(x) & INT32_MIN;
  F32s y = 2 * Real(Bits(x) ^ sign);
  y = y > 20 ? All(20) : y;  // 1 from 2|x| = 18.1 on
  // Error 2^-31.1 of e^s - 1.
  const Parts p = Reduce(y, {0.5f, 0x1.555554p-3f, 0x1.5554f8p-5f, 0x1.1112d6p-7f, 0x1.6d3a5ep-10f, 0x1.9e77e8p-13f});
  const F32s power = Real(Sum(Bits(p.shifted) << 23, Bits(All(0.5))));
  const F32s h = Fma(power, Fma(p.s * p.s, p.u, p.s), power - 0.5f), t = h / (h + 1);
  return Real(Bits(h < 0.5f ? Fma(-h, t, h) : t) | sign);
}

#if defined(CPU_CAPABILITY_AVX512)
// erf in 16 intervals of |x|, 17/64 apart. Each column has a point in the middle of its interval, the value of erf
// there, and a polynomial in the distance from the point. At the point, erf is within 2^-28 of the f32 value (except
// for the last three, where erf is nearly 1). Error 2^-24.9 of erf. In the first interval the polynomial is erf x - x,
// because the rounding error of the leading coefficient would be too large.
alignas(64) constexpr float kErf[7][16] = {
    {0, 0x1.1002f4p-2f, 0x1.1000e4p-1f, 0x1.97ffe6p-1f, 0x1.0ffdap0f, 0x1.53fe28p0f, 0x1.97fe6ap0f, 0x1.dbfe1p0f,
     0x1.0fff16p1f, 0x1.32024ap1f, 0x1.53fd86p1f, 0x1.75ff6ep1f, 0x1.97fcep1f, 0x1.ba032p1f, 0x1.dc032p1f,
     0x1.fe032p1f},
    {0, 0x1.2bdcf6p-2f, 0x1.185668p-1f, 0x1.7b0048p-1f, 0x1.bbed54p-1f, 0x1.e11988p-1f, 0x1.f39b7ap-1f, 0x1.fb9f3cp-1f,
     0x1.fea416p-1f, 0x1.ffa152p-1f, 0x1.ffe968p-1f, 0x1.fffb4ap-1f, 0x1.ffff24p-1f, 0x1.ffffdep-1f, 0x1.fffffcp-1f, 1},
    {0x1.06eba8p-3f, 0x1.0d2f3ep0f, 0x1.b3aa3p-1f, 0x1.322838p-1f, 0x1.75b078p-2f, 0x1.8c0ec6p-3f, 0x1.6c8596p-4f,
     0x1.2359f4p-5f, 0x1.946e92p-7f, 0x1.e74a9ep-9f, 0x1.fe7654p-11f, 0x1.cfe0ecp-13f, 0x1.6e5c68p-15f, 0x1.f5a33ep-18f,
     0x1.2a98a6p-20f, 0x1.34b0e4p-23f},
    {0x1.624e56p-22f, -0x1.1e03d6p-2f, -0x1.cee4bp-2f, -0x1.e7ef4p-2f, -0x1.8d086p-2f, -0x1.07012ap-2f, -0x1.227a6ep-3f,
     -0x1.0edd32p-4f, -0x1.adb30ap-6f, -0x1.233a6ap-7f, -0x1.52edfep-9f, -0x1.52c72p-11f, -0x1.21be9cp-13f,
     -0x1.43fdcp-15f, -0x1.05e478p-16f, -0x1.1c57e6p-17f},
    {-0x1.812bf2p-2f, -0x1.3449dcp-2f, -0x1.fa0c96p-4f, 0x1.b8cfd4p-5f, 0x1.394ff2p-3f, 0x1.4db424p-3f, 0x1.efbfe8p-4f,
     0x1.1f32c2p-4f, 0x1.0eabdap-5f, 0x1.a791bap-7f, 0x1.16d64cp-8f, 0x1.36a6ap-10f, 0x1.26dcacp-12f, 0x1.dc5166p-15f,
     0x1.476366p-17f, 0x1.74442ap-20f},
    {0x1.51e00ep-12f, 0x1.0e761cp-3f, 0x1.7564acp-3f, 0x1.18562ap-3f, 0x1.8b0d12p-5f, -0x1.6922a8p-6f, -0x1.8f9ce4p-5f,
     -0x1.60789ap-5f, -0x1.b0a56p-6f, -0x1.9bb29cp-7f, -0x1.3d4748p-8f, -0x1.93b612p-10f, -0x1.e993b8p-12f,
     0x1.4af90cp-11f, 0x1.4a4094p-11f, 0x1.d07b92p-12f},
    {0x1.c5e4d6p-4f, 0x1.3c123ap-4f, -0x1.13a56cp-10f, -0x1.e4573ep-5f, -0x1.0e24aap-4f, -0x1.2e4af8p-5f,
     -0x1.537958p-8f, 0x1.647c7ep-7f, 0x1.976ad6p-7f, 0x1.0883d4p-7f, 0x1.f6812ap-9f, 0x1.777e9ep-10f, 0x1.c7d02cp-12f,
     0x1.05303cp-13f, 0x1.34f044p-15f, 0x1.cd90c2p-17f},
};

// 1.32 ulp.
inline F32s Erf(F32s x) {
  const I32s sign = Bits(x) & INT32_MIN;
  F32s a = Real(Bits(x) ^ sign);
  a = a > 4 ? All(4) : a;  // 1 from 3.9 on
  // Only the low four bits of the index are used.
  const I32s at = Bits(Fma(a, All(64.0f / 17), All(kShifter)));
  const auto entry = [at](int row) { return F32s(_mm512_permutexvar_ps(__m512i(at), _mm512_load_ps(kErf[row]))); };
  const F32s t = a - entry(0);
  F32s p = entry(6);
  for (int i = 5; i > 1; --i) p = Fma(p, t, entry(i));
  return Real(Bits(Fma(p, t, (at & 15) == 0 ? a : entry(1))) | sign);
}
#else
// 1.26 ulp, 1.51 without FMA.
inline F32s Erf(F32s x) {
  const I32s sign = Bits(x) & INT32_MIN;
  F32s a = Real(Bits(x) ^ sign);
  // Below 1: error 2^-29.4 of erf.
  const F32s small = Fma(a,
                         Poly(a * a, {0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2ce6p-4f, -0x1.b7f71ap-6f, 0x1.53f224p-8f,
                                      -0x1.a3515ep-11f, 0x1.4771fcp-14f}),
                         a);
  // From 1 on: 1 - 2^p with p = log2 erfc. Error 2^-29.8 of erf. 2^s has an error of 2^-23.3, and erfc is at most a
  // fifth of erf.
  a = a > 4 ? All(4) : a;  // 1 from 3.9 on
  const F32s p = Poly(a, {-0x1.02526cp-11f, -0x1.a0448cp0f, -0x1.d75f4p-1f, -0x1.30a488p-3f, 0x1.0217cp-5f,
                          -0x1.16b13p-8f, 0x1.19f0d8p-12f});
  const F32s shifted = p + kShifter, s = p - (shifted - kShifter);
  const F32s w = Poly(s, {1, 0x1.62e42ap-1f, 0x1.ebf9cp-3f, 0x1.c6b6d8p-5f, 0x1.3ce986p-7f, 0x1.5bdb9ap-10f});
  const F32s large = 1 - w * Real(Sum(Bits(shifted) << 23, Bits(All(1))));
  return Real(Bits(a < 1 ? small : large) | sign);
}
#endif

// log(2^n m), m from sqrt(1/2) to sqrt(2). 0.88 ulp.
inline F32s Log(F32s x) {
  const auto tiny = x < 0x1p-126f;
  const F32s y = tiny ? x * 0x1p25f : x;
  constexpr int32_t kRoot = 0x3f3504f3;  // sqrt(1/2)
  const I32s bits = Sum(Bits(y), -kRoot - I32s{});
  F32s n = __builtin_convertvector(bits >> 23, F32s);
  n = tiny ? n - 25 : n;
  const F32s f = Real((bits & 0x7fffff) + kRoot) - 1;
  // Error 2^-27.3 of log(1 + f).
  const F32s p = Poly(f, {0x1.555554p-2f, -0x1.000232p-2f, 0x1.99a056p-3f, -0x1.546f36p-3f, 0x1.22d006p-3f,
                          -0x1.0d9a7cp-3f, 0x1.05b34ap-3f, -0x1.3924cap-4f});
  F32s r = Fma(f * f, Fma(f, p, All(-0.5f)), n * 0x1.0bfbe8p-15f);
  r = Fma(n, All(0x1.62ep-1f), r + f);
  r = x < __builtin_inff() ? r : x;  // infinity and NaN
  r = x < 0 ? All(__builtin_nanf("")) : r;
  return x == 0 ? All(-__builtin_inff()) : r;
}

}  // namespace
}  // namespace mycelya::exec::kernel::math

#endif  // MYCELYA_EXEC_KERNEL_MATH_H_
