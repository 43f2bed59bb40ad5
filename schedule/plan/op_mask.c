/* What a stage says it recomputes or offloads, against its own ops. Names are found in a sorted
 * list, so that a file of nothing but names is read in O(n log n); patterns look at every op of the
 * stage, and are bounded as those of `ops:` are. */
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
} stage_ops;

static int compare_ops(const void *left, const void *right)
{
    return strcmp(((const stage_op *)left)->name, ((const stage_op *)right)->name);
}

static int32_t find(const void *context, const char *name)
{
    const stage_ops *ops = context;
    stage_op key = {.name = name};
    const stage_op *found =
        bsearch(&key, ops->sorted, (size_t)ops->n, sizeof *ops->sorted, compare_ops);
    return found ? found->index : -1;
}

static smp_status mark(const stage_ops *ops, const smp_sketch_entry *entry, const char *key,
                       int stage, int64_t *work, bool *mask)
{
    const smp_op_match match = smp_op_match_among(ops, find, ops->n, entry->text);
    bool any = false;
    SMP_TRY(smp_op_match_allowed(&match, entry->where, work));
    for (int32_t i = match.next; i <= match.last; i++)
        if (!match.pattern || smp_text_like(match.pattern, ops->name[i]))
            any = mask[i] = true;
    if (any)
        return SMP_OK;
    const char *near = smp_nearest(entry->text, ops->name, (size_t)ops->n);
    return smp_fail_at(entry->where, "stage: %s: stage %d has no op '%s'%s%s%s", key, stage,
                       entry->text, near ? ", nearest is '" : "", near ? near : "",
                       near ? "'" : "");
}

smp_status smp_sketch_op_mask(const smp_sketch_mask *said, const char *key, int stage,
                              const char *const *op, int32_t n_op, int64_t *work, bool *mask)
{
    memset(mask, said->what == 1, (size_t)n_op);
    if (said->what != SMP_SKETCH_OPS)
        return SMP_OK;
    stage_ops ops = {.name = op, .n = n_op};
    ops.sorted = malloc(((size_t)n_op + 1) * sizeof *ops.sorted);
    if (!ops.sorted)
        return smp_fail_memory((size_t)n_op * sizeof *ops.sorted);
    for (int32_t i = 0; i < n_op; i++)
        ops.sorted[i] = (stage_op){op[i], i};
    qsort(ops.sorted, (size_t)n_op, sizeof *ops.sorted, compare_ops);
    smp_status status = SMP_OK;
    for (int32_t i = 0; i < said->n && status == SMP_OK; i++)
        status = mark(&ops, &said->entry[i], key, stage, work, mask);
    free(ops.sorted);
    return status;
}
