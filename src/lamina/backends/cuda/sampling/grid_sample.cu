// Images and volumes read at places that are data, and the gradients.
//
// A thread works on one place and a few channels. Constants: T, Index, RANK (2 or 3), MODE (0 nearest, 1 linear,
// 2 cubic), PADDING (0 zeros, 1 border, 2 reflection), ALIGN (corners), N, C, PLACES (of an image), S0 S1 S2 (sizes of
// x, S0 = 1 with RANK 2), LAST (whether channels lie innermost), EACH (channels of a thread; with LAST they are loaded
// at once), COUNT_BITS. For grid_sample_held also V (elements of x of an access).
#include "fixed_sum.cuh"
typedef Wide<T>::type A;

#define TAPS (MODE == 0 ? 1 : MODE == 1 ? 2 : 4)
#define TAPS0 (RANK == 3 ? TAPS : 1)
#define FAR 16777216
#define SPACE ((Index)S0 * S1 * S2)
#define GROUPS ((C + EACH - 1) / EACH)
#define THREADS ((i64)N * PLACES * GROUPS)
// Elements from one channel to the next, and from one place to the next.
#define X_C (LAST ? (Index)1 : SPACE)
#define X_S (LAST ? (Index)C : (Index)1)
#define Y_C (LAST ? (Index)1 : (Index)PLACES)
#define Y_P (LAST ? (Index)C : (Index)1)

__device__ __forceinline__ f32 floor_(f32 v) { return floorf(v); }
__device__ __forceinline__ f64 floor_(f64 v) { return floor(v); }
__device__ __forceinline__ f32 round_(f32 v) { return rintf(v); }
__device__ __forceinline__ f64 round_(f64 v) { return rint(v); }

// Along one axis: the offsets of what is read (-1: nothing), the weights and their derivatives by the coordinate.
struct Taps { Index at[TAPS]; A weight[TAPS], slope[TAPS]; };

// A place moved into an axis of n elements by the padding; sign: the derivative of that.
__device__ __forceinline__ A inside(A place, int n, A &sign)
{
    sign = 1;
#if PADDING == 2
    const A low = ALIGN ? (A)0 : (A)-0.5, span = ALIGN ? (A)(n - 1) : (A)n;
    const A away = magnitude(place - low), turns = floor_(away / (span > 0 ? span : (A)1));
    const A extra = away - turns * span;
    const bool odd = turns - 2 * floor_(turns / 2) == 1;
    if ((place < low) != odd) sign = -1;
    place = (odd ? span - extra : extra) + low;
#endif
#if PADDING
    if (!(place > 0 && place < (A)(n - 1))) {
        sign = 0;
        place = place > 0 ? (A)(n - 1) : (A)0;
    }
#endif
    return place;
}

__device__ __forceinline__ Index offset_of(A place, int n, Index stride)
{
    return place >= 0 && place < (A)n ? (Index)place * stride : (Index)-1;
}

// Keys' weights for a = -0.75 at distance v below 1, and between 1 and 2; their derivatives.
#define CUBIC ((A)-0.75)
__device__ __forceinline__ A near_weight(A v) { return ((CUBIC + 2) * v - (CUBIC + 3)) * v * v + 1; }
__device__ __forceinline__ A near_slope(A v) { return (3 * (CUBIC + 2) * v - 2 * (CUBIC + 3)) * v; }
__device__ __forceinline__ A far_weight(A v) { return ((CUBIC * v - 5 * CUBIC) * v + 8 * CUBIC) * v - 4 * CUBIC; }
__device__ __forceinline__ A far_slope(A v) { return (3 * CUBIC * v - 10 * CUBIC) * v + 8 * CUBIC; }

