// Optimizer steps over one tensor or many, in place where the outputs are the inputs. Constants: T (parameters and
// moments), G (gradient), V (elements per access), and the rule's numbers; for many tensors PARTS and WIDTH.
// Expressions follow the cards' definitions.
#ifdef PARTS
#include "foreach.cuh"
#endif
#define BEGIN (((i64)blockIdx.x * 256 + threadIdx.x) * V)
#define STRIDE ((i64)gridDim.x * 256 * V)

struct Sgd {
    static __device__ __forceinline__ void step(T &p, T g, T &m, T rate)
    {
        T d = g + (T)WEIGHT_DECAY * p;
#if HAS_MOMENTUM
        m = (T)MOMENTUM * m + (T)(1 - DAMPENING) * d;
        d = NESTEROV ? d + (T)MOMENTUM * m : m;
#endif
        p = p - rate * d;
    }
};

struct Adam {
    static __device__ __forceinline__ void step(T &p, T g, T &m, T &v, T size, T root_correction, T decay)
    {
        T d = g;
#if DECOUPLED
        p = p * decay;
#else
        d = d + (T)WEIGHT_DECAY * p;
#endif
        m = (T)BETA1 * m + (T)(1 - BETA1) * d;
        v = (T)BETA2 * v + (T)(1 - BETA2) * d * d;
        p = p - size * m / (sqrt(v) / root_correction + (T)EPS);
    }
};

#ifdef SGD
__device__ __forceinline__ void sgd(const T *p, const G *g, const T *m, const f32 *rate, T *p_out, T *m_out, i64 count,
                                    i64 begin, i64 stride)
{
    const T size = (T)rate[0];
    for (i64 i = begin; i < count; i += stride) {
        if (i + V <= count) {
            auto parameters = load<V>(p + i), moments = load<V>(m + i);
            const auto gradients = load<V>(g + i);
#pragma unroll
            for (int k = 0; k < V; ++k) Sgd::step(parameters.v[k], (T)widen(gradients.v[k]), moments.v[k], size);
            store<V>(p_out + i, parameters);
            store<V>(m_out + i, moments);
        } else {
            for (i64 k = i; k < count; ++k) {
                T parameter = p[k], moment = m[k];
                Sgd::step(parameter, (T)widen(g[k]), moment, size);
                p_out[k] = parameter;
                m_out[k] = moment;
            }
        }
    }
}

#ifdef PARTS
// Rows: first block, count, p, g, m, rate, p_out, m_out.
extern "C" __global__ void __launch_bounds__(256) sgd_group(const __grid_constant__ Table table)
{
    const u64 *row = row_of(table);
    const Share share(table, row);
    sgd((const T *)row[2], (const G *)row[3], (const T *)row[4], (const f32 *)row[5], (T *)row[6], (T *)row[7],
        (i64)row[1], share.begin, share.stride);
}
#else
extern "C" __global__ void __launch_bounds__(256)
sgd_update(const T *p, const G *g, const T *m, const f32 *rate, T *p_out, T *m_out, i64 count)
{
    sgd(p, g, m, rate, p_out, m_out, count, BEGIN, STRIDE);
}
#endif
#endif

#ifdef ADAM
// Every thread reads the step count; `adam_count` moves it on in a launch of its own, after all have read it.
__device__ __forceinline__ void adam(const T *p, const G *g, const T *m, const T *v, const i64 *step, const f32 *rate,
                                     T *p_out, T *m_out, T *v_out, i64 count, i64 begin, i64 stride)
{
    const f64 t = (f64)(step[0] + 1), lr = (f64)rate[0];
    const T size = (T)(lr / (1.0 - pow((f64)BETA1, t))), root = (T)sqrt(1.0 - pow((f64)BETA2, t));
    const T decay = (T)(1.0 - lr * (f64)WEIGHT_DECAY);
    for (i64 i = begin; i < count; i += stride) {
        if (i + V <= count) {
            auto parameters = load<V>(p + i), first = load<V>(m + i), second = load<V>(v + i);
            const auto gradients = load<V>(g + i);
#pragma unroll
            for (int k = 0; k < V; ++k)
                Adam::step(parameters.v[k], (T)widen(gradients.v[k]), first.v[k], second.v[k], size, root, decay);
            store<V>(p_out + i, parameters);
            store<V>(m_out + i, first);
            store<V>(v_out + i, second);
        } else {
            for (i64 k = i; k < count; ++k) {
                T parameter = p[k], first = m[k], second = v[k];
                Adam::step(parameter, (T)widen(g[k]), first, second, size, root, decay);
                p_out[k] = parameter;
                m_out[k] = first;
                v_out[k] = second;
            }
        }
    }
}

#ifdef PARTS
// Rows: first block, count, p, g, m, v, step, rate, p_out, m_out, v_out, step_out.
extern "C" __global__ void __launch_bounds__(256) adam_group(const __grid_constant__ Table table)
{
    const u64 *row = row_of(table);
    const Share share(table, row);
    adam((const T *)row[2], (const G *)row[3], (const T *)row[4], (const T *)row[5], (const i64 *)row[6],
         (const f32 *)row[7], (T *)row[8], (T *)row[9], (T *)row[10], (i64)row[1], share.begin, share.stride);
}

extern "C" __global__ void adam_count_group(const __grid_constant__ Table table)
{
    for (int i = blockIdx.x * 32 + threadIdx.x; i < PARTS; i += gridDim.x * 32) {
        const u64 *row = table.v + i * WIDTH;
        ((i64 *)row[11])[0] = ((const i64 *)row[6])[0] + 1;
    }
}
#else
extern "C" __global__ void __launch_bounds__(256)
adam_update(const T *p, const G *g, const T *m, const T *v, const i64 *step, const f32 *rate, T *p_out, T *m_out,
            T *v_out, i64 count)
{
    adam(p, g, m, v, step, rate, p_out, m_out, v_out, count, BEGIN, STRIDE);
}

extern "C" __global__ void adam_count(const i64 *step, i64 *step_out)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) step_out[0] = step[0] + 1;
}
#endif
#endif
