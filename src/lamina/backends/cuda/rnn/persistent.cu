// All time steps of LSTM or GRU layers in one launch: every block keeps its part of the weights in shared memory (the
// recurrent ones in registers where they are few), and passes on what it computes through memory that all blocks see.
//
// All blocks are on the GPU at the same time. A team of H / UNITS blocks does one layer for WIDE sequences: a block owns
// UNITS hidden units with all four gates of them, and their cell states stay in its registers. The layers of a launch run
// beside each other, each as far as the one below (backward: above) has come: STEPS + SPAN - 1 steps in a row in all.
// A block's warps may do CHAINS parts of the batch apart from each other: while one waits, the other one computes.
//
// No counters and no fences: a word says itself whether it has been written. Sequences of a half type are filled with
// ones before the launch, a NaN that no arithmetic gives (it would give 0x7fff). Partial sums in f32 go to places that are
// used in turn; their lowest bit is the turn's, which flips from one use of a place to the next. A place is written again
// only after what depends on its last reading has arrived.
//
// Products are [rows of weights, inner] x [inner, sequences], the inner axis shared among the warps of a block, whose sums
// meet in shared memory. Along it, the lane t of four takes 8 elements in a row of every 32: 16 bytes of a matrix as it
// lies, weights and sequences alike, so that nothing is rearranged.
//
// Constants: those of rnn.cuh; UNITS, TILES (groups of 8 sequences of a chain), CHAINS, GROUPS (chains of all teams of a
// layer), WARPS (of a chain), BUFFERS (places for the warps' sums), HELD (weights in registers); forward TRAIN (keep what
// the gradient needs), TOP (the last layer's sequence is y).
#include "rnn.cuh"
#define TEAM (H / UNITS)
#define ROWS (4 * UNITS)
#define MT (ROWS / 16)
#define PART (H / WARPS)
#define KB (PART / 32)
#define WIDE (TILES * 8)
#define PADDED (GROUPS * WIDE)
#define FRAGMENTS (ROWS * H / 8)  // vectors of a block's part of a [4 H, H] matrix
#define PAIRS (UNITS / 8 * TILES)  // groups of 8 units times 8 sequences
#define CELLS ((PAIRS + WARPS - 1) / WARPS)
#define NOTHING 0xffffffffu
#define ALL 0xffffffffu
#define OWN(k) REPEAT(k, CELLS) if (warp + k * WARPS < PAIRS)
#define UNIT(k) ((int)blockIdx.x * UNITS + (warp + k * WARPS) / TILES * 8 + g)
#define SEQUENCE(k) (group * WIDE + (warp + k * WARPS) % TILES * 8 + 2 * t)  // and the next one
#define INSIDE(b) (BATCH % WIDE == 0 || (b) < BATCH)
#define THREADS (CHAINS * WARPS * 32)
#define CHAIN (CHAINS > 1 ? (int)threadIdx.x / (WARPS * 32) : 0)
// The thread's warp in its chain and place in that; which sequences and layer it does.
#define LANE const int warp = threadIdx.x / 32 % WARPS, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#define PLACE                                                                                                        \
    LANE const int group = blockIdx.y % (GROUPS / CHAINS) * CHAINS + CHAIN;                                          \
    const int layer = SPAN > 1 ? blockIdx.y / (GROUPS / CHAINS) : 0;

// What an emulation on a CPU brings along: shared memory of a size that the launch names, and a breath while waiting.
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#define WAIT_A_LITTLE()
#endif
// The threads of a chain meet.
#define MEET() meet(CHAIN * WARPS * 32, WARPS * 32)

// -------------------------------------------------------------------------------------- what other blocks write
// Past the first-level caches, each word in one piece.

__device__ __forceinline__ Words fresh(const T *p)
{
    Words w;
#if defined(__CUDA_ARCH__)
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3]) : "l"(p));
#else
    REPEAT(i, 4) w.v[i] = reinterpret_cast<const volatile u32 *>(p)[i];
