/* The configurations that a search looks at, and what they share: devices of ranks, ranks of
 * stages, shards. */
#ifndef SMP_SCHEDULE_PLANNER_SPACE_CONFIGS_H
#define SMP_SCHEDULE_PLANNER_SPACE_CONFIGS_H

#include "partition/solve/solve.h"
#include "schedule/planner/space/session.h"

/* The configurations that a search looks at, their partitions and what they can cost at least. */

/* Which device serves which rank. Shared by all configurations of one pipeline and placement. */
typedef struct smp__mapping {
    struct smp__mapping *next;
    int pipeline, ddp;
    double replicas; /* smp__planner_replicas */
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

/* Where a configuration stands: the first ones are open, in the order of their turns. */
typedef enum smp__standing {
    SMP__OPEN,
    SMP__OPEN_DEFERRED, /* after the same with other shards, in a large search */
    SMP__OPEN_DOUBTFUL, /* memory is probably too small */
    SMP__OPEN_DOUBTFUL_DEFERRED,
    SMP__SIMULATED,   /* or at work */
    SMP__TOO_SLOW,    /* cannot be among the listed */
    SMP__TOO_LARGE,   /* cannot fit, */
    SMP__FAR_MISS,    /* by far, in the partitions that were found, */
    SMP__NEAR_MISS,   /* or by little */
    SMP__NO_PIPELINE, /* pins, groups and ties allow none */
    SMP__UNNEEDED     /* one that is no slower does without what this one has besides */
} smp__standing;

typedef struct smp__config {
    const smp__mapping *mapping;
    int chunks, microbatches;
    int active;            /* bound on live micro-batches; 0: the rule's own */
    int lag;               /* likewise, on those that wait for W */
    smp_sharding sharding; /* buckets and hops as asked for, or found to be better */
    double state_factor;   /* bytes kept for ever per byte of weight, */
    double idle_factor;    /* ... of an idle one */
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
    smp__standing standing;
    bool binds;             /* looked at: memory keeps it from what it might be */
    bool alone;             /* the one that an order of devices was looked at with */
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
    double largest_us;    /* forward and backward of one op */
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

/* What may be in shards among `ddp` replicas, by degree; prefetch as asked for, or its choices. */
/* Nothing is in shards, or with few_shards nothing but the optimizer's states. */
bool smp__sharding_is_whole(const smp__planner *planner, smp_sharding sharding);

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
/* Fills in `smallest` and `wholer` of the configurations from `first` on. */
smp_status smp__configs_relate(smp__configs *configs, int32_t first);

/* Lists every configuration that the request allows and the schedules can run, in no order and
 * without totals. SMP_ERR_INPUT for contradictory numbers; if nothing remains, the first reason. */
smp_status smp__configs_list(smp__planner *planner, smp__configs *out);
/* Appends the same configuration under another bound on its live micro-batches, of a rule that
 * takes one. Pointers to configurations end here. */
smp_status smp__configs_add_bound(smp__configs *configs, int32_t index, int active, int lag);
void smp__configs_free(smp__configs *configs);
/* Keeps the first reason why something cannot be; the message is the last error. */
void smp__configs_note(smp__configs *configs, smp_status status);

/* Device memory that communicators take of each device: by degrees alone, so messages that jump
 * over stages are not counted. 0 where the host's memory is the device's. An open choice of the
 * sharding counts as none. */
int64_t smp__communicator_bytes(const smp_search_request *request, int pipeline, int ddp,
                                smp_sharding sharding);
/* What arenas may take of the devices that stand for a pipeline rank, one in each replica: of the
 * smallest what communicators leave, or what the request says. */
int64_t smp__memory_of_rank(const smp_search_request *request, const int *device, int pipeline,
                            int ddp, smp_sharding sharding, int rank);

/* The device assignment of a placement, made once. listed: of
 * SMP_PLACEMENT_LISTED, [devices]. */
smp_status smp__mapping_get(smp__configs *configs, int pipeline, smp_placement placement,
                            const int *listed, const smp__mapping **out);
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

/* As above under the sharding of the request: never less than a configuration has. */
static inline int64_t smp__config_memory(const smp__config *config, int rank)
{
    return config->mapping->memory[rank];
}

static inline bool smp__config_is_open(const smp__config *config)
{
    return config->standing <= SMP__OPEN_DOUBTFUL_DEFERRED;
}

static inline bool smp__config_is_doubtful(const smp__config *config)
{
    return config->standing == SMP__OPEN_DOUBTFUL ||
           config->standing == SMP__OPEN_DOUBTFUL_DEFERRED;
}

/* What its ranks must keep exceeds their memory. */
static inline bool smp__config_is_too_large(const smp__config *config)
{
    return config->standing >= SMP__TOO_LARGE && config->standing <= SMP__NEAR_MISS;
}

/* The problem of an arrangement without live counts. */
smp_problem smp__arrangement_problem(const smp__configs *configs,
                                     const smp__arrangement *arrangement);

#endif
