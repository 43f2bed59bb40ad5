/* Which ops of a partition recompute, and of which the stash travels: none where a rank fits so,
 * else as few as it takes. The memory planner says what a rank takes, op by op; ranks do not depend
 * on each other in that, so each is fitted by itself.
 *
 * To recompute costs compute; to offload costs nothing as long as the link to the host is done with
 * a micro-batch's stash in the time of its forward and backward. So where both are allowed a rank
 * first offloads the ops that are dearest to make again, as few as it takes; if that is more than
 * the link can hide, as much as it can, and recomputes the cheap ones for the rest, unless to wait
 * for the link is quicker than that.
 *
 * To recompute, a rank first lets go of the cheap and large (schedule/memory/recompute_choice.h),
 * by as much as it misses, until it fits. Among few ops the best set is found by trying all.
 * Otherwise, where it is to be exact, ops are taken back one by one, longest forward first: what is
 * left needs each of them, unless the time was over before. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model/op.h"
#include "schedule/lower/offload_actions.h"
#include "schedule/memory/recompute_choice.h"
#include "schedule/planner/fit/fit.h"

enum {
    FEW_OPS = 8,       /* of a rank: all sets of them are tried, */
    FEW_AWAY = 5,      /* or of so many, where others may be sent away */
    DROP_WORK = 100000 /* ops laid out to see what a rank can do without: all, up to 300 ops */
};
#define SPARE 1.02 /* times what was missing */
#define STEP 0.01  /* of the stashes at least, twice as much each time */

typedef struct fitting {
    smp__planner *planner;
    const smp_problem *problem;
    const smp_candidate *candidate;
    bool *recompute;            /* [n_op] of the candidate's partition, */
    bool *kept;                 /* [2 * n_op] and a choice to come back to */
    const smp_program *program; /* [pipeline] where offload is a choice: without what travels */
    smp__means means;
    int64_t *state_bytes; /* [pipeline] */
    double *forward_us;   /* [n_op] */
    int32_t *op;          /* [n_op] of a rank, longest forward first */
    int32_t n_op;
    int64_t cap; /* no rank may take more, whatever its memory */
} fitting;

static int64_t limit_of(const fitting *f, int rank)
{
    int64_t limit = smp__planner_limit(f->planner, f->candidate, rank);
    return limit < f->cap ? limit : f->cap;
}

/* Packing takes longest, so what misses by what is kept alone is not packed. */
static smp_status find_missing_in(const fitting *f, int rank, const smp_program *program,
                                  int64_t *missing)
{
    int64_t peak;
    SMP_TRY(smp__planner_least_beside(f->planner, f->candidate, program, rank, &peak));
    *missing = f->state_bytes[rank] + peak - limit_of(f, rank);
    if (*missing > 0)
        return SMP_OK;
    SMP_TRY(smp__planner_peak(f->planner, f->candidate, program, rank, false, &peak));
    *missing = peak - limit_of(f, rank);
    return SMP_OK;
}

/* The rank's program with what travels now. */
static smp_status add_transfers(const fitting *f, int rank, smp_program *out)
{
    const smp_candidate *candidate = f->candidate;
    const smp_schedule_shape shape = smp__held_shape(f->planner, candidate);
    int *stage = calloc((size_t)candidate->chunks, sizeof *stage);
    smp_status status = stage ? SMP_OK : smp_fail_memory((size_t)candidate->chunks * sizeof *stage);
    for (int s = 0, c = 0; status == SMP_OK && s < candidate->partition->n_stage; s++)
        if (candidate->stage_rank[s] == rank)
            stage[c++] = s;
    for (int64_t i = 0; status == SMP_OK && i < f->program[rank].n; i++) {
        const smp_action *a = &f->program[rank].action[i];
        status = smp_program_push(out, a->kind, a->microbatch, a->chunk);
    }
    if (status == SMP_OK && f->means.offload)
        status = smp_offload_actions(&shape, stage, out);
    else if (status == SMP_OK)
        status = smp__drop_transfers(f->planner, candidate, rank, out);
    free(stage);
    return status;
}

/* Bytes by which a rank misses with what recomputes and travels now, or fewer, also > 0; <= 0: it
 * fits. */
