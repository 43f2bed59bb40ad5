/* Reductions of weight gradients, and gathers of sharded weights. A chunk's untied gradients are
 * reduced over the replicas, in a ring, bucket by bucket, from when all have made those of the
 * bucket in their last backward, or else have reached R; sharded, over those of a group, and from A
 * on each part over the groups. A chunk is gathered from when all have reached G.
 * A weight tied across stages is exchanged between its holders from when all of them have reached
 * R, every holder sending the accumulators of its uses to every other, and then reduced by itself.
 * A rank has one channel: its reductions go one after the other in the order in which they become
 * possible. */
#include "schedule/simulate/simulate_state.h"

#include "schedule/memory/memory.h"

#include <math.h>

#include "graph/model/op.h"

static int64_t param_bytes(const smp__sim *sim, int tie)
{
    return sim->input->graph->param[sim->crossing.flow->tie[tie].param].elements *
           (int64_t)sizeof(float);
}

/* Uses of the tie's weight that lie on a rank. */
static int uses_on(const smp__sim *sim, int tie, int rank)
{
    const smp_graph *graph = sim->input->graph;
    const smp_flow *flow = sim->crossing.flow;
    const smp_param *param = &graph->param[flow->tie[tie].param];
    int uses = 0;
    for (int32_t u = param->use_begin; u < param->use_end; u++)
        uses += sim->crossing.rank_of[flow->stage_of_op[graph->use[u].op]] == rank;
    return uses;
}

/* Does an earlier holder of the tie lie on the same rank? */
static bool is_repeated(const smp__sim *sim, int tie, int32_t holder)
{
    const smp_flow *flow = sim->crossing.flow;
    for (int32_t i = flow->tie[tie].holder_begin; i < holder; i++)
        if (sim->crossing.rank_of[flow->holder[i]] == sim->crossing.rank_of[flow->holder[holder]])
            return true;
    return false;
}

static bool is_sharded(const smp__sim *sim)
{
    return sim->input->sharding.shard > 1;
}

/* What every replica has goes once around the ring. */
static double joint_us(const smp_simulation_input *input, int rank, int64_t values)
{
    if (values == 0)
        return 0.0;
    return (input->ddp - 1) * smp__ring_message_us(input, rank, smp__ring_of_all(input),
                                                   values * (int64_t)sizeof(double));
}

void smp__sim_joint_us(const smp_simulation_input *input, double *forward_us, double *backward_us)
{
    for (int32_t i = 0; input->ddp > 1 && input->graph->training && i < input->graph->n_op; i++) {
        const int stage = input->flow->stage_of_op[i], rank = input->stage_rank[stage];
        smp_op_needs needs;
        smp_op_needs_get(input->graph, &input->graph->op[i], 1, &needs);
        forward_us[stage] += joint_us(input, rank, needs.forward_joint);
        backward_us[stage] += joint_us(input, rank, needs.input_grad_joint);
    }
}

/* The slowest holder's sends, in one replica. */
static double exchange_us(const smp__sim *sim, int tie, int replica)
{
    const smp_flow *flow = sim->crossing.flow;
    const smp_tie *t = &flow->tie[tie];
    const int *device = &sim->input->device[(int64_t)sim->replica[replica] * sim->input->pipeline];
    double slowest_us = 0.0;
    for (int32_t i = t->holder_begin; i < t->holder_end; i++) {
        if (is_repeated(sim, tie, i))
            continue;
        int from = sim->crossing.rank_of[flow->holder[i]];
        int uses = uses_on(sim, tie, from);
        double us = 0.0;
        for (int32_t k = t->holder_begin; k < t->holder_end; k++) {
            int to = sim->crossing.rank_of[flow->holder[k]];
            if (to != from && !is_repeated(sim, tie, k))
                us += uses * smp__message_us(sim->input->cluster, device[from], device[to],
                                             param_bytes(sim, tie));
        }
        if (us > slowest_us)
            slowest_us = us;
    }
    return slowest_us;
}

static smp__sim_runner *runner_at(const smp__sim *sim, int replica, int rank)
{
    return &sim->runner[replica * sim->crossing.n_rank + rank];
}

/* Inside of a host the cores that compute move the data: a reduction takes them as long as it would
 * take alone, whenever it begins. */
static void owe(smp__sim *sim, smp__sim_runner *r, double end_us)
{
    r->owed_us += end_us - fmax(r->channel_free_us, sim->now_us);
    r->reduced_us = fmax(r->reduced_us, sim->now_us);
}

