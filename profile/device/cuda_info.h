/* What a build with CUDA and this machine know of CUDA and NCCL, for --version. Never fails: any
 * error of the CUDA runtime means that there is no GPU. */
#ifndef SMP_PROFILE_CUDA_INFO_H
#define SMP_PROFILE_CUDA_INFO_H

#include "graph/base/text.h"

/* Appends lines, each ended by a newline: runtime and driver version, the NCCL and cuDNN versions
 * this was compiled with, and a line per GPU with name and memory. */
void smp_cuda_describe(smp_text *text);

#endif
