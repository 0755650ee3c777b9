// Sums of floats by atomic additions in any order, with the same bits from run to run: each is rounded to a whole
// multiple of one power of two, and whole numbers add up exactly (fixed point, 64 bits).
//
// Constants: COUNT_BITS (one sum has at most 2^COUNT_BITS terms).
#pragma once

// The largest exponent of all terms, as `fixed_largest` leaves it: FIXED_BIAS + e for terms below 2^e, 0 without any;
// and whether one is not finite.
struct FixedRange { i32 exponent, odd; };
#define FIXED_BIAS 4096

__device__ __forceinline__ int fixed_bits(i32 exponent)
{
    const int bits = 61 - COUNT_BITS - (exponent - FIXED_BIAS);
    return bits < 1000 ? bits : 1000;
}
__device__ __forceinline__ f64 fixed_scale(const FixedRange *range) { return ldexp(1.0, fixed_bits(range->exponent)); }
__device__ __forceinline__ f64 fixed_unit(const FixedRange *range) { return ldexp(1.0, -fixed_bits(range->exponent)); }

template <class A> __device__ __forceinline__ bool is_finite(A v) { return v - v == 0; }

// Terms that are not finite add nothing: `odd` asks for NaN where they belong.
template <class A> __device__ __forceinline__ void fixed_add(u64 *sum, A v, f64 scale)
{
    if (is_finite(v)) atomicAdd(sum, (u64)(i64)rint((f64)v * scale));
}
