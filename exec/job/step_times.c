/* Times by cause: exec/job/step_times.h. Linear in the actions of a step. */
#include "exec/job/step_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "exec/state/handle.h"
#include "exec/offload/stash_copies.h"
#include "exec/state/device_wait.h"
#include "exec/step/cost_samples.h"
#include "exec/step/gather.h"
#include "exec/group/op_group.h"
#include "schedule/simulate/simulate.h"

enum { COLD_STEPS = 2 };

smp_status smp__step_times_open(const smp *s, smp__step_times *times)
{
    const size_t peers = 2 * (size_t)s->comm->pipeline_size,
                 world = 2 * (size_t)s->comm->world_size;
    *times = (smp__step_times){.peer_us = calloc(peers, sizeof(double)),
                               .all = calloc(world, sizeof(double))};
    return times->peer_us && times->all ? SMP_OK
                                        : smp_fail_memory((peers + world) * sizeof(double));
}

void smp__step_times_close(smp__step_times *times)
{
    free(times->peer_us);
    free(times->all);
}

static bool computes(smp_action_kind kind)
{
    return kind == SMP_ACTION_F || kind == SMP_ACTION_B || kind == SMP_ACTION_I ||
           kind == SMP_ACTION_W;
}

static bool reduces(smp_action_kind kind)
{
    return kind == SMP_ACTION_REDUCE || kind == SMP_ACTION_ALL || kind == SMP_ACTION_GATHER;
}

/* The message that an action waited for longest: when it came; the device of a GPU waits by itself,
 * until the action begins. *peer: who sent it, -1: nothing comes in. */
static double last_arrival_us(const smp *s, const smp_trace_event *e, int *peer)
{
    const smp_transfer_kind kind = e->action.kind == SMP_ACTION_F ? SMP_TRANSFER_F : SMP_TRANSFER_B;
    const smp__chunk *chunk = &s->work->chunk[e->action.chunk];
    double last_us = 0.0;
    *peer = -1;
    for (int i = 0; i < chunk->n_channel && e->action.kind != SMP_ACTION_W; i++) {
        const smp__channel *c = &chunk->channel[i];
        if (c->outgoing || s->work->flow->transfer[c->transfer].kind != kind)
            continue;
        const double us =
            s->endpoint->transport->on_device ? e->start_us : c->arrived_us[e->action.microbatch];
        if (*peer < 0 || us > last_us) {
            last_us = us;
            *peer = c->peer;
        }
    }
    return last_us;
}

static double spent_us(const smp *s, smp__spent on)
{
    return 1e6 * smp__spent_s(s->record, on);
}

typedef struct split {
    double us[SMP_TIME_N_CAUSES];
    double *peer_us;
} split;

/* What is between two actions, of which the second is at a position. Messages are waited for
 * first, then copies to and from host memory, then gathers. */
static void add_gap(const smp *s, const smp_trace_event *e, int64_t position, double from_us,
                    split *t)
{
    const double gap_us = fmax(e->start_us - from_us, 0.0);
    int peer;
    const double came_us = last_arrival_us(s, e, &peer);
    const double waited_us = peer < 0 ? 0.0 : fmin(fmax(came_us - from_us, 0.0), gap_us);
    const bool gathers = smp__gathers(s, e->action.chunk);
    t->us[SMP_TIME_MESSAGES] += waited_us;
    if (peer >= 0)
        t->peer_us[peer] += waited_us;
    const double ready_us =
        fmin(fmax(smp__stash_copies_ready_us(s, position) - from_us, 0.0), gap_us);
    const double travel_us = fmax(ready_us - waited_us, 0.0);
    t->us[SMP_TIME_OFFLOAD] += travel_us;
    t->us[gathers ? SMP_TIME_SUMS : SMP_TIME_REST] += gap_us - waited_us - travel_us;
}

/* Before the optimizer: sums that are still under way, the norm, then the other ranks. */
static void add_end(const smp *s, double from_us, double sums_us, double begin_us, split *t)
{
    const double gap_us = fmax(begin_us - from_us, 0.0);
    const double sums = fmin(fmax(sums_us - from_us, 0.0), gap_us);
    const double norm = fmin(spent_us(s, SMP__SPENT_NORM), gap_us - sums);
    t->us[SMP_TIME_SUMS] += sums;
    t->us[SMP_TIME_OPTIMIZER] += norm;
    t->us[SMP_TIME_END] += gap_us - sums - norm;
}

