/* How close the kernels of a GPU must be to the operators' cases. */
#ifndef SMP_TESTS_TEST_CUDA_OPS_CASES_H
#define SMP_TESTS_TEST_CUDA_OPS_CASES_H

#include "tests/graph/ops/op_cases.h"

/* Of a value, relative to the largest of its tensor. */
static inline double device_tolerance(const op_case *c, smp_precision precision)
{
    if (precision == SMP_PRECISION_BF16)
        return 1e-2;
    if (precision == SMP_PRECISION_FP16)
        return 2e-3;
    return precision == SMP_PRECISION_TF32 && c->multiplies ? 2e-3 : 1e-5;
}

#endif
