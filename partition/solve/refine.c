/* The partitioner "refine": moves of units over the borders of a pipeline, after Fiduccia and
 * Mattheyses, "A linear-time heuristic for improving network partitions" (DAC 1982), but for what a
 * pipeline is judged by, not for the edge cut, and only moves that keep all tensors flowing
 * forward.
 *
 * A pass moves a unit out of (or into) the stages of the slowest rank, whichever gives the best
 * pipeline, worse than before or not, locks it, and goes on with the rank that is slowest then; in
 * the end it returns to the best pipeline on the way. A stage may be empty in between. When passes
 * do not help any more, a few random moves near the slowest rank give another start (iterated local
 * search), which is dropped unless it leads to something as good. At last moves that save transfers
 * at no one's cost. A move costs O(degree), its choice O(units at the border); the effort is
 * limited by the work done. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/base/random.h"
#include "partition/solve/incumbent.h"
#include "partition/solve/moves.h"
#include "partition/solve/partitioner.h"
#include "partition/solve/solve.h"

enum {
    UNIT_WORK = 2000,     /* per unit, */
    LEAST_WORK = 8000000, /* but not less than this, */
    SMALL_WORK = 200000,  /* unless that is more than this per unit, */
    MOST_WORK = 30000000, /* and not more than this */
    PATIENCE = 40,        /* moves without success before a pass ends */
    MAX_CANDIDATES = 96,  /* units looked at for one move */
    MAX_TARGETS = 4,      /* stages tried for one unit, besides the furthest */
    MAX_KICKS = 400,      /* in a row without success, */
    UNIT_KICKS = 20,      /* and per unit */
    KICK_MOVES = 6,
    SEED_UNITS = 2000, /* up to so many units METIS gives further starts */
    CHECK_WORK = 100000
};

#define SLACK 1e-12

typedef struct logged {
    int32_t unit, from;
} logged;

typedef struct choice {
    int32_t unit, to;
    smp__worth worth;
} choice;

typedef struct refiner {
    smp__incumbent *incumbent;
    smp__moves moves;
    uint32_t *locked; /* [units->n] the pass in which it moved */
    uint32_t pass;
    logged *log; /* moves since the last load */
    size_t n_log, log_capacity;
    uint64_t random;
    int64_t limit, check, spent; /* of moves.work; spent: that the planning clock knows of */
    smp__worth now;
    choice best; /* of the move that is being chosen */
    int candidates;
    bool failed; /* out of memory */
} refiner;

static int compare(double a, double b)
{
    double slack = SLACK * fmax(fabs(a), fabs(b));
    return (a > b + slack) - (a < b - slack);
}

/* < 0: a is better. by_skew: also with less on other ranks, which leads somewhere. */
static int compare_worth(const smp__worth *a, const smp__worth *b, bool by_skew)
{
    int order = a->n_empty - b->n_empty;
    if (order == 0)
        order = compare(a->excess, b->excess);
    if (order == 0)
        order = compare(a->bottleneck_us, b->bottleneck_us);
    if (order == 0 && by_skew)
        order = compare(a->skew, b->skew);
    return order ? order : compare(a->total_us, b->total_us);
}

static void note_effort(refiner *r)
{
    smp_work_count(SMP_WORK_SOLVER, (double)(r->moves.work - r->spent));
    r->spent = r->moves.work;
}

static bool is_over(refiner *r)
{
    if (r->moves.work >= r->check) {
        note_effort(r);
        r->check = r->moves.work + CHECK_WORK;
        if (smp_work_past(r->moves.problem->deadline_s)) {
            r->incumbent->late = true;
            r->limit = 0;
        }
    }
    return r->failed || r->moves.work >= r->limit;
}

static int32_t below(refiner *r, int64_t n)
{
    r->random += 0x9e3779b97f4a7c15u;
    return (int32_t)(smp_random_mix(r->random) % (uint64_t)n);
}

