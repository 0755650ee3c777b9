// The gradient of a filter as a product for each of its taps: dw[k, tap, c] is the sum over output places p of
// dy[p, k] x[p + tap, c]. The sum goes over many places and the result is small, so that blocks share the places: each
// has FILTERS x CHANNELS elements of one tap and a part of the places, which come to shared memory 32 at a time. A tap
// that is beyond the image meets zeros. What blocks leave is added up by `filter_products_sum`, always in the same order.
//
// Everything lies channels last. Constants: Index, T (a half type), AXES (of space), FILTERS and CHANNELS (of a block,
// eight warps have MT x 16 by NT x 8 of them each). Numbers: N_K, N_C (filters and channels, in eights), PLACES (output
// places of all images), PART (of a block, whole TURNs), TILES_K, TILES_C (blocks along filters and channels), STEP_N (x
// from image to image), and of each axis a OUT_a, IN_a, TAP_a (sizes), STRIDE_a, DILATION_a, LOW_a (padding before), STEP_a
// (x from place to place); by_OUT_a(n) and by_TAP_a(n) are quotients.
#include "mma.cuh"
#include "slices.cuh"
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)

// What an emulation on a CPU brings along: shared memory of a size that the launch names.
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

const int TURN = 32, STAGES = 4, VECTOR = 8;
const int PITCH_Y = FILTERS + VECTOR, PITCH_X = CHANNELS + VECTOR;  // no two rows of a matrix meet in a bank
const int STAGE = TURN * (PITCH_Y + PITCH_X), WARPS_N = CHANNELS / (NT * 8);
typedef Pack<T, VECTOR> Eight;

// From the last axis to the first: where x is met along each, and whether there is something.
#define MEET(a)                                                                                                      \
    {                                                                                                                \
        const Index whole = by_OUT_##a(place), tap_whole = by_TAP_##a(tap);                                          \
        const Index at_a = (place - whole * OUT_##a) * STRIDE_##a + (tap - tap_whole * TAP_##a) * DILATION_##a - LOW_##a; \
        inside = inside && at_a >= 0 && at_a < IN_##a;                                                               \
        at += at_a * STEP_##a;                                                                                       \
        place = whole;                                                                                               \
        tap = tap_whole;                                                                                             \
    }

// The element of x that a tap meets at an output place; whether there is one.
__device__ __forceinline__ bool met(Index place, Index tap, Index &at, const Sizes &sizes)
{
    bool inside = true;
    at = 0;
#if AXES > 2
    MEET(2)
#endif
#if AXES > 1
    MEET(1)
#endif
    MEET(0)
    at += place * STEP_N;
    return inside;
}

// A turn's places to shared memory: dy as [TURN, FILTERS], x as [TURN, CHANNELS].
__device__ __forceinline__ void read_turn(T *stage, const T *x, const T *dy, Index first, Index end, Index k0, Index c0,
                                          Index tap, const Sizes &sizes)
{
    REPEAT(q, TURN * FILTERS / VECTOR / 256) {
        const int i = (int)threadIdx.x + q * 256, row = i / (FILTERS / VECTOR), part = i % (FILTERS / VECTOR) * VECTOR;
        const bool inside = first + row < end && k0 + part < N_K;
        copy_later(stage + row * PITCH_Y + part, inside ? dy + (first + row) * N_K + k0 + part : dy, inside);
    }
    T *const right = stage + TURN * PITCH_Y;
    REPEAT(q, TURN * CHANNELS / VECTOR / 256) {
        const int i = (int)threadIdx.x + q * 256, row = i / (CHANNELS / VECTOR), part = i % (CHANNELS / VECTOR) * VECTOR;
        Index at;
        const bool inside = met(first + row, tap, at, sizes) && first + row < end && c0 + part < N_C;
        copy_later(right + row * PITCH_X + part, inside ? x + at + c0 + part : x, inside);
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) filter_products(const T *x, const T *dy, f32 *partial, SIZES)
{
    DYNAMIC_SHARED(Eight, memory);
    T *const stages = memory[0].v;
    const Index tile = (Index)blockIdx.x % (TILES_K * TILES_C), tap = (Index)blockIdx.x / (TILES_K * TILES_C);
    const Index k0 = tile / TILES_C * FILTERS, c0 = tile % TILES_C * CHANNELS;
    const Index begin = (Index)blockIdx.y * PART, end = begin + PART < PLACES ? begin + PART : PLACES;
    const int turns = (int)(end - begin + TURN - 1) / TURN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i8 = lane % 8, j8 = lane / 8;
    const int m0 = warp / WARPS_N * MT * 16, n0 = warp % WARPS_N * NT * 8;
    f32 sum[MT][NT][4] = {};
    REPEAT(s, STAGES - 1) {
        if (s < turns) read_turn(stages + s * STAGE, x, dy, begin + s * TURN, end, k0, c0, tap, sizes);
        end_group();
    }
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
        wait_groups<STAGES - 2>();
        __syncthreads();
        const int next = turn + STAGES - 1;
        if (next < turns)
            read_turn(stages + next % STAGES * STAGE, x, dy, begin + (Index)next * TURN, end, k0, c0, tap, sizes);
        end_group();
        const T *const stage = stages + turn % STAGES * STAGE;
        REPEAT(half, TURN / 16) {
            const T *const left = stage + (half * 16 + j8 / 2 * 8 + i8) * PITCH_Y + m0 + j8 % 2 * 8;
            const T *const right = stage + TURN * PITCH_Y + (half * 16 + j8 % 2 * 8 + i8) * PITCH_X + n0 + j8 / 2 * 8;
            u32 a[MT][4], b[NT][2];
            REPEAT(m, MT) matrices<true>(a[m], left + m * 16);
            REPEAT(u, NT / 2) {
                u32 four[4];
                matrices<true>(four, right + u * 16);
                REPEAT(i, 4) b[2 * u + i / 2][i % 2] = four[i];
            }
            REPEAT(m, MT) REPEAT(n, NT) warp_mma(sum[m][n], a[m], b[n], T());
        }
    }
    const Index taps = (Index)gridDim.x / (TILES_K * TILES_C), row = taps * N_C;
    REPEAT(m, MT) REPEAT(n, NT) REPEAT(h, 2) {
        const Index k = k0 + m0 + m * 16 + h * 8 + lane / 4, c = c0 + n0 + n * 8 + lane % 4 * 2;
        if (k >= N_K || c >= N_C) continue;
        Pack<f32, 2> two;
        REPEAT(e, 2) two.v[e] = sum[m][n][h * 2 + e];
        store<2>(partial + ((Index)blockIdx.y * N_K + k) * row + tap * N_C + c, two);
    }
}

// Blocks of 256 over 32 elements each of dw, which lies as the sums do.
extern "C" __global__ void __launch_bounds__(256) filter_products_sum(const f32 *partial, T *dw, i32 count, i32 slices)
{
    const Index at = (Index)blockIdx.x * 32 + threadIdx.x % 32;
    const f32 sum = over_slices<Index>(partial, at < count ? at : 0, count, slices);
    if (threadIdx.x < 32 && at < count) dw[at] = narrow<T>(sum);
}
