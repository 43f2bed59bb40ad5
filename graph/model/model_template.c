/* Compiling the ops of a model file: keys, kinds, name patterns and costs are checked once per op
 * of the file, however often a repeat uses it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/model/model.h"

static const char *const op_keys[] = {"op",    "name", "in",  "out", "stage",
                                      "group", "cost", "tie", "when"};
enum {
    N_OP_KEY = sizeof op_keys / sizeof op_keys[0],
    MAX_KEYS = 64,
    LABEL_BYTES = SMP_MAX_NAME + 16,
    WHAT_BYTES = LABEL_BYTES + 96
};

bool smp_op_key_is_common(const char *key)
{
    for (size_t i = 0; i < N_OP_KEY; i++)
        if (strcmp(op_keys[i], key) == 0)
            return true;
    return false;
}

/* "op 'h{i}.attn'", for messages about one op of the file. */
static void set_label(char label[LABEL_BYTES], const smp__op_template *t)
{
    snprintf(label, LABEL_BYTES, "op '%.*s'", (int)SMP_MAX_NAME, t->name.source);
}

static smp_status find_kind(const smp_yaml_node *node, const smp_op_kind **out)
{
    const char *name;
    SMP_TRY(smp_yaml_string(node, "op", &name));
    *out = smp_op_kind_find(name);
    if (*out)
        return SMP_OK;
    const smp_op_kind *const *kinds = smp_op_kinds();
    const char *names[256];
    size_t n = 0;
    while (kinds[n] && n < sizeof names / sizeof names[0]) {
        names[n] = kinds[n]->name;
        n++;
    }
    const char *nearest = smp_nearest(name, names, n);
    if (nearest)
        return smp_fail_at(smp_yaml_where(node),
                           "unknown op '%.60s', did you mean '%s'? (An op of a plugin needs "
                           "--plugin FILE.)",
                           name, nearest);
    smp_text list = {0};
    for (size_t i = 0; i < n; i++)
        smp_text_append(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    smp_status status =
        list.failed
            ? SMP_ERR_NO_MEMORY
            : smp_fail_at(
                  smp_yaml_where(node),
                  "unknown op '%.60s', expected one of %s, or that of a plugin, with --plugin FILE",
                  name, list.data);
    smp_text_free(&list);
    return status;
}

/* Keys of an op: the common ones and the kind's attributes. */
static smp_status check_keys(const smp_yaml_node *node, const smp__op_template *t,
                             const char *label)
{
    const char *known[N_OP_KEY + SMP__N_DECLARED_KEY + MAX_KEYS];
    size_t n = N_OP_KEY;
    memcpy(known, op_keys, sizeof op_keys);
    for (int k = 0; k < SMP__N_DECLARED_KEY && t->kind->accepts_unknown; k++)
        known[n++] = smp__declared_keys[k];
    for (int a = 0; a < t->n_attr && a < MAX_KEYS; a++)
        known[n++] = t->kind->attrs[a].name;
    char what[WHAT_BYTES];
    snprintf(what, sizeof what, "%s (%.60s)", label, t->kind->name);
    return smp_yaml_known_keys(node, what, known, n);
}

int64_t smp__text_values(const smp__pattern *p)
{
    return p->source ? (int64_t)strlen(p->source) / 32 : 0;
}

/* "op 'h0.attn' (linear): got 2 inputs, expected 1" unless there are min to max (-1: any
 * number). */
static smp_status check_count(const smp__op_template *t, const char *label, const char *what, int n,
                              int min, int max, smp_where where)
{
    char expected[48];
    if (n >= min && (max < 0 || n <= max))
        return SMP_OK;
    if (max < 0)
        snprintf(expected, sizeof expected, "at least %d", min);
    else if (min == max)
        snprintf(expected, sizeof expected, "%d", min);
    else
        snprintf(expected, sizeof expected, "%d to %d", min, max);
    return smp_fail_at(where, "%s (%s): got %d %s, expected %s", label, t->kind->name, n, what,
                       expected);
}

/* The names of tensors at key `in` or `out`: one or a list. */
static smp_status compile_tensors(smp__model *m, const smp_yaml_node *node, const char *label,
                                  const char *key, smp__op_template *t, smp__pattern **out,
                                  int32_t *n_out)
{
    bool list = node && smp_yaml_kind_of(node) == SMP_YAML_LIST;
    char what[WHAT_BYTES];
    snprintf(what, sizeof what, "%s: %s", label, key);
    if (node && smp_yaml_kind_of(node) == SMP_YAML_MAP)
        return smp_yaml_list(node, what);
    int32_t n = !node ? 0 : list ? smp_yaml_list_size(node) : 1;
    smp__pattern *pattern = smp_arena_alloc_aligned(m->scratch, (size_t)n, sizeof *pattern, 8);
    if (!pattern)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n; i++) {
        const smp_yaml_node *name = list ? smp_yaml_list_at(node, i) : node;
        SMP_TRY(smp__pattern_compile(m, name, what, SMP__NAME_TEXT, &pattern[i]));
        t->values += 1 + smp__text_values(&pattern[i]);
    }
    *out = pattern;
    *n_out = n;
    return SMP_OK;
}

