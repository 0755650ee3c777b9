// Features in boxes, and which of many boxes are kept.
//
// Constants of the former: T, Index, COUNT (boxes), N C H W (images), BINS_H BINS_W, SCALE, RATIO (samples of a bin along
// each axis, 0 for as many as it has elements), ALIGNED, COUNT_BITS. Of the latter: T, BOXES, THRESHOLD, WORDS (of 64
// boxes).
typedef Wide<T>::type A;

#ifdef BINS_H
#include "fixed_sum.cuh"

__device__ __forceinline__ f32 floor_(f32 v) { return floorf(v); }
__device__ __forceinline__ f64 floor_(f64 v) { return floor(v); }
__device__ __forceinline__ f32 ceil_(f32 v) { return ceilf(v); }
__device__ __forceinline__ f64 ceil_(f64 v) { return ceil(v); }

// The samples of one bin along one axis.
struct Line { A low, step; int count; };

__device__ __forceinline__ Line line_of(A low, A high, int bins, int bin)
{
    A size = high - low;
    if (!ALIGNED && size < 1) size = 1;
    const A wide = size / bins, whole = ceil_(wide);
    const int count = wide - wide != 0 ? 0 : RATIO ? RATIO : wide > 0 && wide < (A)MOST_SAMPLES ? (int)whole : 0;
    const A step = wide / (count > 0 ? count : 1);
    return {low + bin * wide + step / 2, step, count};
}

// What a sample reads along an axis of n elements: two elements and the second one's weight; inside: whether any.
struct Pair { Index first, second; A weight; bool inside; };

__device__ __forceinline__ Pair pair_of(const Line &line, int sample, int n)
{
    A place = line.low + sample * line.step;
    Pair p;
    p.inside = place >= -1 && place <= n;
    place = place > 0 ? place < n - 1 ? place : (A)(n - 1) : (A)0;
    p.first = (Index)floor_(place);
    p.second = p.first + 1 < n ? p.first + 1 : p.first;
    p.weight = place - (A)p.first;
    return p;
}

#define SHIFT (ALIGNED ? (A)0.5 : (A)0)
// The bin, channel and box of thread t, its samples, and its image (-1: it is not there).
#define SPLIT                                                                                                        \
    const int bin_w = (int)(t % BINS_W), bin_h = (int)(t / BINS_W % BINS_H);                                         \
    const Index c = (Index)t / (BINS_W * BINS_H) % (Index)C;                                                         \
    const T *box = boxes + (Index)t / (BINS_W * BINS_H) / (Index)C * 5;                                              \
    const A number = (A)widen(box[0]);                                                                               \
    const Index image = number > -1 && number < N ? (Index)number : (Index)-1;                                       \
    const Line across = line_of((A)widen(box[1]) * (A)(SCALE) - SHIFT, (A)widen(box[3]) * (A)(SCALE) - SHIFT,        \
                                BINS_W, bin_w);                                                                      \
    const Line down = line_of((A)widen(box[2]) * (A)(SCALE) - SHIFT, (A)widen(box[4]) * (A)(SCALE) - SHIFT,          \
                              BINS_H, bin_h);                                                                        \
    const A share = (A)1 / (across.count * down.count > 0 ? (A)across.count * (A)down.count : (A)1);                 \
    const Index plane = (image * (Index)C + c) * ((Index)H * W);

#define FOR_SAMPLES                                                                                                  \
    for (int i = 0; i < down.count; i++)                                                                             \
        for (int j = 0; j < across.count; j++)                                                                       \
            if (const Pair v = pair_of(down, i, H), h = pair_of(across, j, W); v.inside && h.inside)

