// Orthogonal and triangular factors of large matrices: a panel's reflections are applied to other columns as one,
// I - V T V^T (R. Schreiber, C. Van Loan: "A storage-efficient WY representation for products of Householder
// transformations", 1989).
//
// Constants: T, M, N, WIDTH = N, STEPS = min(M, N), Q (columns of Q), R (rows of R), IN_SHARED (whether a panel fits
// into shared memory), THREADS (of a panel's block). w: V below the diagonal (its elements on the diagonal are 1), R
// above. triangles [matrices, ROWS, 32]: each panel's T, from the row of its first column on.
#include "panels.cuh"

#define MOST 32
#define OF_PANEL(triangles, first) ((triangles) + (MATRIX * ROWS + (first)) * MOST)

extern "C" __global__ void __launch_bounds__(256) take_in(const T *a, f64 *w, f64 *q)
{
    a += MATRIX * ((i64)M * N);
    w += MATRIX * ((i64)M * N);
    q += MATRIX * ((i64)M * Q);
    const i64 step = (i64)gridDim.y * 256, start = (i64)blockIdx.y * 256 + threadIdx.x;
    for (i64 e = start; e < (i64)M * N; e += step) w[e] = (f64)a[e];
    for (i64 e = start; e < (i64)M * Q; e += step) q[e] = e / Q == e % Q;
}

// The sum over all threads.
__device__ __forceinline__ f64 summed(f64 own)
{
    __shared__ f64 parts[THREADS / 32];
    for (int lanes = 16; lanes; lanes /= 2) own += shuffle_xor(own, lanes);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
    __syncthreads();
    f64 whole = 0;
    for (int warp = 0; warp < THREADS / 32; warp++) whole += parts[warp];
    __syncthreads();
    return whole;
}

// A panel's reflections and their T, by one block: a thread for a column of some rows.
extern "C" __global__ void __launch_bounds__(THREADS) panel_factor(f64 *w, f64 *triangles, int first)
{
    DYNAMIC_SHARED(f64, held);  // [M - first, PANEL + 1] where IN_SHARED
    __shared__ f64 dots[THREADS / 32][PANEL], products[PANEL][PANEL + 1], factors[PANEL];
    w += MATRIX * ((i64)M * WIDTH) + (i64)first * WIDTH + first;
    triangles = OF_PANEL(triangles, first);
    const int rows = M - first, count = STEPS - first < PANEL ? STEPS - first : PANEL;
    const int j = threadIdx.x % PANEL, start = threadIdx.x / PANEL, step = THREADS / PANEL;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    f64 *panel = IN_SHARED ? held : w;
    const int width = IN_SHARED ? PANEL + 1 : WIDTH;
    for (int i = start; i < rows && IN_SHARED; i += step)
        if (j < count) panel[(i64)i * width + j] = w[(i64)i * WIDTH + j];
    __syncthreads();
    for (int k = 0; k < count; k++) {
        f64 own = 0;
        for (int i = k + 1 + threadIdx.x; i < rows; i += THREADS)
            own += panel[(i64)i * width + k] * panel[(i64)i * width + k];
        const f64 below = summed(own), top = panel[(i64)k * width + k];
        // A column that is zero below its diagonal is not reflected, as in LAPACK.
        const f64 length = sqrt(top * top + below), turned = top < 0 ? length : -length;
        const f64 factor = below == 0 ? 0 : (turned - top) / turned;
        __syncthreads();
        for (int i = k + 1 + threadIdx.x; i < rows && factor != 0; i += THREADS)
            panel[(i64)i * width + k] /= top - turned;
        if (threadIdx.x == 0) {
            factors[k] = factor;
            if (factor != 0) panel[(i64)k * width + k] = turned;
        }
        __syncthreads();
        const bool behind = j > k && j < count;
        f64 dot = start == 0 && behind ? panel[(i64)k * width + j] : 0.0;
        for (int i = k + 1 + start; i < rows; i += step)
            if (behind) dot += panel[(i64)i * width + k] * panel[(i64)i * width + j];
        for (int lanes = PANEL; lanes < 32; lanes *= 2) dot += shuffle_xor(dot, lanes);
        if (lane < PANEL) dots[warp][j] = dot;
        __syncthreads();
        dot = 0;
        for (int other = 0; other < THREADS / 32; other++) dot += dots[other][j];
        dot *= factor;
        if (start == 0 && behind) panel[(i64)k * width + j] -= dot;
        for (int i = k + 1 + start; i < rows; i += step)
            if (behind) panel[(i64)i * width + j] -= panel[(i64)i * width + k] * dot;
        __syncthreads();
    }
    for (int pair = warp; pair < count * count; pair += THREADS / 32) {  // V^T V above its diagonal
        const int q = pair / count, k = pair % count;
        if (q >= k) continue;
        f64 sum = lane == 0 ? panel[(i64)k * width + q] : 0.0;
        for (int i = k + 1 + lane; i < rows; i += 32) sum += panel[(i64)i * width + q] * panel[(i64)i * width + k];
        for (int lanes = 16; lanes; lanes /= 2) sum += shuffle_xor(sum, lanes);
        if (lane == 0) products[q][k] = sum;
    }
    for (int i = start; i < rows && IN_SHARED; i += step)
        if (j < count) w[(i64)i * WIDTH + j] = panel[(i64)i * width + j];
    __syncthreads();
    if (threadIdx.x >= PANEL) return;
    f64 *row = triangles + threadIdx.x * MOST;  // column k of T follows from those before it, each row from itself
    for (int k = 0; k < PANEL; k++) {
        f64 sum = 0;
        for (int r = threadIdx.x; r < k && k < count; r++) sum += row[r] * products[r][k];
        row[k] = k >= count || k < (int)threadIdx.x ? 0.0 : k == (int)threadIdx.x ? factors[k] : -factors[k] * sum;
    }
}

