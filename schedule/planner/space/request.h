/* What a plan is asked for: what the search over pipeline x ddp x chunks x micro-batches x schedule
 * is to leave open, fix, keep to and minimise. */
#ifndef SMP_SCHEDULE_PLANNER_SPACE_REQUEST_H
#define SMP_SCHEDULE_PLANNER_SPACE_REQUEST_H

#include "partition/solve/partitioner.h"
#include "schedule/plan/plan.h"

typedef struct smp_search_request {
    const smp_graph *graph;
    const smp_cluster *cluster;
    const smp_profile *profile; /* may be NULL */
    smp_splitting splitting;    /* of the graph, whose cluster is then one of groups, which all
                                   numbers here count; of at most one device: none */
    /* What the caller asks for: shape, schedule, memory, objective. `devices` and `microbatch_size`
     * are set; `schedule` and `partitioner` are NULL where any will do. Its files and patterns are
     * not read here: what they say stands below, as do placement, sharding and the deadline. */
    smp_plan_options options;
    /* Where groups differ: as of a plan, for options.stages and options.ddp, which are set;
     * `device` then lists the first of each group. NULL: all are alike. */
    const int *rank_begin;
    smp_placement placement;
    smp_sharding sharding;      /* of every configuration; those that cannot have it are left out;
                                   or SMP_SHARD_AUTO: all degrees, none among them */
    bool any_shard_what;        /* with SMP_SHARD_AUTO: what is searched as well */
    bool few_shards;            /* with SMP_SHARD_AUTO: of the degrees only all replicas, and those
                                   of a node */
    double deadline_s;          /* smp_work_s() at which the best so far is taken; 0: never */
    const int32_t *pin;         /* see smp_problem.pin */
    const smp_where *pin_where; /* see smp_problem.pin_where */
    const int32_t *together;    /* see smp_problem.together */
    smp_where numbers_where; /* where the numbers above stand that no option gave; may be empty */
    int64_t library_bytes;   /* of the GPUs of a plan that is kept, without a profile; 0: nothing */
    bool advise;       /* where nothing fits: plan changes of the request and name those that do */
    const int *device; /* [devices] of SMP_PLACEMENT_LISTED: each once, of replica d, rank r at
                          d * pipeline + r */
} smp_search_request;

/* Whether the optimizer's states lie in host memory, for what is not searched. */
static inline bool smp__states_in_host(const smp_search_request *request)
{
    return request->options.offload_states == SMP_OFFLOAD_ALL ||
           (request->options.offload_states == SMP_OFFLOAD_AUTO &&
            request->sharding.offload_states);
}

/* Whether stashes may travel: where the cluster has a link for them. */
static inline bool smp__may_offload(const smp_search_request *request)
{
    return request->options.offload != SMP_OFFLOAD_NONE && request->graph->training &&
           request->cluster->host.bytes_per_s > 0.0;
}

/* Microseconds per sample, as the objective counts it: of a plan's bottleneck or its step. */
static inline double smp_sample_us(const smp_search_request *request, double bottleneck_us,
                                   double step_us, int microbatches, double replicas)
{
    double us = request->options.objective == SMP_OBJECTIVE_BOTTLENECK ? bottleneck_us
                                                                       : step_us / microbatches;
    return us / (replicas * (double)request->options.microbatch_size);
}

static inline double smp_plan_sample_us(const smp_search_request *request, const smp_plan *plan)
{
    return smp_sample_us(request, plan->predicted.bottleneck_us, plan->predicted.step_us,
                         plan->microbatches,
                         (double)smp_plan_microbatches(plan) / plan->microbatches);
}

/* A failure for numbers of the request that cannot be: before it the place where they stand. */
smp_status smp__at_numbers(const smp_search_request *request, smp_status status);

#endif
