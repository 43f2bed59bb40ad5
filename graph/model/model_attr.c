/* Attribute values of one op, typed and checked against the kind's table. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/model/model.h"

/* Limits of integers are doubles in the table; the ends of the range are open. */
static int64_t to_limit(double value)
{
    if (value >= 0x1p63)
        return INT64_MAX;
    return value <= -0x1p63 ? INT64_MIN : (int64_t)value;
}

static const char *attr_label(char *buffer, size_t size, const char *op, const smp_attr_desc *desc)
{
    snprintf(buffer, size, "op '%s': %s", op, desc->name);
    return buffer;
}

static smp_status read_choice(const smp_yaml_node *node, const smp_attr_desc *desc, const char *op,
                              int64_t *out)
{
    char what[SMP_MAX_NAME + 96];
    const char *text;
    size_t n = 0;
    smp_dtype dtype;
    SMP_TRY(smp_yaml_string(node, attr_label(what, sizeof what, op, desc), &text));
    if (desc->choices == smp_dtype_names && smp_dtype_find(text, &dtype)) { /* by either name */
        *out = dtype;
        return SMP_OK;
    }
    for (; desc->choices[n]; n++) {
        if (strcmp(desc->choices[n], text) == 0) {
            *out = (int64_t)n;
            return SMP_OK;
        }
    }
    smp_text list = {0};
    for (size_t i = 0; i < n; i++)
        smp_text_append(&list, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", desc->choices[i]);
    smp_status status = list.failed
                            ? SMP_ERR_NO_MEMORY
                            : smp_fail_at(smp_yaml_where(node), "%s: got '%.60s', expected %s",
                                          what, text, list.data ? list.data : "nothing");
    smp_text_free(&list);
    return status;
}

static smp_status read_list(smp__model *m, const smp_yaml_node *node, const smp_attr_desc *desc,
                            const char *op, smp_attr_value *out)
{
    const bool one = smp_yaml_text(node) != NULL;
    size_t n = one ? 1 : (size_t)smp_yaml_list_size(node);
    int64_t *items = smp_arena_alloc_aligned(m->store->graph.arena, n, sizeof *items, 8);
    if (!items)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++)
        SMP_TRY(smp__model_eval(m, one ? node : smp_yaml_list_at(node, (int)i), op, desc->name,
                                to_limit(desc->min), to_limit(desc->max), &items[i]));
    out->list.items = items;
    out->list.count = (int64_t)n;
    return SMP_OK;
}

static smp_status read_float(const smp_yaml_node *node, const smp_attr_desc *desc, const char *op,
                             double *out)
{
    char what[SMP_MAX_NAME + 96];
    return smp_yaml_double(node, attr_label(what, sizeof what, op, desc), desc->min, desc->max,
                           out);
}

static smp_status read_floats(smp__model *m, const smp_yaml_node *node, const smp_attr_desc *desc,
                              const char *op, smp_attr_value *out)
{
    const int n = smp_yaml_list_size(node);
    double *items = smp_arena_alloc_aligned(m->store->graph.arena, (size_t)n, sizeof *items, 8);
    if (!items)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < n; i++)
        SMP_TRY(read_float(smp_yaml_list_at(node, i), desc, op, &items[i]));
    out->floats.items = items;
    out->floats.count = n;
    return SMP_OK;
}

static smp_status read_bool(const smp_yaml_node *node, const smp_attr_desc *desc, const char *op,
                            int64_t *out)
{
    char what[SMP_MAX_NAME + 96];
    bool value;
    SMP_TRY(smp_yaml_bool(node, attr_label(what, sizeof what, op, desc), &value));
    *out = value;
    return SMP_OK;
}

static smp_status read_text(smp__model *m, const smp__pattern *pattern, const char **out)
{
    const char *text;
    SMP_TRY(smp__pattern_expand(m, pattern, SMP__MAX_EXPANDED, &text));
    *out = smp_arena_strdup(m->store->graph.arena, text);
    return *out ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static void set_default(const smp_attr_desc *desc, smp_attr_value *out)
{
    if (desc->type == SMP_ATTR_FLOAT)
        out->f = desc->default_value;
    else if (desc->type != SMP_ATTR_STRING && !smp_attr_is_list(desc))
        out->i = (int64_t)desc->default_value;
    /* else: NULL and 0, as allocated */
}

static smp_status read_value(smp__model *m, const smp__op_template *t, int a, const char *op,
                             smp_attr_value *out)
{
    const smp_attr_desc *desc = &t->kind->attrs[a];
    const smp_yaml_node *node = t->attr_node[a];
    switch (desc->type) {
    case SMP_ATTR_INT:
        return smp__model_eval(m, node, op, desc->name, to_limit(desc->min), to_limit(desc->max),
                               &out->i);
    case SMP_ATTR_FLOAT:
        return read_float(node, desc, op, &out->f);
    case SMP_ATTR_BOOL:
        return read_bool(node, desc, op, &out->i);
    case SMP_ATTR_CHOICE:
        return read_choice(node, desc, op, &out->i);
    case SMP_ATTR_STRING:
        return read_text(m, &t->attr_pattern[a], &out->s.text);
    case SMP_ATTR_INT_LIST:
    case SMP_ATTR_INTS:
        return read_list(m, node, desc, op, out);
    case SMP_ATTR_FLOAT_LIST:
        return read_floats(m, node, desc, op, out);
    }
    return smp_fail(SMP_ERR_FAILED, "op kind '%s': attribute '%s' has no type", t->kind->name,
                    desc->name);
}

smp_status smp__model_attrs(smp__model *m, smp__op_template *t, const char *op_name,
                            const smp_attr_value **out)
{
    if (t->shared_attr || t->n_attr == 0) {
        *out = t->shared_attr;
        return SMP_OK;
    }
    smp_attr_value *attr =
        smp_arena_alloc_aligned(m->store->graph.arena, (size_t)t->n_attr, sizeof *attr, 8);
    if (!attr)
        return SMP_ERR_NO_MEMORY;
    m->loops_used = 0;
    for (int a = 0; a < t->n_attr; a++) {
        if (t->attr_node[a])
            SMP_TRY(read_value(m, t, a, op_name, &attr[a]));
        else
            set_default(&t->kind->attrs[a], &attr[a]);
    }
    if (m->loops_used == 0)
        t->shared_attr = attr;
    *out = attr;
    return SMP_OK;
}
