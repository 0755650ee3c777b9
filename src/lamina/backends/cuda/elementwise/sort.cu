// Rows in order: tiles of 1024 pairs (key, place) by Batcher's bitonic network (1968), then merges of sorted runs; or,
// where there is time to compare all with all, each pair at the place that the count of those before it names.
//
// A key is an unsigned number in the order of the elements; pairs with equal keys are ordered by their places, so that
// no two pairs are equal and the result is that of a stable sort.
//
// Constants: Key, Index, SIZE (elements of a row that are read), ROWS, TILE (elements of a block), SEGMENT (elements
// that are sorted together: a power of two), KEEP (pairs of each segment that are written), WIDTH (pairs of a row that are written), RUN
// (of a merge: pairs of each sorted run), PAIRS (whether pairs are read, else elements of type S by `to_key`), FINAL
// (whether values of type S and int64 places are written, else pairs), CHUNK (of counts: keys in shared memory), OWN
// (pairs of a warp).
#define NOTHING 0xffffffffu

__device__ __forceinline__ bool before(Key a, u32 i, Key b, u32 j) { return a < b || (a == b && i < j); }

#if FINAL
#define WRITTEN const S *x, S *values, i64 *places
#define EMIT(row, rank, key, place)                                                                                  \
    values[(row) * (Index)WIDTH + (rank)] = x[(row) * (Index)LENGTH + (Index)(place)];                               \
    places[(row) * (Index)WIDTH + (rank)] = (place)
#else
#define WRITTEN const void *, Key *keys, u32 *places
#define EMIT(row, rank, key, place)                                                                                  \
    keys[(row) * (Index)WIDTH + (rank)] = (key);                                                                     \
    places[(row) * (Index)WIDTH + (rank)] = (place)
#endif

#ifdef TILES
#define PER_TILE (TILE / SEGMENT)                     // segments of a tile
#define PER_ROW ((SIZE + SEGMENT - 1) / SEGMENT)      // segments of a row

#if PAIRS
extern "C" __global__ void __launch_bounds__(256) sort_tiles(const Key *in_keys, const u32 *in_places, WRITTEN)
#else
extern "C" __global__ void __launch_bounds__(256) sort_tiles(const S *in, WRITTEN)
#endif
{
    __shared__ Key key[TILE];
    __shared__ u32 place[TILE];
    const Index segments = (Index)ROWS * PER_ROW, tiles = (segments + PER_TILE - 1) / PER_TILE;
    for (Index tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        for (int e = threadIdx.x; e < TILE; e += 256) {
            const Index segment = tile * PER_TILE + e / SEGMENT, row = segment / PER_ROW;
            const Index column = segment % PER_ROW * SEGMENT + e % SEGMENT;
            const bool here = segment < segments && column < (Index)SIZE;
#if PAIRS
            key[e] = here ? in_keys[row * (Index)SIZE + column] : ~(Key)0;
            place[e] = here ? in_places[row * (Index)SIZE + column] : NOTHING;
#else
            key[e] = here ? to_key(in[row / (Index)INNER * ((Index)SIZE * INNER) + row % (Index)INNER + column * (Index)INNER]) : ~(Key)0;
            place[e] = here ? (u32)column : NOTHING;
#endif
        }
        for (int size = 2; size <= SEGMENT; size <<= 1)
            for (int stride = size >> 1; stride; stride >>= 1) {
                __syncthreads();
                for (int pair = threadIdx.x; pair < TILE / 2; pair += 256) {
                    const int i = 2 * pair - (pair & (stride - 1)), j = i + stride;
                    const bool up = (i & size & (SEGMENT - 1)) == 0;
                    if (before(key[j], place[j], key[i], place[i]) == up) {
                        const Key k = key[i];
                        const u32 p = place[i];
                        key[i] = key[j], place[i] = place[j];
                        key[j] = k, place[j] = p;
                    }
                }
            }
        __syncthreads();
        for (int e = threadIdx.x; e < TILE; e += 256) {
            const Index segment = tile * PER_TILE + e / SEGMENT, row = segment / PER_ROW;
            const Index number = segment % PER_ROW, rank = e % SEGMENT;
            if (segment < segments && rank < KEEP && number * KEEP + rank < (Index)WIDTH) {
                EMIT(row, number * KEEP + rank, key[e], place[e]);
            }
        }
        __syncthreads();
    }
}
#endif

