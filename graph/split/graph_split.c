/* One walk over the ops in order. Every tensor of the whole graph has a list of what stands for it
 * on this device: as its op makes it, and each other way in which it has been read so far. */
#include "graph/split/graph_split.h"

#include <stdlib.h>
#include <string.h>

#include "graph/model/graph_store.h"
#include "graph/model/op.h"

typedef struct version {
    smp_spread spread;
    int devices;    /* over which it lies so */
    int32_t tensor; /* of the new graph */
    int bias_dim;   /* -1; else its sum lacks a bias along this dimension: nobody else reads it */
    struct version *next;
} version;

typedef struct splitter {
    const smp_graph *from;
    smp__graph_store *store;
    const smp_split_choice *choice;
    int all;       /* devices, of the largest group */
    const int *of; /* [n_op]; NULL: all of them */
    int devices;   /* of the op at hand */
    int index;
    smp_op *op;
    smp_tensor *tensor;
    version **made;    /* [tensors of the whole graph]: its op's own first */
    int32_t *param;    /* [weights of the whole graph]: that of the new graph, or -1 */
    int32_t *param_op; /* the op that made it so */
    smp_arena *scratch;
    int32_t only; /* the op or tensor, where there is to be one alone */
    smp_spread from_way, to_way;
    int bias_dim;
} splitter;

static bool same(smp_spread a, smp_spread b)
{
    return a.way == b.way && (a.way != SMP_SPLIT || (a.dim == b.dim && a.blocks == b.blocks));
}

static version *add_version(splitter *s, int32_t old, smp_spread spread, int32_t tensor)
{
    version *v = SMP_ARENA_NEW(s->scratch, version, 1);
    if (!v)
        return NULL;
    *v = (version){.spread = spread, .devices = s->devices, .tensor = tensor, .bias_dim = -1};
    version **end = &s->made[old];
    while (*end)
        end = &(*end)->next;
    *end = v;
    return v;
}

/* What is whole is so for groups of any size. */
static const version *find_version(const splitter *s, int32_t old, smp_spread spread)
{
    for (const version *v = s->made[old]; v; v = v->next)
        if (same(v->spread, spread) && v->bias_dim < 0 &&
            (v->devices == s->devices || spread.way == SMP_WHOLE))
            return v;
    return NULL;
}

/* The shape of a part. */
static smp_shape part_shape(smp_shape shape, smp_spread spread, int devices)
{
    if (spread.way == SMP_SPLIT)
        shape.dim[spread.dim] /= devices;
    return shape;
}

static smp_status add_tensor(splitter *s, const smp_tensor *like, const smp_shape *shape,
                             const char *name, int32_t producer, int32_t *out)
{
    smp_graph *g = &s->store->graph;
    smp_tensor *t = &s->tensor[g->n_tensor];
    *t = *like;
    t->needs_grad = false;
    t->unsplit = like->unsplit && producer < 0;
    t->producer = producer;
    t->shape = *shape;
    t->elements = like->known ? smp_shape_elements(shape) : 0;
    t->name = smp_arena_strdup(g->arena, name);
    *out = g->n_tensor++;
    return t->name ? SMP_OK : SMP_ERR_NO_MEMORY;
}

/* An op whose name and inputs are set joins the graph. */
static smp_status push_op(splitter *s)
{
    smp_graph *g = &s->store->graph;
    SMP_TRY(smp__name_index_put(&s->store->op_index, s->op, g->n_op));
    g->n_op++;
    return SMP_OK;
}

/* "<name>:<suffix>", with more after it while an op has that name. */
static smp_status name_op(splitter *s, smp_op *op, const char *name, const char *suffix)
{
    smp_graph *g = &s->store->graph;
    const char *more = "";
    do {
        op->name = smp_arena_printf(g->arena, "%s:%s%s", name, suffix, more);
        if (!op->name)
            return SMP_ERR_NO_MEMORY;
        more = *more ? smp_arena_printf(s->scratch, "%s'", more) : "'";
        if (!more)
            return SMP_ERR_NO_MEMORY;
    } while (smp_graph_find_op(s->from, op->name) >= 0 ||
             smp__name_index_find(&s->store->op_index, s->op, op->name) >= 0);
    return SMP_OK;
}

