/* A libcuda.so.1 in software: one device whose memory is the host's and whose streams run at once.
 *
 * For testing, on machines without a GPU, the code that goes through NVIDIA's bindings. Copies, fills, events
 * and captured graphs work; of kernels there is one, `store(int *place, int value)`. Flags and sizes that the
 * driver's documentation forbids are refused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int Status;
typedef uintptr_t Pointer;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
enum { TOTAL = 1 << 30 };

static size_t used;
static char context[64];
static __thread void *current;

/* ---- the device */
Status cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
Status cuDriverGetVersion(int *version) { *version = 13000; return OK; }
Status cuDeviceGetCount(int *count) { *count = 1; return OK; }
Status cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID_DEVICE : OK; }
Status cuDeviceGetName(char *name, int length, int device)
{
    (void)device;
    strncpy(name, "Software device", length);
    return OK;
}
Status cuDeviceGetUuid_v2(char *uuid, int device) { (void)device; memset(uuid, 7, 16); return OK; }
Status cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = TOTAL; return OK; }
Status cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1024; /* compute capability 9.0 */
    return OK;
}
Status cuDeviceCanAccessPeer(int *can, int device, int peer) { (void)device; (void)peer; *can = 0; return OK; }

/* ---- the context */
Status cuDevicePrimaryCtxRetain(void **out, int device) { (void)device; *out = context; return OK; }
Status cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
Status cuCtxGetCurrent(void **out) { *out = current; return OK; }
Status cuCtxSetCurrent(void *ctx) { current = ctx; return OK; }
Status cuCtxPushCurrent_v2(void *ctx) { current = ctx; return OK; }
Status cuCtxPopCurrent_v2(void **ctx) { if (ctx) *ctx = current; return OK; }
Status cuCtxGetDevice(int *device) { *device = 0; return current ? OK : 201; }
Status cuCtxSynchronize(void) { return OK; }
Status cuCtxGetStreamPriorityRange(int *low, int *high) { *low = 0; *high = -5; return OK; }

/* ---- memory */
typedef struct { size_t bytes; char pad[504]; } Head; /* keeps what follows aligned to 512 */

static Status take(void **out, size_t bytes)
{
    Head *head;
    if (used + bytes > TOTAL) return OUT_OF_MEMORY;
    if (posix_memalign((void **)&head, 512, sizeof *head + bytes)) return OUT_OF_MEMORY;
    head->bytes = bytes;
    used += bytes;
    *out = head + 1;
    return OK;
}

static Status give(void *pointer)
{
    Head *head = (Head *)pointer - 1;
    used -= head->bytes;
    free(head);
    return OK;
}

Status cuMemAlloc_v2(void **out, size_t bytes) { return take(out, bytes); }
Status cuMemFree_v2(void *pointer) { return give(pointer); }
Status cuMemHostAlloc(void **out, size_t bytes, unsigned flags) { return flags > 7 ? INVALID_VALUE : take(out, bytes); }
Status cuMemFreeHost(void *pointer) { return give(pointer); }
Status cuMemAllocManaged(void **out, size_t bytes, unsigned flags)
{
    return flags != 1 && flags != 2 ? INVALID_VALUE : take(out, bytes); /* for all devices, or for the host */
}
Status cuMemGetInfo_v2(size_t *left, size_t *total) { *left = TOTAL - used; *total = TOTAL; return OK; }

/* ---- graphs: a list of copies, fills, stores and events */
enum { COPY, FILL, STORE, STAMP };
typedef struct { int kind, value; void *to; const void *from; size_t bytes; } Node;
typedef struct Stream Stream;
typedef struct Graph { int count, streams; struct Graph *from; Stream *stream[8]; Node nodes[64]; } Graph;
struct Stream { int priority; Graph *capture; };
typedef struct { double ms; Graph *capture; } Event; /* of a stream that captures: who waits for it joins */

/* The default streams go by the numbers 0, 1 and 2. */
static Stream *real(Stream *stream)
{
    static Stream defaults[3];
    return (Pointer)stream < 3 ? &defaults[(Pointer)stream] : stream;
}

static void stamp(Event *event)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->ms = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void run(const Node *node)
{
    if (node->kind == STAMP) stamp(node->to);
    else if (node->kind == STORE) *(int *)node->to = node->value;
    else if (node->kind == FILL) memset(node->to, node->value, node->bytes);
    else memmove(node->to, node->from, node->bytes);
}

static Status queue(Stream *stream, Node node)
{
    stream = real(stream);
    if (stream->capture) stream->capture->nodes[stream->capture->count++] = node;
    else run(&node);
    return OK;
}

Status cuMemcpyAsync(void *to, void *from, size_t bytes, Stream *stream)
{
    return queue(stream, (Node){ COPY, 0, to, from, bytes });
}
Status cuMemsetD8Async(void *to, unsigned char byte, size_t bytes, Stream *stream)
{
    return queue(stream, (Node){ FILL, byte, to, 0, bytes });
}

