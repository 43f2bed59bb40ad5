/* The command that starts the ranks of an elastic job. */
#ifndef SMP_TOOLS_ELASTIC_START_RANKS_H
#define SMP_TOOLS_ELASTIC_START_RANKS_H

#include "tools/elastic/elastic_job.h"

/* Takes the first slots at hand, for the plan of this number (plans.h), which is made. The agents
 * of their hosts end what is left of earlier ranks; once they are ready, ranks can be launched. */
smp_status smp__elastic_start(smp__elastic_job *job, int number);
smp_status smp__elastic_launch(smp__elastic_job *job);
/* Of the ranks that are picked, those on the host that has most. */
int smp__elastic_most_on_host(const smp__elastic_job *job);

#endif