static int count_attrs(const smp_op_kind *kind)
{
    int n = 0;
    while (kind->attrs && kind->attrs[n].name)
        n++;
    return n;
}

/* An op of one input and one output that the whole graph does not have. old: which of its tensors
 * the new one stands for. attrs: names and values, ended by NULL. */
typedef struct attr {
    const char *name;
    int64_t value;
} attr;

static smp_status begin_op(splitter *s, const char *kind, int32_t old, int32_t in,
                           const char *suffix, const attr *attrs, smp_op **out)
{
    smp_graph *g = &s->store->graph;
    const smp_tensor *whole = &s->from->tensor[old];
    const smp_op *maker = whole->producer >= 0 ? &s->from->op[whole->producer] : NULL;
    smp_op *op = &s->op[g->n_op];
    *op = (smp_op){.kind = smp_op_kind_find(kind), .n_in = 1, .n_out = 1, .pin = -1, .group = -1};
    op->line = maker ? maker->line : 0;
    op->column = maker ? maker->column : 0;
    const int n_attr = count_attrs(op->kind);
    smp_attr_value *value = SMP_ARENA_NEW(g->arena, smp_attr_value, (size_t)n_attr);
    int32_t *inputs = SMP_ARENA_NEW(g->arena, int32_t, 1);
    if (!value || !inputs)
        return SMP_ERR_NO_MEMORY;
    for (int a = 0; a < n_attr; a++)
        value[a].i = (int64_t)op->kind->attrs[a].default_value;
    for (; attrs->name; attrs++)
        value[smp_op_attr_index(op->kind, attrs->name)].i = attrs->value;
    inputs[0] = in;
    op->attr = value;
    op->in = inputs;
    op->out = g->n_tensor;
    *out = op;
    return name_op(s, op, maker && maker->n_out == 1 ? maker->name : whole->name, suffix);
}

/* From one way to another, by one op. */
static smp_status convert(splitter *s, int32_t old, int32_t in, smp_spread from, smp_spread to,
                          int32_t *out)
{
    static const char *const suffixes[] = {"whole", "part", "parts", "shared"};
    const smp_tensor *whole = &s->from->tensor[old];
    const smp_shape shape = part_shape(whole->shape, to, s->devices);
    const bool gradient = to.way == SMP_SHARED;
    const attr reduce[] = {
        {"devices", s->devices}, {"value", from.way == SMP_PARTS}, {"gradient", gradient}, {0}};
    const attr gather[] = {{"devices", s->devices},
                           {"axis", from.dim},
                           {"blocks", from.blocks},
                           {"summands", gradient},
                           {0}};
    const attr scatter[] = {{"devices", s->devices},
                            {"axis", to.dim},
                            {"blocks", to.blocks},
                            {"sum", from.way == SMP_PARTS},
                            {0}};
    const attr exchange[] = {{"devices", s->devices}, {"from", from.dim}, {"to", to.dim}, {0}};
    const char *suffix = suffixes[to.way];
    smp_op *op;
    if (to.way == SMP_SPLIT) {
        suffix =
            smp_arena_printf(s->scratch, to.blocks > 1 ? "part%d.%d" : "part%d", to.dim, to.blocks);
        if (!suffix)
            return SMP_ERR_NO_MEMORY;
    }
    if (from.way == SMP_SPLIT && to.way == SMP_SPLIT)
        SMP_TRY(begin_op(s, "all_to_all", old, in, suffix, exchange, &op));
    else if (from.way == SMP_SPLIT)
        SMP_TRY(begin_op(s, "all_gather", old, in, suffix, gather, &op));
    else if (to.way == SMP_SPLIT)
        SMP_TRY(begin_op(s, "reduce_scatter", old, in, suffix, scatter, &op));
    else
        SMP_TRY(begin_op(s, "all_reduce", old, in, suffix, reduce, &op));
    SMP_TRY(add_tensor(s, whole, &shape, op->name, s->store->graph.n_op, out));
    return push_op(s);
}