#endif
    return w;
}
__device__ __forceinline__ Two fresh(const f32 *p)
{
    Two w;
#if defined(__CUDA_ARCH__)
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(w.v[0]), "=r"(w.v[1]) : "l"(p));
#else
    REPEAT(i, 2) w.v[i] = reinterpret_cast<const volatile u32 *>(p)[i];
#endif
    return w;
}
__device__ __forceinline__ u32 fresh_word(const T *p)
{
    u32 w;
#if defined(__CUDA_ARCH__)
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(w) : "l"(p));
#else
    w = *reinterpret_cast<const volatile u32 *>(p);
#endif
    return w;
}
__device__ __forceinline__ void put(T *p, u32 word)
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" : : "l"(p), "r"(word) : "memory");
#else
    *reinterpret_cast<volatile u32 *>(p) = word;
#endif
}
__device__ __forceinline__ void put(f32 *p, f32 a, f32 b, u32 turn)
{
    const u32 first = (__float_as_uint(a) & ~1u) | turn, second = (__float_as_uint(b) & ~1u) | turn;
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" : : "l"(p), "r"(first), "r"(second) : "memory");
#else
    reinterpret_cast<volatile u32 *>(p)[0] = first;
    reinterpret_cast<volatile u32 *>(p)[1] = second;
#endif
}
__device__ __forceinline__ bool is_missing(const Words (&v)[TILES])
{
    u32 most = 0;
    REPEAT(n, TILES) REPEAT(i, 4) most = v[n].v[i] > most ? v[n].v[i] : most;
    return most == NOTHING;
}

// Whether any lane of the warp still misses something. PATIENCE: so often, then the launch fails.
struct Waiting {
#ifdef PATIENCE
    u32 times = 0;
#endif
    __device__ __forceinline__ bool on(bool missing)
    {
        if (!__any_sync(ALL, missing)) return false;
#ifdef PATIENCE
        if (++times > PATIENCE) __trap();
#endif
        WAIT_A_LITTLE();
        return true;
    }
};

// -------------------------------------------------------------------------------------------------- products

// A warp's part of the weights in shared memory, or in registers.
struct Shared {
    const Words *at;
    __device__ __forceinline__ Words of(int kb, int m, int half) const { return at[((kb * MT + m) * 2 + half) * 32]; }
};
struct Held : Fragments<KB, MT> {
    __device__ __forceinline__ Held(const Shared &from)
    {
        REPEAT(kb, KB) REPEAT(m, MT) REPEAT(half, 2) at[kb][m][half] = from.of(kb, m, half);
    }
};
#if HELD
typedef Held Recurrent;
#else
typedef Shared Recurrent;
#endif

__device__ __forceinline__ void read(Words (&v)[TILES], const T *from, int stride, int rows)
{
    REPEAT(n, TILES) {
        REPEAT(i, 4) v[n].v[i] = 0;
        if (BATCH % WIDE == 0 || n * 8 < rows) v[n] = fresh(from + n * 8 * stride);
    }
}

// sum += weights x v, v being the warp's part of `rows` rows of `stride` elements, as soon as they have been written.
template <class W>
__device__ __forceinline__ void product(f32 (&sum)[MT][TILES][4], const W &weights, Words (&v)[KB][TILES], const T *from,
                                        int stride, int rows)
{
    LANE
    Waiting waiting;
#if KB * TILES > 4  // ask for little until it is there
    const T *probe = from + lane / 8 * (WIDE / 4) * stride + warp * PART + lane % 8 * (PART / 8);
    const bool asks = BATCH % WIDE == 0 || lane / 8 * (WIDE / 4) < rows;
    while (waiting.on(asks && fresh_word(probe) == NOTHING));
#endif
    from += g * stride + warp * PART + t * 8;
    REPEAT(kb, KB) read(v[kb], from + kb * 32, stride, rows - g);
    REPEAT(kb, KB) {
        while (waiting.on(is_missing(v[kb]))) read(v[kb], from + kb * 32, stride, rows - g);
        multiply(sum, weights, kb, v[kb]);
    }
}

