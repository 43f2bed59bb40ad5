/* A plan made from the library's options. */
#ifndef SMP_EXEC_START_PLAN_FROM_OPTIONS_H
#define SMP_EXEC_START_PLAN_FROM_OPTIONS_H

#include "graph/model/target.h"
#include "schedule/plan/plan.h"

/* The plan for options->model on options->devices (0: `ranks`) devices. */
smp_status smp__plan_from_options(const smp_options *options, int ranks, smp_target target,
                                  smp_plan **out);

#endif