/* The weight of an op, in the new graph; made by the first that uses it. */
static smp_status take_param(splitter *s, int32_t old_op, int32_t old, smp_spread spread,
                             int32_t *out)
{
    smp_graph *g = &s->store->graph;
    const smp_param *whole = &s->from->param[old];
    if (spread.way == SMP_SHARED)
        spread = (smp_spread){SMP_WHOLE, 0, 1};
    if (s->param[old] >= 0) {
        *out = s->param[old];
        const smp_op *op = &s->from->op[old_op];
        if (s->store->param[*out].part.count != s->devices)
            return smp_fail_at(smp_op_where(s->from, op),
                               "op '%s' (%s): %d devices compute it, and share the weight '%s' "
                               "with op '%s', which %d compute: give both as many",
                               op->name, op->kind->name, s->devices, whole->name,
                               s->from->op[s->param_op[old]].name,
                               s->store->param[*out].part.count);
        if (same(s->store->param[*out].part.spread, spread))
            return SMP_OK;
        return smp_fail_at(smp_op_where(s->from, op),
                           "op '%s' (%s): split so, it has another part of the weight '%s' than "
                           "op '%s'",
                           op->name, op->kind->name, whole->name,
                           s->from->op[s->param_op[old]].name);
    }
    int32_t index = *out = g->n_param;
    SMP_TRY(smp_array_reserve(&s->store->param, &s->store->param_capacity, sizeof *s->store->param,
                              (size_t)index + 1));
    smp_param *param = &s->store->param[index];
    *param = *whole;
    param->shape = part_shape(whole->shape, spread, s->devices);
    param->elements = smp_shape_elements(&param->shape);
    param->part = (smp_part){spread, s->index % s->devices, s->devices};
    param->use_begin = param->use_end = 0;
    param->name = smp_arena_strdup(g->arena, whole->name);
    if (!param->name)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__name_index_put(&s->store->param_index, s->store->param, index));
    g->n_param++;
    s->param[old] = index;
    s->param_op[old] = old_op;
    return SMP_OK;
}

static smp_status new_params(splitter *s, smp_op *op, int32_t n)
{
    int32_t *param =
        smp_arena_alloc_aligned(s->store->graph.arena, 2 * (size_t)n, sizeof *param, sizeof *param);
    if (!param)
        return SMP_ERR_NO_MEMORY;
    op->param = param;
    op->use = param + n;
    op->n_param = n;
    return SMP_OK;
}

/* A bias after the sum, which lies as `spread` says. */
static smp_status add_bias(splitter *s, int32_t old, int32_t in, smp_spread spread, int axis,
                           int32_t *out)
{
    const smp_tensor *whole = &s->from->tensor[old];
    const int32_t maker = whole->producer;
    const smp_op *from = &s->from->op[maker];
    const attr attrs[] = {{"axis", axis}, {0}};
    const smp_spread part = {spread.way == SMP_SPLIT ? SMP_SHARED : SMP_WHOLE, 0, 1};
    smp_op *op;
    SMP_TRY(begin_op(s, "bias", old, in, "bias", attrs, &op));
    SMP_TRY(new_params(s, op, 1));
    SMP_TRY(take_param(s, maker, from->param[from->n_param - 1], part, (int32_t *)op->param));
    op->summands = part.way == SMP_SHARED;
    smp_shape shape = part_shape(whole->shape, spread, s->devices);
    SMP_TRY(add_tensor(s, whole, &shape, op->name, s->store->graph.n_op, out));
    return push_op(s);
}

static smp_status get_tensor(splitter *s, int32_t old, smp_spread wanted, int32_t *out);

