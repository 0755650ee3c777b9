// y = factor x for half types, eight elements at a time: their number is a multiple of eight, both are aligned to them.
// Constant: T.
extern "C" __global__ void __launch_bounds__(256) scaled(const T *x, T *y, i64 packs, f64 factor)
{
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < packs; i += (i64)gridDim.x * 256) {
        Pack<T, 8> pack = load<8>(x + 8 * i);
#pragma unroll
        for (int k = 0; k < 8; ++k) pack.v[k] = narrow<T>(widen(pack.v[k]) * (f32)factor);
        store<8>(y + 8 * i, pack);
    }
}
