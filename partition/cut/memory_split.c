/* Memory alone. What an interval keeps besides its border grows with the interval, so going from
 * the front, each stage as far as its limit allows, no split can have a border further back; going
 * from the back, none can have one further forward. What crosses borders does not grow: the windows
 * leave it out, and the walk that is to be a split itself stops where the whole stage fits. Unless
 * it succeeds the dynamic program decides. A bisection over the limits finds the split that needs
 * least. O(n * degree) per walk. */
#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "partition/cut/best_split.h"

enum {
    BISECTIONS = 60,
    MAX_PAIRS = 2000000,
    MAX_LOOK = 10000 /* positions past the last end that fits */
};
#define SHARE_PRECISION 1e-3

/* Every stage takes as much as it can hold, from the front; possibly nothing. `whole`: its border
 * counts. */
static void walk(const smp__sequence *sequence, bool whole, int32_t *border)
{
    border[0] = 0;
    for (int k = 0; k < sequence->n_stage; k++) {
        smp__interval interval = {0};
        int32_t end = border[k];
        double ignored;
        for (int32_t j = end; j < sequence->border_hi[k + 1]; j++) {
            smp__interval_push_right(sequence, k, &interval, border[k], j);
            if (!smp__interval_may_fit(sequence, k, &interval))
                break;
            if (!whole ||
                smp__interval_load(sequence, k, &interval, border[k], j + 1, 0.0, &ignored))
                end = j + 1;
            else if (j - end > MAX_LOOK)
                break;
        }
        border[k + 1] = end;
    }
}

static void walk_back(const smp__sequence *sequence, int32_t *border)
{
    border[sequence->n_stage] = sequence->n;
    for (int k = sequence->n_stage - 1; k >= 0; k--) {
        smp__interval interval = {0};
        int32_t i = border[k + 1];
        for (; i > sequence->border_lo[k]; i--) {
            smp__interval_push_left(sequence, k, &interval, i - 1, border[k + 1]);
            if (!smp__interval_may_fit(sequence, k, &interval))
                break;
        }
        border[k] = i;
    }
}

bool smp__memory_windows(const smp__sequence *sequence, int32_t *lo, int32_t *hi)
{
    int K = sequence->n_stage;
    if (!sequence->feasible)
        return false;
    if (sequence->memory_binds) {
        walk(sequence, false, hi);
        walk_back(sequence, lo);
    } else {
        memcpy(lo, sequence->border_lo, ((size_t)K + 1) * sizeof *lo);
        memcpy(hi, sequence->border_hi, ((size_t)K + 1) * sizeof *hi);
    }
    if (hi[K] < sequence->n || lo[0] > 0)
        return false;
    for (int k = 1; k <= K; k++) /* no stage is empty */
        lo[k] = lo[k] <= lo[k - 1] ? lo[k - 1] + 1 : lo[k];
    for (int k = K - 1; k >= 0; k--)
        hi[k] = hi[k] >= hi[k + 1] ? hi[k + 1] - 1 : hi[k];
    for (int k = 0; k <= K; k++) {
        lo[k] = lo[k] < sequence->border_lo[k] ? sequence->border_lo[k] : lo[k];
        if (lo[k] > hi[k])
            return false;
    }
    return true;
}

bool smp__split_greedy(const smp__sequence *sequence, int32_t *border)
{
    walk(sequence, true, border);
    for (int k = 0; k < sequence->n_stage; k++) {
        if (border[k + 1] <= border[k] || border[k + 1] < sequence->border_lo[k + 1])
            return false;
    }
    return border[sequence->n_stage] == sequence->n;
}

/* Looks for a split whose stages are at most `share` of their limit full. */
static smp_status try_share(smp__sequence *sequence, double share, int32_t *lo, int32_t *hi,
                            smp__split *split)
{
    int64_t pairs = 0;
    sequence->limit_share = share;
    split->found = smp__split_greedy(sequence, split->border);
    split->work += sequence->n;
    smp_work_count(SMP_WORK_SOLVER, (double)sequence->n);
    split->late |= smp_work_past(sequence->problem->deadline_s);
    if (split->found || !smp__memory_windows(sequence, lo, hi))
        return SMP_OK;
    for (int k = 0; k < sequence->n_stage; k++)
        pairs += (int64_t)(hi[k] - lo[k] + 1) * (hi[k + 1] - lo[k + 1] + 1);
    if (pairs > MAX_PAIRS)
        return SMP_OK;
    return smp__split_sweep(sequence, lo, hi, SMP__GOAL_SLOWEST, INFINITY, split);
}

smp_status smp__split_memory(smp__sequence *sequence, smp__split *split, double *fullest)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    size_t n = (size_t)sequence->n_stage + 1;
    smp_arena *scratch = smp_arena_create();
    int32_t *window_lo = scratch ? SMP_ARENA_NEW(scratch, int32_t, n) : NULL;
    int32_t *window_hi = scratch ? SMP_ARENA_NEW(scratch, int32_t, n) : NULL;
    int32_t *best = scratch ? SMP_ARENA_NEW(scratch, int32_t, n) : NULL;
    if (!window_lo || !window_hi || !best)
        goto done;
    double lo = 0.0, hi = 1.0;
    bool found = false;
    status = SMP_OK;
    split->found = false;
    if (!sequence->feasible)
        goto done;
    for (int i = 0; i < BISECTIONS && !(found && hi - lo <= SHARE_PRECISION * hi); i++) {
        if (split->late || (found && !sequence->memory_binds))
            break;
        double share = found ? lo + (hi - lo) / 2 : hi;
        status = try_share(sequence, share, window_lo, window_hi, split);
        if (status != SMP_OK)
            break;
        if (split->found) {
            memcpy(best, split->border, n * sizeof *best);
            hi = share;
            found = true;
        } else {
            lo = share;
            hi = found ? hi : hi * 4.0;
        }
    }
    sequence->limit_share = 1.0;
    split->found = found;
    if (found)
        memcpy(split->border, best, n * sizeof *best);
    *fullest = hi;
done:
    smp_arena_destroy(scratch);
    return status;
}
