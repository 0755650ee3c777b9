// All time steps of one small LSTM or GRU layer in one launch of blocks that need nothing of each other: a block does 8
// sequences, and its registers hold the recurrent weights. What the warps tell each other goes through shared memory, with
// one barrier a step; what a step reads of global memory is asked for a step ahead.
//
// A warp owns 16 hidden units, all gates of them: a product's rows g and g + 8 are the units 2 g and 2 g + 1 of the warp,
// so that a lane has two neighbouring units of two neighbouring sequences, forward and backward, and whole words of them.
//
// Constants: those of rnn.cuh; forward TRAIN (keep what the gradient needs), SEQ (the states are kept), TOP (they are y).
#include "rnn.cuh"
#define THREADS (H * 2)
#define KB (H / 32)
#define UNIT (warp * 16 + 2 * g)  // and the next one
#define SEQUENCE ((int)blockIdx.x * 8 + 2 * t)  // and the next one
#define INSIDE(e) (BATCH % 8 == 0 || SEQUENCE + (e) < BATCH)
#define ROW(width, b) ((b) * ((width) + 32) + (b) / 2 * 16)  // of shared memory: lanes read and write in different banks
#define KEPT(s) (((i64)(s) * gridDim.x + blockIdx.x) * THREADS + threadIdx.x)
#define LANE const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

__device__ __forceinline__ u32 *word_at(T *p) { return reinterpret_cast<u32 *>(p); }

// What a lane multiplies by: 8 elements of sequence g.
__device__ __forceinline__ Words shared_words(const T *row, int kb)
{
    return load<4>(reinterpret_cast<const u32 *>(row + kb * 32 + threadIdx.x % 4 * 8));
}

#ifdef FORWARD
struct Input { u32 v[GATES * 2]; };  // per gate and sequence

__device__ __forceinline__ Input input_of(const T *gx, int s)
{
    LANE
    Input x{};
    REPEAT(i, GATES) REPEAT(e, 2) if (INSIDE(e) && s < STEPS)
        x.v[i * 2 + e] = *reinterpret_cast<const u32 *>(gx + (((i64)s * BATCH + SEQUENCE + e) * GATES + i) * H + UNIT);
    return x;
}

// gx [STEPS, BATCH, GATES H]: the layer's input times W_ih. seq [STEPS + 1, BATCH, H]: all states, the first one in front.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
rnn_forward_alone(const T *gx, const Weights weights, const T *hx, const T *cx, T *seq, Gates *gates, Sums *cells, T *y,
                  T *hn, T *cn)
{
    __shared__ __align__(16) T states[2][ROW(H, 8)];
    LANE
    Input next = input_of(gx, 0);
    Fragments<KB, GATES> own;
    REPEAT(kb, KB) REPEAT(i, GATES) REPEAT(k, 2)
        own.at[kb][i][k] = eight(weights.of[0][1] + ((i64)i * H + UNIT + k) * H + kb * 32 + t * 8);
    f32 c[2][2], bias[2][4];
    REPEAT(k, 2) REPEAT(i, 4) bias[k][i] = bias_of(weights, 0, i, UNIT + k);
    REPEAT(e, 2) {
        const int at = (SEQUENCE + e) * H + UNIT;
        const u32 h = INSIDE(e) ? two(hx + at) : 0u, first = INSIDE(e) ? two(cx + at) : 0u;
        REPEAT(k, 2) c[k][e] = half_of(first, k);
        *word_at(states[0] + ROW(H, 2 * t + e) + UNIT) = h;
        if (SEQ && INSIDE(e)) *word_at(seq + at) = h;
    }
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < STEPS; ++s) {
        const Input x = next;
        next = input_of(gx, s + 1);
        f32 sum[GATES][1][4];
        clear(sum);
        Words v[KB][1];
        REPEAT(kb, KB) v[kb][0] = shared_words(states[s % 2] + ROW(H, g), kb);
        REPEAT(kb, KB) multiply(sum, own, kb, v[kb]);
        T h[2][2];
        Gates kept[2];
        REPEAT(k, 2) REPEAT(e, 2) {
            f32 gate[4];
            REPEAT(i, 4) {
                gate[i] = bias[k][i];
                if (i != NO_INPUT) gate[i] += half_of(x.v[MATRIX(i) * 2 + e], k);
                if (i != NO_STATE) gate[i] += sum[MATRIX(i)][0][2 * k + e];
            }
            h[k][e] = narrow<T>(step_of(gate, c[k][e]));
            REPEAT(i, 4) kept[k].v[e * 4 + i] = narrow<T>(gate[i]);
        }
        REPEAT(e, 2) *word_at(states[(s + 1) % 2] + ROW(H, 2 * t + e) + UNIT) = joined(h[0][e], h[1][e]);
        __syncthreads();
        REPEAT(e, 2) if (INSIDE(e)) {
            const u32 word = joined(h[0][e], h[1][e]);
            const int at = (SEQUENCE + e) * H + UNIT;
            if (SEQ) *word_at(seq + (i64)(s + 1) * BATCH * H + at) = word;
            if (TOP) put_two(y + (i64)s * BATCH * H + at, word);
            if (s == STEPS - 1) {
                put_two(hn + at, word);
                if (!GRU) put_two(cn + at, joined(narrow<T>(c[0][e]), narrow<T>(c[1][e])));
            }
        }
        if (TRAIN) {
            REPEAT(k, 2) gates[KEPT(s) * 2 + k] = kept[k];
            cells[KEPT(s)] = {c[0][0], c[0][1], c[1][0], c[1][1]};
        }
    }
}
#endif

