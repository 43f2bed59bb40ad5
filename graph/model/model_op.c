/* From one template, at one turn of its repeats, to one op, its tensors and its weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model/model.h"

enum { MAX_STAGE = 1000000, MAX_CANDIDATES = 100000 };

/* In the arena, unless it is the text of the file, which does not outlive the reading either. */
static smp_status keep_text(smp__model *m, const char *text, const char **out)
{
    *out = smp_arena_strdup(m->store->graph.arena, text);
    return *out ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status set_name(smp__model *m, const smp__op_template *t, smp_op *op)
{
    smp_graph *g = &m->store->graph;
    const char *name;
    SMP_TRY(smp__pattern_expand(m, &t->name, SMP_MAX_NAME, &name));
    int32_t other = smp__name_index_find(&m->store->op_index, m->op, name);
    if (other >= 0) {
        bool same_line =
            t->where.line == m->op[other].line && t->where.column == m->op[other].column;
        if (same_line)
            return smp_fail_at(t->name.where,
                               "op '%s': a repeat makes this name twice, expected a name that uses "
                               "the variable of each repeat around it, such as '{i}'",
                               name);
        return smp_fail_at(t->name.where, "op '%s': the name is already used on line %d", name,
                           (int)m->op[other].line);
    }
    SMP_TRY(keep_text(m, name, &op->name));
    return smp__name_index_put(&m->store->op_index, m->op, g->n_op);
}

static smp_status set_group(smp__model *m, const smp__op_template *t, smp_op *op)
{
    smp_graph *g = &m->store->graph;
    const char *name;
    int64_t index;
    op->group = -1;
    if (!t->group.source)
        return SMP_OK;
    SMP_TRY(smp__pattern_expand(m, &t->group, SMP_MAX_NAME, &name));
    if (!smp_map_get(m->group_index, name, &index)) {
        index = g->n_group;
        SMP_TRY(
            smp_array_reserve(&m->group, &m->group_capacity, sizeof *m->group, (size_t)index + 1));
        SMP_TRY(keep_text(m, name, &m->group[index]));
        SMP_TRY(smp_map_set(m->group_index, m->group[index], index));
        g->n_group++;
    }
    op->group = (int32_t)index;
    return SMP_OK;
}

static smp_status set_pin(smp__model *m, const smp__op_template *t, smp_op *op)
{
    int64_t stage = -1;
    if (t->stage)
        SMP_TRY(smp__model_eval(m, t->stage, op->name, "stage", 0, MAX_STAGE, &stage));
    op->pin = (int32_t)stage;
    return SMP_OK;
}

typedef struct search {
    const char *name;
    int64_t skip; /* ops that are built already */
    smp_where where;
    char op[SMP_MAX_NAME + 1];
    bool found;
} search;

/* Visits the ops not built yet: which one makes the tensor? */
static smp_status search_out(smp__model *m, smp__op_template *t, void *context)
{
    search *s = context;
    const char *name;
    if (s->found || s->skip-- > 0)
        return SMP_OK;
    for (int32_t k = 0; k < t->n_out && !s->found; k++) {
        SMP_TRY(smp__pattern_expand(m, &t->out[k], SMP_MAX_NAME, &name));
        s->found = strcmp(name, s->name) == 0;
    }
    if (!s->found)
        return SMP_OK;
    SMP_TRY(smp__pattern_expand(m, &t->name, SMP_MAX_NAME, &name));
    s->where = t->where;
    memcpy(s->op, name, strlen(name) + 1);
    return SMP_OK;
}

static const char *nearest_tensor(const smp__model *m, const char *name)
{
    int32_t n = m->store->graph.n_tensor;
    int32_t first = n > MAX_CANDIDATES ? n - MAX_CANDIDATES : 0;
    const char **names = malloc((size_t)(n - first + 1) * sizeof *names);
    if (!names)
        return NULL;
    for (int32_t i = first; i < n; i++)
        names[i - first] = m->tensor[i].name;
    const char *nearest = smp_nearest(name, names, (size_t)(n - first));
    free(names);
    return nearest;
}

smp_status smp__model_fail_tensor(smp__model *m, smp_where where, const char *op, const char *name)
{
    char wanted[SMP_MAX_NAME + 1];
    char who[SMP_MAX_NAME + 16] = "loss: ";
    size_t length = strlen(name);
    memcpy(wanted, name, length < SMP_MAX_NAME ? length + 1 : SMP_MAX_NAME);
    wanted[SMP_MAX_NAME] = '\0';
    if (op)
        snprintf(who, sizeof who, "op '%.*s': ", (int)SMP_MAX_NAME, op);

    search s = {.name = wanted, .skip = m->store->graph.n_op};
    m->n_loop = 0;
    if (op && smp__model_walk(m, &m->ops, search_out, &s) == SMP_OK && s.found) {
        if (strcmp(s.op, op) == 0)
            return smp_fail_at(where,
                               "%sreads the tensor '%s' that it makes itself, expected one "
                               "made before it",
                               who, wanted);
        return smp_fail_at(where,
                           "%stensor '%s' is read before it is made, by op '%s' on line %d: wrong "
                           "order or a cycle",
                           who, wanted, s.op, s.where.line);
    }
    const char *nearest = nearest_tensor(m, wanted);
    if (nearest)
        return smp_fail_at(where, "%sunknown tensor '%s', did you mean '%s'?", who, wanted,
                           nearest);
    return smp_fail_at(where,
                       "%sunknown tensor '%s', expected a model input or the 'out' of an op "
                       "before it",
                       who, wanted);
}

/* What an op may read: any tensor that stands, but unknown shapes and losses only if its kind
 * says. */
static smp_status check_input(const smp__model *m, const smp__op_template *t, const smp_op *op,
                              int32_t i)
{
    const smp_tensor *in = m->in_tensor[i];
    if (t->kind->accepts_unknown)
        return SMP_OK;
    if (!in->known)
        return smp_fail_at(
            t->in[i].where,
            "op '%s' (%s): the shape of '%s' is not known, as op '%s' (%s) makes it; "
            "expected a tensor of known shape",
            op->name, t->kind->name, in->name, m->op[in->producer].name,
            m->op[in->producer].kind->name);
    if (!in->batched)
        return smp_fail_at(t->in[i].where,
                           "op '%s' (%s): '%s' is one value per micro-batch, made by op '%s' (%s); "
                           "expected a tensor with one value per sample",
                           op->name, t->kind->name, in->name, m->op[in->producer].name,
                           m->op[in->producer].kind->name);
    if (in->planned)
        return smp_fail_at(
            t->in[i].where,
            "op '%s' (%s): '%s' is %s, which is planned, not computed with; expected "
            "float32 or int32",
            op->name, t->kind->name, in->name, smp_dtype_names[in->dtype]);
    return SMP_OK;
}

static smp_status set_inputs(smp__model *m, const smp__op_template *t, smp_op *op)
{
    size_t n = (size_t)t->n_in;
    int32_t *in = smp_arena_alloc_aligned(m->store->graph.arena, n, sizeof *in, sizeof *in);
    if (!in)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_array_reserve(&m->in_tensor, &m->in_capacity, sizeof *m->in_tensor, n));
    for (int32_t i = 0; i < t->n_in; i++) {
        const char *name;
        SMP_TRY(smp__pattern_expand(m, &t->in[i], SMP_MAX_NAME, &name));
        in[i] = smp__name_index_find(&m->tensor_index, m->tensor, name);
        if (in[i] < 0)
            return smp__model_fail_tensor(m, t->in[i].where, op->name, name);
        m->in_tensor[i] = &m->tensor[in[i]];
        SMP_TRY(check_input(m, t, op, i));
    }
    op->in = in;
    op->n_in = t->n_in;
    return SMP_OK;
}

