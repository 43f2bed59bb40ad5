/* Every rule by which operators are split, and Megatron-LM's patterns, with the kernels of a GPU:
 * the tests of the CPU's, in bf16, whose roundings depend on how an operator is split, on two
 * devices. Networks at random are left out: what a relu lets through and whom a router chooses
 * differs then. Runs on the emulator and on a GPU. */
#define SPLIT_DEVICES 2
#define SPLIT_PRECISION SMP_PRECISION_BF16
#define SPLIT_ERROR 6e-2
#define SPLIT_NETWORK_ERROR 6e-2
#define SPLIT_NETWORKS false
#define SPLIT_PATTERNS (!is_brief_emulation())
#include "tests/cuda/split_device.h"
#include "tests/graph/split/test_split_rules.c"
