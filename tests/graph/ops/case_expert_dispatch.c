/* expert_dispatch: all of expert_dispatch_cases.h. */
#define EXPERT_KIND "expert_dispatch"
#include "tests/graph/ops/expert_dispatch_cases.h"

OP_CASE(expert_dispatch) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-6};
