/* The best pipeline over many orders. Any legal pipeline is the split of some order, and sorting
 * any topological order by the stages of a pipeline gives an order that can be split into it again,
 * so random orders sorted by the best pipeline so far never lose, and let every border move through
 * a different series of downsets each time. That is local search with an exact inner step; METIS
 * and the depth-first orders give it places to start from. */
#include "partition/solve/incumbent.h"

#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/base/random.h"
#include "partition/problem/legal.h"
#include "partition/prove/bound.h"
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
    if (problem->n_stage != problem->pipeline || smp_problem_replicas(problem) > 1)
        return false;
    for (int s = 2; s < problem->pipeline; s++) {
        for (int t = 0; t < s; t++) {
            if (smp__link_between(problem, 0, problem->stage_rank[t], problem->stage_rank[s]) !=
                smp__link_between(problem, 0, problem->stage_rank[0], problem->stage_rank[1]))
                return false;
        }
    }
    return true;
}

/* Takes the pipeline that others found over, unless it is none of these units. */
static bool take_start(smp__incumbent *incumbent, const smp_partition *start)
{
    const smp__units *units = incumbent->units;
    const smp_problem *problem = incumbent->problem;
    if (!start || start->n_stage != problem->n_stage)
        return false;
    for (int32_t op = 0; op < problem->graph->n_op; op++)
        incumbent->trial[units->unit_of_op[op]] = start->stage[op];
    for (int32_t op = 0; op < problem->graph->n_op; op++) {
        if (incumbent->trial[units->unit_of_op[op]] != start->stage[op])
            return false;
    }
    smp__incumbent_offer(incumbent);
    incumbent->solver = start->solver;
    if (start->lower_bound_us > incumbent->lower_bound_us) {
        incumbent->lower_bound_us = start->lower_bound_us;
        incumbent->bound = start->bound;
    }
    return true;
}

smp_status smp__incumbent_init(smp__incumbent *incumbent, const smp_problem *problem,
                               const smp_partition *start, const char *name)
{
    *incumbent = (smp__incumbent){.problem = problem, .name = name, .arena = smp_arena_create()};
    smp_status status =
        incumbent->arena ? smp__units_build(problem, &incumbent->units) : SMP_ERR_NO_MEMORY;
    if (status != SMP_OK)
        goto fail;
    size_t n = (size_t)incumbent->units->n;
    status = smp__evaluator_init(&incumbent->evaluator, problem, incumbent->arena);
    if (status == SMP_OK)
        status = smp__split_init(&incumbent->split, problem->n_stage, incumbent->arena);
    if (status != SMP_OK)
        goto fail;
    incumbent->stage = SMP_ARENA_NEW(incumbent->arena, int32_t, n);
    incumbent->trial = SMP_ARENA_NEW(incumbent->arena, int32_t, n);
    incumbent->order = SMP_ARENA_NEW(incumbent->arena, int32_t, n);
    incumbent->op_stage = SMP_ARENA_NEW(incumbent->arena, int32_t, (size_t)problem->graph->n_op);
    status = SMP_ERR_NO_MEMORY;
    if (!incumbent->stage || !incumbent->trial || !incumbent->order || !incumbent->op_stage)
        goto fail;
    status = smp__bound_by_compute(problem, incumbent->units, incumbent->arena, &incumbent->bound,
                                   &incumbent->lower_bound_us);
    if (status != SMP_OK)
        goto fail;
    incumbent->uniform = links_alike(problem);
    take_start(incumbent, start);
    return SMP_OK;
fail:
    smp__incumbent_free(incumbent);
    return status;
}

void smp__incumbent_free(smp__incumbent *incumbent)
{
    smp__units_destroy(incumbent->units);
    smp_arena_destroy(incumbent->arena);
    incumbent->units = NULL;
    incumbent->arena = NULL;
}

static bool is_late(smp__incumbent *incumbent)
{
    incumbent->late |= incumbent->split.late || smp_work_past(incumbent->problem->deadline_s);
    return incumbent->late;
}

static bool is_close(const smp__incumbent *incumbent)
{
    return incumbent->have && incumbent->score.excess == 0.0 &&
           smp__close_enough(incumbent->problem, incumbent->score.bottleneck_us,
                             incumbent->lower_bound_us);
}

