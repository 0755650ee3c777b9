// 1x1 convolutions, channels last, with the sums that a batch norm needs of their result: a product C [ROWS, OUT] =
// A [ROWS, DEPTH] B on tensor cores whose blocks sum the columns of what they write.
//
// FORWARD: B is the filter [OUT, DEPTH]; the sums are of C and of its square. Else, the data gradient: B is the filter
// [DEPTH, OUT]; C may be added to (ADDED) and masked by relu's output y (MASKED), and the sums are of C (masked by the
// norm's own relu, NORM_RELU, whose sign comes from x; clipped at HI) and of C (x - mean).
//
// Blocks (columns / WIDE, PARTS) of 8 warps: each takes every PARTS-th tile of TALL rows of its WIDE columns, and reads
// ahead into the next one while it finishes the last. A warp has 32 x 64 of a tile. HELD: the block's part of the
// filter stays in shared memory; else it is read again for every tile (from the cache).
// Constants: T (f16, bf16), ROWS, OUT, DEPTH, ACROSS (64 columns each, per block: 1, 2), PARTS, HELD, and those above.
#include "mma.cuh"
typedef f32 A;
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)
#define THREADS 256
#define WIDE (64 * ACROSS)
#define DOWN (8 / ACROSS)
#define TALL (32 * DOWN)
#define TILES ((ROWS + TALL - 1) / TALL)
#define DEEP 32
#define TURNS (DEPTH / DEEP)
#define STAGES (ACROSS == 1 ? 3 : 4)
#define SLAB_A (TALL * DEEP)
#define SLAB_B (WIDE * DEEP)
#define STAGE (SLAB_A + (HELD ? 0 : SLAB_B))
#define AHEAD 2
#define LINE 72  // numbers from one row of a warp's results to the next; such that lanes write to different banks

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(128) type name[]
#endif

#ifdef HI
#define UPPER ((A)HI)
#else
#define UPPER ((A)INFINITY_F)
#endif

typedef Pack<T, 8> Eight;
struct Operands { const T *a, *b, *added, *y, *x; const A *scale, *mean, *spread, *bias; };

// Where 16 bytes lie in a slab [., 32] of 64-byte rows and one [32, WIDE]: so that eight rows are in different banks.
__device__ __forceinline__ int narrow_at(int row, int eighth) { return row * DEEP + (eighth ^ (row >> 1 & 3)) * 8; }
__device__ __forceinline__ int wide_at(int row, int eighth) { return row * WIDE + (eighth ^ (row & 7)) * 8; }

__device__ __forceinline__ void fetch_a(T *to, const T *a, int row, int k)
{
    REPEAT(i, TALL * 4 / THREADS) {
        const int v = threadIdx.x + i * THREADS, r = v / 4, at = row + r;
        const bool inside = at < ROWS;
        copy_later(to + narrow_at(r, v % 4), a + (i64)(inside ? at : 0) * DEPTH + k + v % 4 * 8, inside);
    }
}

__device__ __forceinline__ void fetch_b(T *to, const T *b, int column, int k)
{
    REPEAT(i, WIDE * 4 / THREADS) {
        const int v = threadIdx.x + i * THREADS;
#if FORWARD
        copy_later(to + narrow_at(v / 4, v % 4), b + (i64)(column + v / 4) * DEPTH + k + v % 4 * 8, true);
#else
        const int r = v / (WIDE / 8), eighth = v % (WIDE / 8);
        copy_later(to + wide_at(r, eighth), b + (i64)(k + r) * OUT + column + eighth * 8, true);
#endif
    }
}

// sum += A B of one slab; `m` and `n` are the warp's first row and column.
__device__ __forceinline__ void multiply(f32 (&sum)[2][8][4], const T *a, const T *b, int m, int n)
{
    const int i = threadIdx.x % 8, j = threadIdx.x % 32 / 8;
    REPEAT(k, DEEP / 16) {
        u32 left[2][4], right[4][4];
        REPEAT(x, 2) matrices<false>(left[x], a + narrow_at(m + x * 16 + j % 2 * 8 + i, k * 2 + j / 2));
        REPEAT(y, 4) {
            const int column = n + y * 16 + j / 2 * 8;
            if (FORWARD) matrices<false>(right[y], b + narrow_at(column + i, k * 2 + j % 2));
            else matrices<true>(right[y], b + wide_at(k * 16 + j % 2 * 8 + i, column / 8));
        }
        REPEAT(x, 2) REPEAT(y, 8) {
            const u32 pair[2] = {right[y / 2][y % 2 * 2], right[y / 2][y % 2 * 2 + 1]};
            warp_mma(sum[x][y], left[x], pair, T());
        }
    }
}

// The numbers of the block's columns that the gradient's sums need: mean, and for a norm's relu slope and bias.
struct Columns { A mean[WIDE], slope[WIDE], bias[WIDE]; };

