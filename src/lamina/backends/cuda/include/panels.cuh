// Factors of large matrices by panels of PANEL columns (8, 16 or 32), in float64: several blocks for each matrix,
// which is the first axis of the grid. Between kernels a matrix is w [M, WIDTH], row-major.
#pragma once
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif
#define MATRIX ((i64)blockIdx.x)

// The product of a panel's rows [., PANEL] and of `right` is subtracted from a tile of 64 x 64 behind the panel.
//
// right(p, j): row p of the panel's own rows, at column j of w.
template <class Right>
__device__ __forceinline__ void subtract_tile(f64 *w, int first, int count, int row0, int column0, Right right)
{
    __shared__ f64 left[64][PANEL + 1], above[PANEL][64];
    for (int e = threadIdx.x; e < 64 * PANEL; e += 256) {
        const int i = row0 + e / PANEL, p = e % PANEL;
        left[e / PANEL][p] = i < M && p < count ? w[(i64)i * WIDTH + first + p] : 0.0;
    }
    for (int e = threadIdx.x; e < 64 * PANEL; e += 256) {
        const int p = e / 64, j = column0 + e % 64;
        above[p][e % 64] = j < WIDTH && p < count ? right(p, j) : 0.0;
    }
    __syncthreads();
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    f64 sum[4][4] = {};
    for (int p = 0; p < count; p++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) sum[r][c] += left[ty + 16 * r][p] * above[p][tx + 16 * c];
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int i = row0 + ty + 16 * r, j = column0 + tx + 16 * c;
            if (i < M && j < WIDTH) w[(i64)i * WIDTH + j] -= sum[r][c];
        }
}

// X of A X = B by substitution: 256 threads for COLUMNS columns. a: a triangle [M, M] with rows `width` apart.
//
// Of a panel's rows the part that is known is subtracted first, a warp for a row; then its own triangle is solved, a
// thread for a column.
template <class E, class Given, class Made>
__device__ __forceinline__ void substituted(const E *a, int width, bool upper, bool unit, Given given, Made made)
{
    DYNAMIC_SHARED(f64, x);  // [COLUMNS, M]
    __shared__ f64 own[PANEL][PANEL + 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, panels = (M + PANEL - 1) / PANEL;
    for (int turn = 0; turn < panels; turn++) {
        const int first = (upper ? panels - 1 - turn : turn) * PANEL, count = M - first < PANEL ? M - first : PANEL;
        const int from = upper ? first + count : 0, to = upper ? M : first;
        for (int r = first + warp; r < first + count; r += 8) {
            f64 sum[COLUMNS] = {};
            for (int j = from + lane; j < to; j += 32) {
                const f64 factor = (f64)a[(i64)r * width + j];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) sum[c] += factor * x[(i64)c * M + j];
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                for (int lanes = 16; lanes; lanes /= 2) sum[c] += shuffle_xor(sum[c], lanes);
                if (lane == c) x[(i64)c * M + r] = given(r, c) - sum[c];
            }
        }
        for (int e = threadIdx.x; e < count * count; e += 256)
            own[e / count][e % count] = (f64)a[(i64)(first + e / count) * width + first + e % count];
        __syncthreads();
        if (threadIdx.x < COLUMNS) {
            f64 *column = x + (i64)threadIdx.x * M + first;
            for (int step = 0; step < count; step++) {
                const int k = upper ? count - 1 - step : step;
                const f64 value = unit ? column[k] : column[k] / own[k][k];
                column[k] = value;
                for (int i = upper ? 0 : k + 1; i < (upper ? k : count); i++) column[i] -= own[i][k] * value;
            }
        }
        __syncthreads();
    }
    for (int e = threadIdx.x; e < COLUMNS * M; e += 256)
        made(e / COLUMNS, e % COLUMNS, x[(i64)(e % COLUMNS) * M + e / COLUMNS]);
}
