// Enough of CUDA for a C++ compiler to run the kernels on a CPU, one block after the other or all in host threads.
//
// The threads of a block are fibers: a barrier or a shuffle hands over to the next one. So barriers and shuffles mean
// what they mean on a GPU, and one that not all threads reach is found (the block never ends: an abort).
// CONTRARY: warps run as far as the next barrier one after the other, the last one first, and copies arrive as late as
// they may. What comes out differently then lacks a barrier or waits for too little.
// To be compiled with -fno-gnu-unique: shared memory of inline functions belongs to one kernel, not to all of a process.
#pragma once
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local
// As a GPU places it: at the start of a block's shared memory.
#define DYNAMIC_SHARED(type, name) alignas(1024) static thread_local type name[(224 << 10) / sizeof(type)]
#define WAIT_A_LITTLE() sched_yield()
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Dim3 { unsigned x, y, z; };
static thread_local Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {
// Frames are larger with a sanitizer's checks, and without optimization.
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
static const size_t STACK = 256 << 10;
#else
static const size_t STACK = 64 << 10;
#endif

// A place to go on from, and what AddressSanitizer wants to know of its stack.
struct Place { jmp_buf at; void *bottom; size_t size; void *kept; };
struct Fiber { Place place; std::unique_ptr<char[]> stack; bool done, held; long waits, barriers; };
static thread_local std::vector<Fiber> fibers;
static thread_local Place scheduler;
static thread_local unsigned current;
static thread_local unsigned long long exchanged[1024];

#ifdef __SANITIZE_ADDRESS__
extern "C" void __sanitizer_start_switch_fiber(void **kept, const void *bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void *kept, const void **bottom, size_t *size);
static void leave(Place &from, const Place &to) { __sanitizer_start_switch_fiber(&from.kept, to.bottom, to.size); }
static void arrive(Place &here, Place *from)
{
    __sanitizer_finish_switch_fiber(here.kept, from ? (const void **)&from->bottom : nullptr, from ? &from->size : nullptr);
}
#else
static void leave(Place &, const Place &) {}
static void arrive(Place &, Place *) {}
#endif

// Go on at `to` until somebody comes back to `from`. Unlike swapcontext these make no system call.
__attribute__((noinline)) static void change(Place &from, Place &to)
{
    leave(from, to);
    if (_setjmp(from.at) == 0) _longjmp(to.at, 1);
    arrive(from, nullptr);
}

static void to_scheduler() { change(fibers[current].place, scheduler); }

static void hand_over()
{
    fibers[current].waits++;
    to_scheduler();
}
}  // namespace emulator

// A barrier of some threads of the block: each comes here as often as the others, but warps may have taken part in more
// or fewer shuffles.
static inline void meet(unsigned first, unsigned count)
{
    using namespace emulator;
    const long mine = ++fibers[current].barriers;
    fibers[current].waits++;
    for (bool all = false; !all;) {
        fibers[current].held = true;
        to_scheduler();
        fibers[current].held = false;
        all = true;
        for (unsigned i = first; i < first + count; ++i) all = all && (fibers[i].done || fibers[i].barriers >= mine);
    }
}
static inline void __syncthreads() { meet(0, (unsigned)emulator::fibers.size()); }

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

