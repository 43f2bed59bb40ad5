/* Gradients between stages: which ops take part in the backward pass, and for every tensor the fold
 * of its consumers' contributions, split over the stages they lie in (see flow.h).
 *
 * The left fold ((c1 + c2) + c3) keeps its bits under any split, since a stage continues the sum
 * that it received (relay), or the producer's stage adds single contributions in the canonical
 * order (loose). O(ops + edges). */
#include "partition/problem/flow_build.h"

#include <stdlib.h>

#include "graph/model/op.h"

bool smp_flow_contributes(const smp_graph *graph, const bool *backward, int32_t op, int32_t slot)
{
    const smp_op *reader = &graph->op[op];
    const smp_tensor *tensor = &graph->tensor[reader->in[slot]];
    return backward[op] && tensor->needs_grad && tensor->producer >= 0 &&
           smp_op_kind_passes_gradients(reader->kind);
}

/* Does a tensor get a gradient: from a consumer that takes part, or as the loss? Every end of a
 * graph without a loss counts as one. */
static bool is_reached(const smp_graph *graph, const bool *backward, int32_t tensor)
{
    bool reached = tensor == graph->loss;
    if (reached || !graph->tensor[tensor].needs_grad)
        return reached;
    reached = graph->loss < 0;
    for (int64_t c = graph->consumer_begin[tensor];
         !reached && c < graph->consumer_begin[tensor + 1]; c++)
        reached =
            smp_flow_contributes(graph, backward, graph->consumer[c].op, graph->consumer[c].slot);
    return reached;
}

/* An op takes part if an output gets a gradient and it has a weight that is trained or an input to
 * pass it to, or if its statistics go on without one. */
static void mark_backward(const smp_graph *graph, bool *backward)
{
    for (int32_t u = graph->n_op - 1; u >= 0; u--) {
        const smp_op *op = &graph->op[u];
        bool reached = false;
        for (int32_t t = op->out; t < op->out + op->n_out && !reached; t++)
            reached = is_reached(graph, backward, t);
        backward[u] = reached;
        bool wanted = smp_op_has_trained(graph, op) || !op->kind->cpu.forward;
        for (int32_t slot = 0; reached && !wanted && slot < op->n_in; slot++)
            wanted = smp_flow_contributes(graph, backward, u, slot);
        backward[u] = (reached && wanted) || op->statistics;
    }
}

/* The contributions to one tensor in canonical order: consumers in reverse op order, within an op
 * by rising slot. */
typedef struct contributions {
    smp_consumer *item;
    size_t n, capacity;
} contributions;

static smp_status collect(const smp__flow_build *build, int32_t tensor, contributions *list)
{
    const smp_graph *graph = build->graph;
    int64_t begin = graph->consumer_begin[tensor], end = graph->consumer_begin[tensor + 1];
    list->n = 0;
    SMP_TRY(
        smp_array_reserve(&list->item, &list->capacity, sizeof *list->item, (size_t)(end - begin)));
    while (end > begin) {
        int64_t first = end - 1;
        while (first > begin && graph->consumer[first - 1].op == graph->consumer[end - 1].op)
            first--;
        for (int64_t c = first; c < end; c++)
            if (smp_flow_contributes(graph, build->backward, graph->consumer[c].op,
                                     graph->consumer[c].slot))
                list->item[list->n++] = graph->consumer[c];
        end = first;
    }
    return SMP_OK;
}

static smp_status begin_fold(smp__flow_build *build, int32_t tensor, int32_t stage)
{
    SMP_TRY(smp_array_reserve(&build->fold, &build->fold_capacity, sizeof *build->fold,
                              (size_t)build->n_fold + 1));
    build->fold[build->n_fold++] = (smp_fold){.tensor = tensor,
                                              .stage = stage,
                                              .source_begin = build->n_source,
                                              .source_end = build->n_source,
                                              .transfer_out = -1};
    return SMP_OK;
}