static void move_unit(refiner *r, int32_t unit, int32_t to)
{
    if (smp_array_reserve(&r->log, &r->log_capacity, sizeof *r->log, r->n_log + 1) != SMP_OK) {
        r->failed = true;
        return;
    }
    r->log[r->n_log++] = (logged){unit, r->moves.stage[unit]};
    smp__moves_apply(&r->moves, unit, to);
}

static void roll_back(refiner *r, size_t n_log)
{
    while (r->n_log > n_log) {
        logged last = r->log[--r->n_log];
        smp__moves_apply(&r->moves, last.unit, last.from);
    }
    r->now = smp__moves_worth(&r->moves);
}

/* Sums anew, so that rounding does not add up. */
static void reload(refiner *r, const int32_t *stage)
{
    smp__moves_load(&r->moves, stage);
    r->n_log = 0;
    r->now = smp__moves_worth(&r->moves);
}

static void try_move(refiner *r, int32_t unit, int32_t to)
{
    int32_t from = r->moves.stage[unit];
    smp__moves_apply(&r->moves, unit, to);
    smp__worth worth = smp__moves_worth(&r->moves);
    smp__moves_apply(&r->moves, unit, from);
    if (r->best.unit < 0 || compare_worth(&worth, &r->best.worth, true) < 0)
        r->best = (choice){unit, to, worth};
}

/* Moves of a unit in one direction, to `only` if that is not -1. */
static void try_unit(refiner *r, int32_t unit, smp__direction direction, int32_t only)
{
    int32_t lo, hi, from = r->moves.stage[unit];
    smp__moves_range(&r->moves, unit, &lo, &hi);
    if (only >= 0) {
        if (only >= lo && only <= hi)
            try_move(r, unit, only);
        return;
    }
    int32_t step = direction == SMP__LATER ? 1 : -1, end = direction == SMP__LATER ? hi : lo;
    for (int i = 1; i <= MAX_TARGETS && (end - from) * step >= i; i++)
        try_move(r, unit, from + i * step);
    if ((end - from) * step > MAX_TARGETS)
        try_move(r, unit, end);
}

static void try_list(refiner *r, smp__direction direction, int32_t stage, int32_t only)
{
    if (stage < 0 || stage >= r->moves.n_stage)
        return;
    int32_t next;
    int n = 0;
    for (int32_t u = r->moves.head[direction][stage]; u >= 0 && n < r->candidates; u = next) {
        next = r->moves.next[direction][u]; /* trying a unit puts it back at the head */
        if (r->locked[u] == r->pass)
            continue;
        try_unit(r, u, direction, only);
        n++;
    }
}

/* Out of a stage and into it. */
static void try_stage(refiner *r, int32_t stage, bool out)
{
    if (out) {
        try_list(r, SMP__LATER, stage, -1);
        try_list(r, SMP__EARLIER, stage, -1);
    }
    try_list(r, SMP__LATER, stage - 1, stage);
    try_list(r, SMP__EARLIER, stage + 1, stage);
}

/* The best move of a unit that is not locked. False: none. */
static bool choose_move(refiner *r)
{
    const smp_problem *problem = r->moves.problem;
    r->best.unit = -1;
    if (r->now.n_empty == 0 && r->now.excess > 0.0)
        try_stage(r, r->now.worst_stage, true);
    for (int s = 0; s < r->moves.n_stage; s++) {
        if (r->now.n_empty > 0
                ? r->moves.sum[s].n_unit == 0
                : r->now.excess == 0.0 && problem->stage_rank[s] == r->now.worst_rank)
            try_stage(r, s, r->now.n_empty == 0);
    }
    return r->best.unit >= 0;
}

