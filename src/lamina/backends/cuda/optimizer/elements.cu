// An element, or a number, of each of many dense tensors. Constants: V (elements per access), BLOCKS (of all parts), R
// (results), PARTS, WIDTH. Of what is read: LOCATE (pointers, and numbers, of a row), LOAD (V elements of each operand
// from i on), PACKED (`made`, of the k-th of these), SINGLE (`made`, of element k), RESULT (where results go).
// Of what makes one number of each: A (accumulator), F, NEUTRAL, PRE(v), POST(v).
#include "foreach.cuh"

#ifdef ELEMENTS
extern "C" __global__ void __launch_bounds__(256) foreach_elements(const __grid_constant__ Table table)
{
    const u64 *row = row_of(table);
    const Share share(table, row);
    const i64 count = (i64)row[1];
    R *y = (R *)RESULT;
    LOCATE
    for (i64 i = share.begin; i < count; i += share.stride) {
        if (i + V <= count) {
            LOAD
            Pack<R, V> results;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                PACKED
                results.v[k] = made;
            }
            store<V>(y + i, results);
        } else {
            for (i64 k = i; k < count; ++k) {
                SINGLE
                y[k] = made;
            }
        }
    }
}
#endif

#ifdef SHARES
// What each block's share of its tensor gives.
extern "C" __global__ void __launch_bounds__(256) foreach_shares(const __grid_constant__ Table table, A *partial)
{
    const u64 *row = row_of(table);
    const Share share(table, row);
    const i64 count = (i64)row[1];
    const F combine;
    A sum = NEUTRAL;
    LOCATE
    for (i64 i = share.begin; i < count; i += share.stride) {
        if (i + V <= count) {
            LOAD
#pragma unroll
            for (int k = 0; k < V; ++k) {
                PACKED
                const auto v = widen(made);
                sum = combine(sum, (A)PRE(v));
            }
        } else {
            for (i64 k = i; k < count; ++k) {
                SINGLE
                const auto v = widen(made);
                sum = combine(sum, (A)PRE(v));
            }
        }
    }
    sum = over_block(sum, combine, (A)NEUTRAL);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
#endif

#ifdef TOTALS
// What the shares of each tensor give together: a warp for each.
extern "C" __global__ void __launch_bounds__(32) foreach_totals(const __grid_constant__ Table table, const A *partial)
{
    const u64 *row = table.v + (u64)blockIdx.x * WIDTH;
    const i64 end = blockIdx.x + 1 == PARTS ? (i64)BLOCKS : (i64)row[WIDTH];
    const F combine;
    A sum = NEUTRAL;
    for (i64 i = (i64)row[0] + threadIdx.x; i < end; i += 32) sum = combine(sum, partial[i]);
    sum = over_warp(sum, combine);
    if (threadIdx.x == 0) *(R *)RESULT = narrow<R>(POST(sum));
}
#endif
