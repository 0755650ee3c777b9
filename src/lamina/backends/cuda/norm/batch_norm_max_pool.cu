// Batch norm's last pass with the max-pool of its result, and the gradients of both: the tensor in between is only ever
// in registers. Two spatial axes, channels last, no dilation; element for element the numbers of norm.cu and pool.cu.
//
// Constants: Index, T, I (type of the index), V (channels per access), WORDS (two elements in each 32 bits), OUTPUTS
// (channels), CHUNKS (accesses along them), H W (of x), OH OW (of what is pooled), KH KW (kernel), SH SW (stride),
// PH PW (padding before), RELU, HI.
// A row lies in LIVE_H windows at most, a column in LIVE_W: row j of a group b of SH rows (the first group starts at
// -PH) is row j + q * SH of window b - q.
#include "norm.cuh"

#define LIVE_H ((KH - 1) / SH + 1)
#define LIVE_W ((KW - 1) / SW + 1)
#define INSIDE(v, size) ((v) >= 0 && (v) < (Index)(size))
#define WITHIN(v, least, most) ((v) < (least) ? (Index)(least) : (v) > (most) ? (Index)(most) : (v))

// A half type's bits in the upper half of a word, by the conversion of two at once, which is faster than that of one.
__device__ __forceinline__ u32 upper_bits(f32 v, bf16)
{
#if __CUDA_ARCH__ >= 800
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(v), "f"(0.0f));
    return bits;
#else
    return (u32)narrow<bf16>(v).bits << 16;
#endif
}
__device__ __forceinline__ u32 upper_bits(f32 v, f16)
{
#if __CUDA_ARCH__ >= 800
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(v), "f"(0.0f));
    return bits;
#else
    return (u32)narrow<f16>(v).bits << 16;
#endif
}

// V elements as they are read: in words where two of them share one, for either half is one instruction away.
#if WORDS
typedef Pack<u32, V / 2> Some;
__device__ __forceinline__ Some some_at(const T *p) { return load<V / 2>(reinterpret_cast<const u32 *>(p)); }
__device__ __forceinline__ f32 number(u32 word, bool upper, bf16)
{
    return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
}
__device__ __forceinline__ f32 number(u32 word, bool upper, f16)
{
    return half_to_float((u16)(upper ? word >> 16 : word));
}
__device__ __forceinline__ A number(const Some &some, int k) { return number(some.v[k / 2], k % 2 == 1, T()); }
#else
typedef Pack<T, V> Some;
__device__ __forceinline__ Some some_at(const T *p) { return load<V>(p); }
__device__ __forceinline__ A number(const Some &some, int k) { return (A)widen(some.v[k]); }
#endif

// A number as it is once it was written as a T.
__device__ __forceinline__ f32 rounded(f32 v, bf16 t) { return __uint_as_float(upper_bits(v, t)); }
__device__ __forceinline__ f32 rounded(f32 v, f16 t) { return half_to_float((u16)(upper_bits(v, t) >> 16)); }
__device__ __forceinline__ f32 rounded(f32 v, f32) { return v; }
__device__ __forceinline__ f64 rounded(f64 v, f64) { return v; }

__device__ __forceinline__ void fetch(A (&to)[V], const A *from)
{
    REPEAT(k, V) to[k] = from[k];
}

#ifdef FORWARD
// ACROSS x DOWN: outputs of a thread, which goes down the rows and normalizes each element once for all its windows.
// TILES_W, TILES_H: threads along a row, a column; TILES: in all. HAS_INDEX. KEYED: results of relu in a half type are
// compared with their places at once, as whole numbers: bits, then how far the place is from the last one, for the
// first place wins.
#define COLUMNS ((ACROSS - 1) * SW + KW)
#define LAST_TAP (KH * KW - 1)

