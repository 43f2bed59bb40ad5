/* Curves that stay short: when all points are in use, pairs of them become one and a point takes
 * twice as many steps. */
#include "schedule/trace/run_record.h"

#include <math.h>

const smp_time_form smp_time_forms[SMP_TIME_N_CAUSES] = {
#define SMP_TIME_FORM(name, key, text, colour) {key, text, colour},
    SMP_TIME_CAUSES(SMP_TIME_FORM)
#undef SMP_TIME_FORM
};

static void clear(smp_curve *c, int from, int to)
{
    for (int i = from; i < to; i++) {
        c->low[i] = INFINITY;
        c->high[i] = -INFINITY;
        c->sum[i] = 0.0;
        c->count[i] = 0;
    }
}

static void halve(smp_curve *c)
{
    for (int i = 0; i < SMP_CURVE_POINTS / 2; i++) {
        c->low[i] = fmin(c->low[2 * i], c->low[2 * i + 1]);
        c->high[i] = fmax(c->high[2 * i], c->high[2 * i + 1]);
        c->sum[i] = c->sum[2 * i] + c->sum[2 * i + 1];
        c->count[i] = c->count[2 * i] + c->count[2 * i + 1];
    }
    clear(c, SMP_CURVE_POINTS / 2, SMP_CURVE_POINTS);
    c->stride *= 2;
    c->n = (c->n + 1) / 2;
}

void smp_curve_add(smp_curve *c, int64_t step, double value)
{
    if (c->stride == 0) {
        c->stride = 1;
        c->first = step;
        clear(c, 0, SMP_CURVE_POINTS);
    }
    while ((step - c->first) / c->stride >= SMP_CURVE_POINTS)
        halve(c);
    const int at = (int)((step - c->first) / c->stride);
    c->n = at + 1 > c->n ? at + 1 : c->n;
    c->last = step;
    if (!isfinite(value))
        return;
    c->low[at] = fmin(c->low[at], value);
    c->high[at] = fmax(c->high[at], value);
    c->sum[at] += value;
    c->count[at]++;
}
