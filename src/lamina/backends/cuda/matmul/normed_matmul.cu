// A product of normalized rows: c [M, N] = norm(a) [M, K] b [K, N] of a half type on tensor cores, for few rows. What it
// takes is latency: a block of eight warps makes TALL x WIDE elements, has all of K under way at once, normalizes its rows
// where they lie in shared memory, and its warps share the sums.
//
// Constants: Index, T, S (the type of scales), TALL (16, 32 or 64), WIDE (32 or 64), DEPTH (K, a multiple of 8), B_ALONG
// (elements of a column of b lie together, else those of a row), CENTRED (rows less their mean, by their deviation; else by
// the root of their mean square), EPSILON, CROOKED (addresses may be any).
// Numbers: M, N, and what finish asks for. Texts: EXTRAS (further parameters), GIVEN (their names), and
// finish(sum, m, n, c GIVEN, sizes), which writes an element.
#include "mma.cuh"

#define REPEAT(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#define THREADS 256
#define PART 128
#define PARTS ((DEPTH + PART - 1) / PART)
#define A_STEP (PART + 8)  // 16 bytes more, so that rows begin in different banks
#define B_STEP (B_ALONG ? PART + 8 : WIDE + 8)
#define A_SIZE (TALL * A_STEP)
#define B_SIZE (B_ALONG ? WIDE * B_STEP : PART * B_STEP)
#define ACROSS (WIDE / 32)    // warps beside each other, each with 32 columns
#define SHARING (8 / ACROSS)  // warps that share the sums
#define LINE (WIDE + 8)

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(1024) type name[]
#endif

// Eight elements, or zeros, to shared memory.
__device__ __forceinline__ void fetch_eight(T *to, const T *from, bool inside)
{
#if CROOKED
    REPEAT(e, 8) to[e].bits = inside ? from[e].bits : 0;
#else
    copy_later(to, from, inside);
#endif
}

// Part `p` of the block's rows of a; zeros beyond.
__device__ __forceinline__ void fetch_a(T *to, const T *a, Index row, int p, const Sizes &sizes)
{
    REPEAT(i, TALL * PART / 8 / THREADS) {
        const int v = i * THREADS + threadIdx.x, r = v / (PART / 8), k = p * PART + v % (PART / 8) * 8;
        const bool inside = row + r < M && k < DEPTH;
        fetch_eight(to + r * A_STEP + v % (PART / 8) * 8, inside ? a + (i64)(row + r) * DEPTH + k : a, inside);
    }
}

// Part `p` of the block's columns of b; zeros beyond.
__device__ __forceinline__ void fetch_b(T *to, const T *b, Index column, int p, const Sizes &sizes)
{
    const int wide = B_ALONG ? PART / 8 : WIDE / 8;
    REPEAT(i, WIDE * PART / 8 / THREADS) {
        const int v = i * THREADS + threadIdx.x, line = v / wide, at = v % wide * 8;
        const Index n = column + (B_ALONG ? line : at);
        const int k = p * PART + (B_ALONG ? at : line);
        const bool inside = n < N && k < DEPTH;
        const i64 from = B_ALONG ? (i64)n * DEPTH + k : (i64)k * N + n;
        fetch_eight(to + line * B_STEP + at, inside ? b + from : b, inside);
    }
}

// Element k of a row, k being 2 * lane, 2 * lane + 1 or 64 more, in part p.
__device__ __forceinline__ u32 *pair_at(T *rows, int row, int p, int half)
{
    return reinterpret_cast<u32 *>(rows + p * (A_SIZE + B_SIZE) + row * A_STEP + half * 64) + threadIdx.x % 32;
}

