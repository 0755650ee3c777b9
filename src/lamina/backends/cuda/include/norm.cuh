// What kernels around a batch norm have in common: the type of statistics, relu or another function behind it, sums over
// a block's rows.
#pragma once
typedef Wide<T>::type A;

#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)

#ifdef RELU
// relu, which with HI is clipped there too, and where its gradient passes. UPPER: what a result must be below. FUNCTION:
// function(v), which comes with the constants, in relu's place.
#ifdef HI
#define UPPER ((A)HI)
#else
#define UPPER ((A)INFINITY_F)
#endif
__device__ __forceinline__ A activated(A v)
{
#if defined(FUNCTION)
    v = function(v);
#elif RELU
    v = larger(v, (A)0);
#ifdef HI
    v = smaller(v, UPPER);
#endif
#endif
    return v;
}
__device__ __forceinline__ bool passes(A v, A upper)
{
#ifdef HI
    return v > (A)0 && v < upper;
#else
    return v > (A)0;
#endif
}
#endif

#ifdef ROWS
// Blocks of ROWS rows of LANES threads, each with V places (channels) side by side: two sums of each place over the
// block's rows, to partial[sum][place][split].
__device__ __forceinline__ void sums_of_rows(A *partial, const A (&s)[V], const A (&q)[V], i64 outputs, i64 splits)
{
    __shared__ A part[2][ROWS][LANES * V];
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    REPEAT(k, V) { part[0][row][lane * V + k] = s[k]; part[1][row][lane * V + k] = q[k]; }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * LANES * V; c += 256) {
        const int which = c / (LANES * V), column = c % (LANES * V);
        const i64 place = (i64)blockIdx.x * LANES * V + column;
        if (place >= outputs) continue;
        A total = part[which][0][column];
        for (int k = 1; k < ROWS; ++k) total += part[which][k][column];
        partial[(which * outputs + place) * splits + blockIdx.y] = total;
    }
}
#endif
