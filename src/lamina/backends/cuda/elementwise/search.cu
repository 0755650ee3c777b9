// How many elements of a sorted row are smaller (or equal) than a value, by bisection.
//
// Constants: T, Index, COUNT (values), SIZE (of a row), WIDTH (values of a row), RIGHT (whether equal ones count).
typedef Wide<T>::type A;

// NaN is larger than everything.
__device__ __forceinline__ bool less(A a, A b) { return a < b || (b != b && a == a); }

extern "C" __global__ void __launch_bounds__(256) search_sorted(const T *rows, const T *values, i64 *y)
{
    FOR_EACH (i, COUNT) {
        const A value = widen(values[i]);
        const T *row = rows + i / (Index)WIDTH * (Index)SIZE;
        Index low = 0, high = SIZE;
        while (low < high) {
            const Index middle = low + (high - low) / 2;
            const A here = widen(row[middle]);
            if (RIGHT ? !less(value, here) : less(here, value)) low = middle + 1;
            else high = middle;
        }
        y[i] = low;
    }
}