// The warps' sums to shared memory, for all to see.
__device__ __forceinline__ void share(Sums *parts, const f32 (&sum)[MT][TILES][4])
{
    const int warp = threadIdx.x / 32 % WARPS, lane = threadIdx.x % 32;
    if (BUFFERS == 1) MEET();  // all have read the last ones
    REPEAT(m, MT) REPEAT(n, TILES)
        parts[((warp * MT + m) * TILES + n) * 32 + lane] = {sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]};
    MEET();
}
__device__ __forceinline__ Sums total(const Sums *parts, int tile)
{
    const int lane = threadIdx.x % 32;
    Sums all = parts[tile * 32 + lane];
    REPEAT(w, WARPS - 1) {
        const Sums one = parts[((w + 1) * MT * TILES + tile) * 32 + lane];
        REPEAT(i, 4) all.v[i] += one.v[i];
    }
    return all;
}
#define SUMS (WARPS * MT * TILES * 32)
#define BUFFER(k) (parts + (BUFFERS > 1 ? (k) % 2 * SUMS : 0))

// Two neighbouring sequences of a unit, to row b and the next one at `to`: lanes of two units make words of them.
// also: where they go besides, unless null, for later launches.
__device__ __forceinline__ void publish(T *to, T *also, int stride, T first, T second, int b)
{
    const int odd = threadIdx.x / 4 % 2;
    const u32 got = shuffle_xor((u32)(odd ? first.bits : second.bits), 4), kept = odd ? second.bits : first.bits;
    u32 word = odd ? got | kept << 16 : kept | got << 16;
    if (word == NOTHING) word = 0x7fff7fffu;
    if (!INSIDE(b + odd)) return;
    const int at = odd ? stride - 1 : 0;
    put(to + at, word);
    if (also) put_two(also + at, word);
}

#define KEPT(s, k) \
    (((((i64)layer * STEPS + (s)) * GROUPS + group) * TEAM + blockIdx.x) * PAIRS + warp + k * WARPS) * 32 + lane

#ifdef FORWARD
// Rows of a block: 16 m + 8 half + g is gate 2 (m % 2) + half of the g-th unit of its m / 2 th group of 8.
// Those of gate `without` are zero.
__device__ __forceinline__ void take_rows(Words *to, const T *weights, int without)
{
#pragma unroll 8
    for (int f = threadIdx.x; f < FRAGMENTS; f += THREADS) {
        const int t = f % 4, g = f / 4 % 8, half = f / 32 % 2, m = f / 64 % MT, kb = f / 64 / MT;
        const int gate = m % 2 * 2 + half, row = MATRIX(gate) * H + (int)blockIdx.x * UNITS + m / 2 * 8 + g;
        to[f] = gate == without ? Words{} : eight(weights + (i64)row * H + kb * 32 + t * 8);
    }
}

