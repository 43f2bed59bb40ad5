/* The optimal split of a sequence. The dynamic program (partition/cut/split_sweep.c) is exact over
 * all borders, and cheap over few, so it runs twice: near a balanced split, for a bound; then over
 * all borders that could be part of something better. Border k can be only where the stages before
 * it can hold what lies before it, each within the bound, and likewise after; with a bound of (1 +
 * e) times the optimum that leaves windows of about e * n positions. */
#include "partition/cut/best_split.h"

#include <math.h>
#include <string.h>

enum {
    FIRST_HALF_WIDTH = 24, /* windows of the first pass, to either side */
    WIDER_HALF_WIDTH = 96,
    MAX_RECENTRE = 8, /* times a window moves after the best borders */
    MAX_TIGHTEN = 4
};

typedef struct windows {
    int32_t *lo, *hi; /* [n_stage + 1] */
} windows;

static bool make_windows(windows *w, int n_stage, smp_arena *arena)
{
    w->lo = SMP_ARENA_NEW(arena, int32_t, (size_t)n_stage + 1);
    w->hi = SMP_ARENA_NEW(arena, int32_t, (size_t)n_stage + 1);
    return w->lo && w->hi;
}

static void copy_windows(const windows *from, int n_stage, windows *out)
{
    size_t bytes = ((size_t)n_stage + 1) * sizeof *out->lo;
    memcpy(out->lo, from->lo, bytes);
    memcpy(out->hi, from->hi, bytes);
}

/* Narrows windows to half_width around borders. */
static void near_borders(const smp__sequence *sequence, const int32_t *border, int32_t half_width,
                         windows *out)
{
    for (int k = 0; k <= sequence->n_stage; k++) {
        if (border[k] - half_width > out->lo[k])
            out->lo[k] = border[k] - half_width;
        if (border[k] + half_width < out->hi[k])
            out->hi[k] = border[k] + half_width;
    }
}

/* Borders that share out the compute by speed, as far as the windows allow. */
static void balanced_borders(const smp__sequence *sequence, const windows *all, int32_t *border)
{
    double speed = 0.0, before = 0.0, total = sequence->before_us[sequence->n];
    for (int k = 0; k < sequence->n_stage; k++)
        speed += 1.0 / sequence->slowdown[k];
    border[0] = 0;
    for (int k = 1; k <= sequence->n_stage; k++) {
        before += 1.0 / sequence->slowdown[k - 1];
        double target = total > 0.0 ? total * before / speed : 0.0;
        int32_t lo = 0, hi = sequence->n;
        while (lo < hi) {
            int32_t mid = lo + (hi - lo) / 2;
            if (sequence->before_us[mid] < target)
                lo = mid + 1;
            else
                hi = mid;
        }
        if (total <= 0.0)
            lo = (int32_t)((int64_t)sequence->n * k / sequence->n_stage);
        int32_t least = border[k - 1] + 1;
        if (least < all->lo[k])
            least = all->lo[k];
        lo = lo < least ? least : lo;
        border[k] = lo > all->hi[k] ? all->hi[k] : lo;
    }
}

