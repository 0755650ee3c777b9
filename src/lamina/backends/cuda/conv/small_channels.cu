// The first convolution of a network on tensor cores: few channels, so that the taps of one filter row lie together in
// the image, and a shared copy of some image rows is, forward, the matrix of all windows without copying any element
// twice. The filter gradient's inner axis goes over places; each image row is spread once into [places, 8] matrices, which
// the tensor cores' own loads take, for all windows that it is part of.
//
// The inner axis of the forward product goes over (KH, RUN): RUN elements, taps times channels, from LEAD before a
// window's first one, so that every pair of them lies in one 32-bit word. The image lies channels last, C * SW is even.
//
// Constants: Index, T, IMAGES, C, H, W, FILTERS (in eights), K (with those that are zeros, as many as a warp's matrices
// have), KH, KW, SH, SW, PH, PW (padding before), OH, OW, LEAD, RUN (even), STEPS (ceil(KH * RUN / 16)), SHIFT (where an
// image row begins in a shared row), PITCH (elements of a shared row), VX (elements per access of an image row), RESIDENT
// (blocks per multiprocessor), GROUPS (warps of a block that share the places between them); forward TH (output rows per
// tile), BIAS, and a function `activated` of a sum; for the filter gradient EIGHTS (eights of elements that a filter row
// spans), COLS (warps that share these between them) and NP (eights per warp).
#include "mma.cuh"
#include "slices.cuh"
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)
#define NT (K / 8)
#define PAIRS (KH * RUN / 2)
#define FIRST (SHIFT - PW * C - LEAD)  // where the first window of a row begins in a shared row
typedef Pack<T, 8> Eight;

// What an emulation on a CPU brings along: shared memory of a size that the launch names.
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

// The filter's element for place j of row kh, or whether there is one.
#define IS_TAP(kh, j) ((kh) < KH && (j) >= LEAD && (j) - LEAD < KW * C)
#define W_AT(k, kh, j) ((k) * W_K + ((j) - LEAD) % C * W_C + (kh) * W_H + ((j) - LEAD) / C * W_W)

__device__ __forceinline__ u32 word(const T *p, int bytes)
{
    return *reinterpret_cast<const u32 *>(reinterpret_cast<const char *>(p) + bytes);
}

__device__ __forceinline__ void clear(Eight *memory, int count)
{
    Eight zeros;
    REPEAT(v, 8) zeros.v[v] = narrow<T>(0.0f);
    for (int i = threadIdx.x; i < count; i += blockDim.x) memory[i] = zeros;
}

// Image row h into a shared row, where that may be later, by one warp; zeros for a row that is padding.
__device__ __forceinline__ void read_later(T *row, const T *x, Index n, int h)
{
    const bool inside = h >= 0 && h < H;
    const T *from = x + (inside ? (n * H + h) * (Index)(W * C) : 0);
    for (int at = threadIdx.x % 32 * VX; at < W * C; at += 32 * VX) {
#if VX == 8
        copy_later(row + SHIFT + at, from + at, inside);
#else
        Pack<T, VX> pack = load<VX>(from + at);
        REPEAT(v, VX) if (!inside) pack.v[v] = narrow<T>(0.0f);
        store<VX>(row + SHIFT + at, pack);
#endif
    }
}

#ifndef COLS
#define ROWS ((TH - 1) * SH + KH)
#define TILES ((OH + TH - 1) / TH)

// Where pair p of a window lies from its first element on, in bytes; pairs beyond the last one meet zeros of the filter.
__device__ __forceinline__ int pair_at(int p) { return p < PAIRS ? p / (RUN / 2) * (PITCH * 2) + p % (RUN / 2) * 4 : 0; }
// Where the window of place p of a tile begins, likewise. The compiler is kept from adding its parts to each pair anew.
__device__ __forceinline__ int window_at(int turn, int p)
{
    int at = ((turn * ROWS + p / OW * SH) * PITCH + p % OW * SW * C + FIRST) * 2;
#if defined(__CUDA_ARCH__)
    asm("" : "+r"(at));
#endif
    return at;
}

