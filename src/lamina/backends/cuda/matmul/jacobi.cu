// Singular values, and eigenvalues of symmetric matrices, by Jacobi's method from one side (Hestenes 1958): columns are
// rotated in pairs until all stand at right angles; their lengths are the singular values, the rotations V. A block takes
// a matrix, a thread a pair of columns, all in float64.
//
// Constants: T, M, N (M >= N), SWEEPS (the most rounds over all pairs). scratch: for each matrix N columns of M (what is
// rotated), N of N (the rotations) and N lengths.
#define PLAYERS (N + N % 2)
#define PER_MATRIX (N * M + N * N + N)
#define TINY 1e-290

struct Columns {
    f64 *w, *v, *length;
    __device__ __forceinline__ Columns(f64 *scratch) : w(scratch), v(scratch + N * M), length(scratch + N * M + N * N) {}
};

__device__ __forceinline__ void rotate(f64 *x, f64 *y, int count, f64 c, f64 s)
{
    for (int i = 0; i < count; i++) {
        const f64 a = x[i], b = y[i];
        x[i] = c * a - s * b;
        y[i] = s * a + c * b;
    }
}

// Whether two columns had to be turned.
__device__ __forceinline__ int straighten(const Columns &of, int p, int q)
{
    f64 *x = of.w + p * M, *y = of.w + q * M;
    f64 xx = 0, yy = 0, xy = 0;
    for (int i = 0; i < M; i++) {
        xx += x[i] * x[i];
        yy += y[i] * y[i];
        xy += x[i] * y[i];
    }
    if (!(fabs(xy) > 1e-15 * sqrt((f64)M) * sqrt(xx) * sqrt(yy))) return 0;
    const f64 z = (yy - xx) / (2 * xy);
    const f64 t = (z >= 0 ? 1.0 : -1.0) / (fabs(z) + sqrt(1 + z * z)), c = 1 / sqrt(1 + t * t);
    rotate(x, y, M, c, c * t);
    rotate(of.v + p * N, of.v + q * N, N, c, c * t);
    return 1;
}

// Rounds as of a tournament, in each of which every column meets another one.
__device__ __forceinline__ void orthogonalize(const Columns &of)
{
    __shared__ int turned;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        if (threadIdx.x == 0) turned = 0;
        __syncthreads();
        for (int round = 0; round < PLAYERS - 1; round++) {
            for (int k = threadIdx.x; k < PLAYERS / 2; k += blockDim.x) {
                const int a = k ? (round + k) % (PLAYERS - 1) : PLAYERS - 1;
                const int b = (round - k + PLAYERS - 1) % (PLAYERS - 1);
                const int p = a < b ? a : b, q = a < b ? b : a;
                if (q < N && straighten(of, p, q)) turned = 1;
            }
            __syncthreads();
        }
        const int more = turned;
        __syncthreads();
        if (!more) break;
    }
    for (int j = threadIdx.x; j < N; j += blockDim.x) {
        f64 sum = 0;
        for (int i = 0; i < M; i++) sum += of.w[j * M + i] * of.w[j * M + i];
        of.length[j] = sqrt(sum);
    }
    __syncthreads();
}

// 0, or NaN where an element of the matrix is no finite number.
__device__ __forceinline__ f64 poison(const T *a)
{
    f64 sum = 0;
    for (int i = 0; i < M * N; i++) sum += (f64)a[i] - (f64)a[i];
    return sum;
}

__device__ __forceinline__ int place_of(const Columns &of, int j)
{
    int before = 0;
    for (int i = 0; i < N; i++)
        before += of.length[i] > of.length[j] || (!(of.length[j] > of.length[i]) && i < j);
    return before;
}

// 1 or -1: what makes the largest element of column j of the rotations positive.
__device__ __forceinline__ f64 sign_of(const Columns &of, int j)
{
    f64 most = 0, found = 1;
    for (int i = 0; i < N; i++) {
        const f64 x = of.v[j * N + i];
        if (fabs(x) > most * (1 + 1e-12)) {
            most = fabs(x);
            found = x < 0 ? -1 : 1;
        }
    }
    return found;
}

