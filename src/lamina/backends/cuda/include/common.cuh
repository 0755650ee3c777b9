// Element types, 16-byte access, and reductions within a warp and a block. No CUDA headers are needed.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8 { u8 bits; };  // e4m3: 4 bits of exponent, 3 of mantissa, no infinities

#define INFINITY_F __int_as_float(0x7f800000)

// Blocks of 256 threads share the numbers below `total`, of the file's type Index.
#define FOR_EACH(i, total)                                                                                           \
    for (Index i = (Index)blockIdx.x * 256 + threadIdx.x; i < (Index)(total); i += (Index)gridDim.x * 256)

// Brings the line of 128 bytes that `p` lies in from memory into the GPU's cache while the thread goes on.
__device__ __forceinline__ void bring_near(const void *p)
{
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
#endif
}

// The type that arithmetic is done in.
template <class T> struct Wide { typedef T type; };
template <> struct Wide<f16> { typedef f32 type; };
template <> struct Wide<bf16> { typedef f32 type; };
template <> struct Wide<f8> { typedef f32 type; };

// float16 by the hardware's own conversions; whoever compiles for something else brings these three functions along.
#ifndef HALF_CONVERSIONS
__device__ __forceinline__ f32 half_to_float(u16 bits)
{
    f32 wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}
__device__ __forceinline__ u16 float_to_half(f32 v)
{
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
__device__ __forceinline__ u16 double_to_half(f64 v)
{
    u16 bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(v));
    return bits;
}
#endif

template <class T> __device__ __forceinline__ T widen(T v) { return v; }
__device__ __forceinline__ f32 widen(f16 v) { return half_to_float(v.bits); }
__device__ __forceinline__ f32 widen(bf16 v) { return __uint_as_float((u32)v.bits << 16); }
__device__ __forceinline__ f32 widen(f8 v)
{
    const u32 sign = (u32)(v.bits & 0x80) << 24, rest = v.bits & 0x7f;
    if (rest == 0x7f) return __uint_as_float(sign | 0x7fc00000);
    if (rest < 8) return sign ? -(f32)rest / 512 : (f32)rest / 512;  // below the normal numbers: multiples of 2^-9
    return __uint_as_float(sign | (rest + ((127 - 7) << 3)) << 20);
}

// Rounding to nearest even; conversions between numbers are C's.
template <class T> struct Narrow {
    template <class S> static __device__ __forceinline__ T from(S v) { return (T)v; }
};
template <> struct Narrow<bool> {
    template <class S> static __device__ __forceinline__ bool from(S v) { return v != (S)0; }
};
template <> struct Narrow<u8> {
    template <class S> static __device__ __forceinline__ u8 from(S v) { return (u8)(i64)v; }
};
template <> struct Narrow<i8> {
    template <class S> static __device__ __forceinline__ i8 from(S v) { return (i8)(i64)v; }
};
template <> struct Narrow<i16> {
    template <class S> static __device__ __forceinline__ i16 from(S v) { return (i16)(i64)v; }
};
template <> struct Narrow<f16> {
    static __device__ __forceinline__ f16 from(f32 v) { return {float_to_half(v)}; }
    static __device__ __forceinline__ f16 from(f64 v) { return {double_to_half(v)}; }
    static __device__ __forceinline__ f16 from(f16 v) { return v; }
    template <class S> static __device__ __forceinline__ f16 from(S v) { return from((f32)v); }
};
template <> struct Narrow<bf16> {
    static __device__ __forceinline__ bf16 from(f32 v)
    {
        bf16 half;
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half.bits) : "f"(v));
#else
        u32 bits = __float_as_uint(v);
        half.bits = v != v ? 0x7fff : (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
        return half;
    }
    static __device__ __forceinline__ bf16 from(bf16 v) { return v; }
    template <class S> static __device__ __forceinline__ bf16 from(S v) { return from((f32)v); }
};
// Beyond 448 it saturates.
template <> struct Narrow<f8> {
    static __device__ __forceinline__ f8 from(f32 v)
    {
        const u32 bits = __float_as_uint(v), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
        if (size > 0x7f800000) return {(u8)(sign | 0x7f)};
        if (size >= 0x43e00000) return {(u8)(sign | 0x7e)};
        if (size < 0x3c800000) return {(u8)(sign | (u32)rintf(__uint_as_float(size) * 512))};  // below 2^-6
        return {(u8)(sign | (((size + 0x7ffff + ((size >> 20) & 1)) >> 20) - ((127 - 7) << 3)))};
    }
    static __device__ __forceinline__ f8 from(f8 v) { return v; }
    template <class S> static __device__ __forceinline__ f8 from(S v) { return from((f32)v); }
};
template <class T, class S> __device__ __forceinline__ T narrow(S v) { return Narrow<T>::from(v); }

