/* By how much each part of a plan falls short: partition, order, recomputation, placement.
 *
 * One part is replaced by the planner's own choice for a plan in which the others stay as they are:
 * it plans again with those fixed (stages as pins, schedule, placement), and of what it finds only
 * that part is taken. For the placement all ways to give the ranks to the devices are tried, or
 * single exchanges of many. The version so made is evaluated as the plan was. Of the four the one
 * that saves most is replaced for good, then the next is looked for, until none saves anything: so
 * the savings add up to what the last version is faster by. What the best plan of the same numbers
 * is faster still, it takes several parts at once to save. At most nine plans of one configuration,
 * none where an earlier plan of this check answers it (check_plans.c), or where the best of all
 * takes no less. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/check/check_build.h"
#include "schedule/lower/lower.h"

enum { ALL_ORDERS = 5 /* ranks of which every order is tried */, MOST_RANKS = 16 };
#define WORTH 1e-6 /* of the time: rounding is no saving */

/* A plan in its parts, owned. */
typedef struct version {
    smp_partition *partition; /* which ops make up a stage, and what recomputes */
    smp_program *order;       /* [pipeline] compute actions */
    int *rank;                /* [n_stage] */
    smp_placement placement;
    double us; /* INFINITY: cannot be, or does not fit */
} version;

typedef struct parts {
    smp_given_plan given;
    smp__check_build *b;
    version now;
    double samples; /* that `us` of a version is for */
} parts;

const char *smp_check_part_name(smp_check_part_kind kind)
{
    static const char *const names[SMP_N_PART] = {"partition", "order", "recompute", "placement",
                                                  "together"};
    return names[kind];
}

static void free_order(smp_program *order, int n)
{
    for (int r = 0; order && r < n; r++)
        smp_program_free(&order[r]);
    free(order);
}

static void free_version(const parts *p, version *v)
{
    smp_partition_destroy(v->partition);
    free_order(v->order, p->b->shape.pipeline);
    free(v->rank);
    *v = (version){0};
}

/* What ranks compute in programs, rank r's as that of to[r] (NULL: of r). */
static smp_status copy_order(const smp_program *program, int n, const int *to, smp_program **out)
{
    smp_program *order = calloc((size_t)n, sizeof *order);
    smp_status status = order ? SMP_OK : smp_fail_memory((size_t)n * sizeof *order);
    for (int r = 0; status == SMP_OK && r < n; r++)
        for (int64_t i = 0; status == SMP_OK && i < program[r].n; i++) {
            const smp_action *a = &program[r].action[i];
            if (smp_action_is_compute(a->kind))
                status = smp_program_push(&order[to ? to[r] : r], a->kind, a->microbatch, a->chunk);
        }
    if (status == SMP_OK)
        *out = order;
    else
        free_order(order, n);
    return status;
}

/* Stages and what recomputes in them, on the devices of a version. */
static smp_status state(parts *p, const version *v, const int32_t *stage, const bool *recompute,
                        smp_partition **out)
{
    smp_problem problem;
    SMP_TRY(smp_given_plan_place(&p->given, v->placement, p->b->request.device, v->rank));
    SMP_TRY(smp_given_plan_problem(&p->given, &problem));
    problem.recomputes = recompute;
    return smp_partition_evaluate(&problem, stage, out);
}

/* A copy of the version as it is now, with other stages, recomputation, order. */
static smp_status make_version(parts *p, const int32_t *stage, const bool *recompute,
                               const smp_program *order, version *out)
{
    const version *now = &p->now;
    size_t n = (size_t)now->partition->n_stage;
    version v = {.placement = now->placement, .rank = calloc(n, sizeof *v.rank)};
    if (!v.rank)
        return smp_fail_memory(n * sizeof *v.rank);
    memcpy(v.rank, now->rank, n * sizeof *v.rank);
    smp_status status = copy_order(order, p->b->shape.pipeline, NULL, &v.order);
    if (status == SMP_OK)
        status = state(p, &v, stage, recompute, &v.partition);
    if (status == SMP_OK)
        *out = v;
    else
        free_version(p, &v);
    return status;
}

