/* Models with many downsets: blocks of parallel branches, as in Inception. */
#ifndef SMP_TESTS_PARTITION_BRANCH_FIXTURE_H
#define SMP_TESTS_PARTITION_BRANCH_FIXTURE_H

#include "tests/partition/problem_fixture.h"

typedef struct branch_shape {
    int blocks;
    int branches;         /* per block */
    int length;           /* ops of a branch, at most one more or less */
    int trunk;            /* ops in a row between blocks */
    int transfer_percent; /* time to send one branch's tensor, of an op's compute, about */
    bool training;
} branch_shape;

static inline void branch_op(smp_text *text, fixture_random *random, const branch_shape *shape,
                             int op, const char *in)
{
    /* convolutions, and the cheap ops between them */
    double forward = fixture_chance(random, 40) ? 200 + fixture_below(random, 800)
                                                : 5 + fixture_below(random, 60);
    double backward = shape->training ? forward * (1.5 + 0.01 * fixture_below(random, 100)) : 0.0;
    int64_t bytes =
        (int64_t)(1e3 * (100 + fixture_below(random, 600)) * shape->transfer_percent / 100.0);
    smp_text_append(text,
                    "  - {op: opaque, name: n%d, out: t%d%s, cost: {forward_us: %.3f, "
                    "backward_us: %.3f, weight_bytes: %d, stash_bytes: %d, output_bytes: %lld}}\n",
                    op, op, in, forward, backward, fixture_below(random, 1000000),
                    fixture_below(random, 100000), (long long)bytes);
}

/* Malloc'ed. Send times are for links of 1e9 bytes per second. */
static inline char *branch_model(fixture_random *random, const branch_shape *shape)
{
    smp_text text = {0};
    char in[256] = "";
    int op = 0;
    smp_text_append(&text, "smp: 1\nname: branches\nmode: %s\nops:\n",
                    shape->training ? "training" : "inference");
    for (int block = 0; block < shape->blocks; block++) {
        for (int i = 0; i <= shape->trunk; i++) {
            branch_op(&text, random, shape, op, in);
            snprintf(in, sizeof in, ", in: [t%d]", op++);
        }
        char fork[32], concat[200] = ", in: [";
        snprintf(fork, sizeof fork, "%s", in);
        for (int b = 0; b < shape->branches; b++) {
            int length = shape->length - 1 + fixture_below(random, 3);
            for (int i = 0; i < length || i == 0; i++) {
                branch_op(&text, random, shape, op, i == 0 ? fork : in);
                snprintf(in, sizeof in, ", in: [t%d]", op++);
            }
            size_t used = strlen(concat);
            snprintf(concat + used, sizeof concat - used, "%st%d", b ? ", " : "", op - 1);
        }
        snprintf(in, sizeof in, "%s]", concat);
    }
    branch_op(&text, random, shape, op, in);
    assert_false(text.failed);
    return text.data;
}

#endif
