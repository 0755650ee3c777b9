// Connectionist temporal classification: a block per sequence walks through its steps, threads share the states.
//
// Constants: T (log-probabilities), Index, TIME, BATCH, CLASSES, LABELS (S, of a row of targets), STATES (2 S + 1),
// BLANK, THREADS, ZERO_INFINITY, NORMALIZED, KEEP, SHARED (whether two rows of states fit into shared memory; they
// lie in `rows` otherwise). Sums are done by threads of one block in one order: bit-equal from run to run.
typedef Wide<T>::type A;

__device__ __forceinline__ f32 exp_(f32 v) { return expf(v); }
__device__ __forceinline__ f64 exp_(f64 v) { return exp(v); }
__device__ __forceinline__ f32 log_(f32 v) { return logf(v); }
__device__ __forceinline__ f64 log_(f64 v) { return log(v); }

#define NEVER (-(A)INFINITY_F)
#define NAN_A ((A)__int_as_float(0x7fffffff))
#define ROW (STATES + 2)

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

// log(exp(a) + exp(b) + exp(c)); NaN stays.
__device__ __forceinline__ A log_sum(A a, A b, A c)
{
    const A top = larger(a, larger(b, c));
    return top == NEVER ? NEVER : top + log_(exp_(a - top) + exp_(b - top) + exp_(c - top));
}

// One sequence: its number, steps, labels; wrong: a length or label that is not there.
struct Sequence {
    Index n, steps, count;
    const i64 *labels;
    bool wrong;
};

__device__ __forceinline__ Sequence sequence_of(Index n, const i64 *targets, const i64 *lengths, const i64 *counts)
{
    const i64 steps = lengths[n], count = counts[n];
    Sequence q = {n, 0, 0, targets + n * (Index)LABELS, true};
    int bad = steps < 0 || steps > TIME || count < 0 || count > LABELS;
    if (!bad)
        for (Index s = threadIdx.x; s < (Index)count; s += THREADS) bad |= q.labels[s] < 0 || q.labels[s] >= CLASSES;
    if (over_block(bad, Larger(), 0)) return q;
    q.steps = (Index)steps;
    q.count = (Index)count;
    q.wrong = false;
    return q;
}

__device__ __forceinline__ Index class_of(const Sequence &q, Index s)
{
    return s & 1 ? (Index)q.labels[s >> 1] : (Index)BLANK;
}

// Whether state s may follow state s - 2.
__device__ __forceinline__ bool skips(const Sequence &q, Index s)
{
    return (s & 1) && s > 2 && q.labels[s >> 1] != q.labels[(s >> 1) - 1];
}

__device__ __forceinline__ A score(const Sequence &q, const T *x, Index t, Index s)
{
    return (A)widen(x[(t * (Index)BATCH + q.n) * (Index)CLASSES + class_of(q, s)]);
}

// -log of the ways that end in the last label or the blank behind it, of the last step's states.
__device__ __forceinline__ A loss_of(const Sequence &q, const A *last)
{
    if (q.steps == 0) return q.count ? -NEVER : (A)0;
    return -log_sum(last[2 * q.count], q.count ? last[2 * q.count - 1] : NEVER, NEVER);
}

extern "C" __global__ void __launch_bounds__(THREADS)
ctc_loss(const T *x, const i64 *targets, const i64 *lengths, const i64 *counts, A *losses, A *alpha, A *rows)
{
    DYNAMIC_SHARED(A, near_rows);
    for (Index n = blockIdx.x; n < (Index)BATCH; n += gridDim.x) {
        const Sequence q = sequence_of(n, targets, lengths, counts);
        const Index states = 2 * q.count + 1;
        A *before = SHARED ? near_rows : rows + n * (Index)(2 * ROW), *now = before + ROW;
        if (threadIdx.x < 2) before[threadIdx.x] = now[threadIdx.x] = NEVER;
        for (Index t = 0; t < q.steps; t++) {
            for (Index s = threadIdx.x; s < (Index)STATES; s += THREADS) {
                A v = NEVER;
                if (s < states) {
                    if (t)
                        v = log_sum(before[s + 2], before[s + 1], skips(q, s) ? before[s] : NEVER);
                    else if (s < 2)
                        v = 0;
                    v += score(q, x, t, s);  // NaN reaches states that nothing leads to, as in the reference
                }
                now[s + 2] = v;
#if KEEP
                alpha[(t * (Index)BATCH + n) * (Index)STATES + s] = v;
#endif
            }
            __syncthreads();
            A *const other = before;
            before = now;
            now = other;
        }
        if (threadIdx.x == 0) {
            const A loss = q.wrong ? NAN_A : loss_of(q, before + 2);
            losses[n] = ZERO_INFINITY && loss == -NEVER ? (A)0 : loss;
        }
#if KEEP
        for (Index t = q.steps; t < (Index)TIME; t++)
            for (Index s = threadIdx.x; s < (Index)STATES; s += THREADS)
                alpha[(t * (Index)BATCH + n) * (Index)STATES + s] = NEVER;
#endif
        __syncthreads();
    }
}

