/* expert_combine: all of expert_combine_cases.h. */
#define EXPERT_KIND "expert_combine"
#include "tests/graph/ops/expert_combine_cases.h"

OP_CASE(expert_combine) = {.make = make, .reference = reference, .flops = flops, .tolerance = 1e-5};