// The filter in the order in which lanes take it. Column c of tile 4 q + r is filter 32 q + 8 (c / 2) + 2 r + c % 2, so
// that a lane's results of four tiles are eight filters in a row.
extern "C" __global__ void __launch_bounds__(256) stem_filter(const T *filter, T *packed)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < STEPS * NT * 128; i += (int)(gridDim.x * blockDim.x)) {
        const int e = i % 2, upper = i / 2 % 2, lane = i / 4 % 32, tile = i / 128 % NT, step = i / 128 / NT;
        const int inner = step * 16 + lane % 4 * 2 + e + 8 * upper, kh = inner / RUN, j = inner % RUN, c = lane / 4;
        const int k = tile / 4 * 32 + c / 2 * 8 + tile % 4 * 2 + c % 2;
        packed[i] = k < FILTERS && IS_TAP(kh, j) ? filter[W_AT(k, kh, j)] : narrow<T>(0.0f);
    }
}

__device__ __forceinline__ void read_tile(T *rows, const T *x, int tile)
{
    const int h0 = tile % TILES * (TH * SH) - PH;
    for (int row = threadIdx.x / 32; row < ROWS; row += K * GROUPS / 32)
        read_later(rows + row * PITCH, x, (Index)(tile / TILES), h0 + row);
}

// A warp keeps 32 filters in registers and takes every GROUPS-th 16 places of a tile; while the warps of a block work on
// one tile, the rows of the next one come.
extern "C" __global__ void __launch_bounds__(K * GROUPS, RESIDENT) stem(const T *x, const T *packed, const T *bias, T *y)
{
    DYNAMIC_SHARED(Eight, memory);
    T *const rows = memory[0].v;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int q = warp % (K / 32), group = warp / (K / 32);
    clear(memory, 2 * ROWS * PITCH / 8);
    __syncthreads();
    if (blockIdx.x < IMAGES * TILES) read_tile(rows, x, blockIdx.x);
    end_group();
    u32 b[STEPS][4][2];
    int pair[STEPS][2];
    REPEAT(step, STEPS) {
        REPEAT(j, 4) {
            const int at = ((step * NT + q * 4 + j) * 32 + lane) * 2;
            const Pack<u32, 2> two = load<2>(reinterpret_cast<const u32 *>(packed) + at);
            b[step][j][0] = two.v[0];
            b[step][j][1] = two.v[1];
        }
        REPEAT(i, 2) pair[step][i] = pair_at(step * 8 + t + 4 * i);
    }
    for (int tile = blockIdx.x, turn = 0; tile < IMAGES * TILES; tile += gridDim.x, turn ^= 1) {
        wait_groups<0>();
        __syncthreads();
        if (tile + gridDim.x < IMAGES * TILES) read_tile(rows + (turn ^ 1) * (ROWS * PITCH), x, tile + gridDim.x);
        end_group();
        const int oh0 = tile % TILES * TH, places = (TH < OH - oh0 ? TH : OH - oh0) * OW;
        for (int first = group * 16 + g; first - g < places; first += GROUPS * 16) {
            int at[2];
            f32 sum[4][4];
            REPEAT(i, 2) at[i] = window_at(turn, first + 8 * i < places ? first + 8 * i : 0);
            REPEAT(j, 4) REPEAT(i, 4) sum[j][i] = 0.0f;
            REPEAT(step, STEPS) {
                u32 a[4];
                REPEAT(i, 4) a[i] = word(rows, at[i % 2] + pair[step][i / 2]);
                REPEAT(j, 4) warp_mma(sum[j], a, b[step][j], T());
            }
            REPEAT(i, 2) {
                const int p = first + 8 * i;
                if (p >= places || q * 32 + t * 8 >= FILTERS) continue;
                Eight pack;
                REPEAT(v, 8) {
                    f32 value = sum[v / 2][i * 2 + v % 2];
                    if (BIAS) value += widen(bias[q * 32 + t * 8 + v]);
                    pack.v[v] = narrow<T>(activated(value));
                }
                store<8>(y + (((Index)(tile / TILES) * OH + oh0) * OW + p) * (Index)FILTERS + q * 32 + t * 8, pack);
            }
        }
    }
}
#else
#define MT (K / 16)
#define PLACES ((OW + 15) / 16 * 16)
#define STRIDE (K + 8)  // of a place in shared memory: no two rows of a matrix meet in a bank
#define SPANS (KH * EIGHTS)
#define WARPS (COLS * GROUPS)
#define READERS (WARPS * 32 / (FILTERS / 8))  // places of a row of the gradient that a block reads at once
#define FRAGMENTS (COLS * MT * NP * 128)
#define NEW (SH < KH ? SH : KH)  // image rows that an output row needs and the one before it did not
#define FRESH(row) ((row) == begin || (row) % OH == 0)

