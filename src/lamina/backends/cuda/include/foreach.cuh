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

// Where this thread begins in its tensor, and how far all its threads come in one access each. The block behind the
// tensor's last one is the next tensor's first; behind the last tensor it is gridDim.
struct Share {
    i64 begin, stride;
    __device__ __forceinline__ Share(const Table &table, const u64 *row)
    {
        const u64 end = row == table.v + (PARTS - 1) * WIDTH ? (u64)gridDim.x : row[WIDTH];
        begin = ((i64)((u64)blockIdx.x - row[0]) * 256 + threadIdx.x) * V;
        stride = (i64)(end - row[0]) * 256 * V;
    }
};
