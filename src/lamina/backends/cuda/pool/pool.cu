// Pooling over one to three spatial axes (unused ones have size 1).
//
// Constants: Index, T, I (type of the index), V (elements per thread: channels where they lie together, else 1),
// CHANNELS_INSIDE (whether they do), KD KH KW (kernel), SD SH SW (stride), PD PH PW (padding before), JD JH JW (dilation),
// ALL_WITHIN (whether no window reaches over an edge: then nothing has to be asked at run time), HAS_INDEX, MODE of the
// average (0 counts padding, 1 does not, 2 only sums), and which kernel it is.
// Of the parameter SIZES, but for axes that are unused: CHUNKS (accesses along the channels), TOTAL (what is looped over:
// accesses in all), D H W (input), OD OH OW (output), X_N X_C X_D X_H X_W and Y_N ... (strides in elements), and quotients
// by_D(n), ... of these.
typedef Wide<T>::type A;

// The last of the sizes that `rest` is still made of, and what is left.
#define NEXT(v, size, quotient)                                                                                      \
    const Index over_##v = quotient(rest), v = rest - over_##v * size;                                               \
    rest = over_##v;
#define AXES(O) NEXT(w, O##W, by_##O##W) NEXT(h, O##H, by_##O##H) NEXT(d, O##D, by_##O##D)
// The place t among those of the input, or with O those of the output.
#if CHANNELS_INSIDE
// (n, d, h, w, chunk of channels), chunk innermost
#define SPLIT(O)                                                                                                     \
    Index rest = t;                                                                                                  \
    NEXT(chunk, CHUNKS, by_CHUNKS) AXES(O)                                                                           \
    const Index n = rest, c = chunk * V;
#else
// (n, c, d, h, w), w innermost
#define SPLIT(O)                                                                                                     \
    Index rest = t;                                                                                                  \
    AXES(O) NEXT(chunk, CHUNKS, by_CHUNKS)                                                                           \
    const Index n = rest, c = chunk * V;
#endif

#define WINDOWS                                                                                                      \
    _Pragma("unroll") for (int kd = 0; kd < KD; ++kd)                                                                \
    _Pragma("unroll") for (int kh = 0; kh < KH; ++kh)                                                                \
    _Pragma("unroll 8") for (int kw = 0; kw < KW; ++kw)

#define INSIDE(v, size) ((v) >= 0 && (v) < (Index)(size))

#ifdef MAX_POOL
extern "C" __global__ void __launch_bounds__(256, 8) max_pool(const T *x, T *y, I *index, SIZES)
{
    FOR_EACH(t, TOTAL) {
        SPLIT(O)
        const Index d0 = d * SD - PD, h0 = h * SH - PH, w0 = w * SW - PW;
        const T *base = x + n * X_N + c * X_C;
        A best[V];
        int at[V];
#pragma unroll
        for (int k = 0; k < V; ++k) { best[k] = -(A)INFINITY_F; at[k] = -1; }
        WINDOWS {
            const Index xd = d0 + kd * JD, xh = h0 + kh * JH, xw = w0 + kw * JW;
            if (ALL_WITHIN || (INSIDE(xd, D) && INSIDE(xh, H) && INSIDE(xw, W))) {
                const auto elements = load<V>(base + xd * X_D + xh * X_H + xw * X_W);
                const int tap = (kd * KH + kh) * KW + kw;
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const A v = widen(elements.v[k]);
                    // The first tap is taken as it is; later ones when larger or not a number, but never instead of one.
                    const bool first = ALL_WITHIN ? tap == 0 : at[k] < 0;
                    if (first || (!(v <= best[k]) && best[k] == best[k])) {
                        best[k] = v;
                        at[k] = tap;
                    }
                }
            }
        }
        const Index o = n * Y_N + c * Y_C + d * Y_D + h * Y_H + w * Y_W;
        Pack<T, V> largest;
        Pack<I, V> places;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            largest.v[k] = narrow<T>(best[k]);
            places.v[k] = (I)(at[k] < 0 ? 0 : at[k]);
        }
        store<V>(y + o, largest);
#if HAS_INDEX
        store<V>(index + o, places);
#endif
    }
}
#endif

