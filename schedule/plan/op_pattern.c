/* Ops by pattern; see the header. */
#include "schedule/plan/op_pattern.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/plan/layer_names.h"

/* "a..b" with ops a and b: their places. A name may itself hold dots: every ".." is tried. */
static bool find_range(const void *ops, smp_op_finder *find, const char *pattern, int32_t *first,
                       int32_t *last)
{
    char name[SMP_MAX_NAME + 1];
    for (const char *dots = strstr(pattern, ".."); dots; dots = strstr(dots + 1, "..")) {
        size_t length = (size_t)(dots - pattern);
        if (length == 0 || length > SMP_MAX_NAME)
            continue;
        memcpy(name, pattern, length);
        name[length] = '\0';
        *first = find(ops, name);
        *last = find(ops, dots + 2);
        if (*first >= 0 && *last >= *first)
            return true;
    }
    return false;
}

smp_op_match smp_op_match_among(const void *ops, smp_op_finder *find, int32_t n, const char *text)
{
    smp_op_match match = {.next = find(ops, text)};
    match.last = match.next;
    if (match.next >= 0 || find_range(ops, find, text, &match.next, &match.last))
        return match;
    bool pattern = strpbrk(text, "*?") != NULL;
    return (smp_op_match){.next = 0, .last = pattern ? n - 1 : -1, .pattern = text};
}

static int32_t find_in_graph(const void *graph, const char *name)
{
    return smp_graph_find_op(graph, name);
}

smp_op_match smp_op_match_begin(const smp_graph *graph, const char *text)
{
    return smp_op_match_among(graph, find_in_graph, graph->n_op, text);
}

int32_t smp_op_match_next(const smp_graph *graph, smp_op_match *match)
{
    while (match->next <= match->last) {
        int32_t op = match->next++;
        if (!match->pattern || smp_text_like(match->pattern, graph->op[op].name))
            return op;
    }
    return -1;
}

smp_status smp_op_match_allowed(const smp_op_match *match, smp_where where, int64_t *work)
{
    *work += match->last - match->next + 1;
    if (*work <= SMP_MAX_PATTERN_WORK)
        return SMP_OK;
    return smp_fail_at(where, "got too many patterns and ranges for so many names, expected names");
}

/* The pattern without its stars, or the side of a range that is no op. */
static void plain_name(const smp_graph *graph, const char *pattern, char *name, size_t size)
{
    const char *dots = strstr(pattern, "..");
    size_t n = 0;
    if (dots && (size_t)(dots - pattern) < size) {
        memcpy(name, pattern, (size_t)(dots - pattern));
        name[dots - pattern] = '\0';
        if (smp_graph_find_op(graph, name) < 0)
            return;
        pattern = dots + 2;
    }
    for (; *pattern && n + 1 < size; pattern++) {
        if (*pattern != '*')
            name[n++] = *pattern;
    }
    name[n] = '\0';
}

void smp_op_pattern_hint(const smp_graph *graph, const char *pattern, smp_text *text)
{
    char name[SMP_MAX_NAME + 1];
    const char **names = malloc(((size_t)graph->n_op + 1) * sizeof *names);
    if (!names) {
        smp_fail_memory(((size_t)graph->n_op + 1) * sizeof *names);
        text->failed = true;
        return;
    }
    plain_name(graph, pattern, name, sizeof name);
    for (int32_t op = 0; op < graph->n_op; op++)
        names[op] = graph->op[op].name;
    const char *near = smp_nearest(name, names, (size_t)graph->n_op);
    if (near)
        smp_text_append(text, ", nearest is '%s'", near);
    else if (graph->n_op > 0)
        smp_text_append(text, "; its ops are '%s' to '%s'", names[0], names[graph->n_op - 1]);
    free(names);
}

static smp_status fail_no_match(const smp_graph *graph, const char *option, const char *pattern)
{
    smp_text hint = {0};
    smp_op_pattern_hint(graph, pattern, &hint);
    smp_status status = hint.failed
                            ? SMP_ERR_NO_MEMORY
                            : smp_fail(SMP_ERR_INPUT, "%s: no op of model '%s' matches '%s'%s",
                                       option, graph->name, pattern, hint.data ? hint.data : "");
    smp_text_free(&hint);
    return status;
}

static smp_status cut_at_layers(const smp_graph *graph, const char *option, bool *begins)
{
    if (smp_layers_begin(graph, begins) > 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: no op of model '%s' names a layer, as 'h0.attn' or 'layers.0.attn' do",
                    option, graph->name);
}

smp_status smp_op_cuts(const smp_graph *graph, const char *option, const char *const *pattern,
                       int n_pattern, int32_t **together)
{
    size_t n = (size_t)graph->n_op;
    smp_status status = SMP_OK;
    bool *begins = calloc(n + 1, sizeof *begins);
    int32_t *label = calloc(n + 1, sizeof *label);
    if (!begins || !label)
        status = smp_fail_memory(n * sizeof *label);
    for (int i = 0; i < n_pattern && status == SMP_OK; i++) {
        if (strcmp(pattern[i], "layers") == 0) {
            status = cut_at_layers(graph, option, begins);
            continue;
        }
        smp_op_match match = smp_op_match_begin(graph, pattern[i]);
        int32_t op = smp_op_match_next(graph, &match);
        if (op < 0)
            status = fail_no_match(graph, option, pattern[i]);
        for (; op >= 0; op = smp_op_match_next(graph, &match))
            begins[op] = true;
    }
    if (status == SMP_OK) {
        int32_t current = 0;
        for (int32_t op = 0; op < graph->n_op; op++) {
            current += begins[op] && op > 0;
            label[op] = current;
        }
        *together = label;
        label = NULL;
    }
    free(begins);
    free(label);
    return status;
}
