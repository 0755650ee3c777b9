// Normalization: sums over what shares a mean or a scale, then one pass that applies them. One text is compiled per
// kernel, with these constants: Index, T (elements), V (elements per access).
// Of the parameter SIZES: OUTPUTS (kept places: channels, rows or scales), COUNT (elements at each) and PER (1 / COUNT),
//   PART and SPLITS (elements of a kept place per block, and such parts), and functions kept(o) and reduced(r): offsets
//   in the big tensors, which all lie alike.
// Statistics and sums are of type A: f32, or f64 for f64. Every sum is taken in a fixed order.
#include "before_norm.cuh"
#include "norm.cuh"

__device__ __forceinline__ f32 root(f32 v) { return sqrtf(v); }
__device__ __forceinline__ f64 root(f64 v) { return sqrt(v); }

#if defined(LANES) || defined(BLOCK_ROWS)
// ------------------------------------------------------------------------------------------ blocks of kept x reduced
#ifdef BLOCK_ROWS
// The elements of a kept place lie together: one place per block and part; all V elements of an access belong to it.
#define WIDTH 1
#define OF(k) 0
#define PLACE ((Index)blockIdx.x)
#define FIRST ((Index)threadIdx.x * V)
#define STEP (256 * V)
#else
// The kept places lie together: LANES * V of them per block, whose ROWS rows of threads share the elements.
#define WIDTH V
#define OF(k) (k)
#define PLACE (((Index)blockIdx.x * LANES + threadIdx.x % LANES) * V)
#define FIRST ((Index)(threadIdx.x / LANES))
#define STEP ROWS
#endif

// Within: `o` the first kept place, `base` its offset, then each `at` (offset) and `r` of the block's part.
#define BLOCK(part)                                                                                                  \
    const Index o = PLACE, begin = (Index)(part) * PART;                                                             \
    const Index end = begin + PART < COUNT ? begin + PART : COUNT;                                                   \
    const bool inside = o < OUTPUTS;                                                                                 \
    const Index base = inside ? kept(o) : 0;
#define EACH _Pragma("unroll 4") for (Index r = begin + FIRST; r < end; r += STEP)

// Passes that write take AHEAD elements of a thread at a time: all are read before the first result is written, since the
// compiler must take it that a result lies where the next element is read.
#define AHEAD 4
#define BATCHES _Pragma("unroll 1") for (Index r = begin + FIRST; r < end; r += AHEAD * STEP)
#define IN_BATCH(p) if (r + (p) * STEP < end)

// Two sums of each kept place of the block, over its threads, to partial[sum][place][split].
__device__ __forceinline__ void write_sums(A *partial, A (&s)[WIDTH], A (&q)[WIDTH], const Sizes &sizes)
{
#ifdef BLOCK_ROWS
    const A a = over_block(s[0], Sum(), (A)0), b = over_block(q[0], Sum(), (A)0);
    if (threadIdx.x == 0) {
        const i64 to = (i64)blockIdx.x * SPLITS + blockIdx.y;
        partial[to] = a;
        partial[to + (i64)OUTPUTS * SPLITS] = b;
    }
#else
    sums_of_rows(partial, s, q, OUTPUTS, SPLITS);
#endif
}

// Kept places are channels; with GROUPED channels of an image, of which PER_GROUP have one mean, and CHANNELS are an
// image's: group_of(o) and image_of(o) are quotients by these.
#ifdef GROUPED
#define STATISTIC(o) group_of(o)
#define CHANNEL(o) ((o) - image_of(o) * CHANNELS)
#else
#define STATISTIC(o) (o)
#define CHANNEL(o) (o)
#endif
// The numbers of the block's kept places.
#define FETCH(to, from, number, inside) REPEAT(k, WIDTH) to[k] = (inside) ? from[number(o + k)] : (A)0;
#endif

#ifdef SPLITS
// One warp per kept place: the sum of its partial results, in f64.
__device__ __forceinline__ f64 total_of(const A *partial, Index place, const Sizes &sizes)
{
    f64 sum = 0;
    _Pragma("unroll 8") for (int k = threadIdx.x & 31; k < SPLITS; k += 32)
        sum += (f64)partial[(i64)place * SPLITS + k];
    return over_warp(sum, Sum());
}
#endif

