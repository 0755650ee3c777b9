// Sums over the blocks of a first kernel, always in the same order: what it wrote is [slices, pitch] of f32.
#pragma once

// The sum over slices of partial[slice * pitch + at]. Blocks of 256: lanes 0 to 31 of each warp have columns of their
// own (`at`), the eight warps take turns on slices. The threads of warp 0 get the sums. All threads must call.
template <class Index> __device__ __forceinline__ f32 over_slices(const f32 *partial, Index at, Index pitch, int slices)
{
    __shared__ f32 part[256];
    f32 sum = 0;
#pragma unroll 4
    for (int slice = threadIdx.x / 32; slice < slices; slice += 8) sum += partial[slice * pitch + at];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int warp = 1; warp < 8; ++warp) sum += part[(warp * 32 + threadIdx.x) & 255];
    return sum;
}
