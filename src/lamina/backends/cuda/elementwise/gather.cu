// Elements along an axis by number, and what several elements of a source do to one element.
//
// Constants of gather: T (an unsigned type of the elements' size), I (of the index), Index, V (elements of an access),
// COUNT (accesses), SIZE and STRIDE (of the axis), BAD (what stands for an index that is outside). Functions: x_at,
// index_at (offsets in elements from the number of an element of y, but for the axis of x).
//
// Constants of scatter: T, I, Index, COUNT (elements of y), SIZE (of the axis), ENTRIES (indices of a line), BASE
// (whether y begins as x, else as 0), COMBINE (0 set, 1 add, 2 mul, 3 min, 4 max), X_STRIDE … Functions of the number of
// an element of y: position (its index along the axis), has_source (whether source reaches there), source_at, index_at
// (offsets of the first entry of its line); SOURCE_STEP and INDEX_STEP lead from one entry to the next. For
// scatter_claimed also INNER (elements of y from one of a line to the next), LINES and TILE (lines in all, and of a block).

#ifdef GATHER
extern "C" __global__ void __launch_bounds__(256) gather(const T *x, const I *index, T *y)
{
    FOR_EACH (i, COUNT) {
        i64 at = index[index_at(i * V)];
        if (at < 0) at += SIZE;
        Pack<T, V> found;
        if (at >= 0 && at < SIZE) {
            found = load<V>(x + x_at(i * V) + (Index)at * (Index)STRIDE);
        } else {
            for (int k = 0; k < V; k++) found.v[k] = (T)BAD;
        }
        store<V>(y + i * V, found);
    }
}
#endif

#ifdef SCATTER
typedef Wide<T>::type A;

__device__ __forceinline__ A combined(A now, A next)
{
#if COMBINE == 0
    return next;
#elif COMBINE == 1
    return now + next;
#elif COMBINE == 2
    return now * next;
#elif COMBINE == 3
    return smaller(now, next);
#else
    return larger(now, next);
#endif
}

// A thread per element: it looks at all indices of its line, in their order.
extern "C" __global__ void __launch_bounds__(256) scatter_few(const T *x, const I *index, const T *source, T *y)
{
    FOR_EACH (i, COUNT) {
        A value = BASE ? (A)widen(x[i]) : (A)0;
        if (has_source(i)) {
            const i64 mine = position(i);
            const Index from = index_at(i), first = source_at(i);
            for (Index k = 0; k < (Index)ENTRIES; k++) {
                const i64 at = index[from + k * (Index)INDEX_STEP];
                if (at == mine || at + SIZE == mine) value = combined(value, (A)widen(source[first + k * (Index)SOURCE_STEP]));
            }
        }
        y[i] = narrow<T>(value);
    }
}

// A warp per element: each lane looks at every 32nd index of its line, and the lanes' results are combined in a fixed
// order.
extern "C" __global__ void __launch_bounds__(256) scatter_seen(const T *x, const I *index, const T *source, T *y)
{
    const int lane = threadIdx.x & 31;
    const Index step = (Index)gridDim.x * 8;
    for (Index i = (Index)blockIdx.x * 8 + (threadIdx.x >> 5); i < (Index)COUNT; i += step) {
        A value = (A)NEUTRAL;
        if (has_source(i)) {
            const i64 mine = position(i);
            const Index from = index_at(i), first = source_at(i);
            for (Index k = lane; k < (Index)ENTRIES; k += 32) {
                const i64 at = index[from + k * (Index)INDEX_STEP];
                if (at == mine || at + SIZE == mine) value = combined(value, (A)widen(source[first + k * (Index)SOURCE_STEP]));
            }
        }
        for (int lanes = 16; lanes; lanes >>= 1) value = combined(value, shuffle_xor(value, lanes));
        if (lane == 0) y[i] = narrow<T>(BASE ? combined((A)widen(x[i]), value) : value);
    }
}

#ifdef TILE
// A block per TILE lines, which it keeps in shared memory. In each round the entries that are left claim the elements that
// they name, and the first of them to name an element is combined with it: results are as if entries came one by one, in
// their order, and there are as many rounds as entries of a line name the same element. Claims of a later round are
// smaller numbers, so that none has to be taken back.
//
// Expected: x, the indices, the source and y pass through memory once, 92 MB and so 21 us at 4.3 TB/s for the 8192 lines
// of 1024 elements and 256 entries of benchmarks/op_families.py; 256 random entries take about 5 rounds.
#define HELD (SIZE * TILE)
#define SHARE ((ENTRIES * TILE + 255) / 256)
// Number n of so many of each line: of the lines one after the other where these are contiguous, else across them.
#define LINE_OF(n, many) (INNER == 1 ? (n) / (many) : (n) % TILE)
#define PLACE_OF(n, many) (INNER == 1 ? (n) % (many) : (n) / TILE)

