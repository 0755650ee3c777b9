// Cross-entropy of logits and integer labels, and its gradient.
//
// Constants: Index, T (logits), L (labels), LANES (threads that share a place: a power of two), OUTPUTS (places),
// CLASSES, SMOOTHING, IGNORE (a label) if HAS_IGNORE, STEP (stride of a class in the logits), and functions place(o):
// the logits' offset of class 0, label_at(o) and loss_at(o): offsets of labels and losses.
typedef Wide<T>::type A;

template <class F> __device__ __forceinline__ A over_lanes(A v, F combine, A neutral)
{
#if LANES > 32
    return over_block(v, combine, neutral);
#else
    return over_lanes_of<LANES>(v, combine);
#endif
}

// Logits of half types are rounded by more than the special function units lose.
__device__ __forceinline__ f32 exp_(f32 v) { return sizeof(T) == 2 ? __expf(v) : expf(v); }
__device__ __forceinline__ f64 exp_(f64 v) { return exp(v); }
__device__ __forceinline__ f32 log_(f32 v) { return logf(v); }
__device__ __forceinline__ f64 log_(f64 v) { return log(v); }
// The larger one of a number and NaN is the number.
__device__ __forceinline__ f32 larger_number(f32 a, f32 b) { return fmaxf(a, b); }
__device__ __forceinline__ f64 larger_number(f64 a, f64 b) { return fmax(a, b); }

#define NAN_A ((A)__int_as_float(0x7fffffff))
// Every thread takes each turn, as sums over lanes need all of a warp: one whose own place (`turned`) is beyond the last
// computes that one (`o`), and writes nothing.
#define FOR_EACH_PLACE(o, turned)                                                                                    \
    const int lane = threadIdx.x % LANES;                                                                            \
    const Index last = (Index)OUTPUTS - 1, step = (Index)gridDim.x * (256 / LANES);                                  \
    Index turned = (Index)blockIdx.x * (256 / LANES) + threadIdx.x / LANES, o = turned < last ? turned : last;       \
    for (Index turns = last / step + 1; turns; --turns, turned += step, o = turned < last ? turned : last)

// Classes that lie in 16 aligned bytes are read, and written, at once, where each lane has some.
#define WIDE (16 / (int)sizeof(T))
#define BY_PACKS (STEP == 1 && LANES > 1 && CLASSES >= LANES * WIDE)

// How many of a row's classes, one behind the other, come before the first 16 aligned bytes.
__device__ __forceinline__ Index before_aligned(const T *row)
{
    const Index count = (Index)((16 - (u64)row % 16) % 16 / sizeof(T));
    return count < (Index)CLASSES ? count : (Index)CLASSES;
}

// Calls f(logits) for the classes of this lane: one, or those of 16 bytes.
template <class F> __device__ __forceinline__ void for_each_class(const T *row, int lane, F &f)
{
    const Index head = BY_PACKS ? before_aligned(row) : 0, packs = BY_PACKS ? ((Index)CLASSES - head) / WIDE : 0;
    for (Index c = lane; c < head; c += LANES) f(load<1>(row + c));
#pragma unroll 4
    for (Index p = lane; p < packs; p += LANES) f(load<WIDE>(row + head + p * WIDE));
#pragma unroll 4
    for (Index c = head + packs * WIDE + lane; c < (Index)CLASSES; c += LANES) f(load<1>(row + c * (Index)STEP));
}

// out = f(class, logit) for this lane's part of `count` times N classes from `begin` on. As out may be the row itself,
// loads wait for the stores before them: several are under way at a time.
#define BATCH 4
template <int N, class F>
__device__ __forceinline__ void map_part(const T *row, T *out, Index begin, Index count, int lane, F f)
{
    for (Index p = lane; p < count; p += BATCH * LANES) {
        Pack<T, N> held[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            const Index first = begin + (p + k * LANES) * N;
            if (p + k * LANES < count) held[k] = load<N>(row + first * (Index)STEP);
        }
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            const Index first = begin + (p + k * LANES) * N;
            if (p + k * LANES >= count) break;
#pragma unroll
            for (int e = 0; e < N; ++e) held[k].v[e] = narrow<T>(f(first + e, (A)widen(held[k].v[e])));
            store<N>(out + first * (Index)STEP, held[k]);
        }
    }
}

