/* Devices and errors: what stands before every call of the runtime. */
#include <cstdio>
#include <cstring>

#include "emulate_kernel.h"
#include "emulate_state.h"

void emulate_reread_settings();
void emulate_forget_streams();
void emulate_forget_events();
void emulate_forget_graphs();
void emulate_forget_launches();

namespace
{

std::recursive_mutex lock;
int depth;
cudaError_t device_error; /* for ever */
thread_local cudaError_t last_error;
thread_local int current_device;

enum { FIRST_BUS = 0x17 };

} // namespace

emulate_call::emulate_call(bool needs_device)
{
    lock.lock();
    depth++;
    if (emulate_running_item)
        error = cudaErrorNotPermitted;
    else if (needs_device && emulate_setting().devices == 0)
        error = cudaErrorNoDevice;
    else
        error = needs_device ? device_error : cudaSuccess;
    if (error != cudaSuccess)
        last_error = error;
}

emulate_call::~emulate_call()
{
    if (--depth == 0)
        emulate_memory_close();
    lock.unlock();
}

cudaError_t emulate_call::done(cudaError_t code)
{
    if (device_error != cudaSuccess)
        code = device_error;
    if (code != cudaSuccess) /* cudaErrorNotReady too, as the runtime does */
        last_error = code;
    return code;
}

static int bus_of(int device)
{
    return FIRST_BUS + (emulate_setting().mig ? 0 : emulate_setting().visible[device]);
}

int emulate_current_device()
{
    return current_device;
}

bool emulate_failed()
{
    return device_error != cudaSuccess;
}

void emulate_device_fail(cudaError_t error)
{
    device_error = error;
}

void emulate_restart()
{
    emulate_reread_settings();
    emulate_forget_streams();
    emulate_forget_events();
    emulate_forget_graphs();
    emulate_forget_launches();
    device_error = last_error = cudaSuccess;
    current_device = 0;
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *count)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (emulate_setting().driver / 1000 < CUDART_VERSION / 1000)
        return call.done(cudaErrorInsufficientDriver);
    *count = emulate_setting().devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (device < 0 || device >= emulate_setting().devices)
        return call.done(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    emulate_call call;
    return call.error;
}

cudaError_t cudaDeviceReset(void)
{
    cudaError_t code = cudaDeviceSynchronize();
    emulate_forget_streams();
    emulate_forget_events();
    emulate_forget_graphs();
    return code;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    const emulate_settings &setting = emulate_setting();
    if (device < 0 || device >= setting.devices)
        return call.done(cudaErrorInvalidDevice);
    cudaDeviceProp p = {};
    snprintf(p.name, sizeof p.name, "Emulated GPU");
    strcpy(p.uuid.bytes, "emulated");
    p.uuid.bytes[15] = static_cast<char>(setting.visible[device]);
    p.totalGlobalMem = setting.memory;
    p.sharedMemPerBlock = emulate_shared_limit(false);
    p.sharedMemPerBlockOptin = emulate_shared_limit(true);
    p.sharedMemPerMultiprocessor = emulate_shared_limit(true) + 1024;
    p.regsPerBlock = 65536;
    p.warpSize = warpSize;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 0x7fffffff;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.maxThreadsPerMultiProcessor = 2048;
    p.multiProcessorCount = setting.multiprocessors;
    p.major = setting.capability / 10;
    p.minor = setting.capability % 10;
    p.memoryBusWidth = 5120;
    p.l2CacheSize = 40 << 20;
    p.unifiedAddressing = p.concurrentKernels = 1;
    p.asyncEngineCount = 3;
    p.pciBusID = bus_of(device);
    *properties = p;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp p;
    const cudaError_t code = cudaGetDeviceProperties(&p, device);
    if (code != cudaSuccess)
        return code;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(p.sharedMemPerBlock);
        break;
    case cudaDevAttrWarpSize:
        *value = p.warpSize;
        break;
    case cudaDevAttrClockRate:
        *value = 1410000;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrIntegrated:
        *value = p.integrated;
        break;
    case cudaDevAttrMemoryClockRate:
        *value = 1215000;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = p.memoryBusWidth;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = p.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrUnifiedAddressing:
        *value = p.unifiedAddressing;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = static_cast<int>(p.sharedMemPerMultiprocessor);
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(p.sharedMemPerBlockOptin);
        break;
    default:
        return emulate_call().done(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (device < 0 || device >= emulate_setting().devices)
        return call.done(cudaErrorInvalidDevice);
    const int length = snprintf(id, static_cast<size_t>(size), "0000:%02X:00.0",
                                static_cast<unsigned>(bus_of(device)));
    return call.done(length < size ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    char own[32];
    for (int i = 0; i < emulate_setting().devices; i++)
        if (cudaDeviceGetPCIBusId(own, sizeof own, i) == cudaSuccess && strcasecmp(own, id) == 0) {
            *device = i;
            return cudaSuccess;
        }
    return call.done(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = emulate_setting().devices > 0 ? emulate_setting().driver : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return device_error != cudaSuccess ? device_error : last_error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define TEXT(name, value, text)                                                                    \
    case name:                                                                                     \
        return text;
        EMULATE_ERRORS(TEXT)
#undef TEXT
    }
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(name, value, text)                                                                    \
    case name:                                                                                     \
        return #name;
        EMULATE_ERRORS(NAME)
#undef NAME
    }
    return "unrecognized error code";
}

} // extern "C"
