// Rows of a matrix in another order, zeros where there is none.
//
// Constants: W (a word of the rows), Index, COUNT (rows that are written), ROWS (rows that are read), WIDTH (words of a row).
extern "C" __global__ void __launch_bounds__(256) take_rows(const W *x, const i64 *index, W *y)
{
    FOR_EACH (i, (Index)COUNT * WIDTH) {
        const i64 row = index[i / (Index)WIDTH];
        W word = {};
        if (row >= 0 && row < ROWS) word = x[(Index)row * (Index)WIDTH + i % (Index)WIDTH];
        y[i] = word;
    }
}