// The windows that may cover a position: along each axis the last one that begins before it, and so many before that.
// Few are all read at once; many would be compiled for seconds.
#define BEFORE(K, J, S) (((K) - 1) * (J) / (S))
#define COVERING                                                                                                     \
    const Index last_d = (d + PD) / SD, last_h = (h + PH) / SH, last_w = (w + PW) / SW;                              \
    _Pragma("unroll 1") for (int qd = BEFORE(KD, JD, SD); qd >= 0; --qd)                                             \
    _Pragma("unroll 4") for (int qh = BEFORE(KH, JH, SH); qh >= 0; --qh)                                             \
    _Pragma("unroll 4") for (int qw = BEFORE(KW, JW, SW); qw >= 0; --qw)

// Where position (d, h, w) lies in window (od, oh, ow); `tap` is -1 where there is no such window, behind its last tap,
// and between the taps of a dilated one.
#define HIT(t, K, J) ((t) <= ((K) - 1) * (J) && (t) % (J) == 0)
#define TAP                                                                                                          \
    const Index od = last_d - qd, oh = last_h - qh, ow = last_w - qw;                                                \
    const Index td = d + PD - od * SD, th = h + PH - oh * SH, tw = w + PW - ow * SW;                                 \
    const bool there = INSIDE(od, OD) && INSIDE(oh, OH) && INSIDE(ow, OW);                                           \
    const bool hit = there && HIT(td, KD, JD) && HIT(th, KH, JH) && HIT(tw, KW, JW);                                 \
    const int tap = hit ? (int)((td / JD * KH + th / JH) * KW + tw / JW) : -1;                                       \
    const Index o = n * Y_N + c * Y_C + od * Y_D + oh * Y_H + ow * Y_W;

#ifdef MAX_POOL_GRAD
extern "C" __global__ void __launch_bounds__(256) max_pool_grad(const T *g, const I *index, T *dx, SIZES)
{
    FOR_EACH(t, TOTAL) {
        SPLIT()
        A sum[V];
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = 0;
        COVERING {
            TAP
            if (tap >= 0) {
                const auto places = load<V>(index + o);
                const auto gradients = load<V>(g + o);
#pragma unroll
                for (int k = 0; k < V; ++k)
                    if ((int)places.v[k] == tap) sum[k] += (A)widen(gradients.v[k]);
            }
        }
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; ++k) result.v[k] = narrow<T>(sum[k]);
        store<V>(dx + n * X_N + c * X_C + d * X_D + h * X_H + w * X_W, result);
    }
}
#endif

// The gradient in blocks of one stride: the SH x SW positions of a block are covered by the same few windows, which are
// read once for all of them. BLOCKS_H, BLOCKS_W: blocks per image, and quotients. Two axes, no dilation, channels inside.
#ifdef MAX_POOL_GRAD_BLOCKS
extern "C" __global__ void __launch_bounds__(256) max_pool_grad_blocks(const T *g, const I *index, T *dx, SIZES)
{
    FOR_EACH(t, TOTAL) {
        Index rest = t;
        NEXT(chunk, CHUNKS, by_CHUNKS) NEXT(bw, BLOCKS_W, by_BLOCKS_W) NEXT(bh, BLOCKS_H, by_BLOCKS_H)
        const Index n = rest, c = chunk * V;
        const Index top = bh * SH - PH, left = bw * SW - PW;
        const Index from = n * Y_N + c * Y_C + bh * Y_H + bw * Y_W, to = n * X_N + c * X_C + top * X_H + left * X_W;
        A sum[SH][SW][V];
#pragma unroll
        for (int i = 0; i < SH * SW * V; ++i) (&sum[0][0][0])[i] = 0;
#pragma unroll
        for (int qh = 0; qh <= (KH - 1) / SH; ++qh)
#pragma unroll
            for (int qw = 0; qw <= (KW - 1) / SW; ++qw) {
                const Index oh = bh - qh, ow = bw - qw;
                if (INSIDE(oh, OH) && INSIDE(ow, OW)) {
                    const Index o = from - qh * Y_H - qw * Y_W;
                    const auto places = load<V>(index + o);
                    const auto gradients = load<V>(g + o);
#pragma unroll
                    for (int k = 0; k < V; ++k) {
                        const A gradient = (A)widen(gradients.v[k]);
                        const int place = (int)places.v[k];
#pragma unroll
                        for (int rh = 0; rh < SH; ++rh)
#pragma unroll
                            for (int rw = 0; rw < SW; ++rw) {
                                const int kh = qh * SH + rh, kw = qw * SW + rw;
                                if (kh < KH && kw < KW && place == kh * KW + kw) sum[rh][rw][k] += gradient;
                            }
                    }
                }
            }
#pragma unroll
        for (int rh = 0; rh < SH; ++rh)
#pragma unroll
            for (int rw = 0; rw < SW; ++rw) {
                if (INSIDE(top + rh, H) && INSIDE(left + rw, W)) {
                    Pack<T, V> result;
#pragma unroll
                    for (int k = 0; k < V; ++k) result.v[k] = narrow<T>(sum[rh][rw][k]);
                    store<V>(dx + to + rh * X_H + rw * X_W, result);
                }
            }
    }
}
#endif

