// Convolution with one filter per channel, and its data gradient, for as many taps as registers hold; channels last.
//
// A thread has V channels and TW columns of the result, keeps its filters in registers, and goes down the rows of what
// is read. A row is read once, one row ahead of its turn, and added to the sums of all rows of the result that it
// meets: sum[0] is the newest of DEPTH groups of rows, sum[DEPTH - 1] is written and gives way.
//
// A step reads READ rows (the forward convolution's stride) or writes WRITTEN rows (the data gradient's); the other
// is 1. Which tap meets which place of a step is known when the kernel is compiled:
//
//     kh = ROW_BASE + ROW_STEP * group + row that is read + row that is written
//     kw = COLUMN_BASE + COLUMN_READ * column that is read + COLUMN_WRITTEN * column that is written
//
// Constants beside these: Index, T, V, TW, THREADS, RESIDENT (blocks per multiprocessor), DEPTH, C, KH, KW, IN_H, IN_W,
// IN_IMAGE, IN_ROW, IN_COLUMN (from one to the next of what is read, perhaps a part of images with more channels),
// OUT_H, OUT_W, ROW_FIRST (the first row that step 0 reads), ENTERS, LEAVES (the first step with a row inside of the
// image, the first one beyond it), COLUMNS (how many are read), COLUMN_UP, COLUMN_DOWN, COLUMN_FIRST (the first of
// them: the strip's first * UP / DOWN + FIRST), STRIPS (along a row), STEPS (groups of rows of the result), SPAN (of
// them in one walk), WALKS (down an image), WORK (walks of one channel in all), BIAS. A function `activated` of a sum.
// Threads in all are a multiple of C / V, so that each keeps its channels.
#include "depthwise.cuh"
#define CHUNKS (C / V)
#define ROW_TAP(group, read, written) (ROW_BASE + ROW_STEP * (group) + (read) + (written))
#define COLUMN_TAP(read, written) (COLUMN_BASE + COLUMN_READ * (read) + COLUMN_WRITTEN * (written))
// Whether a column is inside of the image for some strip.
#define COUNTS(read) (STRIPS > 1 || (COLUMN_FIRST + (read) >= 0 && COLUMN_FIRST + (read) < IN_W))

typedef f32 Filters[KH][KW][V];
typedef f32 Sums[DEPTH][WRITTEN][TW][V];

// The filters of the block's threads, each V * KH * KW elements that lie together, through shared memory.
__device__ __forceinline__ void read_filters(const T *filter, Filters &f)
{
    constexpr int own = V * KH * KW, turn = THREADS % (C * KH * KW);
    __shared__ T staged[THREADS * own];
    u32 at = (u32)(((u64)blockIdx.x * THREADS % CHUNKS * own + threadIdx.x) % (C * KH * KW));
#pragma unroll
    for (int i = 0; i < own; ++i) {
        staged[i * THREADS + threadIdx.x] = filter[at];
        at += turn;
        if (at >= C * KH * KW) at -= C * KH * KW;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < own; ++i)
        f[i / KW % KH][i % KW][i / (KH * KW)] = widen(staged[threadIdx.x * own + i]);
}

// The groups move on: the oldest goes, the newest begins with the bias.
__device__ __forceinline__ void move_on(Sums &sum, const f32 (&base)[V])
{
#pragma unroll
    for (int group = DEPTH - 1; group >= 0; --group)
#pragma unroll
        for (int i = 0; i < WRITTEN * TW * V; ++i) {
            const int o = i / (TW * V), j = i / V % TW, v = i % V;
            sum[group][o][j][v] = group ? sum[group - 1][o][j][v] : base[v];
        }
}

