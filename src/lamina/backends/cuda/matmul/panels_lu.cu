// LU factors with row exchanges of large matrices, and what follows from them: solutions and determinants.
//
// Constants: T, M, N, K (columns of B behind those of A), WIDTH = N + K, PIVOTS = min(M, N), READS_A and READS_B
// (elements from one matrix to the next, 0 where all share one), LEFT (whether columns before a panel follow its
// exchanges), COLUMNS (of B, for a block), IN_SHARED (whether a panel fits into shared memory), THREADS (of a panel's
// block). order [matrices, 2, PANEL]: which row comes to each of a panel's first rows, and to each row that was
// exchanged with them. pivots [matrices, PIVOTS]: from 0.
#include "panels.cuh"
#include "pivot.cuh"

extern "C" __global__ void __launch_bounds__(256) take_in(const T *a, const T *b, f64 *w)
{
    a += MATRIX * (i64)READS_A;
    b += MATRIX * (i64)READS_B;
    w += MATRIX * ((i64)M * WIDTH);
    const i64 step = (i64)gridDim.y * 256;
    for (i64 e = (i64)blockIdx.y * 256 + threadIdx.x; e < (i64)M * WIDTH; e += step) {
        const i64 i = e / WIDTH, j = e % WIDTH;
        w[e] = j < N ? (f64)a[i * N + j] : (f64)b[i * K + j - N];
    }
}

// A pivot's inverse, 0 where it overflows or loses digits.
__device__ __forceinline__ f64 inverse_of(f64 pivot)
{
    const f64 size = fabs(pivot);
    return size > 1e-290 && size < 1e290 ? 1 / pivot : 0.0;
}

// A division takes as long as some forty multiplications.
__device__ __forceinline__ f64 quotient(f64 value, f64 pivot, f64 inverse)
{
    return inverse != 0 ? value * inverse : value / pivot;
}

// A panel's own factor, by one block; info: the 1-based index of the first pivot that is 0. A thread for
// a column of some rows: factors of rows stay undivided until all columns are eliminated, since others read them.
extern "C" __global__ void __launch_bounds__(THREADS) panel_factor(f64 *w, int *order, int *pivots, int *info,
                                                                   int first)
{
    DYNAMIC_SHARED(f64, held);  // [M - first, PANEL + 1] where IN_SHARED, then the rows' numbers
    w += MATRIX * ((i64)M * WIDTH) + (i64)first * WIDTH + first;
    order += MATRIX * (2 * PANEL);
    pivots += MATRIX * (i64)PIVOTS + first;
    const int rows = M - first, count = PIVOTS - first < PANEL ? PIVOTS - first : PANEL;
    const int j = threadIdx.x % PANEL, start = threadIdx.x / PANEL, step = THREADS / PANEL;
    f64 *panel = IN_SHARED ? held : w;
    const int width = IN_SHARED ? PANEL + 1 : WIDTH;
    int *numbers = (int *)(held + (IN_SHARED ? (i64)rows * (PANEL + 1) : 0));
    __shared__ f64 divisors[PANEL], inverses[PANEL];
    info += MATRIX;
    if (first == 0 && threadIdx.x == 0) *info = 0;
    for (int i = start; i < rows && IN_SHARED; i += step)
        if (j < count) panel[(i64)i * width + j] = w[(i64)i * WIDTH + j];
    for (int i = threadIdx.x; i < rows; i += THREADS) numbers[i] = i;
    __syncthreads();
    for (int k = 0; k < count; k++) {
        const int at = pivot_row(panel, k, rows, width);
        if (threadIdx.x < count && at != k)
            exchange(panel[(i64)k * width + threadIdx.x], panel[(i64)at * width + threadIdx.x]);
        if (threadIdx.x == 0) {
            const int number = numbers[k];
            numbers[k] = numbers[at];
            numbers[at] = number;
            pivots[k] = first + at;
        }
        __syncthreads();
        const f64 pivot = panel[(i64)k * width + k];
        const f64 upper = j > k && j < count ? panel[(i64)k * width + j] : 0.0, inverse = inverse_of(pivot);
        if (threadIdx.x == 0) {
            divisors[k] = pivot;
            inverses[k] = inverse;
            if (pivot == 0 && *info == 0) *info = first + k + 1;
        }
        for (int i = k + 1 + start; i < rows && pivot != 0; i += step)
            if (j > k && j < count)
                panel[(i64)i * width + j] -= quotient(panel[(i64)i * width + k], pivot, inverse) * upper;
        __syncthreads();
    }
    for (int i = start; i < rows; i += step)
        if (j < count) {
            const f64 value = panel[(i64)i * width + j];
            const bool divided = j < i && divisors[j] != 0;
            w[(i64)i * WIDTH + j] = divided ? quotient(value, divisors[j], inverses[j]) : value;
        }
    if (threadIdx.x < count) {
        order[threadIdx.x] = numbers[threadIdx.x];
        order[PANEL + threadIdx.x] = numbers[pivots[threadIdx.x] - first];
    }
}

