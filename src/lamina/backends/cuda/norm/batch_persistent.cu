// Batch norm of channels last in one launch: all blocks are on the GPU at the same time and wait for each other between
// the sums and the pass that applies them. Each keeps the first of its elements in shared memory, where they come by
// themselves, all at once, and takes the others from the last to the first the second time, since the last ones are still
// in the cache.
//
// A tensor is COUNT rows of CHANNELS elements of type T; one text is compiled per kernel, with these constants:
//   V (elements per access), LANES (threads along the channels), PART and SPLITS (rows of a block, and such parts), HELD
//   (turns of a block whose elements are kept, up to three times UNROLL).
// Statistics and sums are f32. Every sum is taken in a fixed order.
#include "mma.cuh"
typedef f32 A;
typedef Pack<T, V> Elements;
#define THREADS 512
#define ROWS (THREADS / LANES)
#define COLUMNS (LANES * V)
#define TURNS ((PART + ROWS - 1) / ROWS)
#define REPEAT(k, n) _Pragma("unroll") for (int k = 0; k < (n); ++k)

#if RELU && defined(HI)
#define UPPER ((A)HI)
#define PASSES(v, upper) ((v) > 0 && (v) < (upper))
#else
#define UPPER 0
#define PASSES(v, upper) ((v) > 0)
#endif

// What an emulation on a CPU brings along: shared memory of a size that the launch names, and a breath while waiting.
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#define WAIT_A_LITTLE() __nanosleep(32)
#endif

// A number that another block wrote during this launch.
__device__ __forceinline__ A fresh(const A *p) { return *(const volatile A *)p; }

// Accesses that leave the cache to others: what is read for the last time, what is too large to stay there.
__device__ __forceinline__ Elements load_last(const T *p)
{
#if defined(__CUDA_ARCH__)
    static_assert(sizeof(Elements) == 16, "accesses are of 16 bytes");
    union { u32 words[4]; Elements pack; } both;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(both.words[0]), "=r"(both.words[1]), "=r"(both.words[2]), "=r"(both.words[3]) : "l"(p));
    return both.pack;
#else
    return load<V>(p);
#endif
}
__device__ __forceinline__ void store_result(T *p, const Elements &pack)
{
#if STREAM && defined(__CUDA_ARCH__)
    union { Elements pack; u32 words[4]; } both = {pack};
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "l"(p), "r"(both.words[0]), "r"(both.words[1]), "r"(both.words[2]), "r"(both.words[3]) : "memory");
#else
    store<V>(p, pack);
#endif
}

// All blocks that share channels meet here: the counter's top bit turns over when the last one comes, and the others
// are zero again. The counter must be zero but for its top bit.
__device__ __forceinline__ void meet(u32 *counter)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const u32 before = atomicAdd(counter, blockIdx.y == 0 ? 0x80000000u - (SPLITS - 1) : 1u);
        while (((before ^ *(volatile u32 *)counter) & 0x80000000u) == 0) WAIT_A_LITTLE();
        __threadfence();
    }
    __syncthreads();
}

// The thread's place: `o` its first channel, `first` its first row of the block's, `end` the row behind the block's.
#define PLACE                                                                                                        \
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;                                                 \
    const int o = ((int)blockIdx.x * LANES + lane) * V, first = (int)blockIdx.y * PART + row;                        \
    const bool inside = row < ROWS && o < CHANNELS;                                                                  \
    const int end = !inside ? 0 : ((int)blockIdx.y + 1) * PART < COUNT ? ((int)blockIdx.y + 1) * PART : COUNT;
#define IN_TURN(u) first + (turn + (u)) * ROWS < end
#define AT(u) ((first + (turn + (u)) * ROWS) * CHANNELS + o)
#define KEPT(u) (turn + (u)) * THREADS + threadIdx.x
#define BATCH(turn) _Pragma("unroll") for (int turn = 0; turn < HELD; turn += UNROLL)
#define FORTH _Pragma("unroll 1") for (int turn = HELD; turn < TURNS; turn += UNROLL)
#define BACK _Pragma("unroll 1") for (int turn = (TURNS - 1) / UNROLL * UNROLL; turn >= 0; turn -= UNROLL)

// Waits until the batch of `turn` is there; it is one of three at most.
__device__ __forceinline__ void arrive(int turn, int unroll)
{
    const int left = (HELD - turn) / unroll - 1;
    if (left == 0) wait_groups<0>();
    else if (left == 1) wait_groups<1>();
    else wait_groups<2>();
}

// The block's sum of `s` in each of its columns, to partial[split][which][channel].
__device__ __forceinline__ void write_sum(A *partial, int which, const A (&s)[V])
{
    __shared__ A part[ROWS][COLUMNS];
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    __syncthreads();
    if (row < ROWS) REPEAT(k, V) part[row][lane * V + k] = s[k];
    __syncthreads();
    for (int c = threadIdx.x; c < COLUMNS; c += THREADS) {
        const int channel = (int)blockIdx.x * COLUMNS + c;
        if (channel >= CHANNELS) continue;
        A total = part[0][c];
        for (int k = 1; k < ROWS; ++k) total += part[k][c];
        partial[((int)blockIdx.y * 2 + which) * CHANNELS + channel] = total;
    }
}