/* Evaluates it as the plan was. */
static smp_status judge_version(parts *p, version *v)
{
    const smp__check_build *b = p->b;
    smp__planner *planner = &p->given.planner;
    smp__evaluation evaluation;
    int tight_rank;
    SMP_TRY(smp_given_plan_place(&p->given, v->placement, p->b->request.device, v->rank));
    const smp_candidate candidate =
        smp_given_plan_candidate(&p->given, v->partition, b->offload, b->horizon);
    smp_program *program = SMP_ARENA_NEW(b->arena, smp_program, (size_t)b->shape.pipeline);
    if (!program)
        return SMP_ERR_NO_MEMORY;
    v->us = INFINITY;
    SMP_TRY(smp__planner_hold(planner, v->partition, b->offload));
    const smp_schedule_shape shape = smp__held_shape(planner, &candidate);
    smp_status status = smp_lower_orders(&shape, v->rank, planner->held.flow, v->order, program);
    if (status == SMP_ERR_FAILED) /* an order that these ranks cannot have */
        return SMP_OK;
    if (status == SMP_OK)
        status = smp_plan_evaluate(&p->given, &candidate, program, false, &evaluation);
    for (int r = 0; r < b->shape.pipeline; r++)
        smp_program_free(&program[r]);
    SMP_TRY(status);
    if (smp__planner_room(planner, &candidate, evaluation.peak_bytes, &tight_rank) >= 0)
        v->us = b->request.options.objective == SMP_OBJECTIVE_BOTTLENECK
                    ? v->partition->bottleneck_us
                    : evaluation.simulation->step_us;
    smp__evaluation_free(&evaluation);
    return SMP_OK;
}

/* Judges a version, which it takes over, and keeps it if it is the faster. */
static smp_status offer(parts *p, version *v, version *best)
{
    smp_status status = judge_version(p, v);
    if (status == SMP_OK && v->us < best->us) {
        version worse = *best;
        *best = *v;
        *v = worse;
    }
    free_version(p, v);
    return status;
}

/* The same numbers and placement, in the schedule of the plan if that is a rule. */
static smp_search_request same_numbers(const parts *p)
{
    const smp__check_build *b = p->b;
    smp_search_request r = b->request;
    r.advise = false;
    r.options.stages = b->shape.pipeline;
    r.options.chunks = b->shape.chunks;
    r.options.microbatches = b->shape.microbatches;
    r.options.schedule = b->kind->any_placement ? NULL : b->kind->name;
    r.placement = p->now.placement;
    return r;
}

/* *out NULL: nothing fits, such as stages that tear apart what the planner keeps together. */
static smp_status plan(parts *p, const smp_search_request *request, const smp__planned **out)
{
    SMP_TRY(smp__check_plan(p->b, request, true, out));
    if (*out ? (*out)->timed_out : smp_work_past(request->deadline_s))
        p->b->out->parts_timed_out = true;
    return SMP_OK;
}

static smp_status offer_stages(parts *p, const int32_t *stage, version *best)
{
    version v;
    SMP_TRY(make_version(p, stage, p->now.partition->recompute, p->now.order, &v));
    return offer(p, &v, best);
}

/* Those of the best plan of the same numbers, and of that with the same treatment of
 * recomputation. */
static smp_status replace_partition(parts *p, version *best)
{
    const smp__planned *same = p->b->same, *planned;
    smp_search_request r = same_numbers(p);
    if (same)
        SMP_TRY(offer_stages(p, same->stage, best));
    r.options.recompute = smp__check_treatment(p->now.partition);
    SMP_TRY(plan(p, &r, &planned));
    return planned && planned != same ? offer_stages(p, planned->stage, best) : SMP_OK;
}

static smp_status replace_recompute(parts *p, version *best)
{
    const int32_t *stage = p->now.partition->stage;
    smp_search_request r = same_numbers(p);
    const smp__planned *planned;
    version v;
    if (!r.graph->training)
        return SMP_OK;
    r.pin = stage;
    r.options.recompute = SMP_RECOMPUTE_AUTO;
    SMP_TRY(plan(p, &r, &planned));
    if (!planned)
        return SMP_OK;
    SMP_TRY(make_version(p, stage, planned->recompute, p->now.order, &v));
    return offer(p, &v, best);
}

/* to[rank of a stage in the plan] = its rank here. False: stages that share a rank there do not
 * here. */
static bool match_ranks(const smp_plan *plan, const int *rank, int *to)
{
    for (int s = 0; s < plan->n_stage; s++)
        to[plan->stage[s].rank] = rank[s];
    for (int s = 0; s < plan->n_stage; s++)
        if (to[plan->stage[s].rank] != rank[s])
            return false;
    return true;
}

