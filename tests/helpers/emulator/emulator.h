// Enough of CUDA for a C++ compiler to run the kernels on a CPU, one block after the other or all in host threads.
//
// The threads of a block are fibers: a barrier or a shuffle hands over to the next one. So barriers and shuffles mean
// what they mean on a GPU, and one that not all threads reach is found (the block never ends: an abort).
// CONTRARY: warps run as far as the next barrier one after the other, the last one first, and copies arrive as late as
// they may. What comes out differently then lacks a barrier or waits for too little.
// To be compiled with -fno-gnu-unique: shared memory of inline functions belongs to one kernel, not to all of a process;
// and with -nostdinc++: without C++'s own headers, which no kernel may use, a kernel takes half as long to compile.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local
// As a GPU places it: at the start of a block's shared memory.
#define DYNAMIC_SHARED(type, name) alignas(1024) static thread_local type name[(224 << 10) / sizeof(type)]
// Blocks that wait leave the processor to the one that they wait for.
#define WAIT_A_LITTLE() usleep(50)
#define __align__(bytes) __attribute__((aligned(bytes)))

// A barrier of some threads of the block: each comes here as often as the others, but warps may have taken part in more
// or fewer shuffles.
static inline void meet(unsigned first, unsigned count) { emulator::meet(first, count); }
static inline void __syncthreads() { emulator::meet_all(); }
static inline int __syncthreads_or(int v)
{
    emulator::exchanged[emulator::current] = v != 0;
    emulator::meet_all();
    int any = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) any |= (int)emulator::exchanged[i];
    emulator::meet_all();
    return any;
}

template <class T> static inline T __shfl_xor_sync(unsigned, T v, int lanes)
{
    const unsigned self = emulator::current;
    memcpy(&emulator::exchanged[self], &v, sizeof v);
    emulator::hand_over();
    T other;
    memcpy(&other, &emulator::exchanged[(self & ~31u) | ((self & 31) ^ lanes)], sizeof other);
    emulator::hand_over();
    return other;
}

static inline void __syncwarp() { emulator::hand_over(); }

static inline int __any_sync(unsigned, int v)
{
    const unsigned self = emulator::current;
    emulator::exchanged[self] = v != 0;
    emulator::hand_over();
    int any = 0;
    for (unsigned i = 0; i < 32; ++i) any |= (int)emulator::exchanged[(self & ~31u) | i];
    emulator::hand_over();
    return any;
}

// CUDA's functions have a version for float of the same name.
#define OF_FLOAT(name) static inline float name(float v) { return name##f(v); }
#define OF_FLOATS(name) static inline float name(float a, float b) { return name##f(a, b); }
OF_FLOAT(ceil) OF_FLOAT(cos) OF_FLOAT(erf) OF_FLOAT(erfc) OF_FLOAT(exp) OF_FLOAT(exp2) OF_FLOAT(expm1) OF_FLOAT(fabs)
OF_FLOAT(floor) OF_FLOAT(lgamma) OF_FLOAT(log) OF_FLOAT(log10) OF_FLOAT(log1p) OF_FLOAT(log2) OF_FLOAT(rint)
OF_FLOAT(round) OF_FLOAT(sin) OF_FLOAT(sqrt) OF_FLOAT(tan) OF_FLOAT(tanh) OF_FLOAT(trunc)
OF_FLOATS(copysign) OF_FLOATS(fmax) OF_FLOATS(fmin) OF_FLOATS(fmod) OF_FLOATS(pow) OF_FLOATS(nextafter)

