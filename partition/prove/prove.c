/* How far a partition is from the best one: bounds first, then exact search for rising targets. A
 * target just above the bound leaves few candidates for each border and is refuted fast, so a
 * search that has to give up has still raised the bound; the last target is the partition's own
 * bottleneck. */
#include "partition/prove/prove.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "partition/problem/coarse.h"
#include "partition/problem/evaluate.h"
#include "partition/prove/bound.h"
#include "partition/prove/contract.h"
#include "partition/prove/line.h"

enum {
    PROVE_WORK = 180000000,
    PROVE_BYTES = 160 << 20,
    LONG_BYTES = 400 << 20, /* until the deadline */
    LINE_WORK = PROVE_WORK / 4,
    FIRST_SHARE = 16,  /* of that, where the obvious is tried */
    MAX_UNITS = 20000, /* for exact search */
    CUT_SHARE = 3,     /* of the work, for cuts alone: a third */
    SMALL_UNITS = 24,
    SMALL_UNITS_LONG = 64, /* until the deadline */
    SMALL_WORK = 20000000, /* for all pipelines of a small graph */
    MAX_MIDWAY = 4,        /* targets tried between the last refuted and one that was too much, */
    MIDWAY_LONG = 24       /* and until the deadline */
};

#define CLOSED 1e-9     /* relative gap that is none */
#define MIDWAY_GAP 2e-3 /* worth trying a target between */
#define MIDWAY_LONG_GAP 1e-5
#define FIRST_STEP 0.0625   /* of the gap between bound and bottleneck: the first target */
#define STEP_WITHOUT 1.0625 /* times the bound, where no partition fits yet */

typedef struct proof {
    const smp_problem *problem;
    const smp__units *units;
    bool joined;     /* units are (contract.h): stages may be empty, */
    bool left_empty; /* and of what was found some are */
    smp__window window;
    smp__cuts *cuts;
    const smp__exact_limits *limits;
    int64_t work; /* left */
    double lower_us;
    const char *bound;
    bool late;
    const char *solver;  /* of what is found; NULL: that is not taken */
    double found_us;     /* INFINITY: nothing faster was found */
    int32_t *unit_stage; /* that it was found with */
} proof;

static bool is_closed(double lower_us, double upper_us)
{
    return upper_us <= lower_us * (1.0 + CLOSED);
}

static void raise_bound(proof *p, double lower_us, const char *bound)
{
    if (lower_us > p->lower_us * (1.0 + 1e-12)) {
        p->lower_us = lower_us;
        p->bound = bound;
    }
}

/* More than the load of any stage. */
static double worst_load(const proof *p)
{
    double worst = 0.0, slowest = 1.0;
    for (int s = 0; s < p->window.n_stage; s++)
        slowest = fmax(slowest, p->window.slowdown[s]);
    for (int32_t u = 0; u < p->units->n; u++)
        worst += (p->window.work_us[u] + p->units->forward_us[u]) * slowest;
    for (int32_t net = 0; net < p->units->n_net; net++)
        worst +=
            fmax(p->units->net_us[SMP__LINK_INTRA][net], p->units->net_us[SMP__LINK_INTER][net]);
    return 1.0 + 2.0 * worst;
}

/* What cuts may take, taken off the work. They are not worth more until a deadline, and do not look
 * at the clock often. */
static smp__cut_limits cut_limits(proof *p)
{
    int64_t work = (p->work < PROVE_WORK ? p->work : PROVE_WORK) / CUT_SHARE;
    p->work -= work;
    return (smp__cut_limits){work, p->limits->deadline_s};
}

static smp_status try_target(proof *p, double target_us, smp__exact_answer *answer)
{
    double best_us = INFINITY;
    bool refuted = false;
    smp__cut_limits limits = cut_limits(p);
    if (isfinite(target_us))
        SMP_TRY(smp__cuts_narrow(p->cuts, target_us, &limits, &refuted));
    else
        smp__window_set(&p->window, target_us);
    p->work += limits.work > 0 ? limits.work : 0;
    *answer = SMP__EXACT_NONE;
    if (refuted) {
        raise_bound(p, target_us, "cuts");
        return SMP_OK;
    }
    SMP_TRY(smp__exact_search(&p->window, target_us, p->limits, &p->work, answer, &best_us,
                              p->unit_stage));
    if (*answer == SMP__EXACT_NONE)
        raise_bound(p, target_us, "exact search");
    if (*answer == SMP__EXACT_FOUND) {
        raise_bound(p, best_us, "exact search");
        p->found_us = best_us;
    }
    p->late |= *answer == SMP__EXACT_LATE;
    return SMP_OK;
}

