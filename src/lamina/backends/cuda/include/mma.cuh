// Products on tensor cores by one warp: D [16, 8] += A [16, 16] B [16, 8] of a half type, sums in f32.
//
// Lane 4 g + t holds of A the pairs (row g, columns 2t 2t+1), (row g + 8, the same), (row g, columns 2t+8 2t+9),
// (row g + 8, the same); of B the pairs (rows 2t 2t+1, column g) and (rows 2t+8 2t+9, column g); of D row g and
// row g + 8 of columns 2t 2t+1. Whoever compiles for something else brings what stands under WARP_MMA along.
#pragma once

#ifndef WARP_MMA
#define MMA(type)                                                                                                    \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "        \
        "{%0,%1,%2,%3};"                                                                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ __forceinline__ void warp_mma(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) { MMA("bf16"); }
__device__ __forceinline__ void warp_mma(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], f16) { MMA("f16"); }

// Four 8 x 8 matrices of a half type from shared memory: lane 8 j + i has the address of row i of matrix j. Lane 4 g + t
// gets of each the pair (row g, columns 2t 2t+1); of transposed ones (rows 2t 2t+1, column g).
template <bool TRANSPOSED> __device__ __forceinline__ void matrices(u32 (&d)[4], const void *row)
{
    const u32 at = (u32)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at) : "memory");
}

// 16 bytes to shared memory while the thread goes on; zeros where not `inside`. `end_group` closes a group of copies,
// `wait_groups<left>` waits for the thread's own until only the `left` last groups may be under way.
__device__ __forceinline__ void copy_later(void *to, const void *from, bool inside)
{
    const u32 at = (u32)__cvta_generic_to_shared(to), bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int left> __device__ __forceinline__ void wait_groups()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(left) : "memory");
}

// `count` threads of the block meet, those from `first` on, a multiple of `count`.
__device__ __forceinline__ void meet(int first, int count)
{
    asm volatile("bar.sync %0, %1;" : : "r"(first / count + 1), "r"(count) : "memory");
}
#endif

// The first (second) elements of two pairs as a pair.
__device__ __forceinline__ u32 firsts(u32 a, u32 b) { return (a & 0xffffu) | (b << 16); }
__device__ __forceinline__ u32 seconds(u32 a, u32 b) { return (a >> 16) | (b & 0xffff0000u); }
