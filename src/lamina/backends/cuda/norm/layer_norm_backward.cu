// The gradients of norms whose rows are short and lie one behind the other, in one pass over g and x: a warp holds a row
// in registers and goes on to the next one, each lane adding up dscale and dbias of its own columns.
//
// V: elements per access. COUNT: elements of a row, TURNS * 32 * V. ROWS, BLOCKS. CENTRED: with means and a bias.
typedef Wide<T>::type A;
#define SUMS (1 + CENTRED)
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)

#ifdef ROW_GRAD
// The block's sums of its warps' `mine`, to to[COUNT].
__device__ __forceinline__ void write_sums(const A (&mine)[TURNS][V], A *to)
{
    __shared__ A part[8][COUNT];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    REPEAT(turn, TURNS) { REPEAT(k, V) part[warp][(turn * 32 + lane) * V + k] = mine[turn][k]; }
    __syncthreads();
    for (int c = threadIdx.x; c < COUNT; c += 256) {
        A total = part[0][c];
        for (int w = 1; w < 8; ++w) total += part[w][c];
        to[c] = total;
    }
}

// dx = r (w - mean(w) - n mean(w n)) with w = g * scale, n = (x - mean) r; partial[block][sum][COUNT]: of g n and of g.
extern "C" __global__ void __launch_bounds__(256, RESIDENT)
row_grad(const T *g, const T *x, const A *scale, const A *mean, const A *spread, T *dx, A *partial)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    A factor[TURNS][V], of_scale[TURNS][V], of_bias[TURNS][V];
    REPEAT(turn, TURNS) {
        REPEAT(k, V) {
            factor[turn][k] = scale[(turn * 32 + lane) * V + k];
            of_scale[turn][k] = 0;
            of_bias[turn][k] = 0;
        }
    }
    for (i64 o = (i64)blockIdx.x * 8 + warp; o < ROWS; o += (i64)BLOCKS * 8) {
        const i64 base = o * COUNT + lane * V;
        Pack<T, V> elements[TURNS], gradients[TURNS];
        REPEAT(turn, TURNS) {
            elements[turn] = load<V>(x + base + turn * 32 * V);
            gradients[turn] = load<V>(g + base + turn * 32 * V);
        }
        const A slope = spread[o];
#if CENTRED
        const A middle = mean[o];
#else
        const A middle = 0;
#endif
        A sum = 0, inner = 0;
        REPEAT(turn, TURNS) {
            REPEAT(k, V) {
                const A d = (A)widen(gradients[turn].v[k]);
                const A n = ((A)widen(elements[turn].v[k]) - middle) * slope;
                of_scale[turn][k] += d * n;
                of_bias[turn][k] += d;
                sum += d * factor[turn][k];
                inner += d * factor[turn][k] * n;
            }
        }
#if CENTRED
        const A level = over_warp(sum, Sum()) * (A)(1.0 / COUNT);
#else
        const A level = 0;
#endif
        const A tilt = over_warp(inner, Sum()) * (A)(1.0 / COUNT);
        REPEAT(turn, TURNS) {
            Pack<T, V> result;
            REPEAT(k, V) {
                const A n = ((A)widen(elements[turn].v[k]) - middle) * slope;
                const A w = (A)widen(gradients[turn].v[k]) * factor[turn][k];
                result.v[k] = narrow<T>((w - level - n * tilt) * slope);
            }
            store<V>(dx + base + turn * 32 * V, result);
        }
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
extern "C" __global__ void __launch_bounds__(256) row_grad_totals(const A *partial, A *dscale, A *dbias)
{
    __shared__ A part[8][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    A total = 0;
    _Pragma("unroll 8") for (int b = warp; b < BLOCKS; b += 8) total += partial[(i64)b * SUMS * COUNT + column];
    part[warp][lane] = total;
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < 8; ++w) total += part[w][lane];
    if (column < COUNT) dscale[column] = total;
    else dbias[column - COUNT] = total;
}
#endif
