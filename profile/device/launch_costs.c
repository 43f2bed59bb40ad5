/* Costs of launches: profile/device/launch_costs.h. */
#include "profile/device/launch_costs.h"

#include <stddef.h>

#include "graph/yaml/yaml_field.h"

/* The middle of what is said of drivers (docs/cuda.md); a graph is one launch, whatever is in it.
 */
static const smp_launch_costs assumed = {.kernel_us = 3.0, .graph_us = 3.0};

/* Launches keep a device waiting from this share of its time on: times of operators that were
 * measured one by one have launches in them, and a device that waits here and there does before all
 * launches together take as long as it. */
static const double BOUND = 0.5;

static const smp_launch_costs *known(const smp_launch_costs *costs)
{
    return costs && costs->kernel_us > 0.0 ? costs : &assumed;
}

smp_status smp_launch_costs_read(const smp_yaml_node *map, const char *what, smp_launch_costs *out)
{
    static const char *const keys[] = {"kernel_us", "graph_us", "graph_kernel_us"};
    const smp_yaml_node *launch;
    *out = (smp_launch_costs){0};
    if (!smp_yaml_get(map, "launch"))
        return SMP_OK;
    SMP_TRY(smp__field_map(map, what, "launch", keys, SMP__COUNT(keys), &launch));
    SMP_TRY(smp__field_us(launch, "launch", "kernel_us", &out->kernel_us));
    SMP_TRY(smp__field_us(launch, "launch", "graph_us", &out->graph_us));
    return smp__field_us(launch, "launch", "graph_kernel_us", &out->graph_kernel_us);
}

double smp_graphs_us(const smp_launch_costs *costs, double graphs, double launches)
{
    const smp_launch_costs *c = known(costs);
    return graphs * c->graph_us + launches * c->graph_kernel_us;
}

bool smp_graphs_pay(const smp_launch_costs *costs, double graphs, double launches, double device_us)
{
    const double apart_us = launches * known(costs)->kernel_us;
    return device_us > 0.0 && apart_us >= BOUND * device_us &&
           apart_us > smp_graphs_us(costs, graphs, launches);
}
