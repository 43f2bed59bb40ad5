/* Completing a graph: uses of weights, consumers of tensors (both CSR by counting sort), gradient
 * flags and the fingerprint. And what may be changed of one that was read: which weights are
 * frozen, which pairs of ops are one. Linear in ops and connections, for each pair. */
#include <stdlib.h>
#include <string.h>

#include "graph/base/random.h"
#include "graph/base/text.h"
#include "graph/model/graph_store.h"
#include "graph/model/op.h"

smp_status smp__graph_index_uses(smp__graph_store *store)
{
    smp_graph *g = &store->graph;
    smp_param *param = store->param;
    for (int32_t o = 0; o < g->n_op; o++) {
        for (int32_t slot = 0; slot < g->op[o].n_param; slot++)
            param[g->op[o].param[slot]].use_end++;
    }
    int64_t total = 0;
    for (int32_t p = 0; p < g->n_param; p++) {
        int32_t count = param[p].use_end;
        param[p].use_begin = param[p].use_end = (int32_t)total;
        total += count;
    }
    if (total > INT32_MAX)
        return smp_fail(SMP_ERR_INPUT, "%s: %lld weights, expected at most %d", g->path,
                        (long long)total, INT32_MAX);
    smp_use *use = smp_arena_alloc_aligned(g->arena, (size_t)total, sizeof *use, 4);
    if (!use)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < g->n_op; o++) {
        const smp_op *op = &g->op[o];
        int32_t *op_use = (int32_t *)op->use; /* ours: allocated beside op->param */
        for (int32_t slot = 0; slot < op->n_param; slot++) {
            int32_t p = op->param[slot];
            op_use[slot] = param[p].use_end++;
            use[op_use[slot]] = (smp_use){p, o, slot};
        }
    }
    g->use = use;
    g->n_use = (int32_t)total;
    return SMP_OK;
}

smp_status smp__graph_index_consumers(smp__graph_store *store)
{
    smp_graph *g = &store->graph;
    size_t n = (size_t)g->n_tensor;
    int64_t *begin = smp_arena_alloc_aligned(g->arena, n + 1, sizeof *begin, 8);
    if (!begin)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < g->n_op; o++) {
        for (int32_t slot = 0; slot < g->op[o].n_in; slot++)
            begin[g->op[o].in[slot] + 1]++;
    }
    for (size_t t = 0; t < n; t++)
        begin[t + 1] += begin[t];
    smp_consumer *consumer =
        smp_arena_alloc_aligned(g->arena, (size_t)begin[n], sizeof *consumer, 4);
    if (!consumer)
        return SMP_ERR_NO_MEMORY;
    /* Fill with begin[t] as the cursor of t: it ends at the start of t + 1; then shift back. */
    for (int32_t o = 0; o < g->n_op; o++) {
        for (int32_t slot = 0; slot < g->op[o].n_in; slot++)
            consumer[begin[g->op[o].in[slot]]++] = (smp_consumer){o, slot};
    }
    memmove(begin + 1, begin, n * sizeof *begin);
    begin[0] = 0;
    g->consumer_begin = begin;
    g->consumer = consumer;
    return SMP_OK;
}

/* Has it weights of which a gradient is wanted? What hides its weights counts as having some. */
static bool is_trained(const smp_graph *g, const smp_op *op, bool freeze)
{
    for (int32_t k = 0; k < op->n_param; k++) {
        const smp_param *param = &g->param[op->param[k]];
        if (!param->running && !(freeze && param->frozen))
            return true;
    }
    return op->hides_weights;
}

/* Weights upstream, kept in needs_grad. */
static void mark_upstream(const smp_graph *g, smp_tensor *tensor, bool freeze)
{
    for (int32_t o = 0; o < g->n_op; o++) {
        const smp_op *op = &g->op[o];
        bool upstream = is_trained(g, op, freeze);
        for (int32_t i = 0; i < op->n_in && !upstream; i++)
            upstream = tensor[op->in[i]].needs_grad;
        for (int32_t t = op->out; t < op->out + op->n_out; t++)
            tensor[t].needs_grad =
                upstream && !op->no_gradient && smp_dtype_is_float(tensor[t].dtype);
    }
}

/* What the loss is made from stays marked. */
static smp_status mark_reaching(const smp_graph *g, smp_tensor *tensor)
{
    if (g->loss < 0)
        return SMP_OK;
    bool *reaches = calloc((size_t)g->n_tensor, sizeof *reaches);
    if (!reaches)
        return smp_fail_memory((size_t)g->n_tensor * sizeof *reaches);
    reaches[g->loss] = true;
    for (int32_t o = g->n_op - 1; o >= 0; o--) {
        const smp_op *op = &g->op[o];
        bool passes = false; /* no gradient passes an integer tensor */
        for (int32_t t = op->out; t < op->out + op->n_out && !op->no_gradient; t++)
            passes |= reaches[t] && smp_dtype_is_float(tensor[t].dtype);
        for (int32_t i = 0; i < op->n_in && passes; i++)
            reaches[op->in[i]] = true;
    }
    for (int32_t t = 0; t < g->n_tensor; t++)
        tensor[t].needs_grad = tensor[t].needs_grad && reaches[t];
    free(reaches);
    return SMP_OK;
}