// The ways back from the end; share [TIME, BATCH, STATES]: the probability of each state, given the labels. For each
// label `next` is 1 + the place of the next equal one, 0 where there is none; -1 - that where one was before.
extern "C" __global__ void __launch_bounds__(THREADS)
ctc_shares(const T *x, const i64 *targets, const i64 *lengths, const i64 *counts, const A *alpha, A *share, A *losses,
           i32 *next, A *rows)
{
    DYNAMIC_SHARED(A, near_rows);
    for (Index n = blockIdx.x; n < (Index)BATCH; n += gridDim.x) {
        const Sequence q = sequence_of(n, targets, lengths, counts);
        const Index states = 2 * q.count + 1;
        for (Index i = threadIdx.x; i < q.count; i += THREADS) {
            i32 found = 0;
            for (Index j = i + 1; j < q.count && !found; j++)
                if (q.labels[j] == q.labels[i]) found = (i32)(j + 1);
            for (Index j = 0; j < i; j++)
                if (q.labels[j] == q.labels[i]) { found = -found - 1; break; }
            next[n * (Index)LABELS + i] = found;
        }
        const A loss = q.wrong ? NAN_A : loss_of(q, alpha + (Index)((q.steps - (q.steps > 0)) * (Index)BATCH + n) * STATES);
        if (threadIdx.x == 0) losses[n] = loss;
        A *before = SHARED ? near_rows : rows + n * (Index)(2 * ROW), *now = before + ROW;
        for (Index k = q.steps; k > 0; k--) {
            const Index t = k - 1;
            for (Index s = threadIdx.x; s < states; s += THREADS) {
                A v = NEVER;
                if (k < q.steps) {
                    const A on = s + 1 < states ? before[s + 1] : NEVER;
                    v = log_sum(before[s], on, s + 2 < states && skips(q, s + 2) ? before[s + 2] : NEVER);
                } else if (s + 2 >= states)
                    v = 0;
                const A ways = alpha[(t * (Index)BATCH + n) * (Index)STATES + s];
                const A own = score(q, x, t, s);
                // own - own: 0, or NaN where the score is not finite.
                share[(t * (Index)BATCH + n) * (Index)STATES + s] =
                    ways == NEVER ? (A)0 : exp_(ways + v + loss) + (own - own);
                now[s] = v + own;
            }
            __syncthreads();
            A *const other = before;
            before = now;
            now = other;
        }
        __syncthreads();
    }
}

// A block per step of a sequence: the classes' gradient, from which the shares of their states are taken.
extern "C" __global__ void __launch_bounds__(THREADS)
ctc_grad(const T *x, const i64 *targets, const i64 *lengths, const i64 *counts, const A *share, const A *losses,
         const i32 *next, const A *g, T *dx)
{
    for (Index row = blockIdx.x; row < (Index)TIME * BATCH; row += gridDim.x) {
        const Index n = row % (Index)BATCH, t = row / (Index)BATCH;
        const T *from = x + row * (Index)CLASSES;
        T *to = dx + row * (Index)CLASSES;
        const A loss = losses[n], slope = g[n];
        const bool ended = loss == loss && t >= (Index)lengths[n];  // of a wrong sequence every step is NaN
        if (ended || loss != loss || loss == -NEVER) {
            const T value = narrow<T>(ended || (loss == -NEVER && ZERO_INFINITY) ? (A)0 : NAN_A);
            for (Index c = threadIdx.x; c < (Index)CLASSES; c += THREADS) to[c] = value;
            continue;
        }
        const i64 *labels = targets + n * (Index)LABELS;
        const Index count = (Index)counts[n];
        const A *own = share + row * (Index)STATES;
        A blanks = 0;
        for (Index s = 2 * threadIdx.x; s < 2 * count + 1; s += 2 * THREADS) blanks += own[s];
        for (Index i = threadIdx.x; i < count; i += THREADS)
            if (labels[i] == BLANK) blanks += own[2 * i + 1];
        for (Index c = threadIdx.x; c < (Index)CLASSES; c += THREADS)
            to[c] = narrow<T>((NORMALIZED ? exp_((A)widen(from[c])) : (A)0) * slope);
        blanks = over_block(blanks, Sum(), (A)0);
        for (Index i = threadIdx.x; i <= count; i += THREADS) {
            A sum = blanks;
            Index c = BLANK;
            if (i < count) {
                i32 at = next[n * (Index)LABELS + i];
                c = (Index)labels[i];
                if (at < 0 || c == BLANK) continue;
                sum = own[2 * i + 1];
                while (at) {
                    const Index j = at - 1;
                    sum += own[2 * j + 1];
                    at = -next[n * (Index)LABELS + j] - 1;
                }
            }
            const A base = NORMALIZED ? exp_((A)widen(from[c])) : (A)0;
            to[c] = narrow<T>((base - sum) * slope);
        }
        __syncthreads();
    }
}
