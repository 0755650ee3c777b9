// The gradient of depthwise_rows.cu's filters: what its blocks found, partial [slices, KH * KW, C].
//
// A thread has V channels and a strip of TW columns of g, and goes down the rows of x, each read once, one row ahead of
// its turn: it meets the DEPTH latest rows of g, which stay in registers, as do the sums of all taps.
//
// Constants: Index, T, V, TW, CT (chunks of channels in a block), LANES (strips in a block), BANDS (blocks that cover
// all channels), RESIDENT, DEPTH, N, C, H, W, X_IMAGE, X_ROW, X_COLUMN (from one to the next of x), OH, OW, KH, KW, SH, SW (stride), PH, PW (padding before), STRIPS, SPAN
// (rows of g in one walk), WALKS (down an image), WORK (walks of one channel in all), LEAVES (the first step below x).
#include "depthwise.cuh"
#define THREADS (CT * LANES)
#define COLUMNS ((TW - 1) * SW + KW)
// Whether a column of x is inside of the image for some strip.
#define COUNTS(column) (STRIPS > 1 || ((column) >= PW && (column) < PW + W))

typedef f32 Sums[KH][KW][V];
typedef f32 Latest[DEPTH][TW][V];

// Adds the products of row `read` of a step, of `x`, with the rows of g: those that are there, of rows and of columns by
// the bits of `rows` and `own`, as nothing times NaN were NaN.
__device__ __forceinline__ void add_products(Sums &sum, const f32 (&x)[COLUMNS][V], const Latest &g, int read, u64 rows, u32 own)
{
#pragma unroll
    for (int group = 0; group < DEPTH; ++group) {
        const int kh = read + group * SH;
        if (kh >= KH || !(rows >> group & 1)) continue;
#pragma unroll
        for (int j = 0; j < TW; ++j) {
            if (OW % TW && !(own >> j & 1)) continue;
#pragma unroll
            for (int kw = 0; kw < KW; ++kw)
#pragma unroll
                for (int v = 0; v < V; ++v)
                    if (COUNTS(j * SW + kw)) sum[kh][kw][v] += x[j * SW + kw][v] * g[group][j][v];
        }
    }
}

// The rows of g move on: the oldest goes.
__device__ __forceinline__ void move_on(Latest &g, const u32 (&newest)[TW])
{
#pragma unroll
    for (int group = DEPTH - 1; group >= 0; --group)
#pragma unroll
        for (int j = 0; j < TW; ++j)
#pragma unroll
            for (int v = 0; v < V; ++v) g[group][j][v] = group ? g[group - 1][j][v] : channel_of(newest[j], v);
}

// One walk down the rows of x that meet rows from .. until - 1 of g.
__device__ __forceinline__ void walk(const T *x, const T *g, Index n, int first, int from, int until, int channel, Sums &sum)
{
    const int column = first * SW - PW, last = until + DEPTH - 1 < LEAVES ? until + DEPTH - 1 : LEAVES;
    const u32 columns = inside_of<COLUMNS>(column, W), own = inside_of<TW>(first, OW);
    int h = from * SH - PH;
    const T *place = x + n * X_IMAGE + h * (Index)X_ROW + column * (Index)X_COLUMN + channel;
    const T *gradient = g + ((n * OH + from) * OW + first) * C + channel;
    Latest latest;
    u32 ahead[COLUMNS], newest[TW];
    u64 rows = 0;
    clear(ahead);
    clear(newest);
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) move_on(latest, newest);
    read_columns<X_COLUMN>(place, h >= 0 && h < H, columns, ahead);
    read_columns<C>(gradient, true, own, newest);
#pragma unroll 1
    for (int step = from; step < last; ++step) {
        move_on(latest, newest);
        rows = rows << 1 | (step < until);
        gradient += (Index)OW * C;
        read_columns<C>(gradient, step + 1 < until, own, newest);
#pragma unroll
        for (int read = 0; read < SH; ++read) {
            f32 row[COLUMNS][V];
#pragma unroll
            for (int e = 0; e < COLUMNS; ++e)
#pragma unroll
                for (int v = 0; v < V; ++v) row[e][v] = channel_of(ahead[e], v);
            const bool inside = h >= 0 && h < H;
            ++h;
            place += (Index)X_ROW;
            read_columns<X_COLUMN>(place, h >= 0 && h < H, columns, ahead);
            if (inside) add_products(sum, row, latest, read, rows, own);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    depthwise_rows_filter(const T *__restrict__ x, const T *__restrict__ g, f32 *__restrict__ partial)
{
    __shared__ f32 part[KW * V * THREADS];
    const int base = (int)(blockIdx.x % BANDS * CT) * V, channel = base + (int)(threadIdx.x % CT) * V;
    Sums sum;
#pragma unroll
    for (int i = 0; i < KH * KW * V; ++i) sum[i / (KW * V)][i / V % KW][i % V] = 0.0f;
    if (channel < C)
        for (Index work = (Index)(blockIdx.x / BANDS) * LANES + threadIdx.x / CT; work < WORK;
             work += (Index)(gridDim.x / BANDS) * LANES) {
            const int first = (int)(work % STRIPS) * TW, from = (int)(work / STRIPS % WALKS) * SPAN;
            walk(x, g, work / STRIPS / WALKS, first, from, from + SPAN < OH ? from + SPAN : OH, channel, sum);
        }
    f32 *own = partial + (Index)(blockIdx.x / BANDS) * KH * KW * C + base;
#pragma unroll
    for (int kh = 0; kh < KH; ++kh) {
        __syncthreads();
#pragma unroll
        for (int kw = 0; kw < KW; ++kw)
#pragma unroll
            for (int v = 0; v < V; ++v) part[(kw * THREADS + threadIdx.x) * V + v] = sum[kh][kw][v];
        __syncthreads();
        for (int i = threadIdx.x; i < KW * CT * V; i += THREADS) {
            const int kw = i / (CT * V), at = i % (CT * V);
            f32 total = 0;
            for (int lane = 0; lane < LANES; ++lane) total += part[kw * THREADS * V + lane * CT * V + at];
            if (base + at < C) own[(kh * KW + kw) * C + at] = total;
        }
    }
}
