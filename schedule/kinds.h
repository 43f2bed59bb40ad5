/* The schedules, for the registry. */
#ifndef SMP_SCHEDULE_KINDS_H
#define SMP_SCHEDULE_KINDS_H

#include "schedule/schedule.h"

extern const smp_schedule_kind smp__schedule_simple;
extern const smp_schedule_kind smp__schedule_interleaved;

#endif
