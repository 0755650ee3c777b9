// One dtype to another over many dense tensors. Constants: S (from), T (to), V (elements per access), PARTS, WIDTH.
#include "foreach.cuh"

extern "C" __global__ void __launch_bounds__(256) cast_group(const __grid_constant__ Table table)
{
    const u64 *row = row_of(table);
    const Share share(table, row);
    const i64 count = (i64)row[1];
    const S *x = (const S *)row[2];
    T *y = (T *)row[3];
    for (i64 i = share.begin; i < count; i += share.stride) {
        if (i + V <= count) {
            const auto values = load<V>(x + i);
            Pack<T, V> rounded;
#pragma unroll
            for (int k = 0; k < V; ++k) rounded.v[k] = narrow<T>(widen(values.v[k]));
            store<V>(y + i, rounded);
        } else {
            for (i64 k = i; k < count; ++k) y[k] = narrow<T>(widen(x[k]));
        }
    }
}
