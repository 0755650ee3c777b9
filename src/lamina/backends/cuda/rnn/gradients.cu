// Gradients that need no order of time steps, in one launch: products of small matrices, in tiles of EDGE x EDGE, and
// the sums of the biases' gradients.
//
// Product j is C [M, N] = A B with B [K, N], and A as [K, M] where A_TURNED, else as [M, K]; all row by row, N and A's
// width multiples of 8. Blocks take its tiles row by row, from block FIRST on. A block of EDGE / 16 warps, each with
// EDGE / 2 x 32 of the tile, reads 32 of K at a time, the next ones while it computes.
//
// Constants: those of rnn.cuh; LAYERS and SLICES (partial sums [4 H] of each), EDGE (64, 128), JOBS (products), PLACES
// (JOBS, at least 1), FIRST (one more than there are products), M_OF, N_OF, K_OF, A_TURNED (arrays).
#include "rnn.cuh"
#define THREADS (EDGE * 2)
#define DEEP 32
#define ACROSS (EDGE + 8)  // rows of [DEEP, EDGE]; such that lanes read in different banks
#define DOWN (DEEP + 8)  // rows of [EDGE, DEEP]
#define PART_A (EDGE * DOWN > DEEP * ACROSS ? EDGE * DOWN : DEEP * ACROSS)
#define MT (EDGE / 32)

struct Job { const T *a, *b; T *c; };
struct Jobs { Job of[PLACES]; };
struct Biases { T *of[LAYERS][2]; };
struct Tile { int m, n, k, row, column; bool turned; };
struct Read { Words a[2], b[2]; };

// What a thread takes of the next DEEP of K to shared memory.
__device__ __forceinline__ Read take(const Job &p, const Tile &tile, int first)
{
    Read read;
    REPEAT(i, 2) {
        const int v = threadIdx.x + i * THREADS, k = first + v / (EDGE / 8), along = v % (EDGE / 8) * 8;
        const int column = tile.column + along, m = tile.row + (tile.turned ? along : v / 4);
        read.b[i] = k < tile.k && column < tile.n ? eight(p.b + (i64)k * tile.n + column) : Words{};
        const int inner = tile.turned ? k : first + v % 4 * 8;
        const i64 at = tile.turned ? (i64)inner * tile.m + m : (i64)m * tile.k + inner;
        read.a[i] = inner < tile.k && m < tile.m ? eight(p.a + at) : Words{};
    }
    return read;
}

__device__ __forceinline__ void keep(T *a, T *b, const Read &read, bool turned)
{
    REPEAT(i, 2) {
        const int v = threadIdx.x + i * THREADS, across = v / (EDGE / 8) * ACROSS + v % (EDGE / 8) * 8;
        store<4>(reinterpret_cast<u32 *>(b + across), read.b[i]);
        store<4>(reinterpret_cast<u32 *>(a + (turned ? across : v / 4 * DOWN + v % 4 * 8)), read.a[i]);
    }
}

__device__ __forceinline__ void multiply(f32 (&sum)[MT][4][4], const T *a, const T *b, bool turned)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 2 * (EDGE / 2), n = warp / 2 * 32;
    const int i = lane % 8, j = lane / 8;
    REPEAT(k, DEEP / 16) {
        u32 left[MT][4], right[2][4];
        REPEAT(x, MT) {
            if (turned) matrices<true>(left[x], a + (k * 16 + j / 2 * 8 + i) * ACROSS + m + x * 16 + j % 2 * 8);
            else matrices<false>(left[x], a + (m + x * 16 + j % 2 * 8 + i) * DOWN + k * 16 + j / 2 * 8);
        }
        REPEAT(y, 2) matrices<true>(right[y], b + (k * 16 + j % 2 * 8 + i) * ACROSS + n + y * 16 + j / 2 * 8);
        REPEAT(x, MT) REPEAT(y, 4) {
            const u32 pair[2] = {right[y / 2][y % 2 * 2], right[y / 2][y % 2 * 2 + 1]};
            warp_mma(sum[x][y], left[x], pair, T());
        }
    }
}

__device__ __forceinline__ void product(const Job &p, const Tile &tile)
{
    __shared__ __align__(16) T a[2][PART_A], b[2][DEEP * ACROSS];
    f32 sum[MT][4][4];
    clear(sum);
    Read next = take(p, tile, 0);
    int turn = 0;
    for (int k = 0; k < tile.k; k += DEEP, turn ^= 1) {
        keep(a[turn], b[turn], next, tile.turned);
        __syncthreads();
        if (k + DEEP < tile.k) next = take(p, tile, k + DEEP);
        multiply(sum, a[turn], b[turn], tile.turned);
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = tile.row + warp % 2 * (EDGE / 2) + lane / 4, column = tile.column + warp / 2 * 32 + lane % 4 * 2;
    REPEAT(x, MT) REPEAT(y, 4) REPEAT(half, 2) {
        const int m = row + x * 16 + half * 8, n = column + y * 8;
        const T first = narrow<T>(sum[x][y][half * 2]), second = narrow<T>(sum[x][y][half * 2 + 1]);
        if (m < tile.m && n < tile.n) put_two(p.c + (i64)m * tile.n + n, joined(first, second));
    }
}

// Element i of all layers' [4 H]. Both biases of a layer have the same gradient, but for a GRU's n.
__device__ __forceinline__ void sum_bias(const f32 *partial, const Biases &to, int i)
{
    const int layer = i / (4 * H), gate = i / H % 4, unit = i % H;
    if (layer >= LAYERS) return;
    f32 sum = 0.0f;
    for (int k = 0; k < SLICES; ++k) sum += partial[(layer * SLICES + k) * (4 * H) + gate * H + unit];
    if (gate != NO_INPUT) to.of[layer][0][MATRIX(gate) * H + unit] = narrow<T>(sum);
    if (gate != NO_STATE) to.of[layer][1][MATRIX(gate) * H + unit] = narrow<T>(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
rnn_grads(const __grid_constant__ Jobs jobs, const f32 *partial, const __grid_constant__ Biases to)
{
    int j = 0;
    while (j < JOBS && (int)blockIdx.x >= FIRST[j + 1]) ++j;
    const int tile = blockIdx.x - FIRST[j], across = j < JOBS ? (N_OF[j] + EDGE - 1) / EDGE : 1;
    if (j == JOBS) sum_bias(partial, to, tile * THREADS + threadIdx.x);
    else product(jobs.of[j], {M_OF[j], N_OF[j], K_OF[j], tile / across * EDGE, tile % across * EDGE, A_TURNED[j] != 0});
}
