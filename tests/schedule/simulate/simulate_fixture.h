/* Input of the simulator for a made plan on a cluster of its own, all of which tests may change. */
#ifndef SMP_TESTS_SCHEDULE_SIMULATE_SIMULATE_FIXTURE_H
#define SMP_TESTS_SCHEDULE_SIMULATE_SIMULATE_FIXTURE_H

#include "schedule/simulate/simulate.h"
#include "tests/schedule/made_plan.h"

enum { MAX_STAGES = 8, MAX_REPLICAS = 4, MAX_DEVICES = 12 };

typedef struct setting {
    const made_plan *made;
    smp_device_spec spec[MAX_DEVICES];
    smp_cluster cluster;
    double forward_us[MAX_STAGES], backward_us[MAX_STAGES];
    int64_t weight_bytes[MAX_STAGES];
    int rank[MAX_STAGES], device[MAX_REPLICAS * MAX_STAGES];
    smp_simulation_input input;
} setting;

/* Devices of one kind, free links (one byte takes 1e-6 us), F 1 and B 2 on every stage, device =
 * replica * p + rank. */
static inline void setting_open(setting *s, const made_plan *made, int nodes, int ddp)
{
    *s = (setting){.made = made,
                   .cluster = {.name = "test",
                               .nodes = nodes,
                               .devices_per_node = MAX_DEVICES / nodes,
                               .device = s->spec,
                               .intra_node = {.bytes_per_s = 1e300},
                               .inter_node = {.bytes_per_s = 1e300},
                               .overlap = true,
                               .core_switch_us = SMP_DEFAULT_CORE_SWITCH_US}};
    for (int d = 0; d < MAX_DEVICES; d++)
        s->spec[d] = (smp_device_spec){.name = "device", .flops_fp32 = 1e12};
    for (int i = 0; i < MAX_STAGES; i++) {
        s->forward_us[i] = 1.0;
        s->backward_us[i] = 2.0;
    }
    for (int i = 0; i < made->plan.n_stage; i++)
        s->rank[i] = made->stage[i].rank;
    for (int i = 0; i < MAX_DEVICES; i++)
        s->device[i] = i;
    s->input = (smp_simulation_input){.pipeline = made->plan.pipeline,
                                      .chunks = made->plan.chunks,
                                      .ddp = ddp,
                                      .microbatches = made->plan.microbatches,
                                      .program = made->program,
                                      .stage_rank = s->rank,
                                      .forward_us = s->forward_us,
                                      .backward_us = s->backward_us,
                                      .weight_bytes = s->weight_bytes,
                                      .flow = made->flow,
                                      .graph = made->graph,
                                      .cluster = &s->cluster,
                                      .device = s->device};
}

static inline smp_simulation *simulate(const smp_simulation_input *input)
{
    smp_simulation *simulation = NULL;
    if (smp_simulate(input, &simulation))
        fail_msg("%s", smp_last_error());
    return simulation;
}

#endif
