// Optimizer steps over one tensor or many, in place where the outputs are the inputs. Constants: T (parameters and
// moments), G (gradient), V (elements per access), MOMENTS (how many), COUNTED (whether steps are counted), PARTS, WIDTH,
// and `struct Rule`: the numbers of a step, made once by each thread, and the step of one element.
#include "foreach.cuh"
#define KEPT (MOMENTS ? MOMENTS : 1)

// Rows: first block, count, p, g, moments, step where they are counted, rate, p_out, moments_out, step_out.
// Every thread reads the step count; `count_foreach` moves it on in a launch of its own, after all have read it.
extern "C" __global__ void __launch_bounds__(256) update_foreach(const __grid_constant__ Table table)
{
    const u64 *row = row_of(table), *behind = row + 4 + MOMENTS;
    const Share share(table, row);
    const i64 count = (i64)row[1];
    const T *p = (const T *)row[2];
    const G *g = (const G *)row[3];
    T *p_out = (T *)behind[1 + COUNTED];
    const Rule rule(COUNTED ? (f64)(((const i64 *)behind[0])[0] + 1) : 0.0, (f64)((const f32 *)behind[COUNTED])[0]);
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
            for (int j = 0; j < MOMENTS; ++j) store<V>((T *)behind[2 + COUNTED + j] + i, moments[j]);
        } else {
            for (i64 k = i; k < count; ++k) {
                T parameter = p[k], m[KEPT];
                for (int j = 0; j < MOMENTS; ++j) m[j] = ((const T *)row[4 + j])[k];
                rule.step(parameter, (T)widen(g[k]), m);
                p_out[k] = parameter;
                for (int j = 0; j < MOMENTS; ++j) ((T *)behind[2 + COUNTED + j])[k] = m[j];
            }
        }
    }
}

#if COUNTED
extern "C" __global__ void count_foreach(const __grid_constant__ Table table)
{
    for (int i = blockIdx.x * 32 + threadIdx.x; i < PARTS; i += gridDim.x * 32) {
        const u64 *behind = table.v + i * WIDTH + 4 + MOMENTS;
        ((i64 *)behind[3 + MOMENTS])[0] = ((const i64 *)behind[0])[0] + 1;
    }
}
#endif
