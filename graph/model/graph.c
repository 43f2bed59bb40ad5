/* The finished graph: look-ups, sizes, checks, freeing. */
#include "graph/model/graph.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"
#include "graph/model/graph_store.h"
#include "graph/model/op.h"
#include "graph/safetensors/weights_match.h"

smp__graph_store *smp__graph_store_create(void)
{
    smp__graph_store *store = calloc(1, sizeof *store);
    if (!store) {
        smp_fail_memory(sizeof *store);
        return NULL;
    }
    store->graph.arena = smp_arena_create();
    if (!store->graph.arena) {
        free(store);
        return NULL;
    }
    store->graph.loss = -1;
    store->graph.devices = 1;
    store->op_index = SMP__NAME_INDEX(smp_op, name);
    store->param_index = SMP__NAME_INDEX(smp_param, name);
    return store;
}

void smp_graph_destroy(smp_graph *graph)
{
    if (!graph)
        return;
    smp__graph_store *store = (smp__graph_store *)graph;
    smp_graph_destroy(store->owned);
    smp__name_index_free(&store->op_index);
    smp__name_index_free(&store->param_index);
    free(store->param);
    smp_arena_destroy(graph->arena);
    free(store);
}

int32_t smp_graph_find_op(const smp_graph *graph, const char *name)
{
    const smp__graph_store *store = (const smp__graph_store *)graph;
    return smp__name_index_find(&store->op_index, graph->op, name);
}

int32_t smp_graph_find_param(const smp_graph *graph, const char *name)
{
    const smp__graph_store *store = (const smp__graph_store *)graph;
    return smp__name_index_find(&store->param_index, graph->param, name);
}