#if KEYED
typedef u32 Best;
#define NONE 0u
__device__ __forceinline__ u32 comparable(A v) { return upper_bits(v, T()); }
__device__ __forceinline__ Best element(u32 v, int kw, bool inside) { return inside ? v + (u32)(KW - 1 - kw) : NONE; }
__device__ __forceinline__ Best in_row(Best best, int kh) { return best + (u32)((KH - 1 - kh) * KW); }
__device__ __forceinline__ Best first_largest(Best a, Best b) { return a > b ? a : b; }
__device__ __forceinline__ T value_of(Best best) { return {(u16)(best >> 16)}; }
__device__ __forceinline__ int place_of(Best best) { return LAST_TAP - (int)(best & 0xffff); }
#else
struct Best { A v; int at; };
#define NONE {-(A)INFINITY_F, -1}
__device__ __forceinline__ A comparable(A v) { return rounded(v, T()); }
__device__ __forceinline__ Best element(A v, int kw, bool inside) { return {v, inside ? kw : -1}; }
__device__ __forceinline__ Best in_row(Best best, int kh) { return {best.v, best.at + kh * KW}; }
// b comes after a: it wins when larger or not a number, but never over what is none.
__device__ __forceinline__ Best first_largest(Best a, Best b)
{
    return b.at >= 0 && (a.at < 0 || (!(b.v <= a.v) && a.v == a.v)) ? b : a;
}
__device__ __forceinline__ T value_of(Best best) { return narrow<T>(best.v); }
__device__ __forceinline__ int place_of(Best best) { return best.at; }
#endif

// Whether column i of a tile may lie outside of the image.
#define AT_EDGE(i) ((i) < PW || (TILES_W - 1) * ACROSS * SW - PW + (i) >= W)

// The sums that came before leave the last elements in the cache: the last ones are taken first.
extern "C" __global__ void __launch_bounds__(256, 2)
norm_max_pool(const T *x, const A *scale, const A *bias, const A *mean, const A *spread, T *y, I *index)
{
    Index rest = (Index)(gridDim.x - 1 - blockIdx.x) * 256 + threadIdx.x;
    if (rest >= (Index)TILES) return;
    const Index c = rest % CHUNKS * V; rest /= CHUNKS;
    const Index ow = rest % TILES_W * ACROSS; rest /= TILES_W;
    const Index top = rest % TILES_H * DOWN, n = rest / TILES_H;
    const Index below = top + DOWN < OH ? top + DOWN : OH, w = ow * SW - PW;
    const Index bottom = WITHIN((below - 1) * SH - PH + KH - 1, 0, H - 1);
    A slope[V], shift[V], middle[V];
    fetch(slope, spread + c);
    fetch(shift, bias + c);
    fetch(middle, mean + c);
    REPEAT(k, V) slope[k] *= scale[c + k];
    Best best[LIVE_H][ACROSS][V];
    REPEAT(q, LIVE_H) REPEAT(o, ACROSS) REPEAT(k, V) best[q][o][k] = NONE;
#pragma unroll 1
    for (Index b = top; b < below + LIVE_H - 1; ++b) {
        Some some[SH][COLUMNS];
        REPEAT(j, SH) {
            const Index h = WITHIN(b * SH - PH + j, 0, bottom);  // what lies outside is read, but not looked at
            REPEAT(i, COLUMNS) if (j < KH) {
                const Index column = AT_EDGE(i) ? WITHIN(w + i, 0, W - 1) : w + i;
                some[j][i] = some_at(x + ((n * H + h) * W + column) * OUTPUTS + c);
            }
        }
        REPEAT(j, SH) {
            const Index h = b * SH - PH + j;
            if (j >= KH || h < 0 || h > bottom) continue;
            Best line[ACROSS][V];
            REPEAT(o, ACROSS) REPEAT(k, V) line[o][k] = NONE;
            REPEAT(i, COLUMNS) {
                const bool inside = !AT_EDGE(i) || INSIDE(w + i, W);
                REPEAT(k, V) {
                    const A v = (number(some[j][i], k) - middle[k]) * slope[k] + shift[k];
                    const auto normal = comparable(activated(v));
                    REPEAT(o, ACROSS) {
                        const int kw = i - o * SW;
                        if (kw >= 0 && kw < KW)
                            line[o][k] = first_largest(line[o][k], element(normal, kw, inside));
                    }
                }
            }
            REPEAT(q, LIVE_H) {
                const int kh = j + q * SH;
                if (kh < KH)
                    REPEAT(o, ACROSS) REPEAT(k, V)
                        best[q][o][k] = first_largest(best[q][o][k], in_row(line[o][k], kh));
            }
        }
        const Index oh = b - (LIVE_H - 1);
        REPEAT(o, ACROSS) {
            if (oh < top || ow + o >= OW) continue;
            const Index to = ((n * OH + oh) * OW + ow + o) * OUTPUTS + c;
            Pack<T, V> largest;
            Pack<I, V> places;
            REPEAT(k, V) {
                largest.v[k] = value_of(best[LIVE_H - 1][o][k]);
                places.v[k] = (I)place_of(best[LIVE_H - 1][o][k]);
            }
            store<V>(y + to, largest);
#if HAS_INDEX
            store<V>(index + to, places);
#endif
        }
        REPEAT(o, ACROSS) REPEAT(k, V) {
            REPEAT(q, LIVE_H - 1) best[LIVE_H - 1 - q][o][k] = best[LIVE_H - 2 - q][o][k];
            best[0][o][k] = NONE;
        }
    }
}
#endif

