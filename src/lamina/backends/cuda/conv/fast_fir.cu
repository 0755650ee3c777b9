// A convolution as three of half as many taps on half as many rows (conv_halves.py): sums of rows and taps before them,
// and what joins their results. All tensors lie channels last, so that a row is one piece.
//
// Constants: Index, T, V (elements that a thread moves at once), N (images), K (filters), LOW (rows of zeros before the
// image), X_ROWS, X_ROW (rows of an image, elements of one), TAPS, TAP (taps along rows, elements of one), PAIRS (rows
// of sums), Y_ROWS, Y_ROW (the result's), P_ROWS, Q_ROWS, S_ROWS (the three parts'; their rows are as long), WALK
// (pairs of rows that a thread joins).
typedef Pack<T, V> Some;

__device__ __forceinline__ Some zeros()
{
    Some none;
#pragma unroll
    for (int i = 0; i < V; ++i) none.v[i] = narrow<T>(0.0f);
    return none;
}

__device__ __forceinline__ Some sum(const Some &a, const Some &b)
{
    Some both;
#pragma unroll
    for (int i = 0; i < V; ++i) both.v[i] = narrow<T>(widen(a.v[i]) + widen(b.v[i]));
    return both;
}

// Row `row` of an image, zeros outside of it.
__device__ __forceinline__ Some row_of(const T *image, Index row, Index place)
{
    return row >= 0 && row < X_ROWS ? load<V>(image + row * X_ROW + place) : zeros();
}

// pairs[n][m] = z[2 m] + z[2 m + 1], z the image with LOW rows of zeros before it.
extern "C" __global__ void __launch_bounds__(256) pair_rows(const T *x, T *pairs)
{
    FOR_EACH(t, (Index)N * PAIRS * (X_ROW / V)) {
        const Index place = t % (X_ROW / V) * V, m = t / (X_ROW / V) % PAIRS, n = t / (X_ROW / V) / PAIRS;
        const T *image = x + n * X_ROWS * X_ROW;
        store<V>(pairs + t * V, sum(row_of(image, 2 * m - LOW, place), row_of(image, 2 * m - LOW + 1, place)));
    }
}

// Even taps, odd taps, and their sums (the last even one alone where taps are odd).
extern "C" __global__ void __launch_bounds__(256) halve_taps(const T *w, T *even, T *odd, T *both)
{
    const Index pairs = (TAPS + 1) / 2;
    FOR_EACH(t, (Index)K * pairs * (TAP / V)) {
        const Index place = t % (TAP / V) * V, j = t / (TAP / V) % pairs, k = t / (TAP / V) / pairs;
        const T *tap = w + (k * TAPS + 2 * j) * TAP + place;
        const Some a = load<V>(tap);
        Some b = zeros();
        if (2 * j + 1 < TAPS) {
            b = load<V>(tap + TAP);
            store<V>(odd + (k * (TAPS / 2) + j) * TAP + place, b);
        }
        store<V>(even + t * V, a);
        store<V>(both + t * V, sum(a, b));
    }
}

// y[2 m] = s[m] - p[m] - q[m], y[2 m + 1] = p[m] + q[m + 1]. A thread reads all before it writes.
extern "C" __global__ void __launch_bounds__(256) join_rows(const T *p, const T *q, const T *s, T *y)
{
    const Index rows = (Y_ROWS + 1) / 2, walks = (rows + WALK - 1) / WALK;
    FOR_EACH(t, (Index)N * walks * (Y_ROW / V)) {
        const Index place = t % (Y_ROW / V) * V, first = t / (Y_ROW / V) % walks * WALK, n = t / (Y_ROW / V) / walks;
        Some ps[WALK], ss[WALK], qs[WALK + 1];
#pragma unroll
        for (int i = 0; i < WALK; ++i)
            if (first + i < rows) {
                ps[i] = load<V>(p + (n * P_ROWS + first + i) * Y_ROW + place);
                ss[i] = load<V>(s + (n * S_ROWS + first + i) * Y_ROW + place);
            }
#pragma unroll
        for (int i = 0; i <= WALK; ++i)
            if (first + i < Q_ROWS) qs[i] = load<V>(q + (n * Q_ROWS + first + i) * Y_ROW + place);
#pragma unroll
        for (int i = 0; i < WALK; ++i) {
            const Index row = 2 * (first + i);
            Some even, odd;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                even.v[k] = narrow<T>(widen(ss[i].v[k]) - widen(ps[i].v[k]) - widen(qs[i].v[k]));
                odd.v[k] = narrow<T>(widen(ps[i].v[k]) + widen(qs[i + 1].v[k]));
            }
            T *to = y + (n * Y_ROWS + row) * Y_ROW + place;
            if (row < Y_ROWS) store<V>(to, even);
            if (row + 1 < Y_ROWS) store<V>(to + Y_ROW, odd);
        }
    }
}
