/* An NVIDIA driver that was never initialized: kvikio takes every address for the host's then.
 *
 * kvikio asks the driver for these functions before it moves anything, whether there is a device or not. */

enum { SUCCESS = 0, NOT_INITIALIZED = 3, VERSION = 12000 };

int cuDriverGetVersion(int *version) {
    *version = VERSION;
    return SUCCESS;
}

/* Called with their arguments, which they do not look at. */
#define REFUSING(name) \
    int name(void) { return NOT_INITIALIZED; }

REFUSING(cuInit)
REFUSING(cuMemHostAlloc)
REFUSING(cuMemFreeHost)
REFUSING(cuMemHostRegister_v2)
REFUSING(cuMemHostUnregister)
REFUSING(cuMemcpyHtoDAsync_v2)
REFUSING(cuMemcpyDtoHAsync_v2)
REFUSING(cuMemcpyAsync)
REFUSING(cuPointerGetAttribute)
REFUSING(cuPointerGetAttributes)
REFUSING(cuCtxCreate_v2)
REFUSING(cuCtxDestroy_v2)
REFUSING(cuCtxPushCurrent_v2)
REFUSING(cuCtxPopCurrent_v2)
REFUSING(cuCtxGetCurrent)
REFUSING(cuCtxGetDevice)
REFUSING(cuMemGetAddressRange_v2)
REFUSING(cuGetErrorName)
REFUSING(cuGetErrorString)
REFUSING(cuDeviceGet)
REFUSING(cuDeviceGetCount)
REFUSING(cuDeviceGetAttribute)
REFUSING(cuDevicePrimaryCtxRetain)
REFUSING(cuDevicePrimaryCtxRelease_v2)
REFUSING(cuStreamSynchronize)
REFUSING(cuStreamCreate)
REFUSING(cuStreamDestroy_v2)
REFUSING(cuEventSynchronize)
REFUSING(cuEventCreate)
REFUSING(cuEventDestroy_v2)
REFUSING(cuEventRecord)
REFUSING(cuEventQuery)
REFUSING(cuLaunchHostFunc)