// The sums over all blocks: `Totals` of each of the block's columns, SHARE threads having taken a part of the blocks.
#define SHARE (2 * COLUMNS < THREADS ? THREADS / (2 * COLUMNS) : 1)
struct Totals {
    f64 some[SHARE][2 * COLUMNS];

    __device__ __forceinline__ void read(const A *partial)
    {
        for (int i = threadIdx.x; i < SHARE * 2 * COLUMNS; i += THREADS) {
            const int c = i % (2 * COLUMNS), channel = (int)blockIdx.x * COLUMNS + c % COLUMNS;
            f64 sum = 0;
            if (channel < CHANNELS) {
                const A *from = partial + c / COLUMNS * CHANNELS + channel;
                _Pragma("unroll 8") for (int k = i / (2 * COLUMNS); k < SPLITS; k += SHARE)
                    sum += (f64)fresh(from + k * (2 * CHANNELS));
            }
            some[i / (2 * COLUMNS)][c] = sum;
        }
        __syncthreads();
    }
    __device__ __forceinline__ f64 of(int which, int column) const
    {
        f64 sum = 0;
        for (int k = 0; k < SHARE; ++k) sum += some[k][which * COLUMNS + column];
        return sum;
    }
};

__device__ __forceinline__ void fetch(A (&to)[V], const A *from, bool inside)
{
    REPEAT(k, V) to[k] = inside ? from[k] : 0;
}

#ifdef FORWARD
#define UNROLL 8
// y = (x - mean) * r * scale + bias [+ z] [clipped], the statistics and what the running ones become. Sums are of
// x - shift and its square, the shift being each channel's first element: no digits are lost to a large mean.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
batch_norm_resident(const T *x, const A *scale, const A *bias, const A *running_mean, const A *running_var, const T *z,
                    A *partial, u32 *counters, A *mean, A *spread, A *next_mean, A *next_var, T *y)
{
    DYNAMIC_SHARED(Elements, held);
    __shared__ Totals totals;
    __shared__ A numbers[3][COLUMNS];
    PLACE
    BATCH(turn) {
        REPEAT(u, UNROLL) if (IN_TURN(u)) copy_later(held + KEPT(u), x + AT(u), true);
        end_group();
    }
    A middle[V], slope[V], shift[V];
    REPEAT(k, V) { middle[k] = inside ? (A)widen(x[o + k]) : 0; slope[k] = shift[k] = 0; }
    const auto add = [&](const Elements &some) {
        REPEAT(k, V) {
            const A v = (A)widen(some.v[k]) - middle[k];
            slope[k] += v;
            shift[k] += v * v;
        }
    };
    BATCH(turn) {
        arrive(turn, UNROLL);
        REPEAT(u, UNROLL) if (IN_TURN(u)) add(held[KEPT(u)]);
    }
    FORTH {
        Elements some[UNROLL];
        REPEAT(u, UNROLL) if (IN_TURN(u)) some[u] = load<V>(x + AT(u));
        REPEAT(u, UNROLL) if (IN_TURN(u)) add(some[u]);
    }
    write_sum(partial, 0, slope);
    write_sum(partial, 1, shift);
    meet(counters + blockIdx.x);
    totals.read(partial);
    for (int c = threadIdx.x; c < COLUMNS; c += THREADS) {
        const int channel = (int)blockIdx.x * COLUMNS + c;
        if (channel >= CHANNELS) continue;
        const f64 near = totals.of(0, c) / COUNT, square = totals.of(1, c) / COUNT;
        const f64 var = larger(square - near * near, 0.0), level = near + (f64)widen(x[channel]);
        const A r = (A)(1 / sqrt(var + EPSILON));
        numbers[0][c] = (A)level;
        numbers[1][c] = r * scale[channel];
        numbers[2][c] = bias[channel];
        if (blockIdx.y == 0) {
            mean[channel] = (A)level;
            spread[channel] = r;
            next_mean[channel] = (A)((1 - MOMENTUM) * (f64)running_mean[channel] + MOMENTUM * level);
            next_var[channel] = (A)((1 - MOMENTUM) * (f64)running_var[channel] + MOMENTUM * UNBIASED * var);
        }
    }
    __syncthreads();
    fetch(middle, numbers[0] + lane * V, inside);
    fetch(slope, numbers[1] + lane * V, inside);
    fetch(shift, numbers[2] + lane * V, inside);
    BACK {
        Elements some[UNROLL];
        REPEAT(u, UNROLL) if (IN_TURN(u)) some[u] = turn < HELD ? held[KEPT(u)] : load_last(x + AT(u));
        REPEAT(u, UNROLL) if (IN_TURN(u)) {
#if RESIDUAL
            const auto added = load<V>(z + AT(u));
#endif
            Elements result;
            REPEAT(k, V) {
                A v = ((A)widen(some[u].v[k]) - middle[k]) * slope[k] + shift[k];
#if RESIDUAL
                v += (A)widen(added.v[k]);
#endif
#if RELU
                v = larger(v, (A)0);
#ifdef HI
                v = smaller(v, UPPER);
#endif
#endif
                result.v[k] = narrow<T>(v);
            }
            store_result(y + AT(u), result);
        }
    }
}
#endif

