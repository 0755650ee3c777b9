// 1x1 convolutions, channels last, with the sums that a batch norm needs of their result: a product C [ROWS, OUT] =
// A [ROWS, DEPTH] B on tensor cores whose blocks sum the columns of what they write.
//
// FORWARD: B is the filter [OUT, DEPTH]; the sums are of C and of its square. Else, the data gradient: B is the filter
// [DEPTH, OUT]; C may be added to (ADDED) and masked by relu's output y (MASKED; 2: by bits that say where y is
// positive), and the sums are of C (masked by the norm's own relu, NORM_RELU, whose sign comes from x; clipped at HI)
// and of C (x - mean).
//
// Blocks (columns / WIDE, PARTS / TEAMS) of 512 threads in teams that go their own ways, so that some multiply while others
// write: each takes every PARTS-th tile of TALL rows of the block's WIDE columns, 64 of DEPTH at a time, and reads ahead
// into the next one while it finishes the last. A warp has 16 rows of a tile. The block's part of the filter stays in
// shared memory, for all.
// Constants: T (f16, bf16), ROWS, OUT, DEPTH, ACROSS (64 columns each, per block: 1, 2), TEAMS (2, 4), PARTS, STAGES (parts
// of A in shared memory at once), and those above.
#include "group_mma.cuh"
typedef f32 A;
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)
#define THREADS 512
#define TEAM (THREADS / TEAMS)
#define WIDE (64 * ACROSS)
#define TALL (TEAM / 2)
#define TILES ((ROWS + TALL - 1) / TALL)
#define DEEP 64
#define TURNS (DEPTH / DEEP)
#define STAGE (TALL * DEEP)
#define SLAB (WIDE * 32)
#define AHEAD (FORWARD && ACROSS == 2 ? 4 : 2)
#define LANES (WIDE / 8)

#define PLAIN (!ADDED && !MASKED)  // nothing follows the product: a warp's results are rounded before it exchanges them

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(1024) type name[]
#endif

#ifdef HI
#define UPPER ((A)HI)
#else
#define UPPER ((A)INFINITY_F)
#endif

typedef Pack<u32, 4> Eight;  // elements, in pairs
__device__ __forceinline__ Eight eight(const T *p) { return load<4>(reinterpret_cast<const u32 *>(p)); }

struct Operands { const T *a, *b, *added, *y, *x; const A *scale, *mean, *spread, *bias; };

// 64 of DEPTH, from k on, of a tile's rows.
__device__ __forceinline__ void fetch_a(T *to, const T *a, int tile, int k)
{
    const int r = threadIdx.x % TEAM / 8, eighth = threadIdx.x % 8, row = tile * TALL + r;
    const T *from = a + (i64)row * DEPTH + k + eighth * 8;
    to += wide_at(r, eighth);
    REPEAT(i, TALL * 8 / TEAM) {
        const bool inside = ROWS % TALL == 0 || row + i * (TEAM / 8) < ROWS;
        copy_later(to + i * (TEAM / 8) * DEEP, inside ? from + (i64)i * (TEAM / 8) * DEPTH : a, inside);
    }
}

// 32 of DEPTH of the block's part of the filter.
__device__ __forceinline__ void fetch_b(T *to, const T *b, int column, int k)
{
    for (int v = threadIdx.x; v < WIDE * 4; v += THREADS) {
#if FORWARD
        copy_later(to + narrow_at(v / 4, v % 4), b + (i64)(column + v / 4) * DEPTH + k + v % 4 * 8, true);
#else
        const int r = v / (WIDE / 8), eighth = v % (WIDE / 8);
        T *const at = to + eighth / 8 * 32 * 64 + wide_at(r, eighth % 8);
        copy_later(at, b + (i64)(k + r) * OUT + column + eighth * 8, true);
#endif
    }
}

// The numbers of the block's columns that the gradient's sums need: mean, and for a norm's relu slope and bias.
struct Columns { A mean[WIDE], slope[WIDE], bias[WIDE]; };

