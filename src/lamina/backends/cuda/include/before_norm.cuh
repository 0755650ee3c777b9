// What is normalized: x, or with BEFORE a function of it that comes with the constants. With BEFORE_GRAD the gradient of x
// is before_grad(x, that of what is normalized). A: the type of statistics.
#pragma once
#ifdef BEFORE
#define GIVEN(v) before((A)widen(v))
#else
#define GIVEN(v) ((A)widen(v))
#endif
#ifdef BEFORE_GRAD
#define LEAVING(v, d) before_grad((A)widen(v), d)
#else
#define LEAVING(v, d) (d)
#endif
