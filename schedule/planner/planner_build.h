/* A planning session, and what a configuration costs in it; shared by the planner's files. */
#ifndef SMP_SCHEDULE_PLANNER_PLANNER_BUILD_H
#define SMP_SCHEDULE_PLANNER_PLANNER_BUILD_H

#include "schedule/memory/memory.h"
#include "schedule/planner/planner.h"
#include "schedule/simulate/simulate.h"

/* Peak of one kind of rank. */
typedef struct smp__peak {
    bool used;
    uint64_t hash[2];
    int64_t bytes, host_bytes;
} smp__peak;

/* Hash table, open addressing; capacity is a power of two. */
typedef struct smp__peaks {
    smp__peak *item;
    size_t n, capacity;
} smp__peaks;

/* What missed the memory by least, for advice (schedule/planner/advice.c). */
typedef struct smp__nearest {
    bool known;
    int64_t peak_bytes;  /* of the rank that misses; of it */
    int64_t state_bytes; /* what it keeps for ever */
    int64_t limit_bytes; /* and has */
} smp__nearest;

/* A plan that is made to see what a change would bring, not to be used. */
typedef struct smp__trial {
    int32_t faster_op; /* takes half the time; -1: none */
    bool patient;      /* goes on beyond the deadline until something fits */
    /* Of what is minimised, per sample or a peak: what bounds say is not below that is left out; 0:
     * nothing is. */
    double most;
    bool *left_out; /* set if something was; or NULL */
} smp__trial;

/* Flow and layouts follow from the partition; the search evaluates many configurations of one
 * partition in a row, so those of the last one are kept. */
typedef struct smp__planner {
    smp_search_request request; /* as asked for, with `together` as below, and as deadline_s that of
                                   the part of the search at work (search_state.h) */
    int32_t *together;          /* owned; NULL: the request's */
    smp_costs *costs;
    int32_t *stage;  /* [n_op] the partition that flow and layout are of, */
    bool *recompute; /* [n_op] and what recomputes in it, */
    bool *offload;   /* [n_op] and what is offloaded: */
    bool *travels;   /* [n_stage] whether anything is, */
    bool any_travels;
    int64_t *offload_bytes; /* [n_stage] and how much of one micro-batch; < 0: not known */
    int n_stage;            /* 0: none */
    smp_flow *flow;
    smp_layout **layout; /* [2 * n_stage] whole, split; NULL: not made yet */
    smp__peaks peaks;
    bool is_trial;      /* its plan is not verified: its graph may not be the one that was read */
    double patience_s;  /* until when a configuration may look for what fits; 0: as long as it is */
    bool lost_patience; /* set where one did not look any further */
    bool any_shard;     /* degrees of sharding are searched; the request's is what does without */
    bool any_states;    /* ... and the optimizer's states with them in host memory or not */
    bool any_prefetch;  /* it may choose how far ahead weights are gathered */
    bool gives_up;      /* at the deadline, whether anything fits or not */
    double most;        /* see smp__trial */
    bool left_out;
    smp__nearest nearest; /* of the first search in which nothing fits */
} smp__planner;

/* One configuration in full. */
typedef struct smp__evaluation {
    smp_program *program; /* [pipeline] */
    int pipeline;
    smp_simulation *simulation;
    int64_t *peak_bytes; /* [pipeline] */
    int64_t *host_bytes; /* [pipeline]; 0 where the step took too long, as peaks */
} smp__evaluation;

smp_status smp__planner_open(const smp_search_request *request, smp__planner *planner);
void smp__planner_close(smp__planner *planner);

/* Without shards. active: bound on live micro-batches; 0: the rule's own. */
smp_schedule_shape smp__planner_shape(const smp__planner *planner, int pipeline, int chunks,
                                      int microbatches, int active);
smp_schedule_shape smp__candidate_shape(const smp__planner *planner,
                                        const smp_candidate *candidate);
