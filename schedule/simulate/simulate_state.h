/* The simulator while it runs; shared by simulate.c, simulate_run.c, simulate_reduce.c and
 * simulate_buckets.c.
 *
 * Of the replicas those are simulated that count (profile/replicas.h), so of equal ones one; but
 * all of them if ranks share cores: which ranks of a node compute at the same time depends on all.
 * Times are kept of those that count. A "runner" is one (replica, rank). */
#ifndef SMP_SCHEDULE_SIMULATE_SIMULATE_STATE_H
#define SMP_SCHEDULE_SIMULATE_SIMULATE_STATE_H

#include "schedule/lower/crossing.h"
#include "graph/base/heap.h"
#include "profile/replicas.h"
#include "schedule/simulate/simulate_rings.h"

typedef enum smp__sim_phase {
    SMP__SIM_BEGIN, /* reaches its action */
    SMP__SIM_WAIT,  /* has reached it, waits for data */
    SMP__SIM_RUN    /* done when its event comes */
} smp__sim_phase;

/* What a runner moves to its host and back. */
typedef struct smp__sim_host {
    double out_free_us, in_free_us; /* when the directions of its link are */
    double *stored_us;              /* [program n] end of the stores to complete before an action */
    double *moved_us;               /* [chunks * microbatches] end of the store, then of the load */
} smp__sim_host;

typedef struct smp__sim_runner {
    int replica, rank, device; /* replica: of those simulated */
    int core;                  /* of all cores, if they are shared */
    int seat;                  /* its number on its core */
    int64_t next;              /* the action it stands at */
    smp__sim_phase phase;
    bool blocked; /* waits for something whose time is not known yet */
    bool ready;   /* in the queue */
    bool begun;   /* its action has had the core, if they are shared */
    double started_us;
    double compute_us;      /* time spent in F, B, I, W so far, but for: */
    double late_us;         /* waiting there for the updates of the step before */
    double optimizer_us;    /* time spent in O */
    double done_us;         /* end of its last action */
    int reductions_left;    /* whose time is not known yet */
    double reduced_us;      /* end of its last reduction so far */
    double owed_us;         /* of reductions that its core makes after all else, before O */
    double channel_free_us; /* its reductions and gathers go one after the other */
    double *gathered_us;    /* [chunks] end of the last gather; < 0: not known; 0: there was none */
    smp__sim_host *host;    /* NULL: nothing travels */
} smp__sim_runner;

/* A gather, at a position of a rank's program. */
typedef struct smp__sim_gather {
    int reached; /* by replicas */
    double end_us;
} smp__sim_gather;

/* A bucket of a stage's gradients: simulate_buckets.c. */
typedef struct smp__sim_bucket {
    int64_t bytes;
    int32_t first_op; /* of the ops with its weights */
    double at;        /* share of the last backward that is done when its gradients are */
} smp__sim_bucket;

/* A core runs one runner at a time, which keeps it until it has to wait, or its slice is over and
 * another one wants it. Then the one that has waited longest gets it. */
typedef struct smp__sim_core {
    smp_heap waiting; /* seats by when they asked */
    double *work_us;  /* [n_member] compute time asked for, or left */
    int *member;      /* [n_member] runner on a seat */
    int n_member;
    int running;     /* seat, or -1 */
    int last;        /* seat that ran last, or -1 */
    double taken_us; /* since when it has had the core */
    double end_us;   /* when it is done if nothing comes between */
    double freed_us; /* when it last gave it up */
} smp__sim_core;

typedef struct smp__sim {
    const smp_simulation_input *input;
    smp__crossing crossing;
    smp_arena *arena; /* scratch */
    int n_replica;    /* simulated */
    int *replica;     /* [n_replica] of the plan */
    bool *counts;     /* [n_replica] */
    int shown;        /* once all is done: the slowest of those that count */
    double *share;    /* [n_replica * n_rank] see smp__sim_share */
    int n_runner;
    double now_us;
    double *cost_us[SMP_ACTION_W + 1]; /* [n_replica * n_stage] by kind of compute action */
    double *optimizer_us;              /* [n_rank] O, and the sums over a group before it */
    double *updated_us;                /* [n_rank * chunks] when the updates of the step before have
                                          made a chunk's weights; NULL: they are not beside */
    smp__sim_runner *runner;           /* [n_replica * n_rank] */
    int *queue;                        /* ring of runners that may go on now, [n_runner] */
    int queue_head, n_queue;
    smp_heap events;     /* runners, then cores */
    smp__sim_core *core; /* [nodes * cores_per_node]; NULL: nobody shares cores */
    double slice_us;     /* of a core that another runner waits for, */
    int64_t n_cut;       /* and how many of them ended in the middle of an action */
    double *transfer_us; /* [n_replica * n_transfer] */
    double *arrival_us;  /* [n_replica * n_transfer * microbatches], -1: not sent */
    double *sent_us;     /* [n_replica * n_transfer * microbatches] when its `>` was reached */
    int32_t *link_of;    /* [n_transfer] link: an ordered pair of ranks; -1: no message */
    int n_link;
    double *link_free_us; /* [n_replica * n_link] */
    /* reductions */
    int32_t *bucket_begin;    /* [n_stage + 1] */
    smp__sim_bucket *bucket;  /* of each stage in order; what else it has goes at R */
    double *backward_from_us; /* [n_replica * n_stage] the last backward action, or W; */
    double *backward_to_us;   /* its end */
    int64_t *trained_bytes;   /* [n_stage] of weights, without those that are idle (smp_param) */
    int64_t *half_only_bytes; /* [n_stage] of these, what is on the device in 16 bits alone */
    int *bucket_reached;      /* [n_stage] runners that stand after R */
    double *reduce_from_us;   /* [n_stage] of its first bucket; */
    double *reduce_end_us;    /* of all and its ties */
    int *tie_begin;           /* [n_stage + 1] into tie_list: ties held by a stage */
    int *tie_list;            /* */
    int *tie_reached;         /* [n_tie] */
    double *compute_end_us;   /* [n_replica] last end of a compute action */
    smp__sim_gather **gather; /* [n_rank][program n]; NULL without sharding */
    int *all_reached;         /* [n_stage] A, by replicas */
    double *all_end_us;       /* [n_stage] */
    double **start_us; /* [n_replica * n_rank][program n] in the result's memory; NULL: its */
    double **end_us;   /* replica does not count */
    smp_simulation *result;
} smp__sim;

