// Batch norm of channels last in one launch: all blocks are on the GPU at the same time and wait for each other between
// the sums and the pass that applies them. Each keeps the first of its elements in shared memory, where they come by
// themselves, all at once, and takes the others from the last to the first the second time, since the last ones are still
// in the cache.
//
// Sizes are numbers, so that one kernel serves all norms of a kind. Constants: T (elements), V (elements per access),
// MOST_LANES (of `lanes`), STREAM (whether the result is too large to stay in the cache), RELU, HI (what relu is clipped
// to, if anything), RESIDUAL. FUNCTION: function(v), in relu's place, comes with the constants; so does FUNCTION_GRAD:
// function_grad(result, g), the gradient of the norm's result from that of what was made of it. BEFORE: before(x) is
// normalized; BEFORE_GRAD: the gradient of x is before_grad(x, that of before(x)).
// Statistics and sums are f32. Every sum is taken in a fixed order.
#include "before_norm.cuh"
#include "mma.cuh"
#include "words.cuh"
typedef f32 A;
typedef Pack<T, V> Elements;
static_assert(sizeof(Elements) == 16, "accesses are of 16 bytes");
#define THREADS 512
#define MOST_COLUMNS (MOST_LANES * V)
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

// A tensor is `count` rows of `channels` elements. lanes: threads along the channels; part, splits: rows of a block,
// and such parts; held: turns of a block whose elements are kept, none to three times UNROLL.
struct Sizes { i64 count, channels, lanes, part, splits, held; };

// A thread's place: its row and lane in the block, of `rows` and `lanes`; `o` its first channel, `first` its first row,
// `end` the row behind the block's, `at` its first element, `step` elements from turn to turn.
struct Place {
    int lanes, rows, columns, row, lane, o, first, end, at, step, held, turns;
    bool inside;

    __device__ __forceinline__ Place(const Sizes &sizes)
    {
        const int part = (int)sizes.part, count = (int)sizes.count, channels = (int)sizes.channels;
        lanes = (int)sizes.lanes;
        rows = THREADS / lanes;
        columns = lanes * V;
        row = threadIdx.x / lanes;
        lane = threadIdx.x - row * lanes;
        o = ((int)blockIdx.x * lanes + lane) * V;
        first = (int)blockIdx.y * part + row;
        inside = row < rows && o < channels;
        end = !inside ? 0 : ((int)blockIdx.y + 1) * part < count ? ((int)blockIdx.y + 1) * part : count;
        at = first * channels + o;
        step = rows * channels;
        held = (int)sizes.held;
        turns = (part + rows - 1) / rows;
    }
    // The last turn at which a batch begins.
    __device__ __forceinline__ int last(int unroll) const { return (turns - 1) / unroll * unroll; }
    // The channel of the block's column `c`.
    __device__ __forceinline__ int channel(int c) const { return (int)blockIdx.x * columns + c; }
};

// A number that another block wrote during this launch.
__device__ __forceinline__ A fresh(const A *p) { return *(const volatile A *)p; }

// Accesses that leave the cache to others: what is read for the last time, what is too large to stay there.
__device__ __forceinline__ Words read_last(const T *p)
{
#if defined(__CUDA_ARCH__)
    Words w;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3]) : "l"(p));
    return w;
#else
    return read_words(p);
#endif
}
__device__ __forceinline__ void store_result(T *p, const Elements &pack)
{
#if STREAM && defined(__CUDA_ARCH__)
    const Words w = words_of<T>(pack);
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "l"(p), "r"(w.v[0]), "r"(w.v[1]), "r"(w.v[2]), "r"(w.v[3]) : "memory");
#else
    store<V>(p, pack);
#endif
}

// All blocks that share channels meet here: the counter's top bit turns over when the last one comes, and the others
// are zero again. The counter must be zero but for its top bit.
__device__ __forceinline__ void meet(u32 *counter, int splits)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const u32 before = atomicAdd(counter, blockIdx.y == 0 ? 0x80000000u - (splits - 1) : 1u);
        while (((before ^ *(volatile u32 *)counter) & 0x80000000u) == 0) WAIT_A_LITTLE();
        __threadfence();
    }
    __syncthreads();
}

