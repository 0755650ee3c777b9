// Orthogonal and triangular factors by Householder's reflections: a block for each matrix, in float64.
//
// Constants: T, M, N, Q (columns of Q), R (rows of R). scratch: for each matrix A, which becomes R with the vectors of the
// reflections below it (their first element is 1), their factors, and Q.
#define THREADS 256
#define STEPS (M < N ? M : N)

__device__ __forceinline__ f64 summed(f64 own)
{
    __shared__ f64 parts[THREADS];
    parts[threadIdx.x] = own;
    __syncthreads();
    for (int half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    const f64 found = parts[0];
    __syncthreads();
    return found;
}

// Columns `from` on of x [M, width] reflected by column k of w, a thread for each.
__device__ __forceinline__ void reflect(f64 *x, int from, int width, const f64 *w, int k, f64 factor)
{
    for (int j = from + threadIdx.x; j < width && factor != 0; j += THREADS) {
        f64 dot = x[(i64)k * width + j];
        for (int i = k + 1; i < M; i++) dot += w[(i64)i * N + k] * x[(i64)i * width + j];
        dot *= factor;
        x[(i64)k * width + j] -= dot;
        for (int i = k + 1; i < M; i++) x[(i64)i * width + j] -= w[(i64)i * N + k] * dot;
    }
    __syncthreads();
}

__device__ __forceinline__ f64 *factorize(const T *a, f64 *scratch)
{
    f64 *w = scratch + blockIdx.x * (i64)SIZE, *factors = w + (i64)M * N;
    a += blockIdx.x * ((i64)M * N);
    for (i64 e = threadIdx.x; e < (i64)M * N; e += THREADS) w[e] = (f64)a[e];
    __syncthreads();
    for (int k = 0; k < STEPS; k++) {
        f64 own = 0;
        for (int i = k + 1 + threadIdx.x; i < M; i += THREADS) own += w[(i64)i * N + k] * w[(i64)i * N + k];
        const f64 below = summed(own), first = w[(i64)k * N + k];
        // A column that is zero below its diagonal is not reflected, as in LAPACK.
        const f64 length = sqrt(first * first + below), turned = first < 0 ? length : -length;
        const f64 factor = below == 0 ? 0 : (turned - first) / turned;
        __syncthreads();
        for (int i = k + 1 + threadIdx.x; i < M && factor != 0; i += THREADS) w[(i64)i * N + k] /= first - turned;
        if (threadIdx.x == 0) {
            factors[k] = factor;
            if (factor != 0) w[(i64)k * N + k] = turned;
        }
        __syncthreads();
        reflect(w, k + 1, N, w, k, factor);
    }
    return w;
}

__device__ __forceinline__ void store_r(const f64 *w, T *r)
{
    r += blockIdx.x * ((i64)R * N);
    for (i64 e = threadIdx.x; e < (i64)R * N; e += THREADS) r[e] = e / N > e % N ? (T)0 : (T)w[e];
}

extern "C" __global__ void __launch_bounds__(THREADS) triangular_factor(const T *a, T *r, f64 *scratch)
{
    store_r(factorize(a, scratch), r);
}

extern "C" __global__ void __launch_bounds__(THREADS) orthogonal_factor(const T *a, T *q, T *r, f64 *scratch)
{
    f64 *w = factorize(a, scratch), *factors = w + (i64)M * N, *whole = factors + STEPS;
    store_r(w, r);
    for (i64 e = threadIdx.x; e < (i64)M * Q; e += THREADS) whole[e] = e / Q == e % Q;
    __syncthreads();
    for (int k = STEPS - 1; k >= 0; k--) reflect(whole, k, Q, w, k, factors[k]);
    q += blockIdx.x * ((i64)M * Q);
    for (i64 e = threadIdx.x; e < (i64)M * Q; e += THREADS) q[e] = (T)whole[e];
}