#ifdef BACKWARD
#define INNER (GATES * KB)

// What a step left, and what arrives at its output.
struct Record { Gates kept[2]; Sums before; u32 dy[2]; };

__device__ __forceinline__ Record record_of(const Gates *gates, const Sums *cells, const T *cx, const T *dy, int step)
{
    LANE
    Record r{};
    if (step < 0) return r;
    REPEAT(k, 2) r.kept[k] = gates[KEPT(step) * 2 + k];
    if (step > 0) r.before = cells[KEPT(step - 1)];
    REPEAT(e, 2) if (INSIDE(e)) {
        r.dy[e] = two(dy + ((i64)step * BATCH + SEQUENCE + e) * H + UNIT);
        const u32 first = step > 0 ? 0u : two(cx + (SEQUENCE + e) * H + UNIT);
        REPEAT(k, 2) if (step == 0) r.before.v[2 * k + e] = half_of(first, k);
    }
    return r;
}

// gates, cells: as the forward pass left them. da, ds [STEPS, BATCH, GATES H]: gradients of the gates' sums, of what the
// input and of what the state gave; one and the same of an LSTM. dbias [blocks, 4 H]: sums over 8 sequences.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
rnn_backward_alone(const Weights weights, const Gates *gates, const Sums *cells, const T *cx, const T *dy, const T *dhn,
                   const T *dcn, T *da, T *ds, T *dhx, T *dcx, f32 *dbias)
{
    __shared__ __align__(16) T grads[2][ROW(GATES * H, 8)];
    LANE
    Record next = record_of(gates, cells, cx, dy, STEPS - 1);
    Fragments<INNER, 1> columns;
    REPEAT(kb, INNER) REPEAT(i, 4) {
        const T *from = weights.of[0][1] + (i64)(kb * 32 + t * 8 + 2 * i) * H + UNIT;
        const u32 upper = two(from), lower = two(from + H);
        columns.at[kb][0][0].v[i] = firsts(upper, lower);
        columns.at[kb][0][1].v[i] = seconds(upper, lower);
    }
    const Sums last = cells[KEPT(STEPS - 1)];
    f32 dh[2][2], dc[2][2], now[2][2], bias[2][4];
    REPEAT(e, 2) {
        const int at = (SEQUENCE + e) * H + UNIT;
        const u32 to_h = INSIDE(e) ? two(dhn + at) : 0u, to_c = !GRU && INSIDE(e) ? two(dcn + at) : 0u;
        REPEAT(k, 2) {
            dh[k][e] = half_of(to_h, k);
            dc[k][e] = half_of(to_c, k);
            now[k][e] = last.v[2 * k + e];
        }
    }
    REPEAT(k, 2) REPEAT(i, 4) bias[k][i] = 0.0f;
#pragma unroll 1
    for (int s = 0; s < STEPS; ++s) {
        const int step = STEPS - 1 - s;
        const Record r = next;
        next = record_of(gates, cells, cx, dy, step - 1);
        u32 word[4][2];
        REPEAT(e, 2) {
            T d[4][2];
            REPEAT(k, 2) {
                f32 gate[4];
                REPEAT(i, 4) gate[i] = widen(r.kept[k].v[e * 4 + i]);
                step_back(gate, now[k][e], r.before.v[2 * k + e], dh[k][e] + half_of(r.dy[e], k), dc[k][e]);
                now[k][e] = r.before.v[2 * k + e];
                REPEAT(i, 4) {
                    bias[k][i] += gate[i];
                    d[i][k] = narrow<T>(gate[i]);
                }
            }
            REPEAT(i, 4) word[i][e] = joined(d[i][0], d[i][1]);
            REPEAT(i, 4) if (i != NO_STATE)
                *word_at(grads[s % 2] + ROW(GATES * H, 2 * t + e) + MATRIX(i) * H + UNIT) = word[i][e];
        }
        __syncthreads();
        REPEAT(i, 4) REPEAT(e, 2) if (INSIDE(e)) {
            const i64 at = (((i64)step * BATCH + SEQUENCE + e) * GATES + MATRIX(i)) * H + UNIT;
            if (i != NO_INPUT) *word_at(da + at) = word[i][e];
            if (GRU && i != NO_STATE) *word_at(ds + at) = word[i][e];
        }
        f32 sum[4][1][1][4];  // apart, so that products need not wait for each other
        REPEAT(j, 4) clear(sum[j]);
        REPEAT(kb, INNER) {
            const Words v[1] = {shared_words(grads[s % 2] + ROW(GATES * H, g), kb)};
            multiply(sum[kb % 4], columns, kb, v);
        }
        REPEAT(k, 2) REPEAT(e, 2) {
            dh[k][e] = 0.0f;
            REPEAT(j, 4) dh[k][e] += sum[j][0][0][2 * k + e];
        }
    }
    REPEAT(e, 2) if (INSIDE(e)) {
        const int at = (SEQUENCE + e) * H + UNIT;
        REPEAT(k, 2) dh[k][e] += GRU ? dc[k][e] : 0.0f;
        put_two(dhx + at, joined(narrow<T>(dh[0][e]), narrow<T>(dh[1][e])));
        if (!GRU) put_two(dcx + at, joined(narrow<T>(dc[0][e]), narrow<T>(dc[1][e])));
    }
    REPEAT(k, 2) REPEAT(i, 4) {
        f32 sum = bias[k][i] + shuffle_xor(bias[k][i], 1);
        sum += shuffle_xor(sum, 2);
        if (BIAS && t == 0) dbias[((i64)blockIdx.x * 4 + i) * H + UNIT + k] = sum;
    }
}
#endif
