/* What it costs a host to enqueue kernels on its device, one by one or as a CUDA graph, and whether
 * graphs pay: the one rule of estimates and of the executor. */
#ifndef SMP_PROFILE_DEVICE_LAUNCH_COSTS_H
#define SMP_PROFILE_DEVICE_LAUNCH_COSTS_H

#include <stdbool.h>

#include "graph/base/status.h"

struct smp_yaml_node;

/* Of the host, in microseconds. */
typedef struct smp_launch_costs {
    double kernel_us;       /* a launch of one; 0: nothing was measured */
    double graph_us;        /* a launch of a graph, */
    double graph_kernel_us; /* and more for each kernel in it */
} smp_launch_costs;

/* `launch` of a map in a file that messages call `what`; left out: not measured. */
smp_status smp_launch_costs_read(const struct smp_yaml_node *map, const char *what,
                                 smp_launch_costs *out);

/* What a host takes for so many launches in so many graphs. What was not measured is assumed. */
double smp_graphs_us(const smp_launch_costs *costs, double graphs, double launches);

/* Is a device that has work for so long kept waiting by its host, which launches so many kernels
 * for it, and would so many graphs of them cost the host less? Not if device_us is 0: it is not
 * known. costs may be NULL: not measured. */
bool smp_graphs_pay(const smp_launch_costs *costs, double graphs, double launches,
                    double device_us);

#endif
