// Group norm of images that lie channels last, where few groups fit the machine: a block reads the elements of one group
// once, and keeps them in registers for the mean, the squares and the result.
//
// A group's elements are PARTS accesses of V channels at each position; a thread has HELD of these accesses, all
// threads' accesses side by side.
//
// Constants: Index, T, V, HELD, THREADS, EPSILON, RELU and FUNCTION (norm.cuh). Numbers of the parameter SIZES: GROUPS,
// PER_GROUP, CHANNELS, PLACES (positions), and quotients: image_of(n) = n / GROUPS, place_of(n) = n / PARTS.
#include "norm.cuh"
#define ALL (PLACES * PARTS)
#define EACH_ACCESS(u) REPEAT(u, HELD) if (const Index n = u * THREADS + threadIdx.x; n < ALL)
#define CHANNEL_OF(n) ((n - place_of(n) * PARTS) * V)
#define PLACE_OF(n) (first + place_of(n) * CHANNELS + CHANNEL_OF(n))
__device__ __forceinline__ f32 root(f32 v) { return sqrtf(v); }
__device__ __forceinline__ f64 root(f64 v) { return sqrt(v); }

extern "C" __global__ void __launch_bounds__(THREADS)
group_norm_held(const T *x, const A *scale, const A *bias, A *mean, A *spread, T *y, SIZES)
{
    const Index image = image_of((Index)blockIdx.x), begin = ((Index)blockIdx.x - image * GROUPS) * PER_GROUP;
    const Index first = image * PLACES * CHANNELS + begin;
    const A count = (A)(PLACES * PER_GROUP);
    Pack<T, V> held[HELD];
    A sum = 0, squares = 0;
    EACH_ACCESS(u) held[u] = load<V>(x + PLACE_OF(n));
    EACH_ACCESS(u) REPEAT(k, V) sum += (A)widen(held[u].v[k]);
    const A middle = over_block(sum, Sum(), (A)0) / count;
    EACH_ACCESS(u) REPEAT(k, V) {
        const A apart = (A)widen(held[u].v[k]) - middle;
        squares += apart * apart;
    }
    const A r = (A)1 / root(over_block(squares, Sum(), (A)0) / count + (A)EPSILON);
    if (threadIdx.x == 0) mean[blockIdx.x] = middle, spread[blockIdx.x] = r;
    EACH_ACCESS(u) {
        const Index c = begin + CHANNEL_OF(n);
        REPEAT(k, V) {
            const A v = ((A)widen(held[u].v[k]) - middle) * (r * scale[c + k]) + bias[c + k];
            held[u].v[k] = narrow<T>(activated(v));
        }
        store<V>(y + PLACE_OF(n), held[u]);
    }
}
