/* Large models of one op for a GPU, from the operators' cases, and how close kernels must be. */
#ifndef SMP_TESTS_TEST_CUDA_OPS_CASES_H
#define SMP_TESTS_TEST_CUDA_OPS_CASES_H

#include "tests/graph/ops/op_cases.h"

/* Of a value, relative to the largest of its tensor. */
static inline double device_tolerance(const op_case *c, smp_precision precision)
{
    if (precision == SMP_PRECISION_BF16)
        return 1e-2;
    return precision == SMP_PRECISION_TF32 && c->multiplies ? 2e-3 : 1e-5;
}

static inline void large_case_model(const op_case *of, const large_case *c, model_text *m,
                                    uint64_t *rng)
{
    op_case_begin(of, 77, m, rng);
    m->batch = c->batch;
    m->magnitude = c->magnitude;
    model_write(m, "inputs:\n");
    for (const char *p = c->inputs; *p; p += strspn(p, "; ")) {
        char name[8], dtype[16], shape[48];
        int used = 0;
        assert_int_equal(sscanf(p, "%7[a-z]: %15s %47[^]]%n", name, dtype, shape, &used), 3);
        model_input(m, name, dtype, strcat(shape, "]"));
        p += used + 1;
    }
    model_write(m, "ops:\n  - {op: %s, name: op%s%s%s%s}\n", of->kind->name,
                strstr(c->op, "out: ") ? "" : ", out: y", strstr(c->op, "in: ") ? "" : ", in: a",
                *c->op ? ", " : "", c->op);
}

#endif
