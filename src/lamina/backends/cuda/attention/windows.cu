// Attention of few queries and keys, in half types: a block for one matrix of scores after the other, a warp for 16 of
// its rows. Nothing but operands and results touches memory.
//
// Constants: T, HEADS, BATCH, QUERIES, KEYS, D (features of q and k), E (of v), SCALE, CAUSAL, BIAS, STATS, DROPS with
// GROWTH, GRADIENT, SLOPES (that of the bias is asked for), TURNS (batch entries that a block takes one after the
// other), CROOKED (addresses may be any), and steps in elements along B, H and S, of the bias along T too: Q_, K_, V_,
// O_ (o and do), DQ_, DK_, DV_, BIAS_. Statistics, the mask of dropout and the gradient of the bias are row-major.
#define THREADS ((QUERIES + 15) / 16 * 32)
#include "attention.cuh"

#define ROWS WHOLE(QUERIES)
#define COLUMNS WHOLE(KEYS)
#define TILES (COLUMNS / 8)
#define STEP_D STEP_OF(D)
#define STEP_E STEP_OF(E)
#define STEP_N STEP_OF(KEYS)

typedef f32 Scores[TILES][4];
typedef u32 Weights[TILES / 2][4];

// 16 rows times columns: sums over features, which lie side by side in both.
template <int FEATURES, int STEP> __device__ __forceinline__ void scores_of(Scores &s, const T *rows, const T *columns)
{
    REPEAT(n, TILES) REPEAT(i, 4) s[n][i] = 0;
    REPEAT(k, WHOLE(FEATURES) / 16) {
        u32 a[4];
        left_of<STEP>(a, rows + k * 16);
        add_scores<STEP>(s, a, columns + k * 16);
    }
}

// Products become scores: times the scale, with the bias; -inf for what is not seen.
__device__ __forceinline__ void see(Scores &s, int first, const T *bias)
{
    REPEAT(n, TILES) REPEAT(i, 4) {
        const int row = first + row_of(i), column = column_of(n, i);
        f32 v = SCALE * s[n][i];
#if BIAS
        if (row < QUERIES && column < KEYS) v += widen(bias[row * BIAS_S + column * BIAS_T]);
#endif
        s[n][i] = column >= KEYS || (CAUSAL && column > row) ? -INFINITY_F : v;
    }
}

// A weight, or its gradient, after dropout; mask: of this matrix.
__device__ __forceinline__ f32 kept(const T *mask, int row, int column, f32 v)
{
#if DROPS
    return row < QUERIES && column < KEYS ? v * (widen(mask[row * KEYS + column]) * (f32)GROWTH) : v;
#else
    return v;
#endif
}

#if !GRADIENT
extern "C" __global__ void __launch_bounds__(THREADS)
attention_windows(const T *q, const T *k, const T *v, const T *bias, const T *mask, T *o, f32 *stats)
{
    __shared__ __align__(16) T rows[ROWS * STEP_D], columns[COLUMNS * STEP_D], values[COLUMNS * STEP_E];
    const i64 h = blockIdx.x % HEADS, b = blockIdx.x / HEADS, matrix = b * HEADS + h;
    const int first = threadIdx.x / 32 * 16;
    stage<D, ROWS>(rows, q + b * Q_B + h * Q_H, Q_S, QUERIES);
    stage<D, COLUMNS>(columns, k + b * K_B + h * K_H, K_S, KEYS);
    stage<E, COLUMNS>(values, v + b * V_B + h * V_H, V_S, KEYS);
    arrived();
    Scores s;
    scores_of<D, STEP_D>(s, rows + first * STEP_D, columns);
    see(s, first, bias + b * BIAS_B + h * BIAS_H);
    REPEAT(half, 2) {
        f32 top = -INFINITY_F, sum = 0;
        REPEAT(n, TILES) REPEAT(i, 2) top = larger(top, s[n][half * 2 + i]);
        top = over_row(top, Larger());
        if (top == -INFINITY_F) top = 0;
        REPEAT(n, TILES) REPEAT(i, 2) sum += s[n][half * 2 + i] = __expf(s[n][half * 2 + i] - top);
        sum = over_row(sum, Sum());
        const f32 scale = sum == 0 ? 0.0f : 1.0f / sum;
        const int row = first + row_of(half * 2);
        REPEAT(n, TILES) REPEAT(i, 2)
            s[n][half * 2 + i] = kept(mask + matrix * QUERIES * KEYS, row, column_of(n, i), s[n][half * 2 + i] * scale);
#if STATS
        if (threadIdx.x % 4 == 0 && row < QUERIES)
            stats[matrix * QUERIES + row] = sum == 0 ? INFINITY_F : top + logf(sum);
#endif
    }
    Weights weights;
    narrowed(weights, s);
    f32 sums[WHOLE(E) / 8][4] = {};
    add_product<E, STEP_E>(sums, weights, values);
    put<E>(o + b * O_B + h * O_H, O_S, first, QUERIES, sums);
}
#else

