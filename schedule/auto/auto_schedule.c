/* See auto_schedule.h. The list scheduler's model of time is the simulator's with overlapping
 * transfers and a core for every rank. Where that does not hold (transfers that occupy the ranks
 * are added to their actions; shared cores are left out), its order is still judged by the
 * simulator against the rules. */
#include "schedule/auto/auto_schedule.h"

#include <stdlib.h>

#include "schedule/lower/lower.h"
#include "schedule/simulate/simulate_state.h"
#include "schedule/simulate/update_price.h"

enum { N_ACTIVE = 4 };

typedef struct candidate {
    smp_program *program; /* [pipeline] lowered */
    double step_us;
    bool exists;
} candidate;

typedef struct autos {
    const smp_auto_input *input;
    smp_arena *arena;
    smp__crossing crossing;
    int n_rank, n_stage;
    smp_program *starts; /* [n_start * n_rank] compute orders of the rules */
    int n_start;
    candidate best, trial;
    int replica;   /* that the list scheduler's model is of: the slowest in the best candidate */
    double *times; /* [4 * n_stage] forward, input, weight, stash */
    bool *travels; /* [n_stage] whether something of it does; NULL: of none */
} autos;

static const smp_simulation_input *simulation(const autos *a)
{
    return &a->input->simulation;
}

static void free_programs(smp_program *program, int n)
{
    for (int i = 0; program && i < n; i++)
        smp_program_free(&program[i]);
}

static smp_schedule_shape shape_of(const autos *a, int active)
{
    const smp_simulation_input *s = simulation(a);
    return (smp_schedule_shape){.pipeline = s->pipeline,
                                .chunks = s->chunks,
                                .microbatches = s->microbatches,
                                .training = true,
                                .active = active,
                                .sharding = s->sharding,
                                .offloading = {s->horizon, a->travels}};
}

/* Most stash bytes of an order at a time. */
static int64_t peak_bytes(const autos *a, int rank, const smp_program *order)
{
    int64_t bytes = 0, peak = 0;
    for (int64_t i = 0; i < order->n; i++) {
        const smp_action *action = &order->action[i];
        int64_t stage = a->crossing.stage_of[(int64_t)rank * a->crossing.chunks + action->chunk];
        int64_t stash = a->input->stash_bytes[stage];
        if (action->kind == SMP_ACTION_F)
            bytes += stash;
        peak = bytes > peak ? bytes : peak;
        if (action->kind == SMP_ACTION_B || action->kind == SMP_ACTION_W)
            bytes -= stash;
    }
    return peak;
}

static bool within_limits(const autos *a, const smp_program *orders)
{
    for (int rank = 0; a->input->limit_bytes && rank < a->n_rank; rank++)
        if (peak_bytes(a, rank, &orders[rank]) > a->input->limit_bytes[rank])
            return false;
    return true;
}

/* Lowers and simulates orders into a->trial, and keeps it if it fits and is faster than the
 * best. */
static smp_status judge_orders(autos *a, const smp_program *orders, bool *better)
{
    smp_schedule_shape shape = shape_of(a, 0);
    smp_simulation_input input = *simulation(a);
    smp_simulation *s = NULL;
    bool fits = true;
    *better = false;
    SMP_TRY(smp_lower_orders(&shape, input.stage_rank, input.flow, orders, a->trial.program));
    input.program = a->trial.program;
    smp_status status = smp_simulate(&input, &s);
    if (status == SMP_OK && a->input->fits)
        status = a->input->fits(a->input->context, a->trial.program, &fits);
    if (status == SMP_OK && fits && (!a->best.exists || s->step_us < a->best.step_us)) {
        candidate best = a->best;
        a->best = a->trial;
        a->trial = best;
        a->best.step_us = s->step_us;
        a->best.exists = *better = true;
        a->replica = s->replica;
    }
    free_programs(a->trial.program, a->n_rank);
    smp_simulation_destroy(s);
    return status;
}