/* One pass. True if the pipeline is better than before. */
static bool run_pass(refiner *r)
{
    size_t begin = r->n_log, best_log = begin;
    smp__worth best = r->now;
    bool improved = false;
    r->pass++;
    for (int stale = 0; stale < PATIENCE && !is_over(r) && choose_move(r); stale++) {
        r->locked[r->best.unit] = r->pass;
        move_unit(r, r->best.unit, r->best.to);
        r->now = smp__moves_worth(&r->moves);
        if (compare_worth(&r->now, &best, false) < 0) {
            best = r->now;
            best_log = r->n_log;
            improved = true;
            stale = 0;
        }
    }
    roll_back(r, best_log);
    return improved;
}

static void run_passes(refiner *r)
{
    while (!is_over(r) && run_pass(r))
        ;
}

/* Any unit, or one at the border of a stage of the slowest rank. -1: none came up. */
static int32_t pick_unit(refiner *r)
{
    const smp_problem *problem = r->moves.problem;
    int32_t n = r->moves.units->n;
    if (below(r, 2) == 0)
        return below(r, n);
    int32_t stage = below(r, r->moves.n_stage);
    for (int i = 0; i < 8 && problem->stage_rank[stage] != r->now.worst_rank; i++)
        stage = below(r, r->moves.n_stage);
    int d = below(r, SMP__N_DIRECTION);
    int32_t unit = r->moves.head[d][stage];
    for (int32_t skip = below(r, 8); skip > 0 && unit >= 0; skip--)
        unit = r->moves.next[d][unit];
    return unit;
}

static void kick(refiner *r)
{
    int n_move = 1 + below(r, KICK_MOVES);
    for (int tries = 0; n_move > 0 && tries < 64; tries++) {
        int32_t unit = pick_unit(r), lo, hi;
        if (unit < 0)
            continue;
        smp__moves_range(&r->moves, unit, &lo, &hi);
        int32_t to = lo + below(r, hi - lo + 1);
        if (to == r->moves.stage[unit])
            continue;
        move_unit(r, unit, to);
        n_move--;
    }
    r->now = smp__moves_worth(&r->moves);
}

/* Hands the pipeline to the incumbent, which counts it exactly. */
static bool offer(refiner *r)
{
    smp__incumbent *incumbent = r->incumbent;
    if (r->now.n_empty > 0)
        return false;
    memcpy(incumbent->trial, r->moves.stage, (size_t)r->moves.units->n * sizeof *incumbent->trial);
    return smp__incumbent_offer(incumbent);
}

/* Moves that make the whole better without any way down. */
static void save_transfers(refiner *r)
{
    for (bool moved = true; moved && !is_over(r);) {
        moved = false;
        for (int32_t u = 0; u < r->moves.units->n && !is_over(r); u++) {
            int32_t lo, hi, from = r->moves.stage[u];
            smp__moves_range(&r->moves, u, &lo, &hi);
            r->best.unit = -1;
            if (hi > from)
                try_move(r, u, from + 1);
            if (lo < from)
                try_move(r, u, from - 1);
            if (r->best.unit < 0 || compare_worth(&r->best.worth, &r->now, false) >= 0)
                continue;
            move_unit(r, u, r->best.to);
            r->now = r->best.worth;
            moved = true;
        }
    }
}

/* Improves what is loaded; the incumbent has the best in the end. */
static void improve(refiner *r, bool kicks)
{
    int64_t max_stall = (int64_t)UNIT_KICKS * r->moves.units->n;
    max_stall = max_stall < MAX_KICKS ? max_stall : MAX_KICKS;
    run_passes(r);
    offer(r);
    for (int stall = 0;
         kicks && stall < max_stall && !is_over(r) && !smp__incumbent_done(r->incumbent); stall++) {
        smp__worth before = r->now;
        if (r->n_log > (size_t)r->moves.units->n)
            reload(r, r->moves.stage);
        size_t n_log = r->n_log;
        kick(r);
        run_passes(r);
        int order = compare_worth(&r->now, &before, false);
        if (order > 0)
            roll_back(r, n_log);
        else if (order < 0 && offer(r))
            stall = 0;
    }
    save_transfers(r);
    offer(r);
}

