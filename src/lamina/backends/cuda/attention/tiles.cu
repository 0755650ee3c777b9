// Attention over tiles of scores, in half types, as FlashAttention-2 takes them (Dao 2023): a block has LINES rows of a
// matrix of scores, a warp 16 of them, and goes through the columns 32 at a time, of which the next are fetched
// meanwhile. Scores touch no memory.
//
// attention_tiles         rows are queries: o and the statistics
// attention_tiles_queries rows are queries: dq, and of each row the sum over do o
// attention_tiles_keys    rows are keys: dk and dv; it reads these sums
// attention_tiles_bias    one tile of the bias' gradient, of all matrices that have this bias; it reads these sums
//
// Constants: PASS (0 to 3: which of them), LINES, T, HEADS, QUERIES, KEYS, D (features of q and k), E (of v), SCALE,
// CAUSAL, BIAS, STATS, DROPS with GROWTH, CROOKED (addresses may be any), and steps in elements along B, H and S, of the
// bias along T too: Q_, K_, V_, O_ (o and do), DQ_, DK_, DV_, BIAS_. Statistics, sums, the mask of dropout and the bias'
// gradient are row-major. OVER_B, OVER_H: batch entries and heads that have one bias; BIASES: how many there are; EACH: matrices of a
// part of its gradient, of which there are several [parts, BIASES, QUERIES, KEYS] where blocks would be few.
#define THREADS (LINES * 2)
#include "attention.cuh"

#define COLUMNS 32
#define TILES (COLUMNS / 8)
#define STEP_D STEP_OF(D)
#define STEP_E STEP_OF(E)
#define LOG2_E 1.44269504f
// What finite biases below it count as: times LOG2_E the lowest numbers of bfloat16 would be -inf.
#define LOWEST (-3e38f)
// Blocks that share the registers: two of eight warps, three of four warps, fewer where sums are wide.
#define BOUNDS __launch_bounds__(THREADS, LINES == 64 && D <= 64 && E <= 64 ? 3 : 2)

typedef f32 Scores[TILES][4];
typedef u32 Weights[TILES / 2][4];
typedef u32 Mask[TILES / 2][4];
typedef u32 Left[WHOLE(D) / 16][4];
typedef u32 LeftOfValues[WHOLE(E) / 16][4];

// The block's matrix and its first row.
struct Where {
    i64 b, h, matrix;
    int row;
    __device__ __forceinline__ Where(int rows)
    {
        const int blocks = (rows + LINES - 1) / LINES;
        matrix = blockIdx.x / blocks;
        row = blockIdx.x % blocks * LINES;
        b = matrix / HEADS;
        h = matrix % HEADS;
    }
};

// Room for two tiles of the mask of dropout.
#if DROPS
#define ROOM_FOR_MASK(name, lines, columns) __shared__ __align__(16) T name[2 * (lines) * STEP_OF(columns)]
#else
#define ROOM_FOR_MASK(name, lines, columns) T *const name = nullptr
#endif

// Two elements that lie side by side.
__device__ __forceinline__ u32 pair_of(const T *from)
{
#if CROOKED
    return from[0].bits | (u32)from[1].bits << 16;
#else
    return *(const u32 *)from;
#endif
}

// The warp's 16 lines, those from `row` on, of `rows` that are `step` apart, as left factors.
template <int FEATURES>
__device__ __forceinline__ void hold(u32 (&a)[WHOLE(FEATURES) / 16][4], const T *from, i64 step, int row, int rows)
{
    REPEAT(k, WHOLE(FEATURES) / 16) REPEAT(i, 4) {
        const int line = row + row_of(i % 2 * 2), d = k * 16 + i / 2 * 8 + threadIdx.x % 4 * 2;
        a[k][i] = line < rows && d < FEATURES ? pair_of(from + line * step + d) : 0;
    }
}