#define FILL_ROWS(name, Word)                                                                              \
    Status name(char *to, size_t pitch, Word value, size_t width, size_t height, Stream *stream)          \
    {                                                                                                      \
        (void)stream;                                                                                      \
        for (size_t y = 0; y < height; y++)                                                                \
            for (size_t x = 0; x < width; x++) ((Word *)(to + y * pitch))[x] = value;                      \
        return OK;                                                                                         \
    }
FILL_ROWS(cuMemsetD2D8Async, unsigned char)
FILL_ROWS(cuMemsetD2D16Async, unsigned short)
FILL_ROWS(cuMemsetD2D32Async, unsigned)
Status cuPointerGetAttribute(int *value, int attribute, void *pointer)
{
    (void)pointer;
    *value = 0;
    return attribute == 9 ? OK : INVALID_VALUE; /* the device's number */
}

typedef struct {
    size_t x, y, z, lod; unsigned type; const void *host; Pointer device; void *array, *reserved;
    size_t pitch, height;
} Side;
typedef struct { Side from, to; size_t width, height, depth; } Block;

enum { HOST = 1, UNIFIED = 4 };

static int is_good(const Side *side, const Block *b)
{
    Pointer address = side->type == HOST ? (Pointer)side->host : side->type == UNIFIED ? side->device : 0;
    return address && side->pitch >= b->width && side->height >= b->height && !side->x && !side->y && !side->z;
}

Status cuMemcpy3DAsync_v2(const Block *b, Stream *stream)
{
    if (!is_good(&b->to, b) || !is_good(&b->from, b)) return INVALID_VALUE;
    Pointer to = b->to.type == 1 ? (Pointer)b->to.host : b->to.device;
    Pointer from = b->from.type == 1 ? (Pointer)b->from.host : b->from.device;
    (void)stream;
    for (size_t z = 0; z < b->depth; z++)
        for (size_t y = 0; y < b->height; y++)
            memmove((void *)(to + (z * b->to.height + y) * b->to.pitch),
                    (void *)(from + (z * b->from.height + y) * b->from.pitch), b->width);
    return OK;
}

/* ---- the kernel */
Status cuLibraryLoadData(void **out) { *out = context; return OK; }
Status cuLibraryUnload(void *library) { (void)library; return OK; }
Status cuLibraryGetKernel(void **out, void *library, const char *name)
{
    *out = library;
    return strcmp(name, "store") ? NOT_FOUND : OK;
}
Status cuKernelGetLibrary(void **out, void *kernel) { *out = kernel; return OK; }
Status cuKernelGetParamInfo(void *kernel, size_t place, size_t *offset, size_t *bytes)
{
    (void)kernel;
    if (place > 1) return INVALID_VALUE;
    *offset = place ? 8 : 0;
    *bytes = place ? 4 : 8;
    return OK;
}
Status cuOccupancyMaxPotentialBlockSize(int *blocks, int *threads, void *kernel, void *shared_of, size_t shared, int limit)
{
    (void)kernel;
    if (shared_of || shared > 49152) return INVALID_VALUE;
    *blocks = 8;
    *threads = limit && limit < 768 ? limit : 768;
    return OK;
}
Status cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *kernel, int threads, size_t shared)
{
    (void)kernel;
    *blocks = shared > 24576 ? 1 : 2048 / threads;
    return OK;
}
Status cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, Stream *stream, void **arguments, void **extra)
{
    (void)kernel; (void)extra;
    if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024 || shared > 49152) return INVALID_VALUE;
    return queue(stream, (Node){ STORE, *(int *)arguments[1], *(void **)arguments[0], 0, 0 });
}

/* ---- streams and events */
Status cuStreamCreateWithPriority(Stream **out, unsigned flags, int priority)
{
    if (flags > 1) return INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    (*out)->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    return OK;
}
Status cuStreamDestroy_v2(Stream *stream) { free(stream); return OK; }
Status cuStreamSynchronize(Stream *stream) { (void)stream; return OK; }
Status cuStreamQuery(Stream *stream) { (void)stream; return OK; }
Status cuStreamGetPriority(Stream *stream, int *priority) { *priority = real(stream)->priority; return OK; }
Status cuStreamGetFlags(Stream *stream, unsigned *flags) { (void)stream; *flags = 1; return OK; }
Status cuStreamGetCtx(Stream *stream, void **ctx) { (void)stream; *ctx = context; return OK; }
static void join(Stream *stream, Graph *capture)
{
    if (!capture || stream->capture) return;
    stream->capture = capture;
    capture->stream[capture->streams++] = stream;
}
Status cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags)
{
    join(real(stream), event->capture);
    return flags > 1 ? INVALID_VALUE : OK;
}

