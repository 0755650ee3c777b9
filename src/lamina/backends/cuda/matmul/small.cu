// Products of little work: c [batch, M, N] = a [batch, M, K] b [batch, K, N] of a half type on tensor cores. What they
// take is latency: blocks of eight warps make 32 x 32 elements each, the warps share the sums, and fragments are read
// where they lie.
//
// Constants: Index, T, A_ALONG (elements of a row of a lie together, else those of a column), B_ALONG (those of a
// column of b, else of a row), EVEN (K and all distances are even: pairs along K are one access).
// Numbers: M, N, K, A_LINE and B_LINE (from one line to the next), C_BATCH, and what finish asks for. Functions:
// a_batch(i) and b_batch(i), where the i-th matrix begins. Texts: EXTRAS (further parameters), GIVEN (their names),
// and finish(sum, m, n, c GIVEN, sizes), which writes an element.
#include "mma.cuh"

const int TILE = 32, WARPS = 8;

// Elements k and k + 1 of one of so many vectors; zeros beyond, for which the first element is read. apart: elements
// from one line to the next.
template <bool ALONG>
__device__ __forceinline__ u32 pair(const T *from, Index vector, Index vectors, Index apart, Index k,
                                    const Sizes &sizes)
{
    const bool first = vector < vectors && k < K, second = first && k + 1 < K;
    const Index at = first ? (ALONG ? vector * apart + k : k * apart + vector) : 0;
    if (ALONG && EVEN) {
        const u32 both = *(const u32 *)(from + at);
        return first ? both : 0;
    }
    const u16 *bits = (const u16 *)from;
    const u32 low = bits[at], high = bits[second ? at + (ALONG ? 1 : apart) : 0];
    return (first ? low : 0) | (second ? high << 16 : 0);
}

extern "C" __global__ void __launch_bounds__(256, 2) small_product(const T *a, const T *b, T *c EXTRAS, SIZES)
{
    __shared__ f32 part[WARPS][TILE][TILE + 1];
    const Index row = (Index)blockIdx.y * TILE, column = (Index)blockIdx.x * TILE, batch = (Index)blockIdx.z;
    a += a_batch(batch), b += b_batch(batch), c += batch * C_BATCH;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
    f32 d[2][4][4] = {};
#pragma unroll 2
    for (Index k = warp * 16; k < K; k += WARPS * 16) {
        u32 left[2][4], right[4][2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                left[i][j] = pair<A_ALONG>(a, row + i * 16 + j % 2 * 8 + g, M, A_LINE, k + j / 2 * 8 + t, sizes);
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                right[n][j] = pair<B_ALONG>(b, column + n * 8 + g, N, B_LINE, k + j * 8 + t, sizes);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 0; n < 4; ++n) warp_mma(d[i][n], left[i], right[n], T());
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) part[warp][i * 16 + e / 2 * 8 + g][n * 8 + t + e % 2] = d[i][n][e];
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * TILE; i += 256) {
        const Index m = row + i / TILE, n = column + i % TILE;
        if (m >= M || n >= N) continue;
        f32 sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += part[w][i / TILE][i % TILE];
        finish(sum, m, n, c GIVEN, sizes);
    }
}