/* Any rule, or one of its own. The slowest rank is that in any order. */
static smp_status replace_order(parts *p, version *best)
{
    const smp_partition *now = p->now.partition;
    int n = p->b->shape.pipeline;
    smp_search_request r = same_numbers(p);
    const smp__planned *planned;
    smp_program *order;
    version v;
    int *to = SMP_ARENA_NEW(p->b->arena, int, (size_t)n);
    if (!to)
        return SMP_ERR_NO_MEMORY;
    if (r.options.objective == SMP_OBJECTIVE_BOTTLENECK)
        return SMP_OK;
    r.pin = now->stage;
    r.options.schedule = NULL;
    r.options.active_microbatches = 0;
    SMP_TRY(plan(p, &r, &planned));
    if (!planned || !match_ranks(planned->plan, p->now.rank, to))
        return SMP_OK;
    SMP_TRY(copy_order(planned->plan->program, n, to, &order));
    smp_status status = make_version(p, now->stage, now->recompute, order, &v);
    free_order(order, n);
    return status == SMP_OK ? offer(p, &v, best) : status;
}

static bool is_late(const parts *p)
{
    bool late = smp_work_past(p->b->request.deadline_s);
    p->b->out->parts_timed_out |= late;
    return late;
}

/* What rank r does, rank to[r] does. */
static smp_status offer_ranks(parts *p, smp_placement placement, const int *to, version *best)
{
    version v;
    const smp_partition *now = p->now.partition;
    if (is_late(p))
        return SMP_OK;
    SMP_TRY(make_version(p, now->stage, now->recompute, p->now.order, &v));
    v.placement = placement;
    for (int s = 0; s < now->n_stage; s++)
        v.rank[s] = to[p->now.rank[s]];
    free_order(v.order, p->b->shape.pipeline);
    v.order = NULL;
    smp_partition_destroy(v.partition);
    v.partition = NULL;
    smp_status status = copy_order(p->now.order, p->b->shape.pipeline, to, &v.order);
    if (status == SMP_OK)
        status = state(p, &v, now->stage, now->recompute, &v.partition);
    if (status == SMP_OK)
        return offer(p, &v, best);
    free_version(p, &v);
    return status;
}

/* All orders of ranks from `i` on. */
static smp_status permute(parts *p, smp_placement placement, int *to, int i, version *best)
{
    int n = p->b->shape.pipeline;
    if (i == n)
        return offer_ranks(p, placement, to, best);
    for (int k = i; k < n; k++) {
        int kept = to[i];
        to[i] = to[k];
        to[k] = kept;
        SMP_TRY(permute(p, placement, to, i + 1, best));
        to[k] = to[i];
        to[i] = kept;
    }
    return SMP_OK;
}

static smp_status exchange_two(parts *p, smp_placement placement, int *to, version *best)
{
    int n = p->b->shape.pipeline;
    SMP_TRY(offer_ranks(p, placement, to, best));
    for (int a = 0; a < n && n <= MOST_RANKS; a++)
        for (int b = a + 1; b < n; b++) {
            to[a] = b;
            to[b] = a;
            SMP_TRY(offer_ranks(p, placement, to, best));
            to[a] = a;
            to[b] = b;
        }
    return SMP_OK;
}

static smp_status replace_placement(parts *p, version *best)
{
    int n = p->b->shape.pipeline;
    int *to = SMP_ARENA_NEW(p->b->arena, int, (size_t)n);
    if (!to)
        return SMP_ERR_NO_MEMORY;
    if (!smp__check_devices_differ(p->b->request.cluster))
        return SMP_OK;
    const smp_placement placements[] = {SMP_PLACEMENT_CLUSTER, SMP_PLACEMENT_SPREAD,
                                        SMP_PLACEMENT_LISTED};
    int n_placement = p->b->request.placement == SMP_PLACEMENT_LISTED ? 3 : 2;
    for (int i = 0; i < n_placement; i++) {
        for (int r = 0; r < n; r++)
            to[r] = r;
        if (n <= ALL_ORDERS)
            SMP_TRY(permute(p, placements[i], to, 0, best));
        else
            SMP_TRY(exchange_two(p, placements[i], to, best));
    }
    return SMP_OK;
}

