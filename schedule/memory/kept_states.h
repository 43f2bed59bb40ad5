/* What it costs that ranks keep the state of every K-th step in memory that outlives them
 * (smp_runtime_options.keep_every): room on the host, and time of a step. */
#ifndef SMP_SCHEDULE_MEMORY_KEPT_STATES_H
#define SMP_SCHEDULE_MEMORY_KEPT_STATES_H

#include <stdbool.h>

#include "schedule/plan/plan.h"

typedef struct smp_kept_states {
    int64_t state_bytes; /* all parameters with the optimizer's states, in fp32, once */
    int64_t kept_bytes;  /* the places that they are kept in */
    int64_t part_bytes;  /* the most that a rank writes of a state */
    double write_us;     /* ... which takes its thread so long */
    double copy_us;      /* before that, what the end of the step waits for: see there */
    double step_us;      /* added to a step, the mean */
    int64_t host_bytes;  /* that a node needs with them, all told */
    int64_t host_limit;  /* the cluster's `host_memory`; 0: not known */
    bool several_nodes;  /* shares of nodes, and what travels between them, are not predicted: all
                            else is 0 but state_bytes */
} smp_kept_states;

/* graph: the plan's, which trains. Needs plan->cluster. keep_every >= 1.
 *
 * A rank's part is its share of the weights, divided over the replicas. A thread of it hashes and
 * writes that beside the forwards and backwards of the next step, whose optimizer waits for it. On
 * the CPU it takes a core from ranks that have all of a node's cores: all of its time counts, or
 * that of all parts of a node in turn over the cores. Where cores are to spare, and on a GPU, what
 * is left of it when the optimizer comes counts. Where the host cannot read the state as it lies (a
 * GPU, a group of devices), a copy at the end of the step comes first. Idle time of ranks that
 * wait for others may hide some of it: that is not counted on. O(stages). */
smp_status smp_kept_states_get(const smp_plan *plan, const smp_graph *graph, int64_t keep_every,
                               smp_kept_states *out);

#endif
