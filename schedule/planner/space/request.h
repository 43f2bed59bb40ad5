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
    int devices;
    int stages, ddp, chunks, microbatches; /* 0: auto. `stages` is the number of pipeline ranks */
    int64_t microbatch_size;
    smp_sharding sharding;   /* of every configuration; those that cannot have it are left out; or
                              SMP_SHARD_AUTO: all degrees, none among them */
    bool any_shard_what;     /* with SMP_SHARD_AUTO: what is searched as well */
    int gradient_blocks;     /* in training, see schedule/plan/gradient_blocks.h; 0: ddp */
    const char *schedule;    /* NULL: auto */
    const char *partitioner; /* NULL: the best of all */
    smp_objective objective;
    smp_optimize optimize;
    smp_placement placement;
    int64_t memory_bytes; /* per device; 0: the cluster's */
    uint64_t seed;
    smp_recompute recompute;
    smp_offload offload; /* auto: where a rank does not fit without, and the cluster has a link */
    int loading_horizon; /* of what travels; 0: auto */
    smp_offload offload_states; /* those of the optimizer; auto: where memory is short and no plan
                                   with them on the device is faster by more than 1 %, and the
                                   cluster has a link; or as sharding says, kept */
    double deadline_s;          /* smp_clock_s() at which the best so far is taken; 0: never */
    const int32_t *pin;         /* see smp_problem.pin */
    const smp_where *pin_where; /* see smp_problem.pin_where */
    const int32_t *together;    /* see smp_problem.together */
    int active_microbatches; /* bound on live micro-batches for schedules that take one; 0: none */
    int weight_lag;          /* bound on those that wait for W, likewise; 0: auto */
    int group;               /* micro-batches per group of chunked schedules; 0: pipeline */
    smp_where numbers_where; /* where the numbers above stand that no option gave; may be empty */
    /* What a plan that is kept says of its GPUs, for one without a profile; NULL, 0: nothing. */
    const smp_gemm_choices *products;
    int64_t library_bytes;
    bool until_deadline; /* the proof of the bottleneck goes on until deadline_s while it is open */
    bool advise;       /* where nothing fits: plan changes of the request and name those that do */
    const int *device; /* [devices] of SMP_PLACEMENT_LISTED: each once, of replica d, rank r at
                          d * pipeline + r */
} smp_search_request;

/* Whether the optimizer's states lie in host memory, for what is not searched. */
static inline bool smp__states_in_host(const smp_search_request *request)
{
    return request->offload_states == SMP_OFFLOAD_ALL ||
           (request->offload_states == SMP_OFFLOAD_AUTO && request->sharding.offload_states);
}

/* Whether stashes may travel: where the cluster has a link for them. */
static inline bool smp__may_offload(const smp_search_request *request)
{
    return request->offload != SMP_OFFLOAD_NONE && request->graph->training &&
           request->cluster->host.bytes_per_s > 0.0;
}

/* Microseconds per sample, as the objective counts it: of a plan's bottleneck or its step. */
static inline double smp_sample_us(const smp_search_request *request, double bottleneck_us,
                                   double step_us, int microbatches, int ddp)
{
    double us =
        request->objective == SMP_OBJECTIVE_BOTTLENECK ? bottleneck_us : step_us / microbatches;
    return us / ((double)ddp * (double)request->microbatch_size);
}

static inline double smp_plan_sample_us(const smp_search_request *request, const smp_plan *plan)
{
    return smp_sample_us(request, plan->predicted.bottleneck_us, plan->predicted.step_us,
                         plan->microbatches, plan->ddp);
}

/* A failure for numbers of the request that cannot be: before it the place where they stand. */
smp_status smp__at_numbers(const smp_search_request *request, smp_status status);

#endif
