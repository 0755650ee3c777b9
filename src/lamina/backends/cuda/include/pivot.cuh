// Pivots of elimination in a matrix of float64, searched by the THREADS threads of a block.
#pragma once

// The order of pivots: by magnitude, and NaN before infinities, which are before all else.
__device__ __forceinline__ f64 pivot_size(f64 v)
{
    const f64 most = 1.7976931348623157e308;
    return v != v ? (f64)INFINITY_F : fabs(v) < most ? fabs(v) : most;
}

struct Candidate { f64 most; i64 place; };

__device__ __forceinline__ void prefer(Candidate &own, f64 most, i64 place)
{
    if (most > own.most || (most == own.most && place < own.place)) own = {most, place};
}

// The candidate of the largest magnitude of all threads, of equal ones the first.
__device__ __forceinline__ i64 largest(Candidate own)
{
    __shared__ f64 most[THREADS / 32];
    __shared__ i64 place[THREADS / 32];
    for (int lanes = 16; lanes; lanes /= 2) {
        const f64 other = shuffle_xor(own.most, lanes);
        prefer(own, other, shuffle_xor(own.place, lanes));
    }
    if (threadIdx.x % 32 == 0) {
        most[threadIdx.x / 32] = own.most;
        place[threadIdx.x / 32] = own.place;
    }
    __syncthreads();
    for (int warp = 0; warp < THREADS / 32; warp++) prefer(own, most[warp], place[warp]);
    __syncthreads();
    return own.place;
}

// The first row from k on whose element in column k has the largest magnitude.
__device__ __forceinline__ int pivot_row(const f64 *w, int k, int rows, int width)
{
    Candidate own = {-1, k};
    for (int i = k + threadIdx.x; i < rows; i += THREADS)
        if (pivot_size(w[(i64)i * width + k]) > own.most) own = {pivot_size(w[(i64)i * width + k]), i};
    return (int)largest(own);
}

// Where the largest element lies of rows and columns k to n - 1.
__device__ __forceinline__ i64 pivot_of_all(const f64 *w, int k, int n, int width)
{
    Candidate own = {-1, (i64)k * width + k};
    const i64 rest = n - k;
    for (i64 e = threadIdx.x; e < rest * rest; e += THREADS) {
        const i64 place = (k + e / rest) * width + k + e % rest;
        if (pivot_size(w[place]) > own.most) own = {pivot_size(w[place]), place};
    }
    return largest(own);
}

__device__ __forceinline__ void exchange(f64 &a, f64 &b)
{
    const f64 held = a;
    a = b;
    b = held;
}