#ifdef BACKWARD
// Blocks of LANES accesses along the channels times ROWS; each thread takes groups of SH x SW positions, which the same
// few windows cover. GROUPS_H, GROUPS_W: groups per image; COUNT: groups in all; PART, SPLITS: of a block, and such
// parts; MOVING.
#define GROUP (SH * SW)

// The pool's gradient at the positions of a group, rounded as if it were written, less what relu stops; and x - mean,
// where `real`.
struct Group {
    Index at[GROUP];  // offsets in x
    bool real[GROUP];
    A d[GROUP][V], v[GROUP][V];

    __device__ __forceinline__ Group(const T *g, const I *index, const T *x, const A (&middle)[V], Index r, Index c)
    {
        const Index bw = r % GROUPS_W, bh = r / GROUPS_W % GROUPS_H, n = r / GROUPS_W / GROUPS_H;
        Some elements[GROUP], gradients[LIVE_H * LIVE_W];
        Pack<I, V> places[LIVE_H * LIVE_W];
        int tap[LIVE_H * LIVE_W][GROUP];  // of a position in a window, -1 where there is none
        REPEAT(p, GROUP) {
            const Index h = bh * SH + p / SW - PH, w = bw * SW + p % SW - PW;
            real[p] = INSIDE(h, H) && INSIDE(w, W);
            at[p] = ((n * H + WITHIN(h, 0, H - 1)) * W + WITHIN(w, 0, W - 1)) * OUTPUTS + c;
            elements[p] = some_at(x + at[p]);
        }
        REPEAT(q, LIVE_H * LIVE_W) {
            const Index oh = bh - q / LIVE_W, ow = bw - q % LIVE_W;
            const Index o = ((n * OH + WITHIN(oh, 0, OH - 1)) * OW + WITHIN(ow, 0, OW - 1)) * OUTPUTS + c;
            gradients[q] = some_at(g + o);
            places[q] = load<V>(index + o);
            const bool covers = INSIDE(oh, OH) && INSIDE(ow, OW);
            REPEAT(p, GROUP) {
                const int kh = q / LIVE_W * SH + p / SW, kw = q % LIVE_W * SW + p % SW;
                tap[q][p] = covers && kh < KH && kw < KW ? kh * KW + kw : -1;
            }
        }
        REPEAT(k, V) {
            REPEAT(p, GROUP) d[p][k] = 0;
            REPEAT(q, LIVE_H * LIVE_W) {
                const A gradient = number(gradients[q], k);
                const int place = (int)places[q].v[k];
                REPEAT(p, GROUP) {
                    const bool in_window = q / LIVE_W * SH + p / SW < KH && q % LIVE_W * SW + p % SW < KW;
                    if (in_window && place == tap[q][p]) d[p][k] += gradient;
                }
            }
            REPEAT(p, GROUP) {
                d[p][k] = rounded(d[p][k], T());
                v[p][k] = number(elements[p], k) - middle[k];
            }
        }
    }
};

