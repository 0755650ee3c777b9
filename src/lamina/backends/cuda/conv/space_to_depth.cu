// Space to depth by the stride of a convolution: blocks of BH x BW places become channels, so that a convolution of
// stride (BH, BW) over few channels is one of stride 1 over C * BH * BW channels with ceil(KH / BH) x ceil(KW / BW)
// taps. Also plain padding of channels (BH = BW = 1, no padding): the new channels are zero.
//
// Deep channel (c * BH + a) * BW + b at (u, v) holds the padded input's channel c at (u * BH + a, v * BW + b).
// Constants: Index, T, V (deep channels per thread), N, C, H, W (input), PH, PW (padding before), BH, BW, U, V_ (deep
// sizes), DEEP (deep channels, more than C * BH * BW where they are padded), K, KH, KW (filter), DH, DW (deep taps),
// X_N X_C X_H X_W (strides of the input), W_K W_C W_H W_W (strides of the filter). Deep tensors are channels last.

extern "C" __global__ void __launch_bounds__(256) space_to_depth(const T *x, T *deep)
{
    FOR_EACH(t, (Index)N * U * V_ * (DEEP / V)) {
        const Index chunk = t % (DEEP / V) * V, v = t / (DEEP / V) % V_, u = t / (DEEP / V) / V_ % U;
        const Index n = t / (DEEP / V) / V_ / U;
        Pack<T, V> pack;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const Index channel = chunk + k, b = channel % BW, a = channel / BW % BH, c = channel / (BW * BH);
            const Index h = u * BH + a - PH, w = v * BW + b - PW;
            const bool real = c < C && h >= 0 && h < H && w >= 0 && w < W;
            pack.v[k] = real ? x[n * (Index)X_N + c * (Index)X_C + h * (Index)X_H + w * (Index)X_W] : narrow<T>(0.0f);
        }
        store<V>(deep + t * V, pack);
    }
}

// The input (or its gradient) from deep channels: the inverse, for elements that are not padding.
extern "C" __global__ void __launch_bounds__(256) depth_to_space(const T *deep, T *x)
{
    FOR_EACH(t, (Index)N * C * H * W) {
        const Index c = t % C, w = t / C % W, h = t / C / W % H, n = t / C / W / H;
        const Index i = h + PH, j = w + PW, u = i / BH, v = j / BW;
        const Index channel = (c * BH + i % BH) * BW + j % BW;
        const bool real = u < U && v < V_;
        x[n * (Index)X_N + c * (Index)X_C + h * (Index)X_H + w * (Index)X_W] =
            real ? deep[((n * U + u) * V_ + v) * DEEP + channel] : narrow<T>(0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(256) filter_to_depth(const T *filter, T *deep)
{
    FOR_EACH(t, (Index)K * DH * DW * DEEP) {
        const Index channel = t % DEEP, q = t / DEEP % DW, p = t / DEEP / DW % DH, k = t / DEEP / DW / DH;
        const Index b = channel % BW, a = channel / BW % BH, c = channel / (BW * BH);
        const Index kh = p * BH + a, kw = q * BW + b;
        const bool real = c < C && kh < KH && kw < KW;
        deep[t] = real ? filter[k * (Index)W_K + c * (Index)W_C + kh * (Index)W_H + kw * (Index)W_W] : narrow<T>(0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(256) depth_to_filter(const T *deep, T *filter)
{
    FOR_EACH(t, (Index)K * C * KH * KW) {
        const Index c = t % C, kw = t / C % KW, kh = t / C / KW % KH, k = t / C / KW / KH;
        const Index channel = (c * BH + kh % BH) * BW + kw % BW;
        filter[k * (Index)W_K + c * (Index)W_C + kh * (Index)W_H + kw * (Index)W_W] =
            deep[((k * DH + kh / BH) * DW + kw / BW) * DEEP + channel];
    }
}
