/* Buckets of a stage's gradients (schedule/rules/shard.h): how large they are, and at which share
 * of the stage's last backward the weights of each are done, by the estimated times of its ops. */
#include "schedule/simulate/simulate_state.h"

#include <math.h>

#include "graph/model/op.h"
#include "schedule/memory/memory.h"

/* The stage of a weight with one use, or -1. */
static int stage_of(const smp_simulation_input *input, int32_t param)
{
    const smp_param *p = &input->graph->param[param];
    if (p->use_end - p->use_begin != 1 || p->idle)
        return -1;
    return input->flow->stage_of_op[input->graph->use[p->use_begin].op];
}

/* Are the fp32 values of a weight, which has a stage, in host memory? */
static bool is_far(const smp_simulation_input *input, int32_t param)
{
    return smp_memory_host_weights(input->graph, input->sharding) &&
           smp_memory_use_is_in_host(input->graph, input->graph->param[param].use_begin);
}

/* Goes through the weights as backwards finish them, first through those that are far. bucket: NULL
 * to count alone. number, bytes: [n_stage], zero; of the bucket in progress. */
static void fill(const smp_simulation_input *input, const int32_t *begin, smp__sim_bucket *bucket,
                 int32_t *number, int64_t *bytes, bool far)
{
    for (int32_t p = input->graph->n_param - 1; p >= 0; p--) {
        const int stage = stage_of(input, p);
        if (stage < 0 || is_far(input, p) != far)
            continue;
        if (smp_bucket_is_full(input->sharding, bytes[stage])) {
            number[stage]++;
            bytes[stage] = 0;
        }
        bytes[stage] += input->graph->param[p].elements * (int64_t)sizeof(float);
        if (bucket)
            bucket[begin[stage] + number[stage]] = (smp__sim_bucket){
                .bytes = bytes[stage],
                .first_op = input->graph->use[input->graph->param[p].use_begin].op};
    }
}

static void fill_both(const smp_simulation_input *input, const int32_t *begin,
                      smp__sim_bucket *bucket, int32_t *number, int64_t *bytes)
{
    fill(input, begin, bucket, number, bytes, true);
    for (int s = 0; s < input->flow->n_stage; s++) {
        number[s] += bytes[s] > 0;
        bytes[s] = 0;
    }
    fill(input, begin, bucket, number, bytes, false);
    for (int s = 0; s < input->flow->n_stage; s++) /* there is one, and the last has something */
        number[s] -= bytes[s] == 0 && number[s] > 0;
}

/* `at` of a stage's buckets, which are started in their order. */
static smp_status set_shares(const smp__sim *sim, int stage, double *done_us)
{
    const smp_flow *flow = sim->input->flow;
    const smp_cluster *cluster = sim->input->cluster;
    const int device = sim->input->device[sim->crossing.rank_of[stage]];
    const int32_t begin = sim->bucket_begin[stage], end = sim->bucket_begin[stage + 1];
    double us = 0.0, at = 0.0;
    for (int32_t i = flow->op_begin[stage + 1] - 1; i >= flow->op_begin[stage]; i--) {
        const int32_t op = flow->op_list[i];
        double own_us = 0.0;
        if (flow->backward[op])
            SMP_TRY(smp_backward_estimate(sim->input->graph, op, flow->batch,
                                          &cluster->device[device], &own_us));
        done_us[op] = us += own_us;
    }
    for (int32_t b = begin; b < end; b++) {
        at = fmax(at, us > 0.0 ? done_us[sim->bucket[b].first_op] / us : 1.0);
        sim->bucket[b].at = at;
    }
    return SMP_OK;
}

smp_status smp__sim_buckets(smp__sim *sim)
{
    const smp_simulation_input *input = sim->input;
    const size_t n_stage = (size_t)input->flow->n_stage;
    sim->bucket_begin = SMP_ARENA_NEW(sim->arena, int32_t, n_stage + 1);
    if (!sim->bucket_begin)
        return SMP_ERR_NO_MEMORY;
    if (input->ddp == 1 || !input->graph->training || input->sharding.bucket_bytes <= 0)
        return SMP_OK;
    int32_t *number = SMP_ARENA_NEW(sim->arena, int32_t, 2 * n_stage);
    int64_t *bytes = SMP_ARENA_NEW(sim->arena, int64_t, 2 * n_stage);
    double *done_us = SMP_ARENA_NEW(sim->arena, double, (size_t)input->graph->n_op);
    if (!number || !bytes || !done_us)
        return SMP_ERR_NO_MEMORY;
    fill_both(input, NULL, NULL, number, bytes);
    for (size_t s = 0; s < n_stage; s++) /* one alone is what R reduces */
        sim->bucket_begin[s + 1] = sim->bucket_begin[s] + number[s] + 1;
    sim->bucket = SMP_ARENA_NEW(sim->arena, smp__sim_bucket, (size_t)sim->bucket_begin[n_stage]);
    if (!sim->bucket)
        return SMP_ERR_NO_MEMORY;
    fill_both(input, sim->bucket_begin, sim->bucket, number + n_stage, bytes + n_stage);
    for (int s = 0; s < (int)n_stage; s++) {
        if (number[s] == 0)
            sim->bucket[sim->bucket_begin[s]].at = 1.0;
        else
            SMP_TRY(set_shares(sim, s, done_us));
    }
    return SMP_OK;
}

bool smp_buckets_help(const smp_cluster *cluster)
{
    return cluster->overlap && !smp__cores_move(cluster);
}

int64_t smp_bucket_bytes(const smp_simulation_input *input, int rank, int64_t weight_bytes)
{
    if (input->ddp == 1 || !input->graph->training || weight_bytes < 1 ||
        !smp_buckets_help(input->cluster))
        return 0;
    const double latency_us = smp__sim_first_ring_us(input, rank, 1),
                 all_us = smp__sim_first_ring_us(input, rank, weight_bytes) - latency_us;
    if (latency_us <= 0.0 || all_us <= latency_us)
        return 0;
    const double best = (double)weight_bytes * sqrt(latency_us / all_us);
    int64_t bytes = SMP_LEAST_BUCKET;
    while ((double)bytes < best && bytes < weight_bytes)
        bytes *= 2;
    return bytes < weight_bytes ? bytes : 0;
}
