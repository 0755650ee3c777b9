// The negative of values at labels, and its gradient.
//
// Constants: Index, T (values), L (labels), COUNT (labels), CLASSES, POSITIONS (behind the classes), HAS_WEIGHT,
// IGNORE (a label) if HAS_IGNORE. Arrays are row-major.
typedef Wide<T>::type A;

#define NAN_A ((A)(INFINITY_F - INFINITY_F))

__device__ __forceinline__ bool counts(i64 label) { return !HAS_IGNORE || label != (i64)IGNORE; }
__device__ __forceinline__ bool is_class(i64 label) { return label >= 0 && label < (i64)CLASSES; }

// Without weights `weight` and `shares` are other arrays, and not looked at.
extern "C" __global__ void __launch_bounds__(256)
nll_loss(const T *x, const L *labels, const A *weight, T *losses, A *shares)
{
    FOR_EACH (i, (Index)COUNT) {
        const i64 label = labels[i];
        const bool inside = counts(label) && is_class(label);
        const A share = !inside ? (A)0 : HAS_WEIGHT ? weight[label] : (A)1;
        const Index at = (i / POSITIONS * CLASSES + (inside ? (Index)label : 0)) * POSITIONS + i % POSITIONS;
        const A loss = share != (A)0 ? -(A)widen(x[at]) * share : (A)0;
        losses[i] = narrow<T>(counts(label) && !is_class(label) ? NAN_A : loss);
        if (HAS_WEIGHT) shares[i] = share;
    }
}

extern "C" __global__ void __launch_bounds__(256)
nll_loss_grad(const L *labels, const T *g, const A *weight, T *x)
{
    FOR_EACH (k, (Index)COUNT * CLASSES) {
        const Index i = k / ((Index)CLASSES * POSITIONS) * POSITIONS + k % POSITIONS;
        const i64 label = labels[i];
        const bool own = counts(label) && label == (i64)(k / POSITIONS % CLASSES);
        const A share = !own ? (A)0 : HAS_WEIGHT ? weight[label] : (A)1;
        const A slope = share != (A)0 ? -(A)widen(g[i]) * share : (A)0;
        x[k] = narrow<T>(counts(label) && !is_class(label) ? NAN_A : slope);
    }
}