/* The candidate's, with the buckets that suit its partition and devices. */
smp_sharding smp__candidate_sharding(const smp__planner *planner, const smp_candidate *candidate);
/* As smp_node_replicas: which hops the candidate may have. */
int smp__candidate_hops(const smp__planner *planner, const smp_candidate *candidate,
                        int choice[SMP_HOPS_CHOICES]);
/* Those of its shortest step, where the choice is open. */
smp_status smp__candidate_choose_hops(smp__planner *planner, smp_candidate *candidate);
/* Blocks of gradients of all replicas: as asked for, else one for each. */
static inline int smp__planner_blocks(const smp__planner *planner, int ddp)
{
    return planner->request.gradient_blocks > 0 ? planner->request.gradient_blocks : ddp;
}
/* A failure for numbers of the request that cannot be: before it the place where they stand. */
smp_status smp__at_numbers(const smp_search_request *request, smp_status status);
/* Can the schedule run with these numbers, and is the plan of a size that is any use? Records why
 * not. */
smp_status smp__planner_check(const smp_schedule_kind *kind, const smp_schedule_shape *shape);
/* Least memory of the devices that stand for a pipeline rank, one in each replica. */
int64_t smp__planner_limit(const smp__planner *planner, const smp_candidate *candidate, int rank);

/* The least room that `bytes` [pipeline] leave on a rank under its limit; < 0: they do not fit. */
int64_t smp__planner_room(const smp__planner *planner, const smp_candidate *candidate,
                          const int64_t *bytes, int *tight_rank);

/* Lowers, simulates and plans the memory of a candidate that has its partition. program: NULL for
 * that of its rule, else [pipeline], taken over. exactly: the memory of every rank is planned; else
 * that of every kind of rank, unless the step takes too long. */
smp_status smp__planner_evaluate(smp__planner *planner, const smp_candidate *candidate,
                                 smp_program *program, bool exactly, smp__evaluation *out);
void smp__evaluation_free(smp__evaluation *evaluation);
/* The candidate's step alone. */
smp_status smp__planner_step_us(smp__planner *planner, const smp_candidate *candidate,
                                double *step_us);
/* The plan of an exact evaluation, whose programs it takes over; it owns copies of all else that it
 * says. Not verified. */
smp_status smp__planner_write(const smp__planner *planner, const char *model_path,
                              const smp_candidate *candidate, smp__evaluation *evaluation,
                              smp_plan **out);
/* Evaluates the candidate, not exactly, and fills in its step, peaks, room and fit. */
smp_status smp__planner_judge(smp__planner *planner, smp_candidate *candidate);

/* Adds to the backwards of stages what the candidate's stages and programs (NULL: not known, no
 * backward is split) expose of exchanges (smp_costs_exposed_us). input_us may be NULL. */
smp_status smp__planner_expose(const smp__planner *planner, const smp_candidate *candidate,
                               const smp_program *program, double *backward_us, double *input_us);
/* What the simulator needs of a candidate whose partition the planner holds, as if every exchange
 * had beside it what the cost table says. Arrays live in `arena`; `program` is left NULL. */
smp_status smp__planner_simulation_input(const smp__planner *planner,
                                         const smp_candidate *candidate, smp_arena *arena,
                                         smp_simulation_input *out);
/* Whether the configuration at work has had its time; notes it. */
bool smp__planner_loses_patience(smp__planner *planner);
/* Makes the candidate's partition the one that the planner holds: flow, layouts and what travels.
 * offload: the candidate's, [n_op]; NULL: nothing. */
smp_status smp__planner_hold(smp__planner *planner, const smp_partition *partition,
                             const bool *offload);
/* The shape in which a candidate's programs are lowered, whose partition the planner holds: until
 * it holds another. */
smp_schedule_shape smp__held_shape(const smp__planner *planner, const smp_candidate *candidate);
/* Takes the stores and loads of stages of which nothing travels any more, since all of it is made
 * again, out of the program of the candidate's rank. */
smp_status smp__drop_transfers(const smp__planner *planner, const smp_candidate *candidate,
                               int rank, smp_program *program);