static smp_status fail_shape(const smp_infer *infer, const char *what, const smp_shape *shape)
{
    char text[160];
    return smp_infer_fail(infer, "its %s has shape %s, expected 1 to 2^40 elements", what,
                          smp_shape_format(text, sizeof text, shape));
}

/* The next tensor of an op, as `made` describes it. */
static smp_status add_output(smp__model *m, const smp__pattern *pattern, const smp_infer *infer,
                             smp_tensor made)
{
    smp_graph *g = &m->store->graph;
    int32_t index = g->n_tensor;
    smp_tensor *out = &m->tensor[index];
    const char *name;
    *out = made;
    out->producer = g->n_op;
    if (out->known) {
        out->elements = smp_shape_elements(&out->shape);
        if (out->elements <= 0)
            return fail_shape(infer, "output", &out->shape);
    }
    SMP_TRY(smp__pattern_expand(m, pattern, SMP_MAX_NAME, &name));
    int32_t old = smp__name_index_find(&m->tensor_index, m->tensor, name);
    if (old >= 0 && m->tensor[old].producer == g->n_op)
        return smp_fail_at(pattern->where,
                           "op '%s': out: got '%s' twice, expected a name for each tensor that it "
                           "makes",
                           infer->op->name, name);
    if (old >= 0)
        out->name = m->tensor[old].name; /* rebound: one copy of the name */
    else
        SMP_TRY(keep_text(m, name, &out->name));
    SMP_TRY(smp__name_index_put(&m->tensor_index, m->tensor, index));
    g->n_tensor++;
    return SMP_OK;
}