// Where a column's number lies among a warp's lines of 8 rows (PLAIN: its pair, in words). Eights are swapped by the row, so
// that rows that are written at once are in different banks, and fours of numbers in every other 32 columns, so that the
// lanes of a row read from all banks.
__device__ __forceinline__ int line_at(int row, int column)
{
    if (PLAIN) return row * (WIDE / 2) + (column ^ row * 8) / 2;
    return row * WIDE + (column ^ row * 8 ^ (column >> 3 & 4));
}

// Lets the operands that a tile's results meet come nearer while they are computed.
__device__ __forceinline__ void bring_operands(const Operands &o, int tile, int column)
{
    const int parts = TEAM / TALL, line = WIDE / parts, row = tile * TALL + threadIdx.x % TEAM / parts;
    if (row >= ROWS) return;
    const i64 at = (i64)row * OUT + column + threadIdx.x % parts * line;
    if (ADDED) bring_near(o.added + at);
    if (MASKED == 1) bring_near(o.y + at);
    if (MASKED == 2) bring_near(reinterpret_cast<const u8 *>(o.y) + at / 8);
    if (!FORWARD) bring_near(o.x + at);
}

// Finishes and writes 8 rows of a warp's part (of its 16 the first or the second `half`), eight columns per lane, and
// takes them into the sums s and q. AHEAD rows of the other operands are under way at once.
__device__ __forceinline__ void finish(const f32 (&sum)[WIDE / 8][4], int half, A *lines, const Operands &o, T *out,
                                       int first, int column, const Columns &columns, A (&s)[8], A (&q)[8])
{
    const int lane = threadIdx.x % 32, part = lane % LANES * 8;
    __syncwarp();
    u32 *const pairs = reinterpret_cast<u32 *>(lines);
    REPEAT(j, WIDE / 8) {
        const Pack<A, 2> two = {{sum[j][half * 2], sum[j][half * 2 + 1]}};
        const int to = line_at(lane / 4, j * 8 + lane % 4 * 2);
        if (PLAIN) pairs[to] = narrow_two(two.v[0], two.v[1], T());
        else store<2>(lines + to, two);
    }
    __syncwarp();
    _Pragma("unroll 1") for (int row = lane / LANES; row < 8; row += 32 / LANES * AHEAD) {
        Eight more[AHEAD], outputs[AHEAD], elements[AHEAD];
        u32 signs[AHEAD];
        REPEAT(p, AHEAD) {
            const int real = first + row + p * (32 / LANES);
            const i64 at = (i64)(real < ROWS ? real : ROWS - 1) * OUT + column + part;
            if (ADDED) more[p] = eight(o.added + at);
            if (MASKED == 1) outputs[p] = eight(o.y + at);
            if (MASKED == 2) signs[p] = reinterpret_cast<const u8 *>(o.y)[at / 8];
            if (!FORWARD) elements[p] = eight(o.x + at);
        }
        REPEAT(p, AHEAD) if (first + row + p * (32 / LANES) < ROWS) {
            const int own = row + p * (32 / LANES);
            Eight result;
#if PLAIN
            result = load<4>(pairs + line_at(own, part));
#else
            const Pack<A, 4> some[2] = {load<4>(lines + line_at(own, part)), load<4>(lines + line_at(own, part + 4))};
#endif
            REPEAT(k, 4) {
                A v[2];
#if !PLAIN
                v[0] = some[k / 2].v[k % 2 * 2];
                v[1] = some[k / 2].v[k % 2 * 2 + 1];
                if (ADDED) { v[0] += widen_first(more[p].v[k], T()); v[1] += widen_second(more[p].v[k], T()); }
                if (MASKED) {
                    const bool bits = MASKED == 2;
                    if (!(bits ? signs[p] >> k * 2 & 1 : widen_first(outputs[p].v[k], T()) > 0)) v[0] = 0;
                    if (!(bits ? signs[p] >> (k * 2 + 1) & 1 : widen_second(outputs[p].v[k], T()) > 0)) v[1] = 0;
                }
                result.v[k] = narrow_two(v[0], v[1], T());
#endif
                v[0] = widen_first(result.v[k], T());
                v[1] = widen_second(result.v[k], T());
                const A x[2] = {widen_first(elements[p].v[k], T()), widen_second(elements[p].v[k], T())};
                REPEAT(e, 2) {
                    const int c = k * 2 + e;
                    const A far = FORWARD ? v[e] : x[e] - columns.mean[part + c];
#if NORM_RELU
                    const A level = far * columns.slope[part + c] + columns.bias[part + c];
                    if (!(level > 0 && level < UPPER)) v[e] = 0;
#endif
                    s[c] += v[e];
                    q[c] += v[e] * far;
                }
            }
            store<4>(reinterpret_cast<u32 *>(out + (i64)(first + row + p * (32 / LANES)) * OUT + column + part), result);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
point_conv(const T *a, const T *b, const T *added, const T *y, const T *x, const A *scale, const A *mean, const A *spread,
           const A *bias, T *out, A *partial)
{
    DYNAMIC_SHARED(T, memory);
    __shared__ Columns columns;
    const int team = threadIdx.x / TEAM, lane = threadIdx.x % 32, warp = threadIdx.x % TEAM / 32;
    const int column = (int)blockIdx.x * WIDE, part = (int)blockIdx.y * TEAMS + team;
    T *const ring = memory + DEPTH * WIDE + team * STAGES * STAGE;
    A *const all = reinterpret_cast<A *>(memory + DEPTH * WIDE + TEAMS * STAGES * STAGE);
    A *const lines = all + threadIdx.x / 32 * 8 * WIDE;
    const Operands o = {a, b, added, y, x, scale, mean, spread, bias};
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
    // Part `turn` of a tile, or of one of those behind it.
    const auto fetch = [&](int slot, int tile, int turn) {
        tile += turn / TURNS * PARTS;
        if (tile < TILES) fetch_a(ring + slot * STAGE, a, tile, turn % TURNS * DEEP);
        end_group();
    };
    REPEAT(k, DEPTH / 32) fetch_b(memory + k * SLAB, b, column, k * 32);
    end_group();
    REPEAT(k, STAGES - 1) fetch(k, part, k);
    wait_groups<STAGES - 1>();
    show_to_products();
    __syncthreads();
    A s[8], q[8];
    REPEAT(k, 8) s[k] = q[k] = 0;
    int slot = 0;
    _Pragma("unroll 1") for (int tile = part; tile < TILES; tile += PARTS) {
        f32 sum[WIDE / 8][4];
        bring_operands(o, tile, column);
        REPEAT(turn, TURNS) {
            wait_groups<STAGES - 2>();
            meet(team * TEAM, TEAM);  // all have read what lay in the slot before this one
            fetch(slot == 0 ? STAGES - 1 : slot - 1, tile, turn + STAGES - 1);
            const T *from = ring + slot * STAGE;
            const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
            u32 left[DEEP / 16][4];
            REPEAT(k, DEEP / 16) matrices<false>(left[k], from + wide_at(row, k * 2 + lane / 16));
            products_begin();
            REPEAT(k, DEEP / 16)
                group_mma<!FORWARD>(sum, left[k], memory + (turn * 2 + k / 2) * SLAB, k % 2, turn + k);
            products_end();
            products_done(sum);
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
        const int row = tile * TALL + warp * 16;
        REPEAT(half, 2) finish(sum, half, lines, o, out, row + half * 8, column, columns, s, q);
    }
    // The team's sums of each column, to partial[which][column][part].
    __syncthreads();
    REPEAT(k, 8) {
        _Pragma("unroll") for (int lanes = LANES; lanes < 32; lanes *= 2) {
            s[k] += shuffle_xor(s[k], lanes);
            q[k] += shuffle_xor(q[k], lanes);
        }
        A *const to = lines + lane % LANES * 8 + k;
        if (lane < LANES) {
            to[0] = s[k];
            to[WIDE] = q[k];
        }
    }
    __syncthreads();
    for (int c = threadIdx.x % TEAM; c < 2 * WIDE; c += TEAM) {
        const A *from = all + team * (TEAM / 32) * 8 * WIDE + c;
        A total = 0;
        for (int k = 0; k < TEAM / 32; ++k) total += from[k * 8 * WIDE];
        partial[((i64)(c / WIDE) * OUT + column + c % WIDE) * PARTS + part] = total;
    }
}
