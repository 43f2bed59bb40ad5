/* The command that starts the ranks of an elastic job. */
#ifndef SMP_TOOLS_ELASTIC_START_RANKS_H
#define SMP_TOOLS_ELASTIC_START_RANKS_H

#include "tools/elastic/elastic_job.h"

/* Starts ranks by the plan for so many devices, which is made, on the first slots at hand. What is
 * left of earlier ones is ended before. */
smp_status smp__elastic_start(smp__elastic_job *job, int devices);
/* Removes what ranks that have ended left of the memory that they shared. */
void smp__elastic_sweep(const smp__elastic_job *job);

#endif
