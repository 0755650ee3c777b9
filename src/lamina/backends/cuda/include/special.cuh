// Functions that CUDA's mathematics lacks, and integer arithmetic that is the same as NumPy's. Where the formulas come
// from stands in ops/primitives/special.py.
#pragma once

#define SPECIAL_PI 3.14159265358979323846

// ---- integers; what is divided by 0 is 0
template <class T> __device__ __forceinline__ T trunc_mod(T a, T b)
{
    return b == (T)0 || (b == (T)-1 && (T)-1 < (T)0) ? (T)0 : (T)(a % b);
}
template <class T> __device__ __forceinline__ T trunc_div(T a, T b)
{
    return b == (T)0 ? (T)0 : b == (T)-1 && (T)-1 < (T)0 ? (T)(0 - a) : (T)(a / b);
}
template <class T> __device__ __forceinline__ T floor_mod(T a, T b)
{
    const T rest = b == (T)-1 && (T)-1 < (T)0 ? (T)0 : b == (T)0 ? (T)0 : (T)(a % b);
    return rest != (T)0 && (rest < (T)0) != (b < (T)0) ? (T)(rest + b) : rest;
}
template <class T> __device__ __forceinline__ T floor_div(T a, T b)
{
    const T found = trunc_div(a, b);
    return b != (T)0 && found * b != a && (a < (T)0) != (b < (T)0) ? (T)(found - 1) : found;
}
template <class T> __device__ __forceinline__ T common_divisor(T a, T b)
{
    a = magnitude(a), b = magnitude(b);
    while (b != (T)0) {
        const T rest = (T)(a % b);
        a = b;
        b = rest;
    }
    return a;
}
template <class T> __device__ __forceinline__ T shifted_up(T a, T b)
{
    return b >= (T)0 && (int)b < (int)(8 * sizeof(T)) && b < (T)127 ? (T)((u64)a << (int)b) : (T)0;
}
template <class T> __device__ __forceinline__ T shifted_down(T a, T b)
{
    const int most = 8 * sizeof(T) - 1;
    const bool inside = b >= (T)0 && b < (T)127 && (int)b <= most;
    if (inside) return (T)(a >> (int)b);
    return (T)-1 < (T)0 ? (T)(a >> most) : (T)0;
}
template <class T> __device__ __forceinline__ T whole_power(T a, T b)
{
    if (b < (T)0) return a == (T)1 ? (T)1 : a == (T)-1 ? (b & (T)1 ? (T)-1 : (T)1) : (T)0;
    T found = (T)1;
    for (; b > (T)0; b = (T)(b >> 1), a = (T)(a * a))
        if (b & (T)1) found = (T)(found * a);
    return found;
}

// ---- floats
__device__ __forceinline__ f32 trunc_mod(f32 a, f32 b) { return fmodf(a, b); }
__device__ __forceinline__ f64 trunc_mod(f64 a, f64 b) { return fmod(a, b); }
__device__ __forceinline__ f32 trunc_div(f32 a, f32 b) { return truncf(a / b); }
__device__ __forceinline__ f64 trunc_div(f64 a, f64 b) { return trunc(a / b); }
template <class T> __device__ __forceinline__ T floor_mod_of(T a, T b)
{
    const T rest = trunc_mod(a, b);
    return rest != 0 ? ((rest < 0) != (b < 0) ? rest + b : rest) : (b < 0 ? (T)-0.0 : (T)0);
}
__device__ __forceinline__ f32 floor_mod(f32 a, f32 b) { return floor_mod_of(a, b); }
__device__ __forceinline__ f64 floor_mod(f64 a, f64 b) { return floor_mod_of(a, b); }
// The quotient less the rest, which is near a whole number: rounded to that one.
__device__ __forceinline__ f64 floor_div(f64 a, f64 b)
{
    if (b == 0) return a / b;
    const f64 rest = fmod(a, b), near = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
    if (near == 0) return a / b < 0 ? -0.0 : 0.0;
    const f64 whole = floor(near);
    return near - whole > 0.5 ? whole + 1 : whole;
}
__device__ __forceinline__ f32 floor_div(f32 a, f32 b)
{
    if (b == 0) return a / b;
    const f32 rest = fmodf(a, b), near = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
    if (near == 0) return a / b < 0 ? -0.0f : 0.0f;
    const f32 whole = floorf(near);
    return near - whole > 0.5f ? whole + 1 : whole;
}
__device__ __forceinline__ f64 log_sum(f64 a, f64 b)
{
    return a == b ? a + 0.69314718055994530942 : a > b ? a + log1p(exp(b - a)) : a < b ? b + log1p(exp(a - b)) : a + b;
}
__device__ __forceinline__ f32 log_sum(f32 a, f32 b)
{
    return a == b ? a + 0.693147181f : a > b ? a + log1pf(expf(b - a)) : a < b ? b + log1pf(expf(a - b)) : a + b;
}
__device__ __forceinline__ f64 sine_ratio(f64 x) { return x == 0 ? 1 : sin(SPECIAL_PI * x) / (SPECIAL_PI * x); }
// Where pi x is past the type's range the quotient is NaN, as that of the sine of an infinity.
__device__ __forceinline__ f32 sine_ratio(f32 x)
{
    const f32 angle = (f32)SPECIAL_PI * x;
    return x == 0 ? 1 : (f32)sin(SPECIAL_PI * x) / angle + 0 * angle;
}

