// Cholesky's factor, linear and triangular systems, determinants: a block for each matrix, all in float64.
//
// Constants: T, N (rows), K (columns of B, 0 without; of cofactors N), READS_A, READS_B (elements from one matrix to the next, 0 where
// all share one), UPPER, UNIT (of triangles). scratch: for each matrix N rows of WIDTH.
#define WIDTH (N + K)
#define THREADS 256

#include "pivot.cuh"

// Gauss's elimination below the diagonal, above it too for `all`; the 1-based index of the first pivot that is 0, and
// the sign of the exchanges.
__device__ __forceinline__ int eliminate(f64 *w, bool all, f64 &sign)
{
    int info = 0;
    sign = 1;
    for (int k = 0; k < N; k++) {
        const int at = pivot_row(w, k, N, WIDTH);
        if (at != k) {
            sign = -sign;
            for (int j = threadIdx.x; j < WIDTH; j += THREADS) exchange(w[(i64)k * WIDTH + j], w[(i64)at * WIDTH + j]);
            __syncthreads();
        }
        const f64 pivot = w[(i64)k * WIDTH + k];
        if (pivot == 0 && !info) info = k + 1;
        const int right = WIDTH - k - 1;
        for (i64 e = threadIdx.x; e < (i64)N * right; e += THREADS) {
            const int i = (int)(e / right), j = k + 1 + (int)(e % right);
            if (i > k || (all && i < k)) w[(i64)i * WIDTH + j] -= w[(i64)i * WIDTH + k] / pivot * w[(i64)k * WIDTH + j];
        }
        __syncthreads();
    }
    return info;
}