/* The end of a reduction is known: its runners' O may go on with it. */
static void finish(smp__sim *sim, int rank, double end_us)
{
    const bool cores_move = smp__cores_move(sim->input->cluster);
    for (int replica = 0; replica < sim->n_replica; replica++) {
        smp__sim_runner *r = runner_at(sim, replica, rank);
        if (cores_move) {
            owe(sim, r, end_us);
        } else {
            r->channel_free_us = end_us;
            r->reduced_us = fmax(r->reduced_us, end_us);
        }
        --r->reductions_left;
        if (r->blocked)
            smp__sim_wake(sim, replica * sim->crossing.n_rank + rank);
    }
}

/* When the channel is free on all replicas of a rank, and not before now. */
static double channel_us(const smp__sim *sim, int rank)
{
    double free_us = sim->now_us;
    for (int replica = 0; replica < sim->n_replica; replica++)
        if (runner_at(sim, replica, rank)->channel_free_us > free_us)
            free_us = runner_at(sim, replica, rank)->channel_free_us;
    return free_us;
}

static void stage_reduced(smp__sim *sim, int stage, double end_us)
{
    if (end_us > sim->reduce_end_us[stage])
        sim->reduce_end_us[stage] = end_us;
}

/* Does a stage read the weight, and in 16 bits alone? */
static bool is_far(const smp__sim *sim, const smp_param *param, int32_t stage)
{
    const smp_simulation_input *input = sim->input;
    bool reads = false;
    for (int32_t u = param->use_begin; u < param->use_end; u++) {
        if (sim->crossing.flow->stage_of_op[input->graph->use[u].op] != stage)
            continue;
        if (!smp_memory_use_is_in_host(input->graph, u))
            return false;
        reads = true;
    }
    return reads;
}

static void count_far(smp__sim *sim, int32_t *seen)
{
    const smp_graph *g = sim->input->graph;
    for (int32_t p = 0; p < g->n_param; p++)
        for (int32_t u = g->param[p].use_begin; u < g->param[p].use_end; u++) {
            const int32_t s = sim->crossing.flow->stage_of_op[g->use[u].op];
            if (seen[s] != -p - 1 && is_far(sim, &g->param[p], s))
                sim->half_only_bytes[s] += g->param[p].elements * (int64_t)sizeof(float);
            seen[s] = -p - 1;
        }
}

/* All weights of a stage but for idle ones, each counted once: nobody sums or updates these. */
smp_status smp__sim_count_trained(smp__sim *sim)
{
    const smp_graph *g = sim->input->graph;
    const smp_flow *flow = sim->crossing.flow;
    const size_t n_stage = (size_t)flow->n_stage;
    sim->trained_bytes = SMP_ARENA_NEW(sim->arena, int64_t, n_stage);
    sim->half_only_bytes = SMP_ARENA_NEW(sim->arena, int64_t, n_stage);
    int32_t *seen = SMP_ARENA_NEW(sim->arena, int32_t, n_stage); /* the last weight, from 1 */
    if (!sim->trained_bytes || !sim->half_only_bytes || !seen)
        return SMP_ERR_NO_MEMORY;
    for (size_t s = 0; s < n_stage; s++)
        sim->trained_bytes[s] = sim->input->weight_bytes[s];
    for (int32_t p = 0; p < g->n_param && smp_graph_whole(g)->freezes; p++)
        for (int32_t u = g->param[p].use_begin; g->param[p].idle && u < g->param[p].use_end; u++) {
            const int32_t s = flow->stage_of_op[g->use[u].op];
            if (seen[s] != p + 1)
                sim->trained_bytes[s] -= g->param[p].elements * (int64_t)sizeof(float);
            seen[s] = p + 1;
        }
    for (size_t s = 0; s < n_stage; s++) /* the file may say less of a stage */
        sim->trained_bytes[s] = sim->trained_bytes[s] > 0 ? sim->trained_bytes[s] : 0;
    if (smp_memory_host_weights(g, sim->input->sharding))
        count_far(sim, seen);
    return SMP_OK;
}

/* Bytes of a stage's weights that lie in no other. */
static int64_t own_bytes(const smp__sim *sim, int stage)
{
    int64_t bytes = sim->trained_bytes[stage];
    for (int i = sim->tie_begin[stage]; i < sim->tie_begin[stage + 1]; i++)
        bytes -= param_bytes(sim, sim->tie_list[i]);
    return bytes;
}