// Normalizes the block's rows where they lie in shared memory; a warp takes one at a time, a lane its pairs.
__device__ __forceinline__ void normalize(T *rows, const S *scale, const S *bias)
{
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < TALL; row += 8) {
        f32 x[PARTS * 2][2], mean = 0, spread = 0;
        REPEAT(i, PARTS * 2) {
            const u32 pair = *pair_at(rows, row, i / 2, i % 2);
            x[i][0] = widen_first(pair, T());
            x[i][1] = widen_second(pair, T());
            mean += x[i][0] + x[i][1];
        }
        mean = CENTRED ? over_warp(mean, Sum()) / DEPTH : 0;
        REPEAT(i, PARTS * 2) if (i * 64 + lane * 2 < DEPTH) {
            x[i][0] -= mean;
            x[i][1] -= mean;
            spread += x[i][0] * x[i][0] + x[i][1] * x[i][1];
        }
        spread = 1 / sqrtf(over_warp(spread, Sum()) / DEPTH + (f32)EPSILON);
        REPEAT(i, PARTS * 2) {
            const int k = i * 64 + lane * 2;
            if (k >= DEPTH) continue;
            f32 y[2];
            REPEAT(e, 2) {
                y[e] = x[i][e] * spread * widen(scale[k + e]);
                if (CENTRED) y[e] += widen(bias[k + e]);
            }
            *pair_at(rows, row, i / 2, i % 2) = narrow_two(y[0], y[1], T());
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
normed_matmul(const T *a, const S *scale, const S *bias, const T *b, T *c EXTRAS, SIZES)
{
    DYNAMIC_SHARED(T, memory);
    const Index row = (Index)blockIdx.y * TALL, column = (Index)blockIdx.x * WIDE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, across = warp % ACROSS, share = warp / ACROSS;
    REPEAT(p, PARTS) fetch_a(memory + p * (A_SIZE + B_SIZE), a, row, p, sizes);
    end_group();
    REPEAT(p, PARTS) fetch_b(memory + p * (A_SIZE + B_SIZE) + A_SIZE, b, column, p, sizes);
    end_group();
    wait_groups<1>();
    __syncthreads();
    normalize(memory, scale, bias);
    wait_groups<0>();
    __syncthreads();
    f32 d[TALL / 16][4][4] = {};
    REPEAT(p, PARTS) {
        const T *const left = memory + p * (A_SIZE + B_SIZE), *const right = left + A_SIZE;
        REPEAT(turn, 8 / SHARING) {
            const int k = (turn * SHARING + share) * 16;
            u32 x[TALL / 16][4], y[2][4];
            REPEAT(i, TALL / 16) matrices<false>(x[i], left + (i * 16 + lane % 16) * A_STEP + k + lane / 16 * 8);
            REPEAT(n, 2) {
                const int own = across * 32 + n * 16 + lane / 16 * 8, eighth = lane / 8 % 2 * 8;
                if (B_ALONG) matrices<false>(y[n], right + (own + lane % 8) * B_STEP + k + eighth);
                else matrices<true>(y[n], right + (k + eighth + lane % 8) * B_STEP + own);
            }
            REPEAT(i, TALL / 16) REPEAT(n, 4) {
                const u32 two[2] = {y[n / 2][n % 2 * 2], y[n / 2][n % 2 * 2 + 1]};
                warp_mma(d[i][n], x[i], two, T());
            }
        }
    }
    __syncthreads();
    f32 *const sums = reinterpret_cast<f32 *>(memory);
    REPEAT(i, TALL / 16) REPEAT(n, 4) REPEAT(half, 2) {
        const int r = i * 16 + half * 8 + lane / 4, at = across * 32 + n * 8 + lane % 4 * 2;
        store<2>(sums + (share * TALL + r) * LINE + at, Pack<f32, 2>{{d[i][n][half * 2], d[i][n][half * 2 + 1]}});
    }
    __syncthreads();
    REPEAT(i, TALL * WIDE / THREADS) {
        const int v = i * THREADS + threadIdx.x, r = v / WIDE, at = v % WIDE;
        if (row + r >= M || column + at >= N) continue;
        f32 sum = 0;
        REPEAT(s, SHARING) sum += sums[(s * TALL + r) * LINE + at];
        finish(sum, row + r, column + at, c GIVEN, sizes);
    }
}
