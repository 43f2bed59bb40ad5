/* The names that expressions of a model may use: `let` entries, in order, and the variables of the
 * repeats around them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model/model.h"

/* Innermost repeat first; notes which loop variables an expression depends on. */
static bool look_up(void *context, const char *name, size_t length, smp_expr_name *out)
{
    smp__model *m = context;
    for (int i = m->n_loop - 1; i >= 0; i--) {
        const char *variable = m->loop[i].name;
        if (variable && strncmp(variable, name, length) == 0 && variable[length] == '\0') {
            m->loops_used |= (uint64_t)1 << i;
            *out = (smp_expr_name){&m->loop[i].value, 0};
            return true;
        }
    }
    size_t kept = length < SMP_MAX_NAME ? length : SMP_MAX_NAME;
    memcpy(m->unknown, name, kept);
    m->unknown[kept] = '\0';
    int64_t index;
    if (kept < length || !smp_map_get(m->let_index, m->unknown, &index))
        return false;
    m->unknown[0] = '\0';
    *out = m->let_value[index];
    return true;
}

/* Adds the nearest known name to the message of an unknown one. */
static smp_status suggest(smp__model *m)
{
    size_t n = 0;
    size_t most = (size_t)m->n_let + SMP__MAX_LOOPS;
    const char **names = malloc(most * sizeof *names);
    if (!names)
        return smp_fail_memory(most * sizeof *names);
    for (int i = 0; i < m->n_loop; i++) {
        if (m->loop[i].name)
            names[n++] = m->loop[i].name;
    }
    for (int32_t i = 0; i < m->n_let; i++)
        names[n++] = m->let_name[i];
    const char *nearest = smp_nearest(m->unknown, names, n);
    if (nearest)
        smp_fail(SMP_ERR_INPUT, "%s, did you mean '%s'?", smp_last_error(), nearest);
    else
        smp_fail(SMP_ERR_INPUT, "%s, expected an entry of 'let' or the variable of a repeat",
                 smp_last_error());
    free(names);
    return SMP_ERR_INPUT;
}

smp_status smp__model_eval_text(smp__model *m, const char *text, smp_where where, int64_t *out)
{
    m->unknown[0] = '\0';
    smp_status status = smp_expr_eval(text, where, look_up, m, out);
    return status == SMP_ERR_INPUT && m->unknown[0] ? suggest(m) : status;
}

/* "op 'h0.attn': heads" */
static const char *label(char *buffer, size_t size, const char *op, const char *what)
{
    if (!op)
        return what;
    snprintf(buffer, size, "op '%s': %s", op, what);
    return buffer;
}

smp_status smp__model_eval(smp__model *m, const smp_yaml_node *node, const char *op,
                           const char *what, int64_t min, int64_t max, int64_t *out)
{
    char buffer[SMP_MAX_NAME + 96];
    const char *text;
    int64_t value;
    if (!smp_yaml_text(node) || !smp_yaml_text(node)[0])
        return smp_yaml_string(node, label(buffer, sizeof buffer, op, what), &text) == SMP_OK
                   ? smp_fail_at(smp_yaml_where(node), "%s: got an empty text, expected an integer",
                                 label(buffer, sizeof buffer, op, what))
                   : SMP_ERR_INPUT;
    smp_where where = smp_yaml_where(node);
    where.column += smp_yaml_quoted(node);
    SMP_TRY(smp__model_eval_text(m, smp_yaml_text(node), where, &value));
    if (value >= min && value <= max) {
        *out = value;
        return SMP_OK;
    }
    what = label(buffer, sizeof buffer, op, what);
    if (value < min)
        return smp_fail_at(where, "%s: got %lld, expected at least %lld", what, (long long)value,
                           (long long)min);
    return smp_fail_at(where, "%s: got %lld, expected at most %lld", what, (long long)value,
                       (long long)max);
}

smp_status smp__model_check_variable(smp__model *m, const char *what, const char *name,
                                     smp_where where)
{
    size_t length = strlen(name);
    bool good = length > 0 && length <= SMP_MAX_NAME && !(name[0] >= '0' && name[0] <= '9');
    for (size_t i = 0; i < length && good; i++)
        good = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
               (name[i] >= '0' && name[i] <= '9') || name[i] == '_';
    if (!good)
        return smp_fail_at(where,
                           "%s: got '%.60s' as a name, expected letters, digits and '_', "
                           "a letter first",
                           what, name);
    int64_t index;
    if (smp_map_get(m->let_index, name, &index))
        return smp_fail_at(where, "%s: the name '%.60s' is already an entry of 'let'", what, name);
    for (int i = 0; i < m->n_loop; i++) {
        if (m->loop[i].name && strcmp(m->loop[i].name, name) == 0)
            return smp_fail_at(where, "%s: the name '%.60s' is the variable of a repeat around it",
                               what, name);
    }
    return SMP_OK;
}

