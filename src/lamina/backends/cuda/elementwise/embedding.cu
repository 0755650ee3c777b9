// Rows of a table by number, and the sum of their gradients in the order of the numbers.
//
// Constants: Index, T, I (i32 or i64), COUNT (indices), ROWS (of the table), WIDTH (of a row).
typedef Wide<T>::type A;

extern "C" __global__ void __launch_bounds__(256) embedding(const T *table, const I *index, T *y)
{
    const Index all = (Index)COUNT * WIDTH, step = (Index)gridDim.x * 256;
    for (Index i = (Index)blockIdx.x * 256 + threadIdx.x; i < all; i += step) {
        const i64 row = index[i / WIDTH];
        y[i] = row >= 0 && row < ROWS ? table[(Index)row * WIDTH + i % WIDTH] : narrow<T>((A)(INFINITY_F - INFINITY_F));
    }
}

// A block per index: the first one that names a row adds up all that name it; the output is zero before. Every thread
// adds its columns up in the order of the indices: bit-equal from run to run.
extern "C" __global__ void __launch_bounds__(128) embedding_grad(const T *g, const I *index, T *table)
{
    __shared__ int known;
    __shared__ I tile[128];
    for (Index n = blockIdx.x; n < (Index)COUNT; n += gridDim.x) {
        const i64 row = index[n];
        if (threadIdx.x == 0) known = row < 0 || row >= ROWS;
        __syncthreads();
        for (Index j = threadIdx.x; j < n && !known; j += 128)
            if (index[j] == row) known = 1;
        __syncthreads();
        const int skip = known;
        __syncthreads();
        if (skip) continue;
        for (Index first = 0; first < (Index)WIDTH; first += 128) {
            const Index column = first + threadIdx.x;
            A sum = 0;
            for (Index j = n; j < (Index)COUNT; j += 128) {
                if (j + threadIdx.x < (Index)COUNT) tile[threadIdx.x] = index[j + threadIdx.x];
                __syncthreads();
                const int here = (Index)COUNT - j < 128 ? (int)((Index)COUNT - j) : 128;
                for (int k = 0; k < here; k++)
                    if (tile[k] == row && column < (Index)WIDTH) sum += (A)widen(g[(j + k) * WIDTH + column]);
                __syncthreads();
            }
            if (column < (Index)WIDTH) table[(Index)row * WIDTH + column] = narrow<T>(sum);
        }
    }
}