/* No more than is there. */
static double take_time(split *t, smp_time_cause from, smp_time_cause to, double us)
{
    const double moved_us = fmin(us, fmax(t->us[from], 0.0));
    t->us[from] -= moved_us;
    t->us[to] += moved_us;
    return us - moved_us;
}

/* Out of the actions that they are in, or what is between these. */
static void move_inner(const smp *s, split *t)
{
    const double forward = spent_us(s, SMP__SPENT_GROUP_FORWARD),
                 backward = spent_us(s, SMP__SPENT_GROUP_BACKWARD);
    const double joint = spent_us(s, SMP__SPENT_JOINT_FORWARD),
                 joint_back = spent_us(s, SMP__SPENT_JOINT_OTHER);
    const double again = spent_us(s, SMP__SPENT_RECOMPUTE);
    t->us[SMP_TIME_FORWARD] -= forward + joint;
    t->us[SMP_TIME_BACKWARD] -= backward + joint_back + again;
    t->us[SMP_TIME_RECOMPUTE] += again;
    t->us[SMP_TIME_GROUP] += forward + backward;
    t->us[SMP_TIME_SUMS] += joint + joint_back;
    (void)take_time(t, SMP_TIME_REST, SMP_TIME_MESSAGES, spent_us(s, SMP__SPENT_SENDS));
    (void)take_time(t, SMP_TIME_FORWARD, SMP_TIME_OFFLOAD, spent_us(s, SMP__SPENT_UPDATE_FORWARD));
    (void)take_time(t, SMP_TIME_SUMS, SMP_TIME_OFFLOAD, spent_us(s, SMP__SPENT_UPDATE_OTHER));
    const double left_us =
        take_time(t, SMP_TIME_END, SMP_TIME_GROUP, spent_us(s, SMP__SPENT_GROUP_OTHER));
    (void)take_time(t, SMP_TIME_REST, SMP_TIME_GROUP, left_us);
}

static void split_step(const smp *s, double step_us, double data_us, split *t)
{
    double at_us = 0.0, sums_us = 0.0, all_us = 0.0;
    smp_trace_event *event;
    const int64_t n = smp__record_events(s->record, &event);
    for (int64_t i = 0; i < n; i++) {
        const smp_trace_event *e = &event[i];
        const smp_action_kind kind = e->action.kind;
        if (reduces(kind))
            sums_us = fmax(sums_us, e->end_us);
        if (kind == SMP_ACTION_OPTIMIZE)
            add_end(s, at_us, sums_us, e->start_us, t);
        else if (!computes(kind))
            continue;
        else
            add_gap(s, e, i, at_us, t);
        t->us[kind == SMP_ACTION_OPTIMIZE ? SMP_TIME_OPTIMIZER
              : kind == SMP_ACTION_F      ? SMP_TIME_FORWARD
                                          : SMP_TIME_BACKWARD] += e->end_us - e->start_us;
        at_us = fmax(at_us, e->end_us);
    }
    move_inner(s, t);
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        all_us += t->us[i];
    t->us[SMP_TIME_REST] += fmax(step_us - all_us, 0.0); /* sums of losses, for the line printed */
    t->us[SMP_TIME_DATA] = data_us;
}

static double resident_bytes(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    return 1024.0 * (double)usage.ru_maxrss;
}

static double working_us(const double *us)
{
    return us[SMP_TIME_FORWARD] + us[SMP_TIME_BACKWARD] + us[SMP_TIME_RECOMPUTE] +
           us[SMP_TIME_OPTIMIZER];
}

