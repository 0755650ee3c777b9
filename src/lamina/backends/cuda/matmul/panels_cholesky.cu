// Cholesky's factor of large matrices, and triangular systems.
//
// Constants: T, M, K (columns of B), WIDTH = M, UPPER, UNIT (of triangles), READS_A and READS_B (elements from one
// matrix to the next, 0 where all share one), COLUMNS (of B, for a block). diagonal [matrices, M, PANEL]: the
// triangles of the panels' own rows.
#include "panels.cuh"

extern "C" __global__ void __launch_bounds__(256) take_in(const T *a, f64 *w, int *info)
{
    a += MATRIX * ((i64)M * M);
    w += MATRIX * ((i64)M * M);
    const i64 step = (i64)gridDim.y * 256, start = (i64)blockIdx.y * 256 + threadIdx.x;
    for (i64 e = start; e < (i64)M * M; e += step) w[e] = (f64)a[e];
    if (start == 0) info[MATRIX] = 0;
}

// A panel's columns: every block has the triangle of the panel's own rows made, then a row behind it for each thread.
extern "C" __global__ void __launch_bounds__(128) panel_factor(f64 *w, f64 *diagonal, int *info, int first)
{
    __shared__ f64 own[PANEL][PANEL + 1];
    w += MATRIX * ((i64)M * M) + first;
    const int count = M - first < PANEL ? M - first : PANEL, t = threadIdx.x;
    for (int e = t; e < PANEL * PANEL; e += 128) {
        const int i = e / PANEL, j = e % PANEL;
        own[i][j] = j <= i && i < count ? w[(i64)(first + i) * M + j] : 0.0;
    }
    __syncthreads();
    int bad = 0;
    for (int k = 0; k < count; k++) {  // a thread for a row
        f64 sums[2] = {};
        for (int q = 0; q < k && t < PANEL; q++) sums[q % 2] += own[t][q] * own[k][q];
        if (t >= k && t < count) own[t][k] -= sums[0] + sums[1];
        __syncthreads();
        const f64 pivot = own[k][k], root = pivot > 0 ? sqrt(pivot) : nan("");
        if (!(pivot > 0) && !bad) bad = first + k + 1;
        __syncthreads();
        if (t >= k && t < count) own[t][k] = t == k ? root : own[t][k] / root;
        __syncthreads();
    }
    if (blockIdx.y == 0) {
        diagonal += (MATRIX * M + first) * PANEL;
        for (int e = t; e < count * PANEL; e += 128) diagonal[e] = own[e / PANEL][e % PANEL];
        if (t == 0 && bad && info[MATRIX] == 0) info[MATRIX] = bad;
    }
    const int i = first + PANEL + blockIdx.y * 128 + t;
    if (i >= M) return;
    f64 *row = w + (i64)i * M, x[PANEL];
#pragma unroll
    for (int p = 0; p < PANEL; p++) x[p] = row[p];
#pragma unroll
    for (int q = 0; q < PANEL; q++) {
        x[q] /= own[q][q];
#pragma unroll
        for (int p = q + 1; p < PANEL; p++) x[p] -= own[p][q] * x[q];
    }
#pragma unroll
    for (int p = 0; p < PANEL; p++) row[p] = x[p];
}

extern "C" __global__ void __launch_bounds__(256) subtract_product(f64 *w, int first)
{
    if (blockIdx.z > blockIdx.y) return;  // above the diagonal
    w += MATRIX * ((i64)M * M);
    const int behind = first + PANEL;
    const f64 *columns = w + first;
    subtract_tile(w, first, PANEL, behind + blockIdx.y * 64, behind + blockIdx.z * 64,
                  [columns](int p, int j) { return columns[(i64)j * M + p]; });
}

extern "C" __global__ void __launch_bounds__(256) give_out(const f64 *w, const f64 *diagonal, T *low)
{
    w += MATRIX * ((i64)M * M);
    diagonal += MATRIX * ((i64)M * PANEL);
    low += MATRIX * ((i64)M * M);
    const i64 step = (i64)gridDim.y * 256;
    for (i64 e = (i64)blockIdx.y * 256 + threadIdx.x; e < (i64)M * M; e += step) {
        const i64 i = e / M, j = e % M;
        low[e] = (T)(j > i ? 0.0 : i / PANEL == j / PANEL ? diagonal[i * PANEL + j % PANEL] : w[e]);
    }
}

extern "C" __global__ void __launch_bounds__(256) triangular_solve(const T *a, const T *b, T *x)
{
    b += MATRIX * READS_B;
    x += MATRIX * ((i64)M * K);
    const int column = blockIdx.y * COLUMNS;
    substituted(
        a + MATRIX * READS_A, M, UPPER, UNIT,
        [=](int r, int c) { return column + c < K ? (f64)b[(i64)r * K + column + c] : 0.0; },
        [=](int r, int c, f64 v) { if (column + c < K) x[(i64)r * K + column + c] = (T)v; });
}
