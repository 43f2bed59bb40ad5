/* The baseline "equal-layers": what people write by hand, the same number of layers on every stage.
 *
 * A layer is a maximal run of ops, in file order, whose names share what stands before the first
 * dot where that ends in a digit: "h12.attn.qkv" lies in layer "h12". Ops before the first layer go
 * with it, all others that are in no layer with the layer before them. In a model without such
 * names, or with fewer layers than stages, every op is a layer. Linear. */
#include "partition/solve/baseline.h"
#include "partition/solve/partitioner.h"

#include <string.h>

/* Length of the name of the layer that an op lies in, 0 if it lies in none. */
static size_t layer_name(const char *op_name)
{
    const char *dot = strchr(op_name, '.');
    if (!dot || dot == op_name || dot[-1] < '0' || dot[-1] > '9')
        return 0;
    return (size_t)(dot - op_name);
}

/* Numbers the layers; returns how many there are. */
static int32_t number_layers(const smp_graph *graph, int32_t *layer)
{
    const char *last = NULL;
    size_t last_length = 0;
    int32_t n = 0;
    for (int32_t op = 0; op < graph->n_op; op++) {
        const char *name = graph->op[op].name;
        size_t length = layer_name(name);
        bool same = length > 0 && length == last_length && memcmp(name, last, length) == 0;
        n += length > 0 && !same;
        layer[op] = n > 0 ? n - 1 : 0;
        last = name;
        last_length = length;
    }
    return n;
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, smp_partition **out)
{
    (void)start; /* a baseline is measured as it is */
    const smp_graph *graph = problem->graph;
    smp__units *units = NULL;
    SMP_TRY(smp__units_build(problem, &units));
    smp_status status = SMP_ERR_NO_MEMORY;
    int32_t *layer = SMP_ARENA_NEW(units->arena, int32_t, (size_t)graph->n_op);
    int32_t *wish = SMP_ARENA_NEW(units->arena, int32_t, (size_t)units->n);
    if (!layer || !wish)
        goto done;
    int32_t n = number_layers(graph, layer);
    bool by_op = n < problem->n_stage;
    n = by_op ? graph->n_op : n;
    for (int32_t u = 0; u < units->n; u++) {
        int32_t first = units->op_list[units->op_begin[u]];
        wish[u] = (int32_t)((int64_t)(by_op ? first : layer[first]) * problem->n_stage / n);
    }
    status = smp__baseline_finish(problem, units, wish, "equal-layers", out);
done:
    smp__units_destroy(units);
    return status;
}

const smp_partitioner smp__partitioner_equal_layers = {
    .name = "equal-layers",
    .summary = "the same number of layers on every stage (baseline)",
    .solve = solve,
    .baseline = true,
};
