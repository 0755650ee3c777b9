// Products of batches of matrices with any strides: tiles of 64 x 64 through shared memory, 4 x 4 per thread.
//
// Constants: Index, T, M, N, K, BATCH, strides A_M A_K, B_K B_N, C_B C_M C_N, and functions a_batch(i), b_batch(i): where
// the i-th matrix begins.
typedef Wide<T>::type A;

extern "C" __global__ void __launch_bounds__(256) matmul(const T *a, const T *b, T *c)
{
    __shared__ A left[16][64 + 4], right[16][64 + 4];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const Index across = ((Index)N + 63) / 64, down = ((Index)M + 63) / 64;
    for (Index tile = blockIdx.x; tile < across * down * (Index)BATCH; tile += gridDim.x) {
        const Index column = tile % across * 64, row = tile / across % down * 64, batch = tile / across / down;
        const T *from_a = a + a_batch(batch), *from_b = b + b_batch(batch);
        A sum[4][4] = {};
        for (Index k0 = 0; k0 < (Index)K; k0 += 16) {
#pragma unroll
            for (int i = threadIdx.x; i < 16 * 64; i += 256) {
                // Neighbouring threads read along the axis with stride 1, whichever it is.
                const int ak = A_M == 1 ? i / 64 : i % 16, am = A_M == 1 ? i % 64 : i / 16;
                const int bk = B_K == 1 ? i % 16 : i / 64, bn = B_K == 1 ? i / 16 : i % 64;
                left[ak][am] = row + am < (Index)M && k0 + ak < (Index)K
                                   ? (A)widen(from_a[(row + am) * (Index)A_M + (k0 + ak) * (Index)A_K]) : (A)0;
                right[bk][bn] = column + bn < (Index)N && k0 + bk < (Index)K
                                    ? (A)widen(from_b[(k0 + bk) * (Index)B_K + (column + bn) * (Index)B_N]) : (A)0;
            }
            __syncthreads();
#pragma unroll
            for (int k = 0; k < 16; ++k) {
                A x[4], y[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) { x[i] = left[k][ty + 16 * i]; y[i] = right[k][tx + 16 * i]; }
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) sum[i][j] += x[i] * y[j];
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const Index m = row + ty + 16 * i, n = column + tx + 16 * j;
                if (m < (Index)M && n < (Index)N) c[batch * (Index)C_B + m * (Index)C_M + n * (Index)C_N] = narrow<T>(sum[i][j]);
            }
    }
}
