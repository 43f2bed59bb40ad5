/* Values of smp-partition's options. Each fails with SMP_ERR_INPUT and a message that begins with
 * the option. */
#ifndef SMP_TOOLS_PARTITION_VALUES_H
#define SMP_TOOLS_PARTITION_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

/* automatic: "auto" too, which is 0. */
smp_status smp__parse_count(const char *option, const char *text, bool automatic, int *out);
/* One of the words "a|b|c", by index. */
smp_status smp__parse_choice(const char *option, const char *words, const char *text, int *out);
/* One of the words "cluster|spread|auto", by index, or D, P and T (replicas, pipeline, tensor
 * parallelism) in some order, those whose ranks are neighbours last: cluster if P is behind D, else
 * spread. *far: the letters do not end in T. */
smp_status smp__parse_placement(const char *option, const char *words, const char *text, int *out,
                                bool *far);
/* NULL: auto. */
smp_status smp__parse_schedule(const char *option, const char *text, const char **out);
smp_status smp__parse_partitioner(const char *option, const char *text, const char **out);
smp_status smp__parse_memory(const char *option, const char *text, int64_t *out);
/* "auto": SMP_PREFETCH_AUTO. */
smp_status smp__parse_prefetch(const char *option, const char *text, int *out);
/* "none": 0, "auto": SMP_HOPS_AUTO. */
smp_status smp__parse_hops(const char *option, const char *text, int *out);
/* "none": 0, "auto": SMP_BUCKET_AUTO. */
smp_status smp__parse_bucket(const char *option, const char *text, int64_t *out);
smp_status smp__parse_seed(const char *option, const char *text, uint64_t *out);
smp_status smp__parse_time_limit(const char *option, const char *text, double *out); /* none: 0 */

#endif