extern "C" __global__ void __launch_bounds__(256) roi_align(const T *x, const T *boxes, T *y)
{
    FOR_EACH (t, (i64)COUNT * C * BINS_H * BINS_W) {
        SPLIT
        A sum = image < 0 ? (A)(INFINITY_F - INFINITY_F) : (A)0;
        if (image >= 0) FOR_SAMPLES {
            const T *above = x + plane + v.first * (Index)W, *below = x + plane + v.second * (Index)W;
            const A top = (A)widen(above[h.first]) * (1 - h.weight) + (A)widen(above[h.second]) * h.weight;
            const A bottom = (A)widen(below[h.first]) * (1 - h.weight) + (A)widen(below[h.second]) * h.weight;
            sum += top * (1 - v.weight) + bottom * v.weight;
        }
        y[t] = narrow<T>(sum * share);
    }
}

extern "C" __global__ void __launch_bounds__(256)
roi_align_grad(const T *g, const T *boxes, u64 *sums, const FixedRange *range)
{
    const f64 scale = fixed_scale(range);
    FOR_EACH (t, (i64)COUNT * C * BINS_H * BINS_W) {
        SPLIT
        const A own = (A)widen(g[t]) * share;
        if (image >= 0) FOR_SAMPLES {
            u64 *above = sums + plane + v.first * (Index)W, *below = sums + plane + v.second * (Index)W;
            fixed_add(above + h.first, own * (1 - v.weight) * (1 - h.weight), scale);
            fixed_add(above + h.second, own * (1 - v.weight) * h.weight, scale);
            fixed_add(below + h.first, own * v.weight * (1 - h.weight), scale);
            fixed_add(below + h.second, own * v.weight * h.weight, scale);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
roi_align_odd(const T *g, const T *boxes, const FixedRange *range, T *dx)
{
    if (!range->odd) return;
    FOR_EACH (t, (i64)COUNT * C * BINS_H * BINS_W) {
        SPLIT
        if (share != share || is_finite((A)widen(g[t])) || image < 0) continue;
        FOR_SAMPLES {
            const T bad = narrow<T>((A)(INFINITY_F - INFINITY_F));
            dx[plane + v.first * (Index)W + h.first] = dx[plane + v.first * (Index)W + h.second] = bad;
            dx[plane + v.second * (Index)W + h.first] = dx[plane + v.second * (Index)W + h.second] = bad;
        }
    }
}
#endif

#ifdef BOXES
struct Corners { A x1, y1, x2, y2; };

__device__ __forceinline__ Corners corners(const T *boxes, int i)
{
    const T *b = boxes + (i64)i * 4;
    return {(A)widen(b[0]), (A)widen(b[1]), (A)widen(b[2]), (A)widen(b[3])};
}

__device__ __forceinline__ bool overlap(const Corners &a, const Corners &b)
{
    const A w = smaller(a.x2, b.x2) - larger(a.x1, b.x1), h = smaller(a.y2, b.y2) - larger(a.y1, b.y1);
    const A both = larger(w, (A)0) * larger(h, (A)0);
    return both / ((a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1) - both) > (A)(THRESHOLD);
}

// A thread per box and word: which of 64 boxes behind it the box overlaps.
extern "C" __global__ void __launch_bounds__(256) overlaps(const T *boxes, u64 *found)
{
    typedef i64 Index;
    FOR_EACH (t, (i64)BOXES * WORDS) {
        const int i = (int)(t / WORDS), first = (int)(t % WORDS) * 64;
        const Corners own = corners(boxes, i);
        u64 bits = 0;
        for (int k = 0; k < 64 && first + k < BOXES; k++)
            if (first + k > i && overlap(own, corners(boxes, first + k))) bits |= (u64)1 << k;
        found[t] = bits;
    }
}

// One block: from the best box on, each that is left takes those that it overlaps away.
extern "C" __global__ void __launch_bounds__(256) keep_boxes(const u64 *found, u64 *gone, bool *kept)
{
    for (int w = threadIdx.x; w < WORDS; w += 256) gone[w] = 0;
    __syncthreads();
    for (int i = 0; i < BOXES; i++) {
        const bool left = !(gone[i / 64] >> (i % 64) & 1);
        __syncthreads();
        if (threadIdx.x == 0) kept[i] = left;
        if (left)
            for (int w = i / 64 + threadIdx.x; w < WORDS; w += 256) gone[w] |= found[(i64)i * WORDS + w];
        __syncthreads();
    }
}
#endif
