// Convolution with one filter per channel, and its gradients; channels last, V channels per thread in one access.
//
// A thread keeps its channels, and with them its filters, while it goes over strips of TW places along W: of the
// output, or of the input for the data gradient, where TW is a multiple of the stride so that which taps meet is known
// when the kernel is compiled. A block has CT chunks of channels times LANES strips; GROUPS blocks cover all channels.
//
// Constants: Index, T, V, TW, CT, LANES, GROUPS, N, C, H, W, OH, OW, KH, KW, SH, SW (stride), PH, PW (padding before),
// W_K W_H W_W (strides of the filter), BIAS, RELU (whether to add, to clip), UPPER (what relu clips to), FIRST (data
// gradient: the first column of g that a strip meets, from its own first place / SW on), COLUMNS (how many).
#define THREADS (CT * LANES)
#define CHANNEL ((int)(blockIdx.x % GROUPS * CT + threadIdx.x % CT) * V)
#define FOR_STRIPS(count)                                                                                            \
    for (Index strip = (Index)(blockIdx.x / GROUPS) * LANES + threadIdx.x / CT; strip < (Index)(count);              \
         strip += (Index)(gridDim.x / GROUPS) * LANES)

__device__ __forceinline__ void read_filter(const T *filter, int channel, f32 (&f)[KH][KW][V])
{
#pragma unroll
    for (int kh = 0; kh < KH; ++kh)
#pragma unroll
        for (int kw = 0; kw < KW; ++kw)
#pragma unroll
            for (int v = 0; v < V; ++v) f[kh][kw][v] = widen(filter[(channel + v) * W_K + kh * W_H + kw * W_W]);
}

__device__ __forceinline__ Pack<T, V> load_if(bool inside, const T *p)
{
    Pack<T, V> found;
#pragma unroll
    for (int v = 0; v < V; ++v) found.v[v] = narrow<T>(0.0f);
    if (inside) found = load<V>(p);
    return found;
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) depthwise(const T *x, const T *filter, const T *bias, T *y)
{
    const int channel = CHANNEL, strips = (OW + TW - 1) / TW;
    f32 f[KH][KW][V], base[V];
    read_filter(filter, channel, f);
#pragma unroll
    for (int v = 0; v < V; ++v) base[v] = BIAS ? widen(bias[channel + v]) : 0.0f;
    FOR_STRIPS((Index)N * OH * strips) {
        const Index first = strip % strips * TW, oh = strip / strips % OH, n = strip / strips / OH;
        f32 sum[TW][V];
#pragma unroll
        for (int j = 0; j < TW; ++j)
#pragma unroll
            for (int v = 0; v < V; ++v) sum[j][v] = base[v];
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            const Index h = oh * SH - PH + kh;
#pragma unroll
            for (int e = 0; e < (TW - 1) * SW + KW; ++e) {
                const Index w = first * SW - PW + e;
                const bool inside = h >= 0 && h < H && w >= 0 && w < W;
                const Pack<T, V> p = load_if(inside, x + ((n * H + h) * W + w) * C + channel);
#pragma unroll
                for (int j = 0; j < TW; ++j)
                    if (e - j * SW >= 0 && e - j * SW < KW)
#pragma unroll
                        for (int v = 0; v < V; ++v) sum[j][v] += widen(p.v[v]) * f[kh][e - j * SW][v];
            }
        }
#pragma unroll
        for (int j = 0; j < TW; ++j) {
            if (first + j >= OW) continue;
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; ++v)
                pack.v[v] = narrow<T>(RELU ? smaller(larger(sum[j][v], 0.0f), UPPER) : sum[j][v]);
            store<V>(y + ((n * OH + oh) * OW + first + j) * C + channel, pack);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) depthwise_data_grad(const T *g, const T *filter, T *dx)
{
    const int channel = CHANNEL, strips = (W + TW - 1) / TW;
    f32 f[KH][KW][V];
    read_filter(filter, channel, f);
    FOR_STRIPS((Index)N * H * strips) {
        const Index first = strip % strips * TW, h = strip / strips % H, n = strip / strips / H;
        f32 sum[TW][V];
#pragma unroll
        for (int j = 0; j < TW; ++j)
#pragma unroll
            for (int v = 0; v < V; ++v) sum[j][v] = 0.0f;
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            const Index row = h + PH - kh, oh = row / SH;
            const bool meets = row >= 0 && row % SH == 0 && oh < OH;
#pragma unroll
            for (int e = 0; e < COLUMNS; ++e) {
                const Index ow = first / SW + FIRST + e;
                const bool inside = meets && ow >= 0 && ow < OW;
                const Pack<T, V> p = load_if(inside, g + ((n * OH + oh) * OW + ow) * C + channel);
#pragma unroll
                for (int j = 0; j < TW; ++j)
#pragma unroll
                    for (int kw = 0; kw < KW; ++kw)
                        if (j + PW - kw == (FIRST + e) * SW)
#pragma unroll
                            for (int v = 0; v < V; ++v) sum[j][v] += widen(p.v[v]) * f[kh][kw][v];
            }
        }
#pragma unroll
        for (int j = 0; j < TW; ++j) {
            if (first + j >= W) continue;
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; ++v) pack.v[v] = narrow<T>(sum[j][v]);
            store<V>(dx + ((n * H + h) * W + first + j) * C + channel, pack);
        }
    }
}

