// The gradients of norms whose rows are short and lie one behind the other, in one pass over g and x: LANES lanes of a
// warp hold a row in registers and go on to another one, each adding up dscale and dbias of its own columns.
//
// V: elements per access. COUNT: elements of a row. TURNS: accesses of a lane, the last of which may lie beyond the row.
// ROWS, BLOCKS. CENTRED: with means and a bias. AHEAD: the next row is read before this one is written.
// Y: the type of dx. ADDED: a tensor of x's type is added to it. KEPT: it is written in x's type, too.
// INPUTS, GIVEN_ROWS: of what g is computed, by read_g.
typedef Wide<T>::type A;
#define SUMS (1 + CENTRED)
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)

#ifdef ROW_GRAD
#define PER_WARP (32 / LANES)
#define PER_BLOCK (8 * PER_WARP)
#define IN_ROW(turn) (TURNS * LANES * V == COUNT || ((turn) * LANES + lane) * V < COUNT)

#ifndef INPUTS
#define INPUTS const T *g
#define GIVEN_ROWS g
__device__ __forceinline__ Pack<T, V> read_g(i64 at, INPUTS) { return load<V>(g + at); }
#endif

struct Row {
    Pack<T, V> elements[TURNS], gradients[TURNS];
#if ADDED
    Pack<T, V> added[TURNS];
#endif
    A middle, slope;
};

// Row o as a lane holds it; zeros beyond the last row, and beyond the row's end.
__device__ __forceinline__ void read(Row &row, INPUTS, const T *x, const A *mean, const A *spread, const T *added, i64 o,
                                     int lane)
{
    const bool real = o < ROWS;
    row.middle = row.slope = 0;
    if (real) {
        row.slope = spread[o];
#if CENTRED
        row.middle = mean[o];
#endif
    }
    const i64 base = o * COUNT + lane * V;
    REPEAT(turn, TURNS) {
        if (real && IN_ROW(turn)) {
            row.elements[turn] = load<V>(x + base + turn * LANES * V);
            row.gradients[turn] = read_g(base + turn * LANES * V, GIVEN_ROWS);
#if ADDED
            row.added[turn] = load<V>(added + base + turn * LANES * V);
#endif
        } else {
            REPEAT(k, V) row.elements[turn].v[k] = row.gradients[turn].v[k] = narrow<T>((A)0);
        }
    }
}

// The block's sums of its lanes' `mine`, to to[COUNT].
__device__ __forceinline__ void write_sums(const A (&mine)[TURNS][V], A *to)
{
    __shared__ A part[PER_BLOCK][COUNT];
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    __syncthreads();
    REPEAT(turn, TURNS)
        if (IN_ROW(turn)) { REPEAT(k, V) part[row][(turn * LANES + lane) * V + k] = mine[turn][k]; }
    __syncthreads();
    for (int c = threadIdx.x; c < COUNT; c += 256) {
        A total = part[0][c];
        for (int w = 1; w < PER_BLOCK; ++w) total += part[w][c];
        to[c] = total;
    }
}

// dx = r (w - mean(w) - n mean(w n)) with w = g * scale, n = (x - mean) r; partial[block][sum][COUNT]: of g n and of g.
extern "C" __global__ void __launch_bounds__(256, RESIDENT)
row_grad(INPUTS, const T *x, const A *scale, const A *mean, const A *spread, const T *added, Y *dx, T *kept, A *partial)
{
    const int lane = threadIdx.x % LANES;
    const i64 step = (i64)BLOCKS * PER_BLOCK, begin = (i64)blockIdx.x * PER_BLOCK + threadIdx.x / 32 * PER_WARP;
    A factor[TURNS][V], of_scale[TURNS][V], of_bias[TURNS][V];
    REPEAT(turn, TURNS) {
        REPEAT(k, V) {
            factor[turn][k] = IN_ROW(turn) ? scale[(turn * LANES + lane) * V + k] : (A)0;
            of_scale[turn][k] = 0;
            of_bias[turn][k] = 0;
        }
    }
    i64 o = begin + threadIdx.x % 32 / LANES;
    Row row;
    if (AHEAD) read(row, GIVEN_ROWS, x, mean, spread, added, o, lane);
    for (i64 first = begin; first < ROWS; first += step, o += step) {  // the same rounds for all lanes of a warp
        Row next;
        if (AHEAD) read(next, GIVEN_ROWS, x, mean, spread, added, o + step, lane);
        else read(row, GIVEN_ROWS, x, mean, spread, added, o, lane);
        A sum = 0, inner = 0;
        REPEAT(turn, TURNS) {
            REPEAT(k, V) {
                const A d = (A)widen(row.gradients[turn].v[k]);
                const A n = ((A)widen(row.elements[turn].v[k]) - row.middle) * row.slope;
                of_scale[turn][k] += d * n;
                of_bias[turn][k] += d;
                sum += d * factor[turn][k];
                inner += d * factor[turn][k] * n;
            }
        }
#if CENTRED
        const A level = over_lanes_of<LANES>(sum, Sum()) * (A)(1.0 / COUNT);
#else
        const A level = 0;
#endif
        const A tilt = over_lanes_of<LANES>(inner, Sum()) * (A)(1.0 / COUNT);
        REPEAT(turn, TURNS) {
            const i64 at = o * COUNT + (turn * LANES + lane) * V;
            Pack<T, V> result;
            Pack<Y, V> written;
            REPEAT(k, V) {
                const A n = ((A)widen(row.elements[turn].v[k]) - row.middle) * row.slope;
                const A w = (A)widen(row.gradients[turn].v[k]) * factor[turn][k];
                result.v[k] = narrow<T>((w - level - n * tilt) * row.slope);
#if ADDED
                result.v[k] = narrow<T>((A)widen(result.v[k]) + (A)widen(row.added[turn].v[k]));
#endif
                written.v[k] = narrow<Y>((A)widen(result.v[k]));
            }
            if (o < ROWS && IN_ROW(turn)) {
                store<V>(dx + at, written);
                if (KEPT) store<V>(kept + at, result);
            }
        }
        if (AHEAD) row = next;
    }
    A *to = partial + (i64)blockIdx.x * SUMS * COUNT;
    write_sums(of_scale, to);
#if CENTRED
    write_sums(of_bias, to + COUNT);
#endif
}
#endif

#ifdef ROW_GRAD_TOTALS
// dscale and dbias: 32 columns for each block, whose warps share the partial sums.
extern "C" __global__ void __launch_bounds__(WARPS * 32) row_grad_totals(const A *partial, A *dscale, A *dbias)
{
    __shared__ A part[WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    A total = 0;
    if (column < SUMS * COUNT) {
        _Pragma("unroll 8") for (int b = warp; b < BLOCKS; b += WARPS) total += partial[(i64)b * SUMS * COUNT + column];
    }
    part[warp][lane] = total;
    __syncthreads();
    if (warp > 0 || column >= SUMS * COUNT) return;
    for (int w = 1; w < WARPS; ++w) total += part[w][lane];
    if (column < COUNT) dscale[column] = total;
    else dbias[column - COUNT] = total;
}
#endif
