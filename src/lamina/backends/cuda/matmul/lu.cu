// LU factors with row exchanges: a block for each matrix, in float64; the exchanges as an order of rows: a thread for each
// matrix.
//
// Constants: T, M, N, K = min(M, N); of the order M rows, K pivots, COUNT matrices, INVERSE. scratch: each matrix.
#define THREADS 256
#include "pivot.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) pivoted_factor(const T *a, T *found, int *pivots, f64 *scratch)
{
    const i64 size = (i64)M * N;
    f64 *w = scratch + blockIdx.x * size;
    for (i64 e = threadIdx.x; e < size; e += THREADS) w[e] = (f64)a[blockIdx.x * size + e];
    __syncthreads();
    for (int k = 0; k < K; k++) {
        const int at = pivot_row(w, k, M, N);
        if (threadIdx.x == 0) pivots[blockIdx.x * (i64)K + k] = at + 1;
        for (int j = threadIdx.x; j < N && at != k; j += THREADS) exchange(w[(i64)k * N + j], w[(i64)at * N + j]);
        __syncthreads();
        const f64 pivot = w[(i64)k * N + k];
        for (int i = k + 1 + threadIdx.x; i < M && pivot != 0; i += THREADS) w[(i64)i * N + k] /= pivot;
        __syncthreads();
        const i64 right = N - k - 1;
        for (i64 e = threadIdx.x; e < (M - k - 1) * right; e += THREADS) {
            const i64 i = k + 1 + e / right, j = k + 1 + e % right;
            w[i * N + j] -= w[i * N + k] * w[(i64)k * N + j];
        }
        __syncthreads();
    }
    for (i64 e = threadIdx.x; e < size; e += THREADS) found[blockIdx.x * size + e] = (T)w[e];
}

extern "C" __global__ void __launch_bounds__(THREADS) row_order(const int *pivots, int *found, int *scratch)
{
    const i64 matrix = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (matrix >= COUNT) return;
    pivots += matrix * K;
    found += matrix * M;
    int *order = INVERSE ? scratch + matrix * M : found;
    for (int i = 0; i < M; i++) order[i] = i;
    for (int k = 0; k < K; k++) {
        const int at = pivots[k] - 1;
        if (at < 0 || at >= M) continue;
        const int held = order[k];
        order[k] = order[at];
        order[at] = held;
    }
    for (int i = 0; i < M && INVERSE; i++) found[order[i]] = i;
}
