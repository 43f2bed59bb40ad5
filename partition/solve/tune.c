/* The best pipeline over many orders. Any legal pipeline is the split of some order, and sorting
 * any topological order by the stages of a pipeline gives an order that can be split into it again,
 * so random orders sorted by the best pipeline so far never lose, and let every border move through
 * a different series of downsets each time. That is local search with an exact inner step; METIS
 * and the depth-first orders give it places to start from. */
#include "partition/solve/tune.h"

#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/base/random.h"
#include "partition/prove/bound.h"
#include "partition/problem/legal.h"
#include "partition/solve/solve.h"

enum {
    MIN_STALL = 96, /* random orders in a row without success before giving up, */
    MAX_STALL = 1000,
    STALL_WORK = 250000,  /* and the work they may take */
    WORK_LIMIT = 3000000, /* of improving, for graphs of up to WORK_UNITS units */
    WORK_UNITS = 1000,
    MAX_PAIRS = 12000000,     /* of borders, for the first order, */
    MAX_MORE_PAIRS = 1000000, /* and for each further one where there are many units */
    MANY_UNITS = 4000,
    MAX_TRIAL_PAIRS = 400000, /* for one random order */
    ORDER_WORK = 8            /* making and preparing an order, per unit and net end */
};

#define CLIMB_FROM 1.1 /* times the best: splits that are worth a climb */

static bool links_alike(const smp_problem *problem)
{
    if (problem->n_stage != problem->pipeline)
        return false;
    for (int s = 2; s < problem->pipeline; s++) {
        for (int t = 0; t < s; t++) {
            if (smp__link_between(problem, problem->stage_rank[t], problem->stage_rank[s]) !=
                smp__link_between(problem, problem->stage_rank[0], problem->stage_rank[1]))
                return false;
        }
    }
    return true;
}

/* Takes the pipeline that others found over, unless it is none of these units. */
static bool take_start(smp__tuner *tuner, const smp_partition *start)
{
    const smp__units *units = tuner->units;
    const smp_problem *problem = tuner->problem;
    if (!start || start->n_stage != problem->n_stage)
        return false;
    for (int32_t op = 0; op < problem->graph->n_op; op++)
        tuner->trial[units->unit_of_op[op]] = start->stage[op];
    for (int32_t op = 0; op < problem->graph->n_op; op++) {
        if (tuner->trial[units->unit_of_op[op]] != start->stage[op])
            return false;
    }
    smp__tuner_offer(tuner);
    tuner->solver = start->solver;
    if (start->lower_bound_us > tuner->lower_bound_us) {
        tuner->lower_bound_us = start->lower_bound_us;
        tuner->bound = start->bound;
    }
    return true;
}

smp_status smp__tuner_init(smp__tuner *tuner, const smp_problem *problem,
                           const smp_partition *start, const char *name)
{
    *tuner = (smp__tuner){.problem = problem, .name = name, .arena = smp_arena_create()};
    smp_status status = tuner->arena ? smp__units_build(problem, &tuner->units) : SMP_ERR_NO_MEMORY;
    if (status != SMP_OK)
        goto fail;
    size_t n = (size_t)tuner->units->n;
    status = smp__evaluator_init(&tuner->evaluator, problem, tuner->arena);
    if (status == SMP_OK)
        status = smp__split_init(&tuner->split, problem->n_stage, tuner->arena);
    if (status != SMP_OK)
        goto fail;
    tuner->stage = SMP_ARENA_NEW(tuner->arena, int32_t, n);
    tuner->trial = SMP_ARENA_NEW(tuner->arena, int32_t, n);
    tuner->order = SMP_ARENA_NEW(tuner->arena, int32_t, n);
    tuner->op_stage = SMP_ARENA_NEW(tuner->arena, int32_t, (size_t)problem->graph->n_op);
    status = SMP_ERR_NO_MEMORY;
    if (!tuner->stage || !tuner->trial || !tuner->order || !tuner->op_stage)
        goto fail;
    tuner->lower_bound_us =
        smp__bound_by_compute(problem, tuner->units, tuner->arena, &tuner->bound);
    tuner->uniform = links_alike(problem);
    take_start(tuner, start);
    return SMP_OK;
fail:
    smp__tuner_free(tuner);
    return status;
}

