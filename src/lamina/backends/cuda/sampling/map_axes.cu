// Linear maps along up to three axes at once: each result is a weighted sum over the product of its axes' rows.
//
// x is [outer, N0, N1, N2, inner] with the axes that are mapped in the middle (as many as RANK), y likewise.
//
// Constants: T and O (elements of x and y), A (arithmetic, and the weights' type), Index, RANK, EACH (outer elements of
// a thread), ROWS (adjacent rows of the last axis of a thread), V (inner elements of a thread; 1 if ROWS is not), MOVES
// (rows of one element, which is taken as it is).
struct Sizes { i64 v[8]; };  // outer, inner, sizes of y along the axes, sizes of x
// Tables of an axis: start[row] of all rows and their end, behind them the elements (at), and their weights; see
// `SparseRows`.
#if RANK == 1
#define LAST(name) name##0
#elif RANK == 2
#define LAST(name) name##1
#else
#define LAST(name) name##2
#endif

extern "C" __global__ void __launch_bounds__(256)
map_axes(const T *x, O *y, Sizes sizes, const i32 *start0, const A *weight0, const i32 *start1, const A *weight1,
         const i32 *start2, const A *weight2)
{
    const Index outer = (Index)sizes.v[0], inner = (Index)sizes.v[1];
    const Index out0 = (Index)sizes.v[2], out1 = (Index)sizes.v[3], out2 = (Index)sizes.v[4];
    const Index in1 = (Index)sizes.v[6], in2 = (Index)sizes.v[7];
    const Index plane = (Index)sizes.v[5] * in1 * in2 * inner, places = out0 * out1 * out2 * inner;
    const i32 *at0 = start0 + out0 + 1, *at1 = start1 + out1 + 1, *at2 = start2 + out2 + 1;
    const Index chunks = inner / V, groups = LAST(out) / ROWS;
    const Index total = (outer + EACH - 1) / EACH * (places / inner / ROWS) * chunks;
    FOR_EACH (i, total) {
        Index rest = i;
        const Index c = rest % chunks * V;
        rest /= chunks;
        const Index row = rest % groups * ROWS;  // of the last axis
        rest /= groups;
#if RANK > 2
        const Index row1 = rest % out1;
        rest /= out1;
#endif
#if RANK > 1
        const Index row0 = rest % out0, first = rest / out0 * EACH;
#else
        const Index first = rest * EACH;
#endif
        Index line = 0;  // where the last axis begins in y
#if RANK == 2
        line = row0 * out1;
#elif RANK > 2
        line = (row0 * out1 + row1) * out2;
#endif
        const Index to = first * places + (line + row) * inner + c;
        const T *from = x + first * plane + c;
#if MOVES
        Index begin = 0;  // … and in x
#if RANK == 2
        begin = at0[row0] * in1;
#elif RANK > 2
        begin = (at0[row0] * in1 + at1[row1]) * in2;
#endif
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (EACH > 1 && first + e >= outer) continue;
            Pack<O, ROWS * V> made;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const Pack<T, V> here = load<V>(from + e * plane + (begin + LAST(at)[row + r]) * inner);
                for (int v = 0; v < V; v++) made.v[r * V + v] = here.v[v];
            }
            store<ROWS * V>(y + to + e * places, made);
        }
#else
        A sum[EACH][ROWS * V];
        for (int e = 0; e < EACH; e++)
            for (int v = 0; v < ROWS * V; v++) sum[e][v] = 0;
        Index begin = 0;
        A w = 1;
#if RANK > 1
        for (i32 k0 = start0[row0]; k0 < start0[row0 + 1]; k0++)
#endif
#if RANK > 2
        for (i32 k1 = start1[row1]; k1 < start1[row1 + 1]; k1++)
#endif
        {
#if RANK == 2
            begin = at0[k0] * in1;
            w = weight0[k0];
#elif RANK > 2
            begin = (at0[k0] * in1 + at1[k1]) * in2;
            w = weight0[k0] * weight1[k1];
#endif
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                for (i32 k = LAST(start)[row + r]; k < LAST(start)[row + r + 1]; k++) {
                    const Index at = (begin + LAST(at)[k]) * inner;
                    const A own = w * LAST(weight)[k];
#pragma unroll
                    for (int e = 0; e < EACH; e++) {
                        if (EACH > 1 && first + e >= outer) continue;
                        const Pack<T, V> here = load<V>(from + e * plane + at);
#pragma unroll
                        for (int v = 0; v < V; v++) sum[e][r * V + v] += own * (A)widen(here.v[v]);
                    }
                }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (EACH > 1 && first + e >= outer) continue;
            Pack<O, ROWS * V> made;
            for (int v = 0; v < ROWS * V; v++) made.v[v] = narrow<O>(sum[e][v]);
            store<ROWS * V>(y + to + e * places, made);
        }
#endif
    }
}