/* Frozen weights that only ops use whose other weights are frozen too. A split graph's own: an op
 * of the whole may be several there. */
static void mark_idle(smp__graph_store *store)
{
    const smp_graph *g = &store->graph;
    for (int32_t p = 0; p < g->n_param; p++) {
        smp_param *param = &store->param[p];
        param->idle = param->frozen;
        for (int32_t u = param->use_begin; u < param->use_end && param->idle; u++)
            param->idle = !smp_op_has_trained(g, &g->op[g->use[u].op]);
    }
}

/* Twice: with every weight trained, to see whose statistics would go on, and as it is. */
smp_status smp__graph_mark_gradients(smp__graph_store *store, smp_tensor *tensor)
{
    const smp_graph *g = &store->graph;
    if (!g->training)
        return SMP_OK;
    smp_op *op = (smp_op *)g->op; /* ours */
    mark_upstream(g, tensor, false);
    SMP_TRY(mark_reaching(g, tensor));
    for (int32_t o = 0; o < g->n_op; o++)
        op[o].statistics = smp_op_has_gradient(g, &op[o]);
    mark_upstream(g, tensor, true);
    SMP_TRY(mark_reaching(g, tensor));
    for (int32_t o = 0; o < g->n_op; o++)
        op[o].statistics = op[o].statistics && !smp_op_has_gradient(g, &op[o]) &&
                           smp_op_has_trained(g, &op[o]); /* the running ones, then */
    mark_idle(store);
    return SMP_OK;
}

smp_status smp_graph_freeze(smp_graph *graph, const bool *frozen)
{
    smp__graph_store *store = (smp__graph_store *)graph;
    bool any = false;
    store->graph.freezes = true;
    for (int32_t p = 0; p < graph->n_param; p++)
        store->param[p].frozen = frozen[p] && !store->param[p].running;
    SMP_TRY(smp__graph_mark_gradients(store, (smp_tensor *)graph->tensor)); /* ours */
    for (int32_t t = 0; t < graph->n_tensor && !any; t++)
        any = graph->tensor[t].needs_grad && (graph->loss < 0 || t == graph->loss);
    if (any || !graph->training)
        return SMP_OK;
    return smp_fail_at((smp_where){graph->path, 0, 0},
                       "no weight that the loss depends on is left to train, expected one that is "
                       "not frozen");
}

/* Does the file say of the op something that one op in place of two would lose? */
static bool has_wishes(const smp_op *op)
{
    return op->cost || op->no_gradient;
}

static const smp_op_kind *joined_kind(const smp_graph *graph, int32_t index)
{
    const smp_op *op = &graph->op[index];
    const smp_tensor *in = op->n_in > 0 ? &graph->tensor[op->in[0]] : NULL;
    if (!op->kind->joins || in->producer < 0 || !smp_tensor_is_read_once(graph, op->in[0]))
        return NULL;
    const smp_op *before = &graph->op[in->producer];
    const bool pinned_apart = op->pin >= 0 && before->pin >= 0 && op->pin != before->pin;
    if (pinned_apart || before->n_out > 1 || op->n_param > 0 || has_wishes(op) ||
        has_wishes(before))
        return NULL;
    return op->kind->joins(graph, op, before);
}

/* Attributes of the joined kind go by name. */
static smp_status join_attrs(smp_graph *graph, const smp_op_kind *kind, const smp_op *op,
                             const smp_op *before, const smp_attr_value **out)
{
    int n = 0;
    while (kind->attrs && kind->attrs[n].name)
        n++;
    smp_attr_value *value = SMP_ARENA_NEW(graph->arena, smp_attr_value, (size_t)n);
    if (!value)
        return SMP_ERR_NO_MEMORY;
    for (int a = 0; a < n; a++) {
        const int own = smp_op_attr_index(op->kind, kind->attrs[a].name);
        const int other = smp_op_attr_index(before->kind, kind->attrs[a].name);
        if (own >= 0)
            value[a] = op->attr[own];
        else if (other >= 0)
            value[a] = before->attr[other];
        else
            value[a].i = (int64_t)kind->attrs[a].default_value;
    }
    *out = value;
    return SMP_OK;
}