static int64_t work_limit(const smp__units *units)
{
    int64_t limit = (int64_t)UNIT_WORK * units->n, small = (int64_t)SMALL_WORK * units->n;
    limit = limit > LEAST_WORK ? limit : small < LEAST_WORK ? small : LEAST_WORK;
    return limit < MOST_WORK ? limit : MOST_WORK;
}

static smp_status open_refiner(refiner *r, smp__incumbent *incumbent, smp_arena *arena)
{
    *r = (refiner){
        .incumbent = incumbent, .candidates = MAX_CANDIDATES, .random = incumbent->problem->seed};
    r->locked = SMP_ARENA_NEW(arena, uint32_t, (size_t)incumbent->units->n);
    if (!r->locked)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__moves_init(&r->moves, incumbent->problem, incumbent->units, arena));
    r->moves.scale_us = fmax(incumbent->score.bottleneck_us, 1e-9);
    return SMP_OK;
}

/* Other places to start from, where the gap is open: what METIS makes of the graph. */
static smp_status from_metis(refiner *r, const smp_partitioner *metis)
{
    smp_partition *seed = NULL;
    smp__incumbent *incumbent = r->incumbent;
    SMP_TRY(metis->solve(incumbent->problem, NULL, &seed));
    for (int32_t op = 0; op < incumbent->problem->graph->n_op; op++)
        incumbent->trial[incumbent->units->unit_of_op[op]] = seed->stage[op];
    smp_partition_destroy(seed);
    reload(r, incumbent->trial);
    improve(r, false);
    return SMP_OK;
}

static smp_status refine(smp__incumbent *incumbent)
{
    const smp__units *units = incumbent->units;
    bool fixed =
        incumbent->problem->n_stage == 1 || (incumbent->uniform && smp__order_is_unique(units));
    if (fixed || smp__incumbent_done(incumbent))
        return SMP_OK;
    refiner r = {0};
    smp_arena *scratch = smp_arena_create();
    smp_status status = scratch ? open_refiner(&r, incumbent, scratch) : SMP_ERR_NO_MEMORY;
    if (status != SMP_OK)
        goto done;
    const smp_partitioner *seeds[] = {&smp__partitioner_metis_kway,
                                      &smp__partitioner_metis_recursive};
    for (int i = 0; i < 2 && units->n <= SEED_UNITS && status == SMP_OK; i++) {
        r.limit = r.moves.work + work_limit(units) / 8;
        status = smp__incumbent_done(incumbent) ? SMP_OK : from_metis(&r, seeds[i]);
    }
    if (status == SMP_OK && !smp__incumbent_done(incumbent)) {
        r.limit = r.moves.work + work_limit(units);
        reload(&r, incumbent->stage);
        improve(&r, true);
    }
    note_effort(&r);
    if (r.failed)
        status = SMP_ERR_NO_MEMORY;
done:
    free(r.log);
    smp_arena_destroy(scratch);
    return status;
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, smp_partition **out)
{
    smp__incumbent incumbent;
    smp_partition *first = NULL;
    smp_status status = SMP_OK;
    if (!start)
        status = smp__partitioner_linear.solve(problem, NULL, &first);
    if (status == SMP_OK)
        status = smp__incumbent_init(&incumbent, problem, start ? start : first,
                                     smp__partitioner_refine.name);
    if (status == SMP_OK) {
        if (!start)
            incumbent.solver = incumbent.name;
        status = refine(&incumbent);
        if (status == SMP_OK)
            status = smp__incumbent_finish(&incumbent, out);
        smp__incumbent_free(&incumbent);
    }
    smp_partition_destroy(first);
    return status;
}

const smp_partitioner smp__partitioner_refine = {
    .name = "refine",
    .summary = "moves of single ops over the borders of the best pipeline known",
    .solve = solve,
};
