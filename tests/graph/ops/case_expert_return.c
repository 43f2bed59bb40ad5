/* expert_return: all of expert_combine_cases.h. */
#define EXPERT_KIND "expert_return"
#include "tests/graph/ops/expert_combine_cases.h"

OP_CASE(expert_return) = {.make = make, .reference = reference, .flops = flops, .tolerance = 1e-5};