__device__ __forceinline__ void load(f64 *w, const T *a, const T *b)
{
    for (i64 e = threadIdx.x; e < (i64)N * WIDTH; e += THREADS) {
        const i64 i = e / WIDTH, j = e % WIDTH;
        w[e] = j < N ? (f64)a[i * N + j] : (f64)b[i * K + j - N];
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) linear_solve(const T *a, const T *b, T *x, int *info, f64 *scratch)
{
    f64 *w = scratch + (i64)blockIdx.x * N * WIDTH, sign;
    load(w, a + blockIdx.x * (i64)READS_A, b + blockIdx.x * (i64)READS_B);
    const int bad = eliminate(w, true, sign);
    x += (i64)blockIdx.x * N * K;
    for (i64 e = threadIdx.x; e < (i64)N * K; e += THREADS) {
        const i64 i = e / (K ? K : 1), j = e % (K ? K : 1);
        x[e] = (T)(w[i * WIDTH + N + j] / (bad ? nan("") : w[i * WIDTH + i]));
    }
    if (threadIdx.x == 0) info[blockIdx.x] = bad;
}

extern "C" __global__ void __launch_bounds__(THREADS) determinant(const T *a, T *found, f64 *scratch)
{
    f64 *w = scratch + (i64)blockIdx.x * N * N, whole;
    load(w, a + (i64)blockIdx.x * N * N, a);
    const int bad = eliminate(w, false, whole);
    if (threadIdx.x) return;
    for (int k = 0; k < N; k++) whole *= w[(i64)k * N + k];
    found[blockIdx.x] = (T)(bad ? 0.0 : whole);
}

// The rows of [A | 1] are eliminated with the largest element of all as the pivot, but for the last column of A: E A,
// with its columns in the order of the pivots, is [1 v; 0 d], and det(E) is 1 / whole. The adjugate of that is
// [d -v; 0 1], and A's is whole * order * [d -v; 0 1] * E: nothing is divided by d, which is 0 for a singular A.
extern "C" __global__ void __launch_bounds__(THREADS) cofactors(const T *a, T *found, f64 *scratch)
{
    f64 *w = scratch + (i64)blockIdx.x * N * (WIDTH + 1), *order = w + (i64)N * WIDTH, whole = 1;
    a += (i64)blockIdx.x * N * N;
    for (i64 e = threadIdx.x; e < (i64)N * WIDTH; e += THREADS) {
        const i64 i = e / WIDTH, j = e % WIDTH;
        w[e] = j < N ? (f64)a[i * N + j] : (f64)(j - N == i);
    }
    for (int i = threadIdx.x; i < N; i += THREADS) order[i] = i;
    __syncthreads();
    for (int k = 0; k < N - 1; k++) {
        const i64 place = pivot_of_all(w, k, N, WIDTH);
        const int row = (int)(place / WIDTH), column = (int)(place % WIDTH);
        whole = ((row != k) != (column != k)) ? -whole : whole;
        for (int j = threadIdx.x; j < WIDTH && row != k; j += THREADS) exchange(w[(i64)k * WIDTH + j], w[(i64)row * WIDTH + j]);
        __syncthreads();
        for (int i = threadIdx.x; i < N && column != k; i += THREADS) exchange(w[(i64)i * WIDTH + k], w[(i64)i * WIDTH + column]);
        if (threadIdx.x == 0) exchange(order[k], order[column]);
        __syncthreads();
        const f64 pivot = w[(i64)k * WIDTH + k];
        whole *= pivot;
        if (pivot == 0) break;
        for (int j = k + 1 + threadIdx.x; j < WIDTH; j += THREADS) w[(i64)k * WIDTH + j] /= pivot;
        __syncthreads();
        const int right = WIDTH - k - 1;
        for (i64 e = threadIdx.x; e < (i64)N * right; e += THREADS) {
            const i64 i = e / right, j = k + 1 + e % right;
            if (i != k) w[i * WIDTH + j] -= w[i * WIDTH + k] * w[(i64)k * WIDTH + j];
        }
        __syncthreads();
    }
    const i64 last = (i64)(N - 1) * WIDTH;
    const f64 d = w[last + N - 1];
    found += (i64)blockIdx.x * N * N;
    for (i64 e = threadIdx.x; e < (i64)N * N; e += THREADS) {  // cofactors: the adjugate transposed
        const i64 i = e / N, j = e % N;
        const f64 *own = w + i * WIDTH;
        const f64 value = i == N - 1 ? own[N + j] : d * own[N + j] - own[N - 1] * w[last + N + j];
        found[j * N + (i64)order[i]] = (T)(whole == 0 ? 0.0 : whole * value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) log_determinant(const T *a, T *sign, T *size, f64 *scratch)
{
    f64 *w = scratch + (i64)blockIdx.x * N * WIDTH, turned;
    load(w, a + (i64)blockIdx.x * N * N, a);
    const int bad = eliminate(w, false, turned);
    if (threadIdx.x) return;
    f64 sum = 0;
    for (int k = 0; k < N && !bad; k++) {
        const f64 pivot = w[(i64)k * WIDTH + k];
        sum += log(fabs(pivot));
        turned = pivot < 0 ? -turned : pivot > 0 ? turned : pivot;
    }
    sign[blockIdx.x] = (T)(bad ? 0.0 : turned);
    size[blockIdx.x] = (T)(bad ? log(0.0) : sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) cholesky_factor(const T *a, T *low, int *info, f64 *scratch)
{
    f64 *w = scratch + (i64)blockIdx.x * N * N;
    load(w, a + (i64)blockIdx.x * N * N, a);
    int bad = 0;
    for (int k = 0; k < N; k++) {
        const f64 pivot = w[(i64)k * N + k];
        if (!(pivot > 0) && !bad) bad = k + 1;
        const f64 root = bad ? nan("") : sqrt(pivot);
        __syncthreads();
        for (int i = k + threadIdx.x; i < N; i += THREADS) w[(i64)i * N + k] = i == k ? root : w[(i64)i * N + k] / root;
        __syncthreads();
        const int rest = N - k - 1;
        for (i64 e = threadIdx.x; e < (i64)rest * rest; e += THREADS) {
            const i64 i = k + 1 + e / rest, j = k + 1 + e % rest;
            if (j <= i) w[i * N + j] -= w[i * N + k] * w[j * N + k];
        }
        __syncthreads();
    }
    low += (i64)blockIdx.x * N * N;
    for (i64 e = threadIdx.x; e < (i64)N * N; e += THREADS) low[e] = e % N <= e / N ? (T)w[e] : (T)0;
    if (threadIdx.x == 0) info[blockIdx.x] = bad;
}

extern "C" __global__ void __launch_bounds__(THREADS) triangular_solve(const T *a, const T *b, T *x, f64 *scratch)
{
    f64 *w = scratch + (i64)blockIdx.x * N * K;
    a += blockIdx.x * (i64)READS_A;
    b += blockIdx.x * (i64)READS_B;
    for (i64 e = threadIdx.x; e < (i64)N * K; e += THREADS) w[e] = (f64)b[e];
    __syncthreads();
    for (int step = 0; step < N && K; step++) {
        const i64 k = UPPER ? N - 1 - step : step;
        for (int j = threadIdx.x; j < K && !UNIT; j += THREADS) w[k * K + j] /= (f64)a[k * N + k];
        __syncthreads();
        for (i64 e = threadIdx.x; e < (i64)(N - 1 - step) * K; e += THREADS) {
            const i64 i = UPPER ? e / (K ? K : 1) : k + 1 + e / (K ? K : 1), j = e % (K ? K : 1);
            w[i * K + j] -= (f64)a[i * N + k] * w[k * K + j];
        }
        __syncthreads();
    }
    x += (i64)blockIdx.x * N * K;
    for (i64 e = threadIdx.x; e < (i64)N * K; e += THREADS) x[e] = (T)w[e];
}
