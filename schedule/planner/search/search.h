/* The search over configurations, and its winner in full. */
#ifndef SMP_SCHEDULE_PLANNER_SEARCH_SEARCH_H
#define SMP_SCHEDULE_PLANNER_SEARCH_SEARCH_H

#include "schedule/planner/fit/fit.h"

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
    int n_skipped;       /* the effort was spent before */
    bool timed_out;      /* the effort was spent: more might find or prove more */
} smp_search_result;

enum { SMP_SEARCH_LISTED = 10 };

void smp_search_result_destroy(smp_search_result *result); /* frees the contents */

/* From a model, a cluster and a profile to a verified plan: costs, search, lowering, simulation,
 * memory. What smp-partition and smp_init call. */

/* What the engine of schedule "searched" came to for the winner of the search. */
typedef struct smp_auto_outcome {
    bool tried;
    bool taken;            /* the plan's programs are its own; else those of a fixed rule */
    double rule_us;        /* step of the winner under its rule */
    double found_us;       /* the best step found */
    double lower_bound_us; /* no order of this partition's actions is faster */
} smp_auto_outcome;

/* Means against memory. */
typedef enum smp_means {
    SMP_MEANS_NONE,
    SMP_MEANS_RECOMPUTE,
    SMP_MEANS_OFFLOAD,
    SMP_MEANS_STATES,
    SMP_MEANS_SHARDS,
    SMP_N_MEANS
} smp_means;

/* The plan's stages and order with one of the means that it has alone, or without any. */
typedef struct smp_bought {
    const char *means; /* "nothing", "recompute", ...; static text */
    double step_us;
    int64_t peak_bytes; /* of the fullest rank, */
    int64_t room_bytes; /* and the least room of all; < 0: it does not fit */
} smp_bought;

typedef struct smp_planner_result {
    smp_plan *plan;
    smp_search_result search; /* for --explain and the table */
    smp_auto_outcome order;
    const char *bound;       /* what proves plan->predicted.lower_bound_us; static text */
    int active_microbatches; /* that the plan's rule is bound to; 0: none, or an order of its own */
    int64_t room_bytes;      /* least of all ranks, */
    int tight_rank;          /* on this one */
    char cost_source[160];   /* smp_costs.source */
    /* Exchanges of gradients within groups, in a micro-batch of all stages, and what of them weight
     * gradients hide; 0 where they are not put off. */
    double exchange_us, hidden_us;
    smp_bought bought[SMP_N_MEANS];
    int n_bought;      /* 0: the plan needs none of them */
    double planning_s; /* work (graph/base/clock.h) */
} smp_planner_result;

void smp_planner_result_destroy(smp_planner_result *result);

/* A candidate's smp_sample_us. */
double smp__search_time(const smp_search_request *request, const smp_candidate *candidate);

/* Tries every configuration that uses all `devices` and respects what is fixed. Speed: the least
 * simulated time per sample (objective step) or the smallest bottleneck per sample; within 1 % the
 * fewer micro-batches (of all replicas), then the smaller peak. auto micro-batches: 1, 2, 4, ... up
 * to 4 * pipeline (and pipeline itself), or what global_batch says. auto chunks: 1, 2, 4 as far as
 * ops allow, 8 where that leaves sixteen to a stage; on one rank only 1, unless pins need more.
 * Memory: the smallest peak; within 1 % the faster. Placements that
 * differ in no link and no device are tried once, as cluster. Devices that differ: rank r of
 * replica d has the device that the placement gives it, and where the request leaves that open
 * other orders of unequal devices, or of few, are tried; every replica that differs counts.
 * Recomputation (auto): per op, as much as it takes for a rank to fit. The partition of the winner
 * is handed to smp_partition_prove, which raises its bound, and may improve it unless a partitioner
 * was named.
 * Large searches take a quick look at all, and try every partitioner for the few near the best.
 * SMP_ERR_NO_FIT: says by how much and on which stage; a trial may say less. */
smp_status smp__search_run(smp__planner *planner, smp_search_result *out);

/* Looks for a better order of actions than that of the search's winner, whose evaluation is exact.
 * out->taken: it was replaced by that of schedule "auto". Does nothing where the request fixes the
 * schedule or asks for something else than speed. */
smp_status smp__planner_auto(smp__planner *planner, const smp_candidate *best,
                             smp__evaluation *evaluation, smp_auto_outcome *out);

/* The plan of an exact evaluation, whose programs it takes over; it owns copies of all else that it
 * says. Not verified. */
smp_status smp__planner_write(const smp__planner *planner, const char *model_path,
                              const smp_candidate *candidate, smp__evaluation *evaluation,
                              smp_plan **out);

/* What the most promising configuration will come to, roughly: what a search begins with
 * (search_order.c). INFINITY: there is none, or none that is likely to fit. */
smp_status smp__plan_estimate(const smp_search_request *request, double *out);

/* As smp_plan_make, but without advice. *nearest: of a request that nothing fits. trial: NULL for a
 * plan that is to be used (schedule/planner/search/plan_winner.c). */
smp_status smp__plan_search(const smp_search_request *request, const char *model_path,
                            const smp__trial *trial, smp__nearest *nearest,
                            smp_planner_result *out);
/* The same for a trial, not beyond the request's deadline.
 * *found: false where nothing fits that may be below trial->most, or the numbers cannot be.
 */
smp_status smp__plan_try(const smp_search_request *request, const smp__trial *trial,
                         smp_planner_result *out, bool *found);

#endif
