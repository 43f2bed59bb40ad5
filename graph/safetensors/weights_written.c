/* The tensors that a model's weights become, by the rules that read them: the other way round.
 * What several weights are parts of is put together, what a rule stacks is cut: into parts of one
 * size, but for those whose rows it says. O(tensors + weights * rules). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "graph/safetensors/weights_match.h"

typedef struct writing {
    smp_arena *arena;
    smp_map *by_name;
    smp_written_source *tensor;
    int32_t n;
    size_t capacity;
    const smp_matched_weight *weight;
    int32_t number;         /* of the weight */
    smp_stored_shape shape; /* of what is written: the weight, or an item */
    int64_t first;          /* its first element in the weight */
    int32_t n_unnamed;
} writing;

static smp_status fail_rule(const writing *w, const char *tensor, const char *reason)
{
    char shape[SMP_SHAPE_TEXT];
    return smp_fail(SMP_ERR_INPUT, "weight '%s' of %s cannot become tensor '%s': %s",
                    w->weight[w->number].name,
                    smp_stored_shape_text(&w->weight[w->number].shape, shape), tensor, reason);
}

static smp_status new_tensor(writing *w, const char *name, int parts, smp_written_source **out)
{
    SMP_TRY(smp_array_reserve(&w->tensor, &w->capacity, sizeof *w->tensor, (size_t)w->n + 1));
    smp_written_source *t = &w->tensor[w->n];
    *t = (smp_written_source){.name = name, .parts = parts, .weight = w->number};
    t->piece = SMP_ARENA_NEW(w->arena, smp_written_piece, (size_t)parts);
    if (!t->piece)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < parts; i++)
        t->piece[i].weight = -1;
    SMP_TRY(smp_map_set(w->by_name, name, w->n));
    w->n++;
    *out = t;
    return SMP_OK;
}

/* Finds the tensor, by the shape before it is transposed. */
static smp_status find_tensor(writing *w, const char *name, const smp_rule_tensor *rule,
                              const smp_stored_shape *shape, smp_written_source **out)
{
    int64_t known;
    const bool transposed = rule && rule->transposed;
    if (!smp_map_get(w->by_name, name, &known)) {
        SMP_TRY(new_tensor(w, name, rule ? rule->parts : 1, out));
        (*out)->shape = *shape;
        (*out)->transposed = transposed;
        return SMP_OK;
    }
    *out = &w->tensor[known];
    if ((*out)->parts == 1 || !rule || (*out)->parts != rule->parts ||
        (*out)->transposed != transposed || !smp_stored_shape_equal(&(*out)->shape, shape))
        return smp_fail(SMP_ERR_INPUT, "weights '%s' and '%s' both become tensor '%s'",
                        w->weight[(*out)->weight].name, w->weight[w->number].name, name);
    return SMP_OK;
}

/* Those that the rule says for a stacked tensor; -1: it does not. */
static int64_t rows_said(const smp_rule_tensor *tensor, const smp_stored_shape *weight)
{
    if (!tensor->rows)
        return -1;
    if (tensor->rows[0] != 'd')
        return strtoll(tensor->rows, NULL, 10);
    const int dim = tensor->rows[1] - '0';
    return dim < weight->n_dim ? weight->dim[dim] : 0;
}

/* Rows of the weight. */
typedef struct row_range {
    int64_t begin, end;
} row_range;

/* Which are tensor `part` of the rule. False: they do not add up. */
static bool find_rows(const smp_name_rule *rule, const smp_stored_shape *weight, int part,
                      row_range *out)
{
    int64_t left = weight->n_dim > 0 ? weight->dim[0] : 0;
    int open = 0;
    *out = (row_range){0};
    for (int i = 0; i < rule->n_tensor; i++) {
        const int64_t said = rows_said(&rule->tensor[i], weight);
        left -= said >= 0 ? said : 0;
        open += said < 0;
    }
    if (left < open || (open > 0 ? left % open : left) != 0)
        return false;
    for (int i = 0; i <= part; i++) {
        const int64_t said = rows_said(&rule->tensor[i], weight);
        out->begin = out->end;
        out->end += said >= 0 ? said : left / open;
    }
    return true;
}

/* So many rows of the weight, along its first dimension, are a part of a tensor. */
static smp_status add_part(writing *w, const char *name, const smp_rule_tensor *rule,
                           row_range rows)
{
    smp_stored_shape shape = w->shape;
    smp_written_source *t = NULL;
    int64_t elements = 0;
    smp_stored_elements(&shape, &elements);
    const int64_t of_row = shape.n_dim > 0 ? elements / shape.dim[0] : elements;
    if (rule && rule->transposed && shape.n_dim != 2)
        return fail_rule(w, name, "only a matrix can be transposed");
    if (rule && rule->shaped) {
        smp_stored_shape shaped;
        if (!smp__shaped(rule->shaped, &shape, &shaped))
            return fail_rule(w, name, "it does not have the shape of the rule");
        shape = shaped;
    } else if (shape.n_dim > 0)
        shape.dim[0] = rows.end - rows.begin;
    SMP_TRY(find_tensor(w, name, rule, &shape, &t));
    smp_written_piece *piece = &t->piece[rule ? rule->part : 0];
    if (piece->weight >= 0)
        return smp_fail(SMP_ERR_INPUT, "weights '%s' and '%s' both become tensor '%s'",
                        w->weight[piece->weight].name, w->weight[w->number].name, name);
    *piece = (smp_written_piece){w->number, w->first + of_row * rows.begin,
                                 w->first + of_row * rows.end};
    t->n_piece++;
    return SMP_OK;
}

