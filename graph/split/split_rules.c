/* What the lines of an operator's file say of an op at hand. */
#include "graph/split/graph_split.h"

#include "graph/model/op.h"

static const smp_spread WHOLE = {SMP_WHOLE, 0, 1};

static bool is_chosen(uint8_t cell)
{
    return cell == SMP_CELL_ANY || cell == SMP_CELL_LAST;
}

/* blocks: of DIM0 and so on. */
static smp_spread spread_of(uint8_t cell, smp_split_choice choice, int n_dim, int8_t blocks)
{
    switch (cell) {
    case SMP_CELL_WHOLE:
        return WHOLE;
    case SMP_CELL_SHARED:
        return (smp_spread){SMP_SHARED, 0, 1};
    case SMP_CELL_PARTS:
        return (smp_spread){SMP_PARTS, 0, 1};
    case SMP_CELL_ANY:
        return (smp_spread){SMP_SPLIT, choice.dim, choice.blocks};
    case SMP_CELL_LAST:
        return (smp_spread){SMP_SPLIT, (int8_t)(n_dim - 1), choice.blocks};
    case SMP_CELL_QKV:
        return (smp_spread){SMP_SPLIT, 1, 3};
    case SMP_CELL_ZIGZAG:
        return (smp_spread){SMP_SPLIT, 0, 2};
    case SMP_CELL_BIAS_FIRST:
    case SMP_CELL_BIAS_LAST:
        return WHOLE;
    default:
        return (smp_spread){SMP_SPLIT, (int8_t)(cell - SMP_CELL_DIM0), blocks};
    }
}

static const smp_split_rule *rule_of(const smp_graph *graph, int32_t op, smp_split_choice choice)
{
    return choice.rule < 0 ? NULL : &graph->op[op].kind->split[choice.rule];
}

smp_spread smp_split_in(const smp_graph *graph, int32_t op, smp_split_choice choice, int32_t slot)
{
    const smp_split_rule *rule = rule_of(graph, op, choice);
    if (!rule)
        return WHOLE;
    int n_dim = graph->tensor[graph->op[op].in[slot]].shape.n_dim;
    return spread_of(rule->in[slot < SMP_SPLIT_IN ? slot : SMP_SPLIT_IN - 1], choice, n_dim, 1);
}

smp_spread smp_split_out(const smp_graph *graph, int32_t op, smp_split_choice choice)
{
    const smp_split_rule *rule = rule_of(graph, op, choice);
    if (!rule)
        return WHOLE;
    return spread_of(rule->out, choice, graph->tensor[graph->op[op].out].shape.n_dim, 1);
}

smp_spread smp_split_param(const smp_graph *graph, int32_t op, smp_split_choice choice,
                           int32_t slot, int *bias_dim)
{
    const smp_split_rule *rule = rule_of(graph, op, choice);
    const uint8_t cell = rule ? rule->param[slot] : SMP_CELL_WHOLE;
    if (bias_dim)
        *bias_dim = cell == SMP_CELL_BIAS_FIRST  ? 0
                    : cell == SMP_CELL_BIAS_LAST ? graph->tensor[graph->op[op].out].shape.n_dim - 1
                                                 : -1;
    if (!rule)
        return WHOLE;
    int8_t blocks = is_chosen(rule->in[0]) || is_chosen(rule->out) ? choice.blocks : 1;
    return spread_of(cell, choice, 0, blocks);
}

/* Has every device an equal part? */
static bool divides(smp_spread spread, const smp_shape *shape, int devices)
{
    if (spread.way != SMP_SPLIT)
        return true;
    return spread.dim >= 0 && spread.dim < shape->n_dim &&
           shape->dim[spread.dim] % ((int64_t)spread.blocks * devices) == 0;
}

static bool divides_attrs(const smp_op *op, uint32_t divided, int devices)
{
    for (int a = 0; divided >> a; a++)
        if (divided >> a & 1 && op->attr[a].i % devices != 0)
            return false;
    return true;
}