typedef double turns_us(const smp_simulation_input *input, int rank, smp__ring of, int turns,
                        int64_t bytes);

/* A stage's `bytes`, bucket by bucket; of which each rank has a part, if so. */
static double all_turns_us(const smp__sim *sim, int stage, smp__ring of, turns_us *each_us,
                           int turns, int parts, int64_t bytes)
{
    const int rank = sim->crossing.rank_of[stage];
    double us = 0.0;
    for (int32_t b = sim->bucket_begin[stage]; b < sim->bucket_begin[stage + 1]; b++) {
        us += each_us(sim->input, rank, of, turns, (sim->bucket[b].bytes + parts - 1) / parts);
        bytes -= sim->bucket[b].bytes;
    }
    return us + each_us(sim->input, rank, of, turns, (bytes + parts - 1) / parts);
}

void smp__sim_backward(smp__sim *sim, const smp__sim_runner *r, int stage)
{
    const int64_t at = (int64_t)r->replica * sim->crossing.flow->n_stage + stage;
    sim->backward_from_us[at] = r->started_us;
    sim->backward_to_us[at] = sim->now_us;
}

/* When all replicas have made the gradients of a bucket. */
static double made_us(const smp__sim *sim, int stage, double at)
{
    double latest_us = 0.0;
    for (int replica = 0; replica < sim->n_replica; replica++) {
        const int64_t i = (int64_t)replica * sim->crossing.flow->n_stage + stage;
        const double from_us = sim->backward_from_us[i], to_us = sim->backward_to_us[i];
        latest_us = fmax(latest_us, from_us + at * (to_us - from_us));
    }
    return at < 1.0 ? latest_us : sim->now_us;
}

/* All have reached R; when its buckets may have started is told now. */
static void reduce_buckets(smp__sim *sim, int stage)
{
    const int rank = sim->crossing.rank_of[stage];
    int64_t left = own_bytes(sim, stage);
    double end_us = 0.0;
    sim->reduce_from_us[stage] = sim->now_us;
    for (int replica = 0; replica < sim->n_replica; replica++)
        end_us = fmax(end_us, runner_at(sim, replica, rank)->channel_free_us);
    for (int32_t b = sim->bucket_begin[stage]; b < sim->bucket_begin[stage + 1]; b++) {
        end_us = fmax(end_us, made_us(sim, stage, sim->bucket[b].at));
        if (b == sim->bucket_begin[stage])
            sim->reduce_from_us[stage] = fmin(end_us, sim->now_us);
        end_us += smp__sim_first_ring_us(sim->input, rank, sim->bucket[b].bytes);
        left -= sim->bucket[b].bytes;
    }
    if (left > 0)
        end_us = fmax(end_us, sim->now_us) + smp__sim_first_ring_us(sim->input, rank, left);
    end_us = fmax(end_us, sim->now_us);
    stage_reduced(sim, stage, end_us);
    finish(sim, rank, end_us);
}

bool smp__sim_all(smp__sim *sim, smp__sim_runner *r, int stage)
{
    const int group = sim->input->sharding.shard;
    if (sim->bucket_reached[stage] < sim->n_replica)
        return false;
    if (++sim->all_reached[stage] < sim->n_replica)
        return true;
    double us = all_turns_us(sim, stage, smp__ring_across(sim->input), smp__ring_sum_us, 2, group,
                             own_bytes(sim, stage));
    sim->all_end_us[stage] = channel_us(sim, r->rank) + us;
    finish(sim, r->rank, sim->all_end_us[stage]);
    return true;
}

void smp__sim_gather_weights(smp__sim *sim, smp__sim_runner *r, int chunk)
{
    const int stage = smp__sim_stage(sim, r->rank, chunk);
    smp__sim_gather *at = &sim->gather[r->rank][r->next];
    r->gathered_us[chunk] = -1.0;
    r->channel_free_us = fmax(r->channel_free_us, smp__sim_updated_us(sim, r, chunk));
    if (++at->reached < sim->n_replica)
        return;
    at->end_us = channel_us(sim, r->rank) +
                 all_turns_us(sim, stage, smp__ring_of_group(sim->input), smp__ring_turns_us, 1, 1,
                              sim->input->weight_bytes[stage] - sim->half_only_bytes[stage] / 2);
    for (int replica = 0; replica < sim->n_replica; replica++) {
        smp__sim_runner *other = runner_at(sim, replica, r->rank);
        other->channel_free_us = other->gathered_us[chunk] = at->end_us;
        if (other->blocked)
            smp__sim_wake(sim, (int)(other - sim->runner));
    }
}