// Rows times columns: sums over features.
template <int FEATURES, int STEP>
__device__ __forceinline__ void scores_of(Scores &s, const u32 (&a)[WHOLE(FEATURES) / 16][4], const T *columns)
{
    REPEAT(n, TILES) REPEAT(i, 4) s[n][i] = 0;
    REPEAT(k, WHOLE(FEATURES) / 16) add_scores<STEP>(s, a[k], columns + k * 16);
}

// Whether it is one of `count` rows or columns: of whole blocks all are.
__device__ __forceinline__ bool within(int i, int count) { return count % LINES == 0 || i < count; }

// A product becomes a score in powers of two: times the scale, with the bias; -inf for what is not seen.
__device__ __forceinline__ f32 seen(f32 v, const T *bias, int query, int key)
{
    v *= SCALE * LOG2_E;
#if BIAS
    if (within(query, QUERIES) && within(key, KEYS)) {
        const f32 b = widen(bias[query * BIAS_S + key * BIAS_T]);
        v += b == -INFINITY_F ? b : larger(b * LOG2_E, LOWEST);
    }
#endif
    return !within(key, KEYS) || (CAUSAL && key > query) ? -INFINITY_F : v;
}

// The weight of a score, at most 1 however the logarithm was rounded; 0 for what is not seen, whatever a library says of
// a row that sees nothing.
__device__ __forceinline__ f32 weight_of(f32 v, f32 log_sum)
{
    return BIAS && v == -INFINITY_F ? 0.0f : power_of_two(v > log_sum ? 0.0f : v - log_sum);
}

// Tile n of two operands of `rows` lines, each to the half of its room that is free.
__device__ __forceinline__ void fetch_tile(int n, int rows, T *near, const T *x, i64 x_step, T *far, const T *y, i64 y_step)
{
    const int row = n * COLUMNS;
    stage<D, COLUMNS>(near + n % 2 * (COLUMNS * STEP_D), x + row * x_step, x_step, rows - row);
    stage<E, COLUMNS>(far + n % 2 * (COLUMNS * STEP_E), y + row * y_step, y_step, rows - row);
}

// The mask of dropout of `LINES_HERE` queries by `COUNT` keys from (query, key) on.
template <int LINES_HERE, int COUNT> __device__ __forceinline__ void fetch_mask(T *to, const T *mask, int query, int key)
{
#if DROPS
    const T *from = mask + query * (i64)KEYS + key;
    fetch<COUNT, LINES_HERE, CROOKED || KEYS % 8 != 0>(to, from, KEYS, QUERIES - query, KEYS - key);
#endif
}

// What a weight, or its gradient, is multiplied by.
__device__ __forceinline__ f32 kept(const Mask &m, int n, int i)
{
#if DROPS
    const u32 pair = m[n / 2][n % 2 * 2 + i / 2];
    return (i % 2 ? widen_second(pair, T()) : widen_first(pair, T())) * (f32)GROWTH;
#else
    return 1;
#endif
}

__device__ __forceinline__ void mask_of_queries(Mask &m, const T *drops)
{
#if DROPS
    REPEAT(n, TILES / 2) left_of<STEP_OF(COLUMNS)>(m[n], drops + threadIdx.x / 32 * 16 * STEP_OF(COLUMNS) + n * 16);
#endif
}

#if PASS < 2  // rows are queries

// Tile n of keys, their values, and their part of the mask of the block's queries.
__device__ __forceinline__ void fetch_keys(int n, T *near, T *far, T *drops, const T *k, const T *v, const T *mask, int row)
{
    fetch_tile(n, KEYS, near, k, K_S, far, v, V_S);
    fetch_mask<LINES, COLUMNS>(drops + n % 2 * (LINES * STEP_OF(COLUMNS)), mask, row, n * COLUMNS);
}

// Tiles of keys that the block's queries see.
__device__ __forceinline__ int tiles_of_keys(int row)
{
    const int keys = CAUSAL && row + LINES < KEYS ? row + LINES : KEYS;
    return (keys + COLUMNS - 1) / COLUMNS;
}