#ifdef MOMENTS
// Sums of x - shift and its square, the shift being each channel's first element: no digits are lost to a large mean.
extern "C" __global__ void __launch_bounds__(256) batch_moments(const T *x, A *partial, SIZES)
{
    BLOCK(blockIdx.y)
    A shift[WIDTH], s[WIDTH], q[WIDTH];
    REPEAT(k, WIDTH) {
        shift[k] = inside ? GIVEN(x[base + k]) : (A)0;
        s[k] = q[k] = 0;
    }
    if (inside) EACH {
        const auto elements = load<V>(x + base + reduced(r));
        REPEAT(k, V) {
            const A v = GIVEN(elements.v[k]) - shift[OF(k)];
            s[OF(k)] += v;
            q[OF(k)] += v * v;
        }
    }
    write_sums(partial, s, q, sizes);
}
#endif

#ifdef STATISTICS
// One warp per channel: mean, r = 1 / sqrt(variance + EPSILON), and the running statistics moved by MOMENTUM. SHIFTED:
// the sums are of x less each channel's first element.
extern "C" __global__ void __launch_bounds__(256)
batch_statistics(const T *x, const A *partial, const A *running_mean, const A *running_var, A *mean, A *r, A *next_mean,
                 A *next_var, SIZES)
{
    const Index c = (Index)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (c >= OUTPUTS) return;
    const f64 first = total_of(partial, c, sizes) / COUNT, second = total_of(partial, OUTPUTS + c, sizes) / COUNT;
    if (threadIdx.x & 31) return;
    const f64 var = larger(second - first * first, 0.0);
    const f64 middle = first + (SHIFTED ? (f64)GIVEN(x[kept(c)]) : 0);
    mean[c] = (A)middle;
    r[c] = (A)(1 / sqrt(var + EPSILON));
    next_mean[c] = (A)((1 - MOMENTUM) * (f64)running_mean[c] + MOMENTUM * middle);
    next_var[c] = (A)((1 - MOMENTUM) * (f64)running_var[c] + MOMENTUM * UNBIASED * var);
}
#endif

#ifdef APPLY
// y = (x - mean) * r * scale + bias [+ z] [clipped at 0, or a function of that]; r from the variance in inference. The
// parts are taken from the last to the first, since the sums that came before leave the last ones in the cache. SIGNS: a
// bit for each element says whether it is positive.
extern "C" __global__ void __launch_bounds__(256)
batch_apply(const T *x, const A *scale, const A *bias, const A *mean, const A *spread, const T *z, T *y, u8 *signs,
            SIZES)
{
    BLOCK(gridDim.y - 1 - blockIdx.y)
    if (!inside) return;
    A slope[WIDTH], shift[WIDTH], middle[WIDTH];
    FETCH(slope, spread, STATISTIC, true)
    FETCH(shift, bias, CHANNEL, true)
    FETCH(middle, mean, STATISTIC, true)
    REPEAT(k, WIDTH) {
#if INFERENCE
        slope[k] = (A)1 / root(slope[k] + (A)EPSILON);
#endif
        slope[k] *= scale[CHANNEL(o + k)];
    }
    BATCHES {
        Index at[AHEAD];
        Pack<T, V> elements[AHEAD], added[AHEAD];
        REPEAT(p, AHEAD) IN_BATCH(p) {
            at[p] = base + reduced(r + p * STEP);
            elements[p] = load<V>(x + at[p]);
            if (RESIDUAL) added[p] = load<V>(z + at[p]);
        }
        REPEAT(p, AHEAD) IN_BATCH(p) {
            Pack<T, V> result;
            REPEAT(k, V) {
                A v = (GIVEN(elements[p].v[k]) - middle[OF(k)]) * slope[OF(k)] + shift[OF(k)];
                if (RESIDUAL) v += (A)widen(added[p].v[k]);
                result.v[k] = narrow<T>(activated(v));
            }
            store<V>(y + at[p], result);
#if SIGNS
            static_assert(V == 8, "a byte has the signs of one access");
            u32 byte = 0;
            REPEAT(k, V) byte |= (u32)(widen(result.v[k]) > 0) << k;
            signs[at[p] / V] = (u8)byte;
#endif
        }
    }
}
#endif