__device__ inline f64 inverse_error_function(f64 x)
{
    const f64 size = fabs(x);
    if (!(size < 1)) return size == 1 ? x * INFINITY_F : INFINITY_F - INFINITY_F;
    const f64 rest = log((1 - size) * (1 + size)), half = 2 / (SPECIAL_PI * 0.147) + rest / 2;
    f64 y = sqrt(sqrt(half * half - rest / 0.147) - half);
    for (int k = 0; k < 3; k++) {
        const f64 error = size < 0.5 ? erf(y) - size : (1 - size) - erfc(y);
        const f64 ratio = error * exp(y * y) * 0.88622692545275801365;
        y -= ratio / (1 + y * ratio);
    }
    return x < 0 ? -y : y;
}
__device__ inline f32 inverse_error_function(f32 x) { return (f32)inverse_error_function((f64)x); }

__device__ inline f64 digamma(f64 x)
{
    if (x == 0) return copysign((f64)INFINITY_F, -x);
    f64 found = 0;
    if (x < 0) {
        const f64 apart = x - rint(x);
        if (apart == 0) return INFINITY_F - INFINITY_F;
        found = -SPECIAL_PI / tan(SPECIAL_PI * apart);
        x = 1 - x;
    }
    for (; x < 10; x += 1) found -= 1 / x;
    if (x == INFINITY_F) return found + x;
    const f64 q = 1 / (x * x);
    const f64 series = q * (1.0 / 12 - q * (1.0 / 120 - q * (1.0 / 252 - q * (1.0 / 240 - q * (1.0 / 132 - q * (691.0 / 32760 - q / 12))))));
    return found + log(x) - 0.5 / x - series;
}
__device__ inline f32 digamma(f32 x) { return (f32)digamma((f64)x); }

__device__ inline f64 zeta_far(int s, f64 a)
{
    const f64 bernoulli[7] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730, 7.0 / 6};
    f64 found = pow(a, 1.0 - s) / (s - 1) + 0.5 * pow(a, -(f64)s), factor = s, whole = 2;
    for (int n = 1; n <= 7; n++) {
        found += bernoulli[n - 1] / whole * factor * pow(a, -(f64)(s + 2 * n - 1));
        factor *= (f64)(s + 2 * n - 1) * (s + 2 * n);
        whole *= (2 * n + 1) * (2 * n + 2);
    }
    return found;
}
__device__ inline f64 polygamma(int n, f64 x)
{
    const int s = n + 1;
    if (x == INFINITY_F) return 0;
    if (x <= 0 && x == rint(x)) return s % 2 == 0 ? INFINITY_F : INFINITY_F - INFINITY_F;
    f64 found = 0;
    if (x < -10) {
        const f64 steps = floor(-10 - x) + 1, at = x + steps, far = 1 - at;
        found = zeta_far(s, far) - zeta_far(s, far + steps);
        if (s % 2) found = -found;
        x = at;
    }
    for (; x < 10; x += 1) found += pow(x, -(f64)s);
    found += zeta_far(s, x);
    for (int k = 2; k <= n; k++) found *= k;
    return s % 2 == 0 ? found : -found;
}
__device__ inline f32 polygamma(int n, f32 x) { return (f32)polygamma(n, (f64)x); }