#ifdef MAX_POOL_GATHER
// t at the place of each maximum; 0 where that is padding.
extern "C" __global__ void __launch_bounds__(256) max_pool_gather(const T *t_, const I *index, T *y, SIZES)
{
    FOR_EACH(t, TOTAL) {
        SPLIT(O)
        const Index o = n * Y_N + c * Y_C + d * Y_D + h * Y_H + w * Y_W;
        const auto places = load<V>(index + o);
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const int place = (int)places.v[k];
            const int kw = place % KW, kh = place / KW % KH, kd = place / (KW * KH);
            const Index xd = d * SD - PD + kd * JD, xh = h * SH - PH + kh * JH, xw = w * SW - PW + kw * JW;
            const bool real = place >= 0 && kd < KD && INSIDE(xd, D) && INSIDE(xh, H) && INSIDE(xw, W);
            const Index i = n * X_N + (c + k) * X_C + xd * X_D + xh * X_H + xw * X_W;
            result.v[k] = real ? t_[i] : narrow<T>((A)0);
        }
        store<V>(y + o, result);
    }
}
#endif

// How many elements of a window are not padding along one axis.
#define COUNT(o, S, P, K, J, SIZE, count)                                                                            \
    int count = 0;                                                                                                   \
    for (int k_ = 0; k_ < K; ++k_) count += INSIDE((o) * S - P + k_ * J, SIZE);

#if MODE == 1
#define DIVISOR(od, oh, ow)                                                                                          \
    COUNT(od, SD, PD, KD, JD, D, count_d) COUNT(oh, SH, PH, KH, JH, H, count_h) COUNT(ow, SW, PW, KW, JW, W, count_w) \
    const int product = count_d * count_h * count_w;                                                                 \
    const A divisor = (A)(product < 1 ? 1 : product);
#elif MODE == 0
#define DIVISOR(od, oh, ow) const A divisor = (A)(KD * KH * KW);
#else
#define DIVISOR(od, oh, ow) const A divisor = (A)1;
#endif

#ifdef AVG_POOL
extern "C" __global__ void __launch_bounds__(256) avg_pool(const T *x, T *y, SIZES)
{
    FOR_EACH(t, TOTAL) {
        SPLIT(O)
        const Index d0 = d * SD - PD, h0 = h * SH - PH, w0 = w * SW - PW;
        const T *base = x + n * X_N + c * X_C;
        A sum[V];
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = 0;
        WINDOWS {
            const Index xd = d0 + kd * JD, xh = h0 + kh * JH, xw = w0 + kw * JW;
            if (ALL_WITHIN || (INSIDE(xd, D) && INSIDE(xh, H) && INSIDE(xw, W))) {
                const auto elements = load<V>(base + xd * X_D + xh * X_H + xw * X_W);
#pragma unroll
                for (int k = 0; k < V; ++k) sum[k] += (A)widen(elements.v[k]);
            }
        }
        DIVISOR(d, h, w)
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; ++k) result.v[k] = narrow<T>(sum[k] / divisor);
        store<V>(y + n * Y_N + c * Y_C + d * Y_D + h * Y_H + w * Y_W, result);
    }
}
#endif

#ifdef AVG_POOL_GRAD
extern "C" __global__ void __launch_bounds__(256) avg_pool_grad(const T *g, T *dx, SIZES)
{
    FOR_EACH(t, TOTAL) {
        SPLIT()
        A sum[V];
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = 0;
        COVERING {
            TAP
            if (tap >= 0) {
                DIVISOR(od, oh, ow)
                const A share = (A)1 / divisor;
                const auto gradients = load<V>(g + o);
#pragma unroll
                for (int k = 0; k < V; ++k) sum[k] += (A)widen(gradients.v[k]) * share;
            }
        }
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; ++k) result.v[k] = narrow<T>(sum[k]);
        store<V>(dx + n * X_N + c * X_C + d * X_D + h * X_H + w * X_W, result);
    }
}
#endif
