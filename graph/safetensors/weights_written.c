/* The tensors that a model's weights become, by the rules that read them: the other way round.
 * What several weights are parts of is put together, what a rule stacks is cut into parts of one
 * size. O(tensors + weights * rules). */
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
    int32_t number; /* of the weight */
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

/* Of the shape before it is transposed. */
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

/* Part `part` of `parts` of the weight, along its first dimension. */
static smp_status add_part(writing *w, const char *name, const smp_rule_tensor *rule, int part,
                           int parts)
{
    smp_stored_shape shape = w->weight[w->number].shape;
    smp_written_source *t = NULL;
    int64_t elements = 0;
    smp_stored_elements(&shape, &elements);
    if (parts > 1 && (shape.n_dim == 0 || shape.dim[0] % parts != 0))
        return fail_rule(w, name, "its rows do not fall into equal parts");
    if (rule && rule->transposed && shape.n_dim != 2)
        return fail_rule(w, name, "only a matrix can be transposed");
    if (rule && rule->shaped) {
        smp_stored_shape shaped;
        if (!smp__shaped(rule->shaped, &shape, &shaped))
            return fail_rule(w, name, "it does not have the shape of the rule");
        shape = shaped;
    }
    if (shape.n_dim > 0)
        shape.dim[0] /= parts;
    SMP_TRY(find_tensor(w, name, rule, &shape, &t));
    smp_written_piece *piece = &t->piece[rule ? rule->part : 0];
    if (piece->weight >= 0)
        return smp_fail(SMP_ERR_INPUT, "weights '%s' and '%s' both become tensor '%s'",
                        w->weight[piece->weight].name, w->weight[w->number].name, name);
    *piece = (smp_written_piece){w->number, elements / parts * part, elements / parts * (part + 1)};
    t->n_piece++;
    return SMP_OK;
}

static smp_status add_weight(writing *w, const smp_name_rules *rules)
{
    smp_rule_match match;
    for (int i = 0; i < rules->n; i++) {
        const smp_name_rule *rule = &rules->rule[i];
        if (!smp_name_rule_fits(rule, w->weight[w->number].name, &match))
            continue;
        for (int k = 0; k < rule->n_tensor; k++) {
            const char *name = smp_rule_tensor_name(&rule->tensor[k], &match, w->arena);
            if (!name)
                return SMP_ERR_NO_MEMORY;
            SMP_TRY(add_part(w, name, &rule->tensor[k], k, rule->n_tensor));
        }
        return SMP_OK;
    }
    return add_part(w, w->weight[w->number].name, NULL, 0, 1);
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
