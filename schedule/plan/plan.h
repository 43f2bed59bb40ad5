/* The plan: everything the executor does, as data, and its file. */
#ifndef SMP_SCHEDULE_PLAN_PLAN_H
#define SMP_SCHEDULE_PLAN_PLAN_H

#include "graph/base/text.h"
#include "graph/math/gemm_algorithms.h"
#include "graph/split/splitting.h"
#include "partition/problem/flow.h"
#include "partition/problem/problem.h"
#include "schedule/plan/freeze.h"
#include "schedule/plan/gradient_blocks.h"
#include "schedule/rules/schedule.h"

/* cluster: the ranks of one pipeline are neighbours; spread: the replicas of one stage are. listed:
 * a list says it. auto, only in a request: the best of all. */
typedef enum smp_placement {
    SMP_PLACEMENT_CLUSTER,
    SMP_PLACEMENT_SPREAD,
    SMP_PLACEMENT_AUTO,
    SMP_PLACEMENT_LISTED
} smp_placement;

typedef struct smp_plan_stage {
    int rank; /* pipeline rank */
    int32_t n_op;
    const char *const *op; /* names, in graph order */
    const bool *recompute; /* [n_op] what it makes may be made again in the backward; NULL: none */
    const bool *offload;   /* [n_op] what of it is stashed may travel to host memory; NULL: none */
    double forward_us, backward_us;
    double forward_exchange_us, backward_exchange_us; /* of these, inside of the rank's group */
    double recompute_us; /* forward time of what is made again, added to a backward */
    int64_t weight_bytes, stash_bytes;
    int64_t offload_bytes; /* of one micro-batch, what may travel (smp_layout) */
} smp_plan_stage;

/* How many of its ops a mask of a stage names: 0, some, or all n_op. */
static inline int32_t smp_plan_stage_count(const smp_plan_stage *stage, const bool *mask)
{
    int32_t n = 0;
    for (int32_t i = 0; mask && i < stage->n_op; i++)
        n += mask[i];
    return n;
}
static inline int32_t smp_plan_stage_recomputes(const smp_plan_stage *stage)
{
    return smp_plan_stage_count(stage, stage->recompute);
}
static inline int32_t smp_plan_stage_offloads(const smp_plan_stage *stage)
{
    return smp_plan_stage_count(stage, stage->offload);
}

typedef struct smp_predicted {
    double
        waits_us; /* what a step takes more in the mean as times scatter: ranks wait for what took
                        longer. step_us is without; 0: how they scatter is not known */
    double step_us, bubble, samples_per_s, bottleneck_us, lower_bound_us, gap;
    double step_lower_bound_us, step_gap; /* 0: not known */
    const int64_t *peak_bytes;            /* [pipeline]: the arena each rank reserves, AdamW */
    const int64_t *host_bytes;            /* [pipeline] its host area; NULL: none has any */
    int64_t communicator_bytes;           /* of each device, beside its arena; 0: none */
    const char *costs; /* where they come from, as smp_costs.source; NULL: the file does not say */
    double error;      /* the step is right within this share of it; 0: not known */
} smp_predicted;

/* Where things stand in the file, for messages; empty in a plan that was not read. */
typedef struct smp_plan_places {
    smp_where fingerprint, schedule, stages, predicted, host;
    const smp_where *stage;   /* [n_stage] or NULL */
    const smp_where *program; /* [pipeline] or NULL */
} smp_plan_places;

typedef struct smp_plan {
    const char *model_path; /* as in the file; relative to the plan's folder */
    const char *model_name;
    smp_settings settings; /* the model was read with */
    uint64_t fingerprint;
    /* Each of `devices` is a group of splitting.devices processes that compute every op together;
     * all else is about groups, with a graph in which ops have their share (graph/split). */
    int devices, pipeline, ddp, chunks;
    smp_splitting splitting;
    /* Where not all groups are as large: [pipeline + 1] processes of a replica before each rank,
     * and all of them. A device is then its group's first process, and `placement` cluster. NULL:
     * every group has splitting.devices. */
    const int *rank_begin;
    smp_placement placement;
    const int
        *device; /* [devices] of a listed placement, at replica * pipeline + rank; else NULL */
    int microbatches;
    int64_t microbatch_size;
    smp_sharding sharding;
    int gradient_blocks; /* of all replicas: schedule/plan/gradient_blocks.h */
    int loading_horizon; /* of what travels (schedule/rules/offload.h); 0: nothing does */
    const char *schedule;
    smp_target target;     /* `execution:`; the CPU in fp32 if absent */
    int64_t library_bytes; /* of a GPU, as the profile measured them; 0: not known */
    bool training;         /* from the model's mode */
    int n_stage;
    const smp_plan_stage *stage; /* [pipeline * chunks] */
    const bool *travels;         /* [n_stage] something of it does: offload_bytes > 0; NULL: none */
    const smp_program *program;  /* [pipeline] */
    smp_predicted predicted;
    const smp_cluster *cluster;      /* `cluster:`, what the prediction assumed; NULL if absent */
    double optimizer_bytes_per_s;    /* with it */
    const double *backward_input_us; /* [n_stage] of backward_us, what I takes; NULL: half of it */
    smp_gemm_choices products;       /* how matrix products are computed; device NULL: not said */
    smp_freezing freezing;           /* weights by name, in the plan's own model */
    smp_plan_places place;
    smp_arena *arena;
} smp_plan;

