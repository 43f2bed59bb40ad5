/* Chrome trace (JSON, opens in Perfetto): one process "predicted", one "measured", a row per
 * rank. */
#ifndef SMP_SCHEDULE_TRACE_TRACE_H
#define SMP_SCHEDULE_TRACE_TRACE_H

#include "schedule/simulate/simulate.h"

/* A `>` goes from when its rank has come to it until the last of its messages is with its receiver,
 * a `<` from when its rank has come to it until all of its messages are there. Both mean the same
 * in a simulation and in a measurement, but for a simulated `<` without `overlap`: the rank itself
 * then takes the messages, one after the other from when it is free and they are sent, and the `<`
 * ends with the last. A `G`, `R` or `A` goes until its sums are done, but in a measurement where
 * the device waits for them by itself: then until they are asked for. In a measurement a message is
 * there, and a sum done, when the rank sees it: it looks after every operator. Ranks of several
 * machines count from where each began its step, for want of a common clock: a `>` whose message is
 * by them there before it was sent ends where it starts. */
typedef struct smp_trace_event {
    int world_rank;
    int stage; /* -1: none */
    smp_action action;
    double start_us, end_us; /* from the start of the step */
    bool beside; /* an O that is none of the step: updates of the step before, on the host */
} smp_trace_event;

/* Updates of the step before, beside a step. */
smp_trace_event smp_trace_updates(int world_rank, double start_us, double end_us);

/* Events of a simulation, of the replica that it shows, of the first of the devices that compute
 * ops together; malloc'ed. */
smp_status smp_trace_predicted(const smp_plan *plan, const smp_simulation *simulation,
                               smp_trace_event **events, int64_t *n);

/* measured may be NULL. */
smp_status smp_trace_format(const smp_plan *plan, const smp_trace_event *predicted,
                            int64_t n_predicted, const smp_trace_event *measured,
                            int64_t n_measured, smp_text *json);

/* Writes the file: the plan's simulation, if it says on what cluster, and what was measured. */
smp_status smp_trace_save(const smp_plan *plan, const smp_graph *graph,
                          const smp_trace_event *measured, int64_t n_measured, const char *path);

#endif