// Two numbers as a pair of a half type, the first one in the low bits.
__device__ __forceinline__ u32 narrow_two(f32 first, f32 second, bf16)
{
#if __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return narrow<bf16>(first).bits | (u32)narrow<bf16>(second).bits << 16;
#endif
}
__device__ __forceinline__ u32 narrow_two(f32 first, f32 second, f16)
{
    return float_to_half(first) | (u32)float_to_half(second) << 16;
}
__device__ __forceinline__ f32 widen_first(u32 pair, bf16) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ f32 widen_second(u32 pair, bf16) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ f32 widen_first(u32 pair, f16) { return half_to_float((u16)pair); }
__device__ __forceinline__ f32 widen_second(u32 pair, f16) { return half_to_float((u16)(pair >> 16)); }

// N elements that are moved at once; the address must be a multiple of their size together.
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T v[N]; };

template <int N, class T> __device__ __forceinline__ Pack<T, N> load(const T *p)
{
    return *reinterpret_cast<const Pack<T, N> *>(p);
}
template <int N, class T> __device__ __forceinline__ void store(T *p, const Pack<T, N> &v)
{
    *reinterpret_cast<Pack<T, N> *>(p) = v;
}

// NaN wins, as in NumPy.
template <class T> __device__ __forceinline__ T larger(T a, T b) { return (a > b || a != a) ? a : b; }
template <class T> __device__ __forceinline__ T smaller(T a, T b) { return (a < b || a != a) ? a : b; }
template <class T> __device__ __forceinline__ T magnitude(T a) { return a < (T)0 ? (T)(-a) : a; }
__device__ __forceinline__ f32 magnitude(f32 a) { return fabsf(a); }
__device__ __forceinline__ f64 magnitude(f64 a) { return fabs(a); }

template <class T> __device__ __forceinline__ T shuffle_xor(T v, int lanes) { return __shfl_xor_sync(0xffffffffu, v, lanes); }

// f(a, b) over the lanes of a warp; every lane gets the result. All 32 lanes must call.
template <class T, class F> __device__ __forceinline__ T over_warp(T v, F f)
{
#pragma unroll
    for (int lanes = 16; lanes; lanes >>= 1) v = f(v, shuffle_xor(v, lanes));
    return v;
}

// The same over N neighbouring lanes, N a power of two: each of them gets the result. All 32 lanes must call.
template <int N, class T, class F> __device__ __forceinline__ T over_lanes_of(T v, F f)
{
#pragma unroll
    for (int lanes = N / 2; lanes; lanes >>= 1) v = f(v, shuffle_xor(v, lanes));
    return v;
}

// f(a, b) over a block of whole warps; every thread gets the result. All threads must call.
template <class T, class F> __device__ __forceinline__ T over_block(T v, F f, T neutral)
{
    __shared__ T part[32];
    v = over_warp(v, f);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = (threadIdx.x & 31) < (blockDim.x >> 5) ? part[threadIdx.x & 31] : neutral;
    return over_warp(v, f);
}

struct Sum { template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; } };
struct Product { template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a * b; } };
struct Larger { template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return larger(a, b); } };
struct Smaller { template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return smaller(a, b); } };

#include "special.cuh"
