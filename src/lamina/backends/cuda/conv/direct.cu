// Convolution and its two gradients straight from their definitions: for what no library engine takes, for addresses
// that are not aligned, and to check engines against. Not fast.
//
// Constants: Index, T, N, CHANNELS, FILTERS (outputs' channels), GROUPS, FLIP, D H W (input), OD OH OW (output),
// KD KH KW, SD SH SW (stride), PD PH PW (padding before), JD JH JW (dilation), and strides X_N X_C X_D X_H X_W,
// W_K W_C W_D W_H W_W, Y_N Y_K Y_D Y_H Y_W.
typedef Wide<T>::type A;

#define PER_GROUP (CHANNELS / GROUPS)
#define FILTERS_PER_GROUP (FILTERS / GROUPS)
#define TAPS_OF(k, K) (FLIP ? (K) - 1 - (k) : (k))
#define X_AT(n, c, d, h, w) ((n) * (Index)X_N + (c) * (Index)X_C + (d) * (Index)X_D + (h) * (Index)X_H + (w) * (Index)X_W)
#define Y_AT(n, k, d, h, w) ((n) * (Index)Y_N + (k) * (Index)Y_K + (d) * (Index)Y_D + (h) * (Index)Y_H + (w) * (Index)Y_W)
#define W_AT(k, c, d, h, w)                                                                                          \
    ((k) * (Index)W_K + (c) * (Index)W_C + TAPS_OF(d, KD) * (Index)W_D + TAPS_OF(h, KH) * (Index)W_H +               \
     TAPS_OF(w, KW) * (Index)W_W)
#define FOR_TAPS for (int kd = 0; kd < KD; ++kd) for (int kh = 0; kh < KH; ++kh) for (int kw = 0; kw < KW; ++kw)

// One element of the result.
template <class S>
__device__ __forceinline__ S forward(const T *x, const T *filter, Index n, Index k, Index od, Index oh, Index ow)
{
    const Index first = k / FILTERS_PER_GROUP * PER_GROUP;
    S sum = 0;
    FOR_TAPS {
        const Index d = od * SD - PD + kd * JD, h = oh * SH - PH + kh * JH, w = ow * SW - PW + kw * JW;
        if (d < 0 || d >= D || h < 0 || h >= H || w < 0 || w >= W) continue;
        for (Index c = 0; c < PER_GROUP; ++c)
            sum += (S)widen(x[X_AT(n, first + c, d, h, w)]) * (S)widen(filter[W_AT(k, c, kd, kh, kw)]);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(256) conv(const T *x, const T *filter, T *y)
{
    FOR_EACH(t, (Index)N * FILTERS * OD * OH * OW) {
        const Index k = t % FILTERS, ow = t / FILTERS % OW, oh = t / FILTERS / OW % OH;
        const Index od = t / FILTERS / OW / OH % OD, n = t / FILTERS / OW / OH / OD;
        y[Y_AT(n, k, od, oh, ow)] = narrow<T>(forward<A>(x, filter, n, k, od, oh, ow));
    }
}

#ifdef SUM
// 8-bit operands: sums in SUM, times the scale of the channel.
extern "C" __global__ void __launch_bounds__(256)
quantized_conv(const T *x, const T *filter, const f32 *scale, f32 *y)
{
    FOR_EACH(t, (Index)N * FILTERS * OD * OH * OW) {
        const Index k = t % FILTERS, ow = t / FILTERS % OW, oh = t / FILTERS / OW % OH;
        const Index od = t / FILTERS / OW / OH % OD, n = t / FILTERS / OW / OH / OD;
        y[Y_AT(n, k, od, oh, ow)] = (f32)forward<SUM>(x, filter, n, k, od, oh, ow) * scale[k];
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256) conv_data_grad(const T *g, const T *filter, T *dx)
{
    FOR_EACH(t, (Index)N * CHANNELS * D * H * W) {
        const Index c = t % CHANNELS, w = t / CHANNELS % W, h = t / CHANNELS / W % H;
        const Index d = t / CHANNELS / W / H % D, n = t / CHANNELS / W / H / D;
        const Index first = c / PER_GROUP * FILTERS_PER_GROUP;
        A sum = 0;
        FOR_TAPS {
            const Index d0 = d + PD - kd * JD, h0 = h + PH - kh * JH, w0 = w + PW - kw * JW;
            if (d0 < 0 || h0 < 0 || w0 < 0 || d0 % SD || h0 % SH || w0 % SW) continue;
            const Index od = d0 / SD, oh = h0 / SH, ow = w0 / SW;
            if (od >= OD || oh >= OH || ow >= OW) continue;
            for (Index k = first; k < first + FILTERS_PER_GROUP; ++k)
                sum += (A)widen(g[Y_AT(n, k, od, oh, ow)]) * (A)widen(filter[W_AT(k, c % PER_GROUP, kd, kh, kw)]);
        }
        dx[X_AT(n, c, d, h, w)] = narrow<T>(sum);
    }
}

// One block per element of the filter.
extern "C" __global__ void __launch_bounds__(256) conv_filter_grad(const T *x, const T *g, T *dw)
{
    for (Index t = blockIdx.x; t < (Index)FILTERS * PER_GROUP * KD * KH * KW; t += gridDim.x) {
        const Index c = t % PER_GROUP, kw = t / PER_GROUP % KW, kh = t / PER_GROUP / KW % KH;
        const Index kd = t / PER_GROUP / KW / KH % KD, k = t / PER_GROUP / KW / KH / KD;
        const Index channel = k / FILTERS_PER_GROUP * PER_GROUP + c;
        A sum = 0;
        for (Index r = threadIdx.x; r < (Index)N * OD * OH * OW; r += 256) {
            const Index ow = r % OW, oh = r / OW % OH, od = r / OW / OH % OD, n = r / OW / OH / OD;
            const Index d = od * SD - PD + kd * JD, h = oh * SH - PH + kh * JH, w = ow * SW - PW + kw * JW;
            if (d < 0 || d >= D || h < 0 || h >= H || w < 0 || w >= W) continue;
            sum += (A)widen(x[X_AT(n, channel, d, h, w)]) * (A)widen(g[Y_AT(n, k, od, oh, ow)]);
        }
        sum = over_block(sum, Sum(), (A)0);
        if (threadIdx.x == 0) dw[W_AT(k, c, kd, kh, kw)] = narrow<T>(sum);
    }
}