/* Adds to the fold begun last. */
static smp_status add_source(smp__flow_build *build, smp_fold_source source)
{
    SMP_TRY(smp_array_reserve(&build->source, &build->source_capacity, sizeof *build->source,
                              (size_t)build->n_source + 1));
    build->source[build->n_source++] = source;
    build->fold[build->n_fold - 1].source_end = build->n_source;
    return SMP_OK;
}

static smp_fold_source received(int32_t transfer)
{
    return (smp_fold_source){.transfer = transfer, .op = -1, .slot = -1};
}

static smp_fold_source given(smp_consumer consumer)
{
    return (smp_fold_source){.transfer = -1, .op = consumer.op, .slot = consumer.slot};
}

/* The partial sum travels from stage to stage, falling, until it reaches the producer. */
static smp_status add_relay(smp__flow_build *build, int32_t tensor, int32_t home,
                            const contributions *list)
{
    int32_t arriving = -1, stage = -1;
    for (size_t i = 0; i < list->n;) {
        stage = build->stage_of_op[list->item[i].op];
        SMP_TRY(begin_fold(build, tensor, stage));
        if (arriving >= 0)
            SMP_TRY(add_source(build, received(arriving)));
        for (; i < list->n && build->stage_of_op[list->item[i].op] == stage; i++)
            SMP_TRY(add_source(build, given(list->item[i])));
        if (stage == home)
            return SMP_OK; /* the lowest stage of all, so nothing follows */
        int32_t next = i < list->n ? build->stage_of_op[list->item[i].op] : home;
        SMP_TRY(smp__flow_add_transfer(build, SMP_TRANSFER_B, tensor, stage, next, &arriving));
        build->fold[build->n_fold - 1].transfer_out = arriving;
    }
    SMP_TRY(begin_fold(build, tensor, home));
    return add_source(build, received(arriving));
}

/* Every remote contribution goes to the producer by itself. */
static smp_status add_loose(smp__flow_build *build, int32_t tensor, int32_t home,
                            const contributions *list)
{
    int32_t first = build->n_transfer;
    for (size_t i = 0; i < list->n; i++) {
        int32_t stage = build->stage_of_op[list->item[i].op], transfer;
        if (stage == home)
            continue;
        SMP_TRY(smp__flow_add_transfer(build, SMP_TRANSFER_B, tensor, stage, home, &transfer));
        SMP_TRY(begin_fold(build, tensor, stage));
        SMP_TRY(add_source(build, given(list->item[i])));
        build->fold[build->n_fold - 1].transfer_out = transfer;
    }
    SMP_TRY(begin_fold(build, tensor, home));
    for (size_t i = 0; i < list->n; i++) {
        bool remote = build->stage_of_op[list->item[i].op] != home;
        SMP_TRY(add_source(build, remote ? received(first++) : given(list->item[i])));
    }
    return SMP_OK;
}

static bool tour_falls(const smp__flow_build *build, const contributions *list)
{
    for (size_t i = 1; i < list->n; i++)
        if (build->stage_of_op[list->item[i].op] > build->stage_of_op[list->item[i - 1].op])
            return false;
    return true;
}

smp_status smp__flow_add_gradients(smp__flow_build *build)
{
    const smp_graph *graph = build->graph;
    smp_status status = SMP_OK;
    contributions list = {0};
    mark_backward(graph, build->backward);
    for (int32_t t = 0; t < graph->n_tensor && status == SMP_OK; t++) {
        if (graph->tensor[t].producer < 0)
            continue;
        status = collect(build, t, &list);
        if (status != SMP_OK || list.n == 0)
            continue;
        int32_t home = build->stage_of_op[graph->tensor[t].producer];
        status = tour_falls(build, &list) ? add_relay(build, t, home, &list)
                                          : add_loose(build, t, home, &list);
    }
    free(list.item);
    return status;
}
