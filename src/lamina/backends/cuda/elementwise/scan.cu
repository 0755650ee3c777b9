// What the elements up to each one along an axis combine to: a scan.
//
// Constants: T, Index, ROWS (scans), SIZE (of the axis), INNER (elements between two neighbours of the axis), EACH
// (elements of a thread in a tile), KIND (0 sum, 1 product, 2 largest, 3 smallest, 4 logarithm of the sum of exp),
// NEUTRAL (what changes nothing).
typedef Wide<T>::type A;

__device__ __forceinline__ A combined(A a, A b)
{
#if KIND == 0
    return a + b;
#elif KIND == 1
    return a * b;
#elif KIND == 2
    return larger(a, b);
#elif KIND == 3
    return smaller(a, b);
#else
    return log_sum(a, b);
#endif
}

__device__ __forceinline__ Index first_of(Index row)
{
    return row / (Index)INNER * ((Index)SIZE * INNER) + row % (Index)INNER;
}

// A thread per scan, for neighbours in memory that belong to different scans.
extern "C" __global__ void __launch_bounds__(256) scan_columns(const T *x, T *y)
{
    FOR_EACH (row, ROWS) {
        A sum = (A)NEUTRAL;
        Index at = first_of(row);
        for (Index i = 0; i < (Index)SIZE; i++, at += INNER) {
            sum = combined(sum, (A)widen(x[at]));
            y[at] = narrow<T>(sum);
        }
    }
}

// A block per scan, in tiles of 256 * EACH: each thread combines its own, the threads' results are scanned in log2(256)
// steps (Hillis and Steele 1986), and the result of all tiles before is carried along.
extern "C" __global__ void __launch_bounds__(256) scan_rows(const T *x, T *y)
{
    __shared__ A part[2][256];
    const int t = threadIdx.x;
    for (Index row = blockIdx.x; row < (Index)ROWS; row += gridDim.x) {
        const Index start = first_of(row);
        A carry = (A)NEUTRAL;
        for (Index tile = 0; tile < (Index)SIZE; tile += 256 * EACH) {
            const Index mine = tile + t * EACH;
            A own[EACH], sum = (A)NEUTRAL;
            for (int k = 0; k < EACH; k++) {
                if (mine + k < (Index)SIZE) sum = combined(sum, (A)widen(x[start + (mine + k) * INNER]));
                own[k] = sum;
            }
            part[0][t] = sum;
            __syncthreads();
            int now = 0;
            for (int step = 1; step < 256; step <<= 1, now = 1 - now) {
                part[1 - now][t] = t >= step ? combined(part[now][t - step], part[now][t]) : part[now][t];
                __syncthreads();
            }
            const A before = t ? combined(carry, part[now][t - 1]) : carry;
            carry = combined(carry, part[now][255]);
            for (int k = 0; k < EACH; k++)
                if (mine + k < (Index)SIZE) y[start + (mine + k) * INNER] = narrow<T>(combined(before, own[k]));
            __syncthreads();  // all have read the parts before the next tile writes them
        }
    }
}