/* Names that a tensor can be asked for by: ops, then tensors. */
static smp_status fail_unknown(const smp_graph *graph, const char *name)
{
    const size_t n = (size_t)graph->n_op + (size_t)graph->n_tensor;
    const char **names = malloc(n * sizeof *names);
    if (!names)
        return smp_fail_memory(n * sizeof *names);
    for (int32_t i = 0; i < graph->n_op; i++)
        names[i] = graph->op[i].name;
    for (int32_t i = 0; i < graph->n_tensor; i++)
        names[graph->n_op + i] = graph->tensor[i].name;
    const char *nearest = smp_nearest(name, names, n);
    free(names);
    return smp_fail(SMP_ERR_INPUT, "%s: no operator or tensor '%s'%s%s%s", graph->path, name,
                    nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

/* What the loss reads first; of one that makes that itself (smp_graph_join) nothing holds it. */
static smp_status find_read_by_loss(const smp_graph *graph, int32_t *out)
{
    const smp_op *loss = &graph->op[graph->tensor[graph->loss].producer];
    *out = loss->in[0];
    if (loss->n_param == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: op '%s' (%s) makes its logits in chunks, which nothing holds as a whole: "
                    "name another tensor, or take a model with mode: inference",
                    graph->path, loss->name, loss->kind->name);
}

static smp_status find_tensor(const smp_graph *graph, const char *name, int32_t *out)
{
    if (!name && graph->loss >= 0)
        return find_read_by_loss(graph, out);
    if (!name) {
        *out = graph->n_tensor - 1;
        return SMP_OK;
    }
    const int32_t op = smp_graph_find_op(graph, name);
    *out = op >= 0 ? graph->op[op].out : -1;
    for (int32_t i = graph->n_tensor - 1; i >= 0 && *out < 0; i--)
        if (strcmp(graph->tensor[i].name, name) == 0)
            *out = i;
    return *out >= 0 ? SMP_OK : fail_unknown(graph, name);
}

smp_status smp_graph_find_made(const smp_graph *graph, const char *name, int32_t *out)
{
    int32_t tensor = -1;
    SMP_TRY(find_tensor(graph, name, &tensor));
    if (graph->tensor[tensor].producer < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: '%s' is an input of the model, nothing computes it",
                        graph->path, graph->tensor[tensor].name);
    *out = tensor;
    return SMP_OK;
}

smp_where smp_op_where(const smp_graph *graph, const smp_op *op)
{
    return (smp_where){graph->path, op->line, op->column};
}

int64_t smp_tensor_bytes(const smp_graph *graph, int32_t tensor, int64_t batch)
{
    const smp_tensor *t = &graph->tensor[tensor];
    int64_t bytes;
    if (!t->known)
        return t->bytes;
    if (__builtin_mul_overflow(t->elements * smp_dtype_bytes(t->dtype), t->batched ? batch : 1,
                               &bytes))
        return INT64_MAX;
    return bytes;
}

smp_status smp_graph_set_target(smp_graph *graph, smp_target target)
{
    SMP_TRY(smp_target_check(target));
    SMP_TRY(smp_target_check_devices(target, graph->devices));
    smp_tensor *tensor = (smp_tensor *)graph->tensor; /* the graph's own memory */
    smp_dtype dtype = smp_precision_dtype(target.precision);
    for (int32_t i = 0; i < graph->n_tensor; i++)
        if (smp_dtype_is_float(tensor[i].dtype) && tensor[i].batched && !tensor[i].planned)
            tensor[i].dtype = dtype;
    graph->target = target;
    SMP_TRY(smp__graph_lay_out(graph));
    smp_graph *owned = ((smp__graph_store *)graph)->owned;
    return owned ? smp_graph_set_target(owned, target) : SMP_OK;
}

static smp_status check_loss(const smp_graph *graph)
{
    if (!graph->training || graph->loss >= 0)
        return SMP_OK;
    return smp_fail_at((smp_where){graph->path, 0, 0},
                       "the model has no 'loss', expected the name of the tensor to train on "
                       "(or 'mode: inference')");
}

smp_status smp_graph_check_kernels(const smp_graph *graph)
{
    const smp_backend backend = graph->target.backend;
    bool all_run = true;
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[i];
        bool elsewhere = false;
        for (int k = 0; k < SMP_N_BACKEND; k++)
            elsewhere |= smp_op_kind_runs(op->kind, (smp_backend)k);
        if (elsewhere && !op->kind->registered && !smp_op_kind_runs(op->kind, backend))
            return smp_fail_at(smp_op_where(graph, op),
                               "op '%s' (%s): '%s' has no kernel for %s: plan for another device, "
                               "or put ops that have one in its place",
                               op->name, op->kind->name, op->kind->name, smp_backend_name(backend));
        all_run = all_run && elsewhere;
    }
    return all_run ? check_loss(graph) : SMP_OK;
}

smp_status smp_graph_check_runnable(const smp_graph *graph)
{
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[i];
        if (!smp_op_kind_runs(op->kind, graph->target.backend))
            return smp_fail_at(smp_op_where(graph, op),
                               "op '%s' (%s): it can be planned, not run: no %s kernel for '%s'",
                               op->name, op->kind->name, smp_backend_of(graph->target)->title,
                               op->kind->name);
        if (op->n_in > SMP_OP_MAX_IN)
            return smp_fail_at(smp_op_where(graph, op),
                               "op '%s' (%s): got %d inputs, expected at most %d to be run",
                               op->name, op->kind->name, (int)op->n_in, (int)SMP_OP_MAX_IN);
    }
    return check_loss(graph);
}

smp_status smp_graph_list_weights(const smp_graph *whole, smp_matched_weight **out)
{
    smp_matched_weight *weight = calloc((size_t)whole->n_param + 1, sizeof *weight);
    if (!weight)
        return smp_fail_memory((size_t)whole->n_param * sizeof *weight);
    for (int32_t i = 0; i < whole->n_param; i++) {
        weight[i].name = whole->param[i].name;
        weight[i].shape.n_dim = whole->param[i].shape.n_dim;
        for (int k = 0; k < weight[i].shape.n_dim; k++)
            weight[i].shape.dim[k] = whole->param[i].shape.dim[k];
    }
    *out = weight;
    return SMP_OK;
}