void smp__tuner_free(smp__tuner *tuner)
{
    smp__units_destroy(tuner->units);
    smp_arena_destroy(tuner->arena);
    tuner->units = NULL;
    tuner->arena = NULL;
}

static bool is_late(smp__tuner *tuner)
{
    tuner->late |= tuner->split.late || smp_clock_past(tuner->problem->deadline_s);
    return tuner->late;
}

static bool is_close(const smp__tuner *tuner)
{
    return tuner->have && tuner->best.excess == 0.0 &&
           smp__close_enough(tuner->problem, tuner->best.bottleneck_us, tuner->lower_bound_us);
}

bool smp__tuner_done(smp__tuner *tuner)
{
    return is_close(tuner) || is_late(tuner);
}

static void expand(const smp__tuner *tuner, const int32_t *unit_stage)
{
    for (int32_t op = 0; op < tuner->problem->graph->n_op; op++)
        tuner->op_stage[op] = unit_stage[tuner->units->unit_of_op[op]];
}

/* Keeps tuner->trial if it is the best. slowest_us: as the line measures it. */
static bool offer(smp__tuner *tuner, double slowest_us)
{
    expand(tuner, tuner->trial);
    smp__score score = smp__evaluate(&tuner->evaluator, tuner->op_stage);
    tuner->work += tuner->problem->graph->n_op;
    if (tuner->have && !smp__score_better(&score, &tuner->best))
        return false;
    tuner->have = true;
    tuner->best = score;
    tuner->solver = tuner->name;
    tuner->slowest_us = slowest_us;
    memcpy(tuner->stage, tuner->trial, (size_t)tuner->units->n * sizeof *tuner->stage);
    return true;
}

bool smp__tuner_offer(smp__tuner *tuner)
{
    double slowest_us = 0.0;
    if (!offer(tuner, INFINITY))
        return false;
    for (int s = 0; s < tuner->problem->n_stage; s++)
        slowest_us = fmax(slowest_us, tuner->evaluator.load[s].load_us);
    tuner->slowest_us = slowest_us;
    return true;
}

static void read_split(smp__tuner *tuner, const smp__line *line)
{
    for (int k = 0; k < line->n_stage; k++) {
        for (int32_t i = tuner->split.border[k]; i < tuner->split.border[k + 1]; i++)
            tuner->trial[line->unit[i]] = k;
    }
}

/* Loads that can still beat the best; a little more, so that equals with a smaller total count.
 * Where the line is not exact, every order deserves its own optimum. */
static double bound_of(const smp__tuner *tuner)
{
    if (!tuner->have || !tuner->uniform || tuner->best.excess > 0.0)
        return INFINITY;
    return tuner->slowest_us * (1.0 + 1e-12);
}

/* Large graphs get less, so that the time for a solution stays within some hundred milliseconds. */
static int64_t work_limit(const smp__tuner *tuner)
{
    if (tuner->units->n <= WORK_UNITS)
        return WORK_LIMIT;
    return (int64_t)WORK_LIMIT * WORK_UNITS / tuner->units->n;
}

/* Borders of the best pipeline on a line that is sorted by it. */
static void best_borders(smp__tuner *tuner, const smp__line *line)
{
    int32_t *border = tuner->split.border;
    memset(border, 0, ((size_t)line->n_stage + 1) * sizeof *border);
    for (int32_t u = 0; u < line->n; u++)
        border[tuner->stage[u] + 1]++;
    for (int k = 0; k < line->n_stage; k++)
        border[k + 1] += border[k];
}

/* Improves the borders in tuner->split where the line's measure is not exact, and offers them. */
static bool climb(smp__tuner *tuner, const smp__line *line, int64_t effort)
{
    smp__climb(&tuner->evaluator, line, tuner->split.border, tuner->op_stage, tuner->work + effort,
               &tuner->work);
    read_split(tuner, line);
    return offer(tuner, tuner->split.slowest_us);
}