static inline float __int_as_float(int v) { float f; memcpy(&f, &v, 4); return f; }
static inline double __longlong_as_double(long long v) { double d; memcpy(&d, &v, 8); return d; }
static inline float __uint_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
static inline long long __double_as_longlong(double v) { long long u; memcpy(&u, &v, 8); return u; }
static inline unsigned __float_as_uint(float v) { unsigned u; memcpy(&u, &v, 4); return u; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
#define __expf expf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fadd_rn(float a, float b) { volatile float c = a + b; return c; }
static inline float __fmul_rn(float a, float b) { volatile float c = a * b; return c; }
static inline void sincospi(double v, double *s, double *c) { *s = sin(M_PI * v); *c = cos(M_PI * v); }
static inline void atomicAdd(double *p, double v) { *p += v; }
static inline unsigned atomicAdd(unsigned *p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
static inline int atomicMax(int *p, int v)
{
    const int old = *p;
    if (v > old) *p = v;
    return old;
}
static inline unsigned atomicMin(unsigned *p, unsigned v)
{
    const unsigned old = *p;
    if (v < old) *p = v;
    return old;
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// A warp's product on tensor cores (mma.cuh), from what its lanes hold.
#define WARP_MMA
struct bf16;
static inline float half_to_float(unsigned short bits);
namespace emulator {
extern __thread unsigned lanes_a[1024][4], lanes_b[1024][2];

template <class Widen> static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Widen widen)
{
    const unsigned self = current, warp = self & ~31u, g = self % 32 / 4, t = self % 4;
    memcpy(lanes_a[self], a, sizeof a);
    memcpy(lanes_b[self], b, sizeof b);
    hand_over();
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (unsigned k = 0; k < 16; ++k) {
            const unsigned left = lanes_a[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const unsigned right = lanes_b[warp + column * 4 + k % 8 / 2][k / 8];
            d[i] += widen((unsigned short)(left >> k % 2 * 16)) * widen((unsigned short)(right >> k % 2 * 16));
        }
    }
    hand_over();
}
}  // namespace emulator
template <class T> static inline void warp_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], T)
{
    const auto brain = [](unsigned short v) { return __uint_as_float((unsigned)v << 16); };
    if (__is_same(T, bf16)) emulator::multiply(d, a, b, brain);
    else emulator::multiply(d, a, b, half_to_float);
}
// Matrices of a half type from shared memory (mma.cuh).
template <bool TRANSPOSED> static inline void matrices(unsigned (&d)[4], const void *row)
{
    using namespace emulator;
    const unsigned self = current, warp = self & ~31u, g = self % 32 / 4, t = self % 4;
    exchanged[self] = (unsigned long long)row;
    hand_over();
    for (unsigned j = 0; j < 4; ++j) {
        d[j] = 0;
        for (unsigned e = 0; e < 2; ++e) {
            const unsigned line = TRANSPOSED ? 2 * t + e : g, column = TRANSPOSED ? g : 2 * t + e;
            d[j] |= (unsigned)((const unsigned short *)exchanged[warp + 8 * j + line])[column] << 16 * e;
        }
    }
    hand_over();
}

// Copies that a thread waits for later (mma.cuh).
static inline void copy_later(void *to, const void *from, bool inside) { emulator::copy_later(to, from, inside); }
static inline void end_group() { emulator::end_group(); }
template <int left> static inline void wait_groups() { emulator::wait_groups(left); }

#define HALF_CONVERSIONS
static inline float half_to_float(unsigned short bits) { return emulator::halves.of[bits]; }
static inline unsigned short float_to_half(float v) { _Float16 h = (_Float16)v; unsigned short b; memcpy(&b, &h, 2); return b; }
static inline unsigned short double_to_half(double v) { _Float16 h = (_Float16)v; unsigned short b; memcpy(&b, &h, 2); return b; }

namespace emulator {
template <size_t... I> struct Places {};

template <class... P, size_t... I> static void invoke(void (*kernel)(P...), void **arguments, Places<I...>)
{
    kernel(*(P *)arguments[I]...);
}

template <class... P> static void call(void (*kernel)(P...), void **values)
{
    invoke(kernel, values, Places<__integer_pack(sizeof...(P))...>());
}
}  // namespace emulator

#define EMULATE(kernel)                                                                                              \
    static void emulated(void **v) { emulator::call(kernel, v); }                                                    \
    extern "C" void launch(const unsigned *grid, unsigned threads, void **values)                                    \
    {                                                                                                                \
        emulator::run(emulated, grid, threads, values);                                                              \
    }                                                                                                                \
    extern "C" void launch_together(const unsigned *grid, unsigned threads, void **values)                           \
    {                                                                                                                \
        emulator::run_together(emulated, grid, threads, values);                                                     \
    }

// What every kernel begins with, and so is read in advance.
#include "common.cuh"