static bool divides_tensors(const smp_graph *graph, int32_t o, smp_split_choice choice, int devices)
{
    const smp_op *op = &graph->op[o];
    for (int32_t i = 0; i < op->n_in; i++) {
        const smp_tensor *in = &graph->tensor[op->in[i]];
        smp_spread spread = smp_split_in(graph, o, choice, i);
        if (!in->known || !divides(spread, &in->shape, devices) ||
            (spread.way != SMP_WHOLE && (in->planned || !smp_dtype_is_float(in->dtype))))
            return false;
    }
    for (int32_t t = op->out; t < op->out + op->n_out; t++)
        if (!graph->tensor[t].known ||
            !divides(smp_split_out(graph, o, choice), &graph->tensor[t].shape, devices))
            return false;
    for (int32_t p = 0; p < op->n_param; p++)
        if (!divides(smp_split_param(graph, o, choice, p, NULL), &graph->param[op->param[p]].shape,
                     devices))
            return false;
    return true;
}

bool smp_split_whole_first(smp_spread made, int bias_dim, bool has_whole, smp_spread wanted)
{
    if (has_whole || wanted.way == SMP_WHOLE)
        return false;
    if (wanted.way == SMP_SHARED) /* one sum of the values, whoever reads them */
        return made.way != SMP_SPLIT;
    if (bias_dim >= 0) /* the bias itself is never split: others may read the sum otherwise */
        return wanted.dim == bias_dim;
    return made.way == SMP_SPLIT && wanted.way == SMP_SPLIT &&
           (made.dim == wanted.dim || made.blocks > 1 || wanted.blocks > 1);
}

/* Are there kernels of what the op becomes, for the graph's target? */
static bool has_kernels(const smp_graph *graph, const smp_split_rule *rule)
{
    return !rule->kind || smp_op_kind_runs(smp_op_kind_find(rule->kind), graph->target.backend);
}

bool smp_split_allows(const smp_graph *graph, int32_t o, smp_split_choice choice, int devices)
{
    const smp_op *op = &graph->op[o];
    if (choice.rule < 0)
        return true;
    if (!op->kind->split || op->cost || choice.blocks < 1 || choice.blocks > SMP_SPLIT_BLOCKS)
        return false;
    for (int r = 0; r <= choice.rule; r++)
        if (!op->kind->split[r].name)
            return false;
    const smp_split_rule *rule = &op->kind->split[choice.rule];
    if (choice.blocks == 2 && (rule->in[0] != SMP_CELL_ANY || choice.dim != 0))
        return false; /* of positions alone */
    return has_kernels(graph, rule) && divides_attrs(op, rule->divided, devices) &&
           divides_tensors(graph, o, choice, devices) &&
           (!rule->allows || rule->allows(graph, op, choice, devices));
}

int smp_split_choices(const smp_graph *graph, int32_t o, int devices,
                      smp_split_choice out[SMP_SPLIT_CHOICES])
{
    const smp_op *op = &graph->op[o];
    const smp_split_rule *rules = op->kind->split;
    int n = 0;
    out[n++] = (smp_split_choice){-1, 0, 1};
    for (int8_t r = 0; rules && rules[r].name; r++) {
        const bool any = rules[r].in[0] == SMP_CELL_ANY;
        const bool blocks = is_chosen(rules[r].in[0]) || is_chosen(rules[r].out);
        for (int8_t dim = 0; dim < (any ? SMP_MAX_DIMS : 1); dim++)
            for (int8_t b = 1; b <= (blocks ? SMP_SPLIT_BLOCKS : 1); b++) {
                const smp_split_choice choice = {r, dim, b};
                if (n < SMP_SPLIT_CHOICES && smp_split_allows(graph, o, choice, devices))
                    out[n++] = choice;
            }
    }
    return n;
}
