// Attention's rows between its products: a warp or a block per row of scores.
//
// Constants: Index, T, LANES (32, or 256 = the block), ROWS (B H S), HEIGHT (S), COUNT (columns),
// SCALE, CAUSAL, BIAS, UNSCALED, STATS, and with BIAS the strides BIAS_B, BIAS_H, BIAS_S, BIAS_T and HEADS; DROPS: the
// weights are dropped where a mask is 0, and grow by GROWTH where it is 1.
typedef Wide<T>::type A;

template <class F> __device__ __forceinline__ A over_lanes(A v, F combine, A neutral)
{
#if LANES == 32
    return over_warp(v, combine);
#else
    return over_block(v, combine, neutral);
#endif
}

__device__ __forceinline__ f32 exp_(f32 v) { return expf(v); }
__device__ __forceinline__ f64 exp_(f64 v) { return exp(v); }
__device__ __forceinline__ f32 log_(f32 v) { return logf(v); }
__device__ __forceinline__ f64 log_(f64 v) { return log(v); }

// The score of column j in row o: scale s + bias, -inf behind the diagonal.
__device__ __forceinline__ A score(const T *s, const T *bias, Index o, Index j)
{
#if CAUSAL
    if (j > o % HEIGHT) return -(A)INFINITY_F;
#endif
    A v = (A)SCALE * (A)widen(s[o * COUNT + j]);
#if BIAS
    const Index i = o % HEIGHT, h = o / HEIGHT % HEADS, b = o / HEIGHT / HEADS;
    v += (A)widen(bias[b * BIAS_B + h * BIAS_H + i * BIAS_S + j * BIAS_T]);
#endif
    return v;
}

// A weight, or its gradient, after dropout.
__device__ __forceinline__ A kept(const T *mask, Index i, A v)
{
#if DROPS
    return v * ((A)widen(mask[i]) * (A)GROWTH);
#else
    return v;
#endif
}

// s: the products q k^T, overwritten by the weights. stats: log of the sums, +inf for rows that see nothing.
extern "C" __global__ void __launch_bounds__(256)
attention_weights(T *s, const T *bias, A *stats, const T *mask)
{
    const int lane = threadIdx.x % LANES;
    const Index step = (Index)gridDim.x * (256 / LANES);
    for (Index o = (Index)blockIdx.x * (256 / LANES) + threadIdx.x / LANES; o < (Index)ROWS; o += step) {
        A top = -(A)INFINITY_F, sum = 0;
        for (Index j = lane; j < (Index)COUNT; j += LANES) top = larger(top, score(s, bias, o, j));
        top = over_lanes(top, Larger(), -(A)INFINITY_F);
        if (top == -(A)INFINITY_F) top = 0;
        for (Index j = lane; j < (Index)COUNT; j += LANES) sum += exp_(score(s, bias, o, j) - top);
        sum = over_lanes(sum, Sum(), (A)0);
        const A scale = sum == 0 ? (A)0 : (A)1 / sum;
#if STATS
        if (lane == 0) stats[o] = sum == 0 ? (A)INFINITY_F : top + log_(sum);
#endif
        for (Index j = lane; j < (Index)COUNT; j += LANES)
            s[o * COUNT + j] = narrow<T>(kept(mask, o * COUNT + j, exp_(score(s, bias, o, j) - top) * scale));
    }
}

// s: the products q k^T, overwritten by the weights. d: the products do v^T, overwritten by scale times the gradients
// of the scores. plain: the same without the scale (with UNSCALED). From each row its mean by the weights is taken.
// Weights by a rounded logarithm sum to 1 but for |log_sum| roundings, which times the mean would be the error of the
// small differences from it: but in float64 each row is divided by its sum.
extern "C" __global__ void __launch_bounds__(256)
attention_slopes(T *s, const T *bias, const A *stats, T *d, T *plain, const T *mask)
{
    const int lane = threadIdx.x % LANES;
    const Index step = (Index)gridDim.x * (256 / LANES);
    for (Index o = (Index)blockIdx.x * (256 / LANES) + threadIdx.x / LANES; o < (Index)ROWS; o += step) {
        const A log_sum = stats[o];
        A total = 0, sum = 0;
        for (Index j = lane; j < (Index)COUNT; j += LANES) {
            const A w = exp_(score(s, bias, o, j) - log_sum);
            total += w;
            sum += w * kept(mask, o * COUNT + j, (A)widen(d[o * COUNT + j]));
        }
        total = over_lanes(total, Sum(), (A)0);
        const A scale = sizeof(A) == 8 || total == 0 ? (A)1 : (A)1 / total;
        sum = scale * over_lanes(sum, Sum(), (A)0);
        for (Index j = lane; j < (Index)COUNT; j += LANES) {
            const Index i = o * COUNT + j;
            const A w = scale * exp_(score(s, bias, o, j) - log_sum);
            const A slope = w * (kept(mask, i, (A)widen(d[i])) - sum);
            s[i] = narrow<T>(kept(mask, i, w));
            d[i] = narrow<T>((A)SCALE * slope);
#if UNSCALED
            plain[i] = narrow<T>(slope);
#endif
        }
    }
}
