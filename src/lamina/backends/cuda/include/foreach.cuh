// Many tensors in one launch. The table has a row of WIDTH numbers for each of PARTS tensors: the first block that
// works on it, its number of elements, addresses.
struct Table { u64 v[PARTS * WIDTH]; };

// The row of the tensor that this block works on: the last one that does not begin after it.
__device__ __forceinline__ const u64 *row_of(const Table &table)
{
    int low = 0, high = PARTS - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (table.v[middle * WIDTH] <= (u64)blockIdx.x) low = middle;
        else high = middle - 1;
    }
    return table.v + low * WIDTH;
}

// The block behind the tensor's last one: the next tensor's first, or gridDim behind the last tensor.
__device__ __forceinline__ i64 end_block(const Table &table, const u64 *row)
{
    return row == table.v + (PARTS - 1) * WIDTH ? (i64)gridDim.x : (i64)row[WIDTH];
}

// Where this thread begins in its tensor, and how far all its threads come in one access each.
struct Share {
    i64 begin, stride;
    __device__ __forceinline__ Share(const Table &table, const u64 *row)
    {
        begin = ((i64)((u64)blockIdx.x - row[0]) * 256 + threadIdx.x) * V;
        stride = (end_block(table, row) - (i64)row[0]) * 256 * V;
    }
};