/* From the way in which its op makes it, or the whole, if that has been made already: by as many
 * devices as compute its op, or, where those that read it are others, from the whole. */
static smp_status make_version(splitter *s, int32_t old, smp_spread wanted, int32_t *out)
{
    const smp_spread whole = {SMP_WHOLE, 0, 1};
    const version *own = s->made[old], *from = own;
    const int readers = s->devices;
    const bool others = own->devices != readers && own->spread.way != SMP_WHOLE;
    int32_t in = own->tensor;
    const version *made = find_version(s, old, whole);
    if (wanted.way == SMP_PARTS) {
        const smp_tensor *tensor = &s->from->tensor[old];
        return smp_fail(SMP_ERR_INPUT,
                        "%s: tensor '%s' is read as parts of a sum, which it is not%s",
                        s->from->path, tensor->name, own->bias_dim >= 0 ? " without its bias" : "");
    }
    if (wanted.way != SMP_WHOLE &&
        (others || smp_split_whole_first(own->spread, own->bias_dim, made != NULL, wanted))) {
        SMP_TRY(get_tensor(s, old, whole, &in));
        made = find_version(s, old, whole);
    }
    if (made) {
        from = made;
        in = made->tensor;
    }
    s->devices = wanted.way == SMP_WHOLE ? own->devices : readers;
    smp_status status = convert(s, old, in, from->spread, wanted, out);
    if (status == SMP_OK && from->bias_dim >= 0)
        status = add_bias(s, old, *out, wanted, from->bias_dim, out);
    if (status == SMP_OK && !add_version(s, old, wanted, *out))
        status = SMP_ERR_NO_MEMORY;
    s->devices = readers;
    return status;
}

/* The tensor of the new graph that is tensor `old` in the way `wanted`. */
static smp_status get_tensor(splitter *s, int32_t old, smp_spread wanted, int32_t *out)
{
    const version *found = find_version(s, old, wanted);
    if (!found)
        return make_version(s, old, wanted, out);
    *out = found->tensor;
    return SMP_OK;
}

/* The op's share of its attributes. */
static smp_status set_attrs(splitter *s, int32_t o, bool behind, smp_op *op)
{
    const smp_op *from = &s->from->op[o];
    const smp_split_rule *rule =
        s->choice[o].rule < 0 ? NULL : &from->kind->split[s->choice[o].rule];
    smp_arena *arena = s->store->graph.arena;
    if (rule && rule->kind)
        op->kind = smp_op_kind_find(rule->kind);
    const smp_attr_desc *desc = op->kind->attrs;
    const int n = count_attrs(op->kind), n_from = count_attrs(from->kind);
    smp_attr_value *value = SMP_ARENA_NEW(arena, smp_attr_value, (size_t)n);
    if (!value)
        return SMP_ERR_NO_MEMORY;
    for (int a = 0; a < n_from; a++) {
        value[a] = from->attr[a];
        if (desc[a].type == SMP_ATTR_STRING && value[a].s.text) {
            value[a].s.text = smp_arena_strdup(arena, value[a].s.text);
            if (!value[a].s.text)
                return SMP_ERR_NO_MEMORY;
        } else if (smp_attr_is_list(&desc[a]) && value[a].list.count > 0) {
            size_t bytes = (size_t)value[a].list.count * sizeof(int64_t);
            int64_t *items = SMP_ARENA_NEW(arena, int64_t, (size_t)value[a].list.count);
            if (!items)
                return SMP_ERR_NO_MEMORY;
            memcpy(items, value[a].list.items, bytes);
            value[a].list.items = items;
        } else if (rule && rule->divided >> a & 1) {
            value[a].i /= s->devices;
        }
    }
    if (behind)
        value[smp_op_attr_index(from->kind, "bias")].i = 0;
    if (rule) {
        const smp_spread spread = smp_split_in(s->from, o, s->choice[o], 0);
        const smp_spread out = smp_split_out(s->from, o, s->choice[o]);
        const int blocks = spread.blocks > 1 ? spread.blocks : out.blocks;
        const attr own[] = {{"devices", s->devices}, {"axis", spread.dim}, {"blocks", blocks}};
        for (int i = 0, a; i < 3 && smp_op_attr_index(op->kind, "devices") >= 0; i++)
            if ((a = smp_op_attr_index(op->kind, own[i].name)) >= 0)
                value[a].i = own[i].value;
    }
    op->attr = value;
    return SMP_OK;
}