extern "C" __global__ void __launch_bounds__(256) scatter_claimed(const T *x, const I *index, const T *source, T *y)
{
    __shared__ A held[HELD];
    __shared__ u32 claims[HELD];
    for (Index tile = blockIdx.x; tile < ((Index)LINES + TILE - 1) / TILE; tile += gridDim.x) {
        for (int n = threadIdx.x; n < HELD; n += 256) {
            const Index line = tile * TILE + LINE_OF(n, SIZE);
            const Index i = line / INNER * ((Index)SIZE * INNER) + line % INNER + (Index)PLACE_OF(n, SIZE) * INNER;
            held[n] = BASE && line < LINES ? (A)widen(x[i]) : (A)0;
            claims[n] = 0xffffffffu;
        }
        int named[SHARE];  // -1 for none, and for those that are done
        A value[SHARE];
#pragma unroll
        for (int e = 0; e < SHARE; e++) {
            const int n = (int)threadIdx.x + e * 256;
            named[e] = -1;
            if (n >= ENTRIES * TILE) continue;
            const Index line = tile * TILE + LINE_OF(n, ENTRIES), k = PLACE_OF(n, ENTRIES);
            if (line >= LINES) continue;
            const Index i = line / INNER * ((Index)SIZE * INNER) + line % INNER;
            if (!has_source(i)) continue;
            i64 at = index[index_at(i) + k * (Index)INDEX_STEP];
            if (at < 0) at += SIZE;
            if (at < 0 || at >= SIZE) continue;
            named[e] = INNER == 1 ? LINE_OF(n, ENTRIES) * SIZE + (int)at : (int)at * TILE + LINE_OF(n, ENTRIES);
            value[e] = (A)widen(source[source_at(i) + k * (Index)SOURCE_STEP]);
        }
        __syncthreads();
        u32 round = ENTRIES;
        int left;
        do {
#define CLAIM(n) (round * ENTRIES + (COMBINE ? PLACE_OF(n, ENTRIES) : ENTRIES - 1 - PLACE_OF(n, ENTRIES)))
#pragma unroll
            for (int e = 0; e < SHARE; e++)
                if (named[e] >= 0) atomicMin(claims + named[e], CLAIM((int)threadIdx.x + e * 256));
            __syncthreads();
            left = 0;
#pragma unroll
            for (int e = 0; e < SHARE; e++) {
                if (named[e] < 0) continue;
                if (claims[named[e]] == CLAIM((int)threadIdx.x + e * 256)) {
                    held[named[e]] = combined(held[named[e]], value[e]);
                    named[e] = -1;
                } else {
                    left = COMBINE != 0;  // the last entry sets an element, and has claimed it first
                }
            }
            round--;
        } while (__syncthreads_or(left));
        for (int n = threadIdx.x; n < HELD; n += 256) {
            const Index line = tile * TILE + LINE_OF(n, SIZE);
            const Index i = line / INNER * ((Index)SIZE * INNER) + line % INNER + (Index)PLACE_OF(n, SIZE) * INNER;
            if (line < LINES) y[i] = narrow<T>(held[n]);
        }
    }
}
#endif

// The number of keys of a sorted line that are smaller.
__device__ __forceinline__ Index below(const u32 *keys, u32 key)
{
    Index low = 0, high = ENTRIES;
    while (low < high) {
        const Index middle = (low + high) / 2;
        if (keys[middle] < key) low = middle + 1;
        else high = middle;
    }
    return low;
}

// A thread per element: it finds the entries that name it in the sorted indices, and goes through them in order.
extern "C" __global__ void __launch_bounds__(256)
scatter_sorted(const T *x, const u32 *keys, const u32 *places, const T *source, T *y)
{
    FOR_EACH (i, COUNT) {
        A value = BASE ? (A)widen(x[i]) : (A)0;
        if (has_source(i)) {
            const u32 mine = (u32)position(i);
            const Index line = line_of(i) * (Index)ENTRIES, first = source_at(i);
#if COMBINE == 0
            const Index last = below(keys + line, mine + 1);
            if (last && keys[line + last - 1] == mine)
                value = (A)widen(source[first + (Index)places[line + last - 1] * (Index)SOURCE_STEP]);
#else
            for (Index k = below(keys + line, mine); k < (Index)ENTRIES && keys[line + k] == mine; k++)
                value = combined(value, (A)widen(source[first + (Index)places[line + k] * (Index)SOURCE_STEP]));
#endif
        }
        y[i] = narrow<T>(value);
    }
}

// A warp per element, where few elements are named by many entries: each lane takes every 32nd, and the lanes' results
// are combined in a fixed order.
extern "C" __global__ void __launch_bounds__(256)
scatter_many(const T *x, const u32 *keys, const u32 *places, const T *source, T *y)
{
    const int lane = threadIdx.x & 31;
    const Index step = (Index)gridDim.x * 8;
    for (Index i = (Index)blockIdx.x * 8 + (threadIdx.x >> 5); i < (Index)COUNT; i += step) {
        A value = (A)NEUTRAL;
        if (has_source(i)) {
            const u32 mine = (u32)position(i);
            const Index line = line_of(i) * (Index)ENTRIES, first = source_at(i);
            for (Index k = below(keys + line, mine) + lane; k < (Index)ENTRIES && keys[line + k] == mine; k += 32)
                value = combined(value, (A)widen(source[first + (Index)places[line + k] * (Index)SOURCE_STEP]));
        }
        for (int lanes = 16; lanes; lanes >>= 1) value = combined(value, shuffle_xor(value, lanes));
        if (lane == 0) y[i] = narrow<T>(BASE ? combined((A)widen(x[i]), value) : value);
    }
}
#endif
