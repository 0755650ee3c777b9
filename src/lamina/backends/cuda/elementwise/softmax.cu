// Softmax, its logarithm, and their gradients from the outputs.
//
// Constants: Index, T, LANES (threads that share one group of elements: 1, 32, or 256 = the block), OUTPUTS (groups),
// COUNT (elements per group), KIND (0 softmax, 1 its logarithm), and functions kept(o), reduced(r); result_kept(o) and
// result_reduced(r) in the result of the forward functions.
// Groups whose elements lie together and are few (V, elements per access, is defined) are read once, and held in
// registers by LANES lanes of a warp, up to 32, in TURNS accesses each; the last of these may lie beyond the group.
typedef Wide<T>::type A;

__device__ __forceinline__ f32 exp_(f32 v) { return expf(v); }
__device__ __forceinline__ f64 exp_(f64 v) { return exp(v); }
__device__ __forceinline__ f32 log_(f32 v) { return logf(v); }
__device__ __forceinline__ f64 log_(f64 v) { return log(v); }

#ifdef V
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)
#define PLACE(turn) (((turn) * LANES + lane) * V)
#define IN_GROUP(turn) (TURNS * LANES * V == COUNT || PLACE(turn) < COUNT)

// The group of a thread; those behind the last one see it too, and write nothing: all threads of a warp have read it
// by then.
#define GROUPS_OF_BLOCK                                                                                              \
    const int lane = threadIdx.x % LANES;                                                                            \
    for (Index first = ((Index)blockIdx.x * 256 + threadIdx.x / 32 * 32) / LANES; first < (Index)OUTPUTS;            \
         first += (Index)gridDim.x * (256 / LANES))
#define GROUP_OF_LANES                                                                                               \
    const Index own = first + threadIdx.x % 32 / LANES, o = smaller(own, (Index)OUTPUTS - 1);                        \
    const bool real = own < (Index)OUTPUTS;                                                                          \
    const Index base = kept(o);

// A lane's elements of a group, `beyond` where there are none.
__device__ __forceinline__ void read(A (&to)[TURNS][V], const T *from, int lane, A beyond)
{
    Pack<T, V> some[TURNS];
    REPEAT(turn, TURNS) if (IN_GROUP(turn)) some[turn] = load<V>(from + PLACE(turn));
    REPEAT(turn, TURNS) REPEAT(k, V) to[turn][k] = IN_GROUP(turn) ? (A)widen(some[turn].v[k]) : beyond;
}

extern "C" __global__ void __launch_bounds__(256) softmax(const T *x, T *y)
{
    GROUPS_OF_BLOCK {
        GROUP_OF_LANES
        A v[TURNS][V], largest = -(A)INFINITY_F, sum = 0;
        read(v, x + base, lane, -(A)INFINITY_F);
        REPEAT(turn, TURNS) REPEAT(k, V) largest = larger(largest, v[turn][k]);
        largest = over_lanes_of<LANES>(largest, Larger());
        REPEAT(turn, TURNS) if (IN_GROUP(turn)) REPEAT(k, V) {
            v[turn][k] -= largest;
            const A power = exp_(v[turn][k]);
            if (KIND == 0) v[turn][k] = power;
            sum += power;
        }
        sum = over_lanes_of<LANES>(sum, Sum());
        const A scale = KIND == 0 ? (A)1 / sum : log_(sum);
        REPEAT(turn, TURNS) if (real && IN_GROUP(turn)) {
            Pack<T, V> result;
            REPEAT(k, V) result.v[k] = narrow<T>(KIND == 0 ? v[turn][k] * scale : v[turn][k] - scale);
            store<V>(y + result_kept(o) + PLACE(turn), result);
        }
    }
}

// KIND 0: y * (g - sum of y * g).  KIND 1: g - exp(y) * sum of g.
extern "C" __global__ void __launch_bounds__(256) softmax_grad(const T *y, const T *g, T *dx)
{
    GROUPS_OF_BLOCK {
        GROUP_OF_LANES
        A v[TURNS][V], d[TURNS][V], sum = 0;
        read(v, y + base, lane, (A)0);
        read(d, g + base, lane, (A)0);
        REPEAT(turn, TURNS) REPEAT(k, V) sum += KIND == 0 ? v[turn][k] * d[turn][k] : d[turn][k];
        sum = over_lanes_of<LANES>(sum, Sum());
        REPEAT(turn, TURNS) if (real && IN_GROUP(turn)) {
            Pack<T, V> result;
            REPEAT(k, V) {
                const A yi = v[turn][k], gi = d[turn][k];
                result.v[k] = narrow<T>(KIND == 0 ? yi * (gi - sum) : gi - exp_(yi) * sum);
            }
            store<V>(dx + base + PLACE(turn), result);
        }
    }
}
#else
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

extern "C" __global__ void __launch_bounds__(256) softmax(const T *x, T *y)
{
    const int lane = threadIdx.x % LANES;
    const Index step = (Index)gridDim.x * (256 / LANES);
    for (Index o = (Index)blockIdx.x * (256 / LANES) + threadIdx.x / LANES; o < (Index)OUTPUTS; o += step) {
        const Index base = kept(o), to = result_kept(o);
        A largest = -(A)INFINITY_F, sum = 0;
        for (Index r = lane; r < (Index)COUNT; r += LANES) largest = larger(largest, (A)widen(x[base + reduced(r)]));
        largest = over_lanes(largest, Larger(), -(A)INFINITY_F);
        for (Index r = lane; r < (Index)COUNT; r += LANES) sum += exp_((A)widen(x[base + reduced(r)]) - largest);
        sum = over_lanes(sum, Sum(), (A)0);
#if KIND == 0
        const A scale = (A)1 / sum;
        for (Index r = lane; r < (Index)COUNT; r += LANES)
            y[to + result_reduced(r)] = narrow<T>(exp_((A)widen(x[base + reduced(r)]) - largest) * scale);
#else
        const A log_sum = log_(sum);
        for (Index r = lane; r < (Index)COUNT; r += LANES)
            y[to + result_reduced(r)] = narrow<T>(((A)widen(x[base + reduced(r)]) - largest) - log_sum);
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
#endif
