// Attention on tensor cores by warps of 16 rows: lines of features in shared memory, scores and sums in registers.
//
// Constants: T, THREADS of a block, CROOKED (addresses may be any). A warp's products are of 16 rows and 8 columns; lane
// 4 g + t has of each the rows g and g + 8, columns 2t and 2t+1 (mma.cuh). Rows, columns and features beyond the
// operands' are zeros on the chip.
#pragma once
#include "mma.cuh"

#define REPEAT(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#define WHOLE(n) (((n) + 15) / 16 * 16)
// Between lines of shared memory: an odd number of 16 bytes, so that eight of them lie in all banks.
#define STEP_OF(n) (WHOLE(n) + 8)

// HEIGHT lines of COUNT elements to shared memory, `step` elements apart in memory, where the first `rows` and of each
// the first `count` are; zeros for the rest. SINGLE: addresses may be any.
template <int COUNT, int HEIGHT, bool SINGLE>
__device__ __forceinline__ void fetch(T *to, const T *from, i64 step, int rows, int count)
{
    const int each = SINGLE ? 1 : 8, packs = WHOLE(COUNT) / each;
    REPEAT(turn, (HEIGHT * packs + THREADS - 1) / THREADS) {
        const int i = turn * THREADS + threadIdx.x, row = (u32)i / packs, d = (u32)i % packs * each;
        if (HEIGHT * packs % THREADS != 0 && i >= HEIGHT * packs) break;
        const bool inside = row < rows && d < count;
        T *const at = to + row * STEP_OF(COUNT) + d;
        if (SINGLE) *at = inside ? from[row * step + d] : narrow<T>(0.0f);
        else copy_later(at, inside ? from + row * step + d : from, inside);
    }
}

// Lines of all their features.
template <int FEATURES, int HEIGHT> __device__ __forceinline__ void stage(T *to, const T *from, i64 step, int rows)
{
    fetch<FEATURES, HEIGHT, CROOKED>(to, from, step, rows, FEATURES);
}

__device__ __forceinline__ void arrived()
{
#if !CROOKED
    end_group();
    wait_groups<0>();
#endif
    __syncthreads();
}

// A left factor: 16 rows of 16 features, of lines that begin at `rows`.
template <int STEP> __device__ __forceinline__ void left_of(u32 (&a)[4], const T *rows)
{
    const int lane = threadIdx.x % 32;
    matrices<false>(a, rows + lane % 16 * STEP + lane / 16 * 8);
}

// s [16, 8 TILES] += a [16, 16] times 16 features of lines that begin at `columns`.
template <int STEP, int TILES>
__device__ __forceinline__ void add_scores(f32 (&s)[TILES][4], const u32 (&a)[4], const T *columns)
{
    const int lane = threadIdx.x % 32;
    REPEAT(n, TILES / 2) {
        u32 b[4];
        matrices<false>(b, columns + (n * 16 + lane / 16 * 8 + lane % 8) * STEP + lane / 8 % 2 * 8);
        const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        warp_mma(s[2 * n], a, first, T());
        warp_mma(s[2 * n + 1], a, second, T());
    }
}

// d [16, FEATURES] += a b, where b [16 PARTS, FEATURES] lies in shared memory.
template <int FEATURES, int STEP, int PARTS>
__device__ __forceinline__ void add_product(f32 (&d)[WHOLE(FEATURES) / 8][4], const u32 (&a)[PARTS][4], const T *b)
{
    const int lane = threadIdx.x % 32;
    REPEAT(k, PARTS) REPEAT(n, WHOLE(FEATURES) / 16) {
        u32 right[4];
        matrices<true>(right, b + (k * 16 + lane % 16) * STEP + n * 16 + lane / 16 * 8);
        const u32 first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
        warp_mma(d[2 * n], a[k], first, T());
        warp_mma(d[2 * n + 1], a[k], second, T());
    }
}

// The pairs of sums are those of a left factor.
template <int TILES> __device__ __forceinline__ void narrowed(u32 (&a)[TILES / 2][4], const f32 (&s)[TILES][4])
{
    REPEAT(n, TILES / 2) REPEAT(i, 4)
        a[n][i] = narrow_two(s[2 * n + i / 2][i % 2 * 2], s[2 * n + i / 2][i % 2 * 2 + 1], T());
}

// To memory: the warp's rows from `row` on, of `rows` lines that are `step` apart.
template <int FEATURES>
__device__ __forceinline__ void put(T *to, i64 step, int row, int rows, const f32 (&d)[WHOLE(FEATURES) / 8][4])
{
    const int lane = threadIdx.x % 32;
    REPEAT(half, 2) {
        const int line = row + lane / 4 + half * 8;
        REPEAT(n, WHOLE(FEATURES) / 8) {
            const int column = n * 8 + lane % 4 * 2;
            if (line >= rows || column >= FEATURES) continue;
            T *at = to + line * step + column;
#if CROOKED
            at[0] = narrow<T>(d[n][half * 2]);
            at[1] = narrow<T>(d[n][half * 2 + 1]);
#else
            *(u32 *)at = narrow_two(d[n][half * 2], d[n][half * 2 + 1], T());
#endif
        }
    }
}

// Of a lane's number i in tile n: its row among the warp's, its column.
__device__ __forceinline__ int row_of(int i) { return threadIdx.x % 32 / 4 + i / 2 * 8; }
__device__ __forceinline__ int column_of(int n, int i) { return n * 8 + threadIdx.x % 4 * 2 + i % 2; }

// 2^v, and 0 where that is below 2^-126.
__device__ __forceinline__ f32 power_of_two(f32 v)
{
#ifdef __CUDA_ARCH__
    f32 found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(v));
    return found;
#else
    return exp2f(v);
#endif
}

// Over the four lanes of a row.
template <class F> __device__ __forceinline__ f32 over_row(f32 v, F f)
{
    v = f(v, shuffle_xor(v, 1));
    return f(v, shuffle_xor(v, 2));
}
