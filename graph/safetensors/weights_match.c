/* Reading weights by rules; see the header. */
#include "graph/safetensors/weights_match.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 20000 }; /* among which a near one is looked for */

bool smp__shaped(const char *text, const smp_stored_shape *weight, smp_stored_shape *out)
{
    int64_t elements, known = 1, root = 1;
    int unknown = 0;
    *out = (smp_stored_shape){0};
    for (; *text; text += *text == 'x') {
        int64_t dim = 0;
        if (*text == '?') {
            dim = -1;
            text++;
        } else if (*text == 'd') {
            dim = text[1] - '0' < weight->n_dim ? weight->dim[text[1] - '0'] : 0;
            text += 2;
        } else {
            for (; *text >= '0' && *text <= '9'; text++)
                dim = dim < 1 << 30 ? dim * 10 + (*text - '0') : dim;
        }
        unknown += dim < 0;
        if (dim == 0 || (dim > 0 && known > INT64_MAX / dim))
            return false;
        known *= dim > 0 ? dim : 1;
        out->dim[out->n_dim++] = dim;
    }
    if (!smp_stored_elements(weight, &elements) || elements < known || elements % known != 0)
        return false;
    const int64_t left = elements / known;
    if (unknown == 1)
        root = left;
    for (int64_t power = 1; unknown > 1 && power != left; root++) {
        power = 1;
        for (int i = 0; i < unknown && power <= left; i++)
            power = power > INT64_MAX / (root + 1) ? INT64_MAX : power * (root + 1);
        if (power > left)
            return false;
    }
    for (int i = 0; i < out->n_dim; i++)
        out->dim[i] = out->dim[i] < 0 ? root : out->dim[i];
    return unknown > 0 || left == 1;
}

smp_rule_items smp__rule_items(const smp_name_rule *rule, const smp_stored_shape *weight)
{
    smp_rule_items items = {1, *weight};
    if (!rule->each || weight->n_dim == 0)
        return items;
    items.n = weight->dim[0];
    items.shape.n_dim--;
    memmove(items.shape.dim, weight->dim + 1, (size_t)items.shape.n_dim * sizeof weight->dim[0]);
    return items;
}

/* A weight that is being matched. */
typedef struct matching {
    const smp_weights_file *file;
    const smp_matched_weight *weight;
    smp_stored_shape shape; /* of what the tensors make: it, or an item */
    smp_weight_sources *sources;
    bool *used;       /* [file->n_tensor] */
    smp_arena *arena; /* for names */
} matching;

static smp_status fail_shape(const matching *m, const smp_stored_tensor *t, const char *how)
{
    char ours[SMP_SHAPE_TEXT], theirs[SMP_SHAPE_TEXT];
    return smp_fail(SMP_ERR_INPUT, "%s: tensor '%s' is %s, which%s does not make weight '%s' of %s",
                    m->file->path, t->name, smp_stored_shape_text(&t->shape, theirs), how,
                    m->weight->name, smp_stored_shape_text(&m->weight->shape, ours));
}

/* Elements of what the rule takes of the tensor, of the shape that is stacked; *first: where they
 * begin in the tensor, seen as it is taken. */
static smp_status find_view(const matching *m, const smp_rule_tensor *rule,
                            const smp_stored_tensor *t, smp_stored_shape *view, int64_t *first)
{
    smp_stored_shape shaped;
    *view = t->shape;
    *first = 0;
    if (!t->dtype->to_float)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: tensor '%s' is of %s, weight '%s' takes F32, F16, BF16 "
                        "or F64",
                        m->file->path, t->name, t->dtype->name, m->weight->name);
    if (rule->shaped) {
        if (!smp__shaped(rule->shaped, &m->shape, &shaped) ||
            !smp_stored_shape_equal(&shaped, &t->shape))
            return fail_shape(m, t, " in the shape of the rule");
        *view = m->shape;
    }
    if (rule->transposed) {
        if (view->n_dim != 2)
            return fail_shape(m, t, " is no matrix, and transposed");
        *view = (smp_stored_shape){2, {t->shape.dim[1], t->shape.dim[0]}};
    }
    if (rule->parts > 1) {
        if (view->n_dim == 0 || view->dim[0] % rule->parts != 0)
            return fail_shape(m, t, " in parts");
        view->dim[0] /= rule->parts;
        *first = t->elements / rule->parts * rule->part;
    }
    return SMP_OK;
}