__device__ __forceinline__ Taps taps_of(A coordinate, int n, Index stride)
{
    Taps t;
    const A scale = ALIGN ? (A)(n - 1) / 2 : (A)n / 2;
    A place = (coordinate + 1) * scale - (ALIGN ? (A)0 : (A)0.5), sign;
    if (!(place > (A)-FAR)) place = (A)-FAR;
    if (place > (A)FAR) place = (A)FAR;
#if MODE == 2
    const A first = floor_(place), v = place - first;
    for (int k = 0; k < 4; k++) t.at[k] = offset_of(inside(first + (A)(k - 1), n, sign), n, stride);
    t.weight[0] = far_weight(v + 1), t.weight[1] = near_weight(v);
    t.weight[2] = near_weight(1 - v), t.weight[3] = far_weight(2 - v);
    t.slope[0] = far_slope(v + 1) * scale, t.slope[1] = near_slope(v) * scale;
    t.slope[2] = -near_slope(1 - v) * scale, t.slope[3] = -far_slope(2 - v) * scale;
#else
    place = inside(place, n, sign);
#if MODE == 0
    t.at[0] = offset_of(round_(place), n, stride);
    t.weight[0] = 1;
    t.slope[0] = 0;
#else
    const A first = floor_(place);
    t.at[0] = offset_of(first, n, stride);
    t.at[1] = offset_of(first + 1, n, stride);
    t.weight[0] = first + 1 - place, t.weight[1] = place - first;
    t.slope[0] = -sign * scale, t.slope[1] = sign * scale;
#endif
#endif
    return t;
}

// What the place of a thread reads along the three axes; the grid names the last axis first.
struct Reading { Taps a, b, c; };

__device__ __forceinline__ Reading reading_of(const T *grid, Index place)
{
    const T *own = grid + place * RANK;
    Reading r;
#if RANK == 3
    r.a = taps_of((A)widen(own[2]), S0, (Index)S1 * S2 * X_S);
#else
    r.a.at[0] = 0, r.a.weight[0] = 1, r.a.slope[0] = 0;
#endif
    r.b = taps_of((A)widen(own[1]), S1, (Index)S2 * X_S);
    r.c = taps_of((A)widen(own[0]), S2, X_S);
    return r;
}

// Runs through what is read: `at` is the offset, w the weight, and i, j, k are the taps.
#define FOR_TAPS                                                                                                     \
    _Pragma("unroll") for (int i = 0; i < TAPS0; i++)                                                                \
    _Pragma("unroll") for (int j = 0; j < TAPS; j++)                                                                 \
    _Pragma("unroll") for (int k = 0; k < TAPS; k++)                                                                 \
        if (const Index at = r.a.at[i] + r.b.at[j] + r.c.at[k]; r.a.at[i] >= 0 && r.b.at[j] >= 0 && r.c.at[k] >= 0)

// The place (p of image n) and the first channel of thread t.
#if LAST
#define SPLIT                                                                                                        \
    const Index c = (Index)t % GROUPS * EACH, place = (Index)t / GROUPS, p = place % PLACES, n = place / PLACES;
#else
#define SPLIT                                                                                                        \
    const Index p = (Index)t % PLACES, c = (Index)t / PLACES % GROUPS * EACH, n = (Index)t / PLACES / GROUPS;        \
    const Index place = n * PLACES + p;
#endif
#define X_FIRST (n * (Index)C * SPACE + c * X_C)
#define Y_FIRST (n * (Index)C * PLACES + c * Y_C + p * Y_P)
#define FOR_CHANNELS _Pragma("unroll") for (int e = 0; e < EACH; e++) if (LAST || c + e < C)

// EACH channels of an element, as they are.
__device__ __forceinline__ void fetch(T *to, const T *from, Index c, Index stride)
{
#if LAST
    const auto pack = load<EACH>(from);
    for (int e = 0; e < EACH; e++) to[e] = pack.v[e];
#else
    FOR_CHANNELS to[e] = from[e * stride];
#endif
}

extern "C" __global__ void __launch_bounds__(256) grid_sample(const T *x, const T *grid, T *y)
{
    FOR_EACH (t, THREADS) {
        SPLIT
        const Reading r = reading_of(grid, place);
        A sum[EACH];
        for (int e = 0; e < EACH; e++) sum[e] = 0;
        FOR_TAPS {
            const A w = r.a.weight[i] * r.b.weight[j] * r.c.weight[k];
            T here[EACH];
            fetch(here, x + X_FIRST + at, c, X_C);
            FOR_CHANNELS sum[e] += w * (A)widen(here[e]);
        }
#if LAST
        Pack<T, EACH> made;
        for (int e = 0; e < EACH; e++) made.v[e] = narrow<T>(sum[e]);
        store<EACH>(y + Y_FIRST, made);
#else
        FOR_CHANNELS y[Y_FIRST + e * Y_C] = narrow<T>(sum[e]);
#endif
    }
}

