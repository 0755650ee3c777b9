// Rows that stand together in bags: their sums, their maxima, and to each row what belongs to its bag.
//
// Constants: Index, T, BAGS, ROWS (of all bags together), WIDTH (of a row). Bag b has the rows start[b] … start[b + 1] - 1;
// what an `offsets` that nobody checked names beyond the rows is left out.
typedef Wide<T>::type A;

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