static row_range all_rows(const smp_stored_shape *shape)
{
    return (row_range){0, shape->n_dim > 0 ? shape->dim[0] : 1};
}

static smp_status add_by_rule(writing *w, const smp_name_rule *rule, smp_rule_match *match)
{
    const smp_rule_items items = smp__rule_items(rule, &w->shape);
    int64_t elements = 0;
    w->shape = items.shape;
    smp_stored_elements(&w->shape, &elements);
    for (int64_t item = 0; item < items.n; item++, w->first += elements) {
        row_range rows = all_rows(&w->shape);
        if (rule->each)
            smp_rule_match_item(match, item);
        for (int k = 0; k < rule->n_tensor; k++) {
            const char *name = smp_rule_tensor_name(&rule->tensor[k], match, w->arena);
            if (!name)
                return SMP_ERR_NO_MEMORY;
            if (rule->n_tensor > 1 && !find_rows(rule, &w->shape, k, &rows))
                return fail_rule(w, name, "its rows do not fall into the parts of the rule");
            SMP_TRY(add_part(w, name, &rule->tensor[k], rows));
        }
    }
    return SMP_OK;
}

static smp_status add_weight(writing *w, const smp_name_rules *rules)
{
    smp_rule_match match;
    w->shape = w->weight[w->number].shape;
    w->first = 0;
    for (int i = 0; i < rules->n; i++) {
        const smp_name_rule *rule = &rules->rule[i];
        if (smp_name_rule_fits(rule, w->weight[w->number].name, &match))
            return add_by_rule(w, rule, &match);
    }
    w->n_unnamed++;
    return add_part(w, w->weight[w->number].name, NULL, all_rows(&w->shape));
}

static bool is_named(const smp_name_rules *rules, const char *weight)
{
    smp_rule_match match;
    for (int i = 0; i < rules->n; i++)
        if (smp_name_rule_fits(&rules->rule[i], weight, &match))
            return true;
    return false;
}

/* A program that asks for names of a family does not look for others. */
static smp_status fail_unnamed(const writing *w, const smp_name_rules *rules, int32_t n_weight)
{
    enum { SHOWN = 5 };
    const char **pattern = SMP_ARENA_NEW(w->arena, const char *, (size_t)rules->n);
    smp_text list = {0};
    int shown = 0;
    if (!pattern)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < rules->n; i++)
        pattern[i] = rules->rule[i].weight;
    for (int32_t k = 0; k < n_weight && shown < SHOWN; k++) {
        const char *name = w->weight[k].name;
        if (is_named(rules, name))
            continue;
        const char *nearest = smp_nearest(name, pattern, (size_t)rules->n);
        smp_text_append(&list, "%s '%s'%s%s", shown++ > 0 ? "," : "", name,
                        nearest ? ", nearest " : "", nearest ? nearest : "");
    }
    smp_status status =
        list.failed ? SMP_ERR_NO_MEMORY
                    : smp_fail(SMP_ERR_INPUT,
                               "names '%s': none for %d of %d weights:%s%s; rules of your own "
                               "(--weights-map) go before them",
                               rules->family, (int)w->n_unnamed, (int)n_weight,
                               list.data ? list.data : "", w->n_unnamed > SHOWN ? ", ..." : "");
    smp_text_free(&list);
    return status;
}

/* All parts are there: the shape of the whole. */
static smp_status complete(writing *w, smp_written_source *t)
{
    w->number = t->weight;
    if (t->n_piece != t->parts)
        return fail_rule(w, t->name, "other parts of that tensor are no weights of the model");
    if (t->shape.n_dim > 0)
        t->shape.dim[0] *= t->parts;
    if (t->transposed) {
        const int64_t rows = t->shape.dim[0];
        t->shape.dim[0] = t->shape.dim[1];
        t->shape.dim[1] = rows;
    }
    if (strcmp(t->name, "__metadata__") == 0)
        return fail_rule(w, t->name, "the format has another use for that name");
    smp_stored_elements(&t->shape, &t->elements);
    return SMP_OK;
}

smp_status smp_weights_written(const smp_name_rules *rules, const smp_matched_weight *weight,
                               int32_t n_weight, smp_arena *arena, smp_written_source **out,
                               int32_t *n)
{
    writing w = {.arena = arena, .weight = weight, .by_name = smp_map_create()};
    smp_status status = w.by_name ? SMP_OK : smp_fail_memory(1);
    for (; w.number < n_weight && status == SMP_OK; w.number++)
        status = add_weight(&w, rules);
    if (status == SMP_OK && rules->family && w.n_unnamed > 0)
        status = fail_unnamed(&w, rules, n_weight);
    for (int32_t i = 0; i < w.n && status == SMP_OK; i++)
        status = complete(&w, &w.tensor[i]);
    smp_written_source *copy =
        status == SMP_OK ? SMP_ARENA_NEW(arena, smp_written_source, (size_t)w.n) : NULL;
    if (status == SMP_OK && !copy)
        status = SMP_ERR_NO_MEMORY;
    if (status == SMP_OK) {
        if (w.n > 0)
            memcpy(copy, w.tensor, (size_t)w.n * sizeof *copy);
        *out = copy;
        *n = w.n;
    }
    free(w.tensor);
    smp_map_destroy(w.by_name);
    return status;
}
