/* Frequencies of rope's scalings: those of transformers 5.23 (ROPE_INIT_FUNCTIONS, heads of 16). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <math.h>

#include "graph/ops/attention/rope.h"

enum { PAIRS = 8 };

typedef struct scaled {
    smp__rope_kind kind;
    double base, factor;
    int64_t original;
    double slow, fast, given; /* 0: the default */
    double magnitude, frequency[PAIRS];
} scaled;

static const scaled CASE[] = {
    {SMP__ROPE_LINEAR,
     1e4,
     4,
     0,
     0,
     0,
     0,
     1,
     {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012,
      7.90569466e-05}},
    {SMP__ROPE_LLAMA3,
     5e5,
     8,
     8192,
     1,
     4,
     0,
     1,
     {1, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06,
      1.28917316e-06}},
    {SMP__ROPE_LLAMA3,
     1e4,
     32,
     64,
     1,
     4,
     0,
     1,
     {1, 0.236687109, 0.00372535503, 0.000988211832, 0.000312499993, 9.88211832e-05, 3.12500015e-05,
      9.88211832e-06}},
    {SMP__ROPE_YARN,
     1e4,
     4,
     2048,
     1,
     32,
     0,
     1.138629436111989,
     {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012,
      7.90569466e-05}},
    {SMP__ROPE_YARN,
     1e6,
     4,
     32768,
     2,
     16,
     1.5,
     1.5,
     {1, 0.177827939, 0.0316227786, 0.00562341325, 0.000625000044, 4.44569851e-05, 7.90569356e-06,
      1.40585337e-06}},
    {SMP__ROPE_PLAIN,
     1e4,
     1,
     0,
     0,
     0,
     0,
     1,
     {1, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766}},
};

static void test_frequencies(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof(CASE) / sizeof(CASE[0]); k++) {
        const scaled *c = &CASE[k];
        smp_attr_value attr[SMP__ROPE_FACTORS + 1] = {{0}};
        attr[SMP__ROPE_SCALING].i = c->kind;
        attr[SMP__ROPE_BASE].f = c->base;
        attr[SMP__ROPE_FACTOR].f = c->factor;
        attr[SMP__ROPE_ORIGINAL].i = c->original;
        attr[SMP__ROPE_LOW].f = attr[SMP__ROPE_SLOW].f = c->slow;
        attr[SMP__ROPE_HIGH].f = attr[SMP__ROPE_FAST].f = c->fast;
        attr[SMP__ROPE_MAGNITUDE].f = c->given;
        const smp__rope_scaling s = smp__rope_scaling_of(attr, 2 * PAIRS);
        if (!(fabs(s.magnitude - c->magnitude) < 1e-12))
            fail_msg("case %zu: magnitude %.17g, expected %.17g", k, s.magnitude, c->magnitude);
        for (int64_t i = 0; i < PAIRS; i++) {
            const double got = smp__rope_frequency(&s, pow(c->base, -(double)i / PAIRS), i);
            if (fabs(got / c->frequency[i] - 1) > 5e-7) /* which are in float */
                fail_msg("case %zu, pair %d: %.9g, expected %.9g", k, (int)i, got, c->frequency[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_frequencies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
