// The mean of losses over the labels that count, and what share each of them has in it.
//
// Constants: Index, T (losses), L (labels), COUNT, IGNORE (a label), PART (losses per block), PARTS (blocks).
typedef Wide<T>::type A;

__device__ __forceinline__ void finish(A sum, i64 count, T *mean, A *share)
{
    if (threadIdx.x) return;
    *mean = narrow<T>(sum / (A)count);
    *share = (A)1 / (A)count;
}

// One block adds a part: all there is, or PART losses whose sum and number of labels another kernel adds up.
__device__ __forceinline__ void add(const T *losses, const L *labels, Index begin, A &sum, i64 &count)
{
    const Index end = begin + (Index)PART < (Index)COUNT ? begin + (Index)PART : (Index)COUNT;
    sum = 0;
    count = 0;
#pragma unroll 4
    for (Index i = begin + threadIdx.x; i < end; i += 256) {
        sum += (A)widen(losses[i]);
        count += (i64)labels[i] != (i64)IGNORE;
    }
    sum = over_block(sum, Sum(), (A)0);
    count = over_block(count, Sum(), (i64)0);
}

extern "C" __global__ void __launch_bounds__(256)
labelled_mean(const T *losses, const L *labels, T *mean, A *share)
{
    A sum;
    i64 count;
    add(losses, labels, 0, sum, count);
    finish(sum, count, mean, share);
}

extern "C" __global__ void __launch_bounds__(256)
labelled_mean_parts(const T *losses, const L *labels, i64 *counts, A *sums)
{
    A sum;
    i64 count;
    add(losses, labels, (Index)blockIdx.x * (Index)PART, sum, count);
    if (threadIdx.x) return;
    sums[blockIdx.x] = sum;
    counts[blockIdx.x] = count;
}

extern "C" __global__ void __launch_bounds__(256)
labelled_mean_whole(const i64 *counts, const A *sums, T *mean, A *share)
{
    A sum = 0;
    i64 count = 0;
    for (int i = threadIdx.x; i < PARTS; i += 256) {
        sum += sums[i];
        count += counts[i];
    }
    sum = over_block(sum, Sum(), (A)0);
    count = over_block(count, Sum(), (i64)0);
    finish(sum, count, mean, share);
}
