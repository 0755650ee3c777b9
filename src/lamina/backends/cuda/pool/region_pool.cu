// The largest elements of windows that are not evenly spaced: a thread per window, which reads it row by row.
//
// Constants: T, Index, PLANES, EVERY (whether each plane has windows of its own), S0 S1 S2 (sizes of a plane, in front 1
// where there are fewer), O0 O1 O2 (windows along each), A0 A1 A2 (where an axis begins in a plane's bounds; -1: there
// is no such axis), BOUNDS (of a plane).
typedef Wide<T>::type A;

struct Range { Index first, behind; };

__device__ __forceinline__ Range range_of(const i64 *starts, const i64 *stops, int axis, Index window)
{
    if (axis < 0) return {0, 1};
    return {(Index)starts[axis + window], (Index)stops[axis + window]};
}

extern "C" __global__ void __launch_bounds__(256)
region_max(const T *x, const i64 *starts, const i64 *stops, T *y, i64 *index)
{
    FOR_EACH (t, (i64)PLANES * O0 * O1 * O2) {
        const Index k = (Index)t % O2, j = (Index)t / O2 % O1, i = (Index)t / ((Index)O2 * O1) % O0;
        const Index plane = (Index)t / ((Index)O2 * O1 * O0);
        const i64 *first = starts + (EVERY ? plane * (Index)BOUNDS : 0), *behind = stops + (first - starts);
        const Range a = range_of(first, behind, A0, i), b = range_of(first, behind, A1, j);
        const Range c = range_of(first, behind, A2, k);
        const T *own = x + plane * ((Index)S0 * S1 * S2);
        Index best = (a.first * (Index)S1 + b.first) * (Index)S2 + c.first;
        A largest = (A)widen(own[best]);
        for (Index d = a.first; d < a.behind; d++)
            for (Index h = b.first; h < b.behind; h++)
                for (Index w = c.first; w < c.behind; w++) {
                    const Index at = (d * (Index)S1 + h) * (Index)S2 + w;
                    const A v = (A)widen(own[at]);
                    if (!(v <= largest) && largest == largest) largest = v, best = at;
                }
        y[t] = own[best];
        index[t] = best;
    }
}
