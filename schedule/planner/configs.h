/* The configurations that a search looks at, their partitions and what they can cost at least. */
#ifndef SMP_SCHEDULE_PLANNER_CONFIGS_H
#define SMP_SCHEDULE_PLANNER_CONFIGS_H

#include "partition/solve/solve.h"
#include "schedule/planner/planner_build.h"

/* Which device serves which rank. Shared by all configurations of one pipeline and placement. */
typedef struct smp__mapping {
    struct smp__mapping *next;
    int pipeline, ddp;
    smp_placement placement;
    int *device;     /* [ddp * pipeline] */
    int n_replica;   /* that count (profile/replicas.h), and their devices: */
    int *counting;   /* [n_replica * pipeline] */
    int64_t *memory; /* [pipeline]: least over replicas */
    double fastest;  /* least slowdown of a device in a replica, of the replica where it is most */
    double most;     /* slowdown of the slowest device, */
    double speed;    /* and the sum of the speeds of the slowest of each rank */
    double ring_us;  /* of a reduction over replicas, at least: per byte of a rank's weights; 0
                        where some of it may be over before the last backward is */
    int64_t memory_all; /* of all ranks */
} smp__mapping;

/* Partitions of an arrangement under memory limits, for one vector of live counts. */
typedef struct smp__limited {
    struct smp__limited *next;
    double scale; /* of the limits */
    double state_factor, idle_factor;
    smp_recompute recompute;
    const double *live; /* [n_stage] */
    smp__variants variants;
} smp__limited;

/* Which stages lie where (mapping, chunks, ranks of stages), and the partitions for that without
 * memory limits. Shared by all configurations that differ in micro-batches or in schedules that
 * place stages alike. */
typedef struct smp__arrangement {
    const smp__mapping *mapping;
    int chunks;
    const int *stage_rank; /* [pipeline * chunks] */
    const int64_t *limit;  /* [pipeline * chunks] */
    double least_us;       /* compute of the slowest rank, at least; before it is solved */
    bool solved;
    smp_status status; /* SMP_ERR_NO_FIT, SMP_ERR_INPUT: there is no such pipeline */
    smp__variants variants;
    smp__limited *limited;
    double estimate; /* best of its configurations */
} smp__arrangement;

/* What became of a configuration. */
typedef enum smp__outcome {
    SMP__OPEN,        /* not looked at yet */
    SMP__SIMULATED,   /* or at work */
    SMP__TOO_SLOW,    /* cannot be among the listed */
    SMP__TOO_LARGE,   /* cannot fit */
    SMP__NO_PIPELINE, /* pins, groups and ties allow none */
    SMP__UNNEEDED     /* one that is no slower does without what this one has besides */
} smp__outcome;

typedef struct smp__config {
    const smp__mapping *mapping;
    int chunks, microbatches;
    int active;            /* bound on live micro-batches; 0: the rule's own */
    int lag;               /* likewise, on those that wait for W */
    smp_sharding sharding; /* buckets and hops as asked for, or found to be better */
    double state_factor;   /* bytes kept for ever per byte of weight, */
    double idle_factor;    /* ... of an idle one */
    int64_t gathers;       /* of chunks in a step, by the first rank; for estimates */
    const smp_schedule_kind *schedule;
    int32_t arrangement;
    double *live;            /* [pipeline * chunks], made when first asked for; and roughly: */
    double *here;            /* [pipeline * chunks] what of that is not away where stashes travel */
    smp_recompute recompute; /* with which it is looked at now, */
    bool offload;            /* and whether stashes may travel, */
    int horizon;             /* so far ahead */
    int32_t smallest;        /* of those that differ in micro-batches alone, that with the fewest */
    int32_t wholer; /* that which shards less for the same time or less, or by far less than 1 %
                       more (states in host memory), so that this one is only looked at where memory
                       binds there; -1: none */
    smp__outcome outcome;
    bool binds;             /* looked at: memory keeps it from what it might be */
    bool misses;            /* it does not fit, by far, */
    bool nearly;            /* or by little */
    bool doubtful;          /* memory is probably too small: looked at last */
    bool deferred;          /* after the same with other shards, in a large search */
    double estimate;        /* of what is minimised; orders the search, decides nothing */
    double family_estimate; /* the best of those that it is looked at with */
} smp__config;

