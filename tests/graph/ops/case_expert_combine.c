/* expert_combine: all of expert_combine_cases.h. */
#define EXPERT_KIND "expert_combine"
#include "tests/graph/ops/expert_combine_cases.h"

static const large_case LARGE[] = {
    {2, 2, "a: float32 [9, 125, 40]; b: float32 [300, 9]", "in: [a, b], top_k: 3"},
    {3, 2, "a: float32 [70, 8, 33]; b: float32 [130, 70]",
     "in: [a, b], top_k: 8, capacity: 0.5, gates: all"},
    {1, 2, "a: float32 [4, 600, 128]; b: float32 [600, 4]",
     "in: [a, b], top_k: 1, capacity: 0, gates: all"},
    {0},
};

OP_CASE(expert_combine) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-5, .large = LARGE};