static smp_status find_missing(const fitting *f, int rank, int64_t *missing)
{
    smp_program program = {0};
    SMP_TRY(smp__planner_hold(f->planner, f->candidate->partition, f->candidate->offload));
    if (f->means.offload && !f->planner->held.any_travels)
        return find_missing_in(f, rank, &f->program[rank], missing);
    smp_status status = add_transfers(f, rank, &program);
    if (status == SMP_OK)
        status = find_missing_in(f, rank, &program, missing);
    smp_program_free(&program);
    return status;
}

/* The stages of a rank save `share` of their stashes, by the ops that save most per time. */
static smp_status choose(const fitting *f, int rank, double share)
{
    const smp_partition *partition = f->candidate->partition;
    for (int s = 0; s < partition->n_stage; s++) {
        if (f->candidate->stage_rank[s] != rank)
            continue;
        SMP_TRY(smp_recompute_choose(f->problem->graph, f->planner->held.flow, s, f->forward_us,
                                     share * (double)partition->load[s].stash_bytes, f->recompute,
                                     NULL));
        SMP_TRY(smp_recompute_repeats(f->problem->graph, f->planner->held.flow, s, f->recompute,
                                      f->recompute));
    }
    return SMP_OK;
}

/* More and more, as far as that is possible. */
static smp_status recompute_until_fit(const fitting *f, int rank, int64_t *missing)
{
    double share = 0.0, bytes = 1.0; /* that the rank stashes in all */
    for (int s = 0; s < f->problem->n_stage; s++)
        if (f->candidate->stage_rank[s] == rank)
            bytes += f->problem->live[s] * (double)f->candidate->partition->load[s].stash_bytes;
    for (int i = 0; *missing > 0 && share < 1.0; i++) {
        share = fmin(1.0, share + fmax(SPARE * (double)*missing / bytes, STEP * (1 << i)));
        SMP_TRY(choose(f, rank, share));
        SMP_TRY(find_missing(f, rank, missing));
    }
    return SMP_OK;
}

typedef struct timed_op {
    double us;
    int32_t op;
} timed_op;

static int compare_ops(const void *left, const void *right)
{
    const timed_op *a = left, *b = right;
    int order = smp__compare_doubles(b->us, a->us);
    return order ? order : (a->op > b->op) - (a->op < b->op);
}

static smp_status list_ops(fitting *f, int rank)
{
    const smp_partition *partition = f->candidate->partition;
    timed_op *list = calloc((size_t)f->problem->graph->n_op + 1, sizeof *list);
    if (!list)
        return smp_fail_memory((size_t)f->problem->graph->n_op * sizeof *list);
    f->n_op = 0;
    for (int32_t op = 0; op < f->problem->graph->n_op; op++)
        if (f->candidate->stage_rank[partition->stage[op]] == rank)
            list[f->n_op++] = (timed_op){f->forward_us[op], op};
    qsort(list, (size_t)f->n_op, sizeof *list, compare_ops);
    for (int32_t i = 0; i < f->n_op; i++)
        f->op[i] = list[i].op;
    free(list);
    return SMP_OK;
}

/* Forward time of what a rank repeats; ops that are named for nothing are struck out. */
static smp_status find_us(const fitting *f, int rank, double *us)
{
    for (int s = 0; s < f->problem->n_stage; s++)
        if (f->candidate->stage_rank[s] == rank)
            SMP_TRY(smp_recompute_repeats(f->problem->graph, f->planner->held.flow, s, f->recompute,
                                          f->recompute));
    *us = 0.0;
    for (int32_t i = 0; i < f->n_op; i++)
        *us += f->recompute[f->op[i]] ? f->forward_us[f->op[i]] : 0.0;
    return SMP_OK;
}

/* By which the link to the host takes longer with a micro-batch than the rank does. */
static double stall_us(const fitting *f, int rank)
{
    const smp_partition *partition = f->candidate->partition;
    double link_us = 0.0, compute_us = 0.0;
    for (int s = 0; s < partition->n_stage; s++) {
        if (f->candidate->stage_rank[s] != rank)
            continue;
        if (f->planner->held.travels[s])
            link_us += smp_link_us(&f->problem->cluster->host, f->planner->held.offload_bytes[s]);
        compute_us += partition->load[s].forward_us + partition->load[s].backward_us;
    }
    return fmax(link_us - compute_us, 0.0);
}

/* Every op of the rank kept, made again, or where that is a choice sent away: set k of base^n_op.
 */