/* Sums over the model that bounds are made of. Times on device 0, of one micro-batch. */
typedef struct smp__totals {
    double compute_us;    /* forward and backward of all ops, */
    double forward_us;    /* and forward alone */
    double path_us;       /* longest chain of ops: forward, and back as far as gradients need */
    double round_us;      /* longest from the forward of an op to the end of its backward */
    double weight_bytes;  /* each weight once */
    double stash_bytes;   /* as the costs have it */
    double largest_bytes; /* weights of one op */
} smp__totals;

typedef struct smp__configs {
    smp__planner *planner;
    const smp_search_request *request; /* the planner's, */
    const smp_costs *costs;            /* and its costs */
    smp__totals totals;
    double *one;           /* [n_op] 1.0, */
    int64_t *unlimited;    /* INT64_MAX: for problems in which memory does not count */
    bool *no_op, *all_ops; /* [n_op]: nothing recomputes, everything */
    smp__config *config;
    int32_t n;
    smp__arrangement *arrangement;
    int32_t n_arrangement;
    smp__mapping *mapping;
    size_t capacity, arrangement_capacity;
    smp_status first_failure; /* of an arrangement that has no pipeline */
    char first_message[1024];
    bool quick; /* many configurations: a quick look at all, every effort for the best of them */
    smp_arena *arena;
} smp__configs;

/* What may be in shards among `ddp` replicas, by degree; prefetch as asked for, or its choices
 * (schedule/planner/config_shards.c). */
enum { SMP__MAX_SHARDINGS = 256 };
typedef struct smp__shardings {
    smp_sharding item[SMP__MAX_SHARDINGS];
    int n;
} smp__shardings;
void smp__shardings_list(const smp__planner *planner, int ddp, smp__shardings *out);
/* Whether some of them gather weights, so that more chunks may help. */
bool smp__shardings_gather(const smp__planner *planner);
/* By degree, what, and falling prefetch. */
int smp__compare_shardings(smp_sharding a, smp_sharding b);
/* Fills in `gathers` of a shape with sharded weights. */
smp_status smp__config_count_gathers(const smp__configs *configs, smp__config *config);
/* Time of a rank's messages with weights and gradients in a step, roughly: for estimates. */
double smp__config_traffic_us(const smp__configs *configs, const smp__config *config);
/* Fills in `smallest` and `wholer` of the configurations from `first` on. */
smp_status smp__configs_relate(smp__configs *configs, int32_t first);

/* Lists every configuration that the request allows and the schedules can run, most promising
 * first. SMP_ERR_INPUT for contradictory numbers; if nothing remains, the first reason. */
smp_status smp__configs_list(smp__planner *planner, smp__configs *out);
/* Appends the same configuration under another bound on its live micro-batches, of a rule that
 * takes one. Pointers to configurations end here. */
smp_status smp__configs_add_bound(smp__configs *configs, int32_t index, int active, int lag);
void smp__configs_free(smp__configs *configs);
/* Keeps the first reason why something cannot be; the message is the last error. */
void smp__configs_note(smp__configs *configs, smp_status status);

/* The device assignment of a placement, made once (schedule/planner/device_mapping.c). listed: of
 * SMP_PLACEMENT_LISTED, [devices]. */
smp_status smp__mapping_get(smp__configs *configs, int pipeline, smp_placement placement,
                            const int *listed, const smp__mapping **out);
/* Tries orders of devices in the place of `order` [devices], which stays the best: all of few
 * devices, else exchanges of two until none helps, `most` at most; none that is another one's like
 * by the kinds and nodes of its devices. judge: says whether a listed placement is no worse than
 * the best before it. Nothing is tried where all orders are alike. */
enum { SMP__FEW_DEVICES = 5 /* of which all orders are tried */ };
typedef smp_status smp__judge_order(void *context, const int *listed, bool *better);
smp_status smp__orders_try(const smp__configs *configs, int pipeline, int most,
                           smp__judge_order *judge, void *context, int *order);
