/* <cuda_runtime.h> of the emulator: the runtime calls for C, and all that a kernel is written with
 * for C++. */
#ifndef SMP_TESTS_EMULATE_CUDA_RUNTIME_H
#define SMP_TESTS_EMULATE_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
#include "emulate_kernel.h"
#include "emulate_launch.h"
#include "emulate_math.h"
#endif

#endif
