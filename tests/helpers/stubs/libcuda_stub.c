/* A libcuda.so.1 for machines without a GPU: it loads, and refuses every call.
 *
 * cuDNN's engine libraries look these symbols up when they are loaded; with them in place plans can be made for
 * a device that is only described. cuInit says that there is no device, so nobody takes this for a driver. */
enum { SUCCESS = 0, NOT_INITIALIZED = 3, NO_DEVICE = 100 };

int cuInit(unsigned flags) { (void)flags; return NO_DEVICE; }
int cuDeviceGetCount(int *count) { *count = 0; return NO_DEVICE; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }

int cuGetErrorName(int status, const char **text)
{
    *text = status == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
          : status == NOT_INITIALIZED ? "CUDA_ERROR_NOT_INITIALIZED" : "CUDA_SUCCESS";
    return SUCCESS;
}

int cuGetErrorString(int status, const char **text) { return cuGetErrorName(status, text); }

#define REFUSED(name) int name(void) { return NOT_INITIALIZED; }
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetDevice)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPopCurrent)
REFUSED(cuCtxPushCurrent)
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetAttribute)
REFUSED(cuDevicePrimaryCtxRelease)
REFUSED(cuDevicePrimaryCtxReset)
REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuFuncGetAttribute)
REFUSED(cuFuncSetAttribute)
REFUSED(cuGetProcAddress)
REFUSED(cuGetProcAddress_v2)
REFUSED(cuKernelGetFunction)
REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLibraryGetKernel)
REFUSED(cuLibraryLoadData)
REFUSED(cuLibraryUnload)
REFUSED(cuLinkAddData_v2)
REFUSED(cuLinkAddFile_v2)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate_v2)
REFUSED(cuLinkDestroy)
REFUSED(cuMemcpyDtoH_v2)
REFUSED(cuModuleGetFunction)
REFUSED(cuModuleGetGlobal_v2)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleLoadDataEx)
REFUSED(cuModuleLoadFatBinary)
REFUSED(cuModuleUnload)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuStreamSynchronize)
REFUSED(cuTensorMapEncodeTiled)