// What the output row needs and the one before it in the walk did not: image rows, and the row of the gradient. Row kh of
// its windows is in turn (oh SH + kh) % KH.
__device__ __forceinline__ void read_row(T *rows, T *places, const T *x, const T *gradient, int row, bool fresh)
{
    const int first = row % OH * SH, part = threadIdx.x % (FILTERS / 8);
    for (int kh = (fresh ? 0 : KH - NEW) + (int)threadIdx.x / 32; kh < KH; kh += WARPS)
        read_later(rows + (first + kh) % KH * PITCH, x, (Index)(row / OH), first + kh - PH);
    const T *from = gradient + (Index)row * (OW * FILTERS) + part * 8;
#pragma unroll 5
    for (int place = threadIdx.x / (FILTERS / 8); place < OW; place += READERS)
        if (threadIdx.x < READERS * (FILTERS / 8))
            copy_later(places + place * STRIDE + part * 8, from + place * FILTERS, true);
}

// The new image rows as matrices [EIGHTS][PLACES][8]: of each place the elements that a filter row takes of it.
__device__ __forceinline__ void spread(Eight *spans, const T *rows, int row, bool fresh)
{
    for (int i = (fresh ? 0 : (KH - NEW) * EIGHTS) + (int)threadIdx.x / 32; i < SPANS; i += WARPS) {
        const int turn = (row % OH * SH + i / EIGHTS) % KH, e = i % EIGHTS;
        const T *from = rows + turn * PITCH + FIRST + e * 8;
        Eight *to = spans + (turn * EIGHTS + e) * PLACES;
#pragma unroll 4
        for (int place = threadIdx.x % 32; place < OW; place += 32) {
            Pack<u32, 4> four;
            REPEAT(v, 4) four.v[v] = word(from, place * (SW * C * 2) + v * 4);
            store<4>(reinterpret_cast<u32 *>(to + place), four);
        }
    }
}

