/* Discrete-event simulation of a step: compute, links, reductions, optimizer.
 *
 * Compute actions of a rank run in program order. A send starts when the action that made the data
 * is done and its link is free, and takes what partition/problem/message.h says; the receiver's
 * compute waits for it. Replicas run
 * by themselves, each on its own devices and links, until all of them have reached R: it starts a
 * ring all-reduce over them, 2(d-1)/d of the chunk's weight bytes over the slowest link of the
 * ring, plus the exchange of weights tied across stages; O waits for all of them, adds up
 * what the devices of a group have summands of (smp_costs_summands_us), and then updates.
 * What a rank stores and loads (S, L) goes over its own link to its host, each direction one after
 * the other, beside everything else; a compute action waits for its load, and for the stores that
 * have to be complete before it (smp_offload_stored_by).
 * Updates beside the next step take nothing of O: a step begins with those of the step before it,
 * in the order of the chunks, and the first forward of a chunk ends, and its gather begins, when
 * its weights are made (operators wait for their own: all but the last of them hide behind what
 * comes first).
 * Ranks on one core (smp_cluster_core_of) take turns: a rank keeps the core until it has to wait or
 * its slice is over, then the one that has waited longest gets it, and finds the cache filled by
 * others: passing a core on costs the cluster's core_switch_us. */
#ifndef SMP_SCHEDULE_SIMULATE_SIMULATE_H
#define SMP_SCHEDULE_SIMULATE_SIMULATE_H

#include "profile/costs.h"
#include "schedule/plan/plan.h"

typedef struct smp_simulation {
    double step_us; /* of all replicas */
    int replica;    /* the slowest: the one that computes longest. All below is of it */
    double bubble;  /* idle share of rank time before O, mean over ranks */
    int pipeline;
    double **start_us; /* [pipeline][program n] */
    double **end_us;   /* R: from the begin of its first bucket to its end; >F, >B: arrival; <F, <B:
                        data is there */
    double *busy_us;   /* [pipeline] compute and optimizer */
    double *updated_us; /* [pipeline] end of the updates beside the step; 0: there are none */
    /* [pipeline] step_us - busy_us, as the sum of its causes: */
    double *idle_us;
    double *warmup_us;    /* nothing to do yet: up to the first backward (inference: forward) */
    double *drain_us;     /* nothing left to do: from the last forward on, to the end of the step */
    double *transfer_us;  /* data on its way (overlap false: and every send and receive) */
    double *offload_us;   /* copies to and from the host; updates there, between the operators of a
                             forward too: */
    double *late_us;      /* of offload_us, in forwards, from whose start to whose end they count */
    double *imbalance_us; /* in between: data not made yet; a core held by another rank */
    double *reduction_us; /* between the last compute action and O */
} smp_simulation;

/* What the simulation needs of a plan; all borrowed. */
typedef struct smp_simulation_input {
    int pipeline, chunks, ddp, microbatches;
    smp_sharding sharding;
    const smp_program *program; /* [pipeline] */
    const int *stage_rank;      /* [n_stage] */
    const double *forward_us;   /* [n_stage] per micro-batch, on the slowest device that the stage
                                   has in any replica */
    const double *backward_us;
    const double *backward_input_us; /* NULL: half of backward */
    const double *recompute_us;   /* added to B or I: what of the forward runs again; NULL: none */
    const int64_t *weight_bytes;  /* [n_stage] */
    const int64_t *offload_bytes; /* [n_stage] what S moves; NULL where programs have none */
    int horizon;                  /* of smp_offloading; with them */
    const smp_flow *flow;
    int gradient_blocks;    /* of all replicas; 0: one of each */
    const smp_graph *graph; /* for tied weights */
    const smp_cluster *cluster;
    const int *device;            /* [ddp * pipeline] */
    double optimizer_bytes_per_s; /* <= 0: free */
    smp_precision precision;      /* whose rates tell how much slower one device is than another */
    int draw; /* 0: every action takes its time; else times as they scatter, the draw-th draw */
} smp_simulation_input;

/* The size of buckets (schedule/rules/shard.h) that suits a stage with so many bytes of weights, by
 * its ring over the replicas: what nothing hides, the last bucket, and the latency of every bucket
 * are least together. A power of two; 0: one bucket. Needs pipeline, ddp, sharding, graph, cluster
 * and device of the input. O(ddp). */
int64_t smp_bucket_bytes(const smp_simulation_input *input, int rank, int64_t weight_bytes);
/* How many neighbouring replicas are to exchange first, 0 being one hop: the choices that may be
 * the best; returns how many, at least 1. Left out is what is no cheaper than another one for what
 * is reduced first, however large, and for a weight of tied_bytes, which all replicas sum. Needs
 * what smp_bucket_bytes does. O(ddp log ddp), or ddp times that where adapters are shared. */
enum { SMP_HOPS_CHOICES = 32 /* powers of two */ };
int smp_node_replicas(const smp_simulation_input *input, int rank, int64_t weight_bytes,
                      int64_t tied_bytes, int choice[SMP_HOPS_CHOICES]);
/* Can buckets help on any partition? Not where the cores that compute move the data too. */
bool smp_buckets_help(const smp_cluster *cluster);

/* What I takes of each stage's backward_us, by the share that `costs` say for its ops: [n_stage],
 * in `arena`. O(ops + stages). */
smp_status smp_split_backward(const smp_costs *costs, const int32_t *stage_of_op, int n_stage,
                              const double *backward_us, smp_arena *arena,
                              const double **backward_input_us);

/* The same for a plan made with costs that were measured. */
smp_status smp_plan_split_backward(const smp_costs *costs, const int32_t *stage_of_op,
                                   smp_plan *plan);

smp_status smp_simulate(const smp_simulation_input *input, smp_simulation **out);
void smp_simulation_destroy(smp_simulation *simulation);

/* What the step takes more in the mean than step_us, that of the same plan where every action takes
 * its time: the mean of several draws of times that scatter as the cluster says, independently and
 * normally. 0 where it says nothing. */
smp_status smp_simulate_waits(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                              double step_us, double *waits_us);

/* Simulates a plan, made or read. SMP_ERR_INPUT if it has no `cluster:`. */
smp_status smp_simulate_plan(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                             smp_simulation **out);

/* The same from the model alone, with what is found on the way. */
typedef struct smp_simulated_plan {
    int32_t *stage_of_op; /* [n_op] */
    smp_flow *flow;
    smp_simulation *simulation;
} smp_simulated_plan;
smp_status smp_simulated_plan_open(const smp_plan *plan, const smp_graph *graph,
                                   smp_simulated_plan *out);
/* ... on devices that run at these shares of their usual speed, [processes]; NULL: all at 1,
 * whatever the plan was made for. */
smp_status smp_simulated_plan_open_at(const smp_plan *plan, const smp_graph *graph,
                                      const double *speed, smp_simulated_plan *out);
void smp_simulated_plan_close(smp_simulated_plan *simulated); /* fine if all is NULL */

#endif