/* last: of those that make the item with that number. */
static smp_status add_source(const matching *m, const smp_rule_tensor *rule, int64_t item,
                             int32_t tensor, bool last)
{
    const smp_stored_tensor *t = &m->file->tensor[tensor];
    const smp_stored_shape *shape = &m->shape;
    smp_weight_sources *s = m->sources;
    smp_weight_source source = {.tensor = tensor, .transposed = rule->transposed};
    smp_stored_shape view, rest = *shape;
    int64_t elements = 0, whole = 0;
    SMP_TRY(find_view(m, rule, t, &view, &source.first));
    smp_stored_elements(&view, &elements);
    smp_stored_elements(shape, &whole);
    source.begin = s->n == 0 ? 0 : s->source[s->n - 1].end;
    source.end = source.begin + elements;
    if (shape->n_dim > 0 && view.n_dim > 0)
        rest.dim[0] = view.dim[0]; /* all but the first have to be equal */
    whole *= item + 1;
    if (!smp_stored_shape_equal(&rest, &view) || source.end > whole ||
        (last && source.end != whole))
        return fail_shape(m, t, rule->transposed ? ", transposed," : "");
    s->source[s->n++] = source;
    m->used[tensor] = true;
    return SMP_OK;
}

/* tensor: [items * rule's]. Are all of them there? else *missing is the first that is not. */
static smp_status find_tensors(const matching *m, const smp_name_rule *rule, smp_rule_match *match,
                               int64_t items, int32_t *tensor, const char **missing)
{
    const char *lacks = NULL;
    for (int64_t k = 0; k < items * rule->n_tensor && !lacks; k++) {
        if (rule->each)
            smp_rule_match_item(match, k / rule->n_tensor);
        const char *name = smp_rule_tensor_name(&rule->tensor[k % rule->n_tensor], match, m->arena);
        if (!name)
            return SMP_ERR_NO_MEMORY;
        tensor[k] = smp_weights_file_find(m->file, name);
        lacks = tensor[k] < 0 ? name : NULL;
    }
    *missing = lacks;
    return SMP_OK;
}

/* All sources of the weight, or none and *missing. */
static smp_status match_rule(matching *m, const smp_name_rule *rule, smp_rule_match *match,
                             const char **missing)
{
    const smp_rule_items items = smp__rule_items(rule, &m->weight->shape);
    const int64_t each = rule->n_tensor, n = items.n * each;
    int32_t *tensor = SMP_ARENA_NEW(m->arena, int32_t, (size_t)n);
    if (!tensor)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(find_tensors(m, rule, match, items.n, tensor, missing));
    if (*missing)
        return SMP_OK;
    m->shape = items.shape;
    m->sources->source = SMP_ARENA_NEW(m->file->arena, smp_weight_source, (size_t)n);
    if (!m->sources->source)
        return SMP_ERR_NO_MEMORY;
    for (int64_t k = 0; k < n; k++)
        SMP_TRY(add_source(m, &rule->tensor[k % each], k / each, tensor[k], k % each == each - 1));
    return SMP_OK;
}

static smp_status fail_missing(const matching *m, const char *missing)
{
    const smp_weights_file *file = m->file;
    const size_t n = (size_t)(file->n_tensor < MOST_NAMES ? file->n_tensor : MOST_NAMES);
    const char **names = malloc((n + 1) * sizeof *names), *near = NULL;
    for (size_t i = 0; names && i < n; i++)
        names[i] = file->tensor[i].name;
    if (names)
        near = smp_nearest(missing, names, n);
    free(names);
    return smp_fail(SMP_ERR_INPUT, "%s: has no tensor '%s' for weight '%s'%s%s%s", file->path,
                    missing, m->weight->name, near ? "; did you mean '" : "", near ? near : "",
                    near ? "'?" : "");
}