#define IN_TURN(u) place.first + turn * place.rows + (u) * place.rows < place.end
#define AT(u) (place.at + turn * place.step + (u) * place.step)
#define KEPT(u) (turn + (u)) * THREADS + threadIdx.x
#define BATCH(turn) _Pragma("unroll 1") for (int turn = 0; turn < place.held; turn += UNROLL)
#define FORTH _Pragma("unroll 1") for (int turn = 0; turn < place.turns; turn += UNROLL)
// The halves of a batch, and each access of one. A third tensor is read half a batch at a time before a result is
// written, since the compiler must take it that a result lies where the next element is read; registers for a whole one
// there are none.
#define IN_HALVES(half) REPEAT(half, 2)
#define REPEAT_HALF(u, half)                                                                                         \
    _Pragma("unroll") for (int u = (half) * (UNROLL / 2); u < ((half) + 1) * (UNROLL / 2); ++u)
// From the last turn to the first: those that are read again, then those that were kept. One loop for both has half the
// code.
#define BACK _Pragma("unroll 1") for (int turn = place.last(UNROLL); turn >= 0; turn -= UNROLL)

// Waits until the batch of `turn` is there; it is one of three at most.
__device__ __forceinline__ void arrive(int turn, int held, int unroll)
{
    const int left = (held - turn) / unroll - 1;
    if (left == 0) wait_groups<0>();
    else if (left == 1) wait_groups<1>();
    else wait_groups<2>();
}

// The block's sum of `s` in each of its columns, to partial[split][which][channel].
__device__ __forceinline__ void write_sum(A *partial, int which, const A (&s)[V], const Place &place, int channels)
{
    __shared__ A part[THREADS * V];
    __syncthreads();
    if (place.row < place.rows) REPEAT(k, V) part[threadIdx.x * V + k] = s[k];  // [rows, columns]
    __syncthreads();
    const int c = threadIdx.x, channel = place.channel(c);
    if (c >= place.columns || channel >= channels) return;
    A total = part[c];
    _Pragma("unroll 8") for (int k = 1; k < place.rows; ++k) total += part[k * place.columns + c];
    partial[((int)blockIdx.y * 2 + which) * channels + channel] = total;
}

// The sums over all blocks, two of each of the block's columns, `share` threads having taken a part of the blocks.
struct Totals {
    f64 some[2 * MOST_COLUMNS > THREADS ? 2 * MOST_COLUMNS : THREADS];  // [share, 2, columns]

    __device__ __forceinline__ void read(const A *partial, const Place &place, const Sizes &sizes)
    {
        const int wide = 2 * place.columns, share = shares(place), channels = (int)sizes.channels;
        const int own = share > 1 ? place.row / (2 * V) : 0;  // threadIdx.x / wide
        for (int i = threadIdx.x; i < share * wide; i += THREADS) {
            const int c = i - own * wide, which = c >= place.columns;
            const int channel = place.channel(c - which * place.columns);
            f64 sum = 0;
            if (channel < channels) {
                const A *from = partial + which * channels + channel;
                _Pragma("unroll 8") for (int k = own; k < (int)sizes.splits; k += share)
                    sum += (f64)fresh(from + k * (2 * channels));
            }
            some[i] = sum;
        }
        __syncthreads();
    }
    // As many parts as there are threads for: THREADS / (2 * columns).
    __device__ __forceinline__ static int shares(const Place &place)
    {
        return place.rows < 4 * V ? 1 : place.rows / (2 * V);
    }
    __device__ __forceinline__ f64 of(int which, int column, const Place &place) const
    {
        f64 sum = 0;
        for (int k = 0; k < shares(place); ++k) sum += some[(k * 2 + which) * place.columns + column];
        return sum;
    }
};

__device__ __forceinline__ void fetch(A (&to)[V], const A *from, bool inside)
{
    REPEAT(k, V) to[k] = inside ? from[k] : 0;
}

