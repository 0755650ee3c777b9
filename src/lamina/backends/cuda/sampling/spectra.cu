// Half spectra of frames: a mixed-radix Fourier transform (Stockham's order) in shared memory, a block for each frame.
//
// A frame of an even SIZE is transformed as POINTS = SIZE / 2 complex numbers, pairs of samples; of an odd one as SIZE
// real ones. x is [BATCH, LENGTH], y is [BATCH, COUNT, BINS, 2].
//
// Constants: T, Index, BATCH, LENGTH, COUNT (frames of a signal), SIZE, HOP, POINTS, BINS, SCALE, THREADS, V (elements
// of y of an access, 1 or 2), and STAGES: STAGE(radix, points of the parts that it transforms, parts) for each factor of
// POINTS.
// waves: cosines of 2 pi i / SIZE for each i, then the negative sines.
//
// Expected: the signal is read and the spectra are written once, 15 MB or 3.5 us at 4.3 TB/s for the 64 signals of 101
// frames of 400 of benchmarks/op_families.py; 200 points by factors of 5, 5, 4 and 2 are 12 complex products each, and with
// twiddle factors 23 thousand operations a frame, 0.15 GFLOP in all, where one product with the whole basis takes 2.5.
typedef Wide<T>::type A;
struct Pair { A re, im; };

__device__ __forceinline__ Pair times(Pair a, Pair b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }

// The power of the SIZE-th root of unity exp(-2 pi i / SIZE).
__device__ __forceinline__ Pair wave(const A *waves, int power) { return {waves[power], waves[SIZE + power]}; }

// One stage: `parts` interleaved transforms of `points`, each by R transforms of points / R.
template <int R>
__device__ __forceinline__ void stage(const Pair *from, Pair *to, const A *waves, int points, int parts)
{
    const int rest = points / R;
    Pair roots[R];
#pragma unroll
    for (int j = 0; j < R; j++) roots[j] = wave(waves, j * (SIZE / R));
    for (int i = threadIdx.x; i < rest * parts; i += THREADS) {
        const int p = i / parts, q = i % parts;
        Pair given[R];
#pragma unroll
        for (int j = 0; j < R; j++) given[j] = from[q + parts * (p + rest * j)];
#pragma unroll
        for (int k = 0; k < R; k++) {
            Pair sum = given[0];
#pragma unroll
            for (int j = 1; j < R; j++) {
                const Pair one = times(given[j], roots[j * k % R]);
                sum.re += one.re, sum.im += one.im;
            }
            to[q + parts * (R * p + k)] = p * k ? times(sum, wave(waves, p * k * parts * (SIZE / POINTS))) : sum;
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
short_time_spectra(const T *x, const T *weights, T *y, const A *waves)
{
    __shared__ Pair memory[2][POINTS];
    for (Index frame = blockIdx.x; frame < (Index)BATCH * COUNT; frame += gridDim.x) {
        const T *own = x + frame / COUNT * LENGTH + frame % COUNT * HOP;
        Pair *now = memory[0], *next = memory[1];
        for (int i = threadIdx.x; i < POINTS; i += THREADS) {
#if SIZE % 2
            now[i] = {(A)widen(own[i]) * (A)widen(weights[i]), (A)0};
#else
            now[i] = {(A)widen(own[2 * i]) * (A)widen(weights[2 * i]), (A)widen(own[2 * i + 1]) * (A)widen(weights[2 * i + 1])};
#endif
        }
        __syncthreads();
#define STAGE(radix, points, parts)                                                                                  \
    {                                                                                                                \
        stage<radix>(now, next, waves, points, parts);                                                               \
        Pair *done = next;                                                                                           \
        next = now, now = done;                                                                                      \
    }
        STAGES
        T *to = y + frame * BINS * 2;
        for (int k = threadIdx.x; k < BINS; k += THREADS) {
#if SIZE % 2
            const Pair found = {now[k].re, k ? now[k].im : (A)0};
#else
            // Of even samples E and odd ones O: Z = E + i O, and the spectrum is E + exp(-2 pi i k / SIZE) O.
            const Pair a = now[k % POINTS], b = now[(POINTS - k) % POINTS];
            const Pair even = {(a.re + b.re) / 2, (a.im - b.im) / 2}, odd = {(a.im + b.im) / 2, (b.re - a.re) / 2};
            const Pair turned = times(odd, wave(waves, k));
            const Pair found = {even.re + turned.re, k % POINTS ? even.im + turned.im : (A)0};
#endif
            Pack<T, 2> made;
            made.v[0] = narrow<T>(found.re * (A)SCALE), made.v[1] = narrow<T>(found.im * (A)SCALE);
#if V == 2
            store<2>(to + 2 * k, made);
#else
            to[2 * k] = made.v[0], to[2 * k + 1] = made.v[1];
#endif
        }
        __syncthreads();
    }
}