static smp_status set_inputs(splitter *s, int32_t o, int32_t *in)
{
    const smp_op *from = &s->from->op[o];
    for (int32_t i = 0; i < from->n_in; i++)
        SMP_TRY(get_tensor(s, from->in[i], smp_split_in(s->from, o, s->choice[o], i), &in[i]));
    return SMP_OK;
}

/* bias_dim: as of smp_split_param; that one, the last, is left to an op of its own. */
static smp_status set_params(splitter *s, int32_t o, smp_op *op, int *bias_dim)
{
    const smp_op *from = &s->from->op[o];
    *bias_dim = -1;
    if (from->n_param == 0)
        return SMP_OK;
    SMP_TRY(new_params(s, op, from->n_param));
    int32_t *param = (int32_t *)op->param;
    for (int32_t p = 0; p < from->n_param; p++) {
        smp_spread spread = smp_split_param(s->from, o, s->choice[o], p, bias_dim);
        if (*bias_dim >= 0) {
            op->n_param = p;
            break;
        }
        SMP_TRY(take_param(s, o, from->param[p], spread, &param[p]));
        op->summands |= (uint8_t)((spread.way == SMP_SHARED) << p);
    }
    return SMP_OK;
}

static smp_status set_outputs(splitter *s, int32_t o, smp_op *op, int32_t index, int bias_dim)
{
    const smp_op *from = &s->from->op[o];
    smp_spread spread = smp_split_out(s->from, o, s->choice[o]);
    op->out = s->store->graph.n_tensor;
    op->n_out = from->n_out;
    for (int32_t k = 0; k < from->n_out; k++) {
        const smp_tensor *whole = &s->from->tensor[from->out + k];
        smp_shape shape = part_shape(whole->shape, spread, s->devices);
        int32_t made;
        SMP_TRY(add_tensor(s, whole, &shape, whole->name, index, &made));
        version *own = add_version(s, from->out + k, spread, made);
        if (!own)
            return SMP_ERR_NO_MEMORY;
        own->bias_dim = bias_dim;
    }
    return SMP_OK;
}

static smp_status split_op(splitter *s, int32_t o)
{
    smp_graph *g = &s->store->graph;
    const smp_op *from = &s->from->op[o];
    const smp_split_choice choice = s->choice[o];
    s->devices = s->of ? s->of[o] : s->all;
    if (!smp_split_allows(s->from, o, choice, s->devices))
        return smp_fail_at(smp_op_where(s->from, from),
                           "op '%s' (%s): it cannot be split so over %d devices", from->name,
                           from->kind->name, s->devices);
    int32_t *in = SMP_ARENA_NEW(g->arena, int32_t, (size_t)from->n_in);
    if (!in)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(set_inputs(s, o, in)); /* may add ops before it */
    smp_op *op = &s->op[g->n_op];
    int bias_dim = -1;
    *op = *from;
    op->in = in;
    op->param = op->use = NULL;
    op->n_param = 0;
    op->name = smp_arena_strdup(g->arena, from->name);
    if (!op->name)
        return SMP_ERR_NO_MEMORY;
    if (from->cost) {
        smp_op_cost_override *cost = SMP_ARENA_NEW(g->arena, smp_op_cost_override, 1);
        if (!cost)
            return SMP_ERR_NO_MEMORY;
        *cost = *from->cost;
        op->cost = cost;
    }
    SMP_TRY(set_params(s, o, op, &bias_dim));
    SMP_TRY(set_attrs(s, o, bias_dim >= 0, op));
    SMP_TRY(set_outputs(s, o, op, g->n_op, bias_dim));
    return push_op(s);
}