static void set_number(const fitting *f, int set, int base)
{
    for (int32_t i = 0; i < f->n_op; i++, set /= base) {
        f->recompute[f->op[i]] = set % base == 1;
        if (base > 2)
            f->candidate->offload[f->op[i]] = set % base == 2;
    }
}

/* The quickest of all these with which the rank fits; `missing` of the one that it has. */
static smp_status try_all_sets(const fitting *f, int rank, int64_t missing)
{
    const int base = f->means.offload ? 3 : 2;
    const size_t n = (size_t)f->problem->graph->n_op;
    double best_us = INFINITY, us;
    int n_set = 1;
    for (int32_t i = 0; i < f->n_op; i++)
        n_set *= base;
    memcpy(f->kept, f->recompute, n);
    memcpy(f->kept + n, f->candidate->offload, n);
    if (missing <= 0) {
        SMP_TRY(find_us(f, rank, &best_us));
        best_us += stall_us(f, rank);
    }
    for (int set = 1; set < n_set; set++) {
        set_number(f, set, base);
        SMP_TRY(find_us(f, rank, &us));
        if (!(us < best_us))
            continue;
        SMP_TRY(find_missing(f, rank, &missing));
        us += stall_us(f, rank);
        if (missing > 0 || !(us < best_us))
            continue;
        best_us = us;
        memcpy(f->kept, f->recompute, n);
        memcpy(f->kept + n, f->candidate->offload, n);
    }
    memcpy(f->recompute, f->kept, n);
    memcpy(f->candidate->offload, f->kept + n, n);
    return SMP_OK;
}

/* Is it the second of two ops that recompute together? */
static bool is_second(const fitting *f, int32_t op)
{
    const int32_t *stage = f->candidate->partition->stage;
    return op > 0 && stage[op] == stage[op - 1] && smp_op_tied_forward(f->problem->graph, op - 1);
}

static smp_status take_back(const fitting *f, int rank)
{
    int64_t work = DROP_WORK;
    for (int32_t i = 0; i < f->n_op && work > 0 && !smp__budget_is_over(&f->planner->budget); i++) {
        int32_t op = f->op[i];
        int64_t missing;
        if (!f->recompute[op] || is_second(f, op))
            continue;
        bool pair = op + 1 < f->problem->graph->n_op && is_second(f, op + 1);
        f->recompute[op] = false;
        if (pair)
            f->recompute[op + 1] = false;
        SMP_TRY(find_missing(f, rank, &missing));
        work -= f->n_op;
        if (missing <= 0)
            continue;
        f->recompute[op] = true;
        if (pair)
            f->recompute[op + 1] = true;
    }
    return SMP_OK;
}

/* The first n of the rank's ops, dearest first, travel and no others of its own; *missing: see
 * find_missing. */
static smp_status offload_first(const fitting *f, int rank, int32_t n, int64_t *missing)
{
    for (int32_t i = 0; i < f->n_op; i++)
        f->candidate->offload[f->op[i]] = i < n;
    return find_missing(f, rank, missing);
}

/* The fewest of the rank's ops with which `done` holds, all of which it holds for: by bisection. */
static smp_status bisect(const fitting *f, int rank, bool hidden, int32_t *n)
{
    int32_t low = 0, high = f->n_op;
    int64_t missing;
    while (low + 1 < high) {
        const int32_t middle = low + (high - low) / 2;
        SMP_TRY(offload_first(f, rank, middle, &missing));
        if (hidden ? stall_us(f, rank) > 0.0 : missing <= 0)
            high = middle;
        else
            low = middle;
    }
    *n = hidden ? low : high;
    return SMP_OK;
}

/* With as much travelling as costs nothing, others recompute: kept where that is quicker than to
 * wait `wait_us` for each micro-batch, which is `n` ops travelling. */
static smp_status try_mixture(fitting *f, int rank, int32_t n, double wait_us)
{
    const size_t bytes = (size_t)f->problem->graph->n_op * sizeof *f->kept;
    int64_t missing;
    int32_t hidden;
    double us = 0.0;
    memcpy(f->kept, f->recompute, bytes);
    SMP_TRY(bisect(f, rank, true, &hidden));
    SMP_TRY(offload_first(f, rank, hidden, &missing));
    SMP_TRY(recompute_until_fit(f, rank, &missing));
    for (int32_t op = 0; op < f->problem->graph->n_op; op++)
        if (f->candidate->stage_rank[f->candidate->partition->stage[op]] == rank &&
            f->recompute[op])
            us += f->forward_us[op];
    if (missing <= 0 && us < wait_us)
        return SMP_OK;
    memcpy(f->recompute, f->kept, bytes);
    return offload_first(f, rank, n, &missing);
}