// The same for all classes.
template <class F> __device__ __forceinline__ void map_classes(const T *row, T *out, int lane, F f)
{
    const bool together = BY_PACKS && ((u64)row ^ (u64)out) % 16 == 0;
    const Index head = together ? before_aligned(row) : 0, packs = together ? ((Index)CLASSES - head) / WIDE : 0;
    const Index tail = head + packs * WIDE;
    map_part<1>(row, out, 0, head, lane, f);
    map_part<WIDE>(row, out, head, packs, lane, f);
    map_part<1>(row, out, tail, (Index)CLASSES - tail, lane, f);
}

// The largest of some logits, and the sum of exp(logit - largest), scaled where a larger one is met.
struct Exponentials
{
    A largest, sum;

    template <int N> __device__ __forceinline__ void operator()(const Pack<T, N> &logits)
    {
        A top = largest;
#pragma unroll
        for (int e = 0; e < N; ++e) top = larger_number(top, (A)widen(logits.v[e]));
        if (top > largest) {
            sum *= exp_(largest - top);
            largest = top;
        }
        const A base = largest == -(A)INFINITY_F ? (A)0 : largest;
#pragma unroll
        for (int e = 0; e < N; ++e) sum += exp_((A)widen(logits.v[e]) - base);
    }
};

// The sum of logit - origin.
struct Distances
{
    A origin, sum;

    template <int N> __device__ __forceinline__ void operator()(const Pack<T, N> &logits)
    {
#pragma unroll
        for (int e = 0; e < N; ++e) sum += (A)widen(logits.v[e]) - origin;
    }
};

// The largest logit of a row, and the sum of exp(logit - largest), in one pass. It is NaN where a logit is NaN or
// positive infinity.
__device__ __forceinline__ A sum_of_exponentials(const T *row, int lane, A &largest)
{
    Exponentials own = {-(A)INFINITY_F, (A)0};
    for_each_class(row, lane, own);
    largest = over_lanes(own.largest, Larger(), -(A)INFINITY_F);
    return over_lanes(own.largest == largest ? own.sum : own.sum * exp_(own.largest - largest), Sum(), (A)0);
}

extern "C" __global__ void __launch_bounds__(256) cross_entropy(const T *x, const L *labels, A *losses)
{
    FOR_EACH_PLACE(o, turned) {
        const T *row = x + place(o);
        const i64 label = (i64)labels[label_at(o)];
        A largest;
        const A log_sum = log_(sum_of_exponentials(row, lane, largest));
#if HAS_SMOOTHING
        Distances distances = {largest, (A)0};
        for_each_class(row, lane, distances);
        const A total = over_lanes(distances.sum, Sum(), (A)0);
#endif
        if (lane == 0 && turned < (Index)OUTPUTS) {
            A loss = NAN_A;
            if (label >= 0 && label < (i64)CLASSES) {
                const A own = log_sum - ((A)widen(row[(Index)label * (Index)STEP]) - largest);
#if HAS_SMOOTHING
                loss = (A)(1 - SMOOTHING) * own + (A)SMOOTHING * (log_sum - total / (A)CLASSES);
#else
                loss = own;
#endif
            }
#if HAS_IGNORE
            if (label == (i64)IGNORE) loss = 0;
#endif
            losses[loss_at(o)] = loss;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
cross_entropy_grad(const T *x, const L *labels, const A *g, T *dx)
{
    FOR_EACH_PLACE(o, turned) {
        const Index base = place(o);
        const i64 label = (i64)labels[label_at(o)];
        A largest;
        const A scale = (A)1 / sum_of_exponentials(x + base, lane, largest), gradient = g[loss_at(o)];
        const bool known = label >= 0 && label < (i64)CLASSES;
#if HAS_IGNORE
        const bool ignored = label == (i64)IGNORE;
#else
        const bool ignored = false;
#endif
        if (turned >= (Index)OUTPUTS) continue;
        map_classes(x + base, dx + base, lane, [&](Index c, A v) {
            A wanted = (A)(SMOOTHING) / (A)CLASSES;
            if ((i64)c == label) wanted += (A)(1 - SMOOTHING);
            return ignored ? (A)0 : known ? gradient * (exp_(v - largest) * scale - wanted) : NAN_A;
        });
    }
}
