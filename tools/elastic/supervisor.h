/* smp-run --elastic: a job that goes on while devices come and go. */
#ifndef SMP_TOOLS_ELASTIC_SUPERVISOR_H
#define SMP_TOOLS_ELASTIC_SUPERVISOR_H

#include <stdbool.h>

/* Is --elastic among the words of the command line? */
bool smp__elastic_asked(int argc, char **argv);
/* Plans, starts the ranks and watches them until the job ends. The exit code. */
int smp__elastic(int argc, char **argv);

#endif