#ifdef COUNTS
// A warp counts for OWN pairs that lie together, over the keys of the row, which its block brings into shared memory
// CHUNK at a time. Pairs in front of them come first where keys are equal, pairs behind them do not: only where both
// meet places are compared.
extern "C" __global__ void __launch_bounds__(256) sort_counts(const S *in, WRITTEN)
{
    __shared__ Key key[CHUNK];
    const int lane = threadIdx.x % 32;
    const Index per_row = (SIZE + 8 * OWN - 1) / (8 * OWN);
    for (Index block = blockIdx.x; block < (Index)ROWS * per_row; block += gridDim.x) {
        const Index row = block / per_row, first = block % per_row * (8 * OWN) + threadIdx.x / 32 * OWN;
        const S *const elements = in + row * (Index)SIZE;
        Key own[OWN];
        int count[OWN];
#pragma unroll
        for (int i = 0; i < OWN; ++i) own[i] = first + i < (Index)SIZE ? to_key(elements[first + i]) : 0, count[i] = 0;
        for (Index start = 0; start < (Index)SIZE; start += CHUNK) {
            const int all = (Index)SIZE - start < CHUNK ? (int)((Index)SIZE - start) : CHUNK;
            const int in_front = first < start ? 0 : first - start < all ? (int)(first - start) : all;
            __syncthreads();
            for (int e = threadIdx.x; e < all; e += 256) key[e] = to_key(elements[start + e]);
            __syncthreads();
            for (int j = lane; j < in_front; j += 32) {
#pragma unroll
                for (int i = 0; i < OWN; ++i) count[i] += key[j] <= own[i];
            }
            int j = in_front + lane;
            if (j < all) {
#pragma unroll
                for (int i = 0; i < OWN; ++i) count[i] += before(key[j], (u32)(start + j), own[i], (u32)(first + i));
            }
            for (j += 32; j < all; j += 32) {
#pragma unroll
                for (int i = 0; i < OWN; ++i) count[i] += key[j] < own[i];
            }
        }
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int rank = over_warp(count[i], Sum());
            if (lane == 0 && first + i < (Index)SIZE && rank < (Index)WIDTH) {
                EMIT(row, rank, own[i], (u32)(first + i));
            }
        }
    }
}
#endif

#ifdef MERGE
// How many of the first `count` pairs of two sorted runs together are of the first run (Green, Odeh and Birk 2012).
__device__ __forceinline__ Index from_first(const Key *a, const u32 *i, Index m, const Key *b, const u32 *j, Index n, Index count)
{
    Index low = count > n ? count - n : 0, high = count < m ? count : m;
    while (low < high) {
        const Index middle = (low + high) / 2, other = count - 1 - middle;
        if (before(a[middle], i[middle], b[other], j[other])) low = middle + 1;
        else high = middle;
    }
    return low;
}

__device__ __forceinline__ int smaller_ones(const Key *keys, const u32 *places, int count, Key key, u32 place)
{
    int low = 0;
    while (low < count) {
        const int middle = (low + count) / 2;
        if (before(keys[middle], places[middle], key, place)) low = middle + 1;
        else count = middle;
    }
    return low;
}

// A block per TILE pairs of the result: it finds which parts of the two runs they are, brings these into shared memory,
// and each thread finds the ranks of its pairs.
extern "C" __global__ void __launch_bounds__(256) sort_merge(const Key *in_keys, const u32 *in_places, WRITTEN)
{
    __shared__ Key key[TILE];
    __shared__ u32 place[TILE];
    __shared__ Index split[2];
    const Index per_row = (SIZE + TILE - 1) / TILE, tiles = (Index)ROWS * per_row;
    for (Index tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Index row = tile / per_row, start = tile % per_row * TILE, pair = start / (2 * (Index)RUN) * (2 * (Index)RUN);
        const Index left = (Index)SIZE - pair, m = left < (Index)RUN ? left : (Index)RUN;
        const Index n = left - m < (Index)RUN ? left - m : (Index)RUN;
        const Key *a = in_keys + row * (Index)SIZE + pair, *b = a + m;
        const u32 *i = in_places + row * (Index)SIZE + pair, *j = i + m;
        const Index first = start - pair, last = first + TILE < m + n ? first + TILE : m + n;
        if (threadIdx.x < 2) split[threadIdx.x] = from_first(a, i, m, b, j, n, threadIdx.x ? last : first);
        __syncthreads();
        const Index a0 = split[0], b0 = first - a0;
        const int own = (int)(split[1] - a0), all = (int)(last - first);
        for (int e = threadIdx.x; e < all; e += 256) {
            key[e] = e < own ? a[a0 + e] : b[b0 + e - own];
            place[e] = e < own ? i[a0 + e] : j[b0 + e - own];
        }
        __syncthreads();
        for (int e = threadIdx.x; e < all; e += 256) {
            const int rank = e < own ? e + smaller_ones(key + own, place + own, all - own, key[e], place[e])
                                     : e - own + smaller_ones(key, place, own, key[e], place[e]);
            if (start + rank < (Index)WIDTH) {
                EMIT(row, start + rank, key[e], place[e]);
            }
        }
        __syncthreads();
    }
}
#endif
