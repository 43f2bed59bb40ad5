/* The model text of a chain of opaque ops, whose costs are given. Needs <cmocka.h> before it. */
#ifndef SMP_TESTS_CHAIN_MODEL_H
#define SMP_TESTS_CHAIN_MODEL_H

#include <stdlib.h>

#include "graph/base/text.h"
#include "graph/model/graph.h"

typedef struct chain_op {
    double forward_us, backward_us;
    int64_t weight_bytes, stash_bytes, output_bytes;
    int skip; /* it also reads what the op so many before its predecessor makes; 0: not */
} chain_op;

/* Ops n0 to n<n-1>, tensors t0 to t<n-1>. */
static inline smp_graph *chain_model(const chain_op *op, int n)
{
    smp_text text = {0};
    smp_graph *graph = NULL;
    smp_text_append(&text, "smp: 1\nname: chain\nops:\n");
    for (int i = 0; i < n; i++) {
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0)
            smp_text_append(&text, ", in: [t%d", i - 1);
        if (i > 0 && op[i].skip > 0 && i - 1 - op[i].skip >= 0)
            smp_text_append(&text, ", t%d", i - 1 - op[i].skip);
        if (i > 0)
            smp_text_append(&text, "]");
        smp_text_append(&text,
                        ", cost: {forward_us: %g, backward_us: %g, weight_bytes: %lld, "
                        "stash_bytes: %lld, output_bytes: %lld}}\n",
                        op[i].forward_us, op[i].backward_us, (long long)op[i].weight_bytes,
                        (long long)op[i].stash_bytes, (long long)op[i].output_bytes);
    }
    assert_false(text.failed);
    if (smp_graph_parse("chain.yaml", text.data, text.length, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_text_free(&text);
    return graph;
}

#endif
