// Products on tensor cores by four warps: D [64, COLUMNS] += A [64, 16] B [16, COLUMNS] of a half type, sums in f32;
// COLUMNS is 64 or 128. Warp w of the four holds rows 16 w to 16 w + 15 of A and D as `warp_mma` does: sum[j] columns
// 8 j to 8 j + 7.
//
// B lies in shared memory, 32 rows at a time: as [COLUMNS, 32], 64 bytes a row, eighths of a row swapped (`narrow_at`),
// or TURNED as slabs [32, 64] of 128 bytes a row (`wide_at`); `turn` says which half of the 32. It begins at a multiple
// of 1024 bytes. Threads that wrote it call `show_to_products` before all meet.
//
// On Hopper the products are under way until `products_done`: between, nothing may touch the sums or A. They are asked
// for in groups, from `products_begin` to `products_end`. Elsewhere a warp computes its part at once.
#pragma once
#include "mma.cuh"

// Where 16 bytes (`eighth`: elements / 8) lie in a slab of 64-byte rows, and in one of 128-byte rows: so that eight rows
// are in different banks.
__device__ __forceinline__ int narrow_at(int row, int eighth) { return row * 32 + (eighth ^ (row >> 1 & 3)) * 8; }
__device__ __forceinline__ int wide_at(int row, int eighth) { return row * 64 + (eighth ^ (row & 7)) * 8; }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A matrix in shared memory as the instruction takes it: address, bytes between parts along the columns and along the
// rows, and how 16-byte parts are swapped (1: in 128 bytes, 2: in 64).
__device__ __forceinline__ u64 matrix_at(const void *p, int leading, int stride, int swaps)
{
    const u32 at = (u32)__cvta_generic_to_shared(p);
    return (u64)((at & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)swaps << 62;
}

#define GROUP_64(type)                                                                                                \
    asm volatile(                                                                                                     \
        "{.reg .pred more; setp.ne.b32 more, %37, 0; "                                                                \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                                              \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                           \
        "{%32, %33, %34, %35}, %36, more, 1, 1, %38;}"                                                                \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),\
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),\
          "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),\
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])\
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more), "n"(TURNED))
#define GROUP_128(type)                                                                                               \
    asm volatile(                                                                                                     \
        "{.reg .pred more; setp.ne.b32 more, %69, 0; "                                                                \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                                             \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                            \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                            \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                           \
        "{%64, %65, %66, %67}, %68, more, 1, 1, %70;}"                                                                \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),\
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),\
          "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),\
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),\
          "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),\
          "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),\
          "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),\
          "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])\
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more), "n"(TURNED))
template <bool TURNED> __device__ __forceinline__ void issue(f32 (&d)[8][4], const u32 (&a)[4], u64 b, int more, bf16) { GROUP_64("bf16"); }
template <bool TURNED> __device__ __forceinline__ void issue(f32 (&d)[8][4], const u32 (&a)[4], u64 b, int more, f16) { GROUP_64("f16"); }
template <bool TURNED> __device__ __forceinline__ void issue(f32 (&d)[16][4], const u32 (&a)[4], u64 b, int more, bf16) { GROUP_128("bf16"); }
template <bool TURNED> __device__ __forceinline__ void issue(f32 (&d)[16][4], const u32 (&a)[4], u64 b, int more, f16) { GROUP_128("f16"); }

// What threads wrote to shared memory by themselves is seen by the products of all, once they have met.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
template <int NB> __device__ __forceinline__ void products_done(f32 (&sum)[NB][4])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
#pragma unroll
    for (int j = 0; j < NB; ++j) asm volatile("" : "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3]));
}

// more: 0 starts the sums anew.
template <bool TURNED, int NB, class T>
__device__ __forceinline__ void group_mma(f32 (&sum)[NB][4], const u32 (&a)[4], const T *b, int turn, int more)
{
    const u64 right = TURNED ? matrix_at(b + turn * 16 * 64, 32 * 128, 1024, 1) : matrix_at(b + turn * 16, 16, 512, 2);
    issue<TURNED>(sum, a, right, more, T());
}
#else
__device__ __forceinline__ void show_to_products() {}
__device__ __forceinline__ void products_begin() {}
__device__ __forceinline__ void products_end() {}
template <int NB> __device__ __forceinline__ void products_done(f32 (&)[NB][4]) {}

template <bool TURNED, int NB, class T>
__device__ __forceinline__ void group_mma(f32 (&sum)[NB][4], const u32 (&a)[4], const T *b, int turn, int more)
{
    const int i = threadIdx.x % 8, j = threadIdx.x % 32 / 8;
#pragma unroll
    for (int y = 0; y < NB / 2; ++y) {
        const int column = y * 16 + j / 2 * 8;
        u32 right[4];
        if (TURNED) matrices<true>(right, b + column / 64 * 32 * 64 + wide_at(turn * 16 + j % 2 * 8 + i, column % 64 / 8));
        else matrices<false>(right, b + narrow_at(column + i, turn * 2 + j % 2));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 pair[2] = {right[half * 2], right[half * 2 + 1]};
            if (!more) sum[y * 2 + half][0] = sum[y * 2 + half][1] = sum[y * 2 + half][2] = sum[y * 2 + half][3] = 0;
            warp_mma(sum[y * 2 + half], a, pair, T());
        }
    }
}
#endif