/* A tensor of the whole graph as an input of the new one. */
static smp_status add_input(splitter *s, int32_t old, smp_spread spread)
{
    const smp_tensor *whole = &s->from->tensor[old];
    const smp_shape shape = part_shape(whole->shape, spread, s->devices);
    int32_t made;
    SMP_TRY(add_tensor(s, whole, &shape, whole->name, -1, &made));
    s->tensor[made].needs_grad = whole->needs_grad;
    s->store->graph.n_input++;
    return add_version(s, old, spread, made) ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status copy_groups(splitter *s)
{
    smp_graph *g = &s->store->graph;
    const char **group = SMP_ARENA_NEW(g->arena, const char *, (size_t)s->from->n_group);
    if (!group)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < s->from->n_group; i++) {
        group[i] = smp_arena_strdup(g->arena, s->from->group[i]);
        if (!group[i])
            return SMP_ERR_NO_MEMORY;
    }
    g->group = group;
    g->n_group = s->from->n_group;
    return SMP_OK;
}

/* Begins another graph than the one that it is made of. */
static smp_status begin_graph(splitter *s, size_t ops, size_t tensors)
{
    smp_graph *g = &s->store->graph;
    const smp_graph *from = s->from;
    SMP_TRY(smp_target_check_devices(from->target, s->all));
    g->name = smp_arena_strdup(g->arena, from->name);
    g->path = smp_arena_strdup(g->arena, from->path);
    if (!g->name || !g->path)
        return SMP_ERR_NO_MEMORY;
    g->training = from->training;
    g->target = from->target;
    g->products = from->products;
    g->whole = from;
    g->device = s->index;
    g->devices = s->all;
    g->op = s->op = smp_arena_alloc_aligned(g->arena, ops, sizeof *s->op, 8);
    g->tensor = s->tensor = smp_arena_alloc_aligned(g->arena, tensors, sizeof *s->tensor, 8);
    s->made = SMP_ARENA_NEW(s->scratch, version *, (size_t)from->n_tensor);
    s->param = SMP_ARENA_NEW(s->scratch, int32_t, (size_t)s->from->n_param);
    s->param_op = SMP_ARENA_NEW(s->scratch, int32_t, (size_t)s->from->n_param);
    if (!s->op || !s->tensor || !s->made || !s->param || !s->param_op)
        return SMP_ERR_NO_MEMORY;
    for (int32_t p = 0; p < s->from->n_param; p++)
        s->param[p] = -1;
    return SMP_OK;
}

static smp_status end_graph(splitter *s)
{
    s->store->graph.param = s->store->param;
    SMP_TRY(smp__graph_index_uses(s->store));
    SMP_TRY(smp__graph_index_consumers(s->store));
    return smp__graph_lay_out(&s->store->graph);
}

/* Each input of an op, and what nobody reads, may need two ops before it and one after the sum. */
static smp_status split_graph(splitter *s)
{
    smp_graph *g = &s->store->graph;
    const smp_graph *from = s->from;
    size_t more = 3 * (size_t)from->n_tensor;
    for (int32_t o = 0; o < from->n_op; o++)
        more += 3 * (size_t)from->op[o].n_in;
    SMP_TRY(begin_graph(s, (size_t)from->n_op + more, (size_t)from->n_tensor + more));
    for (int32_t t = 0; t < from->n_input; t++)
        SMP_TRY(add_input(s, t, (smp_spread){SMP_WHOLE, 0, 1}));
    SMP_TRY(copy_groups(s));
    for (int32_t o = 0; o < from->n_op; o++)
        SMP_TRY(split_op(s, o));
    if (from->loss >= 0)
        g->loss = s->made[from->loss]->tensor;
    for (int32_t t = from->n_input; t < from->n_tensor; t++) {
        int32_t unread;
        if (t != from->loss && from->consumer_begin[t] == from->consumer_begin[t + 1])
            SMP_TRY(get_tensor(s, t, (smp_spread){SMP_WHOLE, 0, 1}, &unread));
    }
    SMP_TRY(end_graph(s));
    SMP_TRY(smp__graph_mark_gradients(s->store, s->tensor));
    g->fingerprint = smp__graph_fingerprint(g, g->training);
    g->weights_fingerprint = from->weights_fingerprint;
    return SMP_OK;
}