// Under relu g counts where the output is positive: its sign is computed again from x; with RESIDUAL it is that of y.
// FUNCTION_GRAD: it is function_grad(result, g) that counts, which comes with the constants. AGAIN: the norm's result is
// computed once more.
#if defined(FUNCTION_GRAD)
#define AGAIN 1
#define ARRIVING(g, v, k) function_grad((v) * slope[OF(k)] + shift[OF(k)], (A)(g))
#elif RELU && !RESIDUAL
#define AGAIN 1
#define ARRIVING(g, v, k) (passes((v) * slope[OF(k)] + shift[OF(k)], UPPER) ? (A)(g) : (A)0)
#else
#define AGAIN 0
#define ARRIVING(g, v, k) ((A)(g))
#endif

#ifdef GRAD_SUMS
// Sums of g and of g * (x - mean), g being masked by relu, or what a function makes of it; with RESIDUAL the masked g is
// written to dz.
extern "C" __global__ void __launch_bounds__(256)
batch_grad_sums(const T *g, const T *x, const A *scale, const A *mean, const A *spread, const A *bias, const T *y,
                T *dz, A *partial, SIZES)
{
    BLOCK(blockIdx.y)
    A middle[WIDTH], s[WIDTH], q[WIDTH];
    FETCH(middle, mean, STATISTIC, inside)
    REPEAT(k, WIDTH) s[k] = q[k] = 0;
#if AGAIN
    A slope[WIDTH], shift[WIDTH];
    FETCH(slope, spread, STATISTIC, inside)
    FETCH(shift, bias, CHANNEL, inside)
    REPEAT(k, WIDTH) slope[k] *= inside ? scale[CHANNEL(o + k)] : (A)0;
#endif
    if (inside) EACH {
        const Index at = base + reduced(r);
        const auto gradients = load<V>(g + at);
        const auto elements = load<V>(x + at);
#if RESIDUAL
        const auto outputs = load<V>(y + at);
        Pack<T, V> masked;
#endif
        REPEAT(k, V) {
            const A v = GIVEN(elements.v[k]) - middle[OF(k)];
#if RESIDUAL
            const bool positive = passes(widen(outputs.v[k]), (A)widen(narrow<T>(UPPER)));
            masked.v[k] = positive ? gradients.v[k] : narrow<T>((A)0);
            const A d = positive ? (A)widen(gradients.v[k]) : (A)0;
#else
            const A d = ARRIVING(widen(gradients.v[k]), v, k);
#endif
            s[OF(k)] += d;
            q[OF(k)] += d * v;
        }
#if RESIDUAL
        store<V>(dz + at, masked);
#endif
    }
    write_sums(partial, s, q, sizes);
}
#endif

#ifdef GRAD_TOTALS
// One warp per channel: dbias, and dscale, which is the other sum times r (SCALED) or as it is.
extern "C" __global__ void __launch_bounds__(256)
grad_totals(const A *partial, const A *spread, A *dscale, A *dbias, SIZES)
{
    const Index c = (Index)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (c >= OUTPUTS) return;
    const f64 first = total_of(partial, c, sizes), second = total_of(partial, OUTPUTS + c, sizes);
    if (threadIdx.x & 31) return;
#if CENTRED
    dbias[c] = (A)first;
#endif
    dscale[c] = (A)(SCALED ? second * (f64)spread[c] : second);
}
#endif

#if AGAIN || defined(BEFORE)
#define BLOCKS 2  // what computes the output or the input again needs registers that only two blocks have
#else
#define BLOCKS 3
#endif

