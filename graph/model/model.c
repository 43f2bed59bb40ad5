/* The top of a model file and the order of the steps: see model.h. */
#include "graph/model/model.h"

#include <stdlib.h>
#include <string.h>

static smp_status read_name(smp__model *m, const smp_yaml_node *node)
{
    const char *name = "model";
    if (node) {
        SMP_TRY(smp_yaml_string(node, "name", &name));
        if (strlen(name) > SMP_MAX_NAME)
            return smp_fail_at(smp_yaml_where(node),
                               "name: got %zu characters, expected at most %d", strlen(name),
                               (int)SMP_MAX_NAME);
        for (const char *c = name; *c; c++) {
            if ((unsigned char)*c < 0x20 || *c == 0x7f)
                return smp_fail_at(smp_yaml_where(node), "name: got a control character");
        }
    }
    m->store->graph.name = smp_arena_strdup(m->store->graph.arena, name);
    return m->store->graph.name ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status read_mode(smp__model *m, const smp_yaml_node *node)
{
    const char *mode = "training";
    if (node)
        SMP_TRY(smp_yaml_string(node, "mode", &mode));
    m->store->graph.training = strcmp(mode, "training") == 0;
    if (!m->store->graph.training && strcmp(mode, "inference") != 0)
        return smp_fail_at(smp_yaml_where(node),
                           "mode: got '%.60s', expected training or inference", mode);
    return SMP_OK;
}

smp_status smp__model_shape(smp__model *m, const smp_yaml_node *node, const char *op,
                            const char *what, smp_shape *out)
{
    SMP_TRY(smp_yaml_list(node, what));
    int n = smp_yaml_list_size(node);
    if (n > SMP_MAX_DIMS)
        return smp_fail_at(smp_yaml_where(node), "%s: got %d dimensions, expected at most %d", what,
                           n, (int)SMP_MAX_DIMS);
    out->n_dim = n;
    for (int d = 0; d < n; d++)
        SMP_TRY(
            smp__model_eval(m, smp_yaml_list_at(node, d), op, what, 1, INT64_MAX, &out->dim[d]));
    if (smp_shape_elements(out) < 0) {
        char shape[160];
        return smp_fail_at(smp_yaml_where(node), "%s: got %s, expected at most 2^40 elements", what,
                           smp_shape_format(shape, sizeof shape, out));
    }
    return SMP_OK;
}

static smp_status read_input(smp__model *m, const char *name, const smp_yaml_node *node,
                             smp_tensor *out)
{
    static const char *const keys[] = {"dtype", "shape", "split"};
    char what[SMP_MAX_NAME + 32] = "input '";
    size_t length = strlen(name);
    memcpy(what + 7, name, length);
    memcpy(what + 7 + length, "'", 2);
    SMP_TRY(smp_yaml_map(node, what));
    SMP_TRY(smp_yaml_known_keys(node, what, keys, 3));
    const smp_yaml_node *dtype = smp_yaml_get(node, "dtype");
    const smp_yaml_node *shape = smp_yaml_get(node, "shape");
    const smp_yaml_node *split = smp_yaml_get(node, "split");
    bool is_split = true;
    if (!dtype || !shape)
        return smp_fail_at(smp_yaml_where(node),
                           "%s: no '%s', expected {dtype: int32, shape: [...]}", what,
                           dtype ? "shape" : "dtype");
    *out = (smp_tensor){.batched = true, .known = true, .producer = -1};
    memcpy(what + 7 + length, "': dtype", 9);
    SMP_TRY(smp__dtype_read(dtype, what, &out->dtype));
    out->planned = !smp_dtype_runs(out->dtype);
    memcpy(what + 7 + length, "': shape", 9);
    SMP_TRY(smp__model_shape(m, shape, NULL, what, &out->shape));
    out->elements = smp_shape_elements(&out->shape);
    memcpy(what + 7 + length, "': split", 9);
    if (split)
        SMP_TRY(smp_yaml_bool(split, what, &is_split));
    out->unsplit = !is_split;
    out->name = smp_arena_strdup(m->store->graph.arena, name);
    return out->name ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status read_inputs(smp__model *m, const smp_yaml_node *inputs)
{
    smp_graph *g = &m->store->graph;
    int n = inputs ? smp_yaml_map_size(inputs) : 0;
    for (int i = 0; i < n; i++) {
        const char *name = smp_yaml_map_key(inputs, i);
        SMP_TRY(smp__name_check(name, "input", smp_yaml_map_key_where(inputs, i)));
        SMP_TRY(read_input(m, name, smp_yaml_map_value(inputs, i), &m->tensor[i]));
        SMP_TRY(smp__name_index_put(&m->tensor_index, m->tensor, i));
        g->n_input = g->n_tensor = i + 1;
    }
    return SMP_OK;
}

static smp_status read_loss(smp__model *m, const smp_yaml_node *node)
{
    smp_graph *g = &m->store->graph;
    const char *name;
    if (!node)
        return SMP_OK;
    SMP_TRY(smp_yaml_string(node, "loss", &name));
    int32_t loss = smp__name_index_find(&m->tensor_index, m->tensor, name);
    smp_where where = smp_yaml_where(node);
    if (loss < 0) {
        SMP_TRY(smp__name_check(name, "loss", where));
        return smp__model_fail_tensor(m, where, NULL, name);
    }
    const smp_tensor *t = &m->tensor[loss];
    if (t->producer < 0)
        return smp_fail_at(where, "loss: '%s' is a model input, expected a tensor made by an op",
                           name);
    const smp_op *op = &m->op[t->producer];
    if (!t->known || t->batched || t->elements != 1 || t->dtype != SMP_F32) {
        char shape[160] = "an unknown shape";
        if (t->known)
            smp_shape_format(shape, sizeof shape, &t->shape);
        return smp_fail_at(where,
                           "loss: '%s', made by op '%s' (%s), is %s %s%s, expected one float32 per "
                           "micro-batch, as cross_entropy or mse makes",
                           name, op->name, op->kind->name, smp_dtype_names[t->dtype], shape,
                           t->batched ? " per sample" : "");
    }
    g->loss = loss;
    return SMP_OK;
}

static smp_status check_loss_unread(const smp_graph *g, smp_where where)
{
    if (g->loss < 0 || g->consumer_begin[g->loss] == g->consumer_begin[g->loss + 1])
        return SMP_OK;
    const smp_op *reader = &g->op[g->consumer[g->consumer_begin[g->loss]].op];
    return smp_fail_at(where,
                       "loss: '%s' is read by op '%s' on line %d, expected a tensor that no "
                       "op reads",
                       g->tensor[g->loss].name, reader->name, (int)reader->line);
}

/* Compile, count, build. */
static smp_status build(smp__model *m, const smp_yaml_node *top, const smp_yaml_node *ops)
{
    smp_graph *g = &m->store->graph;
    const smp_yaml_node *inputs = smp_yaml_get(top, "inputs");
    int64_t n_op, n_made;
    if (inputs)
        SMP_TRY(smp_yaml_map(inputs, "inputs"));
    SMP_TRY(smp__model_compile(m, ops, &m->ops));
    SMP_TRY(smp__model_count(m, &n_op, &n_made));
    if (n_op == 0)
        return smp_fail_at(smp_yaml_where(ops), "ops: got no op, expected at least one");
    size_t n_tensor = (size_t)n_made + (inputs ? (size_t)smp_yaml_map_size(inputs) : 0);
    g->op = m->op = smp_arena_alloc_aligned(g->arena, (size_t)n_op, sizeof *m->op, 8);
    g->tensor = m->tensor = smp_arena_alloc_aligned(g->arena, n_tensor, sizeof *m->tensor, 8);
    if (!m->op || !m->tensor)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(read_inputs(m, inputs));
    return smp__model_walk(m, &m->ops, smp__model_build_op, NULL);
}

static smp_status finish(smp__model *m, const smp_yaml_node *loss)
{
    smp_graph *g = &m->store->graph;
    g->param = m->store->param;
    const char **group = SMP_ARENA_NEW(g->arena, const char *, (size_t)g->n_group);
    if (!group)
        return SMP_ERR_NO_MEMORY;
    if (g->n_group > 0)
        memcpy(group, m->group, (size_t)g->n_group * sizeof *group);
    g->group = group;
    SMP_TRY(smp__graph_index_uses(m->store));
    SMP_TRY(smp__graph_index_consumers(m->store));
    if (loss)
        SMP_TRY(check_loss_unread(g, smp_yaml_where(loss)));
    SMP_TRY(smp__graph_mark_gradients(m->store, m->tensor));
    g->fingerprint = smp__graph_fingerprint(g, g->training);
    g->weights_fingerprint = smp__graph_fingerprint(g, true);
    return SMP_OK;
}

static smp_status read_model(smp__model *m, const smp_yaml *yaml)
{
    static const char *const keys[] = {"smp", "name", "mode", "let", "inputs", "ops", "loss"};
    const smp_yaml_node *top;
    SMP_TRY(smp_yaml_document(yaml, "model", keys, sizeof keys / sizeof keys[0], &top));
    const smp_yaml_node *let = smp_yaml_get(top, "let");
    const smp_yaml_node *ops = smp_yaml_get(top, "ops");
    if (!ops)
        return smp_fail_at(smp_yaml_where(top), "model: no 'ops', expected a list of ops");
    SMP_TRY(read_name(m, smp_yaml_get(top, "name")));
    SMP_TRY(read_mode(m, smp_yaml_get(top, "mode")));
    SMP_TRY(smp__model_read_let(m, let));
    SMP_TRY(build(m, top, ops));
    SMP_TRY(read_loss(m, smp_yaml_get(top, "loss")));
    return finish(m, smp_yaml_get(top, "loss"));
}

static smp_status read_with(smp__model *m, const smp_yaml *yaml, smp_settings settings)
{
    smp_graph *g = &m->store->graph;
    smp_yaml *given = NULL;
    g->path = smp_arena_strdup(g->arena, smp_yaml_file(yaml));
    if (!g->path)
        return SMP_ERR_NO_MEMORY;
    if (settings.n == 0)
        return read_model(m, yaml);
    SMP_TRY(smp__model_read_settings(settings, g->arena, &g->settings, &given));
    smp_status status = smp_yaml_top(given, &m->given);
    if (status == SMP_OK)
        status = read_model(m, yaml);
    smp_yaml_destroy(given);
    return status;
}

/* Takes a loaded document; everything that only reading needs is freed here. */
static smp_status read_document(const smp_yaml *yaml, smp_settings settings, smp_graph **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp__model *m = calloc(1, sizeof *m);
    if (!m)
        return smp_fail_memory(sizeof *m);
    m->store = smp__graph_store_create();
    m->scratch = smp_arena_create();
    m->let_index = smp_map_create();
    m->group_index = smp_map_create();
    m->tied_index = smp_map_create();
    m->tensor_index = SMP__NAME_INDEX(smp_tensor, name);
    if (m->store && m->scratch && m->let_index && m->group_index && m->tied_index)
        status = read_with(m, yaml, settings);
    if (status == SMP_OK)
        *out = &m->store->graph;
    else if (m->store)
        smp_graph_destroy(&m->store->graph);
    smp__name_index_free(&m->tensor_index);
    smp_map_destroy(m->group_index);
    smp_map_destroy(m->tied_index);
    smp_map_destroy(m->let_index);
    smp_arena_destroy(m->scratch);
    free(m->group);
    free(m->in_tensor);
    free(m);
    return status;
}

smp_status smp_graph_parse(const char *path, const char *text, size_t bytes, smp_graph **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_parse(path, text, bytes, &yaml));
    smp_status status = read_document(yaml, (smp_settings){0}, out);
    smp_yaml_destroy(yaml);
    return status;
}

smp_status smp_graph_read(const char *path, smp_graph **out)
{
    return smp_graph_read_with(path, (smp_settings){0}, out);
}

smp_status smp_graph_read_with(const char *path, smp_settings settings, smp_graph **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_read(path, &yaml));
    smp_status status = read_document(yaml, settings, out);
    smp_yaml_destroy(yaml);
    return status;
}
