/* What the search over pipeline x ddp x chunks x micro-batches x schedule is asked, and what it
 * answers. */
#ifndef SMP_SCHEDULE_PLANNER_SEARCH_H
#define SMP_SCHEDULE_PLANNER_SEARCH_H

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
    const smp_product_choices *products;
    int64_t library_bytes;
    bool until_deadline; /* the proof of the bottleneck goes on until deadline_s while it is open */
    bool advise;       /* where nothing fits: plan changes of the request and name those that do */
    const int *device; /* [devices] of SMP_PLACEMENT_LISTED: each once, of replica d, rank r at
                          d * pipeline + r */
} smp_search_request;

/* Whether the optimizer's states lie in host memory, for what is not searched. */
static inline bool smp__states_away(const smp_search_request *request)
{
    return request->offload_states == SMP_OFFLOAD_ALL ||
           (request->offload_states == SMP_OFFLOAD_AUTO && request->sharding.offload_states);
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

/* One configuration, evaluated. */
typedef struct smp_candidate {
    int pipeline, ddp, chunks, microbatches;
    int active; /* bound on live micro-batches; 0: the rule's own */
    int lag;    /* likewise, on those that wait for W */
    smp_sharding sharding;
    int64_t microbatch_size;
    const char *schedule; /* registry name */
    smp_placement placement;
    int *device;              /* [ddp * pipeline]: device of replica d, rank r at d*pipeline+r */
    int *stage_rank;          /* [pipeline * chunks] */
    int64_t *rank_peak_bytes; /* [pipeline] */
    smp_partition *partition;
    int n_recompute;         /* stages that recompute */
    bool *offload;           /* [n_op] of what the stash travels; NULL: of nothing */
    int n_offload;           /* stages of which something does */
    int horizon;             /* of it */
    const char *solver;      /* of the partition; static text */
    double bottleneck_us;    /* of the partition */
    double step_us;          /* simulated */
    bool is_least;           /* no partition has a shorter step here: all were looked at */
    double step_bound_us[2]; /* what a step of any partition takes at least: in the order of the
                                schedule, and in any order (step_bound.c); of the winner, or 0 */
    double fit_bound_us[2];  /* the bottleneck of any that fits, likewise (priced.h); or 0 */
    double give_up_us;       /* peaks stay 0 if the step takes longer: it is not listed; 0: never */
    int64_t peak_bytes;      /* highest over ranks, exact */
    bool fits;
    int worst_rank; /* rank with the least room, and by how much it misses (or keeps) */
    int64_t room_bytes;
} smp_candidate;

void smp_candidate_destroy(smp_candidate *candidate); /* accepts NULL; frees what it owns */

/* What became of one degree of sharding, with the optimizer's states on the device or away, where
 * several were looked at. */
typedef struct smp_shard_tried {
    int shard;
    smp_shard_what what;
    bool offload_states;
    int n_tried, n_slow, n_large, n_open; /* configurations: simulated; as below */
    bool fits;
    double sample_us;   /* of the fastest that does (--optimize memory: of the smallest), */
    int64_t peak_bytes; /* and of its fullest rank */
} smp_shard_tried;

enum { SMP_MAX_SHARDS_TRIED = 128 };

typedef struct smp_search_result {
    smp_candidate *best; /* owned */
    /* Owned; NULL: none. What an order of actions of its own may get more out of: the partition of
     * the same configuration that best's was found from, which has the smaller bottleneck; and
     * where best bounds its live micro-batches, the best configuration that does not. */
    smp_candidate *other[2];
    /* Best first; without partition, device, stage_rank and rank_peak_bytes. The first
     * SMP_SEARCH_LISTED that fit are the best of all configurations, proven by bounds. */
    smp_candidate **tried;
    int n_tried;
    smp_shard_tried shard[SMP_MAX_SHARDS_TRIED];
    int n_shard;         /* 0: one was asked for */
    int n_config;        /* that the request allows and the schedules can run; of them: */
    int n_pruned_time;   /* cannot be among the listed: their time has a higher bound */
    int n_pruned_memory; /* cannot fit: what their ranks must keep exceeds the memory */
    int n_no_pipeline;   /* pins, groups and ties allow no such pipeline */
    int n_skipped;       /* the time limit struck before */
    bool timed_out;      /* the time limit struck: more time might find or prove more */
} smp_search_result;

enum { SMP_SEARCH_LISTED = 10 };

void smp_search_result_destroy(smp_search_result *result); /* frees the contents */

#endif