/* Reads and checks the file by itself: keys, types, counts, ranks. SMP_ERR_INPUT with
 * file:line:column. */
smp_status smp_plan_read(const char *path, smp_plan **out);
smp_status smp_plan_parse(const char *name, const char *text, size_t bytes, smp_plan **out);
/* Same plan, same bytes. */
smp_status smp_plan_format(const smp_plan *plan, smp_text *yaml);
smp_status smp_plan_format_json(const smp_plan *plan, smp_text *json);
void smp_plan_destroy(smp_plan *plan);

/* Fills plan->stage and `travels`: names of ops in graph order, and costs, as the partition has
 * them; offload: [n_op] of what the stash travels, or NULL, offload_bytes: [n_stage] beside it.
 * Copies; the arena is the plan's. */
smp_status smp_plan_set_stages(smp_plan *plan, const smp_graph *graph,
                               const smp_partition *partition, const int *stage_rank,
                               const bool *offload, const int64_t *offload_bytes);

/* Opens the model that the plan names, for the plan's target, split as the plan says, for device
 * `index` of each group: the path as given if it is absolute, else relative to the folder of
 * plan_path, else to the working directory. */
smp_status smp_plan_open_model(const smp_plan *plan, const char *plan_path, int index,
                               smp_graph **out);

/* Devices that compute every op together, at least 1: of the largest group, and of one rank's. */
static inline int smp_plan_tensor(const smp_plan *plan)
{
    return plan->splitting.devices > 1 ? plan->splitting.devices : 1;
}
static inline int smp_plan_rank_tensor(const smp_plan *plan, int rank)
{
    return plan->rank_begin ? plan->rank_begin[rank + 1] - plan->rank_begin[rank]
                            : smp_plan_tensor(plan);
}

/* Blocks of gradients of all replicas: one of each where a plan says nothing. */
static inline int smp_plan_blocks(const smp_plan *plan)
{
    return plan->gradient_blocks > 0 ? plan->gradient_blocks : plan->ddp;
}
/* Micro-batches of a step of all replicas. */
static inline int64_t smp_plan_microbatches(const smp_plan *plan)
{
    return smp_gradient_microbatches(smp_plan_blocks(plan), plan->ddp, plan->microbatches);
}

/* Processes of a job. */
static inline int smp_plan_processes(const smp_plan *plan)
{
    return plan->rank_begin ? plan->ddp * plan->rank_begin[plan->pipeline]
                            : plan->devices * smp_plan_tensor(plan);
}

/* Takes a copy of [pipeline + 1] as `rank_begin`, unless all groups are alike, and lists the ops of
 * smaller ones in splitting.fewer; of a plan whose stages are set. */
smp_status smp_plan_set_groups(smp_plan *plan, const int *rank_begin);

/* The plan against its model: fingerprint, target, every op in exactly one stage, legal order.
 * Gives the stage of each op, malloc'ed. */
smp_status smp_plan_bind(const smp_plan *plan, const smp_graph *graph, int32_t **stage_of_op);

smp_where smp_plan_stage_where(const smp_plan *plan, int stage);
smp_where smp_plan_program_where(const smp_plan *plan, int rank);
smp_schedule_shape smp_plan_shape(const smp_plan *plan);
/* The stage a rank's chunk stands for, by the ranks in plan->stage; -1 if none. */
int smp_plan_stage_of(const smp_plan *plan, int rank, int chunk);
/* Device of the cluster, a group of it where ops are split, of a replica's pipeline rank. Device
 * `index` of group g is world rank g * splitting.devices + index, or where groups differ g + index.
 */
int smp_plan_device(const smp_plan *plan, int replica, int rank);
/* World rank of its first process: the only one, or of a group. */
static inline int smp_plan_first_process(const smp_plan *plan, int replica, int rank)
{
    const int device = smp_plan_device(plan, replica, rank);
    return plan->rank_begin ? device : device * smp_plan_tensor(plan);
}
/* The other way round: false, and nothing is set, if the process is none of the plan's. */
bool smp_plan_place(const smp_plan *plan, int process, int *replica, int *rank, int *index);
/* The same of a placement; listed: [pipeline * ddp], of SMP_PLACEMENT_LISTED only. */
int smp_placement_device(smp_placement placement, const int *listed, int pipeline, int ddp,
                         int replica, int rank);
/* Where groups differ: the first device of each, *device is [pipeline * ddp]. */
void smp_first_devices(const int *rank_begin, int pipeline, int ddp, int *device);
/* What a list says: cluster, spread, or neither, SMP_PLACEMENT_LISTED. O(devices). */
smp_placement smp_placement_of(const int *listed, int pipeline, int ddp);

#endif
