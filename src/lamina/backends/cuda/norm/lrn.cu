// Local response normalization across channels.
//
// Constants: Index, T, TOTAL (elements), CHANNELS, C_STRIDE (elements from a channel to the next), BEFORE and BEHIND
// (channels of a window around its own), SLOPE (alpha / size), BETA, K, FACTOR (2 alpha beta / size).
typedef Wide<T>::type A;

__device__ __forceinline__ f32 power(f32 v, f32 e) { return powf(v, e); }
__device__ __forceinline__ f64 power(f64 v, f64 e) { return pow(v, e); }

// VALUE of each element j of the window around i that holds `before` channels before it and `behind` behind it.
#define WINDOW(sum, before, behind, VALUE)                                                                           \
    {                                                                                                                \
        const int c = (int)(i / C_STRIDE % CHANNELS);                                                                \
        const int lo = c < (before) ? -c : -(before), hi = CHANNELS - 1 - c < (behind) ? CHANNELS - 1 - c : (behind); \
        for (int d = lo; d <= hi; ++d) { const Index j = i + d * (Index)C_STRIDE; sum += VALUE; }                    \
    }

__device__ __forceinline__ A squared(A v) { return v * v; }

// k + alpha / size * the window's sum of squares.
__device__ __forceinline__ A response(const T *x, Index i)
{
    A sum = 0;
    WINDOW(sum, BEFORE, BEHIND, squared((A)widen(x[j])))
    return (A)K + (A)SLOPE * sum;
}

extern "C" __global__ void __launch_bounds__(256) local_response(const T *x, T *y)
{
    FOR_EACH(i, TOTAL) y[i] = narrow<T>((A)widen(x[i]) * power(response(x, i), -(A)BETA));
}

// u = g x base^(-beta - 1), which the gradients of the neighbours need.
extern "C" __global__ void __launch_bounds__(256) local_response_terms(const T *g, const T *x, A *u)
{
    FOR_EACH(i, TOTAL) u[i] = (A)widen(g[i]) * (A)widen(x[i]) * power(response(x, i), -(A)BETA - (A)1);
}

extern "C" __global__ void __launch_bounds__(256) local_response_grad(const T *g, const T *x, const A *u, T *dx)
{
    FOR_EACH(i, TOTAL) {
        A spread = 0;
        WINDOW(spread, BEHIND, BEFORE, u[j])
        dx[i] = narrow<T>((A)widen(g[i]) * power(response(x, i), -(A)BETA) - (A)FACTOR * (A)widen(x[i]) * spread);
    }
}