/* Inputs of `before`, then those of the op but its first. */
static smp_status join_inputs(smp_graph *graph, const smp_op *op, const smp_op *before,
                              const int32_t **out)
{
    const size_t first = (size_t)before->n_in, rest = (size_t)op->n_in - 1;
    int32_t *in = SMP_ARENA_NEW(graph->arena, int32_t, first + rest);
    if (!in)
        return SMP_ERR_NO_MEMORY;
    memcpy(in, before->in, first * sizeof *in);
    memcpy(in + first, op->in + 1, rest * sizeof *in);
    *out = in;
    return SMP_OK;
}

/* The op, which has taken over what it needs of it, is left without `before`, and the graph without
 * the one tensor that that made. */
static void leave_out(smp_graph *graph, int32_t before)
{
    smp_op *op = (smp_op *)graph->op; /* ours, as all that is written here */
    smp_tensor *tensor = (smp_tensor *)graph->tensor;
    const int32_t made = op[before].out;
    memmove(op + before, op + before + 1, (size_t)(graph->n_op - before - 1) * sizeof *op);
    memmove(tensor + made, tensor + made + 1,
            (size_t)(graph->n_tensor - made - 1) * sizeof *tensor);
    graph->n_op--;
    graph->n_tensor--;
    graph->loss -= graph->loss > made;
    for (int32_t t = 0; t < graph->n_tensor; t++)
        tensor[t].producer -= tensor[t].producer > before;
    for (int32_t o = 0; o < graph->n_op; o++) {
        op[o].out -= op[o].out > made;
        for (int32_t i = 0; i < op[o].n_in; i++) {
            int32_t *in = (int32_t *)&op[o].in[i];
            *in -= *in > made;
        }
    }
}

static smp_status join(smp_graph *graph, int32_t index, const smp_op_kind *kind)
{
    smp_op *op = (smp_op *)&graph->op[index]; /* ours */
    const int32_t producer = graph->tensor[op->in[0]].producer;
    const smp_op *before = &graph->op[producer];
    const smp_attr_value *attr;
    const int32_t *in;
    SMP_TRY(join_attrs(graph, kind, op, before, &attr));
    SMP_TRY(join_inputs(graph, op, before, &in));
    op->kind = kind;
    op->attr = attr;
    op->n_in = before->n_in + op->n_in - 1;
    op->in = in;
    op->n_param = before->n_param;
    op->param = before->param;
    op->use = before->use;
    op->pin = op->pin >= 0 ? op->pin : before->pin;
    leave_out(graph, producer);
    return SMP_OK;
}

/* What is found by way of ops and tensors, anew. */
static smp_status index_again(smp__graph_store *store)
{
    const smp_graph *graph = &store->graph;
    smp__name_index_free(&store->op_index);
    store->op_index = SMP__NAME_INDEX(smp_op, name);
    for (int32_t o = 0; o < graph->n_op; o++)
        SMP_TRY(smp__name_index_put(&store->op_index, graph->op, o));
    for (int32_t p = 0; p < graph->n_param; p++)
        store->param[p].use_begin = store->param[p].use_end = 0;
    SMP_TRY(smp__graph_index_uses(store));
    SMP_TRY(smp__graph_index_consumers(store));
    return smp__graph_mark_gradients(store, (smp_tensor *)graph->tensor); /* ours */
}

smp_status smp_graph_join(smp_graph *graph)
{
    for (int32_t o = 0; graph->training && o < graph->n_op; o++) {
        const smp_op_kind *kind = joined_kind(graph, o);
        if (!kind)
            continue;
        SMP_TRY(join(graph, o, kind));
        SMP_TRY(index_again((smp__graph_store *)graph));
        o--; /* where the next one stands now */
    }
    return SMP_OK;
}

smp_status smp_graph_read_joined(const char *path, smp_settings settings, smp_graph **out)
{
    smp_graph *graph;
    SMP_TRY(smp_graph_read_with(path, settings, &graph));
    const smp_status status = smp_graph_join(graph);
    if (status == SMP_OK)
        *out = graph;
    else
        smp_graph_destroy(graph);
    return status;
}

static uint64_t hash_int(uint64_t h, int64_t value)
{
    return smp_random_mix(h ^ (uint64_t)value);
}

/* With its length: "ab", "c" differs from "a", "bc". */
static uint64_t hash_text(uint64_t h, const char *text)
{
    size_t length = strlen(text);
    return smp_hash(hash_int(h, (int64_t)length), text, length);
}

static uint64_t hash_shape(uint64_t h, const smp_shape *shape)
{
    h = hash_int(h, shape->n_dim);
    for (int d = 0; d < shape->n_dim; d++)
        h = hash_int(h, shape->dim[d]);
    return h;
}

/* The text of an attribute. `weight:` is a tie of the first weight written in short: whichever way
 * it is written, and whichever op's name stands for the weight, it is that of the weight. */