bool smp__incumbent_done(smp__incumbent *incumbent)
{
    return is_close(incumbent) || is_late(incumbent);
}

static void expand(const smp__incumbent *incumbent, const int32_t *unit_stage)
{
    for (int32_t op = 0; op < incumbent->problem->graph->n_op; op++)
        incumbent->op_stage[op] = unit_stage[incumbent->units->unit_of_op[op]];
}

/* Keeps incumbent->trial if it is the best. slowest_us: as the sequence measures it. */
static bool offer(smp__incumbent *incumbent, double slowest_us)
{
    expand(incumbent, incumbent->trial);
    smp__score score = smp__evaluate(&incumbent->evaluator, incumbent->op_stage);
    incumbent->work += (int64_t)incumbent->problem->graph->n_op * incumbent->evaluator.n_replica;
    if (incumbent->have && !smp__score_better(&score, &incumbent->score))
        return false;
    incumbent->have = true;
    incumbent->score = score;
    incumbent->solver = incumbent->name;
    incumbent->slowest_us = slowest_us;
    memcpy(incumbent->stage, incumbent->trial,
           (size_t)incumbent->units->n * sizeof *incumbent->stage);
    return true;
}

bool smp__incumbent_offer(smp__incumbent *incumbent)
{
    double slowest_us = 0.0;
    if (!offer(incumbent, INFINITY))
        return false;
    for (int s = 0; s < incumbent->problem->n_stage; s++)
        slowest_us = fmax(slowest_us, incumbent->evaluator.load[s].load_us);
    incumbent->slowest_us = slowest_us;
    return true;
}

static void read_split(smp__incumbent *incumbent, const smp__sequence *sequence)
{
    for (int k = 0; k < sequence->n_stage; k++) {
        for (int32_t i = incumbent->split.border[k]; i < incumbent->split.border[k + 1]; i++)
            incumbent->trial[sequence->unit[i]] = k;
    }
}

/* Loads that can still beat the best; a little more, so that equals with a smaller total count.
 * Where the sequence is not exact, every order deserves its own optimum. */
static double bound_of(const smp__incumbent *incumbent)
{
    if (!incumbent->have || !incumbent->uniform || incumbent->score.excess > 0.0)
        return INFINITY;
    return incumbent->slowest_us * (1.0 + 1e-12);
}

/* Large graphs get less, so that the time for a solution stays within some hundred milliseconds. */
static int64_t work_limit(const smp__incumbent *incumbent)
{
    if (incumbent->units->n <= WORK_UNITS)
        return WORK_LIMIT;
    return (int64_t)WORK_LIMIT * WORK_UNITS / incumbent->units->n;
}

/* Borders of the best pipeline on a sequence that is sorted by it. */
static void best_borders(smp__incumbent *incumbent, const smp__sequence *sequence)
{
    int32_t *border = incumbent->split.border;
    memset(border, 0, ((size_t)sequence->n_stage + 1) * sizeof *border);
    for (int32_t u = 0; u < sequence->n; u++)
        border[incumbent->stage[u] + 1]++;
    for (int k = 0; k < sequence->n_stage; k++)
        border[k + 1] += border[k];
}

/* Improves the borders in incumbent->split where the sequence's measure is not exact, and offers
 * them. */
static bool climb(smp__incumbent *incumbent, const smp__sequence *sequence, int64_t effort)
{
    smp__climb_borders(&incumbent->evaluator, sequence, incumbent->split.border,
                       incumbent->op_stage, incumbent->work + effort, &incumbent->work);
    read_split(incumbent, sequence);
    return offer(incumbent, incumbent->split.slowest_us);
}

/* incumbent->order may be split at the borders of the best pipeline if `sorted`. */
static smp_status split_order(smp__incumbent *incumbent, bool sorted, int64_t max_pairs,
                              bool *feasible, bool *kept)
{
    smp__sequence *sequence = NULL;
    const smp__units *units = incumbent->units;
    SMP_TRY(smp__sequence_build(incumbent->problem, units, incumbent->order, &sequence));
    *feasible = sequence->feasible;
    *kept = false;
    incumbent->split.found = sorted;
    incumbent->split.work = 0;
    if (sorted)
        best_borders(incumbent, sequence);
    smp_status status =
        smp__split_solve(sequence, bound_of(incumbent), max_pairs, &incumbent->split);
    incumbent->work += incumbent->split.work + ORDER_WORK * (units->n + units->in_begin[units->n]);
    if (status == SMP_OK && incumbent->split.found) {
        read_split(incumbent, sequence);
        *kept = offer(incumbent, incumbent->split.slowest_us);
        if (!incumbent->uniform && sequence->n <= WORK_UNITS &&
            (*kept || incumbent->split.slowest_us <= CLIMB_FROM * incumbent->slowest_us))
            *kept |= climb(incumbent, sequence, WORK_LIMIT / 256);
    }
    smp__sequence_destroy(sequence);
    return status;
}

