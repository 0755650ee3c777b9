// What candidates are checked and timed with: random operands, a comparison, a look at guard zones, a pause.
// Constants: T is the element as it is stored. NUMBER: T is a number of C's; else EXPONENT and MANTISSA are the bits of
// a small float (INFINITIES: its largest exponent is for infinity and NaN alone). WHOLE: T is an integer; MODULUS and
// LEAST give its random values.
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifdef NUMBER
__device__ __forceinline__ double decode(T v) { return (double)v; }
#ifdef WHOLE
__device__ __forceinline__ T draw(u64 z) { return (T)((i64)((z >> 40) % MODULUS) + LEAST); }
#else
__device__ __forceinline__ T draw(u64 z) { return (T)((float)(z >> 40) * (2.0f / 16777216.0f) - 1.0f); }
#endif
#else
#define TOP ((1 << EXPONENT) - 1)
#define BIAS ((1 << (EXPONENT - 1)) - 1)
#define FRACTION ((1 << MANTISSA) - 1)
__device__ __forceinline__ double decode(T v)
{
    const int e = (v >> MANTISSA) & TOP, m = v & FRACTION;
    if (e == TOP && (INFINITIES || m == FRACTION)) return 1e308;
    const double size = ldexp((e ? 1.0 : 0.0) + (double)m / (FRACTION + 1), (e ? e : 1) - BIAS);
    return v >> (EXPONENT + MANTISSA) ? -size : size;
}
// Cut, not rounded: any number will do. It is below 1, so that nothing is too large.
__device__ __forceinline__ T draw(u64 z)
{
    const u32 bits = __float_as_uint((float)(z >> 40) * (2.0f / 16777216.0f) - 1.0f);
    const int e = (int)((bits >> 23) & 255) - 127 + BIAS;
    if (e <= 0) return (T)0;
    return (T)((bits >> 31) << (EXPONENT + MANTISSA) | (u32)e << MANTISSA | (bits & 0x7fffff) >> (23 - MANTISSA));
}
#endif

__device__ __forceinline__ bool is_number(double v) { return fabs(v) < 1e300; }

// *found += the sum over the block of 256 threads, all of which must call.
__device__ __forceinline__ void add(double v, double *found)
{
    __shared__ double parts[256];
    parts[threadIdx.x] = v;
    for (int half = 128; half; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    __syncthreads();  // the compiler lets every thread read parts[0], whether it asks for it or not
    if (threadIdx.x == 0 && parts[0] != 0) atomicAdd(found, parts[0]);
    __syncthreads();
}

// From a hash of position and seed; uniform in [-1, 1) for floats.
extern "C" __global__ void fill_random(T *p, i64 count, u64 seed)
{
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        u64 z = (u64)i + seed * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        p[i] = draw(z ^ (z >> 31));
    }
}

// found[0] += sum (a - b)^2, found[1] += sum b^2 where both are numbers; found[2] += how many of a are NaN or infinite;
// found[3] += where only one of them is.
extern "C" __global__ void __launch_bounds__(256) compare(const T *a, const T *b, double *found, i64 count)
{
    double apart = 0, size = 0, bad = 0, odd = 0;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) {
        const double x = decode(a[i]), y = decode(b[i]);
        const bool fine = is_number(x), expected = is_number(y);
        bad += !fine;
        odd += fine != expected;
        if (fine && expected) {
            apart += (x - y) * (x - y);
            size += y * y;
        }
    }
    add(apart, found);
    add(size, found + 1);
    add(bad, found + 2);
    add(odd, found + 3);
}

// found[0] += how many bytes differ from `byte`.
extern "C" __global__ void __launch_bounds__(256)
count_changed(const unsigned char *p, i64 count, int byte, double *found)
{
    double changed = 0;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256)
        changed += p[i] != (unsigned char)byte;
    add(changed, found);
}

#ifdef __CUDA_ARCH__
// Keeps the stream busy for so many clock cycles, while the host queues what is to be timed.
extern "C" __global__ void occupy(i64 cycles)
{
    const i64 end = clock64() + cycles;
    while (clock64() < end) {}
}
#endif