Status cuEventCreate(Event **out, unsigned flags)
{
    if (flags > 7) return INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return OK;
}
Status cuEventDestroy_v2(Event *event) { free(event); return OK; }
Status cuEventRecord(Event *event, Stream *stream)
{
    event->capture = real(stream)->capture;
    stamp(event);
    return OK;
}
Status cuEventRecordWithFlags(Event *event, Stream *stream, unsigned flags)
{
    return flags > 1 ? INVALID_VALUE : queue(stream, (Node){ STAMP, 0, event, 0, 0 });
}
Status cuEventSynchronize(Event *event) { (void)event; return OK; }
Status cuEventQuery(Event *event) { (void)event; return OK; }
Status cuEventElapsedTime(float *ms, Event *start, Event *end) { *ms = end->ms - start->ms; return OK; }
Status cuEventElapsedTime_v2(float *ms, Event *start, Event *end) { return cuEventElapsedTime(ms, start, end); }

/* ---- capture */
Status cuStreamBeginCapture_v2(Stream *stream, int mode)
{
    if (mode < 0 || mode > 2 || stream->capture) return INVALID_VALUE;
    join(stream, calloc(1, sizeof *stream->capture));
    return OK;
}
Status cuStreamEndCapture(Stream *stream, Graph **out)
{
    *out = stream->capture;
    for (int i = 0; i < (*out)->streams; i++) (*out)->stream[i]->capture = 0;
    return OK;
}
Status cuStreamIsCapturing(Stream *stream, int *status) { *status = real(stream)->capture != 0; return OK; }
Status cuGraphGetNodes(Graph *graph, void **nodes, size_t *count)
{
    for (size_t i = 0; nodes && i < *count && i < (size_t)graph->count; i++) nodes[i] = &graph->nodes[i];
    *count = graph->count;
    return OK;
}
Status cuGraphNodeGetType(const Node *node, int *type)
{
    *type = node->kind == COPY ? 1 : node->kind == FILL ? 2 : 0;
    return OK;
}
Status cuGraphMemcpyNodeGetParams(const Node *node, Block *b)
{
    if (node->kind != COPY) return INVALID_VALUE;
    memset(b, 0, sizeof *b);
    b->to.type = b->from.type = UNIFIED;
    b->to.device = (Pointer)node->to;
    b->from.device = (Pointer)node->from;
    b->to.pitch = b->from.pitch = b->width = node->bytes;
    b->to.height = b->from.height = b->height = b->depth = 1;
    return OK;
}
Status cuGraphExecMemcpyNodeSetParams(Graph *exec, const Node *node, const Block *b, void *ctx)
{
    Node *mine = &exec->nodes[node - exec->from->nodes];
    if (ctx != context || mine->kind != COPY || !is_good(&b->to, b) || !is_good(&b->from, b)) return INVALID_VALUE;
    if (b->height != 1 || b->depth != 1 || !b->width) return INVALID_VALUE; /* 1-dimensional operands alone */
    *mine = (Node){ COPY, 0, (void *)b->to.device, (void *)b->from.device, b->width };
    return OK;
}
Status cuGraphGetEdges_v2(Graph *graph, void **from, void **to, void *data, size_t *count)
{
    (void)graph; (void)from; (void)to; (void)data;
    *count = 0; /* nodes run in the order in which they were captured */
    return OK;
}
Status cuGraphInstantiateWithFlags(Graph **out, Graph *graph, unsigned long long flags)
{
    if (flags > 15) return INVALID_VALUE;
    *out = malloc(sizeof **out);
    **out = *graph;
    (*out)->from = graph;
    return OK;
}
Status cuGraphLaunch(Graph *graph, Stream *stream)
{
    (void)stream;
    for (int i = 0; i < graph->count; i++) run(&graph->nodes[i]);
    return OK;
}
Status cuGraphExecDestroy(Graph *graph) { free(graph); return OK; }
Status cuGraphDestroy(Graph *graph) { free(graph); return OK; }

/* ---- errors, and finding the functions */
Status cuGetErrorName(Status status, const char **text)
{
    *text = status == OK ? "CUDA_SUCCESS" : status == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
          : status == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return OK;
}
Status cuGetErrorString(Status status, const char **text) { return cuGetErrorName(status, text); }

/* NVRTC asks for it once cuInit has succeeded, to share the driver's cache; refused, it does without. */
Status cuGetExportTable(const void **table, const void *id) { (void)id; *table = 0; return NOT_FOUND; }

static Status missing(void) { return NOT_SUPPORTED; }

Status cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found)
{
    char newer[128];
    (void)version; (void)flags;
    if (found) *found = 0;
    strncpy(newer, name, 120);
    newer[120] = 0;
    strcat(newer, "_v2");
    *function = dlsym(RTLD_DEFAULT, newer);
    if (!*function) {
        static void *self;
        if (!self) self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        *function = dlsym(self, newer);
        if (!*function) *function = dlsym(self, name);
    }
    if (!*function) *function = (void *)missing;
    return OK;
}
Status cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, 0);
}