static smp_status match_weight(matching *m, const smp_name_rules *rules)
{
    const char *first = NULL, *missing = NULL;
    smp_rule_match match = {0};
    const smp_name_rule itself = {.n_tensor = 1, .tensor = {{.name = m->weight->name, .parts = 1}}};
    m->sources->n = 0;
    for (int i = 0; i < rules->n; i++) {
        const smp_name_rule *rule = &rules->rule[i];
        if (!smp_name_rule_fits(rule, m->weight->name, &match))
            continue;
        SMP_TRY(match_rule(m, rule, &match, &missing));
        if (!missing)
            return SMP_OK;
        first = first ? first : missing;
    }
    SMP_TRY(match_rule(m, &itself, &match, &missing));
    return missing ? fail_missing(m, first ? first : missing) : SMP_OK;
}

static bool wanted(const char *name, const char *const *only, int n_only)
{
    for (int i = 0; i < n_only; i++)
        if (smp_text_like(only[i], name))
            return true;
    return n_only == 0;
}

static smp_status check_patterns(const smp_matched_weight *weight, int32_t n_weight,
                                 const char *const *only, int n_only)
{
    for (int i = 0; i < n_only; i++) {
        int32_t k = 0;
        while (k < n_weight && !smp_text_like(only[i], weight[k].name))
            k++;
        if (k == n_weight)
            return smp_fail(SMP_ERR_INPUT, "--weights-only: no weight of the model is like '%s'",
                            only[i]);
    }
    return SMP_OK;
}

smp_status smp_weights_match(const smp_weights_file *file, const smp_name_rules *rules,
                             const smp_matched_weight *weight, int32_t n_weight,
                             const char *const *only, int n_only, smp_weight_sources *sources,
                             int32_t *unused)
{
    matching m = {.file = file, .arena = smp_arena_create()};
    m.used = calloc((size_t)file->n_tensor + 1, sizeof *m.used);
    smp_status status = m.used && m.arena ? check_patterns(weight, n_weight, only, n_only)
                                          : smp_fail_memory((size_t)file->n_tensor);
    for (int32_t i = 0; i < n_weight && status == SMP_OK; i++) {
        m.weight = &weight[i];
        m.sources = &sources[i];
        sources[i].n = 0;
        if (wanted(weight[i].name, only, n_only))
            status = match_weight(&m, rules);
    }
    int32_t left = 0;
    for (int32_t i = 0; status == SMP_OK && i < file->n_tensor; i++)
        left += !m.used[i];
    *unused = left;
    free(m.used);
    smp_arena_destroy(m.arena);
    return status;
}

bool smp_weight_in_order(const smp_weight_sources *sources)
{
    for (int i = 0; i < sources->n; i++)
        if (sources->source[i].transposed)
            return false;
    return true;
}

/* Elements [first, first + n) of a stored matrix [columns][rows], seen as [rows][columns]: of every
 * column the rows that they touch, at most n. */
static smp_status read_transposed(smp_weights_file *file, int32_t tensor, int64_t first, int64_t n,
                                  float *values, float *column)
{
    const smp_stored_tensor *t = &file->tensor[tensor];
    const int64_t columns = t->shape.dim[0], rows = t->shape.dim[1];
    const int64_t begin = first / columns, end = (first + n - 1) / columns + 1;
    for (int64_t c = 0; c < columns; c++) {
        SMP_TRY(smp_weights_file_read(file, tensor, c * rows + begin, end - begin, column));
        for (int64_t r = begin; r < end; r++) {
            const int64_t at = r * columns + c - first;
            if (at >= 0 && at < n)
                values[at] = column[r - begin];
        }
    }
    return SMP_OK;
}

smp_status smp_weight_read(smp_weights_file *file, const smp_weight_sources *sources, int64_t begin,
                           int64_t n, float *values, float *scratch)
{
    for (int i = 0; i < sources->n; i++) {
        const smp_weight_source *s = &sources->source[i];
        const int64_t from = begin > s->begin ? begin : s->begin,
                      to = begin + n < s->end ? begin + n : s->end;
        if (from >= to)
            continue;
        const int64_t first = s->first + (from - s->begin);
        float *at = values + (from - begin);
        SMP_TRY(s->transposed ? read_transposed(file, s->tensor, first, to - from, at, scratch)
                              : smp_weights_file_read(file, s->tensor, first, to - from, at));
    }
    return SMP_OK;
}