#if PASS == 0
extern "C" __global__ void BOUNDS
attention_tiles(const T *q, const T *k, const T *v, const T *bias, const T *mask, T *o, f32 *stats)
{
    __shared__ __align__(16) T near[2 * COLUMNS * STEP_D], far[2 * COLUMNS * STEP_E];
    ROOM_FOR_MASK(drops, LINES, COLUMNS);
    const Where at(QUERIES);
    const int first = at.row + threadIdx.x / 32 * 16, tiles = tiles_of_keys(at.row);
    q += at.b * Q_B + at.h * Q_H, k += at.b * K_B + at.h * K_H, v += at.b * V_B + at.h * V_H;
    bias += at.b * BIAS_B + at.h * BIAS_H, mask += at.matrix * QUERIES * KEYS;
    Left a;
    fetch_keys(0, near, far, drops, k, v, mask, at.row);
    hold<D>(a, q, Q_S, first, QUERIES);
    f32 sums[WHOLE(E) / 8][4] = {}, top[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {0, 0};
    for (int n = 0; n < tiles; ++n) {
        arrived();
        if (n + 1 < tiles) fetch_keys(n + 1, near, far, drops, k, v, mask, at.row);
        const T *const values = far + n % 2 * (COLUMNS * STEP_E);
        Scores s;
        Mask m;
        scores_of<D, STEP_D>(s, a, near + n % 2 * (COLUMNS * STEP_D));
        mask_of_queries(m, drops + n % 2 * (LINES * STEP_OF(COLUMNS)));
        REPEAT(half, 2) {
            f32 now = top[half], part = 0;
            REPEAT(c, TILES) REPEAT(j, 2) {
                const int i = half * 2 + j;
                s[c][i] = seen(s[c][i], bias, first + row_of(i), n * COLUMNS + column_of(c, i));
                now = larger(now, s[c][i]);
            }
            now = over_row(now, Larger());
            const f32 base = now == -INFINITY_F ? 0.0f : now, shrink = power_of_two(top[half] - base);
            REPEAT(c, TILES) REPEAT(j, 2) {
                const int i = half * 2 + j;
                s[c][i] = power_of_two(s[c][i] - base);
                part += s[c][i];
                s[c][i] *= kept(m, c, i);
            }
            REPEAT(c, WHOLE(E) / 8) REPEAT(j, 2) sums[c][half * 2 + j] *= shrink;
            sum[half] = sum[half] * shrink + part;
            top[half] = now;
        }
        Weights weights;
        narrowed(weights, s);
        add_product<E, STEP_E>(sums, weights, values);
    }
    REPEAT(half, 2) {
        const f32 all = over_row(sum[half], Sum()), scale = all == 0 ? 0.0f : 1.0f / all;
        REPEAT(c, WHOLE(E) / 8) REPEAT(j, 2) sums[c][half * 2 + j] *= scale;
#if STATS
        const int row = first + row_of(half * 2);
        if (threadIdx.x % 4 == 0 && row < QUERIES)
            stats[at.matrix * QUERIES + row] = all == 0 ? INFINITY_F : top[half] / LOG2_E + logf(all);
#endif
    }
    put<E>(o + at.b * O_B + at.h * O_H, O_S, first, QUERIES, sums);
}

#else
// The sum over do o of the warp's row of a lane; g: do as left factors.
__device__ __forceinline__ f32 sum_of_row(const LeftOfValues &g, const T *o, int row, int half)
{
    f32 sum = 0;
    if (row < QUERIES) {
        REPEAT(k, WHOLE(E) / 16) REPEAT(right, 2) {
            const int column = k * 16 + right * 8 + threadIdx.x % 4 * 2;
            const u32 pair = g[k][right * 2 + half];
            if (column >= E) continue;
            const T *at = o + row * (i64)O_S + column;
            sum += widen_first(pair, T()) * widen(at[0]) + widen_second(pair, T()) * widen(at[1]);
        }
    }
    return over_row(sum, Sum());
}

extern "C" __global__ void BOUNDS
attention_tiles_queries(const T *q, const T *k, const T *v, const T *o, const T *g, const T *bias, const T *mask,
                        const f32 *stats, f32 *means, T *dq)
{
    __shared__ __align__(16) T near[2 * COLUMNS * STEP_D], far[2 * COLUMNS * STEP_E];
    ROOM_FOR_MASK(drops, LINES, COLUMNS);
    const Where at(QUERIES);
    const int first = at.row + threadIdx.x / 32 * 16, tiles = tiles_of_keys(at.row);
    q += at.b * Q_B + at.h * Q_H, k += at.b * K_B + at.h * K_H, v += at.b * V_B + at.h * V_H;
    o += at.b * O_B + at.h * O_H, g += at.b * O_B + at.h * O_H;
    bias += at.b * BIAS_B + at.h * BIAS_H, mask += at.matrix * QUERIES * KEYS;
    Left a;
    LeftOfValues grads;
    fetch_keys(0, near, far, drops, k, v, mask, at.row);
    hold<D>(a, q, Q_S, first, QUERIES);
    hold<E>(grads, g, O_S, first, QUERIES);
    f32 mean[2], log_sum[2];
    REPEAT(half, 2) {
        const int row = first + row_of(half * 2);
        const i64 line = at.matrix * QUERIES + row;
        mean[half] = sum_of_row(grads, o, row, half);
        log_sum[half] = row < QUERIES ? stats[line] * LOG2_E : INFINITY_F;
        if (threadIdx.x % 4 == 0 && row < QUERIES) means[line] = mean[half];
    }
    f32 sums[WHOLE(D) / 8][4] = {};
    for (int n = 0; n < tiles; ++n) {
        arrived();
        if (n + 1 < tiles) fetch_keys(n + 1, near, far, drops, k, v, mask, at.row);
        const T *const keys = near + n % 2 * (COLUMNS * STEP_D);
        Scores w, slope;
        Mask m;
        scores_of<D, STEP_D>(w, a, keys);
        scores_of<E, STEP_E>(slope, grads, far + n % 2 * (COLUMNS * STEP_E));
        mask_of_queries(m, drops + n % 2 * (LINES * STEP_OF(COLUMNS)));
        REPEAT(c, TILES) REPEAT(i, 4) {
            const f32 v = seen(w[c][i], bias, first + row_of(i), n * COLUMNS + column_of(c, i));
            slope[c][i] = weight_of(v, log_sum[i / 2]) * (slope[c][i] * kept(m, c, i) - mean[i / 2]) * SCALE;
        }
        Weights scaled;
        narrowed(scaled, slope);
        add_product<D, STEP_D>(sums, scaled, keys);
    }
    put<D>(dq + at.b * DQ_B + at.h * DQ_H, DQ_S, first, QUERIES, sums);
}

#endif
#elif PASS == 2  // rows are keys

// A thread's one of what 32 queries from `query` on have: their statistics, then their sums.
__device__ __forceinline__ f32 number_of(const f32 *stats, const f32 *means, int query)
{
    const bool is_mean = threadIdx.x / COLUMNS % 2;
    query += threadIdx.x % COLUMNS;
    if (query >= QUERIES) return is_mean ? 0.0f : INFINITY_F;
    return is_mean ? means[query] : stats[query] * LOG2_E;
}

extern "C" __global__ void BOUNDS
attention_tiles_keys(const T *q, const T *k, const T *v, const T *g, const T *bias, const T *mask, const f32 *stats,
                     const f32 *means, T *dk, T *dv)
{
    __shared__ __align__(16) T near[2 * COLUMNS * STEP_D], far[2 * COLUMNS * STEP_E];
    __shared__ f32 numbers[2][2 * COLUMNS];
    ROOM_FOR_MASK(drops, COLUMNS, LINES);
    const Where at(KEYS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = at.row + warp * 16;
    const int begin = CAUSAL ? at.row / COLUMNS : 0, tiles = (QUERIES + COLUMNS - 1) / COLUMNS;
    q += at.b * Q_B + at.h * Q_H, k += at.b * K_B + at.h * K_H, v += at.b * V_B + at.h * V_H;
    g += at.b * O_B + at.h * O_H, stats += at.matrix * QUERIES, means += at.matrix * QUERIES;
    bias += at.b * BIAS_B + at.h * BIAS_H, mask += at.matrix * QUERIES * KEYS;
    Left a;
    LeftOfValues values;
    hold<D>(a, k, K_S, first, KEYS);
    hold<E>(values, v, V_S, first, KEYS);
    f32 of_keys[WHOLE(D) / 8][4] = {}, of_values[WHOLE(E) / 8][4] = {};
    for (int n = begin - 1; n < tiles; ++n) {
        const int next = n + 1;
        f32 number = 0;
        arrived();
        if (next < tiles) {
            fetch_tile(next, QUERIES, near, q, Q_S, far, g, O_S);
            fetch_mask<COLUMNS, LINES>(drops + next % 2 * (COLUMNS * STEP_OF(LINES)), mask, next * COLUMNS, at.row);
            number = number_of(stats, means, next * COLUMNS);
        }
        if (n < begin) {
            numbers[next % 2][threadIdx.x % (2 * COLUMNS)] = number;
            continue;
        }
        const T *const queries = near + n % 2 * (COLUMNS * STEP_D), *const grads = far + n % 2 * (COLUMNS * STEP_E);
        Scores w, slope;
        scores_of<D, STEP_D>(w, a, queries);
        scores_of<E, STEP_E>(slope, values, grads);
        Mask m;
#if DROPS
        const T *const here = drops + n % 2 * (COLUMNS * STEP_OF(LINES));
        REPEAT(c, TILES / 2)
            matrices<true>(m[c], here + (c * 16 + lane / 16 * 8 + lane % 8) * STEP_OF(LINES) + warp * 16 + lane / 8 % 2 * 8);
#endif
        REPEAT(c, TILES) REPEAT(i, 4) {
            const int column = column_of(c, i);
            const f32 v = seen(w[c][i], bias, n * COLUMNS + column, first + row_of(i));
            const f32 weight = weight_of(v, numbers[n % 2][column]), grow = kept(m, c, i);
            slope[c][i] = weight * (slope[c][i] * grow - numbers[n % 2][COLUMNS + column]) * SCALE;
            w[c][i] = weight * grow;
        }
        Weights weights, scaled;
        narrowed(weights, w);
        narrowed(scaled, slope);
        add_product<E, STEP_E>(of_values, weights, grads);
        add_product<D, STEP_D>(of_keys, scaled, queries);
        numbers[next % 2][threadIdx.x % (2 * COLUMNS)] = number;
    }
    put<D>(dk + at.b * DK_B + at.h * DK_H, DK_S, first, KEYS, of_keys);
    put<E>(dv + at.b * DV_B + at.h * DV_H, DV_S, first, KEYS, of_values);
}
#else  // rows are queries, and a block takes the same tile of one matrix after the other

// A warp's 16 rows of a matrix: q and do as left factors, and what is known of rows.
struct Rows {
    Left a;
    LeftOfValues grads;
    f32 mean[2], log_sum[2];
    __device__ __forceinline__ void read(const T *q, const T *g, const f32 *stats, const f32 *means, int first)
    {
        hold<D>(a, q, Q_S, first, QUERIES);
        hold<E>(grads, g, O_S, first, QUERIES);
        REPEAT(half, 2) {
            const int row = first + row_of(half * 2);
            mean[half] = row < QUERIES ? means[row] : 0.0f;
            log_sum[half] = row < QUERIES ? stats[row] * LOG2_E : INFINITY_F;
        }
    }
};

// A matrix that has the bias of number `own`.
struct Matrix {
    i64 b, h;
    __device__ __forceinline__ Matrix(i64 own, int turn)
    {
        const int heads = HEADS / OVER_H;
        b = own / heads * OVER_B + turn / OVER_H;
        h = own % heads * OVER_H + turn % OVER_H;
    }
    __device__ __forceinline__ i64 number() const { return b * HEADS + h; }
};

extern "C" __global__ void BOUNDS
attention_tiles_bias(const T *q, const T *k, const T *v, const T *g, const T *bias, const T *mask, const f32 *stats,
                     const f32 *means, T *dbias)
{
    __shared__ __align__(16) T near[2 * COLUMNS * STEP_D], far[2 * COLUMNS * STEP_E];
    ROOM_FOR_MASK(drops, LINES, COLUMNS);
    const int across = (KEYS + COLUMNS - 1) / COLUMNS, down = (QUERIES + LINES - 1) / LINES;
    const int column = blockIdx.x % across * COLUMNS, row = blockIdx.x / across % down * LINES;
    const int first = row + threadIdx.x / 32 * 16;
    const i64 rest = blockIdx.x / across / down, own = rest % BIASES;
    const auto fetch_turn = [&](int turn) {
        const Matrix at(own, turn);
        const T *const keys = k + at.b * K_B + at.h * K_H, *const values = v + at.b * V_B + at.h * V_H;
        stage<D, COLUMNS>(near + turn % 2 * (COLUMNS * STEP_D), keys + column * (i64)K_S, K_S, KEYS - column);
        stage<E, COLUMNS>(far + turn % 2 * (COLUMNS * STEP_E), values + column * (i64)V_S, V_S, KEYS - column);
        const T *const kept_here = mask + at.number() * QUERIES * KEYS;
        fetch_mask<LINES, COLUMNS>(drops + turn % 2 * (LINES * STEP_OF(COLUMNS)), kept_here, row, column);
    };
    const auto read_turn = [&](Rows &rows, int turn) {
        const Matrix at(own, turn);
        const i64 lines = at.number() * QUERIES;
        rows.read(q + at.b * Q_B + at.h * Q_H, g + at.b * O_B + at.h * O_H, stats + lines, means + lines, first);
    };
    Scores total = {}, added;  // the bias is the same for all of them
    const Matrix start(own, 0);
    REPEAT(c, TILES) REPEAT(i, 4)
        added[c][i] = seen(0, bias + start.b * BIAS_B + start.h * BIAS_H, first + row_of(i), column + column_of(c, i));
    Rows rows, next;
    const bool unseen = CAUSAL && column >= row + LINES;
    const int begin = (int)(rest / BIASES) * EACH, all = OVER_B * OVER_H;
    const int end = unseen ? begin : begin + EACH < all ? begin + EACH : all;
    if (begin < end) {
        fetch_turn(begin);
        read_turn(rows, begin);
    }
    for (int turn = begin; turn < end; ++turn) {
        arrived();
        if (turn + 1 < end) {
            fetch_turn(turn + 1);
            read_turn(next, turn + 1);
        }
        Scores w, slope;
        Mask m;
        scores_of<D, STEP_D>(w, rows.a, near + turn % 2 * (COLUMNS * STEP_D));
        scores_of<E, STEP_E>(slope, rows.grads, far + turn % 2 * (COLUMNS * STEP_E));
        mask_of_queries(m, drops + turn % 2 * (LINES * STEP_OF(COLUMNS)));
        REPEAT(c, TILES) REPEAT(i, 4) {
            const f32 score = w[c][i] * (f32)(SCALE * LOG2_E) + added[c][i];
            const f32 weight = added[c][i] == -INFINITY_F ? 0.0f : weight_of(score, rows.log_sum[i / 2]);
            total[c][i] += weight * (slope[c][i] * kept(m, c, i) - rows.mean[i / 2]);
        }
        rows = next;
    }
    T *const to = dbias + rest * QUERIES * KEYS;
    REPEAT(c, TILES) REPEAT(i, 4) {
        const int query = first + row_of(i), key = column + column_of(c, i);
        if (query < QUERIES && key < KEYS) to[query * (i64)KEYS + key] = narrow<T>(total[c][i]);
    }
}
#endif