/* tuner->order may be split at the borders of the best pipeline if `sorted`. */
static smp_status split_order(smp__tuner *tuner, bool sorted, int64_t max_pairs, bool *feasible,
                              bool *kept)
{
    smp__line *line = NULL;
    const smp__units *units = tuner->units;
    SMP_TRY(smp__line_build(tuner->problem, units, tuner->order, &line));
    *feasible = line->feasible;
    *kept = false;
    tuner->split.found = sorted;
    tuner->split.work = 0;
    if (sorted)
        best_borders(tuner, line);
    smp_status status = smp__split_solve(line, bound_of(tuner), max_pairs, &tuner->split);
    tuner->work += tuner->split.work + ORDER_WORK * (units->n + units->in_begin[units->n]);
    if (status == SMP_OK && tuner->split.found) {
        read_split(tuner, line);
        *kept = offer(tuner, tuner->split.slowest_us);
        if (!tuner->uniform && line->n <= WORK_UNITS &&
            (*kept || tuner->split.slowest_us <= CLIMB_FROM * tuner->slowest_us))
            *kept |= climb(tuner, line, WORK_LIMIT / 256);
    }
    smp__line_destroy(line);
    return status;
}

smp_status smp__tuner_try(smp__tuner *tuner, const int32_t *order)
{
    const smp__units *units = tuner->units;
    bool feasible, kept;
    if (is_late(tuner))
        return SMP_OK;
    if (order != tuner->order)
        memcpy(tuner->order, order, (size_t)units->n * sizeof *order);
    if (units->has_pin)
        SMP_TRY(smp__order_clamp(units, tuner->problem->n_stage, units->lo, units->hi, 0.0,
                                 tuner->order));
    int64_t max_pairs = tuner->have && units->n > MANY_UNITS ? MAX_MORE_PAIRS : MAX_PAIRS;
    SMP_TRY(split_order(tuner, false, max_pairs, &feasible, &kept));
    if (feasible || is_late(tuner))
        return SMP_OK;
    SMP_TRY(smp__order_clamp(units, tuner->problem->n_stage, units->anchor_lo, units->anchor_hi,
                             0.0, tuner->order));
    return split_order(tuner, false, max_pairs, &feasible, &kept);
}

/* A random order sorted by the best pipeline, or, one time in two, by its stages taken in pairs or
 * not at all: then units of neighbouring stages mix. *sorted: by all stages. */
static smp_status random_order(smp__tuner *tuner, uint64_t draw, bool *sorted)
{
    static const smp__order_kind kinds[] = {SMP__ORDER_FORWARD, SMP__ORDER_DEMAND,
                                            SMP__ORDER_NARROW, SMP__ORDER_RANDOM};
    const smp__units *units = tuner->units;
    int n_stage = tuner->problem->n_stage;
    uint64_t seed = smp_random_mix(tuner->problem->seed ^ smp_random_mix(draw));
    SMP_TRY(smp__order_make(units, kinds[draw % 4], seed | 1, tuner->order));
    int mix = (int)(draw / 4 % 6); /* 0-2: sorted; 3, 4: in pairs; 5: not at all */
    *sorted = tuner->have && mix < 3;
    if (!tuner->have || mix == 5) {
        double shift = n_stage * ((double)(smp_random_mix(seed) >> 11) * 0x1p-53 - 0.5);
        return units->has_pin
                   ? smp__order_clamp(units, n_stage, units->lo, units->hi, shift, tuner->order)
                   : SMP_OK;
    }
    for (int32_t u = 0; u < units->n; u++)
        tuner->trial[u] = *sorted ? tuner->stage[u] : (tuner->stage[u] + mix - 3) / 2;
    return smp__order_by_stage(units, n_stage, tuner->trial, tuner->order);
}

smp_status smp__tuner_improve(smp__tuner *tuner)
{
    if (tuner->problem->n_stage == 1 || smp__order_is_unique(tuner->units))
        return SMP_OK;
    int64_t last_success = tuner->work;
    int64_t limit = tuner->work + work_limit(tuner) / (tuner->have ? 1 : 32);
    int stall = 0;
    for (uint64_t draw = 0; !smp__tuner_done(tuner) && tuner->work < limit; draw++) {
        bool sorted, feasible, kept;
        if (stall >= MAX_STALL || (stall >= MIN_STALL && tuner->work - last_success > STALL_WORK))
            break;
        SMP_TRY(random_order(tuner, draw, &sorted));
        SMP_TRY(split_order(tuner, sorted, MAX_TRIAL_PAIRS, &feasible, &kept));
        stall++;
        if (kept) {
            stall = 0;
            last_success = tuner->work;
        }
    }
    return SMP_OK;
}

