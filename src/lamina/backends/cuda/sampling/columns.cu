// Windows of images as columns, and columns summed into images, over three spatial axes (unused ones have size 1).
//
// x is [planes, D, H, W], columns are [planes, taps, OD, OH, OW], and both are row-major.
//
// Constants: T (im2col: an unsigned type of the elements' size), Index, V (adjacent columns of a thread: they are stored
// at once), KD KH KW (kernel), SD SH SW (stride), PD PH PW (padding before), JD JH JW (dilation), and which kernel it is.
// Of the parameter SIZES: TOTAL (what is looped over), D H W (of images), OD OH OW (positions; RUNS are OW / V), and
// quotients by_D(n), ... of these.
//
// Expected of im2col: its time is that of writing the columns once, as the image is a prod(kernel)-th of them and its
// other reads are in the caches: 231 MB at 4.3 TB/s are 54 us for the 64x32x56x56 of float32 and 3x3 of
// benchmarks/op_families.py. col2im reads as much, and writes the image.
typedef Wide<T>::type A;

// The last of the sizes that `rest` is still made of, and what is left.
#define NEXT(v, size, quotient)                                                                                      \
    const Index over_##v = quotient(rest), v = rest - over_##v * size;                                               \
    rest = over_##v;
#define INSIDE(v, size) ((v) >= 0 && (v) < (Index)(size))
#define TAPS (KD * KH * KW)

#ifdef IM2COL
extern "C" __global__ void __launch_bounds__(256) im2col(const T *x, T *y, SIZES)
{
    FOR_EACH (t, TOTAL) {
        Index rest = t;
        NEXT(run, RUNS, by_RUNS) NEXT(h, OH, by_OH) NEXT(d, OD, by_OD)
        const Index tap = rest % TAPS, plane = rest / TAPS;
        const Index xd = d * SD - PD + tap / (KH * KW) * JD, xh = h * SH - PH + tap / KW % KH * JH;
        const Index xw = run * V * SW - PW + tap % KW * JW;
        const bool there = INSIDE(xd, D) && INSIDE(xh, H);
        const T *row = x + (there ? ((plane * D + xd) * H + xh) * W : 0);
        Pack<T, V> made;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const Index at = xw + v * SW;
            made.v[v] = there && INSIDE(at, W) ? row[at] : (T)0;
        }
        store<V>(y + t * V, made);
    }
}
#endif

#ifdef COL2IM
// A thread per element: it adds what lies on it, tap by tap. Adjacent threads read adjacent columns.
extern "C" __global__ void __launch_bounds__(256) col2im(const T *columns, T *y, SIZES)
{
    FOR_EACH (t, TOTAL) {
        Index rest = t;
        NEXT(w, W, by_W) NEXT(h, H, by_H) NEXT(d, D, by_D)
        const T *own = columns + rest * TAPS * OD * OH * OW;
        A sum = 0;
#pragma unroll 1
        for (int kd = 0; kd < KD; kd++) {
            const Index ud = d + PD - (Index)kd * JD, od = ud / SD;
            if (ud < 0 || od * SD != ud || od >= OD) continue;
#pragma unroll 4
            for (int kh = 0; kh < KH; kh++) {
                const Index uh = h + PH - (Index)kh * JH, oh = uh / SH;
                if (uh < 0 || oh * SH != uh || oh >= OH) continue;
#pragma unroll 8
                for (int kw = 0; kw < KW; kw++) {
                    const Index uw = w + PW - (Index)kw * JW, ow = uw / SW, tap = (kd * KH + kh) * KW + kw;
                    if (uw < 0 || ow * SW != uw || ow >= OW) continue;
                    sum += (A)widen(own[((tap * OD + od) * OH + oh) * OW + ow]);
                }
            }
        }
        y[t] = narrow<T>(sum);
    }
}
#endif
