/* What a candidate costs, by lowering, simulation and the memory planner; and the partitions with
 * which a configuration fits: what recomputes in them, and what is offloaded. */
#ifndef SMP_SCHEDULE_PLANNER_FIT_FIT_H
#define SMP_SCHEDULE_PLANNER_FIT_FIT_H

#include "schedule/planner/fit/candidate.h"
#include "schedule/planner/space/configs.h"

/* One configuration in full. */
typedef struct smp__evaluation {
    smp_program *program; /* [pipeline] */
    int pipeline;
    smp_simulation *simulation;
    int64_t *peak_bytes; /* [pipeline] */
    int64_t *host_bytes; /* [pipeline]; 0 where the step took too long, as peaks */
} smp__evaluation;

smp_schedule_shape smp__candidate_shape(const smp__planner *planner,
                                        const smp_candidate *candidate);
/* The candidate's, with the buckets that suit its partition and devices. */
smp_sharding smp__candidate_sharding(const smp__planner *planner, const smp_candidate *candidate);
/* As smp_node_replicas: which hops the candidate may have. */
int smp__candidate_hops(const smp__planner *planner, const smp_candidate *candidate,
                        int choice[SMP_HOPS_CHOICES]);
/* Those of its shortest step, where the choice is open. */
smp_status smp__candidate_choose_hops(smp__planner *planner, smp_candidate *candidate);
/* As smp__memory_of_rank. */
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
/* The shape in which a candidate's programs are lowered, whose partition the planner holds: until
 * it holds another. */
smp_schedule_shape smp__held_shape(const smp__planner *planner, const smp_candidate *candidate);
/* Takes the stores and loads of stages of which nothing travels any more, since all of it is made
 * again, out of the program of the candidate's rank. */
smp_status smp__drop_transfers(const smp__planner *planner, const smp_candidate *candidate,
                               int rank, smp_program *program);

/* Peaks of all ranks, [pipeline], with their host areas (or NULL), or the peak of one with its
 * program; the planner holds the candidate's partition (rank_peaks.c). */
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

/* Simulates a partition, which it takes over, and recomputes as much as it takes to fit where that
 * is a choice. Where it does not fit although the estimate did: tries again with the limits lowered
 * by what was missing. NULL: cannot fit, and *room_bytes < 0 says by how much at least. give_up_us:
 * see smp_candidate (config_fit.c). */
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
 * found faster. The times of the partition stay (memory_fit.c). */
smp_status smp__fit_memory(smp__planner *planner, const smp_problem *problem,
                           const smp_candidate *candidate, const smp_program *program,
                           smp__means means, int64_t cap, bool exactly);

#endif
