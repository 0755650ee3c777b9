// Fibers, barriers and launches (runtime.cpp), compiled once for all kernels.
#pragma once

struct Dim3 { unsigned x, y, z; };
extern __thread Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {
extern __thread unsigned current;
extern __thread unsigned long long exchanged[1024];
extern const struct Halves { float of[1 << 16]; Halves(); } halves;  // float16 by its bits
void hand_over();
void meet(unsigned first, unsigned count);
void meet_all();
void copy_later(void *to, const void *from, bool inside);
void end_group();
void wait_groups(unsigned left);
void run(void (*kernel)(void **), const unsigned *grid, unsigned threads, void **values);
void run_together(void (*kernel)(void **), const unsigned *grid, unsigned threads, void **values);
}  // namespace emulator