#ifdef FORWARD
#define UNROLL 8
// y = (x - mean) * r * scale + bias [+ z] [clipped, or a function of that], the statistics and what the running ones
// become. Sums are of x - shift and its square, the shift being each channel's first element: no digits are lost to a
// large mean.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
batch_norm_resident(const T *x, const A *scale, const A *bias, const A *running_mean, const A *running_var, const T *z,
                    A *partial, u32 *counters, A *mean, A *spread, A *next_mean, A *next_var, T *y,
                    const __grid_constant__ Sizes sizes, f64 epsilon, f64 momentum, f64 unbiased)
{
    DYNAMIC_SHARED(Words, held);
    __shared__ Totals totals;
    __shared__ A numbers[3][MOST_COLUMNS];
    const Place place(sizes);
    const int o = place.o, channels = (int)sizes.channels, count = (int)sizes.count;
    const bool inside = place.inside;
    BATCH(turn) {
        REPEAT(u, UNROLL) if (IN_TURN(u)) copy_later(held + KEPT(u), x + AT(u), true);
        end_group();
    }
    A middle[V], slope[V], shift[V];
    REPEAT(k, V) { middle[k] = inside ? GIVEN(x[o + k]) : 0; slope[k] = shift[k] = 0; }
    const auto add = [&](const Words &words) {
        const Elements some = elements_of<T>(words);
        REPEAT(k, V) {
            const A v = GIVEN(some.v[k]) - middle[k];
            slope[k] += v;
            shift[k] += v * v;
        }
    };
    FORTH {
        Words some[UNROLL];
        if (turn < place.held) {
            arrive(turn, place.held, UNROLL);
            REPEAT(u, UNROLL) if (IN_TURN(u)) some[u] = held[KEPT(u)];
        } else {
            REPEAT(u, UNROLL) if (IN_TURN(u)) some[u] = read_words(x + AT(u));
        }
        REPEAT(u, UNROLL) if (IN_TURN(u)) add(some[u]);
    }
    write_sum(partial, 0, slope, place, channels);
    write_sum(partial, 1, shift, place, channels);
    meet(counters + blockIdx.x, (int)sizes.splits);
    totals.read(partial, place, sizes);
    const int c = threadIdx.x, channel = place.channel(c);
    if (c < place.columns && channel < channels) {
        const f64 near = totals.of(0, c, place) / count, square = totals.of(1, c, place) / count;
        const f64 var = larger(square - near * near, 0.0), level = near + (f64)GIVEN(x[channel]);
        const A r = (A)(1 / sqrt(var + epsilon));
        numbers[0][c] = (A)level;
        numbers[1][c] = r * scale[channel];
        numbers[2][c] = bias[channel];
        if (blockIdx.y == 0) {
            mean[channel] = (A)level;
            spread[channel] = r;
            next_mean[channel] = (A)((1 - momentum) * (f64)running_mean[channel] + momentum * level);
            next_var[channel] = (A)((1 - momentum) * (f64)running_var[channel] + momentum * unbiased * var);
        }
    }
    __syncthreads();
    fetch(middle, numbers[0] + place.lane * V, inside);
    fetch(slope, numbers[1] + place.lane * V, inside);
    fetch(shift, numbers[2] + place.lane * V, inside);
    const auto finish = [&](const Words (&some)[UNROLL], int turn) {
        IN_HALVES(half) {
#if RESIDUAL
            Words added[UNROLL];
            REPEAT_HALF(u, half) if (IN_TURN(u)) added[u] = read_words(z + AT(u));
#endif
            REPEAT_HALF(u, half) if (IN_TURN(u)) {
                const Elements element = elements_of<T>(some[u]);
#if RESIDUAL
                const Elements more = elements_of<T>(added[u]);
#endif
                Elements result;
                REPEAT(k, V) {
                    A v = (GIVEN(element.v[k]) - middle[k]) * slope[k] + shift[k];
#if RESIDUAL
                    v += (A)widen(more.v[k]);
#endif
#if defined(FUNCTION)
                    v = function(v);
#elif RELU
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
    };
    BACK {
        Words some[UNROLL];
        if (turn < place.held) {
            REPEAT(u, UNROLL) if (IN_TURN(u)) some[u] = held[KEPT(u)];
        } else {
            REPEAT(u, UNROLL) if (IN_TURN(u)) some[u] = read_last(x + AT(u));
        }
        finish(some, turn);
    }
}
#endif

#ifdef BACKWARD
#define UNROLL 4
// dx = r scale (g - mean(g) - n mean(g n)), n = (x - mean) r, with dscale and dbias. Under relu g counts where the output
// lay between its bounds: it is computed again from x; with RESIDUAL it is y, and the masked g is written to dz.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
batch_norm_grad_resident(const T *g, const T *x, const A *scale, const A *mean, const A *spread, const A *bias,
                         const T *y, T *dz, A *partial, u32 *counters, A *dscale, A *dbias, T *dx,
                         const __grid_constant__ Sizes sizes)
{
    DYNAMIC_SHARED(Words, held);
    __shared__ Totals totals;
    __shared__ A numbers[2][MOST_COLUMNS];
    const Place place(sizes);
    const int o = place.o, channels = (int)sizes.channels, count = (int)sizes.count;
    const bool inside = place.inside;
    Words *held_x = held + place.held * THREADS;
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
#if defined(FUNCTION_GRAD) || (RELU && !RESIDUAL)
    A shift[V];
    fetch(shift, bias + o, inside);
#if defined(FUNCTION_GRAD)
#define ARRIVING(g, v, k) function_grad((v) * slope[k] + shift[k], (A)(g))
#else
#define ARRIVING(g, v, k) (PASSES((v) * slope[k] + shift[k], UPPER) ? (A)(g) : 0)
#endif
#else
#define ARRIVING(g, v, k) ((A)(g))
#endif
    // Sums of a batch. With RESIDUAL gradients become those where y lay between its bounds, which others read too.
    const auto add = [&](Words (&gradients)[UNROLL], const Words (&elements)[UNROLL], int turn) {
        IN_HALVES(half) {
#if RESIDUAL
            Words outputs[UNROLL];
            REPEAT_HALF(u, half) if (IN_TURN(u)) outputs[u] = read_last(y + AT(u));
#endif
            REPEAT_HALF(u, half) if (IN_TURN(u)) {
                const Elements element = elements_of<T>(elements[u]);
                Elements gradient = elements_of<T>(gradients[u]);
#if RESIDUAL
                const Elements output = elements_of<T>(outputs[u]);
                REPEAT(k, V)
                    if (!PASSES((A)widen(output.v[k]), (A)widen(narrow<T>((A)UPPER)))) gradient.v[k] = narrow<T>((A)0);
                gradients[u] = words_of<T>(gradient);
                store<V>(dz + AT(u), gradient);
#endif
                REPEAT(k, V) {
                    const A v = GIVEN(element.v[k]) - middle[k], d = ARRIVING(widen(gradient.v[k]), v, k);
                    s[k] += d;
                    q[k] += d * v;
                }
            }
        }
    };
    FORTH {
        Words gradients[UNROLL], elements[UNROLL];
        if (turn < place.held) {
            arrive(turn, place.held, UNROLL);
            REPEAT(u, UNROLL) if (IN_TURN(u)) {
                gradients[u] = held[KEPT(u)];
                elements[u] = held_x[KEPT(u)];
            }
        } else {
            REPEAT(u, UNROLL) if (IN_TURN(u)) {
                gradients[u] = RESIDUAL ? read_last(g + AT(u)) : read_words(g + AT(u));
                elements[u] = read_words(x + AT(u));
            }
        }
        add(gradients, elements, turn);
#if RESIDUAL
        if (turn < place.held) REPEAT(u, UNROLL) if (IN_TURN(u)) held[KEPT(u)] = gradients[u];
#endif
    }
    write_sum(partial, 0, s, place, channels);
    write_sum(partial, 1, q, place, channels);
    meet(counters + blockIdx.x, (int)sizes.splits);
    totals.read(partial, place, sizes);
    const int c = threadIdx.x, channel = place.channel(c);
    if (c < place.columns && channel < channels) {
        const f64 r = (f64)spread[channel], first_sum = totals.of(0, c, place), second_sum = totals.of(1, c, place);
        numbers[0][c] = (A)(first_sum / count);
        numbers[1][c] = (A)(second_sum * r * r / count);
        if (blockIdx.y == 0) {
            dbias[channel] = (A)first_sum;
            dscale[channel] = (A)(second_sum * r);
        }
    }
    __syncthreads();
    fetch(s, numbers[0] + place.lane * V, inside);
    fetch(q, numbers[1] + place.lane * V, inside);
#if RESIDUAL
    const T *masked = dz;
#else
    const T *masked = g;
#endif
    const auto finish = [&](const Words (&gradients)[UNROLL], const Words (&elements)[UNROLL], int turn) {
        REPEAT(u, UNROLL) if (IN_TURN(u)) {
            const Elements element = elements_of<T>(elements[u]), gradient = elements_of<T>(gradients[u]);
            Elements result;
            REPEAT(k, V) {
                const A v = GIVEN(element.v[k]) - middle[k], d = ARRIVING(widen(gradient.v[k]), v, k);
                result.v[k] = narrow<T>(LEAVING(element.v[k], (d - (s[k] + v * q[k])) * slope[k]));
            }
            store_result(dx + AT(u), result);
        }
    };
    BACK {
        Words gradients[UNROLL], elements[UNROLL];
        if (turn < place.held) {
            REPEAT(u, UNROLL) if (IN_TURN(u)) {
                gradients[u] = held[KEPT(u)];
                elements[u] = held_x[KEPT(u)];
            }
        } else {
            REPEAT(u, UNROLL) if (IN_TURN(u)) {
                gradients[u] = read_last(masked + AT(u));
                elements[u] = read_last(x + AT(u));
            }
        }
        finish(gradients, elements, turn);
    }
}
#endif
