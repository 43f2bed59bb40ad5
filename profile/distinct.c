/* Classes of equal ops: a key of text per op, looked up in a hash map. Linear in the graph; only
 * the keys of distinct ops are kept. */
#include "profile/distinct.h"

#include "graph/base/text.h"
#include "profile/estimate.h"

static void append_attr(smp_text *key, const smp_attr_desc *desc, const smp_attr_value *value)
{
    smp_text_append(key, ";");
    switch (desc->type) {
    case SMP_ATTR_INT:
    case SMP_ATTR_BOOL:
    case SMP_ATTR_CHOICE:
        smp_text_append(key, "%lld", (long long)value->i);
        break;
    case SMP_ATTR_FLOAT:
        smp_text_append_double(key, value->f);
        break;
    case SMP_ATTR_STRING:
        smp_text_append_quoted(key, value->s.text ? value->s.text : "");
        break;
    case SMP_ATTR_INT_LIST:
    case SMP_ATTR_INTS:
        for (int64_t i = 0; i < value->list.count; i++)
            smp_text_append(key, "%lld,", (long long)value->list.items[i]);
        break;
    case SMP_ATTR_FLOAT_LIST:
        for (int64_t i = 0; i < value->floats.count; i++) {
            smp_text_append_double(key, value->floats.items[i]);
            smp_text_append(key, ",");
        }
        break;
    }
}

static void append_shape(smp_text *key, const smp_shape *shape)
{
    for (int i = 0; i < shape->n_dim; i++)
        smp_text_append(key, "%lldx", (long long)shape->dim[i]);
}

/* Ops with equal keys take the same time. */
static smp_status op_key(const smp_graph *graph, const smp_op *op, smp_text *key)
{
    key->length = 0;
    smp_text_append(key, "%s", op->kind->name);
    for (int i = 0; op->kind->attrs && op->kind->attrs[i].name; i++)
        append_attr(key, &op->kind->attrs[i], &op->attr[i]);
    for (int32_t i = 0; i < op->n_in; i++) {
        const smp_tensor *in = &graph->tensor[op->in[i]];
        smp_text_append(key, "|%d%d%d%d:", (int)in->dtype, in->batched, in->needs_grad,
                        in->channels_last);
        append_shape(key, &in->shape);
    }
    for (int32_t i = 0; i < op->n_param; i++) {
        smp_text_append(key, "|w:");
        append_shape(key, &graph->param[op->param[i]].shape);
    }
    for (int32_t t = op->out; t < op->out + op->n_out; t++)
        smp_text_append(key, "|%d%d", graph->tensor[t].needs_grad, graph->tensor[t].channels_last);
    const int32_t index = (int32_t)(op - graph->op);
    const bool first = smp_op_fused(graph, index);
    smp_op_work work;
    smp_op_work_get(graph, op, 1, &work);
    smp_text_append(key, "%s%s%s%s%s%s%s%s", work.fp8 ? "|fp8" : "",
                    smp_op_absorbs(graph, op) ? "|absorbs" : "",
                    smp_op_passes_dout(graph, op) ? "|passes" : "", first ? "|first:" : "",
                    first ? op[1].kind->name : "", smp__is_fused_second(graph, op) ? "|second" : "",
                    smp__is_fused_backward(graph, op) ? "|back" : "",
                    index > 0 && smp__is_fused_backward(graph, op - 1) ? "|takes back" : "");
    return key->failed ? smp_fail_memory(key->capacity) : SMP_OK;
}

typedef struct collector {
    const smp_graph *graph;
    smp_arena *arena;
    smp_map *map;
    smp_text key;
    int32_t *class_of, *first;
    int32_t n;
} collector;

static smp_status collect(collector *c, int32_t index)
{
    int64_t found;
    char *kept;
    SMP_TRY(op_key(c->graph, &c->graph->op[index], &c->key));
    if (smp_map_get(c->map, c->key.data, &found)) {
        c->class_of[index] = (int32_t)found;
        return SMP_OK;
    }
    kept = smp_arena_strdup(c->arena, c->key.data);
    if (!kept)
        return SMP_ERR_NO_MEMORY;
    c->class_of[index] = c->n;
    c->first[c->n] = index;
    return smp_map_set(c->map, kept, c->n++);
}

smp_status smp__distinct_ops(const smp_graph *graph, smp_arena *arena, smp__distinct *out)
{
    smp_status status = SMP_OK;
    collector c = {.graph = graph, .arena = arena};
    c.class_of = SMP_ARENA_NEW(arena, int32_t, (size_t)graph->n_op);
    c.first = SMP_ARENA_NEW(arena, int32_t, (size_t)graph->n_op);
    if (!c.class_of || !c.first)
        return SMP_ERR_NO_MEMORY;
    c.map = smp_map_create();
    if (!c.map)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < graph->n_op && status == SMP_OK; i++)
        status = collect(&c, i);
    if (status == SMP_OK)
        *out = (smp__distinct){.n = c.n, .class_of = c.class_of, .first = c.first};
    smp_text_free(&c.key);
    smp_map_destroy(c.map);
    return status;
}
