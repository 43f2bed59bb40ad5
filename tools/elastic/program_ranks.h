/* Ranks that are a program of the user's: smp-run --elastic MODEL ... -- PROGRAM ARGUMENTS. What
 * smp-run as a rank has as options they have in their environment (smp_elastic_join in smp.h). */
#ifndef SMP_TOOLS_ELASTIC_PROGRAM_RANKS_H
#define SMP_TOOLS_ELASTIC_PROGRAM_RANKS_H

#include "tools/elastic/elastic_job.h"

/* Where "--" stands among the arguments, behind which the program does; argc: nowhere. */
int smp__program_at(int argc, char **argv);
/* May an option of smp-run be given beside a program? It is one of the job's, not of its ranks'. */
bool smp__program_allows(const char *option);
/* SMP_ERR_INPUT: the program is a path that cannot be run. */
smp_status smp__program_check(const char *program);
/* Sets the variables for the incarnation that is about to be started. */
smp_status smp__program_tell(const smp__elastic_job *job);
/* Their names, NULL at the end: mpirun brings those alone to other hosts that it is told of. */
extern const char *const smp__program_variables[];

#endif