static bool places_so(const autos *a, const smp_schedule_kind *kind,
                      const smp_schedule_shape *shape)
{
    for (int stage = 0; stage < a->n_stage; stage++)
        if (smp_schedule_stage_rank(kind, shape, stage) != simulation(a)->stage_rank[stage])
            return false;
    return true;
}

/* A rule with a bound, if its orders are other than those of the bounds before. */
static smp_status try_rule(autos *a, const smp_schedule_kind *kind, int active,
                           smp_auto_result *result)
{
    smp_schedule_shape shape = shape_of(a, active);
    smp_program *orders = &a->starts[(int64_t)a->n_start * a->n_rank];
    bool better = false;
    if (!places_so(a, kind, &shape))
        return SMP_OK;
    for (int rank = 0; rank < a->n_rank; rank++)
        SMP_TRY(kind->order(&shape, rank, &orders[rank]));
    if (!within_limits(a, orders)) {
        free_programs(orders, a->n_rank);
        return SMP_OK;
    }
    a->n_start++;
    SMP_TRY(judge_orders(a, orders, &better));
    if (better) {
        result->rule = kind->name;
        result->rule_us = a->best.step_us;
    }
    return SMP_OK;
}

/* Micro-batches that every rank can keep. */
static int most_microbatches(const autos *a)
{
    int64_t most = simulation(a)->microbatches;
    for (int rank = 0; a->input->limit_bytes && rank < a->n_rank; rank++) {
        int64_t bytes = 0;
        for (int c = 0; c < a->crossing.chunks; c++)
            bytes +=
                a->input->stash_bytes[a->crossing.stage_of[(int64_t)rank * a->crossing.chunks + c]];
        if (bytes > 0 && a->input->limit_bytes[rank] / bytes < most)
            most = a->input->limit_bytes[rank] / bytes;
    }
    return (int)most;
}

static smp_status try_rules(autos *a, smp_auto_result *result)
{
    int p = a->n_rank, most = most_microbatches(a);
    const int active[N_ACTIVE] = {0, p, 2 * p - 1, most};
    for (int i = 0; smp_schedules()[i]; i++) {
        const smp_schedule_kind *kind = smp_schedules()[i];
        for (int k = 0; k < N_ACTIVE; k++) {
            smp_schedule_shape shape = shape_of(a, active[k]);
            bool same = k > 0; /* as without a bound, by the only thing that tells */
            smp_schedule_shape plain = shape_of(a, 0);
            if ((k > 0 && active[k] < 1) || smp_schedule_check(kind, &shape) != SMP_OK)
                continue;
            for (int rank = 0; same && rank < p; rank++)
                same = kind->live(&shape, rank) == kind->live(&plain, rank);
            if (!same)
                SMP_TRY(try_rule(a, kind, active[k], result));
        }
    }
    return SMP_OK;
}

/* From the last action of a rank to the end of its step, at least: its shortest reduction that can
 * be the last, unless buckets or groups make it shorter, and the optimizer. Tied weights are left
 * out of both. */
static double tail_us(const autos *a, int rank)
{
    const smp_simulation_input *s = simulation(a);
    const bool whole =
        s->sharding.shard <= 1 && s->sharding.bucket_bytes == 0 && s->sharding.node_replicas == 0;
    double least_us = -1.0;
    int64_t bytes = 0;
    for (int stage = 0; stage < a->n_stage; stage++) {
        if (s->stage_rank[stage] != rank)
            continue;
        int64_t own = s->weight_bytes[stage];
        for (int tie = 0; tie < s->flow->n_tie; tie++)
            for (int32_t i = s->flow->tie[tie].holder_begin; i < s->flow->tie[tie].holder_end; i++)
                if (s->flow->holder[i] == stage)
                    own -=
                        s->graph->param[s->flow->tie[tie].param].elements * (int64_t)sizeof(float);
        double us = whole ? smp__sim_ring_us(s, rank, own) : 0.0;
        if (least_us < 0.0 || us < least_us)
            least_us = us;
        bytes += own > 0 ? own : 0;
    }
    if (smp_updates_beside(s->sharding.offload_states, s->graph->target))
        return least_us;
    return least_us + (double)bytes * smp_update_us_per_byte(s->cluster, s->graph->target,
                                                             s->sharding, s->optimizer_bytes_per_s);
}