#if RELU
#define MASKED(d, v, k) (passes((v) * slope[k] + shift[k], UPPER) ? (d) : (A)0)
#else
#define MASKED(d, v, k) (d)
#endif

#define EACH_GROUP(part)                                                                                             \
    const Index begin = (Index)(part) * (Index)PART;                                                                 \
    const Index end = begin + (Index)PART < (Index)COUNT ? begin + (Index)PART : (Index)COUNT;                       \
    _Pragma("unroll 1") for (Index r = begin + threadIdx.x / LANES; r < end; r += ROWS)
#define CHANNEL (((Index)blockIdx.x * LANES + threadIdx.x % LANES) * V)

#ifdef SUMS
// Sums of the gradient and of the gradient times x - mean.
extern "C" __global__ void __launch_bounds__(256, 2)
pool_norm_grad_sums(const T *g, const I *index, const T *x, const A *scale, const A *mean, const A *spread,
                    const A *bias, A *partial)
{
    const Index c = CHANNEL;
    A middle[V], s[V], q[V];
    REPEAT(k, V) s[k] = q[k] = 0;
    if (c < (Index)OUTPUTS) {
        fetch(middle, mean + c);
#if RELU
        A slope[V], shift[V];
        fetch(slope, spread + c);
        fetch(shift, bias + c);
        REPEAT(k, V) slope[k] *= scale[c + k];
#endif
        EACH_GROUP(blockIdx.y) {
            const Group group(g, index, x, middle, r, c);
            REPEAT(p, GROUP) {
                if (!group.real[p]) continue;
                REPEAT(k, V) {
                    const A d = MASKED(group.d[p][k], group.v[p][k], k);
                    s[k] += d;
                    q[k] += d * group.v[p][k];
                }
            }
        }
    }
    sums_of_rows(partial, s, q, OUTPUTS, SPLITS);
}
#else
// dx = r scale (d - mean(d) - n mean(d n)), n = (x - mean) r; without MOVING only r scale d. ELEMENTS: of a channel.
extern "C" __global__ void __launch_bounds__(256, 2)
pool_norm_grad_apply(const T *g, const I *index, const T *x, const A *scale, const A *mean, const A *spread,
                     const A *bias, const A *dscale, const A *dbias, T *dx)
{
    const Index c = CHANNEL;
    if (c >= (Index)OUTPUTS) return;
    A middle[V], slope[V], level[V], tilt[V];
    fetch(middle, mean + c);
    fetch(slope, spread + c);
    fetch(level, dbias + c);
    fetch(tilt, dscale + c);
#if RELU
    A shift[V];
    fetch(shift, bias + c);
#endif
    REPEAT(k, V) {
        level[k] *= (A)(1.0 / ELEMENTS);
        tilt[k] *= slope[k] * (A)(1.0 / ELEMENTS);
        slope[k] *= scale[c + k];
    }
    EACH_GROUP(gridDim.y - 1 - blockIdx.y) {
        const Group group(g, index, x, middle, r, c);
        REPEAT(p, GROUP) {
            if (!group.real[p]) continue;
            Pack<T, V> result;
            REPEAT(k, V) {
                A d = MASKED(group.d[p][k], group.v[p][k], k);
#if MOVING
                d -= level[k] + group.v[p][k] * tilt[k];
#endif
                result.v[k] = narrow<T>(d * slope[k]);
            }
            store<V>(dx + group.at[p], result);
        }
    }
}
#endif
#endif