// gx [STEPS, BATCH, GATES H]: the first layer's input times W_ih. seq [SPAN, STEPS + 1, BATCH, H]: all states, the first
// ones in front; filled with ones.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
rnn_forward(const T *gx, const __grid_constant__ Weights weights, const T *hx, const T *cx, T *seq, Gates *gates,
            f32 *cells, T *y, T *hn, T *cn)
{
    DYNAMIC_SHARED(Words, memory);
    PLACE
    Sums *parts = reinterpret_cast<Sums *>(memory + FRAGMENTS * (SPAN > 1 ? 2 : 1)) + CHAIN * BUFFERS * SUMS;
    take_rows(memory, weights.of[layer][1], NO_STATE);
    if (SPAN > 1 && layer > 0) take_rows(memory + FRAGMENTS, weights.of[layer][0], NO_INPUT);
    T *states = seq + (i64)layer * (STEPS + 1) * BATCH * H;
    f32 c[CELLS][2], bias[CELLS][4];
    OWN(k) {
        const int b = SEQUENCE(k), unit = UNIT(k);
        T h[2];
        REPEAT(e, 2) {
            const int at = (layer * BATCH + b + e) * H + unit;
            h[e] = INSIDE(b + e) ? hx[at] : narrow<T>(0.0f);
            c[k][e] = INSIDE(b + e) ? widen(cx[at]) : 0.0f;
        }
        publish(states + b * H + unit, nullptr, H, h[0], h[1], b);
        REPEAT(i, 4) bias[k][i] = bias_of(weights, layer, i, unit);
    }
    __syncthreads();
    const Recurrent own(Shared{memory + warp * (KB * MT * 64) + lane});
    const Shared below{memory + FRAGMENTS + warp * (KB * MT * 64) + lane};
    const int first = group * WIDE * H, rows = BATCH - group * WIDE;
#pragma unroll 1
    for (int s = 0; s < STEPS; ++s, states += BATCH * H) {
        f32 x[CELLS][4][2], sum[MT][TILES][4];
        Words v[KB][TILES];
        OWN(k) REPEAT(i, 4) REPEAT(e, 2) {
            const int b = SEQUENCE(k) + e;
            const bool adds = layer == 0 && i != NO_INPUT && INSIDE(b);
            x[k][i][e] = adds ? widen(gx[(((i64)s * BATCH + b) * GATES + MATRIX(i)) * H + UNIT(k)]) : 0.0f;
        }
        clear(sum);
        if (SPAN > 1 && layer > 0) product(sum, below, v, states - (i64)STEPS * BATCH * H + first, H, rows);
        product(sum, own, v, states + first, H, rows);
        share(BUFFER(s), sum);
        OWN(k) {
            const int pair = warp + k * WARPS, b = SEQUENCE(k), unit = UNIT(k), tile = pair / TILES * 2 * TILES + pair % TILES;
            const Sums upper = total(BUFFER(s), tile), lower = total(BUFFER(s), tile + TILES);
            Gates kept;
            T h[2];
            REPEAT(e, 2) {
                f32 gate[4] = {upper.v[e], upper.v[2 + e], lower.v[e], lower.v[2 + e]};
                REPEAT(i, 4) gate[i] += x[k][i][e] + bias[k][i];
                h[e] = narrow<T>(step_of(gate, c[k][e]));
                REPEAT(i, 4) kept.v[e * 4 + i] = narrow<T>(gate[i]);
            }
            T *above = TOP && layer == SPAN - 1 ? y + ((i64)s * BATCH + b) * H + unit : nullptr;
            publish(states + (BATCH + b) * H + unit, above, H, h[0], h[1], b);
            if (TRAIN) {
                gates[KEPT(s, k)] = kept;
                store<2>(cells + 2 * (KEPT(s, k)), Pack<f32, 2>{c[k][0], c[k][1]});
            }
            REPEAT(e, 2) if (s == STEPS - 1 && INSIDE(b + e)) {
                const int at = (layer * BATCH + b + e) * H + unit;
                hn[at] = h[e];
                if (!GRU) cn[at] = narrow<T>(c[k][e]);
            }
        }
    }
}
#endif

#ifdef BACKWARD
// A block takes part in the sums of gradients of H / TEAM * 4 states: those of one gate, all units of it. Of a GRU's, n
// from the input goes to the layer below alone, n from the state to the state before alone.
#define GATE ((int)blockIdx.x % 4)
#define COLUMN ((int)blockIdx.x / 4 * ROWS)

// Columns COLUMN to COLUMN + ROWS - 1 of a gate's rows of a matrix [4 H, H], as rows.
__device__ __forceinline__ void take_columns(Words *to, const T *weights)
{
#pragma unroll 4
    for (int f = threadIdx.x; f < FRAGMENTS; f += THREADS) {
        const int column = f % ROWS, inner = f / ROWS;  // 8 elements each
        const T *from = weights + ((i64)MATRIX(GATE) * H + inner * 8) * H + COLUMN + column;
        Words w;
        REPEAT(i, 4) w.v[i] = (u32)from[2 * i * H].bits | (u32)from[(2 * i + 1) * H].bits << 16;
        to[((inner / 4 * MT + column / 16) * 2 + column / 8 % 2) * 32 + column % 8 * 4 + inner % 4] = w;
    }
}