/* Layout of a stage of that partition under a program; borrowed. */
smp_status smp__planner_layout(smp__planner *planner, int stage, const smp_program *program,
                               int chunk, const smp_layout **out);

/* Peaks of all ranks, [pipeline], with their host areas (or NULL), or the peak of one with its
 * program; the planner holds the candidate's partition (schedule/planner/rank_peaks.c). */
smp_status smp__planner_peaks(smp__planner *planner, const smp_candidate *candidate,
                              const smp_program *program, bool exactly, int64_t *peak_bytes,
                              int64_t *host_bytes);
smp_status smp__planner_peak(smp__planner *planner, const smp_candidate *candidate,
                             const smp_program *program, int rank, bool exactly,
                             int64_t *peak_bytes);
/* Bytes that a rank of the candidate's partition needs whatever the order of its actions: with the
 * rule's live micro-batches never more than the exact peak. [pipeline] bytes. */
smp_status smp__planner_least_bytes(smp__planner *planner, const smp_candidate *candidate,
                                    int64_t *bytes);
/* The two parts of that: weights, gradients and states of each rank, [pipeline]; and what a rank
 * needs beside them in an order of its actions, whose compute actions alone count. The planner
 * holds the candidate's partition. */
smp_status smp__planner_state_bytes(smp__planner *planner, const smp_candidate *candidate,
                                    int64_t *bytes);
smp_status smp__planner_least_beside(smp__planner *planner, const smp_candidate *candidate,
                                     const smp_program *order, int rank, int64_t *bytes);
void smp__peaks_free(smp__peaks *peaks);

/* Looks for a better order of actions than that of the search's winner, whose evaluation is exact
 * (schedule/planner/try_auto.c). out->taken: evaluation was replaced by that of schedule "auto".
 * Does nothing where the request fixes the schedule or asks for something else than speed. */
smp_status smp__planner_auto(smp__planner *planner, const smp_candidate *best,
                             smp__evaluation *evaluation, smp_auto_outcome *out);

/* Tries every configuration that uses all `devices` and respects what is fixed. Speed: the least
 * simulated time per sample (objective step) or the smallest bottleneck per sample; within 1 % the
 * fewer micro-batches (of all replicas), then the smaller peak. auto micro-batches: 1, 2, 4, ... up
 * to 4 * pipeline (and pipeline itself). auto chunks: 1, 2, 4 as far as ops allow; on one rank only
 * 1, unless pins need more. Memory: the smallest peak; within 1 % the faster. Placements that
 * differ in no link and no device are tried once, as cluster. Devices that differ: rank r of
 * replica d has the device that the placement gives it, and where the request leaves that open
 * other orders of unequal devices are tried; every replica that differs counts. Recomputation
 * (auto): per op, as much as it takes for a rank to fit. The partition of the winner is handed to
 * smp_partition_prove, which raises its bound, and may improve it unless a partitioner was named.
 * Large searches take a quick look at all, and try every partitioner for the few near the best.
 * SMP_ERR_NO_FIT: says by how much and on which stage; a trial may say less. */
smp_status smp__search_run(smp__planner *planner, smp_search_result *out);

/* A plan as smp_plan_make makes it, but without advice, and not beyond the request's deadline.
 * *found: false where nothing fits that may be below trial->most, or the numbers cannot be
 * (schedule/planner/planner.c). */
smp_status smp__plan_try(const smp_search_request *request, const smp__trial *trial,
                         smp_planner_result *out, bool *found);

/* Adds to the recorded SMP_ERR_NO_FIT what would make the request fit: single changes of it, each
 * planned before it is named (schedule/planner/advice.c). Returns SMP_ERR_NO_FIT, unless that
 * fails. */
smp_status smp__plan_advise(const smp_search_request *request, const smp__nearest *nearest);
/* The least size not below `bytes` that can be printed, as smp_format_bytes prints it in the
 * buffer. */
int64_t smp__printed_bytes(char *buffer, size_t size, int64_t bytes);

#endif
