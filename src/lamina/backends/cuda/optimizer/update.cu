// Optimizer steps over one tensor or many, in place where the outputs are the inputs. Constants: T (parameters and
// moments), G (gradient), V (elements per access), MOMENTS, SCALARS and NORMS (how many), COUNTED (whether steps are
// counted), PARTS, WIDTH, and what a rule writes: `struct Rule`, the numbers of a step, made once by each thread, and the
// step of one element; with NORMS `struct Norms`, the values whose squares are added up; with SCALARS `advance`. RATE is the
// type of the rate, behind which there may be further numbers of the step, f64.
#include "foreach.cuh"
#define KEPT (MOMENTS ? MOMENTS : 1)
#define NUMBERS (SCALARS + NORMS ? SCALARS + NORMS : 1)

// Rows: first block, count, p, g, moments, scalars, step where they are counted, rate, p_out, moments_out, scalars_out,
// step_out. Every thread reads scalars and step count; `state_foreach` moves them on in a launch of its own, after all
// have read them.
struct Numbers {
    f64 t, rate, s[NUMBERS];
    const RATE *n;
    __device__ __forceinline__ Numbers(const u64 *row)
    {
        const u64 *numbers = row + 4 + MOMENTS;
#pragma unroll
        for (int i = 0; i < SCALARS; ++i) s[i] = ((const f64 *)numbers[i])[0];
        t = COUNTED ? (f64)(((const i64 *)numbers[SCALARS])[0] + 1) : 0.0;
        n = (const RATE *)numbers[SCALARS + COUNTED];
        rate = (f64)n[0];
    }
};

#if NORMS
// The sums of squares that each block comes by, in float64: NORMS for each, in the blocks' order.
extern "C" __global__ void __launch_bounds__(256) norms_foreach(const __grid_constant__ Table table, f64 *partial)
{
    const u64 *row = row_of(table);
    const Share share(table, row);
    const i64 count = (i64)row[1];
    const T *p = (const T *)row[2];
    const G *g = (const G *)row[3];
    const Numbers numbers(row);
    const Norms norms(numbers.t, numbers.rate, numbers.s, numbers.n);
    f64 sums[NORMS] = {};
    for (i64 i = share.begin; i < count; i += share.stride) {
        for (i64 k = i; k < count && k < i + V; ++k) {
            T m[KEPT], values[NORMS];
#pragma unroll
            for (int j = 0; j < MOMENTS; ++j) m[j] = ((const T *)row[4 + j])[k];
            norms.of(p[k], (T)widen(g[k]), m, values);
#pragma unroll
            for (int j = 0; j < NORMS; ++j) sums[j] += (f64)values[j] * (f64)values[j];
        }
    }
#pragma unroll
    for (int j = 0; j < NORMS; ++j) {
        const f64 sum = over_block(sums[j], Sum(), 0.0);
        if (threadIdx.x == 0) partial[(i64)blockIdx.x * NORMS + j] = sum;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256) update_foreach(const __grid_constant__ Table table, const f64 *partial)
{
    const u64 *row = row_of(table), *made = row + 5 + MOMENTS + SCALARS + COUNTED;
    const Share share(table, row);
    const i64 count = (i64)row[1];
    const T *p = (const T *)row[2];
    const G *g = (const G *)row[3];
    T *p_out = (T *)made[0];
    Numbers numbers(row);
#pragma unroll
    for (int j = 0; j < NORMS; ++j) {  // every block adds up its tensor's in the same order
        f64 sum = 0;
        for (i64 i = (i64)row[0] + threadIdx.x; i < end_block(table, row); i += 256) sum += partial[i * NORMS + j];
        numbers.s[SCALARS + j] = sqrt(over_block(sum, Sum(), 0.0));
    }
    const Rule rule(numbers.t, numbers.rate, numbers.s, numbers.n);
    for (i64 i = share.begin; i < count; i += share.stride) {
        if (i + V <= count) {
            auto parameters = load<V>(p + i);
            Pack<T, V> moments[KEPT];
#pragma unroll
            for (int j = 0; j < MOMENTS; ++j) moments[j] = load<V>((const T *)row[4 + j] + i);
            const auto gradients = load<V>(g + i);
#pragma unroll
            for (int k = 0; k < V; ++k) {
                T m[KEPT];
#pragma unroll
                for (int j = 0; j < MOMENTS; ++j) m[j] = moments[j].v[k];
                rule.step(parameters.v[k], (T)widen(gradients.v[k]), m);
#pragma unroll
                for (int j = 0; j < MOMENTS; ++j) moments[j].v[k] = m[j];
            }
            store<V>(p_out + i, parameters);
#pragma unroll
            for (int j = 0; j < MOMENTS; ++j) store<V>((T *)made[1 + j] + i, moments[j]);
        } else {
            for (i64 k = i; k < count; ++k) {
                T parameter = p[k], m[KEPT];
                for (int j = 0; j < MOMENTS; ++j) m[j] = ((const T *)row[4 + j])[k];
                rule.step(parameter, (T)widen(g[k]), m);
                p_out[k] = parameter;
                for (int j = 0; j < MOMENTS; ++j) ((T *)made[1 + j])[k] = m[j];
            }
        }
    }
}

#if COUNTED || SCALARS
extern "C" __global__ void state_foreach(const __grid_constant__ Table table)
{
    for (int i = blockIdx.x * 32 + threadIdx.x; i < PARTS; i += gridDim.x * 32) {
        const u64 *row = table.v + i * WIDTH, *made = row + 6 + 2 * MOMENTS + SCALARS + COUNTED;
#if SCALARS
        const Numbers numbers(row);
        f64 after[SCALARS];
        advance(numbers.t, numbers.rate, numbers.s, numbers.n, after);
        for (int j = 0; j < SCALARS; ++j) ((f64 *)made[j])[0] = after[j];
#endif
#if COUNTED
        ((i64 *)made[SCALARS])[0] = ((const i64 *)row[4 + MOMENTS + SCALARS])[0] + 1;
#endif
    }
}
#endif
