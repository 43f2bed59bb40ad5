/* Do two plans train a model to the same bits? */
#ifndef SMP_SCHEDULE_CHECK_SAME_BITS_H
#define SMP_SCHEDULE_CHECK_SAME_BITS_H

#include "schedule/plan/plan.h"

/* Given to smp-run with the same options, on processors of one kind. If not, the first reason is
 * appended to `reason`: what it is, then that of a and of b. Linear in the plans. */
smp_status smp_same_bits(const smp_plan *a, const smp_plan *b, bool *same, smp_text *reason);
/* The same of what only the model says, of plans of which that has been found: an operator that
 * adds up over the replicas in the middle of a call has the bits of one number of them. graph: as
 * smp_plan_open_model opens it. */
smp_status smp_same_joint_bits(const smp_plan *a, const smp_plan *b, const smp_graph *graph,
                               bool *same, smp_text *reason);
/* The answer for two plan files, with their model where it can be read, a line or a JSON object.
 * SMP_ERR_FAILED with the reason where bits differ; the text is complete then too. SMP_ERR_INPUT
 * for a file that is no whole plan. */
smp_status smp_same_bits_report(const char *path, const char *other, bool json, smp_text *text);

#endif
