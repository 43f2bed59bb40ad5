/* A partition with a shorter step for a configuration (schedule/planner/step_search.c). */
#ifndef SMP_SCHEDULE_PLANNER_STEP_SEARCH_H
#define SMP_SCHEDULE_PLANNER_STEP_SEARCH_H

#include "schedule/planner/configs.h"

enum {
    SMP__SMALL_OPS = 64
}; /* of such graphs every configuration that may still win is searched */

/* Replaces *best, a candidate of the configuration, where another partition fits and its simulated
 * step is shorter, or where *best does not fit and the step is below limit_us (found in small
 * problems alone). Of small problems every partition is looked at that may take less than close_us,
 * of larger ones the neighbours of the best.
 * Takes from *work, which bounds what is simulated, in ops and actions; so does the request's
 * deadline. *replaced: the candidate that was given, the caller's; NULL if it is still the best.
 * Both are set on failure too. */
smp_status smp__step_search(smp__configs *configs, smp__config *config, double limit_us,
                            double close_us, double *work, smp_candidate **best,
                            smp_candidate **replaced);

#endif