smp_status smp__incumbent_try(smp__incumbent *incumbent, const int32_t *order)
{
    const smp__units *units = incumbent->units;
    bool feasible, kept;
    if (is_late(incumbent))
        return SMP_OK;
    if (order != incumbent->order)
        memcpy(incumbent->order, order, (size_t)units->n * sizeof *order);
    if (units->has_pin)
        SMP_TRY(smp__order_clamp(units, incumbent->problem->n_stage, units->lo, units->hi, 0.0,
                                 incumbent->order));
    int64_t max_pairs = incumbent->have && units->n > MANY_UNITS ? MAX_MORE_PAIRS : MAX_PAIRS;
    SMP_TRY(split_order(incumbent, false, max_pairs, &feasible, &kept));
    if (feasible || is_late(incumbent))
        return SMP_OK;
    SMP_TRY(smp__order_clamp(units, incumbent->problem->n_stage, units->anchor_lo, units->anchor_hi,
                             0.0, incumbent->order));
    return split_order(incumbent, false, max_pairs, &feasible, &kept);
}

/* A random order sorted by the best pipeline, or, one time in two, by its stages taken in pairs or
 * not at all: then units of neighbouring stages mix. *sorted: by all stages. */
static smp_status random_order(smp__incumbent *incumbent, uint64_t draw, bool *sorted)
{
    static const smp__order_kind kinds[] = {SMP__ORDER_FORWARD, SMP__ORDER_DEMAND,
                                            SMP__ORDER_NARROW, SMP__ORDER_RANDOM};
    const smp__units *units = incumbent->units;
    int n_stage = incumbent->problem->n_stage;
    uint64_t seed = smp_random_mix(incumbent->problem->seed ^ smp_random_mix(draw));
    SMP_TRY(smp__order_make(units, kinds[draw % 4], seed | 1, incumbent->order));
    int mix = (int)(draw / 4 % 6); /* 0-2: sorted; 3, 4: in pairs; 5: not at all */
    *sorted = incumbent->have && mix < 3;
    if (!incumbent->have || mix == 5) {
        double shift = n_stage * ((double)(smp_random_mix(seed) >> 11) * 0x1p-53 - 0.5);
        return units->has_pin
                   ? smp__order_clamp(units, n_stage, units->lo, units->hi, shift, incumbent->order)
                   : SMP_OK;
    }
    for (int32_t u = 0; u < units->n; u++)
        incumbent->trial[u] = *sorted ? incumbent->stage[u] : (incumbent->stage[u] + mix - 3) / 2;
    return smp__order_by_stage(units, n_stage, incumbent->trial, incumbent->order);
}

smp_status smp__incumbent_improve(smp__incumbent *incumbent)
{
    if (incumbent->problem->n_stage == 1 || smp__order_is_unique(incumbent->units))
        return SMP_OK;
    int64_t last_success = incumbent->work;
    int64_t limit = incumbent->work + work_limit(incumbent) / (incumbent->have ? 1 : 32);
    int stall = 0;
    for (uint64_t draw = 0; !smp__incumbent_done(incumbent) && incumbent->work < limit; draw++) {
        bool sorted, feasible, kept;
        if (stall >= MAX_STALL ||
            (stall >= MIN_STALL && incumbent->work - last_success > STALL_WORK))
            break;
        SMP_TRY(random_order(incumbent, draw, &sorted));
        SMP_TRY(split_order(incumbent, sorted, MAX_TRIAL_PAIRS, &feasible, &kept));
        stall++;
        if (kept) {
            stall = 0;
            last_success = incumbent->work;
        }
    }
    return SMP_OK;
}

