/* expert_dispatch: all of expert_dispatch_cases.h. */
#define EXPERT_KIND "expert_dispatch"
#include "tests/graph/ops/expert_dispatch_cases.h"

static const large_case LARGE[] = {
    {2, 2, "a: float32 [300, 40]; b: float32 [300, 9]", "in: [a, b], top_k: 3"},
    {3, 2, "a: float32 [130, 33]; b: float32 [130, 70]", "in: [a, b], top_k: 8, capacity: 0.5"},
    {1, 2, "a: float32 [600, 128]; b: float32 [600, 4]", "in: [a, b], top_k: 1, capacity: 0"},
    {0},
};

OP_CASE(expert_dispatch) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-6, .large = LARGE};
