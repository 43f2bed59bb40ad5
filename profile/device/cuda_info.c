/* Reports CUDA through the runtime library alone. The runtime is linked statically and loads the
 * driver when it is first called, so a program built with it starts on a machine without a GPU;
 * there every call returns an error and leaves its output untouched. */
#include "profile/device/cuda_info.h"

#include <cuda_runtime_api.h>
#ifdef SMP_HAVE_CUDNN
#include <cudnn.h>
#endif
#ifdef SMP_HAVE_NCCL
#include <nccl.h>
#endif

/* CUDA versions are 1000 * major + 10 * minor. */
static void append_version(smp_text *text, const char *what, int version)
{
    smp_text_append(text, "%s %d.%d", what, version / 1000, version % 1000 / 10);
}

static void append_device(smp_text *text, int device)
{
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
        smp_text_append(text, "GPU %d: cannot be read\n", device);
        return;
    }
    char memory[32];
    smp_format_bytes(memory, sizeof memory, (int64_t)properties.totalGlobalMem);
    smp_text_append(text, "GPU %d: %s, %s, compute capability %d.%d\n", device, properties.name,
                    memory, properties.major, properties.minor);
}

void smp_cuda_describe(smp_text *text)
{
    int runtime = 0, driver = 0, devices = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        runtime = CUDART_VERSION;
    append_version(text, "CUDA: runtime", runtime);
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
        append_version(text, ", driver", driver);
    else
        smp_text_append(text, ", no driver");
#ifdef SMP_HAVE_NCCL
    smp_text_append(text, ", NCCL %d.%d.%d", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
#endif
#ifdef SMP_HAVE_CUDNN
    smp_text_append(text, ", cuDNN %d.%d.%d", CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
#endif
    if (cudaGetDeviceCount(&devices) != cudaSuccess)
        devices = 0;
    smp_text_append(text, ", %d GPU%s\n", devices, devices == 1 ? "" : "s");
    for (int device = 0; device < devices; device++)
        append_device(text, device);
}