/* Rising targets up to upper_us (INFINITY: until a pipeline fits, or none can). */
static smp_status search(proof *p, double upper_us)
{
    double worst_us = worst_load(p), low_us = p->lower_us, step = FIRST_STEP;
    double high_us = upper_us; /* what the next targets stay below */
    smp__exact_answer answer = SMP__EXACT_NONE;
    while (answer == SMP__EXACT_NONE) {
        double target_us = isfinite(upper_us) ? low_us + step * (upper_us - low_us)
                                              : fmax(low_us, worst_us * 1e-9) * (1.0 + step);
        bool last = isfinite(upper_us) ? step >= 1.0 : target_us > worst_us;
        if (last)
            target_us = upper_us;
        SMP_TRY(try_target(p, target_us, &answer));
        high_us = target_us;
        step *= 2.0;
        if (last)
            break;
    }
    bool longer = p->limits->work > PROVE_WORK;
    int midway = longer ? MIDWAY_LONG : MAX_MIDWAY;
    double gap = longer ? MIDWAY_LONG_GAP : MIDWAY_GAP;
    for (int i = 0; i < midway && answer == SMP__EXACT_LIMIT && p->work > 0; i++) {
        double target_us = 0.5 * (p->lower_us + high_us);
        if (!isfinite(high_us) || high_us <= p->lower_us * (1.0 + gap))
            break;
        SMP_TRY(try_target(p, target_us, &answer));
        if (answer == SMP__EXACT_LIMIT)
            high_us = target_us;
        else if (answer == SMP__EXACT_NONE)
            answer = SMP__EXACT_LIMIT;
    }
    return SMP_OK;
}

/* Whether some stage of what the search found has no unit. */
static bool leaves_empty(const proof *p)
{
    for (int32_t s = 0; p->joined && s < p->problem->n_stage; s++) {
        int32_t u = 0;
        while (u < p->units->n && p->unit_stage[u] != s)
            u++;
        if (u == p->units->n)
            return true;
    }
    return false;
}

/* Replaces *partition by what the search found if that is better, as it is evaluated: a window may
 * charge less than all replicas do. */
static smp_status take_found(proof *p, smp_partition **partition)
{
    smp_partition *found = NULL;
    bool any = isfinite(p->found_us);
    p->found_us = INFINITY;
    if (!any || !p->solver)
        return SMP_OK;
    if (leaves_empty(p)) {
        p->left_empty = true;
        return SMP_OK;
    }
    int32_t n_op = p->problem->graph->n_op;
    int32_t *stage = malloc(((size_t)n_op + 1) * sizeof *stage);
    if (!stage)
        return smp_fail_memory((size_t)n_op * sizeof *stage);
    for (int32_t op = 0; op < n_op; op++)
        stage[op] = p->unit_stage[p->units->unit_of_op[op]];
    smp_status status = smp_partition_evaluate(p->problem, stage, &found);
    free(stage);
    if (status != SMP_OK)
        return status;
    if (found->fits == (*partition)->fits ? found->bottleneck_us < (*partition)->bottleneck_us
                                          : found->fits) {
        smp_partition *old = *partition;
        found->solver = p->solver;
        *partition = found;
        found = old;
    }
    smp_partition_destroy(found);
    return SMP_OK;
}

static smp_status bound_by_work(proof *p, smp_arena *arena)
{
    const char *name;
    double us;
    SMP_TRY(smp__bound_by_compute(p->problem, p->units, arena, &name, &us));
    raise_bound(p, us, name);
    return SMP_OK;
}

static smp_status bound_by_cuts(proof *p, double upper_us)
{
    double bound_us;
    smp__cut_limits limits = cut_limits(p);
    SMP_TRY(smp__bound_by_op_cuts(&p->window, p->lower_us, &limits, &bound_us));
    raise_bound(p, bound_us, "largest op and its transfers");
    if (upper_us > p->lower_us) {
        SMP_TRY(smp__bound_by_cuts(p->cuts, p->lower_us, upper_us, &limits, &bound_us));
        raise_bound(p, bound_us, "cuts");
    }
    p->work += limits.work > 0 ? limits.work : 0;
    return SMP_OK;
}

static double upper_of(const smp_partition *partition)
{
    return partition->fits ? partition->bottleneck_us : INFINITY;
}

/* Every pipeline of a small graph. *done: no other search is needed. */
static smp_status search_all(proof *p, smp_partition **partition, bool *done)
{
    double upper_us = upper_of(*partition);
    bool longer = p->limits->work > PROVE_WORK && p->problem->n_stage != p->problem->pipeline;
    int64_t work = longer || p->work < SMALL_WORK ? p->work : SMALL_WORK, left = work;
    double best_us;
    *done = false;
    if (p->units->n > (longer ? SMALL_UNITS_LONG : SMALL_UNITS))
        return SMP_OK;
    SMP_TRY(smp__exact_small(p->problem, p->units, upper_us, &left, done, &best_us, p->unit_stage));
    p->work -= work - left;
    p->late |= smp_work_past(p->limits->deadline_s);
    if (isfinite(best_us))
        p->found_us = best_us;
    if (*done && isfinite(fmin(best_us, upper_us)))
        raise_bound(p, fmin(best_us, upper_us), "search of all pipelines");
    return take_found(p, partition);
}

