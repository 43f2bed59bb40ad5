/* Speeds of ranks' devices; see the header. */
#include "tools/elastic/speeds/plan_speeds.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "graph/base/text.h"
#include "schedule/simulate/simulate.h"

enum { SPEED_STEPS = 20, DOUBLINGS = 5 };
static const double first_pause_s = 600.0;

void smp__speeds_name(smp__speeds *s)
{
    const size_t size = sizeof s->name;
    size_t length = 0;
    uint64_t hash = 0;
    int slow = 0;
    s->name[0] = '\0';
    for (int i = 0; i < s->n; i++) {
        if (s->speed[i] >= 1.0)
            continue;
        const int32_t pair[] = {i, (int32_t)lround(100.0 * s->speed[i])};
        hash = smp_hash(hash, pair, sizeof pair);
        slow++;
        if (length < size)
            length += (size_t)snprintf(s->name + length, size - length, "%s%dx%d",
                                       length > 0 ? "-" : "", pair[0], pair[1]);
    }
    if (length >= size)
        snprintf(s->name, size, "%d-slow-%016" PRIx64, slow, hash);
}

double smp__speeds_least(const smp__speeds *s)
{
    double least = 1.0;
    for (int i = 0; i < s->n; i++)
        least = fmin(least, s->speed[i]);
    return least;
}

smp_status smp__speeds_step(const char *path, const smp__speeds *s, double *step_us)
{
    smp_plan *plan = NULL;
    smp_graph *graph = NULL;
    smp_simulated_plan simulated = {0};
    smp_status status = smp_plan_read(path, &plan);
    if (status == SMP_OK && smp_plan_processes(plan) != s->n)
        status = smp_fail(SMP_ERR_INPUT, "%s: got a plan for %d devices, expected %d", path,
                          smp_plan_processes(plan), s->n);
    if (status == SMP_OK)
        status = smp_plan_open_model(plan, path, 0, &graph);
    if (status == SMP_OK)
        status = smp_simulated_plan_open_at(plan, graph, s->speed, &simulated);
    if (status == SMP_OK)
        *step_us = simulated.simulation->step_us + plan->predicted.waits_us;
    smp_simulated_plan_close(&simulated);
    smp_graph_destroy(graph);
    smp_plan_destroy(plan);
    return status;
}

double smp__slow_speed(double times, double before)
{
    const double step = 1.0 / SPEED_STEPS;
    const double speed = fmax(step, step * round(SPEED_STEPS / times));
    if (times <= 1.0 || speed >= 1.0)
        return 0.0;
    return before > 0.0 && fabs(speed - before) < 1.5 * step ? before : speed;
}

double smp__slow_pause_s(int n)
{
    return ldexp(first_pause_s, n < 1 ? 0 : n - 1 < DOUBLINGS ? n - 1 : DOUBLINGS);
}
