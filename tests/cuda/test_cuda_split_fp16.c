/* As test_cuda_split_bf16.c, in fp16, which rounds to three bits more: the kernels
 * are the same but for that. */
#define SPLIT_DEVICES 2
#define SPLIT_PRECISION SMP_PRECISION_FP16
#define SPLIT_ERROR 1e-2
#define SPLIT_NETWORK_ERROR 1e-2
#define SPLIT_NETWORKS false
#define SPLIT_PATTERNS (!is_brief_emulation())
#include "tests/cuda/split_device.h"
#include "tests/graph/split/test_split_rules.c"