static const char *text_of(const smp_graph *g, const smp_op *op, int a)
{
    if (strcmp(op->kind->attrs[a].name, "weight") != 0)
        return op->attr[a].s.text;
    const smp_param *param = op->n_param > 0 ? &g->param[op->param[0]] : NULL;
    bool own = !param || g->use[param->use_begin].op == op - g->op;
    return own ? NULL : param->name;
}

static bool is_default(const smp_attr_desc *desc, const smp_attr_value *value)
{
    switch (desc->type) {
    case SMP_ATTR_FLOAT:
        return value->f == desc->default_value;
    case SMP_ATTR_INT_LIST:
    case SMP_ATTR_INTS:
        return value->list.count == 0;
    case SMP_ATTR_FLOAT_LIST:
        return value->floats.count == 0;
    default:
        return value->i == (int64_t)desc->default_value;
    }
}

static uint64_t hash_float(uint64_t h, double value)
{
    const double f = value + 0.0; /* -0 and 0 are the same number */
    int64_t bits;
    memcpy(&bits, &f, sizeof bits);
    return hash_int(h, bits);
}

/* Attributes enter by name and only where they differ from the default, so that a kind can gain an
 * attribute without changing the fingerprint of the models that do not use it. */
static uint64_t hash_attrs(uint64_t h, const smp_graph *g, const smp_op *op)
{
    const smp_attr_desc *desc = op->kind->attrs;
    for (int a = 0; desc && desc[a].name; a++) {
        const smp_attr_value *value = &op->attr[a];
        const bool is_text = desc[a].type == SMP_ATTR_STRING;
        const char *text = is_text ? text_of(g, op, a) : NULL;
        if (is_text ? !text : !desc[a].required && is_default(&desc[a], value))
            continue;
        h = hash_text(h, desc[a].name);
        switch (desc[a].type) {
        case SMP_ATTR_FLOAT:
            h = hash_float(h, value->f);
            break;
        case SMP_ATTR_FLOAT_LIST:
            h = hash_int(h, value->floats.count);
            for (int64_t i = 0; i < value->floats.count; i++)
                h = hash_float(h, value->floats.items[i]);
            break;
        case SMP_ATTR_CHOICE:
            h = hash_text(h, desc[a].choices[value->i]);
            break;
        case SMP_ATTR_STRING:
            h = hash_text(h, text);
            break;
        case SMP_ATTR_INT_LIST:
        case SMP_ATTR_INTS:
            h = hash_int(h, value->list.count);
            for (int64_t i = 0; i < value->list.count; i++)
                h = hash_int(h, value->list.items[i]);
            break;
        default:
            h = hash_int(h, value->i);
            break;
        }
    }
    return h;
}

/* Its type on the default target. */
static smp_dtype dtype_of(const smp_tensor *t)
{
    return smp_dtype_is_float(t->dtype) && !t->planned ? SMP_F32 : t->dtype;
}

uint64_t smp__graph_fingerprint(const smp_graph *graph, bool training)
{
    uint64_t h = hash_text(0, "smp model 1");
    h = hash_int(h, training);
    h = hash_int(h, graph->n_input);
    for (int32_t t = 0; t < graph->n_input; t++) {
        h = hash_text(h, graph->tensor[t].name);
        h = hash_int(h, dtype_of(&graph->tensor[t]));
        h = hash_shape(h, &graph->tensor[t].shape);
    }
    h = hash_int(h, graph->n_op);
    for (int32_t o = 0; o < graph->n_op; o++) {
        const smp_op *op = &graph->op[o];
        h = hash_text(hash_text(h, op->kind->name), op->name);
        h = hash_attrs(h, graph, op);
        h = hash_int(h, op->n_in);
        for (int32_t i = 0; i < op->n_in; i++)
            h = hash_int(h, op->in[i]);
        h = hash_int(h, op->n_param);
        for (int32_t p = 0; p < op->n_param; p++) {
            h = hash_int(h, op->param[p]);
            if (op->kind->accepts_unknown) /* its attributes do not say how large it is */
                h = hash_int(h, graph->param[op->param[p]].elements);
        }
        if (op->n_out > 1)
            h = hash_int(h, op->n_out);
        if (op->no_gradient)
            h = hash_text(h, "no gradient");
        for (int32_t t = op->out; t < op->out + op->n_out; t++) {
            const smp_tensor *out = &graph->tensor[t];
            h = hash_int(h, (out->planned ? 0 : dtype_of(out)) + 2 * out->batched + 4 * out->known);
            if (out->planned)
                h = hash_text(h, smp_dtype_names[out->dtype]);
            if (out->known)
                h = hash_shape(h, &out->shape);
        }
    }
    return hash_int(h, graph->loss);
}