#ifdef HELD
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#endif
// A block holds EACH channels of a row-major image in shared memory, and computes all their places.
//
// Expected: read from memory at places in any order, each row of taps takes a sector of 32 bytes of which it uses a
// quarter, 0.46 GB in all for the 64x32x56x56 of float32 of benchmarks/op_families.py. Here x and y pass through memory
// once, 51 MB or 12 us at 4.3 TB/s; 26 million reads of shared memory, about 3.5 of a warp in the same bank, are 0.8
// million of 32 and so 12 us of 132 multiprocessors at 1.75 GHz.
extern "C" __global__ void __launch_bounds__(256) grid_sample_held(const T *x, const T *grid, T *y)
{
    DYNAMIC_SHARED(T, held);
    for (Index block = blockIdx.x; block < (Index)N * GROUPS; block += gridDim.x) {
        const Index n = block / GROUPS, c = block % GROUPS * EACH, first = n * C + c;
        const int count = (int)((c + EACH < C ? EACH : C - c) * SPACE);
        __syncthreads();
#pragma unroll 4
        for (int i = threadIdx.x * V; i < count; i += blockDim.x * V) store<V>(held + i, load<V>(x + first * SPACE + i));
        __syncthreads();
        for (Index p = threadIdx.x; p < PLACES; p += blockDim.x) {
            const Reading r = reading_of(grid, n * PLACES + p);
            A sum[EACH];
            for (int e = 0; e < EACH; e++) sum[e] = 0;
            FOR_TAPS {
                const A w = r.a.weight[i] * r.b.weight[j] * r.c.weight[k];
                FOR_CHANNELS sum[e] += w * (A)widen(held[at + e * SPACE]);
            }
            FOR_CHANNELS y[(first + e) * PLACES + p] = narrow<T>(sum[e]);
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256)
grid_sample_grad(const T *g, const T *grid, u64 *sums, const FixedRange *range)
{
    const f64 scale = fixed_scale(range);
    FOR_EACH (t, THREADS) {
        SPLIT
        const Reading r = reading_of(grid, place);
        T own[EACH];
        fetch(own, g + Y_FIRST, c, Y_C);
        FOR_TAPS {
            const A w = r.a.weight[i] * r.b.weight[j] * r.c.weight[k];
            FOR_CHANNELS fixed_add(sums + X_FIRST + at + e * X_C, w * (A)widen(own[e]), scale);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
grid_sample_odd(const T *g, const T *grid, const FixedRange *range, T *dx)
{
    if (!range->odd) return;
    FOR_EACH (t, THREADS) {
        SPLIT
        const Reading r = reading_of(grid, place);
        FOR_CHANNELS {
            if (is_finite((A)widen(g[Y_FIRST + e * Y_C]))) continue;
            FOR_TAPS dx[X_FIRST + at + e * X_C] = narrow<T>((A)(INFINITY_F - INFINITY_F));
        }
    }
}

// A thread per place, over all channels in their order.
extern "C" __global__ void __launch_bounds__(256)
grid_sample_grid_grad(const T *g, const T *x, const T *grid, T *dgrid)
{
    FOR_EACH (place, (i64)N * PLACES) {
        const Index n = (Index)place / PLACES, p = (Index)place % PLACES;
        const Reading r = reading_of(grid, (Index)place);
        const T *image = x + n * (Index)C * SPACE, *own = g + n * (Index)C * PLACES + p * Y_P;
        A sum[3] = {0, 0, 0};
        FOR_TAPS {
            A both = 0;
            for (Index c = 0; c < (Index)C; c++) both += (A)widen(image[at + c * X_C]) * (A)widen(own[c * Y_C]);
            sum[0] += both * (r.a.weight[i] * r.b.weight[j] * r.c.slope[k]);
            sum[1] += both * (r.a.weight[i] * r.b.slope[j] * r.c.weight[k]);
            sum[2] += both * (r.a.slope[i] * r.b.weight[j] * r.c.weight[k]);
        }
        for (int a = 0; a < RANK; a++) dgrid[(Index)place * RANK + a] = narrow<T>(sum[a]);
    }
}
