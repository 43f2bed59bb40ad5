/* Opening a job; building and freeing everything after the groups exist. */
#ifndef SMP_EXEC_JOB_JOB_H
#define SMP_EXEC_JOB_JOB_H

#include "exec/state/handle.h"

/* Makes a plan for options->model on options->planning.devices (0: `ranks`) devices. */
typedef smp_status smp__plan_maker(const smp_options *options, int ranks, smp_target target,
                                   smp_plan **out);

/* smp_init, with what rank 0 calls where options->model asks for a plan. Collective. */
smp_status smp__job_open(smp **out, const smp_options *options, smp__plan_maker *make_plan);

smp_status smp__job_build(smp *s);
void smp__job_free(smp *s);

#endif