#ifdef GRAD_APPLY
// dx = r scale (g - mean(g) - n mean(g n)), n = (x - mean) r; without MOVING only r scale g.
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
batch_grad_apply(const T *g, const T *x, const A *scale, const A *mean, const A *spread, const A *bias, const A *dscale,
                 const A *dbias, T *dx, SIZES)
{
    BLOCK(gridDim.y - 1 - blockIdx.y)
    if (!inside) return;
    A middle[WIDTH], slope[WIDTH], level[WIDTH], tilt[WIDTH], shift[WIDTH];
    FETCH(middle, mean, STATISTIC, true)
    FETCH(slope, spread, STATISTIC, true)
    FETCH(level, dbias, CHANNEL, true)
    FETCH(tilt, dscale, CHANNEL, true)
    FETCH(shift, bias, CHANNEL, true)
    REPEAT(k, WIDTH) {
        level[k] *= (A)PER;
        tilt[k] *= slope[k] * (A)PER;
        slope[k] *= scale[CHANNEL(o + k)];
    }
    const bool needs_x = MOVING || AGAIN;
    BATCHES {
        Index at[AHEAD];
        Pack<T, V> gradients[AHEAD], elements[AHEAD];
        REPEAT(p, AHEAD) IN_BATCH(p) {
            at[p] = base + reduced(r + p * STEP);
            gradients[p] = load<V>(g + at[p]);
            if (needs_x) elements[p] = load<V>(x + at[p]);
        }
        REPEAT(p, AHEAD) IN_BATCH(p) {
            Pack<T, V> result;
            REPEAT(k, V) {
                const A v = needs_x ? GIVEN(elements[p].v[k]) - middle[OF(k)] : (A)0;
                A d = ARRIVING(widen(gradients[p].v[k]), v, k);
                if (MOVING) d -= level[OF(k)] + v * tilt[OF(k)];
                result.v[k] = narrow<T>(LEAVING(elements[p].v[k], d * slope[OF(k)]));
            }
            store<V>(dx + at[p], result);
        }
    }
}
#endif

#ifdef MEMBERS
// What sums of channels are brought together for has MEMBERS threads: a warp or the block.
#define NUMBER_OF_TEAM ((Index)blockIdx.x * (256 / MEMBERS) + threadIdx.x / MEMBERS)
__device__ __forceinline__ f64 over_members(f64 v)
{
#if MEMBERS == 32
    return over_warp(v, Sum());
#else
    return over_block(v, Sum(), 0.0);
#endif
}
#endif

#ifdef GROUP_STATISTICS
// A team per group of an image: mean and r = 1 / sqrt(variance + EPSILON) of LINES of them, from the sums of each
// channel's elements less its first one.
extern "C" __global__ void __launch_bounds__(256)
group_statistics(const T *x, const A *partial, A *mean, A *r, SIZES)
{
    const Index group = NUMBER_OF_TEAM, lane = threadIdx.x % MEMBERS;
    if (group >= LINES) return;
    const A *sums = partial + (i64)group * PER_GROUP * SPLITS, *squares = sums + (i64)OUTPUTS * SPLITS;
    const f64 size = (f64)COUNT * PER_GROUP;
    f64 sum = 0, square = 0;
    for (Index i = lane; i < PER_GROUP * SPLITS; i += MEMBERS) sum += (f64)sums[i];
    for (Index c = lane; c < PER_GROUP; c += MEMBERS) sum += COUNT * (f64)widen(x[kept(group * PER_GROUP + c)]);
    const f64 middle = over_members(sum) / size;
    for (Index i = lane; i < PER_GROUP * SPLITS; i += MEMBERS) {
        const f64 apart = middle - (f64)widen(x[kept(group * PER_GROUP + i / SPLITS)]);
        square += (f64)squares[i] - 2 * apart * (f64)sums[i];
    }
    for (Index c = lane; c < PER_GROUP; c += MEMBERS) {
        const f64 apart = middle - (f64)widen(x[kept(group * PER_GROUP + c)]);
        square += COUNT * apart * apart;
    }
    const f64 var = larger(over_members(square) / size, 0.0);
    if (lane) return;
    mean[group] = (A)middle;
    r[group] = (A)(1 / sqrt(var + EPSILON));
}
#endif

#ifdef GROUP_TOTALS
// From each channel's sums of g and g (x - mean) in each image. A team per group of an image: level = the mean of
// g scale, tilt = r² times that of g scale (x - mean). Behind these LINES one per channel: dbias and dscale, over
// IMAGES.
extern "C" __global__ void __launch_bounds__(256)
group_totals(const A *partial, const A *scale, const A *spread, A *level, A *tilt, A *dscale, A *dbias, SIZES)
{
    const Index team = NUMBER_OF_TEAM, lane = threadIdx.x % MEMBERS;
    const bool of_group = team < LINES;
    const Index channel = team - LINES;
    if (!of_group && channel >= CHANNELS) return;
    const A *others = partial + (i64)OUTPUTS * SPLITS;
    f64 first = 0, second = 0;
    for (Index i = lane; i < (of_group ? (Index)PER_GROUP : (Index)IMAGES) * SPLITS; i += MEMBERS) {
        const Index n = i / SPLITS, place = of_group ? team * PER_GROUP + n : n * CHANNELS + channel;
        const i64 at = (i64)place * SPLITS + i % SPLITS;
        const f64 factor = of_group ? (f64)scale[place - image_of(place) * CHANNELS] : 1.0;
        first += factor * (f64)partial[at];
        second += (of_group ? factor : (f64)spread[group_of(place)]) * (f64)others[at];
    }
    first = over_members(first);
    second = over_members(second);
    if (lane) return;
    const f64 size = (f64)COUNT * PER_GROUP;
    if (of_group) {
        const f64 r = (f64)spread[team];
        level[team] = (A)(first / size);
        tilt[team] = (A)(r * r * second / size);
    } else {
        dbias[channel] = (A)first;
        dscale[channel] = (A)second;
    }
}
#endif