static smp_status compile_inputs(smp__model *m, const smp_yaml_node *in, const char *label,
                                 smp__op_template *t)
{
    SMP_TRY(compile_tensors(m, in, label, "in", t, &t->in, &t->n_in));
    return check_count(t, label, "inputs", t->n_in, t->kind->min_in, t->kind->max_in,
                       in ? smp_yaml_where(in) : t->where);
}

static smp_status compile_outputs(smp__model *m, const smp_yaml_node *out, const char *label,
                                  smp__op_template *t)
{
    if (!out)
        return smp_fail_at(t->where, "%s (%s): no 'out', expected the name of the tensor it makes",
                           label, t->kind->name);
    SMP_TRY(compile_tensors(m, out, label, "out", t, &t->out, &t->n_out));
    t->values--; /* an op's first output is part of it */
    return check_count(t, label, "outputs", t->n_out, 1,
                       t->kind->max_out > 1 ? t->kind->max_out : 1, smp_yaml_where(out));
}

static smp_status read_cost(smp__model *m, const smp_yaml_node *node, const char *label,
                            const smp_op_cost_override **out)
{
    static const char *const keys[] = {"forward_us", "backward_us", "weight_bytes", "stash_bytes",
                                       "output_bytes"};
    char what[WHAT_BYTES];
    snprintf(what, sizeof what, "%s: cost", label);
    SMP_TRY(smp_yaml_map(node, what));
    SMP_TRY(smp_yaml_known_keys(node, what, keys, sizeof keys / sizeof keys[0]));
    smp_op_cost_override *cost = SMP_ARENA_NEW(m->store->graph.arena, smp_op_cost_override, 1);
    if (!cost)
        return SMP_ERR_NO_MEMORY;
    *cost = (smp_op_cost_override){NAN, NAN, -1, -1, -1};
    double *const times[] = {&cost->forward_us, &cost->backward_us};
    int64_t *const sizes[] = {&cost->weight_bytes, &cost->stash_bytes, &cost->output_bytes};
    for (int i = 0; i < 5; i++) {
        const smp_yaml_node *value = smp_yaml_get(node, keys[i]);
        if (!value)
            continue;
        snprintf(what, sizeof what, "%s: cost: %s", label, keys[i]);
        SMP_TRY(i < 2 ? smp_yaml_us(value, what, times[i])
                      : smp_yaml_bytes(value, what, sizes[i - 2]));
    }
    *out = cost;
    return SMP_OK;
}

/* Values of attributes are read when the op is built: loop variables may enter them. Texts are
 * patterns, so they are compiled here. */