/* Appends the same configuration in a listed placement. Pointers to configurations end here. */
smp_status smp__configs_add_order(smp__configs *configs, int32_t index, const int *listed);
/* Appends all configurations of a mapping, in no order. */
smp_status smp__configs_list_mapping(smp__configs *configs, const smp__mapping *mapping);
/* Fills n_replica and counting: stages are made for all replicas that count, the others wait for
 * them in every reduction. */
smp_status smp__mapping_count(smp__mapping *mapping, const smp_search_request *request,
                              smp_arena *arena);
/* spread would use the same links between the same kinds of devices as cluster. */
bool smp__mapping_alike(const smp__mapping *a, const smp__mapping *b, const smp_cluster *cluster);

static inline const int *smp__config_stage_rank(const smp__configs *configs,
                                                const smp__config *config)
{
    return configs->arrangement[config->arrangement].stage_rank;
}

static inline int smp__compare_doubles(double a, double b)
{
    return (a > b) - (a < b);
}

static inline smp_schedule_shape smp__config_shape(const smp__configs *configs,
                                                   const smp__config *config)
{
    smp_schedule_shape shape =
        smp__planner_shape(configs->planner, config->mapping->pipeline, config->chunks,
                           config->microbatches, config->active);
    shape.sharding = config->sharding;
    shape.lag = config->lag;
    return shape;
}

/* Most live micro-batches on a rank: of all its chunks, or in parts of them. */
static inline double smp__live_microbatches(const smp_schedule_kind *schedule,
                                            const smp_schedule_shape *shape, int rank)
{
    return (double)schedule->live(shape, rank) / shape->chunks;
}

/* Memory of the smallest device that stands for a pipeline rank. */
static inline int64_t smp__config_memory(const smp__config *config, int rank)
{
    return config->mapping->memory[rank];
}

/* The problem of an arrangement without live counts. */
smp_problem smp__arrangement_problem(const smp__configs *configs,
                                     const smp__arrangement *arrangement);
/* The problem of a configuration, with its live counts (which it makes) and memory limits. */
smp_status smp__config_problem(smp__configs *configs, smp__config *config, smp_problem *out);

/* Solves the arrangement if that is not done. *exists: false if it has no pipeline, with the reason
 * recorded. */
smp_status smp__arrangement_solve(smp__configs *configs, smp__config *config, bool *exists);

/* Whether all stashes fit all memory, as the costs count them. */
bool smp__config_may_keep_all(const smp__configs *configs, const smp_problem *problem);

/* The partition of a configuration whose arrangement is solved, owned by the caller: the
 * arrangement's if it fits the memory, else one made under the limits, shrunk by `spare` (0..1),
 * which may not fit either. */
smp_status smp__config_partition(smp__configs *configs, smp__config *config, double spare,
                                 smp_partition **out);

/* True if the partition is the one that the arrangement has without memory limits. */
bool smp__config_is_free(const smp__configs *configs, const smp__config *config,
                         const smp_partition *partition);

/* The fastest partition whose fullest stage is at most 1 % fuller than it has to be. */
smp_status smp__config_least_memory(smp__configs *configs, smp__config *config,
                                    smp_partition **out);

/* The same as smp__config_partition with every effort; NULL where that is what was done already. */
smp_status smp__config_best_partition(smp__configs *configs, smp__config *config,
                                      smp_partition **out);

/* The same stages with exactly the given ops recomputing, [n_op]. */
smp_status smp__partition_recompute(const smp_problem *problem, const smp_partition *partition,
                                    const bool *recompute, smp_partition **out);

/* Bounds (schedule/planner/config_bounds.c). No step of any partition, of this partition, takes
 * less. */
smp_status smp__totals_make(const smp_search_request *request, const smp_costs *costs,
                            smp__totals *out);
/* After its last backward a rank updates its weights, and before that reduces their gradients where
 * it has a single stage: microseconds per byte of weight, at least. */
double smp__config_tail_us(const smp__configs *configs, const smp__config *config);
/* update_us: [n_op], that of an op's weights; a shared one counts where it is used first: some
 * stage holds it. */
