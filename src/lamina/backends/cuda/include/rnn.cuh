// What the kernels of recurrent networks share: the cells, words of half types, products by a warp.
//
// Constants: T (f16, bf16), STEPS, BATCH, H, SPAN (layers of the launch), GRU (else LSTM), BIAS, CROOKED (addresses of
// operands may be any).
//
// A GRU is computed as an LSTM of other gates: r, z, n's sum from the input, n's sum from the state; c is its state h.
// Its matrices have three gates; what the state and what the input add to n are kept apart, as r lies between them.
#pragma once
#include "mma.cuh"
#define GATES (GRU ? 3 : 4)
#define MATRIX(gate) (GRU && (gate) == 3 ? 2 : (gate))  // which rows of a matrix belong to a gate
#define NO_STATE (GRU ? 2 : 4)  // the gate that the state takes no part in, and the one that the input takes none in
#define NO_INPUT (GRU ? 3 : 4)
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)

typedef Pack<u32, 4> Words;
typedef Pack<u32, 2> Two;
typedef Pack<f32, 4> Sums;
struct Weights { const T *of[SPAN][4]; };  // W_ih, W_hh [GATES H, .], b_ih, b_hh [GATES H]

// What a step leaves for the gradient, per lane and unit: four gates of two sequences.
typedef Pack<T, 8> Gates;

// -------------------------------------------------------------------------------------------------------- cells

__device__ __forceinline__ f32 sigmoid(f32 x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ f32 hyperbolic(f32 x) { return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * x)); }

// A step: h. gate: sums of i, f, g, o (GRU: r, z, n from the input, n from the state), which become i, f, g, o (GRU: r,
// z, n, and n's sum from the state).
__device__ __forceinline__ f32 step_of(f32 (&gate)[4], f32 &c)
{
    gate[0] = sigmoid(gate[0]);
    gate[1] = sigmoid(gate[1]);
    gate[2] = hyperbolic(GRU ? gate[2] + gate[0] * gate[3] : gate[2]);
    if (GRU) return c = gate[2] + gate[1] * (c - gate[2]);
    gate[3] = sigmoid(gate[3]);
    c = gate[1] * c + gate[0] * gate[2];
    return gate[3] * hyperbolic(c);
}

// Its gradient. gate: as the step left them, become the gradients of their sums. c: the state after it, `before` it.
// dh, dc: gradients of what it gave; dc becomes that of `before` (GRU: but for what passes through the gates).
__device__ __forceinline__ void step_back(f32 (&gate)[4], f32 c, f32 before, f32 dh, f32 &dc)
{
    const f32 i = gate[0], f = gate[1], z = gate[2], o = gate[3];
    if (GRU) {
        const f32 all = dh + dc, to_n = all * (1.0f - f) * (1.0f - z * z);
        gate[0] = to_n * o * i * (1.0f - i);
        gate[1] = all * (before - z) * f * (1.0f - f);
        gate[2] = to_n;
        gate[3] = to_n * i;
        dc = all * f;
    } else {
        const f32 y = hyperbolic(c), to_c = dc + dh * o * (1.0f - y * y);
        gate[0] = to_c * z * i * (1.0f - i);
        gate[1] = to_c * before * f * (1.0f - f);
        gate[2] = to_c * i * (1.0f - z * z);
        gate[3] = dh * y * o * (1.0f - o);
        dc = to_c * f;
    }
}

__device__ __forceinline__ f32 bias_of(const Weights &weights, int layer, int gate, int unit)
{
    f32 sum = 0.0f;
    if (BIAS && gate != NO_INPUT) sum += widen(weights.of[layer][2][MATRIX(gate) * H + unit]);
    if (BIAS && gate != NO_STATE) sum += widen(weights.of[layer][3][MATRIX(gate) * H + unit]);
    return sum;
}

// ------------------------------------------------------------------------------------- words of half types

// Two neighbouring elements.
__device__ __forceinline__ u32 joined(T first, T second) { return first.bits | (u32)second.bits << 16; }
__device__ __forceinline__ f32 half_of(u32 word, int second) { return widen(T{(u16)(second ? word >> 16 : word)}); }
// Of operands, and to them.
__device__ __forceinline__ u32 two(const T *p)
{
#if CROOKED
    return joined(p[0], p[1]);
#else
    return *reinterpret_cast<const u32 *>(p);
#endif
}
__device__ __forceinline__ void put_two(T *p, u32 word)
{
#if CROOKED
    p[0].bits = (u16)word;
    p[1].bits = (u16)(word >> 16);
#else
    *reinterpret_cast<u32 *>(p) = word;
#endif
}
// Eight elements of an operand.
__device__ __forceinline__ Words eight(const T *p)
{
#if CROOKED
    return {{two(p), two(p + 2), two(p + 4), two(p + 6)}};
#else
    return load<4>(reinterpret_cast<const u32 *>(p));
#endif
}

// ----------------------------------------------------------------------------------------------------- products

// A warp's part of the weights: what its lanes hold for rows 16 m to 16 m + 15 and 32 inner elements.
template <int K, int M> struct Fragments {
    Words at[K][M][2];
    __device__ __forceinline__ Words of(int kb, int m, int half) const { return at[kb][m][half]; }
};

// sum += weights x v.
template <class W, int M, int N>
__device__ __forceinline__ void multiply(f32 (&sum)[M][N][4], const W &weights, int kb, const Words (&v)[N])
{
    REPEAT(m, M) {
        const Words upper = weights.of(kb, m, 0), lower = weights.of(kb, m, 1);
        REPEAT(e, 2) {
            const u32 a[4] = {upper.v[2 * e], lower.v[2 * e], upper.v[2 * e + 1], lower.v[2 * e + 1]};
            REPEAT(n, N) {
                const u32 b[2] = {v[n].v[2 * e], v[n].v[2 * e + 1]};
                warp_mma(sum[m][n], a, b, T());
            }
        }
    }
}

template <int M, int N> __device__ __forceinline__ void clear(f32 (&sum)[M][N][4])
{
    REPEAT(m, M) REPEAT(n, N) REPEAT(i, 4) sum[m][n][i] = 0.0f;
}