/* Times of the list scheduler's model, and of messages. */
static smp_status fill_times(autos *a, double *transfer_us, double *tails_us)
{
    const smp_simulation_input *s = simulation(a);
    double *forward_us = a->times, *input_us = a->times + a->n_stage;
    double *weight_us = a->times + 2 * (int64_t)a->n_stage;
    SMP_TRY(smp__crossing_times(&a->crossing, s->cluster, s->device, s->ddp, &a->replica, 1,
                                a->arena, transfer_us));
    for (int stage = 0; stage < a->n_stage; stage++) {
        int rank = s->stage_rank[stage];
        double share = smp__sim_share(s, a->replica, rank, smp__sim_slowest(s, rank));
        double whole_us = s->backward_us[stage];
        double first_us = smp__sim_input_us(s, stage);
        forward_us[stage] = share * s->forward_us[stage];
        input_us[stage] = share * (first_us + (s->recompute_us ? s->recompute_us[stage] : 0.0));
        weight_us[stage] = share * (whole_us > first_us ? whole_us - first_us : 0.0);
        a->times[3 * (int64_t)a->n_stage + stage] = (double)a->input->stash_bytes[stage];
    }
    for (int32_t i = 0; !s->cluster->overlap && i < s->flow->n_transfer; i++) {
        const smp_transfer *t = &s->flow->transfer[i];
        double *busy_us = t->kind == SMP_TRANSFER_F ? forward_us : input_us;
        busy_us[t->from_stage] += transfer_us[i];
        busy_us[t->to_stage] += transfer_us[i];
        transfer_us[i] = 0.0;
    }
    for (int rank = 0; rank < a->n_rank; rank++)
        tails_us[rank] = tail_us(a, rank);
    return SMP_OK;
}

static smp_status try_list(autos *a, smp_auto_result *result)
{
    const smp_simulation_input *s = simulation(a);
    size_t n_rank = (size_t)a->n_rank;
    double *transfer_us = SMP_ARENA_NEW(a->arena, double, (size_t)s->flow->n_transfer);
    double *tails_us = SMP_ARENA_NEW(a->arena, double, n_rank);
    double *limits = SMP_ARENA_NEW(a->arena, double, n_rank);
    smp_program *orders = SMP_ARENA_NEW(a->arena, smp_program, n_rank);
    if (!transfer_us || !tails_us || !limits || !orders)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(fill_times(a, transfer_us, tails_us));
    for (int rank = 0; a->input->limit_bytes && rank < a->n_rank; rank++)
        limits[rank] = (double)a->input->limit_bytes[rank];
    smp_list_input input = {.pipeline = s->pipeline,
                            .chunks = s->chunks,
                            .microbatches = s->microbatches,
                            .stage_rank = s->stage_rank,
                            .flow = s->flow,
                            .forward_us = a->times,
                            .input_us = a->times + a->n_stage,
                            .weight_us = a->times + 2 * (int64_t)a->n_stage,
                            .transfer_us = transfer_us,
                            .tail_us = tails_us,
                            .stash_bytes = a->times + 3 * (int64_t)a->n_stage,
                            .limit_bytes = a->input->limit_bytes ? limits : NULL,
                            .effort = a->input->effort,
                            .deadline_s = a->input->deadline_s};
    smp_list_result found;
    SMP_TRY(smp_list_schedule(&input, a->starts, a->n_start, orders, &found));
    if (s->cluster->overlap)
        result->lower_bound_us = found.lower_bound_us;
    smp_status status = judge_orders(a, orders, &result->found);
    free_programs(orders, a->n_rank);
    return status;
}

