/* The work that a search may be, and who gets how much of it: what finds configurations, what
 * improves the best, what proves bounds, each by its own share, so that the next has some; the rest
 * makes the plan. Deadlines are of smp_work_s(). */
#ifndef SMP_SCHEDULE_PLANNER_SPACE_BUDGET_H
#define SMP_SCHEDULE_PLANNER_SPACE_BUDGET_H

#include <stdbool.h>

#include "smp.h"

/* The deadline of a planning that begins now, in this thread: when the effort is spent, and where
 * limit_s > 0 no later than when the thread has had a core for so long; 0: none. */
double smp_effort_begin(smp_effort effort, double limit_s);

/* Seconds of work that an effort is; 0: as long as it takes. */
double smp_effort_s(smp_effort effort);

typedef enum smp__part { SMP__PART_FIND, SMP__PART_IMPROVE, SMP__PART_PROVE } smp__part;

typedef struct smp__budget {
    double begin_s, end_s; /* smp_work_s() of the whole; end_s 0: no limit */
    double part_s;         /* likewise, the end of the part at work */
    double patience_s;  /* until when a configuration may look for what fits; 0: as long as it is */
    bool lost_patience; /* set where one did not look any further */
} smp__budget;

/* All the time from now on is that of one part. */
void smp__budget_open(smp__budget *budget, double end_s);
/* quick: of a search whose plan takes long to make, too. */
void smp__budget_begin(smp__budget *budget, smp__part part, bool quick);
bool smp__budget_is_over(const smp__budget *budget); /* of the part at work */
/* By when a share of what is left of the part is over; 0: never. */
double smp__budget_share(const smp__budget *budget, double share);
/* Whether the configuration at work has had its time; notes it. */
bool smp__budget_loses_patience(smp__budget *budget);

#endif
