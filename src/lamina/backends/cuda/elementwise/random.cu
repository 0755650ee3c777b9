// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): dropout and random tensors.
//
// Element i, counted row-major over the logical shape, takes word i % 4 of block counter + i / 4. One thread makes
// one block: four elements. Constants: Index, T, ELEMENTS, function at(i): the offset of element i in memory (x, y
// and the mask lie alike), LOW, RANGE, MEAN, STD of the distributions. Dropout and its mask take their number, and the
// probability, as arguments.
struct Words { u32 w[4]; };

__device__ __forceinline__ Words philox(u64 seed, u64 counter)
{
    u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

#define FOR_EACH_BLOCK                                                                                               \
    const u64 seed = (u64)state[0], counter = (u64)state[1];                                                         \
    const Index blocks = ((Index)(ELEMENTS) + 3) / 4;                                                                \
    if (blockIdx.x == 0 && threadIdx.x == 0) {                                                                       \
        next[0] = (i64)seed;                                                                                         \
        next[1] = (i64)(counter + (u64)blocks);                                                                      \
    }                                                                                                                \
    for (Index b = (Index)blockIdx.x * 256 + threadIdx.x; b < blocks; b += (Index)gridDim.x * 256)

#ifdef DROPOUT
// V (4 or 1): elements of a block that lie together in memory, and are moved at once.
#define ELEMENTS elements
extern "C" __global__ void __launch_bounds__(256)
dropout(const T *x, const i64 *state, T *y, bool *mask, i64 *next, i64 elements, u64 threshold, f64 scale)
{
    typedef Wide<T>::type A;
    FOR_EACH_BLOCK {
        const Words random = philox(seed, counter + (u64)b);
        const Index first = b * 4;
#if V == 4
        const Index i = at(first);
        const auto elements = load<4>(x + i);
        Pack<T, 4> kept;
        Pack<bool, 4> keep;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            keep.v[k] = (u64)random.w[k] >= threshold;
            kept.v[k] = keep.v[k] ? narrow<T>((A)widen(elements.v[k]) * (A)scale) : narrow<T>((A)0);
        }
        store<4>(y + i, kept);
        store<4>(mask + i, keep);
#else
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (first + k < (Index)(ELEMENTS)) {
                const Index i = at(first + k);
                const bool keep = (u64)random.w[k] >= threshold;
                y[i] = keep ? narrow<T>((A)widen(x[i]) * (A)scale) : narrow<T>((A)0);
                mask[i] = keep;
            }
#endif
    }
}
#endif

#ifdef DROPOUT_MASK
#define ELEMENTS elements
extern "C" __global__ void __launch_bounds__(256)
dropout_mask(const i64 *state, T *mask, i64 *next, i64 elements, u64 threshold)
{
    FOR_EACH_BLOCK {
        const Words random = philox(seed, counter + (u64)b);
        const Index first = b * 4;
        Pack<T, 4> drawn;
#pragma unroll
        for (int k = 0; k < 4; ++k) drawn.v[k] = narrow<T>((Wide<T>::type)((u64)random.w[k] >= threshold));
#if V == 4
        store<4>(mask + first, drawn);
#else
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (first + k < (Index)(ELEMENTS)) mask[first + k] = drawn.v[k];
#endif
    }
}
#endif

#ifdef RANDOM
extern "C" __global__ void __launch_bounds__(256) random_uniform(const i64 *state, T *y, i64 *next)
{
    FOR_EACH_BLOCK {
        const Words random = philox(seed, counter + (u64)b);
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (b * 4 + k < (Index)(ELEMENTS)) {
                const f32 unit = (f32)(random.w[k] >> 8) * 5.9604644775390625e-08f;
                y[b * 4 + k] = narrow<T>(__fadd_rn((f32)LOW, __fmul_rn((f32)RANGE, unit)));
            }
    }
}

// Box and Muller: words (u, v) give sqrt(-2 log((u + 1) / 2^32)) times cosine and sine of 2 pi v / 2^32.
extern "C" __global__ void __launch_bounds__(256) random_normal(const i64 *state, T *y, i64 *next)
{
    FOR_EACH_BLOCK {
        const Words random = philox(seed, counter + (u64)b);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const f64 u = (f64)random.w[2 * pair] * 0x1p-32, v = (f64)random.w[2 * pair + 1] * 0x1p-32;
            const f64 radius = sqrt(-2.0 * log(u + 0x1p-32));
            f64 sine, cosine;
            sincospi(2.0 * v, &sine, &cosine);
            const Index i = b * 4 + 2 * pair;
            if (i < (Index)(ELEMENTS)) y[i] = narrow<T>((f32)((f64)MEAN + (f64)STD * (radius * cosine)));
            if (i + 1 < (Index)(ELEMENTS)) y[i + 1] = narrow<T>((f32)((f64)MEAN + (f64)STD * (radius * sine)));
        }
    }
}
#endif
