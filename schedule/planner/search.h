/* The search over pipeline x ddp x chunks x micro-batches x schedule. What a schedule costs is
 * known to the layer on the right: it passes a model of it in (smp_schedule_model). */
#ifndef SMP_SCHEDULE_PLANNER_SEARCH_H
#define SMP_SCHEDULE_PLANNER_SEARCH_H

#include "partition/solve/partitioner.h"
#include "schedule/plan/plan.h"

typedef enum smp_objective { SMP_OBJECTIVE_STEP, SMP_OBJECTIVE_BOTTLENECK } smp_objective;
typedef enum smp_optimize { SMP_OPTIMIZE_SPEED, SMP_OPTIMIZE_MEMORY } smp_optimize;
typedef struct smp_search_request {
    const smp_graph *graph;
    const smp_cluster *cluster;
    const smp_profile *profile; /* may be NULL */
    int devices;
    int stages, ddp, chunks, microbatches; /* 0: auto. `stages` is the number of pipeline ranks */
    int64_t microbatch_size;
    const char *schedule;    /* NULL: auto */
    const char *partitioner; /* NULL: the best of all */
    smp_objective objective;
    smp_optimize optimize;
    smp_placement placement;
    int64_t memory_bytes; /* per device; 0: the cluster's */
    uint64_t seed;
    smp_recompute recompute;
    double deadline_s;       /* smp_clock_s() at which the best so far is taken; 0: never */
    const int32_t *pin;      /* see smp_problem.pin */
    const int32_t *glue;     /* see smp_problem.together */
    int active_microbatches; /* bound on live micro-batches for schedules that take one; 0: none */
    int group;               /* micro-batches per group of chunked schedules; 0: pipeline */
} smp_search_request;

/* One configuration, evaluated. */
typedef struct smp_candidate {
    int pipeline, ddp, chunks, microbatches;
    int64_t microbatch_size;
    const char *schedule; /* registry name */
    smp_placement placement;
    int *device;              /* [ddp * pipeline]: device of replica d, rank r at d*pipeline+r */
    int *stage_rank;          /* [pipeline * chunks] */
    int64_t *rank_peak_bytes; /* [pipeline] */
    smp_partition *partition;
    int n_recompute;      /* stages that recompute */
    const char *solver;   /* of the partition; static text */
    double bottleneck_us; /* of the partition */
    double give_up_us;    /* in: a step that takes longer need not be looked at further; 0: all */
    bool given_up;        /* for that reason only step_us is known */
    double step_us;       /* simulated */
    int64_t peak_bytes;   /* highest over ranks, exact */
    bool fits;
    int worst_rank; /* rank with the least room, and by how much it misses (or keeps) */
    int64_t room_bytes;
} smp_candidate;

void smp_candidate_destroy(smp_candidate *candidate); /* accepts NULL; frees what it owns */

/* What the search must know about schedules; implemented in schedule/. */
typedef struct smp_schedule_model {
    void *context;
    /* Names to try for auto, NULL-terminated. */
    const char *const *names;
    bool (*known)(void *context, const char *name);
    /* Can it run with these numbers? Records why not. */
    smp_status (*check)(void *context, const char *name, int pipeline, int chunks, int microbatches,
                        bool training);
    int (*stage_rank)(void *context, const char *name, int pipeline, int chunks, int stage);
    /* Peak number of live (micro-batch, chunk) stashes on a rank. */
    int (*live)(void *context, const char *name, int pipeline, int chunks, int microbatches,
                int rank, bool training);
    /* `live`, were the request's active_microbatches `active`. NULL: no schedule takes a bound. */
    int (*live_bounded)(void *context, const char *name, int pipeline, int chunks, int microbatches,
                        int rank, bool training, int active);
    /* Bytes that a rank of the candidate's partition needs whatever the order of its actions: with
     * `live` of them never more than the exact peak. NULL: not known. [pipeline] bytes. */
    smp_status (*least_bytes)(void *context, const smp_search_request *request,
                              const smp_costs *costs, const smp_candidate *candidate,
                              int64_t *bytes);
    /* Fills step_us, given_up, rank_peak_bytes, peak_bytes, worst_rank, room_bytes, fits of a candidate. */
    smp_status (*evaluate)(void *context, const smp_search_request *request, const smp_costs *costs,
                           smp_candidate *candidate);
} smp_schedule_model;

typedef struct smp_search_result {
    smp_candidate *best; /* owned */
    /* Best first; without partition, device, stage_rank and rank_peak_bytes. The first
     * SMP_SEARCH_LISTED that fit are the best of all configurations, proven by bounds. */
    smp_candidate **tried;
    int n_tried;
    int n_config;        /* that the request allows and the schedules can run; of them: */
    int n_pruned_time;   /* cannot be among the listed: their time has a higher bound */
    int n_pruned_memory; /* cannot fit: what their ranks must keep exceeds the memory */
    int n_no_pipeline;   /* pins, groups and ties allow no such pipeline */
    int n_skipped;       /* the time limit struck before */
    bool timed_out;      /* the time limit struck: more time might find or prove more */
} smp_search_result;

enum { SMP_SEARCH_LISTED = 10 };

void smp_search_result_destroy(smp_search_result *result); /* frees the contents */

/* Tries every configuration that uses all `devices` and respects what is fixed. Speed: the least
 * simulated time per sample (objective step) or the smallest bottleneck per sample; within 1 % the
 * fewer micro-batches (of all replicas), then the smaller peak. auto micro-batches: 1, 2, 4, ... up to 4 * pipeline
 * (and pipeline itself). auto chunks: 1, 2, 4 as far as ops allow; on one rank only 1, unless pins
 * need more. Memory: the smallest peak; within 1 % the faster. Placements that differ in no link
 * and no device are tried once, as cluster. Devices that differ: rank r of replica d has the device
 * that smp_plan_device gives it, in the order of the cluster file; stages are made for the replica
 * with the slowest devices.
 * Recomputation (auto): per stage, only where the stage does not fit without. The partition of the
 * winner is handed to smp_partition_prove, which raises its bound, and may improve it unless a partitioner
 * was named. Large searches take a quick look at all, and try every partitioner for the few near the best.
 * SMP_ERR_NO_FIT: says by how much, on which stage, and what would make it fit. */
smp_status smp_search(const smp_search_request *request, const smp_costs *costs,
                      const smp_schedule_model *model, smp_search_result *out);

#endif