/* Transfers that occupy ranks may overlap with each other: all compute of a rank is what is left
 * of the bound then. */
static double work_bound(const autos *a)
{
    const smp_simulation_input *s = simulation(a);
    double bound_us = 0.0;
    for (int rank = 0; rank < a->n_rank; rank++) {
        double us = tail_us(a, rank);
        for (int stage = 0; stage < a->n_stage; stage++)
            if (s->stage_rank[stage] == rank)
                us += s->microbatches * (s->forward_us[stage] + s->backward_us[stage] +
                                         (s->recompute_us ? s->recompute_us[stage] : 0.0));
        bound_us = us > bound_us ? us : bound_us;
    }
    return bound_us;
}

static smp_status find_travels(autos *a)
{
    const int64_t *bytes = simulation(a)->offload_bytes;
    for (int s = 0; bytes && s < a->n_stage; s++) {
        if (bytes[s] > 0 && !a->travels)
            a->travels = SMP_ARENA_NEW(a->arena, bool, (size_t)a->n_stage);
        if (bytes[s] > 0 && !a->travels)
            return SMP_ERR_NO_MEMORY;
        if (a->travels)
            a->travels[s] = bytes[s] > 0;
    }
    return SMP_OK;
}

static smp_status prepare(autos *a)
{
    const smp_simulation_input *s = simulation(a);
    size_t n_rule = 0, n_rank = (size_t)a->n_rank;
    while (smp_schedules()[n_rule])
        n_rule++;
    a->arena = smp_arena_create();
    if (!a->arena)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__crossing_build(a->arena, s->flow, s->stage_rank, s->pipeline, s->chunks,
                                &a->crossing));
    a->starts = SMP_ARENA_NEW(a->arena, smp_program, (n_rule * N_ACTIVE + 1) * n_rank);
    a->best.program = SMP_ARENA_NEW(a->arena, smp_program, n_rank);
    a->trial.program = SMP_ARENA_NEW(a->arena, smp_program, n_rank);
    SMP_TRY(find_travels(a));
    a->times = SMP_ARENA_NEW(a->arena, double, 4 * (size_t)a->n_stage);
    return a->starts && a->best.program && a->trial.program && a->times ? SMP_OK
                                                                        : SMP_ERR_NO_MEMORY;
}

smp_status smp_auto_schedule(const smp_auto_input *input, smp_program *programs,
                             smp_auto_result *result)
{
    autos a = {.input = input,
               .n_rank = input->simulation.pipeline,
               .n_stage = input->simulation.flow->n_stage};
    smp_auto_result made = {0};
    smp_status status = prepare(&a);
    if (status == SMP_OK)
        status = try_rules(&a, &made);
    if (status == SMP_OK) {
        made.lower_bound_us = work_bound(&a);
        status = try_list(&a, &made);
        if (status == SMP_ERR_NO_FIT && a.best.exists)
            status = SMP_OK;
    }
    if (status == SMP_OK && !a.best.exists)
        status =
            smp_fail(SMP_ERR_NO_FIT,
                     "schedule searched: neither a rule nor an order of its own fits into memory");
    made.step_us = a.best.step_us;
    /* Sums in another order: an order that reaches the bound may seem to undercut it by
     * rounding. */
    if (made.lower_bound_us > made.step_us && made.lower_bound_us < made.step_us * (1.0 + 1e-9))
        made.lower_bound_us = made.step_us;
    for (int rank = 0; status == SMP_OK && rank < a.n_rank; rank++) {
        programs[rank] = a.best.program[rank];
        a.best.program[rank] = (smp_program){0};
    }
    if (status == SMP_OK)
        *result = made;
    free_programs(a.starts, (a.n_start + 1) * a.n_rank);
    free_programs(a.best.program, a.n_rank);
    free_programs(a.trial.program, a.n_rank);
    smp_arena_destroy(a.arena);
    return status;
}
