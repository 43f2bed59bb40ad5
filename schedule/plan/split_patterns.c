/* A splitting by patterns as one by names; see the header. O(ops) for each pattern, bounded as
 * those of sketches are. */
#include "schedule/plan/split_patterns.h"

#include <stdlib.h>
#include <string.h>

#include "graph/split/split_text.h"
#include "schedule/plan/op_pattern.h"

smp_status smp_split_entry_parse(const char *name, const char *text, smp_split_entry *out)
{
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || !colon[1])
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got '%.200s', expected PATTERN:RULE, as in h*.mlp.fc:columns", name,
                        text);
    char *op = strdup(text);
    if (!op)
        return smp_fail_memory(strlen(text) + 1);
    op[colon - text] = '\0';
    *out = (smp_split_entry){.op = op, .as = colon + 1, .where = {name, 0, 0}};
    return SMP_OK;
}

/* By which entry each op is split. */
typedef struct resolved {
    const smp_splitting *from;
    const smp_graph *graph;
    const smp_split_entry **by; /* [n_op], NULL: whole */
    bool *named;                /* [n_op] */
    int *devices;               /* [n_op] that compute it */
    int64_t work;
} resolved;

static smp_status fail_unknown(const smp_graph *graph, const smp_split_entry *entry)
{
    smp_text hint = {0};
    smp_op_pattern_hint(graph, entry->op, &hint);
    smp_status status = hint.failed
                            ? SMP_ERR_NO_MEMORY
                            : smp_fail_at(entry->where, "split: no op of model '%s' is '%.200s'%s",
                                          graph->name, entry->op, hint.data ? hint.data : "");
    smp_text_free(&hint);
    return status;
}

static smp_status set(resolved *r, const smp_split_entry *entry, int32_t op, bool named)
{
    smp_split_choice choice;
    smp_status status = smp_split_parse(r->graph, op, r->devices[op], entry->as, &choice);
    if (status == SMP_ERR_INPUT)
        return smp_fail_at(entry->where, "split: %s", smp_last_error());
    SMP_TRY(status);
    r->by[op] = choice.rule < 0 ? NULL : entry;
    r->named[op] = named;
    return SMP_OK;
}

static smp_status set_named(resolved *r, const smp_split_entry *entry, int32_t op)
{
    if (r->named[op])
        return smp_fail_at(entry->where, "split: op '%.200s' is named twice", entry->op);
    return set(r, entry, op, true);
}

static smp_status set_pattern(resolved *r, const smp_split_entry *entry)
{
    smp_op_match match = smp_op_match_begin(r->graph, entry->op);
    int32_t first = -1, n = 0;
    SMP_TRY(smp_op_match_allowed(&match, entry->where, &r->work));
    for (int32_t op; (op = smp_op_match_next(r->graph, &match)) >= 0;) {
        first = first < 0 ? op : first;
        if (!smp_split_has_rule(r->graph, op, entry->as))
            continue;
        n++;
        if (!r->named[op])
            SMP_TRY(set(r, entry, op, false));
    }
    if (first < 0)
        return fail_unknown(r->graph, entry);
    /* the message is of the first one, and names its rules */
    return n > 0 ? SMP_OK : set(r, entry, first, false);
}

/* Names first, so that a pattern knows which ops are not its own. */
static smp_status set_all(resolved *r)
{
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < r->from->n_entry; i++) {
            const smp_split_entry *entry = &r->from->entry[i];
            const int32_t op = smp_graph_find_op(r->graph, entry->op);
            if (pass == 0 && op >= 0)
                SMP_TRY(set_named(r, entry, op));
            if (pass == 1 && op < 0)
                SMP_TRY(set_pattern(r, entry));
        }
    return SMP_OK;
}

static smp_status put_entries(const resolved *r, smp_arena *arena, smp_splitting *out)
{
    smp_split_entry *entry = SMP_ARENA_NEW(arena, smp_split_entry, (size_t)r->graph->n_op);
    int32_t n = 0;
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = 0; op < r->graph->n_op; op++) {
        if (!r->by[op])
            continue;
        entry[n].where = r->by[op]->where;
        entry[n].op = smp_arena_strdup(arena, r->graph->op[op].name);
        entry[n].as = smp_arena_strdup(arena, r->by[op]->as);
        if (!entry[n].op || !entry[n].as)
            return SMP_ERR_NO_MEMORY;
        n++;
    }
    *out = *r->from;
    out->n_entry = n;
    out->entry = entry;
    return SMP_OK;
}

