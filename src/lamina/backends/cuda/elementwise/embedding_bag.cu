// Rows that stand together in bags: their sums, their maxima, and to each row what belongs to its bag.
//
// Constants: Index, T, BAGS, ROWS (of all bags together), WIDTH (of a row). Bag b has the rows start[b] … start[b + 1] - 1;
// what an `offsets` that nobody checked names beyond the rows is left out.
// Of embedding_sum: I (of indices), V (elements of an access), BAGS, EACH (indices of a bag), ROWS (of the table), WIDTH,
// MEAN.
typedef Wide<T>::type A;

#ifdef MEAN
// A thread for V adjacent elements of the result, which goes over its bag's indices in their order.
//
// Expected: rows are read once and never written, 67 MB for the 16384 bags of 16 rows of 64 float32 of
// benchmarks/op_families.py, from the cache in which its table of 5 MB stays; copied out first, they are also written
// and read again through memory, which is 31 us at 4.3 TB/s.
extern "C" __global__ void __launch_bounds__(256) embedding_sum(const T *table, const I *index, T *y)
{
    FOR_EACH (i, (Index)BAGS * (WIDTH / V)) {
        const Index bag = i / (WIDTH / V), column = i % (WIDTH / V) * V;
        A sum[V];
        for (int v = 0; v < V; v++) sum[v] = 0;
#pragma unroll 4
        for (Index k = 0; k < EACH; k++) {
            const i64 row = index[bag * EACH + k];
            Pack<T, V> own;
            for (int v = 0; v < V; v++) own.v[v] = narrow<T>((A)(INFINITY_F - INFINITY_F));
            if (row >= 0 && row < ROWS) own = load<V>(table + (Index)row * WIDTH + column);
            for (int v = 0; v < V; v++) sum[v] += (A)widen(own.v[v]);
        }
        Pack<T, V> made;
        for (int v = 0; v < V; v++) made.v[v] = narrow<T>(MEAN ? sum[v] / (A)EACH : sum[v]);
        store<V>(y + i * V, made);
    }
}
#else

// A thread for each element of the result, which goes over its bag's rows in their order: bit-equal from run to run.
extern "C" __global__ void __launch_bounds__(256) bag_sum(const T *x, const i64 *start, T *y)
{
    FOR_EACH (i, (Index)BAGS * WIDTH) {
        const Index bag = i / WIDTH, column = i % WIDTH;
        const i64 first = start[bag] < 0 ? 0 : start[bag], last = start[bag + 1] < ROWS ? start[bag + 1] : ROWS;
        A sum = 0;
        for (i64 row = first; row < last; row++) sum += (A)widen(x[(Index)row * WIDTH + column]);
        y[i] = narrow<T>(sum);
    }
}

extern "C" __global__ void __launch_bounds__(256) bag_max(const T *x, const i64 *start, T *y, i64 *place)
{
    FOR_EACH (i, (Index)BAGS * WIDTH) {
        const Index bag = i / WIDTH, column = i % WIDTH;
        const i64 first = start[bag] < 0 ? 0 : start[bag], last = start[bag + 1] < ROWS ? start[bag + 1] : ROWS;
        T best = narrow<T>((A)0);
        i64 at = -1;
        for (i64 row = first; row < last; row++) {
            const T value = x[(Index)row * WIDTH + column];
            const A wide = widen(value), held = widen(best);
            if (at < 0 || wide > held || (wide != wide && held == held)) {
                best = value;
                at = row;
            }
        }
        y[i] = best;
        place[i] = at;
    }
}

// The bag of a row is the last one that begins at or before it.
extern "C" __global__ void __launch_bounds__(256) bag_spread(const T *x, const i64 *start, T *y)
{
    FOR_EACH (i, (Index)ROWS * WIDTH) {
        const Index row = i / WIDTH, column = i % WIDTH;
        Index low = 0, high = BAGS + 1;
        while (low < high) {
            const Index middle = low + (high - low) / 2;
            if (start[middle] <= (i64)row) low = middle + 1;
            else high = middle;
        }
        T value = {};
        if (low > 0 && low <= (Index)BAGS) value = x[(low - 1) * WIDTH + column];
        y[i] = value;
    }
}
#endif
