/* ring_linear of one device. */
#define LINEAR_KIND "ring_linear"
#include "tests/graph/ops/linear_cases.h"

OP_CASE(ring_linear) = {.make = make,
                        .reference = reference,
                        .flops = flops,
                        .tolerance = 5e-6,
                        .multiplies = true,
                        .large = LARGE};
