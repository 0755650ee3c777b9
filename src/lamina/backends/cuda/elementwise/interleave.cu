// Copies of a few planes into one another: channels, few of them, become the innermost axis of an image.
//
// For each batch index there are PLANES rows of COLUMNS elements, and the target is a matrix [COLUMNS, PLANES] without
// gaps. Constants: Index (type), S and T (types of what is read and written), V (elements per access, a divisor of
// COLUMNS), PLANES, COLUMNS, SOURCE_PLANE (stride of a plane in the source), BATCHES, and functions converted(s), which
// gives a T, source_batch(b), target_batch(b); strides are multiples of V.
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) interleave(const S *source, T *target)
{
    // An access to each plane is a thread's; short rows of several batch indices are one block's.
    __shared__ Pack<T, V> tile[THREADS * PLANES];
    const Index parts = COLUMNS / V, total = parts * (Index)BATCHES;
    for (Index first = (Index)blockIdx.x * THREADS; first < total; first += (Index)gridDim.x * THREADS) {
        const int count = (int)(total - first < THREADS ? total - first : THREADS);
        if (threadIdx.x < count) {
            const Index at = first + threadIdx.x, batch = at / parts;
            const S *from = source + source_batch(batch) + (at - batch * parts) * V;
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
        for (int i = threadIdx.x; i < count * PLANES; i += THREADS) {
            const Index at = first + i / PLANES, batch = at / parts;
            store<V>(target + target_batch(batch) + ((at - batch * parts) * PLANES + i % PLANES) * V, tile[i]);
        }
        __syncthreads();
    }
}
