// Copies between two layouts whose innermost axes differ, through tiles in shared memory.
//
// For each batch index the elements form a matrix: ROWS with stride 1 in the target, COLUMNS with stride 1 in the
// source. Constants: Index (type), T, ROWS, COLUMNS, SOURCE_ROW (stride of a row in the source), TARGET_COLUMN
// (stride of a column in the target), BATCHES, and functions source_batch(b), target_batch(b).
#define TILE 32

extern "C" __global__ void __launch_bounds__(256) transpose(const T *source, T *target)
{
    __shared__ T tile[TILE][TILE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];
    const Index across = (COLUMNS + TILE - 1) / TILE, down = (ROWS + TILE - 1) / TILE;
    const Index tiles = across * down * (Index)BATCHES;
    const int x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (Index t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Index column = t % across * TILE, rest = t / across, row = rest % down * TILE, batch = rest / down;
        const T *from = source + source_batch(batch);
        T *to = target + target_batch(batch);
#pragma unroll
        for (int k = 0; k < TILE; k += 8)
            if (row + y + k < ROWS && column + x < COLUMNS)
                tile[y + k][x] = from[(row + y + k) * (Index)SOURCE_ROW + column + x];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; k += 8)
            if (column + y + k < COLUMNS && row + x < ROWS)
                to[(column + y + k) * (Index)TARGET_COLUMN + row + x] = tile[x][y + k];
        __syncthreads();
    }
}
