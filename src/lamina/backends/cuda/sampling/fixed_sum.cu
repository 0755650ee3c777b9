// What comes before and after sums in fixed point; see fixed_sum.cuh.
//
// Constants: T, Index, TERMS (elements that the terms come from), SUMS, COUNT_BITS.
#include "fixed_sum.cuh"
typedef Wide<T>::type A;

extern "C" __global__ void __launch_bounds__(256) fixed_largest(const T *x, FixedRange *range)
{
    i32 largest = 0, odd = 0;
    FOR_EACH (i, TERMS) {
        const A v = (A)widen(x[i]);
        if (!is_finite(v)) {
            odd = 1;
        } else if (v != 0) {
            int exponent;
            frexp((f64)v, &exponent);
            largest = larger(largest, (i32)(exponent + FIXED_BIAS));
        }
    }
    largest = over_block(largest, Larger(), 0);
    odd = over_block(odd, Larger(), 0);
    if (threadIdx.x == 0) {
        atomicMax(&range->exponent, largest);
        atomicMax(&range->odd, odd);
    }
}

extern "C" __global__ void __launch_bounds__(256) fixed_result(const i64 *sums, const FixedRange *range, T *y)
{
    const f64 unit = fixed_unit(range);
    FOR_EACH (i, SUMS) y[i] = narrow<T>((A)((f64)sums[i] * unit));
}
