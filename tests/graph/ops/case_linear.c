/* linear. */
#define LINEAR_KIND "linear"
#include "tests/graph/ops/linear_cases.h"

OP_CASE(linear) = {.make = make,
                   .reference = reference,
                   .flops = flops,
                   .tolerance = 5e-6,
                   .multiplies = true,
                   .large = LARGE};
