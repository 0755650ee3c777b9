/* A libcuda.so.1 that has no device: enough symbols for cuDNN's runtime-compiled engines to load, to compile
 * with NVRTC and to hand their cubins over. Loading a cubin "succeeds" with a handle that nothing can run. */
typedef int CUresult;
enum { SUCCESS = 0, NO_DEVICE = 100 };

#define NOTHING(name) CUresult name(void) { return SUCCESS; }
#define HANDLE(name) CUresult name(void **out) { *out = (void *)16; return SUCCESS; }
#define NUMBER(name) CUresult name(int *out) { *out = 1; return SUCCESS; }

CUresult cuInit(unsigned flags) { (void)flags; return NO_DEVICE; }
CUresult cuDeviceGetCount(int *count) { *count = 0; return NO_DEVICE; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
CUresult cuGetErrorName(CUresult status, const char **text)
{
    *text = status == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_SUCCESS";
    return SUCCESS;
}
CUresult cuGetErrorString(CUresult status, const char **text) { return cuGetErrorName(status, text); }

HANDLE(cuLibraryLoadData)
HANDLE(cuLibraryLoadFromFile)
HANDLE(cuLibraryGetKernel)
HANDLE(cuModuleLoadData)
HANDLE(cuModuleLoadDataEx)
HANDLE(cuModuleGetFunction)
HANDLE(cuKernelGetFunction)
HANDLE(cuCtxGetCurrent)
NUMBER(cuKernelGetAttribute)
NUMBER(cuFuncGetAttribute)
NUMBER(cuDeviceGet)
NUMBER(cuDeviceGetAttribute)
NUMBER(cuOccupancyMaxActiveClusters)
NUMBER(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NUMBER(cuOccupancyMaxPotentialClusterSize)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxPopCurrent)
NOTHING(cuCtxPushCurrent)
NOTHING(cuFuncGetName)
NOTHING(cuFuncSetAttribute)
NOTHING(cuGraphAddDependencies)
NOTHING(cuGraphAddKernelNode)
NOTHING(cuGraphAddMemsetNode)
NOTHING(cuGraphGetNodes)
NOTHING(cuGraphKernelNodeGetParams)
NOTHING(cuGraphKernelNodeSetAttribute)
NOTHING(cuGraphKernelNodeSetParams)
NOTHING(cuGraphNodeGetDependentNodes)
NOTHING(cuKernelSetAttribute)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLaunchKernel)
NOTHING(cuLaunchKernelEx)
NOTHING(cuLibraryUnload)
NOTHING(cuLinkAddData)
NOTHING(cuLinkComplete)
NOTHING(cuLinkCreate)
NOTHING(cuLinkDestroy)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyAvailableDynamicSMemPerBlock)
NOTHING(cuStreamGetCtx)
NOTHING(cuTensorMapEncodeIm2col)
NOTHING(cuTensorMapEncodeTiled)
NOTHING(cuTensorMapReplaceAddress)
