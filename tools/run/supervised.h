/* A rank under a supervisor (tools/elastic/): its output goes to a file that outlives both, and it
 * ends with its launcher. */
#ifndef SMP_TOOLS_RUN_SUPERVISED_H
#define SMP_TOOLS_RUN_SUPERVISED_H

#include <inttypes.h>
#include <stdbool.h>

#include "graph/base/status.h"

/* Before the lines of a step, also of one that has none: its number, and the bits of its loss. */
#define SMP__STEP_MARK "# step %" PRId64 " %016" PRIx64
#define SMP__STEP_MARK_READ "# step %" SCNd64 " %" SCNx64

/* A rank is so many times slower than half of the ranks; 1: no more. */
#define SMP__PACE_MARK "# rank %d slow %.3f"
#define SMP__PACE_MARK_READ "# rank %d slow %lf"

/* The process is killed when its parent ends, however that ends. */
void smp__supervised_begin(void);
/* Standard output goes to the end of the file, which is there. */
smp_status smp__supervised_output(const char *path);
/* Marks. */
void smp__supervised_mark(int64_t step, double loss);
void smp__supervised_pace(int rank, double times);

#endif