/* The order that the best pipeline is a split of, prepared. */
static smp_status sequence_of_best(smp__incumbent *incumbent, smp__sequence **sequence)
{
    SMP_TRY(smp__order_make(incumbent->units, SMP__ORDER_FILE, 0, incumbent->order));
    SMP_TRY(smp__order_by_stage(incumbent->units, incumbent->problem->n_stage, incumbent->stage,
                                incumbent->order));
    return smp__sequence_build(incumbent->problem, incumbent->units, incumbent->order, sequence);
}

static smp_status fewer_transfers(smp__incumbent *incumbent)
{
    smp__sequence *sequence = NULL;
    SMP_TRY(sequence_of_best(incumbent, &sequence));
    incumbent->split.work = 0;
    incumbent->split.found = false;
    smp_status status = smp__split_total(sequence, incumbent->slowest_us * (1.0 + 1e-12),
                                         MAX_TRIAL_PAIRS, &incumbent->split);
    if (status == SMP_OK && incumbent->split.found) {
        read_split(incumbent, sequence);
        offer(incumbent, incumbent->slowest_us);
    }
    smp__sequence_destroy(sequence);
    return status;
}

/* Judged by the exact evaluation. */
static smp_status better_borders(smp__incumbent *incumbent)
{
    smp__sequence *sequence = NULL;
    SMP_TRY(sequence_of_best(incumbent, &sequence));
    best_borders(incumbent, sequence);
    climb(incumbent, sequence, work_limit(incumbent) / (incumbent->problem->first_look ? 64 : 4));
    smp__sequence_destroy(sequence);
    return SMP_OK;
}

/* incumbent->order, split for memory alone. */
static smp_status split_for_memory(smp__incumbent *incumbent)
{
    smp__sequence *sequence = NULL;
    double fullest;
    if (incumbent->units->has_pin)
        SMP_TRY(smp__order_clamp(incumbent->units, incumbent->problem->n_stage,
                                 incumbent->units->anchor_lo, incumbent->units->anchor_hi, 0.0,
                                 incumbent->order));
    SMP_TRY(smp__sequence_build(incumbent->problem, incumbent->units, incumbent->order, &sequence));
    smp_status status = smp__split_memory(sequence, &incumbent->split, &fullest);
    if (status == SMP_OK && incumbent->split.found) {
        read_split(incumbent, sequence);
        offer(incumbent, INFINITY);
    }
    smp__sequence_destroy(sequence);
    return status;
}

static bool is_file_order(const int32_t *order, int32_t n)
{
    int32_t i = 0;
    while (i < n && order[i] == i)
        i++;
    return i == n;
}

static smp_status least_memory(smp__incumbent *incumbent)
{
    for (int kind = SMP__ORDER_FILE; kind <= SMP__ORDER_NARROW; kind++) {
        SMP_TRY(smp__order_make(incumbent->units, (smp__order_kind)kind, 0, incumbent->order));
        if (kind == SMP__ORDER_FILE || !is_file_order(incumbent->order, incumbent->units->n))
            SMP_TRY(split_for_memory(incumbent));
    }
    return SMP_OK;
}

smp_status smp__incumbent_polish(smp__incumbent *incumbent)
{
    if (!incumbent->have && !is_late(incumbent))
        SMP_TRY(least_memory(incumbent));
    if (!incumbent->have || incumbent->problem->n_stage == 1 || incumbent->score.excess > 0.0 ||
        is_late(incumbent))
        return SMP_OK;
    return incumbent->uniform ? fewer_transfers(incumbent) : better_borders(incumbent);
}

smp_status smp__incumbent_finish(smp__incumbent *incumbent, smp_partition **out)
{
    if (!incumbent->have) {
        SMP_TRY(smp__share_out(incumbent->problem, incumbent->units, NULL, incumbent->trial));
        smp__incumbent_offer(incumbent);
    }
    expand(incumbent, incumbent->stage);
    SMP_TRY(smp_partition_evaluate(incumbent->problem, incumbent->op_stage, out));
    (*out)->solver = incumbent->solver;
    (*out)->lower_bound_us = fmin(incumbent->lower_bound_us, (*out)->bottleneck_us);
    (*out)->bound = incumbent->bound;
    (*out)->timed_out = incumbent->late && !is_close(incumbent);
    return SMP_OK;
}
