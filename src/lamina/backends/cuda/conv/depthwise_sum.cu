// The gradient of filters that have one channel each: the sum of what blocks found, partial [slices, height * width,
// channels], in the strides of the filter. Constants: Index, T.
#include "slices.cuh"

// Blocks of 256 over 32 elements each.
extern "C" __global__ void __launch_bounds__(256)
depthwise_filter_sum(const f32 *partial, T *dw, i32 slices, i32 channels, i32 height, i32 width, i32 channel_step,
                     i32 row_step, i32 column_step)
{
    const int at = blockIdx.x * 32 + threadIdx.x % 32, count = height * width * channels;
    const f32 sum = over_slices<Index>(partial, at < count ? at : 0, count, slices);
    if (threadIdx.x < 32 && at < count) {
        const int channel = at % channels, tap = at / channels;
        dw[channel * channel_step + tap / width * row_step + tap % width * column_step] = narrow<T>(sum);
    }
}
