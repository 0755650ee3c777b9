// Convolution with one filter per channel, and its gradients; channels last, V channels per thread in one access.
//
// A thread keeps its channels, and with them its filters, while it goes over strips of TW places along W: of the
// output, or of the input for the data gradient, where TW is a multiple of the stride so that which taps meet is known
// when the kernel is compiled. A block has CT chunks of channels times LANES strips; GROUPS blocks cover all channels.
//
// Constants: Index, T, V, TW, KH, KW, SH, SW (stride), PH, PW (padding before), BIAS (whether to add one), FIRST (data
// gradient: the first column of g that a strip meets, from its own first place / SW on), COLUMNS (how many). A function
// `activated` of a sum.
// Numbers of the parameter SIZES: CT, LANES, GROUPS, C, H, W, OH, OW, X_N X_H X_W (strides of x, which may be a part of
// images with more channels, except in the data gradient), W_K W_H W_W (of the filter), WORK (strips in all), and
// quotients: strip_row(n) = n / strips along W, row_image(n) = n / rows of an image.
#include "words.cuh"
#define MOST_THREADS 128

// A thread's channels, its strip among those of a block, and the block among those of its group.
#define PLACE                                                                                                        \
    const int chunks = (int)CT, lanes = (int)LANES, groups = (int)GROUPS, lane = threadIdx.x / chunks;               \
    const int group = blockIdx.x % groups, slice = blockIdx.x / groups, slices = gridDim.x / groups;                 \
    const int channel = (group * chunks + threadIdx.x - lane * chunks) * V, work = (int)WORK, across = slices * lanes;
#define FOR_STRIPS for (int strip = slice * lanes + lane; strip < work; strip += across)
// The strip's first place along W, its row and its image.
#define STRIP(row_of_image, rows)                                                                                    \
    const int line = strip_row(strip), first = (strip - line * (int)STRIPS) * TW, image = row_image(line);           \
    const int row_of_image = line - image * (int)(rows);
// The offset of the thread's channels at place (n, h, w) of a tensor [N, height, width, C].
#define AT(n, h, w, height, width) ((((Index)(n) * (height) + (h)) * (width) + (w)) * C + channel)
#define AT_X(n, h, w) ((Index)(n) * X_N + (Index)(h) * X_H + (Index)(w) * X_W + channel)

#define FILTER filter + channel * W_K, W_K, W_H, W_W
__device__ __forceinline__ void read_filter(const T *filter, Index w_k, Index w_h, Index w_w, f32 (&f)[KH][KW][V])
{
#pragma unroll
    for (int kh = 0; kh < KH; ++kh)
#pragma unroll
        for (int kw = 0; kw < KW; ++kw)
#pragma unroll
            for (int v = 0; v < V; ++v) f[kh][kw][v] = widen(filter[v * w_k + kh * w_h + kw * w_w]);
}

__device__ __forceinline__ Words read_if(bool inside, const T *p)
{
    Words found = {};
    if (inside) found = read_words(p);
    return found;
}

#ifdef FORWARD
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 3)
    depthwise(const T *x, const T *filter, const T *bias, T *y, SIZES)
{
    PLACE
    f32 f[KH][KW][V], base[V];
    read_filter(FILTER, f);
#pragma unroll
    for (int v = 0; v < V; ++v) base[v] = BIAS ? widen(bias[channel + v]) : 0.0f;
    FOR_STRIPS {
        STRIP(oh, OH)
        f32 sum[TW][V];
#pragma unroll
        for (int j = 0; j < TW; ++j)
#pragma unroll
            for (int v = 0; v < V; ++v) sum[j][v] = base[v];
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            const int h = oh * SH - PH + kh, left = first * SW - PW;
            const bool meets = h >= 0 && h < (int)H;
            const T *row = x + AT_X(image, h, left);
#pragma unroll
            for (int e = 0; e < (TW - 1) * SW + KW; ++e) {
                const bool inside = meets && left + e >= 0 && left + e < (int)W;
                const auto p = elements_of<T>(read_if(inside, row + e * X_W));
#pragma unroll
                for (int j = 0; j < TW; ++j)
                    if (e - j * SW >= 0 && e - j * SW < KW)
#pragma unroll
                        for (int v = 0; v < V; ++v) sum[j][v] += widen(p.v[v]) * f[kh][e - j * SW][v];
            }
        }
        T *to = y + AT(image, oh, first, OH, OW);
#pragma unroll
        for (int j = 0; j < TW; ++j) {
            if (first + j >= (int)OW) continue;
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; ++v)
                pack.v[v] = narrow<T>(activated(sum[j][v]));
            store<V>(to + j * C, pack);
        }
    }
}
#endif