#ifdef GROUP_GRAD_APPLY
// dx = r (g scale - level - (x - mean) tilt), g being what arrives or what a function makes of it.
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
group_grad_apply(const T *g, const T *x, const A *scale, const A *mean, const A *spread, const A *bias, const A *level,
                 const A *tilt, T *dx, SIZES)
{
    BLOCK(gridDim.y - 1 - blockIdx.y)
    if (!inside) return;
    A middle[WIDTH], slope[WIDTH], least[WIDTH], bend[WIDTH];
    FETCH(middle, mean, STATISTIC, true)
    FETCH(slope, spread, STATISTIC, true)
    FETCH(least, level, STATISTIC, true)
    FETCH(bend, tilt, STATISTIC, true)
#if AGAIN
    A shift[WIDTH];
    FETCH(shift, bias, CHANNEL, true)
#endif
    REPEAT(k, WIDTH) {
        least[k] *= slope[k];
        bend[k] *= slope[k];
        slope[k] *= scale[CHANNEL(o + k)];
    }
    BATCHES {
        Index at[AHEAD];
        Pack<T, V> gradients[AHEAD], elements[AHEAD];
        REPEAT(p, AHEAD) IN_BATCH(p) {
            at[p] = base + reduced(r + p * STEP);
            gradients[p] = load<V>(g + at[p]);
            elements[p] = load<V>(x + at[p]);
        }
        REPEAT(p, AHEAD) IN_BATCH(p) {
            Pack<T, V> result;
            REPEAT(k, V) {
                const A v = (A)widen(elements[p].v[k]) - middle[OF(k)];
                const A d = ARRIVING(widen(gradients[p].v[k]), v, k);
                result.v[k] = narrow<T>(d * slope[OF(k)] - least[OF(k)] - v * bend[OF(k)]);
            }
            store<V>(dx + at[p], result);
        }
    }
}
#endif

#ifdef SCALE_SUMS
// Sums of g and of g * (x - mean) * r over what shares a scale, mean and r being those of the row that an element
// belongs to: stat_kept(o) + stat_reduced(r) [+ k * STAT_STEP].
extern "C" __global__ void __launch_bounds__(256)
row_scale_sums(const T *g, const T *x, const A *mean, const A *spread, A *partial, SIZES)
{
    BLOCK(blockIdx.y)
    A s[WIDTH], q[WIDTH];
    REPEAT(k, WIDTH) s[k] = q[k] = 0;
    if (inside) EACH {
        const Index at = base + reduced(r), row = stat_kept(o) + stat_reduced(r);
        const auto gradients = load<V>(g + at);
        const auto elements = load<V>(x + at);
        REPEAT(k, V) {
            const A d = (A)widen(gradients.v[k]);
            A v = (A)widen(elements.v[k]);
#if CENTRED
            v -= mean[row + k * STAT_STEP];
#endif
            s[OF(k)] += d;
            q[OF(k)] += d * v * spread[row + k * STAT_STEP];
        }
    }
    write_sums(partial, s, q, sizes);
}
#endif

#ifdef GROUP
// -------------------------------------------------------------------------------------------------------------- rows
// GROUP threads (up to 32, or 256 = the block) share a row; its elements stay in registers if they fit (HELD). The number
// of an element's scale is scale_kept(o) + scale_reduced(r) [+ k * SCALE_STEP]. TURNS: accesses of a thread per row, a
// constant with HELD; EVEN: each thread has one in each.
template <class F> __device__ __forceinline__ A over_group(A v, F combine)
{
#if GROUP <= 32
    return over_lanes_of<GROUP>(v, combine);
#else
    return over_block(v, combine, (A)0);
#endif
}