void smp__config_updates(const smp__configs *configs, const smp__config *config, double *update_us);
/* Ranks of all replicas that can compute at a time, where those of a node share its cores. */
smp_status smp__config_cores(const smp__configs *configs, const smp__config *config,
                             smp_arena *scratch, int *n);
/* The least bottleneck of a problem with this configuration's stages in partitions that fit its
 * memory, in the order of its rule or any; recomputation counts in it. target_us: that of one that
 * fits (partition/prove/priced.h). */
smp_status smp__config_price(const smp__configs *configs, const smp__config *config,
                             const smp_problem *problem, bool rule, double target_us,
                             double *bound_us);
double smp__config_least_us_of_any(const smp__configs *configs, const smp__config *config);
smp_status smp__config_least_us(const smp__configs *configs, const smp__config *config,
                                const smp_partition *partition, double *least_us);
/* Bytes that the fullest rank keeps for ever, at least; of any partition, of this one. */
double smp__config_least_bytes_of_any(const smp__configs *configs, const smp__config *config);
double smp__config_least_bytes(const smp__config *config, const smp_partition *partition);
/* What all ranks must keep over all memory there is, or one op over that of the largest device:
 * above 1 no partition fits. */
double smp__config_overload(const smp__configs *configs, const smp__config *config);

/* Simulates a partition, which it takes over, and recomputes as much as it takes to fit where that
 * is a choice. Where it does not fit although the estimate did: tries again with the limits lowered
 * by what was missing. NULL: cannot fit, and *room_bytes < 0 says by how much at least. give_up_us:
 * see smp_candidate (schedule/planner/config_fit.c). */
smp_status smp__config_fit(smp__configs *configs, smp__config *config, smp_partition *partition,
                           double give_up_us, smp_candidate **out, int64_t *room_bytes);
/* One candidate of exactly this partition, which it takes over, also when it fails; where it is a
 * choice it recomputes as much as it takes to fit. give_up_us: see smp_candidate. */
smp_status smp__config_evaluate(smp__configs *configs, smp__config *config,
                                smp_partition *partition, double give_up_us, smp_candidate **out);

/* Where the request leaves them open: the candidate without buckets, whose latencies gathers pay
 * too, and with weights gathered a run earlier, if that is faster and fits; the configuration keeps
 * what was better. */
smp_status smp__config_tune(smp__configs *configs, smp__config *config, smp_candidate *candidate);
/* Where the request leaves it open, the horizon with which a candidate that offloads is fastest: of
 * 1, 2 and 4, each fitted and simulated; the configuration keeps it. */
smp_status smp__config_tune_horizon(smp__configs *configs, smp__config *config,
                                    smp_candidate *candidate);
/* Evaluates a candidate again that recomputes by choice: then it needs each op that does. */
smp_status smp__config_settle(smp__configs *configs, smp__config *config, smp_candidate *candidate);
typedef struct smp__means {
    bool recompute, offload; /* what is a choice */
} smp__means;
/* Names the ops of the candidate's partition that recompute, and those that are offloaded, under
 * its programs [pipeline], whose transfers are made here where the latter are a choice: as few as
 * it takes for every rank to fit its memory and `cap`, as far as that can be; a rank that fits
 * stays as it is. exactly: none of those that recompute can be left out; else a little more may,
 * found faster. The times of the partition stay (schedule/planner/memory_fit.c). */
smp_status smp__fit_memory(smp__planner *planner, const smp_problem *problem,
                           const smp_candidate *candidate, const smp_program *program,
                           smp__means means, int64_t cap, bool exactly);

/* The SMP_ERR_NO_FIT message for the candidate that missed by least. */
smp_status smp__search_no_fit(const smp__configs *configs, const smp__config *config,
                              const smp_candidate *nearest);

/* Whether stashes may travel: where the cluster has a link for them. */
static inline bool smp__may_offload(const smp_search_request *request)
{
    return request->offload != SMP_OFFLOAD_NONE && request->graph->training &&
           request->cluster->host.bytes_per_s > 0.0;
}

/* Stages that recompute their activations. */
static inline int smp__count_recomputing(const smp_partition *partition)
{
    int n = 0;
    for (int s = 0; s < partition->n_stage; s++)
        n += partition->load[s].recompute;
    return n;
}

#endif
