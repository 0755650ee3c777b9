// Reductions. One text is compiled per use, with these constants:
//   Index, A (accumulator), R (elements written), V (elements per access), F (Sum, Product, Larger or Smaller), NEUTRAL,
//   POST(v) on each result.
//   Numbers of the parameter SIZES: OUTPUTS, COUNT (elements per output), PART (elements per output and split), SPLITS,
//   WHOLE (elements that a mean is of).
//   Of what is read: PARAMETERS, LOCATE(o) (pointers to what output o needs), LOAD(r) (V elements of each operand, from
//   element r on), ELEMENT(k) (what the k-th of them give).
// With SPLITS > 1 results are partial: reduce_rows writes [OUTPUTS, SPLITS], reduce_columns [SPLITS, OUTPUTS].

#ifdef GROUP
// The reduced elements lie together: GROUP threads (32, or 256 = the block) share one output.
extern "C" __global__ void __launch_bounds__(256) reduce_rows(PARAMETERS, R *y, SIZES)
{
    const F combine;
    const int lane = threadIdx.x % GROUP;
    const Index count = COUNT, groups = OUTPUTS * SPLITS, step = (Index)gridDim.x * (256 / GROUP);
    for (Index g = (Index)blockIdx.x * (256 / GROUP) + threadIdx.x / GROUP; g < groups; g += step) {
        Index o = g, begin = 0, end = count;
        if (SPLITS > 1) {
            o = g / SPLITS;
            begin = (g - o * SPLITS) * PART;
            end = begin + PART < count ? begin + PART : count;
        }
        LOCATE(o)
        A sum = NEUTRAL;
#pragma unroll 4
        for (Index r = begin + lane * V; r < end; r += GROUP * V) {
            LOAD(r)
#pragma unroll
            for (int k = 0; k < V; ++k) sum = combine(sum, ELEMENT(k));
        }
#if GROUP == 32
        sum = over_warp(sum, combine);
#else
        sum = over_block(sum, combine, (A)NEUTRAL);
#endif
        if (lane == 0) y[g] = narrow<R>(POST(sum));
    }
}
#endif

#ifdef LANES
// The outputs lie together: LANES * V of them per block, whose ROWS = 256 / LANES rows of threads share the elements.
extern "C" __global__ void __launch_bounds__(256) reduce_columns(PARAMETERS, R *y, SIZES)
{
    const F combine;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const Index o = ((Index)blockIdx.x * LANES + lane) * V, begin = (Index)blockIdx.y * PART;
    const Index end = begin + PART < COUNT ? begin + PART : COUNT;
    A sum[V];
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = NEUTRAL;
    if (o < OUTPUTS) {
        LOCATE(o)
#pragma unroll 4
        for (Index r = begin + row; r < end; r += ROWS) {
            LOAD(r)
#pragma unroll
            for (int k = 0; k < V; ++k) sum[k] = combine(sum[k], ELEMENT(k));
        }
    }
#if ROWS == 1
    if (o >= OUTPUTS) return;
    Pack<R, V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) out.v[k] = narrow<R>(POST(sum[k]));
    store(y + (Index)blockIdx.y * OUTPUTS + o, out);
#else
    __shared__ A part[ROWS][LANES * V];
#pragma unroll
    for (int k = 0; k < V; ++k) part[row][lane * V + k] = sum[k];
    __syncthreads();
    // LANES * V results, each from ROWS partial ones; 256 threads, so perhaps several results per thread.
    for (int c = threadIdx.x; c < LANES * V; c += 256) {
        const Index place = (Index)blockIdx.x * LANES * V + c;
        if (place >= OUTPUTS) break;
        A total = part[0][c];
        for (int k = 1; k < ROWS; ++k) total = combine(total, part[k][c]);
        y[(Index)blockIdx.y * OUTPUTS + place] = narrow<R>(POST(total));
    }
#endif
}
#endif

#ifdef ARG
// The index of the first best element; NaN is best, as in NumPy. ARG threads, a power of two up to a warp, share one output.
__device__ __forceinline__ bool better(A v, Index i, A best, Index at)
{
    if (at < 0) return true;
    if (i < 0) return false;
    const bool nan = v != v, best_nan = best != best;
    if (nan || best_nan) return nan && (!best_nan || i < at);
    return v ARG_ORDER best || (v == best && i < at);
}

extern "C" __global__ void __launch_bounds__(256) arg_reduce(const T *x, i64 *y)
{
    const int lane = threadIdx.x % ARG;
    const Index step = (Index)gridDim.x * (256 / ARG);
    const Index turns = ((Index)OUTPUTS + step - 1) / step;  // every lane takes each turn: the shuffles need all
    Index o = (Index)blockIdx.x * (256 / ARG) + threadIdx.x / ARG;
    for (Index turn = 0; turn < turns; ++turn, o += step) {
        A best = (A)0;
        Index at = -1;
        if (o < (Index)OUTPUTS) {
            const T *row = x + kept(o);
            for (Index r = lane; r < (Index)COUNT; r += ARG) {
                const A v = widen(row[reduced(r)]);
                if (better(v, r, best, at)) { best = v; at = r; }
            }
        }
#pragma unroll
        for (int lanes = ARG / 2; lanes; lanes >>= 1) {
            const A v = (A)shuffle_xor(best, lanes);
            const Index i = shuffle_xor(at, lanes);
            if (better(v, i, best, at)) { best = v; at = i; }
        }
        if (lane == 0 && o < (Index)OUTPUTS) y[o] = at;
    }
}
#endif