/* The plan itself; only its order is written down anew, from what ranks compute. */
static smp_status open_parts(parts *p)
{
    smp__check_build *b = p->b;
    const smp_partition *partition = b->out->partition;
    size_t n = (size_t)partition->n_stage;
    version *now = &p->now;
    SMP_TRY(smp_given_plan_open(&b->request, b->kind, &b->shape, b->arena, &p->given));
    now->placement = b->request.placement;
    now->rank = calloc(n, sizeof *now->rank);
    if (!now->rank)
        return smp_fail_memory(n * sizeof *now->rank);
    memcpy(now->rank, b->rank, n * sizeof *now->rank);
    SMP_TRY(copy_order(b->out->plan->program, b->shape.pipeline, NULL, &now->order));
    SMP_TRY(state(p, now, partition->stage, partition->recompute, &now->partition));
    now->us = b->request.options.objective == SMP_OBJECTIVE_BOTTLENECK
                  ? partition->bottleneck_us
                  : b->out->plan->predicted.step_us;
    p->samples = b->out->time_us > 0.0 ? now->us / b->out->time_us : 0.0;
    return SMP_OK;
}

/* What the best plan of the same numbers is faster by; 0 where a part that was cut short may save
 * it. */
static double left_us(const parts *p)
{
    const smp_check *out = p->b->out;
    double us = p->now.us - out->same.time_us * p->samples;
    return out->same.plan && !out->parts_timed_out && us > WORTH * p->now.us ? us : 0.0;
}

/* Does no plan that the search for the best of all looked at take less? */
static bool is_best(const parts *p)
{
    const smp_search_request *r = &p->b->request;
    const smp__planned *any = p->b->any;
    return any && !any->timed_out && r->options.recompute == SMP_RECOMPUTE_AUTO &&
           r->options.active_microbatches == 0 && left_us(p) == 0.0 &&
           p->now.us * (1.0 - WORTH) <= any->least_us * p->samples;
}

/* The part that saves most now, which is replaced; SMP_N_PART: none saves anything. */
static smp_status replace_one(parts *p, const bool *done, smp_check_part_kind *which)
{
    static smp_status (*const replace[SMP_PART_TOGETHER])(parts *, version *) = {
        replace_partition, replace_order, replace_recompute, replace_placement};
    version best = {.us = p->now.us * (1.0 - WORTH)};
    smp_status status = SMP_OK;
    *which = SMP_N_PART;
    for (int k = 0; k < SMP_PART_TOGETHER && status == SMP_OK; k++) {
        double us = best.us;
        if (done[k])
            continue;
        if (is_late(p))
            break;
        status = replace[k](p, &best);
        if (best.us < us)
            *which = (smp_check_part_kind)k;
    }
    if (status == SMP_OK && *which < SMP_N_PART) {
        version worse = p->now;
        p->now = best;
        best = worse;
    }
    free_version(p, &best);
    return status;
}

static void add_part(smp_check *out, smp_check_part_kind kind, double saved_us, double of_us)
{
    out->part[out->n_part++] = (smp_check_part){
        .kind = kind, .saved_us = saved_us, .share = saved_us > 0.0 ? saved_us / of_us : 0.0};
}

static smp_status replace_all(parts *p)
{
    smp_check *out = p->b->out;
    bool done[SMP_PART_TOGETHER] = {false};
    double first_us = p->now.us;
    while (out->n_part < SMP_PART_TOGETHER && !is_best(p)) {
        double us = p->now.us;
        smp_check_part_kind which;
        SMP_TRY(replace_one(p, done, &which));
        if (which == SMP_N_PART)
            break;
        done[which] = true;
        add_part(out, which, us - p->now.us, first_us);
    }
    for (int k = 0; k < SMP_PART_TOGETHER; k++)
        if (!done[k])
            add_part(out, (smp_check_part_kind)k, 0.0, first_us);
    add_part(out, SMP_PART_TOGETHER, left_us(p), first_us);
    return SMP_OK;
}

static int by_saving(const void *left, const void *right)
{
    const smp_check_part *a = left, *b = right;
    int order = (a->saved_us < b->saved_us) - (a->saved_us > b->saved_us);
    return order ? order : (int)a->kind - (int)b->kind;
}

smp_status smp__check_parts(smp__check_build *b)
{
    parts p = {.b = b};
    smp_status status = open_parts(&p);
    if (status == SMP_OK)
        status = replace_all(&p);
    if (status == SMP_OK)
        qsort(b->out->part, SMP_N_PART, sizeof b->out->part[0], by_saving);
    free_version(&p, &p.now);
    smp_given_plan_close(&p.given);
    return status;
}