// Adds row `read` of a step.
__device__ __forceinline__ void add_row(Sums &sum, const f32 (&row)[COLUMNS][V], const Filters &f, int read)
{
#pragma unroll
    for (int group = DEPTH - 1; group >= 0; --group)
#pragma unroll
        for (int o = 0; o < WRITTEN; ++o) {
            const int kh = ROW_TAP(group, read, o);
            if (kh < 0 || kh >= KH) continue;
#pragma unroll
            for (int e = 0; e < COLUMNS; ++e)
#pragma unroll
                for (int j = 0; j < TW; ++j) {
                    const int kw = COLUMN_TAP(e, j);
                    if (kw < 0 || kw >= KW || !COUNTS(e)) continue;
#pragma unroll
                    for (int v = 0; v < V; ++v) sum[group][o][j][v] += row[e][v] * f[kh][kw][v];
                }
        }
}

// The oldest group as rows from `h` on, its first column at `place`.
__device__ __forceinline__ void write(T *place, const Sums &sum, int h, int first)
{
#pragma unroll
    for (int o = 0; o < WRITTEN; ++o)
#pragma unroll
        for (int j = 0; j < TW; ++j) {
            if (h + o >= OUT_H || first + j >= OUT_W) continue;
            f32 values[V];
#pragma unroll
            for (int v = 0; v < V; ++v) values[v] = activated(sum[DEPTH - 1][o][j][v]);
            T *p = place + ((Index)o * OUT_W + j) * C;
            if (V == 2) *(u32 *)p = narrow_two(values[0], values[V - 1], T{});
            else *p = narrow<T>(values[0]);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    depthwise_rows(const T *__restrict__ in, const T *__restrict__ filter, const T *__restrict__ bias, T *__restrict__ out)
{
    const Index id = (Index)blockIdx.x * THREADS + threadIdx.x;
    const int channel = (int)(id % CHUNKS) * V;
    Filters f;
    f32 base[V];
    read_filters(filter, f);
#pragma unroll
    for (int v = 0; v < V; ++v) base[v] = BIAS ? widen(bias[channel + v]) : 0.0f;
    for (Index work = id / CHUNKS; work < WORK; work += (Index)gridDim.x * THREADS / CHUNKS) {
        const int first = (int)(work % STRIPS) * TW, from = (int)(work / STRIPS % WALKS) * SPAN;
        const Index n = work / STRIPS / WALKS;
        const int whole = from + DEPTH - 1;  // the first step that ends a group of the walk
        const int until = (from + SPAN < STEPS ? from + SPAN : STEPS) + DEPTH - 1;
        int step = ENTERS <= from ? from : ENTERS < whole ? ENTERS : whole;
        const int leaves = LEAVES < until ? LEAVES : until;
        const int column = first * COLUMN_UP / COLUMN_DOWN + COLUMN_FIRST;
        const u32 columns = inside_of<COLUMNS>(column, IN_W);
        int h = step * READ + ROW_FIRST;
        const T *place = in + n * IN_IMAGE + h * (Index)IN_ROW + column * (Index)IN_COLUMN + channel;
        T *written = out + ((n * OUT_H + (step - DEPTH + 1) * WRITTEN) * OUT_W + first) * C + channel;
        Sums sum;
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) move_on(sum, base);
        u32 ahead[COLUMNS];
        clear(ahead);
        read_columns<IN_COLUMN>(place, h >= 0 && h < IN_H, columns, ahead);
#pragma unroll 1
        for (; step < leaves; ++step) {
            move_on(sum, base);
#pragma unroll
            for (int read = 0; read < READ; ++read) {
                f32 row[COLUMNS][V];
#pragma unroll
                for (int e = 0; e < COLUMNS; ++e)
#pragma unroll
                    for (int v = 0; v < V; ++v) row[e][v] = channel_of(ahead[e], v);
                ++h;
                place += (Index)IN_ROW;
                read_columns<IN_COLUMN>(place, h >= 0 && h < IN_H, columns, ahead);
                add_row(sum, row, f, read);
            }
            if (step >= whole) write(written, sum, (step - DEPTH + 1) * WRITTEN, first);
            written += (Index)WRITTEN * OUT_W * C;
        }
#pragma unroll 1
        for (; step < until; ++step) {  // below the image
            move_on(sum, base);
            if (step >= whole) write(written, sum, (step - DEPTH + 1) * WRITTEN, first);
            written += (Index)WRITTEN * OUT_W * C;
        }
    }
}