static void reduce_tie(smp__sim *sim, int tie)
{
    const smp_flow *flow = sim->crossing.flow;
    const smp_tie *t = &flow->tie[tie];
    double start_us = sim->now_us, takes_us = 0.0, ring_max_us = 0.0;
    for (int replica = 0; replica < sim->n_replica; replica++) {
        double us = exchange_us(sim, tie, replica);
        takes_us = us > takes_us ? us : takes_us;
    }
    for (int32_t i = t->holder_begin; i < t->holder_end; i++) {
        int rank = sim->crossing.rank_of[flow->holder[i]];
        double free_us = channel_us(sim, rank),
               us = smp__sim_ring_us(sim->input, rank, param_bytes(sim, tie));
        start_us = free_us > start_us ? free_us : start_us;
        ring_max_us = us > ring_max_us ? us : ring_max_us;
    }
    double end_us = start_us + takes_us + ring_max_us;
    for (int32_t i = t->holder_begin; i < t->holder_end; i++) {
        stage_reduced(sim, flow->holder[i], end_us);
        if (!is_repeated(sim, tie, i))
            finish(sim, sim->crossing.rank_of[flow->holder[i]], end_us);
    }
}

void smp__sim_reduce(smp__sim *sim, int stage)
{
    if (++sim->bucket_reached[stage] == sim->n_replica)
        reduce_buckets(sim, stage);
    for (int i = sim->tie_begin[stage]; i < sim->tie_begin[stage + 1]; i++) {
        int tie = sim->tie_list[i];
        const smp_tie *t = &sim->crossing.flow->tie[tie];
        if (++sim->tie_reached[tie] == sim->n_replica * (t->holder_end - t->holder_begin))
            reduce_tie(sim, tie);
    }
}

int64_t smp__sim_rank_bytes(const smp__sim *sim, int rank)
{
    const smp_flow *flow = sim->crossing.flow;
    int64_t bytes = 0;
    for (int chunk = 0; chunk < sim->crossing.chunks; chunk++)
        bytes += sim->trained_bytes[smp__sim_stage(sim, rank, chunk)];
    for (int tie = 0; tie < flow->n_tie; tie++)
        for (int32_t i = flow->tie[tie].holder_begin; i < flow->tie[tie].holder_end; i++)
            if (sim->crossing.rank_of[flow->holder[i]] == rank && is_repeated(sim, tie, i))
                bytes -= param_bytes(sim, tie);
    return bytes > 0 ? bytes : 0;
}

/* Has an earlier op of the rank the weight too? stage_of: [n_op]. */
static bool is_held(const smp__sim *sim, const int *stage_of, int32_t use, int rank)
{
    const smp_graph *g = sim->input->graph;
    for (int32_t u = g->param[g->use[use].param].use_begin; u < use; u++)
        if (sim->crossing.rank_of[stage_of[g->use[u].op]] == rank)
            return true;
    return false;
}

/* Who has a weight has the summands of all its uses, and adds up each by itself. */
static double summands_us(const smp__sim *sim, int32_t param)
{
    const smp_graph *g = sim->input->graph;
    const smp_param *p = &g->param[param];
    const int64_t own = (int64_t)ceil((double)p->elements / smp__sim_parts(sim->input));
    int n = 0;
    for (int32_t u = p->use_begin; u < p->use_end; u++)
        n += g->op[g->use[u].op].summands >> g->use[u].slot & 1;
    return n > 0 ? n * smp_costs_summands_us(g, sim->input->cluster, own) : 0.0;
}

smp_status smp__sim_add_summands(smp__sim *sim)
{
    const smp_flow *flow = sim->crossing.flow;
    const smp_graph *g = sim->input->graph;
    if (g->devices <= 1 || !g->training)
        return SMP_OK;
    int *stage_of = SMP_ARENA_NEW(sim->arena, int, (size_t)g->n_op);
    if (!stage_of)
        return SMP_ERR_NO_MEMORY;
    for (int stage = 0; stage < flow->n_stage; stage++)
        for (int32_t i = flow->op_begin[stage]; i < flow->op_begin[stage + 1]; i++)
            stage_of[flow->op_list[i]] = stage;
    for (int32_t u = 0; u < g->n_use; u++) {
        const int rank = sim->crossing.rank_of[stage_of[g->use[u].op]];
        if (!is_held(sim, stage_of, u, rank))
            sim->optimizer_us[rank] += summands_us(sim, g->use[u].param);
    }
    return SMP_OK;
}

