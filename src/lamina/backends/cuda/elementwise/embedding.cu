// Rows of a table by number, and the sums of their gradients.
//
// Constants: Index, T, I (i32 or i64), COUNT (indices), ROWS (of the table), WIDTH (of a row); of the gradient: CHUNK
// (indices of a block).
typedef Wide<T>::type A;

extern "C" __global__ void __launch_bounds__(256) embedding(const T *table, const I *index, T *y)
{
    const Index all = (Index)COUNT * WIDTH, step = (Index)gridDim.x * 256;
    for (Index i = (Index)blockIdx.x * 256 + threadIdx.x; i < all; i += step) {
        const i64 row = index[i / WIDTH];
        y[i] = row >= 0 && row < ROWS ? table[(Index)row * WIDTH + i % WIDTH] : narrow<T>((A)(INFINITY_F - INFINITY_F));
    }
}

#ifdef CHUNK
#define CHUNKS ((COUNT + CHUNK - 1) / CHUNK)
#define PARTS ((WIDTH + 127) / 128)

// The gradient: indices in order, with their places, are cut into chunks. A block adds the runs of equal indices in a
// chunk up, for 128 columns. A run that lies in one chunk is a row of the table (zero before); of others the sum in the
// chunk is kept: in `last` where the run begins there, in `first` where it comes from the chunk before. Sums are in
// the order of the places within a chunk, and of the chunks: bit-equal from run to run.
extern "C" __global__ void __launch_bounds__(128)
embedding_grad(const T *g, const u32 *rows, const u32 *places, T *table, A *first, A *last)
{
    __shared__ u32 row[CHUNK + 1], place[CHUNK];
    for (Index block = blockIdx.x; block < (Index)CHUNKS * PARTS; block += gridDim.x) {
        const Index chunk = block / PARTS, start = chunk * CHUNK, column = block % PARTS * 128 + threadIdx.x;
        const int count = (Index)COUNT - start < CHUNK ? (int)((Index)COUNT - start) : CHUNK;
        __syncthreads();
        if (threadIdx.x < count) place[threadIdx.x] = places[start + threadIdx.x];
        if (threadIdx.x <= count)
            row[threadIdx.x] = start + threadIdx.x < (Index)COUNT ? rows[start + threadIdx.x] : ~0u;
        __syncthreads();
        if (column >= (Index)WIDTH) continue;
        bool begun = start == 0 || rows[start - 1] != row[0];
        A sum = 0;
        for (int k = 0; k < count; k++) {
            sum += (A)widen(g[(Index)place[k] * WIDTH + column]);
            const bool more = row[k + 1] == row[k];
            if (more && k + 1 < count) continue;
            if (!begun)
                first[chunk * WIDTH + column] = sum;
            else if (more)
                last[chunk * WIDTH + column] = sum;
            else if (row[k] < ROWS)
                table[(Index)row[k] * WIDTH + column] = narrow<T>(sum);
            sum = 0;
            begun = true;
        }
    }
}

// A thread per chunk and column: the run that begins in the chunk and ends in a later one.
extern "C" __global__ void __launch_bounds__(256)
embedding_grad_runs(const u32 *rows, const A *first, const A *last, T *table)
{
    FOR_EACH (i, (Index)(CHUNKS - 1) * WIDTH) {
        const Index chunk = i / WIDTH, column = i % WIDTH, start = chunk * CHUNK, end = start + CHUNK;
        const u32 row = rows[end - 1];
        if (row >= ROWS || rows[end] != row || (start && rows[start - 1] == row)) continue;
        Index low = chunk + 1, high = CHUNKS;  // the first chunk that begins with another row
        while (low < high) {
            const Index middle = low + (high - low) / 2;
            if (rows[middle * CHUNK] == row) low = middle + 1;
            else high = middle;
        }
        A sum = last[i];
        for (Index next = chunk + 1; next < low; next++) sum += first[next * WIDTH + column];
        table[(Index)row * WIDTH + column] = narrow<T>(sum);
    }
}
#endif
