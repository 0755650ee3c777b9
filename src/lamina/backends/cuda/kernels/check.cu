// What a candidate is checked with before it is timed: random inputs, a comparison, and a look at guard zones.
// Constant: T.
typedef Wide<T>::type A;

// Uniform in [-1, 1), from a hash of position and seed.
extern "C" __global__ void fill_random(T *p, i64 count, u64 seed)
{
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        u64 z = (u64)i + seed * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        p[i] = narrow<T>((f32)(z >> 40) * (2.0f / 16777216.0f) - 1.0f);
    }
}

// found[0] += sum (a - b)^2, found[1] += sum b^2, found[2] += how many of a are NaN or infinite.
extern "C" __global__ void __launch_bounds__(256) compare(const T *a, const T *b, f64 *found, i64 count)
{
    f64 apart = 0, size = 0, bad = 0;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) {
        const f64 x = (f64)widen(a[i]), y = (f64)widen(b[i]);
        if (!(fabs(x) < 1e300)) { bad += 1; continue; }
        apart += (x - y) * (x - y);
        size += y * y;
    }
    apart = over_block(apart, Sum(), 0.0);
    size = over_block(size, Sum(), 0.0);
    bad = over_block(bad, Sum(), 0.0);
    if (threadIdx.x == 0) {
        atomicAdd(found, apart);
        atomicAdd(found + 1, size);
        atomicAdd(found + 2, bad);
    }
}

// found[0] += how many bytes differ from `byte`.
extern "C" __global__ void __launch_bounds__(256) count_changed(const u8 *p, i64 count, i32 byte, f64 *found)
{
    f64 changed = 0;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) changed += p[i] != (u8)byte;
    changed = over_block(changed, Sum(), 0.0);
    if (threadIdx.x == 0) atomicAdd(found, changed);
}