// A gate's partial sums [H, PADDED], of the block's columns.
__device__ __forceinline__ void hand_on(f32 *to, Sums *parts, const f32 (&sum)[MT][TILES][4], int group, u32 turn)
{
    LANE
    share(parts, sum);
    REPEAT(k, (MT * TILES + WARPS - 1) / WARPS) {
        const int tile = warp + k * WARPS;
        if (tile >= MT * TILES) break;
        const Sums all = total(parts, tile);
        f32 *at = to + (COLUMN + tile / TILES * 16 + g) * PADDED + group * WIDE + tile % TILES * 8 + 2 * t;
        put(at, all.v[0], all.v[1], turn);
        put(at + 8 * PADDED, all.v[2], all.v[3], turn);
    }
}

// sum[k] += the gates' partial sums for the lane's cells, as soon as they have been written; but for gate WITHOUT.
template <int WITHOUT>
__device__ __forceinline__ void collect(f32 (&sum)[CELLS][2], const f32 *from, int group, u32 turn)
{
    LANE
    Two got[CELLS][4];
    Waiting waiting;
    bool missing;
    do {
        missing = false;
        OWN(k) REPEAT(i, 4) if (i != WITHOUT) got[k][i] = fresh(from + ((i64)i * H + UNIT(k)) * PADDED + SEQUENCE(k));
        OWN(k) REPEAT(i, 4) if (i != WITHOUT) REPEAT(e, 2) missing = missing || (got[k][i].v[e] & 1u) != turn;
    } while (waiting.on(missing));
    OWN(k) REPEAT(i, 4) if (i != WITHOUT) REPEAT(e, 2) sum[k][e] += __uint_as_float(got[k][i].v[e]);
}