/* The order that the best pipeline is a split of, prepared. */
static smp_status line_of_best(smp__tuner *tuner, smp__line **line)
{
    SMP_TRY(smp__order_make(tuner->units, SMP__ORDER_FILE, 0, tuner->order));
    SMP_TRY(smp__order_by_stage(tuner->units, tuner->problem->n_stage, tuner->stage, tuner->order));
    return smp__line_build(tuner->problem, tuner->units, tuner->order, line);
}

static smp_status fewer_transfers(smp__tuner *tuner)
{
    smp__line *line = NULL;
    SMP_TRY(line_of_best(tuner, &line));
    tuner->split.work = 0;
    tuner->split.found = false;
    smp_status status =
        smp__split_total(line, tuner->slowest_us * (1.0 + 1e-12), MAX_TRIAL_PAIRS, &tuner->split);
    if (status == SMP_OK && tuner->split.found) {
        read_split(tuner, line);
        offer(tuner, tuner->slowest_us);
    }
    smp__line_destroy(line);
    return status;
}

/* Judged by the exact evaluation. */
static smp_status better_borders(smp__tuner *tuner)
{
    smp__line *line = NULL;
    SMP_TRY(line_of_best(tuner, &line));
    best_borders(tuner, line);
    climb(tuner, line, work_limit(tuner) / (tuner->problem->quick ? 64 : 4));
    smp__line_destroy(line);
    return SMP_OK;
}

/* tuner->order, split for memory alone. */
static smp_status split_for_memory(smp__tuner *tuner)
{
    smp__line *line = NULL;
    double fill;
    if (tuner->units->has_pin)
        SMP_TRY(smp__order_clamp(tuner->units, tuner->problem->n_stage, tuner->units->anchor_lo,
                                 tuner->units->anchor_hi, 0.0, tuner->order));
    SMP_TRY(smp__line_build(tuner->problem, tuner->units, tuner->order, &line));
    smp_status status = smp__split_memory(line, &tuner->split, &fill);
    if (status == SMP_OK && tuner->split.found) {
        read_split(tuner, line);
        offer(tuner, INFINITY);
    }
    smp__line_destroy(line);
    return status;
}

static bool is_file_order(const int32_t *order, int32_t n)
{
    int32_t i = 0;
    while (i < n && order[i] == i)
        i++;
    return i == n;
}

static smp_status least_memory(smp__tuner *tuner)
{
    for (int kind = SMP__ORDER_FILE; kind <= SMP__ORDER_NARROW; kind++) {
        SMP_TRY(smp__order_make(tuner->units, (smp__order_kind)kind, 0, tuner->order));
        if (kind == SMP__ORDER_FILE || !is_file_order(tuner->order, tuner->units->n))
            SMP_TRY(split_for_memory(tuner));
    }
    return SMP_OK;
}

smp_status smp__tuner_polish(smp__tuner *tuner)
{
    if (!tuner->have && !is_late(tuner))
        SMP_TRY(least_memory(tuner));
    if (!tuner->have || tuner->problem->n_stage == 1 || tuner->best.excess > 0.0 || is_late(tuner))
        return SMP_OK;
    return tuner->uniform ? fewer_transfers(tuner) : better_borders(tuner);
}

smp_status smp__tuner_finish(smp__tuner *tuner, smp_partition **out)
{
    if (!tuner->have) {
        SMP_TRY(smp__share_out(tuner->problem, tuner->units, NULL, tuner->trial));
        smp__tuner_offer(tuner);
    }
    expand(tuner, tuner->stage);
    SMP_TRY(smp_partition_evaluate(tuner->problem, tuner->op_stage, out));
    (*out)->solver = tuner->solver;
    (*out)->lower_bound_us = fmin(tuner->lower_bound_us, (*out)->bottleneck_us);
    (*out)->bound = tuner->bound;
    (*out)->timed_out = tuner->late && !is_close(tuner);
    return SMP_OK;
}
