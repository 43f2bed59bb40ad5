/* Opens cuDNN. A machine without it is no error: every operator has a kernel of ours. */
#include "graph/cuda/cuda_dnn.h"

#if defined(SMP_HAVE_CUDNN) && !defined(SMP_EMULATED)
#include "graph/base/library.h"

smp__dnn_calls smp__dnn;

smp_status smp__dnn_check(cudnnStatus_t code, const char *call)
{
    if (code == CUDNN_STATUS_SUCCESS)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s: %s", call, smp__dnn.cudnnGetErrorString(code));
}

smp_status smp__dnn_open(void **handle, cudaStream_t stream)
{
    static const char *const symbol[] = {
#define NAME(name) #name,
        SMP__DNN_CALLS(NAME)
#undef NAME
    };
    *handle = NULL;
    if (smp_library_open("libcudnn.so.9", SMP_CUDA_LIBRARY_DIR,
                         (int)(sizeof symbol / sizeof symbol[0]), symbol,
                         (void **)&smp__dnn) != SMP_OK)
        return SMP_OK;
    cudnnHandle_t made;
    cudnnStatus_t code = smp__dnn.cudnnCreate(&made);
    if (code != CUDNN_STATUS_SUCCESS && code != CUDNN_STATUS_ALLOC_FAILED)
        return SMP_OK; /* parts of it are missing, or it does not know the GPU */
    SMP_TRY(smp__dnn_check(code, "cudnnCreate"));
    smp_status status = smp__dnn_check(smp__dnn.cudnnSetStream(made, stream), "cudnnSetStream");
    if (status != SMP_OK) {
        smp__dnn.cudnnDestroy(made);
        return status;
    }
    *handle = made;
    return SMP_OK;
}

void smp__dnn_close(void *handle)
{
    if (handle)
        smp__dnn.cudnnDestroy(handle);
}

#elif !defined(SMP_EMULATED) /* the emulator has one of its own */

smp_status smp__dnn_open(void **handle, cudaStream_t stream)
{
    (void)stream;
    *handle = NULL;
    return SMP_OK;
}

void smp__dnn_close(void *handle)
{
    (void)handle;
}

#endif