static smp_status set_declared_outputs(smp__model *m, const smp__op_template *t,
                                       const smp_infer *infer, const smp_op *op)
{
    for (int32_t k = 0; k < t->n_out; k++) {
        smp_tensor made;
        SMP_TRY(smp__declared_tensor(m, t, op, k, &made));
        SMP_TRY(add_output(m, &t->out[k], infer, made));
    }
    return SMP_OK;
}

static smp_status set_outputs(smp__model *m, const smp__op_template *t, const smp_infer *infer,
                              smp_op *op)
{
    const smp_op_cost_override *cost = op->cost;
    op->out = m->store->graph.n_tensor;
    op->n_out = t->n_out;
    if (t->declared && t->declared->output)
        return set_declared_outputs(m, t, infer, op);
    if (t->kind->max_out <= 1)
        return add_output(
            m, &t->out[0], infer,
            (smp_tensor){.dtype = infer->out_dtype,
                         .batched = infer->out_batched,
                         .known = infer->out_known,
                         .planned = !smp_dtype_runs(infer->out_dtype),
                         .bytes = !infer->out_known && cost && cost->output_bytes > 0
                                      ? cost->output_bytes
                                      : 0,
                         .shape = infer->out_known ? infer->out_shape : (smp_shape){0}});
    for (int32_t k = 0; k < t->n_out; k++)
        SMP_TRY(add_output(m, &t->out[k], infer,
                           (smp_tensor){.dtype = infer->out[k].dtype,
                                        .batched = infer->out[k].batched,
                                        .known = true,
                                        .shape = infer->out[k].shape}));
    return SMP_OK;
}

/* What shapes say is said once: memory is reserved by them, so a size of `cost:` could be right for
 * the objective alone. */
static smp_status check_cost(const smp_infer *infer)
{
    const smp_op_cost_override *cost = infer->op->cost;
    bool runs = infer->op->kind->cpu.forward != NULL;
    const char *twice = NULL;
    if (cost && infer->out_known && cost->output_bytes >= 0)
        twice = "output_bytes";
    else if (cost && runs && cost->stash_bytes >= 0)
        twice = "stash_bytes";
    else if (cost && runs && cost->weight_bytes >= 0)
        twice = "weight_bytes";
    if (!twice)
        return SMP_OK;
    return smp_infer_fail(infer, "cost: %s: its shapes say that already: leave it out%s", twice,
                          runs ? "" : ", or `shape`");
}

/* The weight of an earlier op that stands for one of this op's. */
typedef struct tied {
    const char *name; /* NULL: none does */
    smp_where where;
} tied;

static const smp__tie *find_tie(const smp__op_template *t, const char *role)
{
    for (int32_t k = 0; k < t->n_tie; k++)
        if (strcmp(t->tie[k].role, role) == 0)
            return &t->tie[k];
    return NULL;
}

/* The place of the attribute that names a tied weight. */
static smp_where attr_where(const smp__op_template *t, const smp_op *op, const char *name)
{
    for (int a = 0; a < t->n_attr; a++) {
        if (t->kind->attrs[a].type == SMP_ATTR_STRING && op->attr[a].s.text &&
            strcmp(op->attr[a].s.text, name) == 0)
            return t->attr_pattern[a].where;
    }
    return t->where;
}

/* Does the op name the weight that it would make itself? So that all turns of a repeat can name
 * that of the first. */
static bool is_own(const smp_op *op, const char *role, const char *name)
{
    size_t length = strlen(op->name);
    return strncmp(name, op->name, length) == 0 && name[length] == '.' &&
           strcmp(name + length + 1, role) == 0;
}

/* By `tie:`, or by an attribute of the kind (`weight:`). out->name lives until the next pattern is
 * expanded. */
static smp_status find_tied(smp__model *m, const smp__op_template *t, const smp_op *op,
                            const smp_param_decl *decl, tied *out)
{
    const smp__tie *entry = find_tie(t, decl->role);
    *out = (tied){decl->tied_to, t->where};
    if (decl->tied_to)
        out->where = attr_where(t, op, decl->tied_to);
    if (entry && decl->tied_to)
        return smp_fail_at(entry->where, "op '%s' (%s): tie: %s is tied to '%.300s' already",
                           op->name, op->kind->name, decl->role, decl->tied_to);
    if (entry && decl->running)
        return smp_fail_at(entry->where,
                           "op '%s' (%s): tie: %s is a running statistic, expected a weight",
                           op->name, op->kind->name, decl->role);
    if (entry) {
        SMP_TRY(smp__pattern_expand(m, &entry->weight, SMP__MAX_EXPANDED, &out->name));
        out->where = entry->weight.where;
    }
    if (out->name && is_own(op, decl->role, out->name))
        out->name = NULL;
    return SMP_OK;
}

