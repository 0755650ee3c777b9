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

extern "C" __global__ void __launch_bounds__(256) cross_entropy(const T *x, const L *labels, A *losses)
{
    FOR_EACH_PLACE {
        const T *row = x + place(o);
        const i64 label = (i64)labels[label_at(o)];
        A largest = -(A)INFINITY_F, sum = 0, total = 0;
        for (Index c = lane; c < (Index)CLASSES; c += LANES) largest = larger(largest, (A)widen(row[c * (Index)STEP]));
        largest = over_lanes(largest, Larger(), -(A)INFINITY_F);
        for (Index c = lane; c < (Index)CLASSES; c += LANES) {
            const A apart = (A)widen(row[c * (Index)STEP]) - largest;
            sum += exp_(apart);
            total += apart;
        }
        sum = over_lanes(sum, Sum(), (A)0);
#if HAS_SMOOTHING
        total = over_lanes(total, Sum(), (A)0);
#endif
        if (lane == 0) {
            const A log_sum = log_(sum);
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
        const T *row = x + base;
        const i64 label = (i64)labels[label_at(o)];
        A largest = -(A)INFINITY_F, sum = 0;
        for (Index c = lane; c < (Index)CLASSES; c += LANES) largest = larger(largest, (A)widen(row[c * (Index)STEP]));
        largest = over_lanes(largest, Larger(), -(A)INFINITY_F);
        for (Index c = lane; c < (Index)CLASSES; c += LANES) sum += exp_((A)widen(row[c * (Index)STEP]) - largest);
        sum = over_lanes(sum, Sum(), (A)0);
        const A scale = (A)1 / sum, gradient = g[loss_at(o)];
        const bool known = label >= 0 && label < (i64)CLASSES;
#if HAS_IGNORE
        const bool ignored = label == (i64)IGNORE;
#else
        const bool ignored = false;
#endif
        for (Index c = lane; c < (Index)CLASSES; c += LANES) {
            const A p = exp_((A)widen(row[c * (Index)STEP]) - largest) * scale;
            A wanted = (A)(SMOOTHING) / (A)CLASSES;
            if ((i64)c == label) wanted += (A)(1 - SMOOTHING);
            const A d = ignored ? (A)0 : known ? gradient * (p - wanted) : NAN_A;
            dx[base + c * (Index)STEP] = narrow<T>(d);
        }
    }
}
