// A look at labels or indices: what names nothing is printed, and the program stopped, as by a device-side assertion.
//
// Constants: T (an integer type), Index, COUNT (indices), SIZE (what they number), WHAT (the function, a string),
// IGNORED(v) (whether a value does not count).
extern "C" __global__ void __launch_bounds__(256) check_index(const T *index, T *y)
{
    const Index step = (Index)gridDim.x * 256;
    for (Index i = (Index)blockIdx.x * 256 + threadIdx.x; i < (Index)COUNT; i += step) {
        const i64 value = (i64)index[i];
        if ((value < 0 || value >= (i64)SIZE) && !IGNORED(value)) {
            printf("%s: index %lld at element %lld is outside 0 ... %lld\n", WHAT, (long long)value, (long long)i,
                   (long long)SIZE - 1);
            __trap();
        }
        y[i] = index[i];
    }
}
