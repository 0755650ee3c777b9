// Linear maps along up to three axes at once: each result is a weighted sum over the product of its axes' rows.
//
// x is [outer, N0, N1, N2, inner] with the axes that are mapped in the middle (as many as RANK), y likewise.
//
// Constants: T and O (elements of x and y), A (arithmetic, and the weights' type), Index, RANK, EACH (outer elements of
// a thread), V (inner elements of a thread), MOVES (rows of one element, which is taken as it is).
struct Sizes { i64 v[8]; };  // outer, inner, sizes of y along the axes, sizes of x
// Tables of an axis: start[row] of all rows and their end, behind them the elements (at), and their weights; see
// `SparseRows`.

extern "C" __global__ void __launch_bounds__(256)
map_axes(const T *x, O *y, Sizes sizes, const i32 *start0, const A *weight0, const i32 *start1, const A *weight1,
         const i32 *start2, const A *weight2)
{
    const Index outer = (Index)sizes.v[0], inner = (Index)sizes.v[1];
    const Index out0 = (Index)sizes.v[2], out1 = (Index)sizes.v[3], out2 = (Index)sizes.v[4];
    const Index in1 = (Index)sizes.v[6], in2 = (Index)sizes.v[7];
    const Index plane = (Index)sizes.v[5] * in1 * in2 * inner, places = out0 * out1 * out2 * inner;
    const i32 *at0 = start0 + out0 + 1, *at1 = start1 + out1 + 1, *at2 = start2 + out2 + 1;
    const Index chunks = inner / V, total = (outer + EACH - 1) / EACH * out0 * out1 * out2 * chunks;
    FOR_EACH (i, total) {
        Index rest = i;
        const Index c = rest % chunks * V;
        rest /= chunks;
        const Index row2 = rest % out2;
        rest /= out2;
        const Index row1 = rest % out1;
        rest /= out1;
        const Index row0 = rest % out0, first = rest / out0 * EACH;
        const Index to = first * places + ((row0 * out1 + row1) * out2 + row2) * inner + c;
        const T *from = x + first * plane + c;
#if MOVES
        Index at = at0[row0];
        if (RANK > 1) at = at * in1 + at1[row1];
        if (RANK > 2) at = at * in2 + at2[row2];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (EACH == 1 || first + e < outer) store<V>(y + to + e * places, load<V>(from + e * plane + at * inner));
#else
        A sum[EACH][V];
        for (int e = 0; e < EACH; e++)
            for (int v = 0; v < V; v++) sum[e][v] = 0;
        for (i32 k0 = start0[row0]; k0 < start0[row0 + 1]; k0++) {
            const Index a0 = at0[k0];
#if RANK > 1
            for (i32 k1 = start1[row1]; k1 < start1[row1 + 1]; k1++) {
                const Index a1 = a0 * in1 + at1[k1];
                const A w1 = weight0[k0] * weight1[k1];
#else
            {
                const Index a1 = a0;
                const A w1 = weight0[k0];
#endif
#if RANK > 2
                for (i32 k2 = start2[row2]; k2 < start2[row2 + 1]; k2++) {
                    const Index a2 = a1 * in2 + at2[k2];
                    const A w = w1 * weight2[k2];
#else
                {
                    const Index a2 = a1;
                    const A w = w1;
#endif
#pragma unroll
                    for (int e = 0; e < EACH; e++) {
                        if (EACH > 1 && first + e >= outer) continue;
                        const Pack<T, V> here = load<V>(from + e * plane + a2 * inner);
#pragma unroll
                        for (int v = 0; v < V; v++) sum[e][v] += w * (A)widen(here.v[v]);
                    }
                }
            }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (EACH > 1 && first + e >= outer) continue;
            Pack<O, V> made;
            for (int v = 0; v < V; v++) made.v[v] = narrow<O>(sum[e][v]);
            store<V>(y + to + e * places, made);
        }
#endif
    }
}