// gates, cells: as the forward pass left them. dy [STEPS, BATCH, H]: of the launch's last layer. da, ds [SPAN, STEPS,
// BATCH, GATES H]: gradients of the gates' sums, of what the input and of what the state gave; one and the same of an
// LSTM. What blocks read of them is filled with ones, as are the places for partial sums: own [SPAN, 2, 4, H, PADDED] in
// turns, above [SPAN - 1, STEPS, 4, H, PADDED]. dbias [SPAN, GROUPS TILES, 4 H]: sums over 8 sequences.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
rnn_backward(const __grid_constant__ Weights weights, const Gates *gates, const f32 *cells, const T *cx, const T *dy,
             const T *dhn, const T *dcn, T *da, T *ds, f32 *own, f32 *above, T *dhx, T *dcx, f32 *dbias)
{
    DYNAMIC_SHARED(Words, memory);
    PLACE
    Sums *parts = reinterpret_cast<Sums *>(memory + FRAGMENTS * (SPAN > 1 ? 2 : 1)) + CHAIN * BUFFERS * SUMS;
    take_columns(memory, weights.of[layer][1]);
    if (SPAN > 1 && layer > 0) take_columns(memory + FRAGMENTS, weights.of[layer][0]);
    __syncthreads();
    const Recurrent recurrent(Shared{memory + warp * (KB * MT * 64) + lane});
    const Shared input{memory + FRAGMENTS + warp * (KB * MT * 64) + lane};
    const int first = group * WIDE * GATES * H + MATRIX(GATE) * H, rows = BATCH - group * WIDE;
    own += (i64)layer * 2 * 4 * H * PADDED;
    f32 dh[CELLS][2], dc[CELLS][2], now[CELLS][2], bias[CELLS][4];
    OWN(k) {
        const int b = SEQUENCE(k), unit = UNIT(k);
        const auto last = load<2>(cells + 2 * (KEPT(STEPS - 1, k)));
        REPEAT(e, 2) {
            const int at = (layer * BATCH + b + e) * H + unit;
            dh[k][e] = INSIDE(b + e) ? widen(dhn[at]) : 0.0f;
            dc[k][e] = !GRU && INSIDE(b + e) ? widen(dcn[at]) : 0.0f;
            now[k][e] = last.v[e];
        }
        REPEAT(i, 4) bias[k][i] = 0.0f;
    }
    int count = 0;  // products so far
#pragma unroll 1
    for (int s = 0; s < STEPS; ++s) {
        const int step = STEPS - 1 - s;
        const i64 here = ((i64)layer * STEPS + step) * BATCH * GATES * H;
        Gates kept[CELLS];
        f32 before[CELLS][2], arriving[CELLS][2];
        OWN(k) {
            const int b = SEQUENCE(k), unit = UNIT(k);
            kept[k] = gates[KEPT(step, k)];
            Pack<f32, 2> earlier{};
            if (step > 0) earlier = load<2>(cells + 2 * (KEPT(step - 1, k)));
            REPEAT(e, 2) {
                const bool inside = INSIDE(b + e);
                before[k][e] = step > 0 ? earlier.v[e] : inside ? widen(cx[(layer * BATCH + b + e) * H + unit]) : 0.0f;
                arriving[k][e] = layer == SPAN - 1 && inside ? widen(dy[((i64)step * BATCH + b + e) * H + unit]) : 0.0f;
            }
        }
        if (SPAN > 1 && layer < SPAN - 1)
            collect<NO_INPUT>(arriving, above + ((i64)layer * STEPS + step) * 4 * H * PADDED, group, 0);
        if (s > 0) collect<NO_STATE>(dh, own + (s - 1) % 2 * (i64)(4 * H) * PADDED, group, (s - 1) / 2 % 2);
        OWN(k) {
            const int b = SEQUENCE(k), unit = UNIT(k);
            T d[4][2];
            REPEAT(e, 2) {
                f32 gate[4];
                REPEAT(n, 4) gate[n] = widen(kept[k].v[e * 4 + n]);
                step_back(gate, now[k][e], before[k][e], dh[k][e] + arriving[k][e], dc[k][e]);
                REPEAT(n, 4) {
                    bias[k][n] += gate[n];
                    d[n][e] = narrow<T>(gate[n]);
                }
                now[k][e] = before[k][e];
                dh[k][e] = 0.0f;
            }
            REPEAT(n, 4) {
                const i64 at = here + b * GATES * H + MATRIX(n) * H + unit;
                T *read = n == NO_STATE ? da : ds, *also = GRU && n < 2 ? da + at : nullptr;
                publish(read + at, also, GATES * H, d[n][0], d[n][1], b);
            }
        }
        f32 sum[MT][TILES][4];
        Words v[KB][TILES];
        const T *there = (GATE == NO_STATE ? da : ds) + here + first;
        const bool to_own = GATE != NO_STATE, to_below = SPAN > 1 && layer > 0 && GATE != NO_INPUT;
        if (to_own) {
            clear(sum);
            product(sum, recurrent, v, there, GATES * H, rows);
            hand_on(own + (s % 2 * 4 + GATE) * (i64)H * PADDED, BUFFER(count), sum, group, s / 2 % 2);
            ++count;
        }
        if (SPAN > 1 && to_below) {
            clear(sum);
            if (to_own) {
                REPEAT(kb, KB) multiply(sum, input, kb, v[kb]);
            } else {
                product(sum, input, v, there, GATES * H, rows);
            }
            f32 *down = above + (((i64)(layer - 1) * STEPS + step) * 4 + GATE) * (i64)H * PADDED;
            hand_on(down, BUFFER(count), sum, group, 0);
            ++count;
        }
    }
    collect<NO_STATE>(dh, own + (STEPS - 1) % 2 * (i64)(4 * H) * PADDED, group, (STEPS - 1) / 2 % 2);
    OWN(k) {
        const int b = SEQUENCE(k), unit = UNIT(k);
        REPEAT(e, 2) if (INSIDE(b + e)) {
            const int at = (layer * BATCH + b + e) * H + unit;
            dhx[at] = narrow<T>(dh[k][e] + (GRU ? dc[k][e] : 0.0f));
            if (!GRU) dcx[at] = narrow<T>(dc[k][e]);
        }
        const int slice = (layer * GROUPS + group) * TILES + (warp + k * WARPS) % TILES;
        REPEAT(n, 4) {
            f32 sum = bias[k][n] + shuffle_xor(bias[k][n], 1);
            sum += shuffle_xor(sum, 2);
            if (BIAS && t == 0) dbias[(i64)slice * 4 * H + n * H + unit] = sum;
        }
    }
}
#endif