static smp_status compile_attrs(smp__model *m, const smp_yaml_node *node, const char *label,
                                smp__op_template *t)
{
    size_t n = (size_t)t->n_attr;
    t->attr_node = smp_arena_alloc_aligned(m->scratch, n, sizeof *t->attr_node, 8);
    t->attr_pattern = smp_arena_alloc_aligned(m->scratch, n, sizeof *t->attr_pattern, 8);
    if (!t->attr_node || !t->attr_pattern)
        return SMP_ERR_NO_MEMORY;
    for (size_t a = 0; a < n; a++) {
        const smp_attr_desc *desc = &t->kind->attrs[a];
        const smp_yaml_node *value = smp_yaml_get(node, desc->name);
        t->attr_node[a] = value;
        if (!value) {
            if (desc->required)
                return smp_fail_at(t->where, "%s (%s): no '%s', which this op needs", label,
                                   t->kind->name, desc->name);
            continue;
        }
        if (desc->type != SMP_ATTR_STRING && !smp_attr_is_list(desc))
            continue;
        char what[WHAT_BYTES];
        snprintf(what, sizeof what, "%s: %.60s", label, desc->name);
        if (desc->type == SMP_ATTR_STRING) {
            SMP_TRY(smp__pattern_compile(m, value, what, SMP__ANY_TEXT, &t->attr_pattern[a]));
            t->values += smp__text_values(&t->attr_pattern[a]);
        } else if (desc->type == SMP_ATTR_INTS && smp_yaml_text(value)) {
            t->values++;
        } else {
            SMP_TRY(smp_yaml_list(value, what));
            t->values += smp_yaml_list_size(value);
        }
    }
    return SMP_OK;
}

/* Which weights the op has is known when it is built. */
static smp_status compile_ties(smp__model *m, const smp_yaml_node *tie, const char *label,
                               smp__op_template *t)
{
    char what[WHAT_BYTES];
    if (!tie)
        return SMP_OK;
    snprintf(what, sizeof what, "%s: tie", label);
    SMP_TRY(smp_yaml_map(tie, what));
    t->n_tie = smp_yaml_map_size(tie);
    t->tie = smp_arena_alloc_aligned(m->scratch, (size_t)t->n_tie, sizeof *t->tie, 8);
    if (!t->tie)
        return SMP_ERR_NO_MEMORY;
    for (int32_t k = 0; k < t->n_tie; k++) {
        smp__tie *entry = &t->tie[k];
        entry->role = smp_yaml_map_key(tie, k);
        entry->where = smp_yaml_map_key_where(tie, k);
        snprintf(what, sizeof what, "%s: tie: %.60s", label, entry->role);
        SMP_TRY(smp__pattern_compile(m, smp_yaml_map_value(tie, k), what, SMP__ANY_TEXT,
                                     &entry->weight));
        t->values += 1 + smp__text_values(&entry->weight);
    }
    return SMP_OK;
}

static smp_status compile_names(smp__model *m, const smp_yaml_node *node, smp__op_template *t)
{
    char label[LABEL_BYTES];
    char what[WHAT_BYTES];
    const smp_yaml_node *name = smp_yaml_get(node, "name");
    if (!name)
        return smp_fail_at(t->where, "op (%s): no 'name', expected a name of its own",
                           t->kind->name);
    SMP_TRY(smp__pattern_compile(m, name, "op name", SMP__NAME_TEXT, &t->name));
    set_label(label, t);
    if (t->kind->accepts_unknown)
        SMP_TRY(smp__declared_compile(m, node, t));
    if (t->n_out == 0)
        SMP_TRY(compile_outputs(m, smp_yaml_get(node, "out"), label, t));
    const smp_yaml_node *group = smp_yaml_get(node, "group");
    snprintf(what, sizeof what, "%s: group", label);
    if (group)
        SMP_TRY(smp__pattern_compile(m, group, what, SMP__NAME_TEXT, &t->group));
    t->values += smp__text_values(&t->name) + smp__text_values(&t->group);
    return SMP_OK;
}