// 32 columns of x [M, width], a panel's first row and all below: V T V^T x is subtracted, for `back` V T^T V^T x.
__device__ __forceinline__ void reflect(const f64 *w, const f64 *triangle, f64 *x, int width, int first, int column,
                                        bool back)
{
    __shared__ f64 v[32][33], part[32][33], sums[PANEL][33];
    const int count = STEPS - first < PANEL ? STEPS - first : PANEL;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, j = column + lane;
    f64 sum[4] = {};
    for (int pass = 0; pass < 2; pass++)
        for (int row = first; row < M; row += 32) {
            for (int r = warp; r < 32; r += 8) {
                const int i = row + r, own = i - first;
                const bool zero = i >= M || lane >= count || own < lane;
                v[r][lane] = zero ? 0.0 : own == lane ? 1.0 : w[(i64)i * WIDTH + first + lane];
                part[r][lane] = i < M && j < width ? x[(i64)i * width + j] : 0.0;
            }
            __syncthreads();
            if (pass == 0) {
                for (int r = 0; r < 32; r++)
                    for (int m = 0; m < PANEL / 8; m++) sum[m] += v[r][warp + 8 * m] * part[r][lane];
            } else {
                for (int m = 0; m < 4; m++) {
                    const int r = warp + 8 * m, i = row + r;
                    f64 moved = 0;
                    for (int p = 0; p < PANEL; p++) moved += v[r][p] * sums[p][lane];
                    if (i < M && j < width) x[(i64)i * width + j] = part[r][lane] - moved;
                }
            }
            __syncthreads();
            if (pass == 0 && row + 32 >= M) {
                for (int m = 0; m < PANEL / 8; m++) sums[warp + 8 * m][lane] = sum[m];
                __syncthreads();
                for (int m = 0; m < PANEL / 8; m++) {
                    const int p = warp + 8 * m;
                    sum[m] = 0;
                    for (int q = 0; q < PANEL; q++)
                        sum[m] += (back ? triangle[q * MOST + p] : triangle[p * MOST + q]) * sums[q][lane];
                }
                __syncthreads();
                for (int m = 0; m < PANEL / 8; m++) sums[warp + 8 * m][lane] = sum[m];
                __syncthreads();
            }
        }
}

extern "C" __global__ void __launch_bounds__(256) reflect_rest(f64 *w, const f64 *triangles, int first)
{
    const int count = STEPS - first < PANEL ? STEPS - first : PANEL;
    w += MATRIX * ((i64)M * WIDTH);
    reflect(w, OF_PANEL(triangles, first), w, WIDTH, first, first + count + blockIdx.y * 32, true);
}

// Columns before `first` of the unit matrix are zero in the rows that are reflected.
extern "C" __global__ void __launch_bounds__(256) reflect_unit(const f64 *w, const f64 *triangles, f64 *q, int first)
{
    reflect(w + MATRIX * ((i64)M * WIDTH), OF_PANEL(triangles, first), q + MATRIX * ((i64)M * Q), Q, first,
            first + blockIdx.y * 32, false);
}

extern "C" __global__ void __launch_bounds__(256) give_r(const f64 *w, T *r)
{
    w += MATRIX * ((i64)M * WIDTH);
    r += MATRIX * ((i64)R * N);
    const i64 step = (i64)gridDim.y * 256;
    for (i64 e = (i64)blockIdx.y * 256 + threadIdx.x; e < (i64)R * N; e += step)
        r[e] = e / N > e % N ? (T)0 : (T)w[e];
}

extern "C" __global__ void __launch_bounds__(256) give_q(const f64 *held, T *q)
{
    held += MATRIX * ((i64)M * Q);
    q += MATRIX * ((i64)M * Q);
    const i64 step = (i64)gridDim.y * 256;
    for (i64 e = (i64)blockIdx.y * 256 + threadIdx.x; e < (i64)M * Q; e += step) q[e] = (T)held[e];
}