// The threads of a warp go on together. Those behind the last row see it too, and write nothing: all of them have read
// it by then, for short rows are held.
#define TEAM (GROUP < 32 ? 32 : GROUP)
#define ROWS_OF_BLOCK                                                                                                \
    const int lane = threadIdx.x % GROUP;                                                                            \
    for (Index first = ((Index)blockIdx.x * 256 + threadIdx.x / TEAM * TEAM) / GROUP; first < (Index)OUTPUTS;        \
         first += (Index)gridDim.x * (256 / GROUP))
#define ROW_OF_GROUP                                                                                                 \
    const Index own = first + threadIdx.x % TEAM / GROUP;                                                            \
    const bool real = TEAM == GROUP || own < (Index)OUTPUTS;                                                         \
    const Index o = real ? own : (Index)OUTPUTS - 1;
#if GROUP < 32 && !HELD
#error "rows of a part of a warp are held"
#endif
#if HELD
#define EACH_TURN _Pragma("unroll") for (int turn = 0; turn < TURNS; ++turn)
#define ELEMENTS(array, pointer) array[turn]
#else
#define EACH_TURN _Pragma("unroll 4") for (int turn = 0; turn < TURNS; ++turn)
#define ELEMENTS(array, pointer) load<V>(pointer + base + reduced(r))
#endif
#define AT const Index r = ((Index)turn * GROUP + lane) * V; if (EVEN || r < COUNT)

// V numbers of type A, 16 bytes at a time where they lie together.
__device__ __forceinline__ void fetch(A (&to)[V], const A *from)
{
#if SCALE_STEP && V > 1
    constexpr int N = 16 / sizeof(A) < V ? 16 / sizeof(A) : V;
    REPEAT(j, V / N) {
        const auto some = load<N>(from + j * N);
        REPEAT(k, N) to[j * N + k] = some.v[k];
    }
#else
    REPEAT(k, V) to[k] = from[0];
#endif
}

#ifdef ROW_NORM
#ifdef KEPT
#define KEPT_X T *kept_x,
#else
#define KEPT_X
#endif
// What is normalized: x, or read_x(at, GIVEN) of the tensors INPUTS, which KEPT writes to kept_x. Y: the result's type.
#ifndef INPUTS
#define INPUTS const T *x
#define GIVEN_ROWS x
__device__ __forceinline__ Pack<T, V> read_x(i64 at, INPUTS) { return load<V>(x + at); }
#endif
#if HELD
#define ROW held[turn]
#else
#define ROW read_x(base + reduced(r), GIVEN_ROWS)
#endif
// Of rows that are a few accesses the next one is read before this one is written.
#if HELD
#define NEXT (TURNS <= 2)
__device__ __forceinline__ void read_row(Pack<T, V> (&to)[TURNS], INPUTS, Index o, int lane, const Sizes &sizes)
{
    const Index base = kept(o);
    EACH_TURN { AT to[turn] = read_x(base + reduced(r), GIVEN_ROWS); }
}
#else
#define NEXT 0
#endif

