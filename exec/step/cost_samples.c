/* Marks of a step, read when the device has passed them. O(operators) a step. */
#include "exec/step/cost_samples.h"

#include <stdlib.h>
#include <string.h>

#include "exec/state/device_wait.h"
#include "exec/step/stepping.h"

enum { OPTIMIZER_MARKS = 4 }; /* before and after the norm, before and after the update */

static void count(smp *s, smp__cost_samples *c)
{
    for (int chunk = 0; chunk < s->work->chunks; chunk++) {
        const smp_layout *layout = s->work->chunk[chunk].layout;
        c->first[chunk] = c->n_series;
        c->n_series += SMP__COST_PARTS * layout->n_call;
        /* F, B or I, W: each begins with one */
        c->max_mark += 3 + layout->n_call + 2 * layout->n_instr + layout->n_weight_instr;
    }
}

smp_status smp__cost_samples_build(smp *s)
{
    if (!s->options->runtime.record_costs)
        return SMP_OK;
    smp__cost_samples *c = calloc(1, sizeof(*c));
    s->stepping->cost_samples = c;
    if (!c || !(c->first = calloc((size_t)s->work->chunks, sizeof(*c->first))))
        return smp_fail_memory(sizeof(*c));
    c->microbatch = -1;
    count(s, c);
    const size_t series = (size_t)c->n_series * SMP__COST_SAMPLES;
    const size_t messages = (size_t)s->work->flow->n_transfer * SMP__COST_SAMPLES;
    c->series_of = calloc((size_t)c->max_mark, sizeof(*c->series_of));
    c->own_s = calloc((size_t)smp__cost_marks(s), sizeof(*c->own_s));
    c->away_s = calloc((size_t)smp__cost_marks(s), sizeof(*c->away_s));
    c->us = calloc(series + 1, sizeof(*c->us));
    c->optimizer_us = calloc(SMP__COST_SAMPLES, sizeof(*c->optimizer_us));
    c->message = calloc(messages + 1, sizeof(*c->message));
    if (!c->series_of || !c->own_s || !c->away_s || !c->us || !c->optimizer_us || !c->message)
        return smp_fail_memory(series * sizeof(*c->us) + messages * sizeof(*c->message));
    return SMP_OK;
}

void smp__cost_samples_free(smp *s)
{
    smp__cost_samples *c = s->stepping->cost_samples;
    if (!c)
        return;
    free(c->first);
    free(c->series_of);
    free(c->own_s);
    free(c->away_s);
    free(c->us);
    free(c->optimizer_us);
    free(c->message);
    free(c);
}

int smp__cost_marks(const smp *s)
{
    return s->stepping->cost_samples ? OPTIMIZER_MARKS + s->stepping->cost_samples->max_mark : 0;
}

void smp__cost_samples_begin(smp *s)
{
    smp__cost_samples *c = s->stepping->cost_samples;
    if (!c)
        return;
    c->microbatch = (int)(c->n_step % s->work->microbatches);
    c->n_mark = 0;
}

/* The turns of other ranks on its core are no time of a rank's own. */
static bool shares_core(const smp *s)
{
    return s->comm->crowded && s->device->host_memory;
}

static double now_s(const smp *s)
{
    return shares_core(s) ? smp_clock_thread_s() : smp_clock_s();
}

void smp__cost_leave(smp *s)
{
    if (s->stepping->cost_samples)
        s->stepping->cost_samples->away_now_s -= now_s(s);
}

void smp__cost_back(smp *s)
{
    if (s->stepping->cost_samples)
        s->stepping->cost_samples->away_now_s += now_s(s);
}

static smp_status set_mark(smp *s, int mark)
{
    s->stepping->cost_samples->away_s[mark] = s->stepping->cost_samples->away_now_s;
    if (!shares_core(s))
        return smp__stamp_mark(s, mark);
    s->stepping->cost_samples->own_s[mark] = smp_clock_thread_s();
    return SMP_OK;
}

static smp_status mark_time(const smp *s, int mark, double *time_s)
{
    if (!shares_core(s))
        return smp__mark_time(s, mark, time_s);
    *time_s = s->stepping->cost_samples->own_s[mark];
    return SMP_OK;
}

smp_status smp__cost_mark_at(smp *s, int chunk, int call, int part)
{
    smp__cost_samples *c = s->stepping->cost_samples;
    c->series_of[c->n_mark] = call < 0 ? -1 : c->first[chunk] + SMP__COST_PARTS * call + part;
    return set_mark(s, OPTIMIZER_MARKS + c->n_mark++);
}

smp_status smp__cost_optimizer_begin(smp *s, smp__optimizer_part part)
{
    return s->stepping->cost_samples ? set_mark(s, 2 * (int)part) : SMP_OK;
}

smp_status smp__cost_optimizer_end(smp *s, smp__optimizer_part part)
{
    return s->stepping->cost_samples ? set_mark(s, 2 * (int)part + 1) : SMP_OK;
}

/* Microseconds from one mark to another; both are passed. */
static smp_status between(const smp *s, int first, int last, double *us)
{
    const double *away_s = s->stepping->cost_samples->away_s;
    double begin_s, end_s;
    SMP_TRY(mark_time(s, first, &begin_s));
    SMP_TRY(mark_time(s, last, &end_s));
    *us = 1e6 * (end_s - begin_s - (away_s[last] - away_s[first]));
    return SMP_OK;
}

/* The update of the last step, unless it has been looked at: it is done, and a step that follows
 * has not begun its own. */
static smp_status add_update(smp *s)
{
    smp__cost_samples *c = s->stepping->cost_samples;
    double us;
    if (!s->graph->training || c->n_update == c->n_step)
        return SMP_OK;
    SMP_TRY(between(s, 2 * SMP__OPTIMIZER_UPDATE, 2 * SMP__OPTIMIZER_UPDATE + 1, &us));
    c->optimizer_us[c->n_update++ % SMP__COST_SAMPLES] += us;
    return SMP_OK;
}

smp_status smp__cost_samples_end(smp *s)
{
    smp__cost_samples *c = s->stepping->cost_samples;
    if (!c)
        return SMP_OK;
    const int at = (int)(c->n_step % SMP__COST_SAMPLES);
    SMP_TRY(add_update(s));
    if (s->graph->training)
        SMP_TRY(
            between(s, 2 * SMP__OPTIMIZER_NORM, 2 * SMP__OPTIMIZER_NORM + 1, &c->optimizer_us[at]));
    for (int32_t i = 0; i < c->n_series; i++)
        c->us[(int64_t)i * SMP__COST_SAMPLES + at] = 0.0;
    for (int i = 1; i < c->n_mark; i++) {
        double us;
        if (c->series_of[i] < 0)
            continue;
        SMP_TRY(between(s, OPTIMIZER_MARKS + i - 1, OPTIMIZER_MARKS + i, &us));
        c->us[(int64_t)c->series_of[i] * SMP__COST_SAMPLES + at] += us;
    }
    c->microbatch = -1;
    c->n_step++;
    return SMP_OK;
}

smp_status smp__cost_samples_close(smp *s)
{
    SMP_TRY(smp__device_idle(s));
    return add_update(s);
}
