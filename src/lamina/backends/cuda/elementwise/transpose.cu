// Copies between two layouts whose innermost axes differ, through tiles in shared memory.
//
// For each batch index the elements form a matrix: ROWS with stride 1 in the target, COLUMNS with stride 1 in the
// source. Constants: Index (type), T. Of the parameter SIZES: ROWS, COLUMNS, SOURCE_ROW (stride of a row in the source),
// TARGET_COLUMN (stride of a column in the target), ACROSS (tiles along a row), DOWN (along a column), TILES in all,
// by_across(n) and by_down(n), quotients of these, and offsets source_batch(b), target_batch(b).
#define TILE 32

extern "C" __global__ void __launch_bounds__(256) transpose(const T *source, T *target, SIZES)
{
    __shared__ T tile[TILE][TILE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];
    const int x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (Index t = blockIdx.x; t < TILES; t += gridDim.x) {
        const Index rest = by_across(t), batch = by_down(rest);
        const Index column = (t - rest * ACROSS) * TILE, row = (rest - batch * DOWN) * TILE;
        const T *from = source + source_batch(batch);
        T *to = target + target_batch(batch);
#pragma unroll
        for (int k = 0; k < TILE; k += 8)
            if (row + y + k < ROWS && column + x < COLUMNS)
                tile[y + k][x] = from[(row + y + k) * SOURCE_ROW + column + x];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; k += 8)
            if (column + y + k < COLUMNS && row + x < ROWS)
                to[(column + y + k) * TARGET_COLUMN + row + x] = tile[x][y + k];
        __syncthreads();
    }
}
