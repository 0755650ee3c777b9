// The emulator's fibers, barriers and launches (emulator.h says what they mean). CONTRARY: see there.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <memory>
#include <thread>
#include <vector>

#include "runtime.h"

__thread Dim3 threadIdx, blockIdx, blockDim, gridDim;

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
__thread unsigned current;
__thread unsigned long long exchanged[1024];
__thread unsigned lanes_a[1024][4], lanes_b[1024][2];

Halves::Halves()
{
    for (unsigned bits = 0; bits < 1 << 16; ++bits) {
        _Float16 half;
        memcpy(&half, &bits, 2);
        of[bits] = (float)half;
    }
}
const Halves halves;

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

void hand_over()
{
    fibers[current].waits++;
    to_scheduler();
}

void meet(unsigned first, unsigned count)
{
    Fiber *const threads = fibers.data(), &self = threads[current];
    const long mine = ++self.barriers;
    self.waits++;
    for (bool all = false; !all;) {
        self.held = true;
        to_scheduler();
        self.held = false;
        all = true;
        for (unsigned i = first; all && i < first + count; ++i) all = threads[i].done || threads[i].barriers >= mine;
    }
}

void meet_all() { meet(0, (unsigned)fibers.size()); }

// Copies that a thread waits for later: done at once, or (CONTRARY) as late as they may be.
struct Later { void *to; const void *from; bool inside; };
static thread_local std::vector<std::vector<Later>> later[1024];  // per thread its groups, the last one open

static void copy(const Later &c)
{
    if (c.inside) memcpy(c.to, c.from, 16);
    else memset(c.to, 0, 16);
}
#ifdef CONTRARY
void copy_later(void *to, const void *from, bool inside)
{
    auto &groups = later[current];
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back({to, from, inside});
}
void end_group()
{
    auto &groups = later[current];
    if (groups.empty()) groups.emplace_back();
    groups.emplace_back();
}
void wait_groups(unsigned left)
{
    auto &groups = later[current];
    while (groups.size() > left + 1) {
        for (const auto &c : groups.front()) copy(c);
        groups.erase(groups.begin());
    }
}
#else
void copy_later(void *to, const void *from, bool inside) { copy({to, from, inside}); }
void end_group() {}
void wait_groups(unsigned) {}
#endif

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

void run(void (*kernel)(void **), const unsigned *grid, unsigned threads, void **values)
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
void run_together(void (*kernel)(void **), const unsigned *grid, unsigned threads, void **values)
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
}  // namespace emulator
