/* See longest_chain.h. Ops stand in topological order; linear in the graph. */
#include "partition/problem/longest_chain.h"

#include <math.h>

#include "graph/model/op.h"

bool smp__passes_gradient(const smp_graph *graph, int32_t tensor, int32_t reader)
{
    const smp_op *r = &graph->op[reader];
    return graph->tensor[tensor].needs_grad && smp_op_has_gradient(graph, r) &&
           smp_op_kind_passes_gradients(r->kind);
}

/* The op before each on the longest chain that ends with it, or -1; the last op of the longest of
 * all. */
static int32_t find_last(const smp_graph *graph, const double *weight, double *up, int32_t *before)
{
    int32_t last = 0;
    for (int32_t o = 0; o < graph->n_op; o++) {
        before[o] = -1;
        for (int32_t k = 0; k < graph->op[o].n_in; k++) {
            int32_t from = graph->tensor[graph->op[o].in[k]].producer;
            if (from >= 0 && up[from] > up[o] &&
                (!graph->training || smp__passes_gradient(graph, graph->op[o].in[k], o))) {
                up[o] = up[from];
                before[o] = from;
            }
        }
        up[o] += weight[o];
        last = up[o] > up[last] ? o : last;
    }
    return last;
}

static void find_after(const smp_graph *graph, const bool *on, int32_t *after)
{
    for (int32_t o = 0; o < graph->n_op; o++)
        for (int32_t k = 0; k < graph->op[o].n_in && !on[o]; k++) {
            int32_t from = graph->tensor[graph->op[o].in[k]].producer;
            if (from >= 0 && after[from] > after[o])
                after[o] = after[from];
        }
}

static void find_until(const smp_graph *graph, const smp__chain *chain, int32_t *until)
{
    for (int32_t o = graph->n_op - 1; o >= 0; o--) {
        const smp_op *op = &graph->op[o];
        until[o] = chain->on[o] ? chain->after[o] : chain->length + 1;
        for (int64_t c = graph->consumer_begin[op->out];
             c < graph->consumer_begin[op->out + op->n_out] && !chain->on[o]; c++) {
            int32_t least = until[graph->consumer[c].op];
            until[o] = least < until[o] ? least : until[o];
        }
    }
}

smp_status smp__chain_find(const smp_graph *graph, const double *weight, smp_arena *arena,
                           smp__chain *out)
{
    size_t n = (size_t)graph->n_op;
    double *up = SMP_ARENA_NEW(arena, double, n);
    int32_t *before = SMP_ARENA_NEW(arena, int32_t, n);
    int32_t *after = SMP_ARENA_NEW(arena, int32_t, n), *until = SMP_ARENA_NEW(arena, int32_t, n);
    bool *on = SMP_ARENA_NEW(arena, bool, n);
    if (!up || !before || !after || !until || !on)
        return SMP_ERR_NO_MEMORY;
    *out = (smp__chain){.n_op = graph->n_op, .on = on, .after = after, .until = until};
    int32_t last = find_last(graph, weight, up, before);
    for (int32_t o = last; o >= 0; o = before[o])
        out->length++;
    int32_t position = out->length;
    for (int32_t o = last; o >= 0; o = before[o]) {
        on[o] = true;
        after[o] = position--;
    }
    find_after(graph, on, after);
    find_until(graph, out, until);
    return SMP_OK;
}

smp_status smp__chain_most_beside(const smp__chain *chain, const double *weight, smp_arena *arena,
                                  double *most)
{
    /* Between position c and the next: what stands there more than before. */
    double *difference = SMP_ARENA_NEW(arena, double, (size_t)chain->length + 2), sum = 0.0;
    if (!difference)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < chain->n_op; o++) {
        if (chain->on[o])
            continue;
        difference[chain->after[o]] += weight[o];
        difference[chain->until[o]] -= weight[o];
    }
    *most = 0.0;
    for (int32_t c = 0; c <= chain->length; c++) {
        sum += difference[c];
        *most = fmax(*most, sum);
    }
    *most *= 1.0 + 1e-9; /* for rounding */
    return SMP_OK;
}