__device__ __forceinline__ void write_rotations(const Columns &of, T *v, int j, int place, f64 sign)
{
    for (int i = 0; i < N; i++) v[i * N + place] = (T)(sign * of.v[j * N + i]);
}

// Columns of length 1; those of length 0 become what stands at right angles to all others (Gram and Schmidt, twice).
__device__ __forceinline__ void normalize(const Columns &of)
{
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M && !(of.length[j] <= TINY); i++) of.w[j * M + i] /= of.length[j];
    for (int j = 0; j < N; j++) {
        f64 *x = of.w + j * M;
        for (int unit = 0; unit < M && of.length[j] <= TINY; unit++) {
            for (int i = 0; i < M; i++) x[i] = i == unit;
            for (int again = 0; again < 2; again++)
                for (int k = 0; k < N; k++) {
                    if (k == j || (k > j && of.length[k] <= TINY)) continue;
                    f64 along = 0;
                    for (int i = 0; i < M; i++) along += x[i] * of.w[k * M + i];
                    for (int i = 0; i < M; i++) x[i] -= along * of.w[k * M + i];
                }
            f64 square = 0;
            for (int i = 0; i < M; i++) square += x[i] * x[i];
            if (square < 0.5 / M) continue;
            for (int i = 0; i < M; i++) x[i] /= sqrt(square);
            break;
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) singular_values(const T *a, T *u, T *s, T *v, f64 *scratch)
{
    const Columns of(scratch + (i64)blockIdx.x * PER_MATRIX);
    a += (i64)blockIdx.x * M * N;
    u += (i64)blockIdx.x * M * N;
    s += (i64)blockIdx.x * N;
    v += (i64)blockIdx.x * N * N;
    const f64 wrong = poison(a);
    for (int at = threadIdx.x; at < M * N; at += blockDim.x) of.w[at % N * M + at / N] = (f64)a[at] + wrong;
    for (int at = threadIdx.x; at < N * N; at += blockDim.x) of.v[at] = (at / N == at % N) + wrong;
    __syncthreads();
    orthogonalize(of);
    if (threadIdx.x == 0) normalize(of);
    __syncthreads();
    for (int j = threadIdx.x; j < N; j += blockDim.x) {
        const int place = place_of(of, j);
        const f64 sign = sign_of(of, j);
        s[place] = (T)of.length[j];
        for (int i = 0; i < M; i++) u[i * N + place] = (T)(sign * of.w[j * M + i]);
        write_rotations(of, v, j, place, sign);
    }
}

// The matrix plus a multiple of the identity that makes all eigenvalues positive: these are its singular values then.
extern "C" __global__ void __launch_bounds__(128) symmetric_eigen(const T *a, T *w, T *v, f64 *scratch)
{
    const Columns of(scratch + (i64)blockIdx.x * PER_MATRIX);
    a += (i64)blockIdx.x * N * N;
    w += (i64)blockIdx.x * N;
    v += (i64)blockIdx.x * N * N;
    const f64 wrong = poison(a);
    f64 shift = 0;
    for (int i = 0; i < N; i++) {
        f64 sum = 0;
        for (int j = 0; j < N; j++) sum += fabs((f64)a[i * N + j] + (f64)a[j * N + i]) / 2;
        shift = sum > shift ? sum : shift;
    }
    for (int at = threadIdx.x; at < N * N; at += blockDim.x) {
        const int i = at / N, j = at % N;
        of.w[at] = ((f64)a[i * N + j] + (f64)a[j * N + i]) / 2 + (i == j ? shift : 0.0) + wrong;
        of.v[at] = (i == j) + wrong;
    }
    __syncthreads();
    orthogonalize(of);
    for (int j = threadIdx.x; j < N; j += blockDim.x) {
        const int place = N - 1 - place_of(of, j);
        w[place] = (T)(of.length[j] - shift);
        write_rotations(of, v, j, place, sign_of(of, j));
    }
}
