/* Tensors by name, whatever the plan: exec/predict/whole_tensor.h. */
#include "exec/predict/whole_tensor.h"

#include <string.h>

#include "graph/model/op.h"
#include "graph/split/split_text.h"

static smp_status choice_of(const smp *s, const smp_graph *whole, int32_t op, int devices,
                            smp_split_choice *choice)
{
    const smp_splitting *splitting = &s->plan->splitting;
    *choice = (smp_split_choice){-1, 0, 1};
    for (int32_t i = 0; i < splitting->n_entry; i++)
        if (strcmp(splitting->entry[i].op, whole->op[op].name) == 0)
            return smp_split_parse(whole, op, devices, splitting->entry[i].as, choice);
    return SMP_OK;
}

/* The op of that kind which reads the tensor, or -1. */
static int32_t find_reader(const smp_graph *graph, int32_t tensor, const char *kind)
{
    for (int64_t i = graph->consumer_begin[tensor]; i < graph->consumer_begin[tensor + 1]; i++)
        if (strcmp(graph->op[graph->consumer[i].op].kind->name, kind) == 0)
            return graph->consumer[i].op;
    return -1;
}

static int64_t attribute(const smp_op *op, const char *name)
{
    return op->attr[smp_op_attr_index(op->kind, name)].i;
}

/* Summands are added up by a collective op after them, which may lack a bias that an op adds. */
static bool follow_sum(const smp_graph *graph, bool lacks_bias, smp__whole_tensor *t)
{
    int32_t op = find_reader(graph, t->here, "all_reduce");
    t->way = (smp_spread){SMP_WHOLE, 0, 1};
    if (op < 0) {
        op = find_reader(graph, t->here, "reduce_scatter");
        if (op < 0)
            return false;
        t->way = (smp_spread){SMP_SPLIT, (int8_t)attribute(&graph->op[op], "axis"),
                              (int8_t)attribute(&graph->op[op], "blocks")};
    }
    t->here = graph->op[op].out;
    op = lacks_bias ? find_reader(graph, t->here, "bias") : -1;
    if (op >= 0)
        t->here = graph->op[op].out;
    return !lacks_bias || op >= 0;
}

static smp_status find_here(const smp *s, const smp_graph *whole, smp__whole_tensor *t)
{
    const int32_t op = whole->tensor[t->whole].producer;
    const smp_op *made = &whole->op[op];
    smp_split_choice choice;
    int bias_dim = -1;
    const int32_t same = smp_graph_find_op(s->graph, made->name);
    t->devices = smp_plan_rank_tensor(s->plan, s->work->stage_rank[s->work->stage_of_op[same]]);
    SMP_TRY(choice_of(s, whole, op, t->devices, &choice));
    t->here = s->graph->op[same].out + t->whole - made->out;
    t->way = smp_split_out(whole, op, choice);
    for (int32_t p = 0; p < made->n_param && bias_dim < 0; p++)
        smp_split_param(whole, op, choice, p, &bias_dim);
    if (t->way.way == SMP_PARTS && !follow_sum(s->graph, bias_dim >= 0, t))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: '%s' lies in summands over the devices that nothing adds up; ask for "
                        "what reads it",
                        whole->path, made->name);
    if (t->way.way == SMP_SHARED)
        t->way.way = SMP_WHOLE;
    return SMP_OK;
}

smp_status smp__whole_tensor_find(const smp *s, const char *name, smp__whole_tensor *out)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    SMP_TRY(smp_graph_find_made(whole, name, &out->whole));
    out->here = out->whole;
    out->way = (smp_spread){SMP_WHOLE, 0, 1};
    out->devices = 1;
    return whole == s->graph ? SMP_OK : find_here(s, whole, out);
}

void smp__whole_tensor_put(const smp *s, const smp__whole_tensor *tensor, int device, int64_t count,
                           const char *part, char *whole)
{
    const smp_shape *shape = &smp_graph_whole(s->graph)->tensor[tensor->whole].shape;
    const int64_t devices = tensor->devices;
    int64_t outer = count, inner = 4;
    for (int d = 0; d < tensor->way.dim; d++)
        outer *= shape->dim[d];
    for (int d = tensor->way.dim + 1; d < shape->n_dim; d++)
        inner *= shape->dim[d];
    const int64_t rows = shape->dim[tensor->way.dim], blocks = tensor->way.blocks;
    const int64_t own = rows / devices / blocks;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t b = 0; b < blocks; b++)
            memcpy(whole + (o * rows + smp_split_part(blocks, devices, b, device) * own) * inner,
                   part + (o * blocks + b) * own * inner, (size_t)(own * inner));
}
