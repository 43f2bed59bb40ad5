/* Simulating made plans in units of a stage's forward: backwards take two, transfers and memory
 * cost nothing, every rank has a device of its own. */
#ifndef SMP_TESTS_SCHEDULE_RULES_UNIT_SIMULATION_H
#define SMP_TESTS_SCHEDULE_RULES_UNIT_SIMULATION_H

#include "schedule/simulate/simulate.h"
#include "tests/schedule/made_plan.h"

/* units: [n_stage] what a forward takes; NULL: one each. */
static inline smp_simulation *timed_simulation(const made_plan *made, const double *units)
{
    size_t n_stage = (size_t)made->plan.n_stage, n_rank = (size_t)made->plan.pipeline;
    smp_device_spec *device = calloc(n_rank, sizeof *device);
    double *forward = calloc(n_stage, sizeof(double)), *backward = calloc(n_stage, sizeof(double));
    int64_t *weights = calloc(n_stage, sizeof(int64_t));
    int *rank = calloc(n_stage, sizeof(int)), *place = calloc(n_rank, sizeof(int));
    assert_true(device && forward && backward && weights && rank && place);
    for (size_t s = 0; s < n_stage; s++) {
        forward[s] = units ? units[s] : 1.0;
        backward[s] = 2.0 * forward[s];
        rank[s] = made->stage[s].rank;
    }
    for (size_t r = 0; r < n_rank; r++)
        place[r] = (int)r;
    smp_cluster cluster = {.name = "free",
                           .nodes = 1,
                           .devices_per_node = (int)n_rank,
                           .device = device,
                           .intra_node = {.bytes_per_s = 1e300},
                           .overlap = true};
    smp_simulation_input input = {.pipeline = made->plan.pipeline,
                                  .chunks = made->plan.chunks,
                                  .ddp = 1,
                                  .microbatches = made->plan.microbatches,
                                  .program = made->program,
                                  .stage_rank = rank,
                                  .forward_us = forward,
                                  .backward_us = backward,
                                  .weight_bytes = weights,
                                  .flow = made->flow,
                                  .graph = made->graph,
                                  .cluster = &cluster,
                                  .device = place};
    smp_simulation *simulation = NULL;
    if (smp_simulate(&input, &simulation))
        fail_msg("%s", smp_last_error());
    free(device);
    free(forward);
    free(backward);
    free(weights);
    free(rank);
    free(place);
    return simulation;
}

static inline smp_simulation *unit_simulation(const made_plan *made)
{
    return timed_simulation(made, NULL);
}

#endif