/* Cuts and exact search in the window, with one of `parts` of the work. */
static smp_status prove_window(proof *p, smp_partition **partition, int parts)
{
    double upper_us = upper_of(*partition);
    int64_t rest = p->work - p->work / parts;
    p->work -= rest;
    smp_status status = smp__cuts_create(&p->window, &p->cuts);
    if (status == SMP_OK && !smp_work_past(p->limits->deadline_s))
        status = bound_by_cuts(p, (*partition)->bottleneck_us);
    p->late |= smp_work_past(p->limits->deadline_s);
    if (status == SMP_OK && p->units->n <= MAX_UNITS && !p->late &&
        !is_closed(p->lower_us, upper_us))
        status = search(p, upper_us);
    smp__cuts_destroy(p->cuts);
    p->cuts = NULL;
    p->work += rest;
    return status == SMP_OK ? take_found(p, partition) : status;
}

/* In the window of one replica alone. */
static smp_status prove_replica(proof *p, smp_partition **partition, int replica, int parts)
{
    smp_problem one = *p->problem;
    one.device = &p->problem->device[(int64_t)replica * one.pipeline];
    one.n_replica = 1;
    smp_arena *scratch = smp_arena_create();
    smp_status status =
        scratch ? smp__window_init(&p->window, &one, p->units, scratch) : SMP_ERR_NO_MEMORY;
    p->window.may_be_empty = p->joined;
    p->work -= p->units->n + p->units->n_net;
    if (status == SMP_OK && p->work > 0)
        status = prove_window(p, partition, parts);
    smp_arena_destroy(scratch);
    return status;
}

/* The window of all replicas has the slowest devices, but the cheapest links. What no pipeline can
 * beat in one of them, with its own devices and links, none can beat in all. */
static smp_status prove_replicas(proof *p, smp_partition **partition)
{
    int n = p->window.exact_links ? 1 : smp_problem_replicas(p->problem);
    SMP_TRY(prove_window(p, partition, n > 1 ? n + 1 : 1)); /* the window of one is its own */
    for (int k = 0; k < n && n > 1 && p->work > 0 && !p->late; k++) {
        if (is_closed(p->lower_us, upper_of(*partition)))
            break;
        SMP_TRY(prove_replica(p, partition, k, n - k));
    }
    return SMP_OK;
}

/* As an assembly line, with so much of the work. */
static smp_status prove_line(proof *p, smp_partition **partition, int64_t work)
{
    smp__line_result result;
    if (p->late || p->work <= 0 || is_closed(p->lower_us, upper_of(*partition)))
        return SMP_OK;
    int64_t rest = p->work > work ? p->work - work : 0;
    p->work -= rest;
    SMP_TRY(smp__line_prove(&p->window, p->lower_us, upper_of(*partition), p->limits, &p->work,
                            p->unit_stage, &result));
    p->work += rest;
    p->late |= result.late;
    raise_bound(p, result.lower_us, "search of lines");
    p->found_us = result.best_us;
    return take_found(p, partition);
}

/* Transfers that do not matter leave a line, whose search ignores them, and may stay just above its
 * bound: exact search, which does not, gets half of the usual work. */
static smp_status prove_both(proof *p, smp_partition **partition)
{
    SMP_TRY(prove_line(p, partition, p->problem->first_look ? LINE_WORK / FIRST_SHARE : LINE_WORK));
    if (is_closed(p->lower_us, upper_of(*partition)))
        return SMP_OK;
    int64_t part = (p->work < PROVE_WORK ? p->work : PROVE_WORK) / 2, rest = p->work - part;
    p->work = part;
    SMP_TRY(prove_replicas(p, partition));
    p->work += rest;
    return upper_of(*partition) > p->lower_us * (1.0 + SMP__LINE_NEGLIGIBLE)
               ? prove_line(p, partition, p->work)
               : SMP_OK;
}

