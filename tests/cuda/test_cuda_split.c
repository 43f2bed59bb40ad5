/* Every rule by which operators are split, and whole networks, with the kernels of a GPU: the tests
 * of the CPU's, in fp32. Runs on the emulator and on a GPU. */
#include "tests/cuda/split_device.h"
#include "tests/graph/split/test_split_rules.c"
