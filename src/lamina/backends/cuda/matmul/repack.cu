// Copies matrices into ones with longer or shorter rows, and more or fewer of them: what is beyond the origin is zero.
//
// Each thread makes 16 aligned bytes of the result. In the origin these begin anywhere: they are cut out of the two
// aligned pieces of 16 bytes that they lie in, of which a neighbour's read has the other half in the cache.
// Constants: Index, T (bits of an element), V (elements in 16 bytes), BATCH, FROM_ROWS, FROM (columns), TO_ROWS, TO.

#define FROM_TOTAL ((Index)BATCH * FROM_ROWS * FROM)
#define TO_TOTAL ((Index)BATCH * TO_ROWS * TO)
#define SHARED_COLUMNS (FROM < TO ? FROM : TO)

struct alignas(16) Piece { u64 low, high; };

// 16 bytes from the byte `shift` of the first piece on.
__device__ __forceinline__ Piece cut(Piece a, Piece b, int shift)
{
    if (shift >= 8) {
        a = {a.high, b.low};
        b = {b.high, 0};
        shift -= 8;
    }
    if (shift == 0) return a;
    const int right = 8 * shift, left = 64 - right;
    return {a.low >> right | a.high << left, a.high >> right | b.low << left};
}

__device__ __forceinline__ T element(const T *from, Index i)
{
    const Index column = i % TO, row = i / TO % TO_ROWS, batch = i / TO / TO_ROWS;
    return column < FROM && row < FROM_ROWS ? from[(batch * FROM_ROWS + row) * FROM + column] : (T)0;
}

extern "C" __global__ void __launch_bounds__(256) repack(const T *from, T *to)
{
    FOR_EACH(t, (TO_TOTAL + V - 1) / V) {
        const Index first = t * V, column = first % TO, row = first / TO % TO_ROWS, batch = first / TO / TO_ROWS;
        const Index origin = (batch * FROM_ROWS + row) * FROM + column, piece = origin / V * V;
        const int shift = (int)(origin % V) * (int)sizeof(T);
        const Index end = piece + (shift ? 2 * V : V);
        if (column + V <= SHARED_COLUMNS && row < FROM_ROWS && end <= FROM_TOTAL) {
            const Piece *pieces = reinterpret_cast<const Piece *>(from + piece);
            const Piece a = pieces[0], b = shift ? pieces[1] : a;
            *reinterpret_cast<Piece *>(to + first) = cut(a, b, shift);
        } else if (first + V <= TO_TOTAL) {
            Pack<T, V> pack;
#pragma unroll
            for (int k = 0; k < V; ++k) pack.v[k] = element(from, first + k);
            store<V>(to + first, pack);
        } else {
            for (Index i = first; i < TO_TOTAL; ++i) to[i] = element(from, i);
        }
    }
}
