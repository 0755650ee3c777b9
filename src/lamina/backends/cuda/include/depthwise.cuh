// Parts of rows of images, channels last: one or two channels that lie together, as bits; zeros outside of the image.
//
// Constants: T (a half type), V (channels of a thread, 1 or 2).
#pragma once

// Which of COUNT columns from `first` on lie within 0 .. width - 1, bit by bit.
template <int COUNT> __device__ __forceinline__ u32 inside_of(int first, int width)
{
    u32 found = 0;
#pragma unroll
    for (int e = 0; e < COUNT; ++e) found |= (u32)(first + e >= 0 && first + e < width) << e;
    return found;
}

template <int COUNT> __device__ __forceinline__ void clear(u32 (&columns)[COUNT])
{
#pragma unroll
    for (int e = 0; e < COUNT; ++e) columns[e] = 0;
}

// The columns that `inside` names, APART elements from each other, which others are zeros already; all of them zeros for
// a row outside of the image.
template <int APART, int COUNT>
__device__ __forceinline__ void read_columns(const T *place, bool row, u32 inside, u32 (&columns)[COUNT])
{
    if (!row) {
        clear(columns);
        return;
    }
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
        if (inside >> e & 1) {
            const void *p = place + (i64)e * APART;
            columns[e] = V == 2 ? *(const u32 *)p : *(const u16 *)p;
        }
}

__device__ __forceinline__ f32 channel_of(u32 bits, int v) { return v ? widen_second(bits, T{}) : widen_first(bits, T{}); }