// Finishes and writes 16 rows of a warp's part, eight columns per lane, and takes them into the sums s and q. AHEAD rows
// of the other operands are under way at once.
__device__ __forceinline__ void finish(const f32 (&some)[8][4], A *lines, const Operands &o, T *out, int first, int column,
                                       const Columns &columns, int n, A (&s)[8], A (&q)[8])
{
    const int lane = threadIdx.x % 32, part = lane % 8 * 8;
    __syncwarp();
    REPEAT(y, 8) REPEAT(half, 2) {
        const Pack<A, 2> two = {{some[y][half * 2], some[y][half * 2 + 1]}};
        store<2>(lines + (lane / 4 + half * 8) * LINE + y * 8 + lane % 4 * 2, two);
    }
    __syncwarp();
    _Pragma("unroll 1") for (int row = lane / 8; row < 16; row += 4 * AHEAD) {
        Eight more[AHEAD], outputs[AHEAD], elements[AHEAD];
        REPEAT(p, AHEAD) {
            const int real = first + row + p * 4 < ROWS ? first + row + p * 4 : ROWS - 1;
            const i64 at = (i64)real * OUT + column + part;
            if (ADDED) more[p] = load<8>(o.added + at);
            if (MASKED) outputs[p] = load<8>(o.y + at);
            if (!FORWARD) elements[p] = load<8>(o.x + at);
        }
        REPEAT(p, AHEAD) if (first + row + p * 4 < ROWS) {
            const A *line = lines + (row + p * 4) * LINE + part;
            const auto low = load<4>(line), high = load<4>(line + 4);
            Eight result;
            REPEAT(k, 8) {
                A v = k < 4 ? low.v[k % 4] : high.v[k % 4];
                if (ADDED) v += widen(more[p].v[k]);
                if (MASKED && !(widen(outputs[p].v[k]) > 0)) v = 0;
                result.v[k] = narrow<T>(v);
                v = widen(result.v[k]);
                const A far = FORWARD ? v : widen(elements[p].v[k]) - columns.mean[n + part + k];
#if NORM_RELU
                const A level = far * columns.slope[n + part + k] + columns.bias[n + part + k];
                if (!(level > 0 && level < UPPER)) v = 0;
#endif
                s[k] += v;
                q[k] += v * far;
            }
            store<8>(out + (i64)(first + row + p * 4) * OUT + column + part, result);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
point_conv(const T *a, const T *b, const T *added, const T *y, const T *x, const A *scale, const A *mean, const A *spread,
           const A *bias, T *out, A *partial)
{
    DYNAMIC_SHARED(T, memory);
    __shared__ Columns columns;
    T *const ring = memory + (HELD ? TURNS * SLAB_B : 0);
    A *const lines = reinterpret_cast<A *>(ring + STAGES * STAGE);
    const Operands o = {a, b, added, y, x, scale, mean, spread, bias};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = (int)blockIdx.x * WIDE;
    const int m = warp / ACROSS * 32, n = warp % ACROSS * 64;
    const int steps = ((TILES - 1 - (int)blockIdx.y) / PARTS + 1) * TURNS;
#if !FORWARD
    if (threadIdx.x < WIDE) {
        const int c = column + threadIdx.x;
        columns.mean[threadIdx.x] = mean[c];
#if NORM_RELU
        columns.slope[threadIdx.x] = spread[c] * scale[c];
        columns.bias[threadIdx.x] = bias[c];
#endif
    }
#endif
    const auto fetch = [&](int step) {
        if (step < steps) {
            T *to = ring + step % STAGES * STAGE;
            const int k = step % TURNS * DEEP;
            fetch_a(to, a, ((int)blockIdx.y + step / TURNS * PARTS) * TALL, k);
            if (!HELD) fetch_b(to + SLAB_A, b, column, k);
        }
        end_group();
    };
    if (HELD) REPEAT(k, TURNS) fetch_b(memory + k * SLAB_B, b, column, k * DEEP);
    REPEAT(k, STAGES - 1) fetch(k);
    f32 sum[2][8][4];
    A s[8], q[8];
    REPEAT(k, 8) s[k] = q[k] = 0;
    for (int step = 0; step < steps; ++step) {
        const int turn = step % TURNS;
        if (turn == 0) REPEAT(i, 2) REPEAT(j, 8) REPEAT(k, 4) sum[i][j][k] = 0;
        wait_groups<STAGES - 2>();
        __syncthreads();
        fetch(step + STAGES - 1);
        const T *from = ring + step % STAGES * STAGE;
        multiply(sum, from, HELD ? memory + turn * SLAB_B : from + SLAB_A, m, n);
        if (turn == TURNS - 1) {
            const int row = ((int)blockIdx.y + step / TURNS * PARTS) * TALL + m;
            REPEAT(i, 2)
                finish(sum[i], lines + warp * 16 * LINE, o, out, row + i * 16, column + n, columns, n, s, q);
        }
    }
    // The block's sums of each column, to partial[which][column][part].
    REPEAT(k, 8) {
        s[k] += shuffle_xor(s[k], 8);
        s[k] += shuffle_xor(s[k], 16);
        q[k] += shuffle_xor(q[k], 8);
        q[k] += shuffle_xor(q[k], 16);
    }
    __syncthreads();
    if (lane < 8) REPEAT(k, 8) {
        A *const to = lines + (warp / ACROSS) * 2 * WIDE + n + lane * 8 + k;
        to[0] = s[k];
        to[WIDE] = q[k];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * WIDE; c += THREADS) {
        A total = lines[c];
        for (int k = 1; k < DOWN; ++k) total += lines[k * 2 * WIDE + c];
        partial[((i64)(c / WIDE) * OUT + column + c % WIDE) * PARTS + blockIdx.y] = total;
    }
}
