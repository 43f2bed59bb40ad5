/* Opens cuBLASLt. */
#include <stdio.h>

#include "graph/base/library.h"
#include "graph/cuda/cuda_blas.h"

smp__blas_calls smp__blas;

smp_status smp__blas_open(void)
{
#ifdef SMP_EMULATED
#define TAKE(name) smp__blas.name = name;
    SMP__BLAS_CALLS(TAKE)
    return SMP_OK;
#else
    static const char *const symbol[] = {
#define NAME(name) #name,
        SMP__BLAS_CALLS(NAME)
#undef NAME
    };
    return smp_library_open("libcublasLt.so." SMP_CUDA_MAJOR, SMP_CUDA_LIBRARY_DIR,
                            (int)(sizeof symbol / sizeof symbol[0]), symbol, (void **)&smp__blas);
#endif
}

smp_status smp__blas_check(cublasStatus_t code, const char *call)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return SMP_OK;
    return smp_fail(code == CUBLAS_STATUS_ALLOC_FAILED ? SMP_ERR_NO_MEMORY : SMP_ERR_FAILED,
                    "%s: %s", call, smp__blas.cublasLtGetStatusString(code));
}

void smp__blas_name(char *text, size_t size)
{
    const int version = (int)smp__blas.cublasLtGetVersion();
    snprintf(text, size, "cuBLASLt %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}