/* One variant of the problem. Fills lower_us, bound, late; takes what is found. */
static smp_status prove_variant(proof *p, smp_partition **partition, smp_arena *arena)
{
    SMP_TRY(bound_by_work(p, arena));
    if (is_closed(p->lower_us, upper_of(*partition)))
        return SMP_OK;
    p->unit_stage = SMP_ARENA_NEW(arena, int32_t, (size_t)p->units->n);
    if (!p->unit_stage)
        return SMP_ERR_NO_MEMORY;
    bool chunks = p->problem->n_stage != p->problem->pipeline, done = chunks;
    if (chunks)
        return search_all(p, partition, &done);
    SMP_TRY(smp__window_init(&p->window, p->problem, p->units, arena));
    p->window.may_be_empty = p->joined;
    if (!p->window.exact_links)
        SMP_TRY(search_all(p, partition, &done));
    if (done)
        return SMP_OK;
    return smp__line_applies(&p->window) ? prove_both(p, partition) : prove_replicas(p, partition);
}

static smp_status prove_units(proof *p, const smp__units *units, bool joined,
                              smp_partition **partition)
{
    smp_arena *arena = smp_arena_create();
    p->units = units;
    p->joined = joined;
    smp_status status = arena ? prove_variant(p, partition, arena) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(arena);
    return status;
}

/* With what costs nothing joined to a neighbour, if it is. *done: that was all there is to do. */
static smp_status prove_joined(proof *p, const smp__units *units, smp_partition **partition,
                               bool *done)
{
    smp_problem labelled = *p->problem;
    smp__units *joined = NULL;
    smp__obstacle obstacle = {SMP__OBSTACLE_NONE, 0};
    int32_t *label = NULL;
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? smp__contract(p->problem, units, arena, &label) : SMP_ERR_NO_MEMORY;
    labelled.together = label;
    if (status == SMP_OK && label)
        status = smp__units_try(&labelled, &joined, &obstacle);
    *done = status == SMP_OK && label && obstacle.kind == SMP__OBSTACLE_NONE;
    if (*done)
        status = prove_units(p, joined, true, partition);
    *done = *done && !p->left_empty; /* else what was found is no pipeline */
    smp__units_destroy(joined);
    smp_arena_destroy(arena);
    return status;
}

/* improve: take what is found. bound: keep what is proven. */
static smp_status prove_once(const smp_problem *problem, const smp__exact_limits *limits,
                             int64_t *work, const char *solver, bool improve, bool bound,
                             smp_partition **partition)
{
    proof p = {.problem = problem,
               .limits = limits,
               .work = *work,
               .bound = "fair share",
               .solver = improve ? solver : NULL,
               .found_us = INFINITY};
    smp__units *units;
    bool done;
    SMP_TRY(smp__units_build(problem, &units));
    smp_status status = prove_joined(&p, units, partition, &done);
    if (status == SMP_OK && !done)
        status = prove_units(&p, units, false, partition);
    smp__units_destroy(units);
    if (status == SMP_OK && bound) {
        (*partition)->lower_bound_us = p.lower_us;
        (*partition)->bound = p.bound;
    }
    if (status == SMP_OK)
        (*partition)->timed_out |= p.late;
    *work = p.work;
    return status;
}

smp_status smp__prove(const smp_problem *problem, const smp__exact_limits *limits,
                      const char *solver, smp_partition **partition)
{
    if (smp__coarse_is_enough(problem)) {
        double coarse_us = smp__coarse_bound(problem, &(*partition)->bound);
        (*partition)->lower_bound_us = fmin(coarse_us, (*partition)->bottleneck_us);
        return SMP_OK;
    }
    int64_t work = limits->work;
    double known_us = (*partition)->lower_bound_us;
    const char *known = (*partition)->bound;
    bool timed_out = (*partition)->timed_out;
    smp_problem variant = *problem;
    variant.tie_together = false;
    bool twice = problem->tie_together && smp_problem_has_ties(problem);
    SMP_TRY(prove_once(&variant, limits, &work, solver, !twice, true, partition));
    double lower_us = (*partition)->lower_bound_us;
    const char *bound = (*partition)->bound;
    timed_out |= (*partition)->timed_out;
    if (twice && !is_closed(lower_us, (*partition)->bottleneck_us))
        SMP_TRY(prove_once(problem, limits, &work, solver, true, false, partition));
    if (!twice && known_us > lower_us * (1.0 + 1e-12)) {
        lower_us = known_us;
        bound = known;
    }
    (*partition)->lower_bound_us = fmin(lower_us, (*partition)->bottleneck_us);
    (*partition)->bound = bound;
    (*partition)->timed_out |= timed_out;
    return SMP_OK;
}

smp_status smp_partition_prove(const smp_problem *problem, smp_partition **partition)
{
    smp__exact_limits limits = {PROVE_WORK, PROVE_BYTES, problem->deadline_s};
    if (problem->until_deadline && problem->deadline_s > 0.0) {
        limits.work = INT64_MAX / 4;
        limits.bytes = LONG_BYTES;
    }
    return smp__prove(problem, &limits, "exact", partition);
}
