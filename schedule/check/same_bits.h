/* Do two plans train a model to the same bits? */
#ifndef SMP_SCHEDULE_CHECK_SAME_BITS_H
#define SMP_SCHEDULE_CHECK_SAME_BITS_H

#include "schedule/plan/plan.h"

/* Given to smp-run with the same options, on processors of one kind. If not, the first reason is
 * appended to `reason`: what it is, then that of a and of b. Linear in the plans. */
smp_status smp_same_bits(const smp_plan *a, const smp_plan *b, bool *same, smp_text *reason);
/* The answer for two plan files, a line or a JSON object. SMP_ERR_FAILED with the reason where bits
 * differ; the text is complete then too. SMP_ERR_INPUT for a file that is no whole plan. */
smp_status smp_same_bits_report(const char *path, const char *other, bool json, smp_text *text);

#endif
