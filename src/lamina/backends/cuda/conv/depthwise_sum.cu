// The gradient of filters that have one channel each: the sum of what blocks found, partial [slices, KH * KW, C].
//
// Constants: Index, T, C, KH, KW, W_K W_H W_W (strides of the filter).
#include "slices.cuh"

// Blocks of 256 over 32 elements each.
extern "C" __global__ void __launch_bounds__(256) depthwise_filter_sum(const f32 *partial, T *dw, i32 slices)
{
    const int at = blockIdx.x * 32 + threadIdx.x % 32, count = KH * KW * C;
    const f32 sum = over_slices<Index>(partial, at < count ? at : 0, count, slices);
    if (threadIdx.x < 32 && at < count) {
        const int channel = at % C, tap = at / C;
        dw[channel * W_K + tap / KW * W_H + tap % KW * W_W] = narrow<T>(sum);
    }
}