// The panel's exchanges in all other columns, a thread for each; behind the panel its unit lower triangle is solved.
extern "C" __global__ void __launch_bounds__(128) follow(f64 *w, const int *order, const int *pivots, int first)
{
    __shared__ f64 low[PANEL][PANEL], before[PANEL][128];
    w += MATRIX * ((i64)M * WIDTH);
    order += MATRIX * (2 * PANEL);
    pivots += MATRIX * (i64)PIVOTS + first;
    const int count = PIVOTS - first < PANEL ? PIVOTS - first : PANEL, t = threadIdx.x;
    for (int e = t; e < count * count; e += 128)
        low[e / count][e % count] = w[(i64)(first + e / count) * WIDTH + first + e % count];
    __syncthreads();
    int j = blockIdx.y * 128 + t + (LEFT ? 0 : first + count);
    if (LEFT && j >= first) j += count;
    if (j >= WIDTH) return;
    f64 *rows = w + (i64)first * WIDTH + j, u[PANEL];
    for (int p = 0; p < count; p++) before[p][t] = rows[(i64)p * WIDTH];
#pragma unroll
    for (int p = 0; p < PANEL; p++)
        u[p] = p >= count ? 0.0 : order[p] < count ? before[order[p]][t] : rows[(i64)order[p] * WIDTH];
    for (int p = 0; p < count; p++)
        if (pivots[p] >= first + count) w[(i64)pivots[p] * WIDTH + j] = before[order[PANEL + p]][t];
    if (j >= first + count) {
#pragma unroll
        for (int q = 0; q < PANEL; q++)
#pragma unroll
            for (int p = q + 1; p < PANEL; p++) u[p] -= (p < count ? low[p][q] : 0.0) * u[q];
    }
#pragma unroll
    for (int p = 0; p < PANEL; p++)
        if (p < count) rows[(i64)p * WIDTH] = u[p];
}

extern "C" __global__ void __launch_bounds__(256) subtract_product(f64 *w, int first)
{
    w += MATRIX * ((i64)M * WIDTH);
    const int count = PIVOTS - first < PANEL ? PIVOTS - first : PANEL, behind = first + count;
    const f64 *rows = w + (i64)first * WIDTH;
    subtract_tile(w, first, count, behind + blockIdx.y * 64, behind + blockIdx.z * 64,
                  [rows](int p, int j) { return rows[(i64)p * WIDTH + j]; });
}

// X of U X = B, which lies behind U.
extern "C" __global__ void __launch_bounds__(256) solution(const f64 *w, const int *info, T *x)
{
    w += MATRIX * ((i64)M * WIDTH);
    x += MATRIX * ((i64)M * K);
    const bool bad = info[MATRIX] != 0;
    const int column = blockIdx.y * COLUMNS;
    substituted(
        w, WIDTH, true, false,
        [=](int r, int c) { return column + c < K ? w[(i64)r * WIDTH + N + column + c] : 0.0; },
        [=](int r, int c, f64 v) {
            if (column + c < K) x[(i64)r * K + column + c] = (T)(bad ? nan("") : v);
        });
}

extern "C" __global__ void __launch_bounds__(256) give_out(const f64 *w, const int *exchanges, T *found, int *pivots)
{
    w += MATRIX * ((i64)M * N);
    found += MATRIX * ((i64)M * N);
    const i64 step = (i64)gridDim.y * 256, start = (i64)blockIdx.y * 256 + threadIdx.x;
    for (i64 e = start; e < (i64)M * N; e += step) found[e] = (T)w[e];
    exchanges += MATRIX * PIVOTS;
    pivots += MATRIX * PIVOTS;
    for (i64 k = start; k < PIVOTS; k += step) pivots[k] = exchanges[k] + 1;
}


// One of 256 threads' part of the product of the pivots, with the sign of the exchanges: mantissa * 2^power, and its
// logarithm, to which nothing overflows.
struct Part { f64 mantissa, logarithm, sign; i64 power; };

__device__ __forceinline__ void join(Part &whole, const Part &more)
{
    int power = 0;
    whole.mantissa = frexp(whole.mantissa * more.mantissa, &power);
    whole.power += more.power + power;
    whole.logarithm += more.logarithm;
    whole.sign *= more.sign;
}

__device__ __forceinline__ Part of_pivots(const f64 *w, const int *pivots)
{
    __shared__ Part parts[256];
    Part own = {1, 0, 1, 0};
    for (int k = threadIdx.x; k < N; k += 256) {
        const f64 pivot = w[(i64)k * WIDTH + k], turned = pivots[k] == k ? pivot : -pivot;
        join(own, {turned, log(fabs(pivot)), turned > 0 ? 1.0 : turned < 0 ? -1.0 : turned, 0});
    }
    parts[threadIdx.x] = own;
    __syncthreads();
    Part whole = {1, 0, 1, 0};
    for (int i = 0; i < 256 && threadIdx.x == 0; i++) join(whole, parts[i]);
    return whole;
}

extern "C" __global__ void __launch_bounds__(256) determinant(const f64 *w, const int *pivots, const int *info,
                                                              T *found)
{
    const Part whole = of_pivots(w + MATRIX * ((i64)M * WIDTH), pivots + MATRIX * PIVOTS);
    const i64 power = whole.power < -4000 ? -4000 : whole.power > 4000 ? 4000 : whole.power;
    if (threadIdx.x == 0) found[MATRIX] = (T)(info[MATRIX] ? 0.0 : ldexp(whole.mantissa, (int)power));
}

extern "C" __global__ void __launch_bounds__(256) log_determinant(const f64 *w, const int *pivots, const int *info,
                                                                  T *sign, T *size)
{
    const Part whole = of_pivots(w + MATRIX * ((i64)M * WIDTH), pivots + MATRIX * PIVOTS);
    if (threadIdx.x == 0) {
        sign[MATRIX] = (T)(info[MATRIX] ? 0.0 : whole.sign);
        size[MATRIX] = (T)(info[MATRIX] ? log(0.0) : whole.logarithm);
    }
}
