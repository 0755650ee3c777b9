// A product one of whose operands has few rows: c [M, N] = a [M, K] b, with elementwise steps on the result. Each
// element of b is read once, and is what takes the time: threads share sums so that all of the device reads.
//
// Constants: Index, T, M (few), N, K, V (elements of b in an access), and what lies along K:
//   GROUP (threads that share a column, whose K elements lie together in b), or
//   LANES (accesses of neighbouring columns, for each of which 1024 / LANES threads share the sum).
// Texts: EXTRAS (further parameters), GIVEN (their names), and finish(sum, m, n, c GIVEN), which writes an element.
#ifdef GROUP
extern "C" __global__ void __launch_bounds__(256) few_rows(const T *a, const T *b, T *c EXTRAS)
{
    const Index n = (Index)blockIdx.x * (256 / GROUP) + threadIdx.x / GROUP;
    const int lane = threadIdx.x % GROUP;
    if (n >= (Index)N) return;  // all threads of a group
    A sum[M] = {};
#pragma unroll 4
    for (Index k = lane * V; k < (Index)K; k += GROUP * V) {
        const Pack<T, V> w = load<V>(b + n * (Index)K + k);
#pragma unroll
        for (int m = 0; m < M; ++m) {
            const Pack<T, V> x = load<V>(a + m * (Index)K + k);
#pragma unroll
            for (int e = 0; e < V; ++e) sum[m] += (A)widen(w.v[e]) * (A)widen(x.v[e]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
#if GROUP == 32
        sum[m] = over_warp(sum[m], Sum());
#else
        sum[m] = over_block(sum[m], Sum(), (A)0);
#endif
        if (lane == m) finish(sum[m], m, n, c GIVEN);
    }
}
#endif

#ifdef LANES
extern "C" __global__ void __launch_bounds__(1024) few_rows(const T *a, const T *b, T *c EXTRAS)
{
    __shared__ A part[32][M][LANES * V];
    const int lane = threadIdx.x % LANES, first = threadIdx.x / LANES, warp = threadIdx.x / 32;
    const Index column = (Index)blockIdx.x * (LANES * V), own = column + lane * V;
    A sum[M][V] = {};
    if (own < (Index)N) {
#pragma unroll 4
        for (Index k = first; k < (Index)K; k += 1024 / LANES) {
            const Pack<T, V> w = load<V>(b + k * (Index)N + own);
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int e = 0; e < V; ++e) sum[m][e] += (A)widen(w.v[e]) * (A)widen(a[m * (Index)K + k]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int e = 0; e < V; ++e) {
            for (int apart = LANES; apart < 32; apart *= 2) sum[m][e] += shuffle_xor(sum[m][e], apart);
            if (threadIdx.x % 32 < LANES) part[warp][m][lane * V + e] = sum[m][e];
        }
    __syncthreads();
    for (int i = threadIdx.x; i < M * LANES * V; i += 1024) {
        const int m = i / (LANES * V), n = i % (LANES * V);
        if (column + n >= (Index)N) continue;
        A total = 0;
#pragma unroll
        for (int w = 0; w < 32; ++w) total += part[w][m][n];
        finish(total, m, column + n, c GIVEN);
    }
}
#endif