extern "C" __global__ void __launch_bounds__(256)
row_norm(INPUTS, const A *scale, const A *bias, Y *y, A *mean, A *spread, KEPT_X SIZES)
{
#if SAME_SCALE
    // Every row has the same scales, of which a thread keeps its own.
    A factors[TURNS][V], shifts[TURNS][V];
    const int own_lane = threadIdx.x % GROUP;
    REPEAT(turn, TURNS) {
        const Index r = ((Index)turn * GROUP + own_lane) * V;
        if (r < (Index)COUNT) {
            fetch(factors[turn], scale + scale_reduced(r));
            if (CENTRED) fetch(shifts[turn], bias + scale_reduced(r));
        }
    }
#endif
#if NEXT
    Pack<T, V> next[TURNS];
    const Index start = ((Index)blockIdx.x * 256 + threadIdx.x) / GROUP;
    read_row(next, GIVEN_ROWS, smaller(start, (Index)OUTPUTS - 1), threadIdx.x % GROUP, sizes);
#endif
    ROWS_OF_BLOCK {
        ROW_OF_GROUP
        const Index base = kept(o);
        A sum = 0, square = 0;
#if HELD
        Pack<T, V> held[TURNS];
#if NEXT
        REPEAT(turn, TURNS) held[turn] = next[turn];
        read_row(next, GIVEN_ROWS, smaller(own + (Index)gridDim.x * (256 / GROUP), (Index)OUTPUTS - 1), lane, sizes);
#else
        read_row(held, GIVEN_ROWS, o, lane, sizes);
#endif
#endif
#if CENTRED
        EACH_TURN { AT { const auto some = ROW; REPEAT(k, V) sum += (A)widen(some.v[k]); } }
        const A middle = over_group(sum, Sum()) * (A)PER;
#else
        const A middle = 0;
#endif
        EACH_TURN {
            AT {
                const auto some = ROW;
                REPEAT(k, V) { const A v = (A)widen(some.v[k]) - middle; square += v * v; }
            }
        }
        const A slope = (A)1 / root(over_group(square, Sum()) * (A)PER + (A)EPSILON);
        if (real && lane == 0) {
#if CENTRED
            mean[o] = middle;
#endif
            spread[o] = slope;
        }
        EACH_TURN {
            AT {
                const auto some = ROW;
#ifdef KEPT
                if (real) store<V>(kept_x + base + reduced(r), some);
#endif
                A factor[V], shift[V];
#if SAME_SCALE
                REPEAT(k, V) { factor[k] = factors[turn][k]; shift[k] = CENTRED ? shifts[turn][k] : (A)0; }
#else
                const Index p = scale_kept(o) + scale_reduced(r);
                fetch(factor, scale + p);
#if CENTRED
                fetch(shift, bias + p);
#else
                REPEAT(k, V) shift[k] = 0;
#endif
#endif
                Pack<Y, V> result;
                REPEAT(k, V)
                    result.v[k] = narrow<Y>(((A)widen(some.v[k]) - middle) * slope * factor[k] + shift[k]);
                if (real) store<V>(y + base + reduced(r), result);
            }
        }
    }
}
#endif

#ifdef ROW_NORM_GRAD
// dx = r (w - mean(w) - n mean(w n)) with w = g * scale, n = (x - mean) r; without CENTRED no mean is subtracted.
extern "C" __global__ void __launch_bounds__(256)
row_norm_grad(const T *g, const T *x, const A *scale, const A *mean, const A *spread, T *dx, SIZES)
{
    ROWS_OF_BLOCK {
        ROW_OF_GROUP
        const Index base = kept(o);
        const A slope = spread[o];
#if CENTRED
        const A middle = mean[o];
#else
        const A middle = 0;
#endif
        A sum = 0, inner = 0;
#if HELD
        Pack<T, V> held_x[TURNS], held_g[TURNS];
        EACH_TURN {
            AT {
                held_x[turn] = load<V>(x + base + reduced(r));
                held_g[turn] = load<V>(g + base + reduced(r));
            }
        }
#endif
        EACH_TURN {
            AT {
                const auto elements = ELEMENTS(held_x, x);
                const auto gradients = ELEMENTS(held_g, g);
                A factor[V];
                fetch(factor, scale + scale_kept(o) + scale_reduced(r));
                REPEAT(k, V) {
                    const A w = (A)widen(gradients.v[k]) * factor[k];
                    sum += w;
                    inner += w * ((A)widen(elements.v[k]) - middle) * slope;
                }
            }
        }
#if CENTRED
        const A level = over_group(sum, Sum()) * (A)PER;
#else
        const A level = 0;
#endif
        const A tilt = over_group(inner, Sum()) * (A)PER;
        EACH_TURN {
            AT {
                const auto elements = ELEMENTS(held_x, x);
                const auto gradients = ELEMENTS(held_g, g);
                A factor[V];
                fetch(factor, scale + scale_kept(o) + scale_reduced(r));
                Pack<T, V> result;
                REPEAT(k, V) {
                    const A n = ((A)widen(elements.v[k]) - middle) * slope;
                    result.v[k] = narrow<T>(((A)widen(gradients.v[k]) * factor[k] - level - n * tilt) * slope);
                }
                if (real) store<V>(dx + base + reduced(r), result);
            }
        }
    }
}
#endif
#endif
