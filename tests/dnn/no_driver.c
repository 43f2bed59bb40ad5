/* A libcuda.so.1 for machines without a card, so that cuDNN loads and compiles plans: whatever
 * would need a device fails. The code that cuDNN has compiled is "loaded" to nowhere. */

enum { NO_DEVICE = 100 };

#define FAILS(name)                                                                                \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return NO_DEVICE;                                                                          \
    }
#define DOES_NOTHING(name)                                                                         \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 0;                                                                                  \
    }
#define GIVES_SOMETHING(name)                                                                      \
    int name(void **handle);                                                                       \
    int name(void **handle)                                                                        \
    {                                                                                              \
        static char nowhere[64];                                                                   \
        *handle = nowhere;                                                                         \
        return 0;                                                                                  \
    }

FAILS(cuInit)
FAILS(cuDriverGetVersion)
FAILS(cuGetProcAddress)
FAILS(cuGetProcAddress_v2)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuStreamGetCtx)
FAILS(cuLinkCreate)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkDestroy)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuDeviceGetCount)
FAILS(cuDeviceGet)
FAILS(cuLibraryLoadFromFile)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelGetFunction)
FAILS(cuOccupancyMaxPotentialClusterSize)
GIVES_SOMETHING(cuLibraryLoadData)
GIVES_SOMETHING(cuLibraryGetKernel)
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuKernelSetAttribute)
