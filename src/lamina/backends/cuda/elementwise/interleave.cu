// Copies of a few planes into one another: channels, few of them, become the innermost axis of an image.
//
// For each batch index there are PLANES rows of COLUMNS elements, and the target is a matrix [COLUMNS, PLANES] without
// gaps. Constants: Index (type), S and T (types of what is read and written), V (elements per access, a divisor of
// COLUMNS), PLANES, COLUMNS, SOURCE_PLANE (stride of a plane in the source), BATCHES, and functions converted(s), which
// gives a T, source_batch(b), target_batch(b); strides are multiples of V.
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) interleave(const S *source, T *target)
{
    __shared__ Pack<T, V> tile[THREADS * PLANES];
    const Index parts = COLUMNS / V, runs = (parts + THREADS - 1) / THREADS;
    for (Index t = blockIdx.x; t < runs * (Index)BATCHES; t += gridDim.x) {
        const Index batch = t / runs, first = t % runs * THREADS;
        const int count = (int)(parts - first < THREADS ? parts - first : THREADS);
        if (threadIdx.x < count) {
            const S *from = source + source_batch(batch) + (first + threadIdx.x) * V;
            Pack<S, V> planes[PLANES];
            Pack<T, V> mixed[PLANES];
#pragma unroll
            for (int c = 0; c < PLANES; ++c) planes[c] = load<V>(from + c * (Index)SOURCE_PLANE);
#pragma unroll
            for (int i = 0; i < PLANES * V; ++i) mixed[i / V].v[i % V] = converted(planes[i % PLANES].v[i / PLANES]);
#pragma unroll
            for (int c = 0; c < PLANES; ++c) tile[threadIdx.x * PLANES + c] = mixed[c];
        }
        __syncthreads();
        T *to = target + target_batch(batch) + first * (V * PLANES);
        for (int i = threadIdx.x; i < count * PLANES; i += THREADS) store<V>(to + i * V, tile[i]);
        __syncthreads();
    }
}