/* Every role of `tie:` is one that the op has. */
static smp_status check_roles(const smp__op_template *t, const smp_infer *infer)
{
    const char *roles[SMP_OP_MAX_PARAM];
    for (int i = 0; i < infer->n_param; i++)
        roles[i] = infer->param[i].role;
    for (int32_t k = 0; k < t->n_tie; k++) {
        const char *role = t->tie[k].role;
        int i = 0;
        while (i < infer->n_param && strcmp(roles[i], role) != 0)
            i++;
        if (i < infer->n_param)
            continue;
        const char *nearest = smp_nearest(role, roles, (size_t)infer->n_param);
        return smp_fail_at(t->tie[k].where, "op '%s' (%s): tie: it has no weight '%.60s'%s%s%s",
                           infer->op->name, t->kind->name, role, nearest ? ", did you mean '" : "",
                           nearest ? nearest : "", nearest ? "'?" : "");
    }
    return SMP_OK;
}

/* n: weights of the ops before it. */
static smp_status fail_tie(const smp__model *m, smp_where where, const smp_op *op, const char *name,
                           int32_t n)
{
    int32_t first = n > MAX_CANDIDATES ? n - MAX_CANDIDATES : 0;
    const char **names = malloc((size_t)(n - first + 1) * sizeof *names);
    if (!names)
        return smp_fail_memory((size_t)(n - first + 1) * sizeof *names);
    for (int32_t i = first; i < n; i++)
        names[i - first] = m->store->param[i].name;
    const char *nearest = smp_nearest(name, names, (size_t)(n - first));
    smp_fail_at(
        where, "op '%s' (%s): unknown weight '%.300s', %s%s%s", op->name, op->kind->name, name,
        nearest ? "did you mean '" : "expected one of an op before it, such as 'wte.weight'",
        nearest ? nearest : "", nearest ? "'?" : "");
    free(names);
    return SMP_ERR_INPUT;
}

/* The weights from `first` on are the op's own. */
static smp_status tie(const smp__model *m, const smp_op *op, const smp_shape *shape, int32_t first,
                      const tied *tied, int32_t *out)
{
    int64_t p = smp__name_index_find(&m->store->param_index, m->store->param, tied->name);
    if (p < 0 && !smp_map_get(m->tied_index, tied->name, &p))
        p = -1;
    if (p < 0 || p >= first)
        return fail_tie(m, tied->where, op, tied->name, first);
    const smp_param *param = &m->store->param[p];
    if (param->running)
        return smp_fail_at(tied->where,
                           "op '%s' (%s): '%s' is a running statistic, expected a weight", op->name,
                           op->kind->name, param->name);
    if (!smp_shape_equal(&param->shape, shape)) {
        char got[160];
        char expected[160];
        return smp_fail_at(tied->where, "op '%s' (%s): weight '%s' has shape %s, expected %s",
                           op->name, op->kind->name, param->name,
                           smp_shape_format(got, sizeof got, &param->shape),
                           smp_shape_format(expected, sizeof expected, shape));
    }
    *out = (int32_t)p;
    return SMP_OK;
}

/* "<op>.<role>"; NULL without memory. */
static const char *weight_name(smp_arena *arena, const smp_op *op, const char *role)
{
    size_t size = strlen(op->name) + strlen(role) + 2;
    char *name = smp_arena_alloc_aligned(arena, size, 1, 1);
    if (name)
        snprintf(name, size, "%s.%s", op->name, role);
    return name;
}

/* what: it for messages. name: in the graph's memory. */
static smp_status add_param(smp__model *m, const smp_infer *infer, const char *what,
                            const char *name, smp_param made, int32_t *out)
{
    smp__graph_store *store = m->store;
    int32_t index = store->graph.n_param;
    SMP_TRY(smp_array_reserve(&store->param, &store->param_capacity, sizeof *store->param,
                              (size_t)index + 1));
    smp_param *param = &store->param[index];
    *param = made;
    param->number = index;
    param->name = name;
    param->elements = smp_shape_elements(&made.shape);
    param->decay = made.shape.n_dim >= 2;
    if (param->elements <= 0)
        return fail_shape(infer, what, &made.shape);
    SMP_TRY(smp__name_index_put(&store->param_index, store->param, index));
    store->graph.n_param++;
    *out = index;
    return SMP_OK;
}

