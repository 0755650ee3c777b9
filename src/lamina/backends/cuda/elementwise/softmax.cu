// Softmax, its logarithm, and their gradients from the outputs.
//
// Constants: Index, T, LANES (threads that share one group of elements: 1, 32, or 256 = the block), OUTPUTS (groups),
// COUNT (elements per group), KIND (0 softmax, 1 its logarithm), and functions kept(o), reduced(r).
typedef Wide<T>::type A;

template <class F> __device__ __forceinline__ A over_lanes(A v, F combine, A neutral)
{
#if LANES == 32
    return over_warp(v, combine);
#elif LANES == 256
    return over_block(v, combine, neutral);
#else
    return v;
#endif
}

__device__ __forceinline__ f32 exp_(f32 v) { return expf(v); }
__device__ __forceinline__ f64 exp_(f64 v) { return exp(v); }
__device__ __forceinline__ f32 log_(f32 v) { return logf(v); }
__device__ __forceinline__ f64 log_(f64 v) { return log(v); }

extern "C" __global__ void __launch_bounds__(256) softmax(const T *x, T *y)
{
    const int lane = threadIdx.x % LANES;
    const Index step = (Index)gridDim.x * (256 / LANES);
    for (Index o = (Index)blockIdx.x * (256 / LANES) + threadIdx.x / LANES; o < (Index)OUTPUTS; o += step) {
        const Index base = kept(o);
        A largest = -(A)INFINITY_F, sum = 0;
        for (Index r = lane; r < (Index)COUNT; r += LANES) largest = larger(largest, (A)widen(x[base + reduced(r)]));
        largest = over_lanes(largest, Larger(), -(A)INFINITY_F);
        for (Index r = lane; r < (Index)COUNT; r += LANES) sum += exp_((A)widen(x[base + reduced(r)]) - largest);
        sum = over_lanes(sum, Sum(), (A)0);
#if KIND == 0
        const A scale = (A)1 / sum;
        for (Index r = lane; r < (Index)COUNT; r += LANES) {
            const Index i = base + reduced(r);
            y[i] = narrow<T>(exp_((A)widen(x[i]) - largest) * scale);
        }
#else
        const A log_sum = log_(sum);
        for (Index r = lane; r < (Index)COUNT; r += LANES) {
            const Index i = base + reduced(r);
            y[i] = narrow<T>(((A)widen(x[i]) - largest) - log_sum);
        }
#endif
    }
}

// KIND 0: y * (g - sum of y * g).  KIND 1: g - exp(y) * sum of g.
extern "C" __global__ void __launch_bounds__(256) softmax_grad(const T *y, const T *g, T *dx)
{
    const int lane = threadIdx.x % LANES;
    const Index step = (Index)gridDim.x * (256 / LANES);
    for (Index o = (Index)blockIdx.x * (256 / LANES) + threadIdx.x / LANES; o < (Index)OUTPUTS; o += step) {
        const Index base = kept(o);
        A sum = 0;
        for (Index r = lane; r < (Index)COUNT; r += LANES) {
            const Index i = base + reduced(r);
#if KIND == 0
            sum += (A)widen(y[i]) * (A)widen(g[i]);
#else
            sum += (A)widen(g[i]);
#endif
        }
        sum = over_lanes(sum, Sum(), (A)0);
        for (Index r = lane; r < (Index)COUNT; r += LANES) {
            const Index i = base + reduced(r);
            const A yi = widen(y[i]), gi = widen(g[i]);
#if KIND == 0
            dx[i] = narrow<T>(yi * (gi - sum));
#else
            dx[i] = narrow<T>(gi - exp_(yi) * sum);
#endif
        }
    }
}