static inline float __int_as_float(int v) { float f; memcpy(&f, &v, 4); return f; }
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
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// A warp's product on tensor cores (mma.cuh), from what its lanes hold.
#define WARP_MMA
struct bf16;
static inline float half_to_float(unsigned short bits);
namespace emulator {
static thread_local unsigned lanes_a[1024][4], lanes_b[1024][2];

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
    if (std::is_same<T, bf16>::value) emulator::multiply(d, a, b, brain);
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

// Copies that a thread waits for later (mma.cuh): done at once, or (CONTRARY) as late as they may be.
namespace emulator {
struct Later { void *to; const void *from; bool inside; };
static thread_local std::vector<std::vector<Later>> later[1024];  // per thread its groups, the last one open

static void copy(const Later &c)
{
    if (c.inside) memcpy(c.to, c.from, 16);
    else memset(c.to, 0, 16);
}
}  // namespace emulator
#ifdef CONTRARY
static inline void copy_later(void *to, const void *from, bool inside)
{
    auto &groups = emulator::later[emulator::current];
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back({to, from, inside});
}
static inline void end_group()
{
    auto &groups = emulator::later[emulator::current];
    if (groups.empty()) groups.emplace_back();
    groups.emplace_back();
}
template <int left> static inline void wait_groups()
{
    auto &groups = emulator::later[emulator::current];
    while (groups.size() > left + 1) {
        for (const auto &c : groups.front()) emulator::copy(c);
        groups.erase(groups.begin());
    }
}
#else
static inline void copy_later(void *to, const void *from, bool inside) { emulator::copy({to, from, inside}); }
static inline void end_group() {}
template <int left> static inline void wait_groups() {}
#endif

#define HALF_CONVERSIONS
static inline float half_to_float(unsigned short bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
static inline unsigned short float_to_half(float v) { _Float16 h = (_Float16)v; unsigned short b; memcpy(&b, &h, 2); return b; }
static inline unsigned short double_to_half(double v) { _Float16 h = (_Float16)v; unsigned short b; memcpy(&b, &h, 2); return b; }

namespace emulator {
template <class... P, size_t... I>
static void invoke(void (*kernel)(P...), void **arguments, std::index_sequence<I...>)
{
    kernel(*(P *)arguments[I]...);
}

static thread_local void (*body)(void **);
static thread_local void **arguments;

// What a fiber does: one thread of each block.
static void enter()
{
    arrive(fibers[current].place, &scheduler);
    for (;;) {
        body(arguments);
        fibers[current].done = true;
        to_scheduler();
    }
}

static void start(Fiber &fiber)
{
    ucontext_t first;
    fiber.stack.reset(new char[STACK]);
    fiber.place = {{}, fiber.stack.get(), STACK, nullptr};
    getcontext(&first);
    first.uc_stack.ss_sp = fiber.stack.get();
    first.uc_stack.ss_size = STACK;
    makecontext(&first, (void (*)())enter, 0);
    leave(scheduler, fiber.place);
    if (_setjmp(scheduler.at) == 0) setcontext(&first);
    arrive(scheduler, nullptr);
}

static void resume(Fiber &fiber)
{
    if (fiber.stack) change(scheduler, fiber.place);
    else start(fiber);
}

// A turn of each of some threads; whether one of them could go on. any: set if one was not done.
static bool run_some(unsigned first, unsigned end, bool &any)
{
    bool more = false;
    for (current = first; current < end; ++current) {
        if (fibers[current].done) continue;
        threadIdx = {current, 0, 0};
        resume(fibers[current]);
        any = true;
        more = more || !(fibers[current].done || fibers[current].held);
    }
    return more;
}

static void run_block(unsigned threads)
{
    for (auto &groups : later) groups.clear();
    fibers.resize(threads);
    for (auto &fiber : fibers) {
        fiber.done = fiber.held = false;
        fiber.waits = fiber.barriers = 0;
    }
    for (bool any = true; any;) {
        any = false;
#ifdef CONTRARY
        for (unsigned warp = (threads + 31) / 32; warp-- > 0;)
            while (run_some(warp * 32, warp * 32 + 32 < threads ? warp * 32 + 32 : threads, any)) {}
#else
        run_some(0, threads, any);
#endif
        // Barriers hold a block's threads together; warps may differ in how many shuffles they take part in.
        for (unsigned t = 1; t < threads; ++t)
            if ((t & 31) && fibers[t].waits != fibers[t - 1].waits && !(fibers[t].done && fibers[t - 1].done)) {
                fprintf(stderr, "emulator: threads %u and %u of a warp parted at a barrier\n", t - 1, t);
                abort();
            }
    }
}

static void run(void (*kernel)(void **), const unsigned *grid, unsigned threads, void **values)
{
    body = kernel;
    arguments = values;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                run_block(threads);
            }
    fibers.clear();
}

// All blocks at the same time, each in a thread of the host: they may wait for each other.
static void run_together(void (*kernel)(void **), const unsigned *grid, unsigned threads, void **values)
{
    std::vector<std::thread> blocks;
    for (unsigned y = 0; y < grid[1]; ++y)
        for (unsigned x = 0; x < grid[0]; ++x)
            blocks.emplace_back([=] {
                body = kernel;
                arguments = values;
                gridDim = {grid[0], grid[1], 1};
                blockDim = {threads, 1, 1};
                blockIdx = {x, y, 0};
                run_block(threads);
            });
    for (auto &block : blocks) block.join();
}

template <class... P> static void call(void (*kernel)(P...), void **values)
{
    invoke(kernel, values, std::index_sequence_for<P...>());
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
