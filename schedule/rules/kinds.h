/* The schedules, for the registry. */
#ifndef SMP_SCHEDULE_RULES_KINDS_H
#define SMP_SCHEDULE_RULES_KINDS_H

#include "schedule/rules/schedule.h"

extern const smp_schedule_kind smp__schedule_simple;
extern const smp_schedule_kind smp__schedule_interleaved;
extern const smp_schedule_kind smp__schedule_zero_bubble;
extern const smp_schedule_kind smp__schedule_breadth_first;
extern const smp_schedule_kind smp__schedule_forward;
extern const smp_schedule_kind smp__schedule_auto;

#endif