static smp_status new_param(smp__model *m, const smp_infer *infer, const smp_param_decl *decl,
                            int32_t *out)
{
    const char *name = weight_name(m->store->graph.arena, infer->op, decl->role);
    if (!name)
        return SMP_ERR_NO_MEMORY;
    return add_param(m, infer, decl->role, name,
                     (smp_param){.shape = decl->shape,
                                 .init = decl->init,
                                 .init_scale = decl->init_scale,
                                 .running = decl->running},
                     out);
}

smp_status smp__model_add_param(smp__model *m, const smp_infer *infer, const char *name,
                                const smp_shape *shape, int32_t *out)
{
    const char *kept;
    SMP_TRY(keep_text(m, name, &kept));
    return add_param(m, infer, kept, kept, (smp_param){.shape = *shape}, out);
}

/* A later op may name a tied weight by any op that uses it. */
static smp_status index_tied(smp__model *m, const smp_infer *infer, const int32_t *param,
                             int32_t first)
{
    for (int i = 0; i < infer->n_param; i++) {
        if (param[i] >= first)
            continue;
        const char *name = weight_name(m->scratch, infer->op, infer->param[i].role);
        if (!name)
            return SMP_ERR_NO_MEMORY;
        SMP_TRY(smp_map_set(m->tied_index, name, param[i]));
    }
    return SMP_OK;
}

/* op->param and op->use share one array; use is filled when all uses are counted. */
static smp_status set_params(smp__model *m, const smp__op_template *t, const smp_infer *infer,
                             smp_op *op)
{
    SMP_TRY(check_roles(t, infer));
    const bool declared = t->declared && t->declared->weight;
    const int32_t n_param = declared ? t->declared->n_weight : infer->n_param;
    op->hides_weights = t->kind->accepts_unknown && !declared;
    if (n_param == 0)
        return SMP_OK;
    size_t n = (size_t)n_param;
    int32_t first = m->store->graph.n_param;
    int32_t *param =
        smp_arena_alloc_aligned(m->store->graph.arena, 2 * n, sizeof *param, sizeof *param);
    if (!param)
        return SMP_ERR_NO_MEMORY;
    if (declared)
        SMP_TRY(smp__declared_params(m, t, infer, param));
    for (int i = 0; i < infer->n_param; i++) {
        const smp_param_decl *decl = &infer->param[i];
        tied tied;
        SMP_TRY(find_tied(m, t, op, decl, &tied));
        if (tied.name)
            SMP_TRY(tie(m, op, &decl->shape, first, &tied, &param[i]));
        else
            SMP_TRY(new_param(m, infer, decl, &param[i]));
    }
    SMP_TRY(index_tied(m, infer, param, first));
    op->param = param;
    op->use = param + n;
    op->n_param = n_param;
    return SMP_OK;
}

smp_status smp__model_build_op(smp__model *m, smp__op_template *t, void *unused)
{
    (void)unused;
    smp_graph *g = &m->store->graph;
    smp_op *op = &m->op[g->n_op];
    op->kind = t->kind;
    op->cost = t->cost;
    op->number = g->n_op;
    op->line = t->where.line;
    op->column = t->where.column;
    SMP_TRY(set_name(m, t, op));
    SMP_TRY(set_inputs(m, t, op));
    SMP_TRY(smp__model_attrs(m, t, op->name, &op->attr));
    SMP_TRY(set_group(m, t, op));
    SMP_TRY(set_pin(m, t, op));
    smp_infer infer = {.op = op,
                       .attr = op->attr,
                       .n_in = op->n_in,
                       .in = m->in_tensor,
                       .where = t->where,
                       .n_out = t->n_out,
                       .out = m->out,
                       .out_dtype = SMP_F32,
                       .out_batched = true,
                       .out_known = true};
    for (int32_t k = 0; k < t->n_out; k++)
        m->out[k] = (smp_out_decl){.dtype = SMP_F32, .batched = true};
    SMP_TRY(t->kind->infer(&infer));
    SMP_TRY(check_cost(&infer));
    if (t->declared) {
        SMP_TRY(smp__declared_check_cost(t, &infer));
        op->no_gradient = t->declared->no_gradient;
    }
    SMP_TRY(set_outputs(m, t, &infer, op));
    SMP_TRY(set_params(m, t, &infer, op));
    g->n_op++;
    return SMP_OK;
}
