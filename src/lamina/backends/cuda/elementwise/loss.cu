// Cross-entropy of logits and integer labels, and its gradient.
//
// Constants: Index, T (logits), L (labels), LANES, OUTPUTS (places), CLASSES, SMOOTHING, IGNORE (a label) if
// HAS_IGNORE, STEP (stride of a class in the logits), and functions place(o): the logits' offset of class 0,
// label_at(o) and loss_at(o): offsets of labels and losses.
typedef Wide<T>::type A;

template <class F> __device__ __forceinline__ A over_lanes(A v, F combine, A neutral)
{
#if LANES == 32
    return over_warp(v, combine);
#elif LANES == 256
    return over_block(v, combine, neutral);
#else
    return v;
#endif
}

__device__ __forceinline__ f32 exp_(f32 v) { return expf(v); }
__device__ __forceinline__ f64 exp_(f64 v) { return exp(v); }
__device__ __forceinline__ f32 log_(f32 v) { return logf(v); }
__device__ __forceinline__ f64 log_(f64 v) { return log(v); }

#define NAN_A ((A)__int_as_float(0x7fffffff))
#define FOR_EACH_PLACE                                                                                               \
    const int lane = threadIdx.x % LANES;                                                                            \
    const Index step = (Index)gridDim.x * (256 / LANES);                                                             \
    for (Index o = (Index)blockIdx.x * (256 / LANES) + threadIdx.x / LANES; o < (Index)OUTPUTS; o += step)

// Classes that lie in 16 aligned bytes are read, and written, at once, where each lane has some.
#define WIDE (16 / (int)sizeof(T))
#define BY_PACKS (STEP == 1 && LANES > 1 && CLASSES >= LANES * WIDE)

// How many of a row's classes, one behind the other, come before the first 16 aligned bytes.
__device__ __forceinline__ Index before_aligned(const T *row)
{
    const Index count = (Index)((16 - (u64)row % 16) % 16 / sizeof(T));
    return count < (Index)CLASSES ? count : (Index)CLASSES;
}

// Calls f(class, logit) for the classes of this lane.
template <class F> __device__ __forceinline__ void for_each_class(const T *row, int lane, F f)
{
    if (!BY_PACKS) {
        for (Index c = lane; c < (Index)CLASSES; c += LANES) f(c, (A)widen(row[c * (Index)STEP]));
        return;
    }
    const Index head = before_aligned(row), packs = ((Index)CLASSES - head) / WIDE, tail = head + packs * WIDE;
    if (lane < head) f((Index)lane, (A)widen(row[lane]));
    for (Index p = lane; p < packs; p += LANES) {
        const Index first = head + p * WIDE;
        const Pack<T, WIDE> logits = load<WIDE>(row + first);
#pragma unroll
        for (int e = 0; e < WIDE; ++e) f(first + e, (A)widen(logits.v[e]));
    }
    if (tail + lane < (Index)CLASSES) f(tail + lane, (A)widen(row[tail + lane]));
}

// out = f(class, logit) for the classes of this lane; out may be the row itself.
template <class F> __device__ __forceinline__ void map_classes(const T *row, T *out, int lane, F f)
{
    if (!BY_PACKS || ((u64)row ^ (u64)out) % 16) {
        for (Index c = lane; c < (Index)CLASSES; c += LANES)
            out[c * (Index)STEP] = narrow<T>(f(c, (A)widen(row[c * (Index)STEP])));
        return;
    }
    const Index head = before_aligned(row), packs = ((Index)CLASSES - head) / WIDE, tail = head + packs * WIDE;
    if (lane < head) out[lane] = narrow<T>(f((Index)lane, (A)widen(row[lane])));
    for (Index p = lane; p < packs; p += LANES) {
        const Index first = head + p * WIDE;
        Pack<T, WIDE> values = load<WIDE>(row + first);
#pragma unroll
        for (int e = 0; e < WIDE; ++e) values.v[e] = narrow<T>(f(first + e, (A)widen(values.v[e])));
        store<WIDE>(out + first, values);
    }
    if (tail + lane < (Index)CLASSES) out[tail + lane] = narrow<T>(f(tail + lane, (A)widen(row[tail + lane])));
}

// The largest logit of a row, and the sum of exp(logit - largest), in one pass: the sum is scaled where a larger
// logit is met. It is NaN where a logit is NaN or positive infinity.
__device__ __forceinline__ A sum_of_exponentials(const T *row, int lane, A &largest)
{
    A own = -(A)INFINITY_F, sum = 0;
    for_each_class(row, lane, [&](Index, A v) {
        if (v > own) {
            sum = sum * exp_(own - v) + ((v - v) + (A)1);
            own = v;
        } else if (v != -(A)INFINITY_F) {
            sum += exp_(v - own);
        }
    });
    largest = over_lanes(own, Larger(), -(A)INFINITY_F);
    return over_lanes(own == largest ? sum : sum * exp_(own - largest), Sum(), (A)0);
}

extern "C" __global__ void __launch_bounds__(256) cross_entropy(const T *x, const L *labels, A *losses)
{
    FOR_EACH_PLACE {
        const T *row = x + place(o);
        const i64 label = (i64)labels[label_at(o)];
        A largest;
        const A log_sum = log_(sum_of_exponentials(row, lane, largest));
#if HAS_SMOOTHING
        A total = 0;
        for_each_class(row, lane, [&](Index, A v) { total += v - largest; });
        total = over_lanes(total, Sum(), (A)0);
#endif
        if (lane == 0) {
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
    FOR_EACH_PLACE {
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
        map_classes(x + base, dx + base, lane, [&](Index c, A v) {
            A wanted = (A)(SMOOTHING) / (A)CLASSES;
            if ((i64)c == label) wanted += (A)(1 - SMOOTHING);
            return ignored ? (A)0 : known ? gradient * (exp_(v - largest) * scale - wanted) : NAN_A;
        });
    }
}