/* simulate_run.c: runs all to the end. SMP_ERR_FAILED if the programs deadlock. */
smp_status smp__sim_run(smp__sim *sim);
/* The runner may go on at now_us. */
void smp__sim_wake(smp__sim *sim, int runner);

/* simulate_buckets.c */
smp_status smp__sim_buckets(smp__sim *sim);

/* simulate_reduce.c */
smp_status smp__sim_reduce_init(smp__sim *sim);
/* A runner's B or W of a stage ends now. */
void smp__sim_backward(smp__sim *sim, const smp__sim_runner *r, int stage);
/* A runner has reached R of a stage; G; A, where it stays until R's reduction is done: is it? */
void smp__sim_reduce(smp__sim *sim, int stage);
void smp__sim_gather_weights(smp__sim *sim, smp__sim_runner *r, int chunk);
bool smp__sim_all(smp__sim *sim, smp__sim_runner *r, int stage);
static inline double smp__sim_updated_us(const smp__sim *sim, const smp__sim_runner *r, int chunk)
{
    return sim->updated_us ? sim->updated_us[r->rank * sim->input->chunks + chunk] : 0.0;
}

/* Parts of the states that are sharded. */
static inline double smp__sim_parts(const smp_simulation_input *input)
{
    return input->sharding.shard > 1 ? input->sharding.shard : 1.0;
}
/* Fills trained_bytes and half_only_bytes. */
smp_status smp__sim_count_trained(smp__sim *sim);
/* Trained bytes of a rank, a weight tied within the rank counted once. */
int64_t smp__sim_rank_bytes(const smp__sim *sim, int rank);
/* Adds to the optimizer's times what a group adds up before it: gradients of which each of its
 * devices has a summand, by all uses of the weights that a rank has. */
smp_status smp__sim_add_summands(smp__sim *sim);

/* Adds, by stage, what sums over replicas in the middle of its operators take (smp_op_joint). */
void smp__sim_joint_us(const smp_simulation_input *input, double *forward_us, double *backward_us);

/* simulate_offload.c */
smp_status smp__sim_offload_init(smp__sim *sim);
/* A runner has reached S or L, with which it is done now: when the copy ends. */
double smp__sim_offload(const smp__sim *sim, smp__sim_runner *r, const smp_action *a);
/* When what the compute action at a position needs of the host link is done. */
double smp__sim_offloaded_us(const smp__sim *sim, const smp__sim_runner *r, int64_t position);

/* simulate_idle.c: splits the idle time of the finished simulation by cause. */
void smp__sim_idle(const smp__sim *sim);

/* Slowdown of the slowest device that a rank has in any replica: times of stages are those there.
 * O(ddp). */
static inline double smp__sim_slowest(const smp_simulation_input *input, int rank)
{
    return smp_replicas_slowest(input->cluster, input->precision, input->pipeline, input->ddp,
                                input->device, rank);
}

/* What the device of a rank in a replica takes of these times. */
static inline double smp__sim_share(const smp_simulation_input *input, int replica, int rank,
                                    double slowest)
{
    int device = input->device[(int64_t)replica * input->pipeline + rank];
    double own = smp_device_slowdown(input->cluster, input->precision, device);
    return slowest > 0.0 ? own / slowest : 1.0;
}

/* The part of a stage's backward that I takes, without recomputation. */
static inline double smp__sim_input_us(const smp_simulation_input *input, int stage)
{
    return input->backward_input_us ? input->backward_input_us[stage]
                                    : input->backward_us[stage] / 2;
}

static inline const smp_program *smp__sim_program(const smp__sim *sim, const smp__sim_runner *r)
{
    return &sim->input->program[r->rank];
}

static inline int smp__sim_stage(const smp__sim *sim, int rank, int chunk)
{
    return sim->crossing.stage_of[(int64_t)rank * sim->crossing.chunks + chunk];
}

static inline int64_t smp__sim_message(const smp__sim *sim, int replica, int32_t transfer, int mb)
{
    int64_t row = (int64_t)replica * sim->crossing.flow->n_transfer + transfer;
    return row * sim->input->microbatches + mb;
}

static inline double *smp__sim_arrival(const smp__sim *sim, int replica, int32_t transfer, int mb)
{
    return &sim->arrival_us[smp__sim_message(sim, replica, transfer, mb)];
}

#endif