// Blocks walk over output rows that follow each other. Of the result [K, SPANS 8] a warp holds all filters times NP
// eights; GROUPS warps have the same part, and take turns on 16 places of a row each.
extern "C" __global__ void __launch_bounds__(WARPS * 32, RESIDENT)
    stem_filter_grad(const T *x, const T *gradient, f32 *partial)
{
    DYNAMIC_SHARED(Eight, memory);
    Eight *const spans = memory;
    T *const rows = (spans + SPANS * PLACES)->v, *const places = rows + KH * PITCH;
    const int lane = threadIdx.x % 32, i8 = lane % 8, j8 = lane / 8, column = threadIdx.x / 32 % COLS;
    const int group = threadIdx.x / 32 / COLS;
    const int begin = (int)((i64)blockIdx.x * (IMAGES * OH) / gridDim.x), end = (int)((i64)(blockIdx.x + 1) * (IMAGES * OH) / gridDim.x);
    f32 sum[MT][NP][4];
    REPEAT(m, MT) REPEAT(j, NP) REPEAT(i, 4) sum[m][j][i] = 0.0f;
    clear(memory, SPANS * PLACES + (KH * PITCH + 2 * PLACES * STRIDE) / 8);
    __syncthreads();
    if (begin < end) read_row(rows, places, x, gradient, begin, true);
    end_group();
    for (int row = begin; row < end; ++row) {
        const int turn = (row - begin) % 2;
        wait_groups<0>();
        __syncthreads();
        spread(spans, rows, row, FRESH(row));
        __syncthreads();
        if (row + 1 < end) read_row(rows, places + (turn ^ 1) * (PLACES * STRIDE), x, gradient, row + 1, FRESH(row + 1));
        end_group();
        const Eight *right[(NP + 1) / 2];
        REPEAT(u, (NP + 1) / 2) {
            const int wanted = column * NP + 2 * u + j8 / 2, span = row % OH * SH % KH * EIGHTS + (wanted < SPANS ? wanted : 0);
            right[u] = spans + (span < SPANS ? span : span - SPANS) * PLACES + j8 % 2 * 8 + i8;
        }
        const T *const left = places + turn * (PLACES * STRIDE) + (j8 / 2 * 8 + i8) * STRIDE + j8 % 2 * 8;
        for (int first = (group + row) % GROUPS * 16; first < PLACES; first += GROUPS * 16) {
            u32 b[(NP + 1) / 2 * 2][2];
            REPEAT(u, (NP + 1) / 2) {
                u32 four[4];
                matrices<true>(four, right[u] + first);
                REPEAT(i, 4) b[2 * u + i / 2][i % 2] = four[i];
            }
            REPEAT(m, MT) {
                u32 a[4];
                matrices<true>(a, left + first * STRIDE + m * 16);
                REPEAT(j, NP) warp_mma(sum[m][j], a, b[j], T());
            }
        }
    }
    // The groups' sums one after another, so that their order is always the same.
    f32 *const shared = reinterpret_cast<f32 *>(memory) + column * (MT * NP * 128) + lane;
    for (int other = 1; other < GROUPS; ++other) {
        __syncthreads();
        if (group == other) {
            REPEAT(m, MT) REPEAT(j, NP) REPEAT(i, 4) shared[((m * NP + j) * 4 + i) * 32] = sum[m][j][i];
        }
        __syncthreads();
        if (group == 0) {
            REPEAT(m, MT) REPEAT(j, NP) REPEAT(i, 4) sum[m][j][i] += shared[((m * NP + j) * 4 + i) * 32];
        }
    }
    if (group) return;
    f32 *const own = partial + blockIdx.x * (Index)FRAGMENTS + column * (MT * NP * 128) + lane;
    REPEAT(m, MT) REPEAT(j, NP) REPEAT(i, 4) own[((m * NP + j) * 4 + i) * 32] = sum[m][j][i];
}

// Blocks of 256 over 32 elements each.
extern "C" __global__ void __launch_bounds__(256) stem_filter_sum(const f32 *partial, T *dw, i32 slices)
{
    const int at = blockIdx.x * 32 + threadIdx.x % 32;
    const f32 sum = over_slices<Index>(partial, at, FRAGMENTS, slices);
    if (threadIdx.x >= 32) return;
    const int g = at % 32 / 4, t = at % 4, i = at / 32 % 4, j = at / 128 % NP, m = at / 128 / NP % MT;
    const int span = at / (128 * NP * MT) * NP + j, k = m * 16 + g + i / 2 * 8;
    const int kh = span / EIGHTS, place = span % EIGHTS * 8 + t * 2 + i % 2;
    if (k < FILTERS && IS_TAP(kh, place)) dw[W_AT(k, kh, place)] = narrow<T>(sum);
}
#endif
