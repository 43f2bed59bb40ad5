/* What smp-run asks of a job besides the calls of smp.h: the place in the data, options and
 * evaluations that are saved with the weights, signals, replicas that drift, and how a job ends. */
#ifndef SMP_EXEC_JOB_TRAINING_H
#define SMP_EXEC_JOB_TRAINING_H

#include "exec/data/data.h"
#include "exec/state/drift.h"
#include "exec/state/progress.h"

/* Data for the model of the job. Collective; every rank returns the same. */
smp_status smp__job_data_open(smp *s, const smp_data_options *options, smp_data **out);

/* "cuda (H100), bf16, transport nccl", and lines of what was not possible; "": nothing that would
 * surprise. */
void smp__job_target_text(const smp *s, smp_text *text);
/* CUDA graphs that this rank launches in a step, and the launches that they stand for; 0: none. */
int64_t smp__job_graphs(const smp *s, int64_t *launches);
/* Where a rank of the world stands. */
void smp__job_place_of(const smp *s, int rank, int *replica, int *pipeline_rank);
/* The first process of a replica. */
int smp__job_first_process(const smp *s, int replica);
/* Has the plan what a page draws: its cluster? */
bool smp__job_has_cluster(const smp *s);
/* How far each replica was from what is right now, [ddp]. Collective. */
smp_status smp__drift_measure(smp *s, const float *kept, double *off);

/* The kinds of operators that the plan's estimates miss most, by what a profile of the run says
 * that smp_costs_write has made: "linear 12 ms (8 ms), ...", of a micro-batch, as estimated in
 * brackets. "" of a plan that was made with a profile. By one rank alone. */
smp_status smp__job_misjudged_ops(const smp *s, const char *profile, smp_text *out);

/* A rank has failed or is gone: the job can only be finalised. */
bool smp__job_failed(const smp *s);
/* Puts where this rank was before the message of a failure of its own. */
void smp__job_explain(const smp *s, smp_status status);

#endif
