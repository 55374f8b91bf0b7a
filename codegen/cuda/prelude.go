// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import "strings"

// function is a piece of the prelude.
type function struct {
	name  string
	needs []string
	text  string
}

// prelude holds all functions in the order in which they are printed. A text has only the functions that it needs. No
// function has the name of one of CUDA's own.
//
// Only NVRTC compiles PTX; tests that run a text on a CPU bring their own functions. Like ATen, the functions use
// instructions to convert 16-bit floats: f16 on all devices, bf16 from compute capability 8.0 on. Conversions round to
// even; a NaN stays a NaN, but its bits may change.
var prelude = []function{
	{"types", nil, `struct half { unsigned short bits; };
struct brain { unsigned short bits; };
struct truth { unsigned char bits; };
`},
	{"ptx", []string{"types"}, `#ifdef __CUDACC_RTC__
static __device__ float of_half(unsigned short b) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(b));
  return v;
}
static __device__ unsigned short to_half(float v) {
#if __CUDA_ARCH__ >= 800
  unsigned b;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(0.f), "f"(v));
#else
  unsigned short b;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(v));
#endif
  return b;
}
#endif
`},
	{"to_brain", nil, `static __device__ unsigned short to_brain(float v) {
#if __CUDA_ARCH__ >= 800
  unsigned b;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(0.f), "f"(v));
  return b;
#else
  const unsigned b = __float_as_uint(v);
  return v != v ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
#endif
}
`},
	{"load_of", []string{"types", "ptx"}, `template <class R, class M>
static __device__ R load_of(M m) { return (R)m; }
template <>
__device__ float load_of<float, half>(half m) { return of_half(m.bits); }
template <>
__device__ float load_of<float, brain>(brain m) { return __uint_as_float((unsigned)m.bits << 16); }
template <>
__device__ bool load_of<bool, truth>(truth m) { return m.bits != 0; }
`},
	{"store_of", []string{"types", "ptx", "to_brain"}, `template <class M, class R>
static __device__ M store_of(R r) { return (M)r; }
template <>
__device__ half store_of<half, float>(float r) { return {to_half(r)}; }
template <>
__device__ brain store_of<brain, float>(float r) { return {to_brain(r)}; }
template <>
__device__ truth store_of<truth, bool>(bool r) { return {r}; }
`},
	// Memory that nothing writes during the launch is read through the cache for such memory (ld.global.nc): then the
	// compiler knows that no store changes it.
	{"at", nil, `template <int Bytes> struct word;
template <> struct word<1> { typedef unsigned char type; };
template <> struct word<2> { typedef unsigned short type; };
template <> struct word<4> { typedef unsigned type; };
template <> struct word<8> { typedef unsigned long long type; };
template <> struct word<16> { typedef uint4 type; };
template <bool Apart, class T>
static __device__ T at(const T* from) {
  if (!Apart) return *from;
  const typename word<sizeof(T)>::type w = __ldg((const typename word<sizeof(T)>::type*)from);
  T to;
  memcpy(&to, &w, sizeof to);
  return to;
}
`},
	{"at_if", []string{"at"}, `template <bool Apart, class T>
static __device__ T at_if(bool in, const T* from) {
  T to = {};
  if (in) to = at<Apart>(from);
  return to;
}
`},
	// A vector of up to 16 aligned bytes is one access. At the end of the data there is one access per element. Small
	// elements stay in whole words until they are used: to take them apart, a thread must wait for the access, and several
	// accesses are to be under way at once.
	{"vector", []string{"at"}, `template <int V, class M, bool Words = sizeof(M) < 4 && sizeof(M) * V >= 4>
struct alignas(sizeof(M) * V < 16 ? sizeof(M) * V : 16) vector {
  M x[V];
  __device__ M get(int k) const { return x[k]; }
  __device__ void set(int k, M m) { x[k] = m; }
};
template <int V, class M>
struct alignas(sizeof(M) * V < 16 ? sizeof(M) * V : 16) vector<V, M, true> {
  static const int each = 4 / sizeof(M), bits = 8 * sizeof(M);
  unsigned w[V / each];
  __device__ M get(int k) const {
    const unsigned b = w[k / each] >> k % each * bits;
    M m;
    memcpy(&m, &b, sizeof m);
    return m;
  }
  __device__ void set(int k, M m) {
    unsigned b = 0;
    memcpy(&b, &m, sizeof m);
    const int at = k % each * bits;
    w[k / each] = (w[k / each] & ~((~0u >> (32 - bits)) << at)) | b << at;
  }
};
template <int V, bool Apart, class M, class I>
static __device__ vector<V, M> load(const M* from, I left) {
  if (left >= V) return at<Apart>((const vector<V, M>*)from);
  vector<V, M> to = {};
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if (k < left) to.set(k, at<Apart>(from + k));
  }
  return to;
}
template <int V, bool Apart, class M, class I>
static __device__ vector<V, M> gather(const M* from, I stride, I left) {
  vector<V, M> to = {};
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if (k < left) to.set(k, at<Apart>(from + k * stride));
  }
  return to;
}
template <int V, class M, class I>
static __device__ void store(M* to, const vector<V, M>& from, I left) {
  if (left >= V) {
    *(vector<V, M>*)to = from;
    return;
  }
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if (k < left) to[k] = from.get(k);
  }
}
template <int V, class M, class I>
static __device__ void scatter(M* to, const vector<V, M>& from, I stride, I left) {
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if (k < left) to[k * stride] = from.get(k);
  }
}
`},
	{"within", nil, `static __device__ long long within(long long p, long long n) { return p < 0 ? 0 : p < n ? p : n - 1; }
`},
	// Division by a number that is known at launch. A 32-bit division by any other number takes some twenty instructions.
	{"over", nil, `static __device__ int over(int n, unsigned long long by) {
  return (__umulhi((unsigned)n, (unsigned)by) + (unsigned)n) >> (unsigned)(by >> 32);
}
`},
	{"sigmoid", nil, `static __device__ float sigmoid(float a) { return 1 / (1 + expf(-a)); }
static __device__ double sigmoid(double a) { return 1 / (1 + exp(-a)); }
`},
	{"relu", nil, `template <class T>
static __device__ T relu(T a) { return a < 0 ? 0 : a; }
`},
	{"sign", nil, `template <class T>
static __device__ T sign(T a) { return (T)((a > 0) - (a < 0)); }
`},
	{"remainder_of", nil, `static __device__ float remainder_of(float a, float b) {
  const float m = fmodf(a, b);
  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
static __device__ double remainder_of(double a, double b) {
  const double m = fmod(a, b);
  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
static __device__ long long remainder_of(long long a, long long b) {
  if (b == 0 || b == -1) return 0;
  const long long m = a % b;
  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
`},
	{"whole_fmod", nil, `static __device__ long long whole_fmod(long long a, long long b) {
  return b == 0 || b == -1 ? 0 : a % b;
}
`},
	// A call in front of the kernels has ruled out the divisor 0. The least integer divided by -1 wraps.
	{"floor_quotient", nil, `static __device__ long long floor_quotient(long long a, long long b) {
  if (b == 0) return 0;
  if (b == -1) return (long long)(0ull - (unsigned long long)a);
  const long long q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
`},
	// If one operand is a NaN, the result is a NaN, as in ATen. The maximum of 0 and -0 is 0, as the instruction defines
	// it.
	{"maximum", nil, `static __device__ float maximum(float a, float b) { return a != a || b != b ? a + b : fmaxf(a, b); }
static __device__ double maximum(double a, double b) { return a != a || b != b ? a + b : fmax(a, b); }
static __device__ long long maximum(long long a, long long b) { return a > b ? a : b; }
static __device__ bool maximum(bool a, bool b) { return a | b; }
`},
	{"minimum", nil, `static __device__ float minimum(float a, float b) { return a != a || b != b ? a + b : fminf(a, b); }
static __device__ double minimum(double a, double b) { return a != a || b != b ? a + b : fmin(a, b); }
static __device__ long long minimum(long long a, long long b) { return a < b ? a : b; }
static __device__ bool minimum(bool a, bool b) { return a & b; }
`},
	{"sum", nil, `static __device__ float sum(float a, float b) { return a + b; }
static __device__ double sum(double a, double b) { return a + b; }
static __device__ long long sum(long long a, long long b) ` +
		`{ return (long long)((unsigned long long)a + (unsigned long long)b); }
`},
	{"reduce_sum", []string{"sum"}, `struct reduce_sum {
  template <class T>
  static __device__ T of(T a, T b) { return sum(a, b); }
};
`},
	{"reduce_max", []string{"maximum"}, `struct reduce_max {
  template <class T>
  static __device__ T of(T a, T b) { return maximum(a, b); }
};
`},
	{"reduce_min", []string{"minimum"}, `struct reduce_min {
  template <class T>
  static __device__ T of(T a, T b) { return minimum(a, b); }
};
`},
	// Combines the values of all threads of a row. Each thread gets the same bits, because the tree is always the same.
	{"across", nil, `template <class R, class T>
static __device__ T across(T v, void* shared) {
  const int lanes = blockDim.x;
  for (int o = (lanes < 32 ? lanes : 32) / 2; o > 0; o /= 2) v = R::of(v, (T)__shfl_xor_sync(~0u, v, o));
  if (lanes <= 32) return __shfl_sync(~0u, v, 0, lanes);
  T* warps = (T*)shared;
  const int first = threadIdx.y * lanes / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[first + threadIdx.x / 32] = v;
  __syncthreads();
  v = warps[first];
  for (int w = 1; w < lanes / 32; ++w) v = R::of(v, warps[first + w]);
  return v;
}
`},
	{"down", nil, `template <class R, class T>
static __device__ T down(T v, void* shared) {
  T* all = (T*)shared;
  __syncthreads();
  all[threadIdx.y * 32 + threadIdx.x] = v;
  __syncthreads();
  v = all[threadIdx.x];
  for (int y = 1; y < blockDim.y; ++y) v = R::of(v, all[y * 32 + threadIdx.x]);
  return v;
}
`},
}

// preludeOf returns the text of these functions and of the functions that they need.
func preludeOf(names map[string]bool) string {
	var mark func(name string)
	marked := map[string]bool{}
	mark = func(name string) {
		if marked[name] {
			return
		}
		marked[name] = true
		for i := range prelude {
			if prelude[i].name == name {
				for _, n := range prelude[i].needs {
					mark(n)
				}
				return
			}
		}
		panic("BUG: the prelude has no " + name)
	}
	for _, f := range prelude {
		if names[f.name] {
			mark(f.name)
		}
	}
	var b strings.Builder
	for _, f := range prelude {
		if marked[f.name] {
			b.WriteString(f.text)
		}
	}
	return b.String()
}