#ifdef DATA_GRAD
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 3)
    depthwise_data_grad(const T *g, const T *filter, T *dx, SIZES)
{
    PLACE
    f32 f[KH][KW][V];
    read_filter(FILTER, f);
    FOR_STRIPS {
        STRIP(h, H)
        f32 sum[TW][V];
#pragma unroll
        for (int j = 0; j < TW; ++j)
#pragma unroll
            for (int v = 0; v < V; ++v) sum[j][v] = 0.0f;
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            const int meeting = h + PH - kh, oh = meeting / SH, left = first / SW + FIRST;
            const bool meets = meeting >= 0 && meeting % SH == 0 && oh < (int)OH;
            const T *row = g + AT(image, oh, left, OH, OW);
#pragma unroll
            for (int e = 0; e < COLUMNS; ++e) {
                const bool inside = meets && left + e >= 0 && left + e < (int)OW;
                const auto p = elements_of<T>(read_if(inside, row + e * C));
#pragma unroll
                for (int j = 0; j < TW; ++j)
#pragma unroll
                    for (int kw = 0; kw < KW; ++kw)
                        if (j + PW - kw == (FIRST + e) * SW)
#pragma unroll
                            for (int v = 0; v < V; ++v) sum[j][v] += widen(p.v[v]) * f[kh][kw][v];
            }
        }
        T *to = dx + AT(image, h, first, H, W);
#pragma unroll
        for (int j = 0; j < TW; ++j) {
            if (first + j >= (int)W) continue;
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; ++v) pack.v[v] = narrow<T>(sum[j][v]);
            store<V>(to + j * C, pack);
        }
    }
}
#endif

#ifdef FILTER_GRAD
// What the blocks of one group of channels found: partial [slices, KH * KW, C].
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 3)
    depthwise_filter_grad(const T *x, const T *g, f32 *partial, SIZES)
{
    __shared__ f32 part[KW][MOST_THREADS * V];
    PLACE
    f32 sum[KH][KW][V];
#pragma unroll
    for (int kh = 0; kh < KH; ++kh)
#pragma unroll
        for (int kw = 0; kw < KW; ++kw)
#pragma unroll
            for (int v = 0; v < V; ++v) sum[kh][kw][v] = 0.0f;
    FOR_STRIPS {
        STRIP(oh, OH)
        const T *of = g + AT(image, oh, first, OH, OW);
        Words gradient[TW];
#pragma unroll
        for (int j = 0; j < TW; ++j) gradient[j] = read_if(first + j < (int)OW, of + j * C);
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            const int h = oh * SH - PH + kh, left = first * SW - PW;
            const bool meets = h >= 0 && h < (int)H;
            const T *row = x + AT_X(image, h, left);
#pragma unroll
            for (int e = 0; e < (TW - 1) * SW + KW; ++e) {
                const bool inside = meets && left + e >= 0 && left + e < (int)W;
                const auto p = elements_of<T>(read_if(inside, row + e * X_W));
#pragma unroll
                for (int j = 0; j < TW; ++j)
                    if (e - j * SW >= 0 && e - j * SW < KW)
#pragma unroll
                        for (int v = 0; v < V; ++v)
                            sum[kh][e - j * SW][v] += widen(p.v[v]) * widen(elements_of<T>(gradient[j]).v[v]);
            }
        }
    }
    f32 *own = partial + (Index)slice * KH * KW * C + group * chunks * V;
    const int columns = chunks * V;
#pragma unroll
    for (int kh = 0; kh < KH; ++kh) {
        __syncthreads();
#pragma unroll
        for (int kw = 0; kw < KW; ++kw)
#pragma unroll
            for (int v = 0; v < V; ++v) part[kw][threadIdx.x * V + v] = sum[kh][kw][v];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < KW * columns; i += blockDim.x) {
            const int kw = i / columns, at = i - kw * columns;
            f32 total = 0;
#pragma unroll 8
            for (int other = 0; other < lanes; ++other) total += part[kw][other * columns + at];
            own[(kh * KW + kw) * C + at] = total;
        }
    }
}
#endif
