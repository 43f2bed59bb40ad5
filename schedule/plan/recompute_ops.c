/* What a stage says it recomputes, against its own ops. Names are found in a sorted list, so that a file
 * of nothing but names is read in O(n log n); patterns look at every op of the stage, and are
 * bounded as those of `ops:` are. */
#include <stdlib.h>
#include <string.h>

#include "schedule/plan/op_pattern.h"
#include "schedule/plan/sketch.h"

typedef struct stage_op {
    const char *name;
    int32_t index;
} stage_op;

typedef struct stage_ops {
    const char *const *name; /* [n] in model order */
    stage_op *sorted;        /* [n] */
    int32_t n;
    int64_t *work;
    bool *mask;
} stage_ops;

static int compare_ops(const void *left, const void *right)
{
    return strcmp(((const stage_op *)left)->name, ((const stage_op *)right)->name);
}

static int32_t find(const stage_ops *ops, const char *name)
{
    stage_op key = {.name = name};
    const stage_op *found =
        bsearch(&key, ops->sorted, (size_t)ops->n, sizeof *ops->sorted, compare_ops);
    return found ? found->index : -1;
}

/* "a..b" with ops a and b of the stage. A name may itself hold dots: every ".." is tried. */
static bool find_range(const stage_ops *ops, const char *text, int32_t *first, int32_t *last)
{
    char name[SMP_MAX_NAME + 1];
    for (const char *dots = strstr(text, ".."); dots; dots = strstr(dots + 1, "..")) {
        size_t length = (size_t)(dots - text);
        if (length == 0 || length > SMP_MAX_NAME)
            continue;
        memcpy(name, text, length);
        name[length] = '\0';
        *first = find(ops, name);
        *last = find(ops, dots + 2);
        if (*first >= 0 && *last >= *first)
            return true;
    }
    return false;
}

static smp_status mark_matches(const stage_ops *ops, const smp_sketch_entry *entry, bool *any)
{
    *ops->work += ops->n;
    if (*ops->work > SMP_MAX_PATTERN_WORK)
        return smp_fail_at(entry->where,
                           "stage: recompute: got too many patterns, expected names of ops");
    for (int32_t i = 0; i < ops->n; i++)
        if (smp_op_pattern_matches(entry->text, ops->name[i]))
            *any = ops->mask[i] = true;
    return SMP_OK;
}

static smp_status mark(const stage_ops *ops, const smp_sketch_entry *entry, int stage)
{
    int32_t first = find(ops, entry->text), last = first;
    bool any = first >= 0 || find_range(ops, entry->text, &first, &last);
    for (int32_t i = first; any && i <= last; i++)
        ops->mask[i] = true;
    if (!any && strpbrk(entry->text, "*?"))
        SMP_TRY(mark_matches(ops, entry, &any));
    if (any)
        return SMP_OK;
    const char *near = smp_nearest(entry->text, ops->name, (size_t)ops->n);
    return smp_fail_at(entry->where, "stage: recompute: stage %d has no op '%s'%s%s%s", stage,
                       entry->text, near ? ", nearest is '" : "", near ? near : "",
                       near ? "'" : "");
}

smp_status smp_sketch_recompute(const smp_sketch_stage *stage, const char *const *op, int32_t n_op,
                                int64_t *work, bool *mask)
{
    memset(mask, stage->recompute == 1, (size_t)n_op);
    if (stage->recompute != SMP_SKETCH_RECOMPUTE_OPS)
        return SMP_OK;
    stage_ops ops = {.name = op, .n = n_op, .work = work, .mask = mask};
    ops.sorted = malloc(((size_t)n_op + 1) * sizeof *ops.sorted);
    if (!ops.sorted)
        return smp_fail_memory((size_t)n_op * sizeof *ops.sorted);
    for (int32_t i = 0; i < n_op; i++)
        ops.sorted[i] = (stage_op){op[i], i};
    qsort(ops.sorted, (size_t)n_op, sizeof *ops.sorted, compare_ops);
    smp_status status = SMP_OK;
    for (int32_t i = 0; i < stage->n_again && status == SMP_OK; i++)
        status = mark(&ops, &stage->again[i], stage->stage);
    free(ops.sorted);
    return status;
}