/* What one row of a log tells of all ranks. */
static smp_status share_step(smp *s, smp__step_times *times, double step_us, const double *us)
{
    const int world = s->comm->world_size;
    double busy_us = 0.0, most = 0.0;
    memset(times->all, 0, 2 * (size_t)world * sizeof(double));
    times->all[2 * s->comm->world_rank] = working_us(us);
    times->all[2 * s->comm->world_rank + 1] = resident_bytes();
    SMP_TRY(smp__comm_sum(s->comm, times->all, 2 * world));
    for (int rank = 0; rank < world; rank++) {
        busy_us += times->all[2 * rank];
        most = fmax(most, times->all[2 * rank + 1]);
    }
    times->last_bubble = fmax(1.0 - busy_us / (step_us * world), 0.0);
    times->last_resident_bytes = most;
    return SMP_OK;
}

smp_status smp__step_times_add(smp *s, smp__step_times *times, double step_us, double data_us)
{
    SMP_TRY(smp__comm_agree(s->comm, smp__trace_collect(s)));
    const int cold = times->n_step++ < COLD_STEPS ? 0 : 1;
    split t = {.peer_us = times->peer_us + cold * s->comm->pipeline_size};
    split_step(s, step_us, data_us, &t);
    times->n[cold]++;
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        times->us[cold][i] += t.us[i];
    return share_step(s, times, step_us, t.us);
}

/* Numbers of a rank as they travel. */
enum {
    PIPELINE_RANK = SMP_TIME_N_CAUSES,
    REPLICA,
    PEER,
    PEER_US,
    ARENA_BYTES,
    RESIDENT_BYTES,
    NUMBERS
};

static void fill_own(const smp *s, const smp__step_times *times, double *own)
{
    const int kind = times->n[1] > 0;
    const double n = times->n[kind] > 0 ? (double)times->n[kind] : 1.0;
    const double *peer_us = times->peer_us + kind * s->comm->pipeline_size;
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        own[i] = times->us[kind][i] / n;
    own[PIPELINE_RANK] = s->comm->pipeline_rank;
    own[REPLICA] = s->comm->replica;
    own[PEER] = -1.0;
    for (int rank = 0; rank < s->comm->pipeline_size; rank++)
        if (peer_us[rank] / n > own[PEER_US]) {
            own[PEER] = rank;
            own[PEER_US] = peer_us[rank] / n;
        }
    own[ARENA_BYTES] = (double)s->memory->arena_bytes;
    own[RESIDENT_BYTES] = resident_bytes();
}

/* What the devices of the rank's group exchange in an action. */
static double exchange_us_of(const smp_plan *plan, int rank, const smp_action *action)
{
    if (!computes(action->kind) || action->kind == SMP_ACTION_W)
        return 0.0;
    const smp_plan_stage *stage = &plan->stage[smp_plan_stage_of(plan, rank, action->chunk)];
    return action->kind == SMP_ACTION_F ? stage->forward_exchange_us : stage->backward_exchange_us;
}

static void predict(const smp *s, const smp_simulation *m, int rank, smp_rank_time *t)
{
    double *us = t->predicted_us;
    t->has_predicted = true;
    for (int64_t i = 0; i < s->plan->program[rank].n; i++) {
        const smp_action_kind kind = s->plan->program[rank].action[i].kind;
        const double took_us = m->end_us[rank][i] - m->start_us[rank][i];
        const double exchange_us = exchange_us_of(s->plan, rank, &s->plan->program[rank].action[i]);
        us[SMP_TIME_GROUP] += exchange_us;
        if (kind == SMP_ACTION_F)
            us[SMP_TIME_FORWARD] += took_us - exchange_us;
        else if (kind == SMP_ACTION_OPTIMIZE)
            us[SMP_TIME_OPTIMIZER] += took_us;
        else if (computes(kind))
            us[SMP_TIME_BACKWARD] += took_us - exchange_us;
    }
    us[SMP_TIME_FORWARD] -= m->late_us[rank];
    us[SMP_TIME_OFFLOAD] = m->offload_us[rank];
    us[SMP_TIME_SUMS] = m->reduction_us[rank];
    us[SMP_TIME_MESSAGES] =
        m->warmup_us[rank] + m->drain_us[rank] + m->transfer_us[rank] + m->imbalance_us[rank];
}

