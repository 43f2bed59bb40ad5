/* The record of a step; see the header. */
#include "exec/record/step_record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/record/step_record_state.h"

smp_status smp__record_open(int64_t actions, smp__record **out)
{
    const size_t n = (size_t)actions + 1;
    smp__record *r = calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return smp_fail_memory(sizeof *r);
    r->actions = actions;
    r->event = calloc(n, sizeof *r->event);
    r->ended_us = calloc(n, sizeof *r->ended_us);
    return r->event && r->ended_us ? SMP_OK : smp_fail_memory(n * sizeof *r->event);
}

void smp__record_close(smp__record *r)
{
    if (!r)
        return;
    free(r->event);
    free(r->ended_us);
    free(r);
}

void smp__record_begin(smp__record *r, double begin_s)
{
    if (!r)
        return;
    r->n_event = 0;
    r->ended = r->aligned = false;
    r->begin_s = begin_s;
    memset(r->spent_s, 0, sizeof r->spent_s);
    memset(r->ended_us, 0, (size_t)r->actions * sizeof *r->ended_us);
}

bool smp__record_is_on(const smp__record *r)
{
    return r && !r->ended;
}

void smp__record_action(smp__record *r, const smp_action *action)
{
    if (r)
        r->event[r->n_event++].action = *action;
}

void smp__record_beside(smp__record *r, const double times_s[2])
{
    if (r)
        memcpy(r->beside_s, times_s, sizeof r->beside_s);
}

/* None: they end where they begin. */
void smp__record_end(smp__record *r, int world_rank)
{
    const double begin_us = fmax(smp__record_us(r, r->beside_s[0]), 0.0),
                 end_us = smp__record_us(r, r->beside_s[1]);
    r->event[r->n_event] =
        smp_trace_updates(world_rank, begin_us, end_us > 0.0 ? end_us : begin_us);
    r->ended = true;
}

double smp__record_us(const smp__record *r, double time_s)
{
    return r ? 1e6 * (time_s - r->begin_s) : 0.0;
}

double smp__record_begin_s(const smp__record *r)
{
    return r ? r->begin_s : 0.0;
}

int64_t smp__record_events(const smp__record *r, smp_trace_event **event)
{
    *event = r ? r->event : NULL;
    return r ? r->n_event : 0;
}

bool smp__record_is_aligned(const smp__record *r)
{
    return !r || r->aligned;
}

void smp__record_align(smp__record *r, double begin_s)
{
    const double later_us = 1e6 * (r->begin_s - begin_s);
    for (int64_t i = 0; i <= r->n_event; i++) { /* with the one of updates beside */
        r->event[i].start_us += later_us;
        r->event[i].end_us += later_us;
    }
    r->aligned = true;
}

double *smp__record_ended_us(const smp__record *r)
{
    return r ? r->ended_us : NULL;
}

void smp__spent_add(smp__record *r, smp__spent on, double seconds)
{
    if (r)
        r->spent_s[on] += seconds;
}

void smp__spent_end(smp__record *r, smp__spent on, double begin_s)
{
    if (r)
        r->spent_s[on] += smp_clock_s() - begin_s;
}

double smp__spent_s(const smp__record *r, smp__spent on)
{
    return r ? r->spent_s[on] : 0.0;
}