/* An integer, or a list of them. */
static smp_status read_entry(smp__model *m, const smp_yaml_node *node, const char *what,
                             smp_expr_name *out)
{
    bool list = smp_yaml_kind_of(node) == SMP_YAML_LIST;
    int n = list ? smp_yaml_list_size(node) : 1;
    if (n == 0)
        return smp_fail_at(smp_yaml_where(node), "%s: got an empty list, expected an item", what);
    int64_t *item = SMP_ARENA_NEW(m->scratch, int64_t, (size_t)n);
    if (!item)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < n; i++)
        SMP_TRY(smp__model_eval(m, list ? smp_yaml_list_at(node, i) : node, NULL, what, INT64_MIN,
                                INT64_MAX, &item[i]));
    *out = (smp_expr_name){item, list ? n : 0};
    return SMP_OK;
}

/* Length of the name; 0: it is no setting. A line of its own in a document. */
static size_t name_of(const char *setting)
{
    const char *equals = strchr(setting, '=');
    return equals && equals[1] && !strpbrk(setting, "\r\n") ? (size_t)(equals - setting) : 0;
}

smp_status smp__model_read_settings(smp_settings settings, smp_arena *arena, smp_settings *kept,
                                    smp_yaml **out)
{
    const char **text = SMP_ARENA_NEW(arena, const char *, SMP_MAX_SETTINGS);
    smp_text document = {0};
    int n = 0;
    if (!text)
        return SMP_ERR_NO_MEMORY;
    if (settings.n > SMP_MAX_SETTINGS)
        return smp_fail(SMP_ERR_INPUT, "let: got %d values to set, expected at most %d", settings.n,
                        SMP_MAX_SETTINGS);
    smp_text_append(&document, "smp: 1\n");
    for (int i = 0; i < settings.n; i++) {
        const char *setting = settings.text[i];
        const size_t name = name_of(setting);
        bool counts = true;
        if (name == 0) {
            smp_text_free(&document);
            return smp_fail(SMP_ERR_INPUT, "let: got '%.100s' to set, expected NAME=VALUE",
                            setting);
        }
        for (int k = i + 1; k < settings.n; k++)
            counts &= strncmp(settings.text[k], setting, name + 1) != 0;
        if (!counts)
            continue;
        smp_text_append(&document, "%.*s: %s\n", (int)name, setting, setting + name + 1);
        text[n] = smp_arena_strdup(arena, setting);
        document.failed |= !text[n++];
    }
    *kept = (smp_settings){.n = n, .text = text};
    const smp_status status = document.failed
                                  ? SMP_ERR_NO_MEMORY
                                  : smp_yaml_parse("let", document.data, document.length, out);
    smp_text_free(&document);
    return status;
}

static smp_status check_settings(const smp__model *m)
{
    int64_t index;
    for (int i = 1; m->given && i < smp_yaml_map_size(m->given); i++) { /* after smp: 1 */
        const char *name = smp_yaml_map_key(m->given, i);
        if (smp_map_get(m->let_index, name, &index))
            continue;
        const char *nearest =
            m->n_let > 0 ? smp_nearest(name, m->let_name, (size_t)m->n_let) : NULL;
        return smp_fail(SMP_ERR_INPUT, "%s: its 'let' has no '%.100s' to set%s%s%s",
                        m->store->graph.path, name, nearest ? ", did you mean '" : "",
                        nearest ? nearest : "", nearest ? "'?" : "");
    }
    return SMP_OK;
}

smp_status smp__model_read_let(smp__model *m, const smp_yaml_node *let)
{
    if (!let)
        return check_settings(m);
    SMP_TRY(smp_yaml_map(let, "let"));
    size_t n = (size_t)smp_yaml_map_size(let);
    m->let_name = SMP_ARENA_NEW(m->scratch, const char *, n);
    m->let_value = SMP_ARENA_NEW(m->scratch, smp_expr_name, n);
    if (!m->let_name || !m->let_value)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < (int)n; i++) {
        const char *name = smp_yaml_map_key(let, i);
        char what[SMP_MAX_NAME + 16];
        snprintf(what, sizeof what, "let: %.255s", name);
        SMP_TRY(smp__model_check_variable(m, "let", name, smp_yaml_map_key_where(let, i)));
        const smp_yaml_node *given = m->given ? smp_yaml_get(m->given, name) : NULL;
        SMP_TRY(read_entry(m, given ? given : smp_yaml_map_value(let, i), what, &m->let_value[i]));
        m->let_name[i] = name;
        m->n_let = i + 1;
        SMP_TRY(smp_map_set(m->let_index, name, i)); /* from here on it can be used */
    }
    return check_settings(m);
}