// slopes [parts of the batch, H, S, T]: sums of the scores' gradients. Weights are those of attention_slopes.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_windows_grad(const T *q, const T *k, const T *v, const T *g, const T *bias, const T *mask, const f32 *stats,
                       T *dq, T *dk, T *dv, T *slopes)
{
    // Behind the products of rows k and v are not needed any more: the scores' gradients and the weights take their
    // places, for the products of columns.
    const int most_k = COLUMNS * STEP_D > ROWS * STEP_N ? COLUMNS * STEP_D : ROWS * STEP_N;
    const int most_v = COLUMNS * STEP_E > ROWS * STEP_N ? COLUMNS * STEP_E : ROWS * STEP_N;
    __shared__ __align__(16) T rows[ROWS * STEP_D], grads[ROWS * STEP_E], columns[most_k], values[most_v];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp * 16;
    const i64 h = blockIdx.x % HEADS, part = blockIdx.x / HEADS;
#if SLOPES
    Scores total = {};
#endif
    for (i64 b = part * TURNS; b < (part + 1) * TURNS && b < BATCH; ++b) {
        const i64 matrix = b * HEADS + h;
        __syncthreads();
        stage<D, ROWS>(rows, q + b * Q_B + h * Q_H, Q_S, QUERIES);
        stage<E, ROWS>(grads, g + b * O_B + h * O_H, O_S, QUERIES);
        stage<D, COLUMNS>(columns, k + b * K_B + h * K_H, K_S, KEYS);
        stage<E, COLUMNS>(values, v + b * V_B + h * V_H, V_S, KEYS);
        arrived();
        Scores w, slope;
        scores_of<D, STEP_D>(w, rows + first * STEP_D, columns);
        scores_of<E, STEP_E>(slope, grads + first * STEP_E, values);
        see(w, first, bias + b * BIAS_B + h * BIAS_H);
        REPEAT(half, 2) {
            const int row = first + row_of(half * 2);
            const T *kept_here = mask + matrix * QUERIES * KEYS;
            const f32 log_sum = row < QUERIES ? stats[matrix * QUERIES + row] : 0.0f;
            f32 all = 0, mean = 0;
            REPEAT(n, TILES) REPEAT(j, 2) {
                const int i = half * 2 + j;
                w[n][i] = __expf(w[n][i] - log_sum);
                slope[n][i] = kept(kept_here, row, column_of(n, j), slope[n][i]);
                all += w[n][i];
                mean += w[n][i] * slope[n][i];
            }
            all = over_row(all, Sum());
            const f32 scale = all == 0 ? 1.0f : 1.0f / all;
            mean = scale * over_row(mean, Sum());
            REPEAT(n, TILES) REPEAT(j, 2) {
                const int i = half * 2 + j;
                w[n][i] *= scale;
                slope[n][i] = w[n][i] * (slope[n][i] - mean);
                w[n][i] = kept(kept_here, row, column_of(n, j), w[n][i]);
#if SLOPES
                total[n][i] += slope[n][i];
#endif
                slope[n][i] *= SCALE;
            }
        }
        Weights weights, scaled;
        narrowed(weights, w);
        narrowed(scaled, slope);
        f32 sums[WHOLE(D) / 8][4] = {};
        add_product<D, STEP_D>(sums, scaled, columns);
        put<D>(dq + b * DQ_B + h * DQ_H, DQ_S, first, QUERIES, sums);
        __syncthreads();
        REPEAT(n, TILES / 2) REPEAT(i, 4) {
            const int at = (first + lane / 4 + i % 2 * 8) * STEP_N + n * 16 + i / 2 * 8 + lane % 4 * 2;
            *(u32 *)(columns + at) = scaled[n][i];
            *(u32 *)(values + at) = weights[n][i];
        }
        __syncthreads();
        for (int c = first; c < COLUMNS; c += ROWS) {  // 16 keys of a warp
            u32 of_slopes[ROWS / 16][4], of_weights[ROWS / 16][4];
            REPEAT(r, ROWS / 16) {
                const int at = (r * 16 + lane / 16 * 8 + lane % 8) * STEP_N + c + lane / 8 % 2 * 8;
                matrices<true>(of_slopes[r], columns + at);
                matrices<true>(of_weights[r], values + at);
            }
            f32 of_keys[WHOLE(D) / 8][4] = {}, of_values[WHOLE(E) / 8][4] = {};
            add_product<D, STEP_D>(of_keys, of_slopes, rows);
            add_product<E, STEP_E>(of_values, of_weights, grads);
            put<D>(dk + b * DK_B + h * DK_H, DK_S, c, KEYS, of_keys);
            put<E>(dv + b * DV_B + h * DV_H, DV_S, c, KEYS, of_values);
        }
    }
#if SLOPES
    T *to = slopes + (part * HEADS + h) * QUERIES * KEYS;
    REPEAT(n, TILES) REPEAT(i, 4) {
        const int row = threadIdx.x / 32 * 16 + row_of(i), column = column_of(n, i);
        if (row < QUERIES && column < KEYS) to[row * KEYS + column] = narrow<T>(total[n][i]);
    }
#endif
}
#endif