smp_status smp_splitting_resolve(const smp_splitting *splitting, const smp_graph *whole,
                                 smp_arena *arena, smp_splitting *out)
{
    const size_t n = (size_t)whole->n_op + 1;
    resolved r = {.from = splitting,
                  .graph = whole,
                  .by = calloc(n, sizeof *r.by),
                  .named = calloc(n, sizeof *r.named),
                  .devices = calloc(n, sizeof *r.devices)};
    smp_status status = r.by && r.named && r.devices
                            ? SMP_OK
                            : smp_fail_memory(n * (sizeof *r.by + sizeof *r.named));
    if (status == SMP_OK && splitting->devices > 1) {
        smp_splitting_devices(splitting, whole, r.devices);
        status = set_all(&r);
    }
    if (status == SMP_OK)
        status = put_entries(&r, arena, out);
    free(r.by);
    free(r.named);
    free(r.devices);
    return status;
}

/* "h*.mlp.fc" of "h12.mlp.fc". */
static const char *without_numbers(const char *name, smp_arena *arena)
{
    char *pattern = smp_arena_strdup(arena, name);
    char *to = pattern;
    for (const char *from = pattern; from && *from;) {
        const size_t digits = strspn(from, "0123456789");
        *to++ = digits > 0 ? '*' : *from;
        from += digits > 0 ? digits : 1;
    }
    if (pattern)
        *to = '\0';
    return pattern;
}

static bool is_listed(const smp_split_entry *entry, int32_t n, const char *op, const char *as)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(entry[i].op, op) == 0 && strcmp(entry[i].as, as) == 0)
            return true;
    return false;
}

static const char *rule_of(const smp_splitting *splitting, const char *op, int32_t *at)
{
    if (*at == splitting->n_entry || strcmp(splitting->entry[*at].op, op) != 0)
        return "whole";
    return splitting->entry[(*at)++].as; /* both are in op order */
}

/* Adds the ops, by name, of which the patterns say something else. */
static void add_exceptions(const smp_splitting *resolved, const smp_splitting *made,
                           const smp_graph *whole, smp_split_entry *entry, int32_t *n)
{
    int32_t wanted_at = 0, made_at = 0;
    for (int32_t op = 0; op < whole->n_op; op++) {
        const char *name = whole->op[op].name;
        const char *wanted = rule_of(resolved, name, &wanted_at),
                   *is = rule_of(made, name, &made_at);
        if (strcmp(wanted, is) != 0)
            entry[(*n)++] = (smp_split_entry){.op = name, .as = wanted};
    }
}

static bool is_same(const smp_splitting *a, const smp_splitting *b)
{
    bool same = a->n_entry == b->n_entry;
    for (int32_t i = 0; same && i < a->n_entry; i++)
        same = strcmp(a->entry[i].op, b->entry[i].op) == 0 &&
               strcmp(a->entry[i].as, b->entry[i].as) == 0;
    return same;
}

smp_status smp_splitting_shorten(const smp_splitting *resolved, const smp_graph *whole,
                                 smp_arena *arena, smp_splitting *out)
{
    const size_t most = (size_t)resolved->n_entry + (size_t)whole->n_op;
    smp_split_entry *entry = SMP_ARENA_NEW(arena, smp_split_entry, most);
    smp_splitting few = *resolved, made;
    int32_t n = 0;
    *out = *resolved;
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < resolved->n_entry; i++) {
        const char *pattern = without_numbers(resolved->entry[i].op, arena);
        if (!pattern)
            return SMP_ERR_NO_MEMORY;
        if (!is_listed(entry, n, pattern, resolved->entry[i].as))
            entry[n++] = (smp_split_entry){.op = pattern, .as = resolved->entry[i].as};
    }
    few.entry = entry;
    few.n_entry = n;
    smp_status status = smp_splitting_resolve(&few, whole, arena, &made);
    if (status == SMP_OK) {
        add_exceptions(resolved, &made, whole, entry, &n);
        few.n_entry = n;
        status = smp_splitting_resolve(&few, whole, arena, &made);
    }
    if (status == SMP_OK && is_same(resolved, &made) && n < resolved->n_entry)
        *out = few;
    return status == SMP_ERR_INPUT ? SMP_OK : status; /* then the names themselves */
}