/* First position whose compute before it is at least `us`. */
static int32_t first_at_least(const smp__sequence *sequence, double us)
{
    int32_t lo = 0, hi = sequence->n + 1;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (sequence->before_us[mid] < us)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Device-0 compute that stage k can hold within the bound, whatever borders the windows give it. */
static double stage_capacity(const smp__sequence *sequence, const windows *w, int k, double bound)
{
    double least_us = 0.0;
    if (!sequence->problem->cluster->overlap) {
        if (k > 0)
            least_us +=
                smp__sequence_least_head(sequence, sequence->in_link[k], w->lo[k], w->hi[k]);
        if (k + 1 < sequence->n_stage)
            least_us += smp__sequence_least_tail(sequence, sequence->out_link[k], w->lo[k + 1],
                                                 w->hi[k + 1]);
    }
    return (bound - least_us) / sequence->slowdown[k];
}

/* Removes borders that no split with all loads within the bound can have. False: none is left. */
static bool tighten(const smp__sequence *sequence, double bound, windows *w, double *capacity)
{
    int K = sequence->n_stage;
    double total = sequence->before_us[sequence->n];
    double slack = total * 1e-12;
    for (int round = 0; round < MAX_TIGHTEN; round++) {
        bool changed = false;
        for (int k = 0; k < K; k++) {
            capacity[k] = stage_capacity(sequence, w, k, bound);
            if (capacity[k] < -slack)
                return false;
        }
        double before = 0.0, behind = 0.0;
        for (int k = 1; k < K; k++) {
            before += capacity[k - 1];
            int32_t hi = first_at_least(sequence, before + slack);
            hi = hi > sequence->n ? sequence->n : hi;
            if (sequence->before_us[hi] > before + slack)
                hi--;
            if (hi < w->hi[k]) {
                w->hi[k] = hi;
                changed = true;
            }
        }
        for (int k = K - 1; k > 0; k--) {
            behind += capacity[k];
            int32_t lo = first_at_least(sequence, total - behind - slack);
            if (lo > w->lo[k]) {
                w->lo[k] = lo;
                changed = true;
            }
        }
        for (int k = 1; k <= K; k++)
            w->lo[k] = w->lo[k] <= w->lo[k - 1] ? w->lo[k - 1] + 1 : w->lo[k];
        for (int k = K - 1; k >= 0; k--)
            w->hi[k] = w->hi[k] >= w->hi[k + 1] ? w->hi[k + 1] - 1 : w->hi[k];
        for (int k = 0; k <= K; k++) {
            if (w->lo[k] > w->hi[k])
                return false;
        }
        if (!changed)
            break;
    }
    return true;
}

static int64_t count_pairs(const smp__sequence *sequence, const windows *w)
{
    int64_t pairs = 0;
    for (int k = 0; k < sequence->n_stage; k++)
        pairs += (int64_t)(w->hi[k] - w->lo[k] + 1) * (w->hi[k + 1] - w->lo[k + 1] + 1);
    return pairs;
}

/* State of one smp__split_solve. */
typedef struct solver {
    const smp__sequence *sequence;
    windows all; /* that pins and memory allow */
    windows w;
    double *capacity;
    smp__split trial;
    double bound;     /* loads must be below */
    int64_t max_work; /* of looking near borders */
    bool have_border; /* split->border can be searched around */
} solver;

static void keep_split(solver *s, smp__split *split)
{
    size_t bytes = ((size_t)s->sequence->n_stage + 1) * sizeof *split->border;
    memcpy(split->border, s->trial.border, bytes);
    split->slowest_us = s->trial.slowest_us;
    split->total_us = s->trial.total_us;
    split->found = true;
    s->bound = s->trial.slowest_us;
    s->have_border = true;
}

/* Moves a window after the best borders until they stay. False if no better split can exist. */
static smp_status search_near(solver *s, int32_t half_width, smp__split *split, bool *possible)
{
    *possible = true;
    for (int round = 0; round < MAX_RECENTRE; round++) {
        copy_windows(&s->all, s->sequence->n_stage, &s->w);
        if (isfinite(s->bound) && !tighten(s->sequence, s->bound, &s->w, s->capacity)) {
            *possible = false;
            return SMP_OK;
        }
        near_borders(s->sequence, split->border, half_width, &s->w);
        SMP_TRY(smp__split_sweep(s->sequence, s->w.lo, s->w.hi, SMP__GOAL_SLOWEST, s->bound,
                                 &s->trial));
        if (!s->trial.found)
            return SMP_OK;
        keep_split(s, split);
        if (s->trial.late || s->trial.work > s->max_work)
            return SMP_OK;
    }
    return SMP_OK;
}

/* INFINITY where a stage does not fit. */
static double slowest_of(const smp__sequence *sequence, const int32_t *border, double *total_us)
{
    double slowest = 0.0;
    *total_us = 0.0;
    for (int k = 0; k < sequence->n_stage; k++) {
        smp__interval interval = {0};
        double load_us = INFINITY;
        for (int32_t j = border[k]; j < border[k + 1]; j++)
            smp__interval_push_right(sequence, k, &interval, border[k], j);
        smp__interval_load(sequence, k, &interval, border[k], border[k + 1],
                           smp__interval_compute_us(sequence, k, border[k], border[k + 1]),
                           &load_us);
        slowest = fmax(slowest, load_us);
        *total_us += load_us;
    }
    return slowest;
}

/* A first split when none is known: near the balanced one, or the one that fills stage by stage. */
static smp_status find_first(solver *s, smp__split *split)
{
    bool possible;
    balanced_borders(s->sequence, &s->all, split->border);
    SMP_TRY(search_near(s, FIRST_HALF_WIDTH, split, &possible));
    if (split->found || !smp__split_greedy(s->sequence, s->trial.border))
        return SMP_OK;
    s->trial.slowest_us = slowest_of(s->sequence, s->trial.border, &s->trial.total_us);
    keep_split(s, split);
    return SMP_OK;
}

/* All borders that can beat the bound, or as many around the best as max_pairs allows. */
static smp_status find_best(solver *s, int64_t max_pairs, smp__split *split)
{
    const smp__sequence *sequence = s->sequence;
    bool possible = true;
    for (int pass = 0; pass < 2; pass++) {
        copy_windows(&s->all, sequence->n_stage, &s->w);
        if (s->trial.late || !possible || !tighten(sequence, s->bound, &s->w, s->capacity))
            return SMP_OK;
        int64_t pairs = count_pairs(sequence, &s->w);
        if (pass == 0 && s->have_border && pairs > max_pairs / 16) {
            SMP_TRY(search_near(s, WIDER_HALF_WIDTH, split, &possible));
        } else if (pairs <= max_pairs) {
            SMP_TRY(smp__split_sweep(sequence, s->w.lo, s->w.hi, SMP__GOAL_SLOWEST, s->bound,
                                     &s->trial));
            if (s->trial.found)
                keep_split(s, split);
            return SMP_OK;
        } else if (s->have_border) {
            int32_t half = (int32_t)sqrt((double)max_pairs / (4.0 * sequence->n_stage));
            return search_near(s, half < 2 ? 2 : half, split, &possible);
        }
    }
    return SMP_OK;
}

smp_status smp__split_solve(const smp__sequence *sequence, double bound, int64_t max_pairs,
                            smp__split *split)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return status;
    solver s = {.sequence = sequence,
                .capacity = SMP_ARENA_NEW(scratch, double, (size_t)sequence->n_stage),
                .bound = bound,
                .max_work = max_pairs,
                .have_border = split->found};
    bool possible = sequence->feasible;
    split->found = false;
    if (!s.capacity || !make_windows(&s.all, sequence->n_stage, scratch) ||
        !make_windows(&s.w, sequence->n_stage, scratch) ||
        smp__split_init(&s.trial, sequence->n_stage, scratch) != SMP_OK)
        goto done;
    status = SMP_OK;
    possible = possible && smp__memory_windows(sequence, s.all.lo, s.all.hi);
    if (possible && !isfinite(bound))
        status = find_first(&s, split);
    if (possible && status == SMP_OK)
        status = find_best(&s, max_pairs, split);
done:
    split->late |= s.trial.late;
    split->work += s.trial.work;
    smp_arena_destroy(scratch);
    return status;
}

smp_status smp__split_total(const smp__sequence *sequence, double bound, int64_t max_pairs,
                            smp__split *split)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return status;
    windows w;
    double *capacity = SMP_ARENA_NEW(scratch, double, (size_t)sequence->n_stage);
    split->found = false;
    if (!capacity || !make_windows(&w, sequence->n_stage, scratch))
        goto done;
    status = SMP_OK;
    if (sequence->feasible && smp__memory_windows(sequence, w.lo, w.hi) &&
        tighten(sequence, bound, &w, capacity) && count_pairs(sequence, &w) <= max_pairs)
        status = smp__split_sweep(sequence, w.lo, w.hi, SMP__GOAL_TOTAL, bound, split);
done:
    smp_arena_destroy(scratch);
    return status;
}