// What the blocks of one group of channels found: partial [slices, KH * KW, C].
extern "C" __global__ void __launch_bounds__(THREADS, 3) depthwise_filter_grad(const T *x, const T *g, f32 *partial)
{
    __shared__ f32 part[THREADS * V];
    const int channel = CHANNEL, strips = (OW + TW - 1) / TW;
    f32 sum[KH][KW][V];
#pragma unroll
    for (int kh = 0; kh < KH; ++kh)
#pragma unroll
        for (int kw = 0; kw < KW; ++kw)
#pragma unroll
            for (int v = 0; v < V; ++v) sum[kh][kw][v] = 0.0f;
    FOR_STRIPS((Index)N * OH * strips) {
        const Index first = strip % strips * TW, oh = strip / strips % OH, n = strip / strips / OH;
        Pack<T, V> gradient[TW];
#pragma unroll
        for (int j = 0; j < TW; ++j)
            gradient[j] = load_if(first + j < OW, g + ((n * OH + oh) * OW + first + j) * C + channel);
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            const Index h = oh * SH - PH + kh;
#pragma unroll
            for (int e = 0; e < (TW - 1) * SW + KW; ++e) {
                const Index w = first * SW - PW + e;
                const bool inside = h >= 0 && h < H && w >= 0 && w < W;
                const Pack<T, V> p = load_if(inside, x + ((n * H + h) * W + w) * C + channel);
#pragma unroll
                for (int j = 0; j < TW; ++j)
                    if (e - j * SW >= 0 && e - j * SW < KW)
#pragma unroll
                        for (int v = 0; v < V; ++v)
                            sum[kh][e - j * SW][v] += widen(p.v[v]) * widen(gradient[j].v[v]);
            }
        }
    }
    f32 *own = partial + (Index)(blockIdx.x / GROUPS) * KH * KW * C + blockIdx.x % GROUPS * CT * V;
#pragma unroll
    for (int kh = 0; kh < KH; ++kh)
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
            __syncthreads();
#pragma unroll
            for (int v = 0; v < V; ++v) part[threadIdx.x * V + v] = sum[kh][kw][v];
            __syncthreads();
            for (int i = threadIdx.x; i < CT * V; i += THREADS) {
                f32 total = 0;
                for (int lane = 0; lane < LANES; ++lane) total += part[lane * CT * V + i];
                own[(kh * KW + kw) * C + i] = total;
            }
        }
}