/* make: what the new graph consists of. */
static smp_status make_graph(splitter *s, smp_status (*make)(splitter *), smp_graph **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    s->store = smp__graph_store_create();
    s->scratch = smp_arena_create();
    if (s->store && s->scratch)
        status = make(s);
    smp_arena_destroy(s->scratch);
    if (status == SMP_OK)
        *out = &s->store->graph;
    else if (s->store)
        smp_graph_destroy(&s->store->graph);
    return status;
}

smp_status smp_graph_split_groups(const smp_graph *graph, int devices, const int *of, int index,
                                  const smp_split_choice *choice, smp_graph **out)
{
    splitter s = {.from = graph,
                  .all = devices,
                  .of = of,
                  .devices = devices,
                  .index = index,
                  .choice = choice};
    return make_graph(&s, split_graph, out);
}

smp_status smp_graph_split(const smp_graph *graph, int devices, int index,
                           const smp_split_choice *choice, smp_graph **out)
{
    return smp_graph_split_groups(graph, devices, NULL, index, choice, out);
}

static smp_status split_one_op(splitter *s)
{
    const smp_op *from = &s->from->op[s->only];
    smp_split_choice *choice = SMP_ARENA_NEW(s->scratch, smp_split_choice, (size_t)s->from->n_op);
    if (!choice)
        return SMP_ERR_NO_MEMORY;
    choice[s->only] = *s->choice;
    s->choice = choice;
    SMP_TRY(begin_graph(s, 1, (size_t)from->n_in + (size_t)from->n_out));
    for (int32_t i = 0; i < from->n_in; i++) {
        const smp_spread spread = smp_split_in(s->from, s->only, choice[s->only], i);
        if (!find_version(s, from->in[i], spread))
            SMP_TRY(add_input(s, from->in[i], spread));
    }
    SMP_TRY(split_op(s, s->only));
    for (int32_t k = 0; k < from->n_out; k++)
        s->tensor[s->op->out + k].needs_grad = s->from->tensor[from->out + k].needs_grad;
    return end_graph(s);
}

smp_status smp_graph_split_op(const smp_graph *graph, int devices, int32_t op,
                              smp_split_choice choice, smp_graph **out)
{
    splitter s = {.from = graph, .all = devices, .devices = devices, .choice = &choice, .only = op};
    return make_graph(&s, split_one_op, out);
}

static smp_status move_tensor(splitter *s)
{
    int32_t tensor = 0;
    SMP_TRY(begin_graph(s, 2, 3));
    SMP_TRY(add_input(s, s->only, s->from_way));
    SMP_TRY(convert(s, s->only, tensor, s->from_way, s->to_way, &tensor));
    if (s->bias_dim >= 0)
        SMP_TRY(add_bias(s, s->only, tensor, s->to_way, s->bias_dim, &tensor));
    for (; tensor > 0; tensor--)
        s->tensor[tensor].needs_grad = s->tensor->needs_grad;
    return end_graph(s);
}

smp_status smp_graph_split_move(const smp_graph *graph, int devices, int32_t tensor,
                                smp_spread from, int bias_dim, smp_spread to, smp_graph **out)
{
    splitter s = {.from = graph,
                  .all = devices,
                  .devices = devices,
                  .only = tensor,
                  .from_way = from,
                  .to_way = to,
                  .bias_dim = bias_dim};
    return make_graph(&s, move_tensor, out);
}