/* Dearest first: forward time that each byte of the stash costs. */
static smp_status list_stashes(fitting *f, int rank)
{
    const smp_partition *partition = f->candidate->partition;
    const smp_op_cost *cost = f->problem->costs->op;
    timed_op *list = calloc((size_t)f->problem->graph->n_op + 1, sizeof *list);
    if (!list)
        return smp_fail_memory((size_t)f->problem->graph->n_op * sizeof *list);
    f->n_op = 0;
    for (int32_t op = 0; op < f->problem->graph->n_op; op++)
        if (f->candidate->stage_rank[partition->stage[op]] == rank && cost[op].stash_bytes > 0)
            list[f->n_op++] = (timed_op){f->forward_us[op] / (double)cost[op].stash_bytes, op};
    qsort(list, (size_t)f->n_op, sizeof *list, compare_ops);
    for (int32_t i = 0; i < f->n_op; i++)
        f->op[i] = list[i].op;
    free(list);
    return SMP_OK;
}

static smp_status offload_until_fit(fitting *f, int rank, int64_t *missing)
{
    int32_t n;
    SMP_TRY(list_stashes(f, rank));
    SMP_TRY(offload_first(f, rank, f->n_op, missing));
    if (*missing > 0)
        return SMP_OK;
    SMP_TRY(bisect(f, rank, false, &n));
    SMP_TRY(offload_first(f, rank, n, missing));
    const double wait_us = stall_us(f, rank);
    if (wait_us > 0.0 && f->means.recompute)
        SMP_TRY(try_mixture(f, rank, n, wait_us));
    return find_missing(f, rank, missing);
}

static smp_status fit_rank(fitting *f, int rank, int64_t missing, bool exactly)
{
    const bool travels = f->means.offload;
    if (travels)
        SMP_TRY(offload_until_fit(f, rank, &missing));
    if (!f->means.recompute)
        return SMP_OK;
    SMP_TRY(recompute_until_fit(f, rank, &missing));
    if (!exactly)
        return SMP_OK;
    SMP_TRY(list_ops(f, rank));
    if (f->n_op <= (travels ? FEW_AWAY : FEW_OPS))
        return try_all_sets(f, rank, missing);
    return missing <= 0 ? take_back(f, rank) : SMP_OK;
}

static smp_status open_fitting(fitting *f, smp_arena *arena)
{
    const smp_candidate *candidate = f->candidate;
    size_t n_op = (size_t)f->problem->graph->n_op;
    f->state_bytes = SMP_ARENA_NEW(arena, int64_t, (size_t)candidate->pipeline);
    f->forward_us = SMP_ARENA_NEW(arena, double, n_op);
    f->kept = SMP_ARENA_NEW(arena, bool, 2 * n_op);
    f->op = SMP_ARENA_NEW(arena, int32_t, n_op);
    if (!f->state_bytes || !f->forward_us || !f->kept || !f->op)
        return SMP_ERR_NO_MEMORY;
    for (size_t op = 0; op < n_op; op++)
        f->forward_us[op] = f->problem->costs->op[op].forward_us;
    return smp__planner_state_bytes(f->planner, candidate, f->state_bytes);
}

smp_status smp__fit_memory(smp__planner *planner, const smp_problem *problem,
                           const smp_candidate *candidate, const smp_program *program,
                           smp__means means, int64_t cap, bool exactly)
{
    fitting f = {.planner = planner,
                 .means = means,
                 .problem = problem,
                 .candidate = candidate,
                 .recompute = candidate->partition->recompute,
                 .program = program,
                 .cap = cap};
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? open_fitting(&f, arena) : SMP_ERR_NO_MEMORY;
    for (int r = 0; r < candidate->pipeline && status == SMP_OK; r++) {
        int64_t missing;
        if (smp__budget_loses_patience(&planner->budget))
            break; /* this rank and those after it may miss */
        status = find_missing(&f, r, &missing);
        if (status == SMP_OK && missing > 0)
            status = fit_rank(&f, r, missing, exactly);
    }
    smp_arena_destroy(arena);
    return status;
}
