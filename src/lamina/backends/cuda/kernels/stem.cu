// The first convolution of a network on tensor cores: few channels, so that the taps of one filter row lie together in
// the image, and a shared copy of some image rows is the matrix of all windows without copying any element twice.
//
// The inner axis of the product goes over (KH, RUN): RUN elements, taps times channels, from LEAD before a window's
// first one, so that every pair of them lies in one 32-bit word. The image lies channels last, C * SW is even.
//
// Constants: Index, T, N, C, H, W, K, KH, KW, SH, SW, PH, PW (padding before), OH, OW, LEAD, RUN (even), STEPS
// (ceil(KH * RUN / 16)), SHIFT (where an image row begins in a shared row), PITCH (elements of a shared row), TH (output
// rows per tile), VX (elements per access of an image row), BIAS, RELU, UPPER; for the filter gradient also COLS (warps
// per block) and NP (groups of 16 taps per warp).
#include "mma.cuh"
#include "slices.cuh"
#define ROWS ((TH - 1) * SH + KH)
#define TILES ((OH + TH - 1) / TH)
#define NT (K / 8)
#define PAIRS (KH * RUN / 2)
#define RESIDENT (K > 96 ? 2 : 3)
#define FOR_EACH(total) for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < (total); i += (int)(gridDim.x * blockDim.x))

// Where pair p of a window lies from its first element on; pairs beyond the last one meet zeros of the filter.
__device__ __forceinline__ int pair_at(int p) { return p < PAIRS ? p / (RUN / 2) * PITCH + p % (RUN / 2) * 2 : 0; }
// Where the window of place p of a tile begins.
__device__ __forceinline__ int window_at(int p)
{
    return p / OW * SH * PITCH + p % OW * SW * C + SHIFT - PW * C - LEAD;
}
// The filter's element for place j of row kh, or whether there is one.
#define IS_TAP(kh, j) ((kh) < KH && (j) >= LEAD && (j) - LEAD < KW * C)
#define W_AT(k, kh, j) ((k) * W_K + ((j) - LEAD) % C * W_C + (kh) * W_H + ((j) - LEAD) / C * W_W)

__device__ __forceinline__ u32 word(const T *p) { return *reinterpret_cast<const u32 *>(p); }

__device__ __forceinline__ void clear(T *rows, int count)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x) rows[i] = narrow<T>(0.0f);
}

// Image rows h0 to h0 + ROWS - 1 into shared memory, zeros for those that are padding.
__device__ __forceinline__ void read_rows(const T *x, Index n, int h0, T *rows)
{
    for (int i = threadIdx.x; i < ROWS * (W * C / VX); i += blockDim.x) {
        const int row = i / (W * C / VX), at = i % (W * C / VX) * VX, h = h0 + row;
        Pack<T, VX> pack;
#pragma unroll
        for (int v = 0; v < VX; ++v) pack.v[v] = narrow<T>(0.0f);
        if (h >= 0 && h < H) pack = load<VX>(x + (n * H + h) * (Index)(W * C) + at);
        store<VX>(rows + row * PITCH + SHIFT + at, pack);
    }
}

// The filter in the order in which lanes take it. Column c of tile 4 q + r is filter 32 q + 8 (c / 2) + 2 r + c % 2, so
// that a lane's results of four tiles are eight filters in a row.
extern "C" __global__ void __launch_bounds__(256) stem_filter(const T *filter, T *packed)
{
    FOR_EACH(STEPS * NT * 128) {
        const int e = i % 2, upper = i / 2 % 2, lane = i / 4 % 32, tile = i / 128 % NT, step = i / 128 / NT;
        const int inner = step * 16 + lane % 4 * 2 + e + 8 * upper, kh = inner / RUN, j = inner % RUN, c = lane / 4;
        const int k = tile / 4 * 32 + c / 2 * 8 + tile % 4 * 2 + c % 2;
        packed[i] = IS_TAP(kh, j) ? filter[W_AT(k, kh, j)] : narrow<T>(0.0f);
    }
}

#ifndef COLS
extern "C" __global__ void __launch_bounds__(128, RESIDENT) stem(const T *x, const T *packed, const T *bias, T *y)
{
    __shared__ __align__(16) T rows[ROWS * PITCH];
    __shared__ __align__(16) T filter[STEPS * NT * 128];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = threadIdx.x; i < STEPS * NT * 16; i += 128) store<8>(filter + i * 8, load<8>(packed + i * 8));
    clear(rows, ROWS * PITCH);
    int pair[STEPS][2];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        pair[step][0] = pair_at(step * 8 + t);
        pair[step][1] = pair_at(step * 8 + t + 4);
    }
    for (int tile = blockIdx.x; tile < N * TILES; tile += gridDim.x) {
        const int oh0 = tile % TILES * TH;
        const Index n = tile / TILES;
        __syncthreads();
        read_rows(x, n, oh0 * SH - PH, rows);
        __syncthreads();
        for (int unit = warp; unit * 32 < TH * OW; unit += 4) {
            int at[4];
            f32 sum[2][NT][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int p = unit * 32 + g + 8 * i;
                at[i] = window_at(p < TH * OW ? p : 0);
            }
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int j = 0; j < NT; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[m][j][i] = 0.0f;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                u32 a[2][4];
#pragma unroll
                for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = word(rows + at[i / 4 * 2 + i % 2] + pair[step][i % 4 / 2]);
#pragma unroll
                for (int j = 0; j < NT; ++j) {
                    const Pack<u32, 2> b = load<2>(reinterpret_cast<const u32 *>(filter) + ((step * NT + j) * 32 + lane) * 2);
                    warp_mma(sum[0][j], a[0], b.v, T());
                    warp_mma(sum[1][j], a[1], b.v, T());
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int p = unit * 32 + g + 8 * i, oh = oh0 + p / OW;
                if (p >= TH * OW || oh >= OH) continue;
                T *out = y + ((n * OH + oh) * OW + p % OW) * (Index)K + t * 8;
#pragma unroll
                for (int q = 0; q < NT / 4; ++q) {
                    Pack<T, 8> pack;
#pragma unroll
                    for (int v = 0; v < 8; ++v) {
                        f32 value = sum[i / 2][q * 4 + v / 2][i % 2 * 2 + v % 2];
                        if (BIAS) value += widen(bias[q * 32 + t * 8 + v]);
                        pack.v[v] = narrow<T>(RELU ? smaller(larger(value, 0.0f), UPPER) : value);
                    }
                    store<8>(out + q * 32, pack);
                }
            }
        }
    }
}
#else
#define MT (K / 16)
#define PLACES ((TH * OW + 15) / 16 * 16)
#define STRIDE (K + 8)  // of a place in shared memory: no two lanes meet in a bank
#define FRAGMENTS (COLS * MT * NP * 2 * 128)