static smp_status compile_op(smp__model *m, const smp_yaml_node *node, smp__op_template **out)
{
    smp__op_template *t = SMP_ARENA_NEW(m->scratch, smp__op_template, 1);
    if (!t)
        return SMP_ERR_NO_MEMORY;
    char label[LABEL_BYTES];
    t->where = smp_yaml_where(node);
    SMP_TRY(find_kind(smp_yaml_get(node, "op"), &t->kind));
    while (t->kind->attrs && t->kind->attrs[t->n_attr].name)
        t->n_attr++;
    const smp_yaml_node *name = smp_yaml_get(node, "name");
    const char *text = name ? smp_yaml_text(name) : NULL;
    snprintf(label, sizeof label, text ? "op '%.200s'" : "op", text);
    SMP_TRY(check_keys(node, t, label)); /* first: a misspelt key is why another one is missing */
    SMP_TRY(compile_names(m, node, t));
    set_label(label, t);
    SMP_TRY(compile_inputs(m, smp_yaml_get(node, "in"), label, t));
    SMP_TRY(compile_attrs(m, node, label, t));
    SMP_TRY(compile_ties(m, smp_yaml_get(node, "tie"), label, t));
    t->stage = smp_yaml_get(node, "stage");
    const smp_yaml_node *cost = smp_yaml_get(node, "cost");
    if (cost)
        SMP_TRY(read_cost(m, cost, label, &t->cost));
    *out = t;
    return SMP_OK;
}

static smp_status compile_block(smp__model *m, const smp_yaml_node *node, smp__item *item)
{
    static const char *const keys[] = {"repeat", "as", "when", "ops"};
    SMP_TRY(smp_yaml_known_keys(node, "repeat", keys, sizeof keys / sizeof keys[0]));
    item->count = smp_yaml_get(node, "repeat");
    const smp_yaml_node *as = smp_yaml_get(node, "as");
    const smp_yaml_node *ops = smp_yaml_get(node, "ops");
    if (item->count)
        item->where = smp_yaml_where(item->count);
    if (!ops)
        return smp_fail_at(smp_yaml_where(node), "repeat: no 'ops', expected a list of ops");
    if (as) {
        SMP_TRY(smp_yaml_string(as, "repeat: as", &item->variable));
        SMP_TRY(smp__model_check_variable(m, "repeat: as", item->variable, smp_yaml_where(as)));
    }
    if (m->n_loop == SMP__MAX_LOOPS)
        return smp_fail_at(smp_yaml_where(node), "repeats are nested deeper than %d",
                           (int)SMP__MAX_LOOPS);
    item->body = SMP_ARENA_NEW(m->scratch, smp__block, 1);
    if (!item->body)
        return SMP_ERR_NO_MEMORY;
    m->loop[m->n_loop++].name = item->variable;
    SMP_TRY(smp__model_compile(m, ops, item->body));
    m->n_loop--;
    return SMP_OK;
}

static smp_status fail_entry(const smp_yaml_node *node)
{
    static const char *const known[] = {"op", "repeat", "ops"};
    const char *first = smp_yaml_map_size(node) > 0 ? smp_yaml_map_key(node, 0) : "";
    const char *near = smp_nearest(first, known, sizeof known / sizeof known[0]);
    if (near)
        return smp_fail_at(smp_yaml_map_key_where(node, 0),
                           "ops: entry: unknown key '%s', did you mean '%s'?", first, near);
    return smp_fail_at(smp_yaml_where(node),
                       "ops: got an entry without 'op' or 'ops', expected one of them");
}

smp_status smp__model_compile(smp__model *m, const smp_yaml_node *ops, smp__block *out)
{
    SMP_TRY(smp_yaml_list(ops, "ops"));
    out->n_item = smp_yaml_list_size(ops);
    out->item = smp_arena_alloc_aligned(m->scratch, (size_t)out->n_item, sizeof *out->item, 8);
    if (!out->item)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < out->n_item; i++) {
        const smp_yaml_node *node = smp_yaml_list_at(ops, i);
        SMP_TRY(smp_yaml_map(node, "ops: entry"));
        out->item[i].where = smp_yaml_where(node);
        out->item[i].when = smp_yaml_get(node, "when");
        if (smp_yaml_get(node, "op"))
            SMP_TRY(compile_op(m, node, &out->item[i].op));
        else if (smp_yaml_get(node, "repeat") || smp_yaml_get(node, "ops"))
            SMP_TRY(compile_block(m, node, &out->item[i]));
        else
            return fail_entry(node);
    }
    return SMP_OK;
}
