/* Which images lie channels last on a device. Libraries and kernels of convolutions want them so;
 * converting one costs a pass. Images that ops need alike form a class, and a class is channels
 * last unless one of it is an input of the model or belongs to an op that reads or writes rows of
 * [C, H, W]. So only convolutions convert, at the borders of such classes. O(size). */
#include <stdlib.h>

#include "graph/model/graph_store.h"
#include "graph/model/op.h"

/* Classes as trees: of[t] leads to the root, whose `plain` counts. */
typedef struct classes {
    int32_t *of;
    bool *plain;
} classes;

static int32_t root(classes *c, int32_t t)
{
    while (c->of[t] != t) {
        c->of[t] = c->of[c->of[t]];
        t = c->of[t];
    }
    return t;
}

static bool is_image(const smp_tensor *t)
{
    return t->known && t->batched && smp_dtype_is_float(t->dtype) && t->shape.n_dim == 3;
}

/* An op has an image; `first`: another one of it, or -1. Returns what the next one joins. */
static int32_t add(classes *c, const smp_graph *graph, smp_image_layout layout, int32_t tensor,
                   int32_t first)
{
    if (!is_image(&graph->tensor[tensor]))
        return first;
    const int32_t own = root(c, tensor);
    if (layout == SMP_LAYOUT_PLAIN)
        c->plain[own] = true;
    if (layout != SMP_LAYOUT_ALIKE || first < 0)
        return tensor;
    const int32_t to = root(c, first);
    c->plain[to] |= c->plain[own];
    c->of[own] = to;
    return first;
}

static void classify(classes *c, const smp_graph *graph)
{
    for (int32_t t = 0; t < graph->n_tensor; t++) {
        c->of[t] = t;
        c->plain[t] = !is_image(&graph->tensor[t]) || t < graph->n_input;
    }
    for (const smp_op *op = graph->op; op < graph->op + graph->n_op; op++) {
        const smp_image_layout layout =
            op->kind->layout ? op->kind->layout(graph, op) : SMP_LAYOUT_PLAIN;
        int32_t first = -1;
        for (int32_t i = 0; i < op->n_in; i++)
            first = add(c, graph, layout, op->in[i], first);
        for (int32_t t = op->out; t < op->out + op->n_out; t++)
            first = add(c, graph, layout, t, first);
    }
}

smp_status smp__graph_lay_out(smp_graph *graph)
{
    smp_tensor *tensor = (smp_tensor *)graph->tensor; /* the graph's own memory */
    for (int32_t t = 0; t < graph->n_tensor; t++)
        tensor[t].channels_last = false;
    if (!smp_backend_of(graph->target)->channels_last || graph->n_tensor == 0)
        return SMP_OK;
    const size_t n = (size_t)graph->n_tensor;
    classes c = {malloc(n * sizeof *c.of), malloc(n * sizeof *c.plain)};
    const bool made = c.of && c.plain;
    if (made) {
        classify(&c, graph);
        for (int32_t t = 0; t < graph->n_tensor; t++)
            tensor[t].channels_last = !c.plain[root(&c, t)];
    }
    free(c.of);
    free(c.plain);
    return made ? SMP_OK : smp_fail_memory(n * (sizeof *c.of + sizeof *c.plain));
}