smp_status smp__step_times_predict(const smp *s, bool full_speed, double **out)
{
    double *work_us = calloc((size_t)s->comm->world_size, sizeof(*work_us));
    smp_simulated_plan simulated = {0};
    smp_status status = work_us ? SMP_OK : smp_fail_memory((size_t)s->comm->world_size * 8);
    *out = NULL;
    if (status == SMP_OK && s->plan->cluster)
        status = full_speed ? smp_simulated_plan_open_at(s->plan, s->graph, NULL, &simulated)
                            : smp_simulated_plan_open(s->plan, s->graph, &simulated);
    bool all = status == SMP_OK && simulated.simulation;
    for (int rank = 0; all && rank < s->comm->pipeline_size; rank++) {
        smp_rank_time t = {0};
        predict(s, simulated.simulation, rank, &t);
        all = working_us(t.predicted_us) > 0.0;
        for (int replica = 0; replica < s->comm->ddp_size; replica++)
            for (int i = 0; i < smp_plan_rank_tensor(s->plan, rank); i++)
                work_us[smp_plan_first_process(s->plan, replica, rank) + i] =
                    working_us(t.predicted_us);
    }
    smp_simulated_plan_close(&simulated);
    if (all)
        *out = work_us;
    else
        free(work_us);
    return status;
}

/* Names the replica that works longest, by its busiest rank, among those that wait for each other.
 */
static void name_slow_replica(const smp *s, smp_rank_time *rank)
{
    enum { ALIKE_PERCENT = 5 };
    double slowest_us = 0.0, own_us;
    int slowest = -1;
    for (int i = 0; i < s->comm->world_size; i++)
        if (working_us(rank[i].us) > slowest_us) {
            slowest_us = working_us(rank[i].us);
            slowest = rank[i].replica;
        }
    for (int i = 0; i < s->comm->world_size; i++) {
        own_us = 0.0;
        for (int k = 0; k < s->comm->world_size; k++)
            if (rank[k].replica == rank[i].replica)
                own_us = fmax(own_us, working_us(rank[k].us));
        const bool waits = 100.0 * slowest_us > (100 + ALIKE_PERCENT) * own_us;
        rank[i].slow_replica = waits ? slowest : -1;
        rank[i].slow_us = waits ? rank[i].us[SMP_TIME_SUMS] + rank[i].us[SMP_TIME_END] : 0.0;
    }
}

smp_status smp__step_times_collect(smp *s, const smp__step_times *times, smp_rank_time **out)
{
    const int world = s->comm->world_size;
    double *all = calloc((size_t)world * NUMBERS, sizeof(*all));
    smp_rank_time *rank = calloc((size_t)world, sizeof(*rank));
    smp_simulated_plan simulated = {0};
    smp_status status = all && rank ? SMP_OK : smp_fail_memory((size_t)world * sizeof(*rank));
    if (status == SMP_OK && s->plan->cluster)
        status = smp_simulated_plan_open(s->plan, s->graph, &simulated);
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK) {
        fill_own(s, times, all + (size_t)s->comm->world_rank * NUMBERS);
        status = smp__comm_sum(s->comm, all, world * NUMBERS);
    }
    for (int i = 0; i < world && status == SMP_OK; i++) {
        const double *from = all + (size_t)i * NUMBERS;
        memcpy(rank[i].us, from, sizeof(rank[i].us));
        rank[i].pipeline_rank = (int)from[PIPELINE_RANK];
        rank[i].replica = (int)from[REPLICA];
        rank[i].peer = (int)from[PEER];
        rank[i].peer_us = from[PEER_US];
        if (s->plan->predicted.peak_bytes)
            rank[i].predicted_bytes = s->plan->predicted.peak_bytes[rank[i].pipeline_rank];
        rank[i].arena_bytes = (int64_t)from[ARENA_BYTES];
        rank[i].resident_bytes = (int64_t)from[RESIDENT_BYTES];
        if (simulated.simulation)
            predict(s, simulated.simulation, rank[i].pipeline_rank, &rank[i]);
    }
    if (status == SMP_OK)
        name_slow_replica(s, rank);
    smp_simulated_plan_close(&simulated);
    if (!s->comm->failed) /* MPI may still add to it */
        free(all);
    if (status != SMP_OK)
        free(rank);
    else
        *out = rank;
    return status;
}