static smp_status create_gathers(smp__sim *sim)
{
    const size_t n_rank = (size_t)sim->crossing.n_rank, chunks = (size_t)sim->crossing.chunks;
    if (!is_sharded(sim))
        return SMP_OK;
    sim->gather = SMP_ARENA_NEW(sim->arena, smp__sim_gather *, n_rank);
    sim->all_reached = SMP_ARENA_NEW(sim->arena, int, (size_t)sim->crossing.flow->n_stage);
    sim->all_end_us = SMP_ARENA_NEW(sim->arena, double, (size_t)sim->crossing.flow->n_stage);
    if (!sim->gather || !sim->all_reached || !sim->all_end_us)
        return SMP_ERR_NO_MEMORY;
    for (size_t rank = 0; rank < n_rank; rank++) {
        sim->gather[rank] =
            SMP_ARENA_NEW(sim->arena, smp__sim_gather, (size_t)sim->input->program[rank].n);
        if (!sim->gather[rank])
            return SMP_ERR_NO_MEMORY;
    }
    for (int i = 0; i < sim->n_runner; i++) {
        sim->runner[i].gathered_us = SMP_ARENA_NEW(sim->arena, double, chunks);
        if (!sim->runner[i].gathered_us)
            return SMP_ERR_NO_MEMORY;
    }
    return SMP_OK;
}

smp_status smp__sim_reduce_init(smp__sim *sim)
{
    const smp_flow *flow = sim->crossing.flow;
    size_t n_stage = (size_t)flow->n_stage, n_held = 0;
    for (int tie = 0; tie < flow->n_tie; tie++)
        n_held += (size_t)(flow->tie[tie].holder_end - flow->tie[tie].holder_begin);
    sim->bucket_reached = SMP_ARENA_NEW(sim->arena, int, n_stage);
    sim->reduce_from_us = SMP_ARENA_NEW(sim->arena, double, n_stage);
    sim->reduce_end_us = SMP_ARENA_NEW(sim->arena, double, n_stage);
    sim->tie_begin = SMP_ARENA_NEW(sim->arena, int, n_stage + 2);
    sim->tie_list = SMP_ARENA_NEW(sim->arena, int, n_held);
    sim->tie_reached = SMP_ARENA_NEW(sim->arena, int, (size_t)flow->n_tie);
    const size_t n_backward = (size_t)sim->n_replica * n_stage;
    sim->backward_from_us = SMP_ARENA_NEW(sim->arena, double, n_backward);
    sim->backward_to_us = SMP_ARENA_NEW(sim->arena, double, n_backward);
    if (!sim->bucket_reached || !sim->reduce_from_us || !sim->reduce_end_us ||
        !sim->backward_from_us || !sim->backward_to_us || !sim->tie_begin || !sim->tie_list ||
        !sim->tie_reached)
        return SMP_ERR_NO_MEMORY;
    /* Counting sort by stage: starts one place late, so that filling moves them into place. */
    int *begin = sim->tie_begin + 1;
    for (int tie = 0; tie < flow->n_tie; tie++)
        for (int32_t i = flow->tie[tie].holder_begin; i < flow->tie[tie].holder_end; i++)
            begin[flow->holder[i] + 1]++;
    for (size_t stage = 0; stage < n_stage; stage++)
        begin[stage + 1] += begin[stage];
    for (int tie = 0; tie < flow->n_tie; tie++)
        for (int32_t i = flow->tie[tie].holder_begin; i < flow->tie[tie].holder_end; i++)
            sim->tie_list[begin[flow->holder[i]]++] = tie;
    for (int i = 0; i < sim->n_runner; i++)
        sim->runner[i].reductions_left = (is_sharded(sim) ? 2 : 1) * sim->crossing.chunks;
    for (int tie = 0; tie < flow->n_tie; tie++)
        for (int32_t i = flow->tie[tie].holder_begin; i < flow->tie[tie].holder_end; i++)
            if (!is_repeated(sim, tie, i))
                for (int replica = 0; replica < sim->n_replica; replica++)
                    runner_at(sim, replica, sim->crossing.rank_of[flow->holder[i]])
                        ->reductions_left++;
    SMP_TRY(smp__sim_buckets(sim));
    return create_gathers(sim);
}
