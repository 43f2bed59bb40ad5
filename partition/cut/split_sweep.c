/* The dynamic program over borders: f_k(j) = min over i of max(f_{k-1}(i), load_k(i, j)), for the
 * borders that windows admit. For fixed j the sweep runs i downwards, so that loads and memory
 * follow in O(degree) each; it ends when compute or memory alone are too much. Where all places
 * that the stage can begin at lie below j, the interval starts from one that grows with j, so the
 * width of the windows counts and not the length of the stages. */
#include <math.h>

#include "graph/base/clock.h"
#include "partition/cut/best_split.h"

enum { CHECK_WORK = 100000 };

/* Best way to put border k at a position. */
typedef struct cell {
    double slowest_us;
    double total_us;
    int32_t from; /* border k - 1; -1: unreachable */
} cell;

typedef struct sweep {
    const smp__sequence *sequence;
    const int32_t *lo, *hi;
    smp__goal goal;
    double bound;
    cell **row;          /* [n_stage + 1], row[k][j - lo[k]] */
    int64_t work, check; /* the clock is read when work gets there */
    bool late;
} sweep;

/* True once the deadline has struck. */
static bool is_late(sweep *s)
{
    if (s->work >= s->check && !s->late) {
        s->check = s->work + CHECK_WORK;
        s->late = smp_work_past(s->sequence->problem->deadline_s);
    }
    return s->late;
}

static bool better(smp__goal goal, double slowest, double total, const cell *than)
{
    if (than->from < 0)
        return true;
    if (goal == SMP__GOAL_TOTAL)
        return total < than->total_us;
    return slowest < than->slowest_us || (slowest == than->slowest_us && total < than->total_us);
}

/* True if no interval that contains this one can be used to reach `target`. */
static bool too_much(const sweep *s, int k, const smp__interval *interval, double least_us,
                     const cell *target)
{
    if (s->goal == SMP__GOAL_TOTAL ? least_us > s->bound : least_us >= s->bound)
        return true;
    if (s->goal == SMP__GOAL_SLOWEST && target && target->from >= 0 &&
        least_us > target->slowest_us)
        return true;
    return !smp__interval_may_fit(s->sequence, k, interval);
}

/* Stage k as [i, j), held in `interval`. */
static void consider(const sweep *s, int k, const smp__interval *interval, int32_t i, int32_t j,
                     double compute_us, cell *target)
{
    const cell *from = &s->row[k][i - s->lo[k]];
    double load_us;
    if (from->from < 0 || !smp__interval_load(s->sequence, k, interval, i, j, compute_us, &load_us))
        return;
    if (s->goal == SMP__GOAL_TOTAL ? load_us > s->bound : load_us >= s->bound)
        return;
    double slowest = fmax(from->slowest_us, load_us), total = from->total_us + load_us;
    if (better(s->goal, slowest, total, target))
        *target = (cell){slowest, total, i};
}

/* All beginnings i = top, top - 1, ... of stage k when it ends at j; `interval` is [top, j). */
static void sweep_back(sweep *s, int k, smp__interval interval, int32_t top, int32_t j)
{
    const smp__sequence *sequence = s->sequence;
    cell *target = &s->row[k + 1][j - s->lo[k + 1]];
    const double *tail = sequence->tail_us[sequence->out_link[k]];
    double tail_us = tail ? tail[j] : 0.0;
    for (int32_t i = top;; i--) {
        double compute_us = smp__interval_compute_us(sequence, k, i, j);
        s->work++;
        if (too_much(s, k, &interval, compute_us + tail_us, target))
            return;
        consider(s, k, &interval, i, j, compute_us, target);
        if (i == s->lo[k])
            return;
        smp__interval_push_left(sequence, k, &interval, i - 1, j);
    }
}

/* The last position of border k that earlier stages reach, behind which none begins; -1: none. */
static int32_t last_reached(const sweep *s, int k)
{
    int32_t i = s->hi[k];
    while (i >= s->lo[k] && s->row[k][i - s->lo[k]].from < 0)
        i--;
    return i >= s->lo[k] ? i : -1;
}

static void sweep_stage(sweep *s, int k)
{
    const smp__sequence *sequence = s->sequence;
    int32_t base_begin = last_reached(s, k);
    if (base_begin < 0)
        return;
    int32_t base_end = base_begin;
    smp__interval base = {0}; /* [base_begin, base_end) */
    for (int32_t j = s->lo[k + 1]; j <= s->hi[k + 1]; j++) {
        if (is_late(s))
            return;
        if (j <= s->lo[k])
            continue;
        if (j <= base_begin) {
            smp__interval interval = {0};
            smp__interval_push_left(sequence, k, &interval, j - 1, j);
            sweep_back(s, k, interval, j - 1, j);
            continue;
        }
        while (base_end < j) {
            smp__interval_push_right(sequence, k, &base, base_begin, base_end++);
            s->work++;
            if (too_much(s, k, &base, smp__interval_compute_us(sequence, k, base_begin, base_end),
                         NULL))
                return;
        }
        sweep_back(s, k, base, base_begin, j);
    }
}

static smp_status make_rows(sweep *s, smp_arena *scratch)
{
    int K = s->sequence->n_stage;
    s->row = SMP_ARENA_NEW(scratch, cell *, (size_t)K + 1);
    if (!s->row)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k <= K; k++) {
        int32_t width = s->hi[k] - s->lo[k] + 1;
        s->row[k] = SMP_ARENA_NEW(scratch, cell, (size_t)width);
        if (!s->row[k])
            return SMP_ERR_NO_MEMORY;
        for (int32_t i = 0; i < width; i++)
            s->row[k][i].from = -1;
    }
    s->row[0][0].from = 0;
    return SMP_OK;
}

smp_status smp__split_init(smp__split *split, int n_stage, smp_arena *arena)
{
    *split = (smp__split){.border = SMP_ARENA_NEW(arena, int32_t, (size_t)n_stage + 1)};
    return split->border ? SMP_OK : SMP_ERR_NO_MEMORY;
}

smp_status smp__split_sweep(const smp__sequence *sequence, const int32_t *lo, const int32_t *hi,
                            smp__goal goal, double bound, smp__split *split)
{
    split->found = false;
    for (int k = 0; k <= sequence->n_stage; k++) {
        if (lo[k] > hi[k])
            return SMP_OK;
    }
    smp_arena *scratch = smp_arena_create();
    sweep s = {.sequence = sequence, .lo = lo, .hi = hi, .goal = goal, .bound = bound};
    smp_status status = scratch ? make_rows(&s, scratch) : SMP_ERR_NO_MEMORY;
    if (status != SMP_OK)
        goto done;
    for (int k = 0; k < sequence->n_stage && !s.late; k++)
        sweep_stage(&s, k);
    const cell *end = &s.row[sequence->n_stage][0];
    split->found = end->from >= 0;
    if (split->found) {
        split->slowest_us = end->slowest_us;
        split->total_us = end->total_us;
        split->border[sequence->n_stage] = sequence->n;
        for (int k = sequence->n_stage; k > 0; k--)
            split->border[k - 1] = s.row[k][split->border[k] - lo[k]].from;
    }
done:
    split->late |= s.late;
    split->work += s.work;
    smp_work_count(SMP_WORK_INTERVAL, (double)s.work);
    smp_arena_destroy(scratch);
    return status;
}