// A warp holds all K filters times 16 NP taps. Of tile m of filters, row g is filter 16 m + 2 g, row g + 8 the next one;
// of the group u of taps, columns of the first tile are the first elements of pairs, those of the second the second ones.
extern "C" __global__ void __launch_bounds__(COLS * 32) stem_filter_grad(const T *x, const T *gradient, f32 *partial)
{
    __shared__ __align__(16) T rows[ROWS * PITCH];
    __shared__ __align__(16) T places[PLACES * STRIDE];
    __shared__ int windows[PLACES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    clear(rows, ROWS * PITCH);
    clear(places, PLACES * STRIDE);
    for (int p = threadIdx.x; p < PLACES; p += COLS * 32) windows[p] = window_at(p < TH * OW ? p : 0);
    int pair[NP];
    f32 sum[MT][NP * 2][4];
#pragma unroll
    for (int u = 0; u < NP; ++u) pair[u] = pair_at((warp * NP + u) * 8 + g);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int j = 0; j < NP * 2; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[m][j][i] = 0.0f;
    for (int tile = blockIdx.x; tile < N * TILES; tile += gridDim.x) {
        const int oh0 = tile % TILES * TH;
        const Index n = tile / TILES;
        __syncthreads();
        read_rows(x, n, oh0 * SH - PH, rows);
#pragma unroll 4
        for (int i = threadIdx.x; i < TH * OW * (K / 8); i += COLS * 32) {
            const int p = i / (K / 8), at = i % (K / 8) * 8;
            Pack<T, 8> pack;
#pragma unroll
            for (int v = 0; v < 8; ++v) pack.v[v] = narrow<T>(0.0f);
            if (oh0 + p / OW < OH) pack = load<8>(gradient + ((n * OH + oh0) * OW + p) * (Index)K + at);
            store<8>(places + p * STRIDE + at, pack);
        }
        __syncthreads();
        for (int first = 2 * t; first < PLACES; first += 16) {
            u32 b[NP * 2][2];
#pragma unroll
            for (int u = 0; u < NP; ++u) {
                u32 v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) v[i] = word(rows + windows[first + i % 2 + i / 2 * 8] + pair[u]);
                b[2 * u][0] = firsts(v[0], v[1]);
                b[2 * u][1] = firsts(v[2], v[3]);
                b[2 * u + 1][0] = seconds(v[0], v[1]);
                b[2 * u + 1][1] = seconds(v[2], v[3]);
            }
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                u32 v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) v[i] = word(places + (first + i % 2 + i / 2 * 8) * STRIDE + m * 16 + g * 2);
                const u32 a[4] = {firsts(v[0], v[1]), seconds(v[0], v[1]), firsts(v[2], v[3]), seconds(v[2], v[3])};
#pragma unroll
                for (int j = 0; j < NP * 2; ++j) warp_mma(sum[m][j], a, b[j], T());
            }
        }
    }
    f32 *own = partial + blockIdx.x * (Index)FRAGMENTS + warp * (MT * NP * 2 * 128) + lane;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int j = 0; j < NP * 2; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) own[((m * NP * 2 + j) * 4 + i) * 32] = sum[m][j][i];
}

// Blocks of 256 over 32 elements each.
extern "C" __global__ void __launch_bounds__(256) stem_filter_sum(const f32 *partial, T *dw, i32 slices)
{
    const int at = blockIdx.x * 32 + threadIdx.x % 32;
    const f32 sum = over_slices<Index>(partial, at, FRAGMENTS, slices);
    if (threadIdx.x >= 32) return;
    const int g = at % 32 / 4, t = at % 4, i = at / 32 % 4, j = at / 128 % (NP * 2), m = at / 128 / (NP * 2) % MT;
    const int warp = at / (128 * NP * 2 * MT), k = m * 16 + g * 2 + i / 2;
    const int inner = ((warp * NP + j / 2) * 8 + t * 2 + i % 2) * 2 + j % 2, kh = inner / RUN, place = inner % RUN;
    if (IS_TAP(kh, place)) dw[W_AT(k, kh, place)] = narrow<T>(sum);
}
#endif
