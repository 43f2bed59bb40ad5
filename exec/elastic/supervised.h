/* A rank under a supervisor (tools/elastic/): its output goes to a file that outlives both, and it
 * ends with its launcher. What a program that is no smp-run is told stands in its environment. */
#ifndef SMP_EXEC_ELASTIC_SUPERVISED_H
#define SMP_EXEC_ELASTIC_SUPERVISED_H

#include <inttypes.h>
#include <stdbool.h>

#include "graph/base/status.h"

/* Before the lines of a step, also of one that has none: its number, and the bits of its loss. */
#define SMP__STEP_MARK "# step %" PRId64 " %016" PRIx64
#define SMP__STEP_MARK_READ "# step %" SCNd64 " %n%" SCNx64 "%n"
enum { SMP__STEP_MARK_DIGITS = 16 };
/* A rank is so many times slower than half of the ranks; 1: no more. */
#define SMP__PACE_MARK "# rank %d slow %.3f"
#define SMP__PACE_MARK_READ "# rank %d slow %lf%n"
/* A state is loaded: from memory (1) or a checkpoint (0), and bytes that hosts had from others. */
#define SMP__LOAD_MARK "# loaded %d %.0f"
#define SMP__LOAD_MARK_READ "# loaded %d %lf%n"

/* What a program is told: smp_elastic_join in smp.h. */
#define SMP__ELASTIC "SMP_ELASTIC"
#define SMP__ELASTIC_VERSION "1"
#define SMP__ELASTIC_PLAN "SMP_ELASTIC_PLAN"
#define SMP__ELASTIC_CHECKPOINT "SMP_ELASTIC_CHECKPOINT"
#define SMP__ELASTIC_ROWS "SMP_ELASTIC_ROWS"
#define SMP__ELASTIC_KEEP_EVERY "SMP_ELASTIC_KEEP_EVERY"
#define SMP__ELASTIC_KEEP_IN "SMP_ELASTIC_KEEP_IN"
#define SMP__ELASTIC_DEVICE "SMP_ELASTIC_DEVICE"
#define SMP__ELASTIC_TIMEOUT "SMP_ELASTIC_TIMEOUT"
#define SMP__ELASTIC_TIMEOUT_START "SMP_ELASTIC_TIMEOUT_START"
#define SMP__ELASTIC_TIMEOUT_SAVE "SMP_ELASTIC_TIMEOUT_SAVE"

enum { SMP__EXIT_STOPPED = 4 }; /* exit code: a signal has ended the job, which can be resumed */

/* The process is killed when its parent ends, however that ends. */
void smp__supervised_begin(void);
/* Standard output goes to the end of the file, which is there. option: that named it. */
smp_status smp__supervised_output(const char *option, const char *path);
/* Marks. */
void smp__supervised_mark(int64_t step, double loss);
void smp__supervised_pace(int rank, double times);
void smp__supervised_loaded(bool from_memory, double fetched);

#endif