#ifdef BACKWARD
#define UNROLL 4
// dx = r scale (g - mean(g) - n mean(g n)), n = (x - mean) r, with dscale and dbias. Under relu g counts where the output
// lay between its bounds: it is computed again from x; with RESIDUAL it is y, and the masked g is written to dz.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
batch_norm_grad_resident(const T *g, const T *x, const A *scale, const A *mean, const A *spread, const A *bias,
                         const T *y, T *dz, A *partial, u32 *counters, A *dscale, A *dbias, T *dx)
{
    DYNAMIC_SHARED(Elements, held);
    __shared__ Totals totals;
    __shared__ A numbers[2][COLUMNS];
    PLACE
    Elements *held_x = held + HELD * THREADS;
    BATCH(turn) {
        REPEAT(u, UNROLL) if (IN_TURN(u)) {
            copy_later(held + KEPT(u), g + AT(u), true);
            copy_later(held_x + KEPT(u), x + AT(u), true);
        }
        end_group();
    }
    A middle[V], slope[V], s[V], q[V];
    fetch(middle, mean + o, inside);
    fetch(slope, spread + o, inside);
    REPEAT(k, V) { slope[k] *= inside ? scale[o + k] : 0; s[k] = q[k] = 0; }
#if RELU && !RESIDUAL
    A shift[V];
    fetch(shift, bias + o, inside);
#define MASKED(g, v, k) (PASSES((v) * slope[k] + shift[k], UPPER) ? (A)(g) : 0)
#else
#define MASKED(g, v, k) ((A)(g))
#endif
#if RESIDUAL
    // The gradient where y lay between its bounds, which others read too.
    const auto mask = [&](Elements &gradient, int at) {
        const auto outputs = load_last(y + at);
        REPEAT(k, V)
            if (!PASSES((A)widen(outputs.v[k]), (A)widen(narrow<T>((A)UPPER)))) gradient.v[k] = narrow<T>((A)0);
        store<V>(dz + at, gradient);
    };
#else
    const auto mask = [](Elements &, int) {};
#endif
    const auto add = [&](const Elements &gradient, const Elements &element) {
        REPEAT(k, V) {
            const A v = (A)widen(element.v[k]) - middle[k], d = MASKED(widen(gradient.v[k]), v, k);
            s[k] += d;
            q[k] += d * v;
        }
    };
    BATCH(turn) {
        arrive(turn, UNROLL);
        REPEAT(u, UNROLL) if (IN_TURN(u)) {
            mask(held[KEPT(u)], AT(u));
            add(held[KEPT(u)], held_x[KEPT(u)]);
        }
    }
    FORTH {
        Elements gradients[UNROLL], elements[UNROLL];
        REPEAT(u, UNROLL) if (IN_TURN(u)) {
            gradients[u] = RESIDUAL ? load_last(g + AT(u)) : load<V>(g + AT(u));
            elements[u] = load<V>(x + AT(u));
        }
        REPEAT(u, UNROLL) if (IN_TURN(u)) {
            mask(gradients[u], AT(u));
            add(gradients[u], elements[u]);
        }
    }
    write_sum(partial, 0, s);
    write_sum(partial, 1, q);
    meet(counters + blockIdx.x);
    totals.read(partial);
    for (int c = threadIdx.x; c < COLUMNS; c += THREADS) {
        const int channel = (int)blockIdx.x * COLUMNS + c;
        if (channel >= CHANNELS) continue;
        const f64 r = (f64)spread[channel], first_sum = totals.of(0, c), second_sum = totals.of(1, c);
        numbers[0][c] = (A)(first_sum / COUNT);
        numbers[1][c] = (A)(second_sum * r * r / COUNT);
        if (blockIdx.y == 0) {
            dbias[channel] = (A)first_sum;
            dscale[channel] = (A)(second_sum * r);
        }
    }
    __syncthreads();
    fetch(s, numbers[0] + lane * V, inside);
    fetch(q, numbers[1] + lane * V, inside);
#if RESIDUAL
    const T *masked = dz;
#else
    const T *masked = g;
#endif
    BACK {
        Elements gradients[UNROLL], elements[UNROLL];
        REPEAT(u, UNROLL) if (IN_TURN(u)) {
            gradients[u] = turn < HELD ? held[KEPT(u)] : load_last(masked + AT(u));
            elements[u] = turn < HELD ? held_x[KEPT(u)] : load_last(x + AT(u));
        }
        REPEAT(u, UNROLL) if (IN_TURN(u)) {
            Elements result;
            REPEAT(k, V) {
                const A v = (A)widen(elements[u].v[k]) - middle[k], d = MASKED(widen(gradients[u].v[k]), v, k);
                result.v[k] = narrow<T>((d - (s[k] + v * q[k])) * slope[k]);
            }
            store_result(dx + AT(u), result);
        }
    }
}
#endif
