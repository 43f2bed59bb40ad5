/* Ranks that fall behind: exec/log/slow_ranks.h. */
#include "exec/log/slow_ranks.h"

#include <math.h>
#include <stdlib.h>

static const double SLOW = 1.2;

smp_status smp__slow_ranks_open(const double *predicted_us, int n, smp__slow_ranks *out)
{
    *out = (smp__slow_ranks){.rank = calloc((size_t)n, sizeof(*out->rank)),
                             .sorted = calloc((size_t)n, sizeof(*out->sorted)),
                             .n = n};
    if (!out->rank || !out->sorted) {
        smp__slow_ranks_close(out);
        return smp_fail_memory((size_t)n * sizeof(*out->rank));
    }
    for (int i = 0; i < n; i++)
        out->rank[i].predicted_us = predicted_us[i];
    return SMP_OK;
}

static int compare_ratios(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void begin_row(smp__rank_pace *r)
{
    r->row = 0;
    r->sum = r->sum_times = 0.0;
}

static void add_step(smp__rank_pace *r, bool slow, double usual)
{
    r->change = SMP__RANK_SAME;
    if (slow == r->named) {
        begin_row(r);
        return;
    }
    r->sum += r->ratio;
    r->sum_times += usual > 0.0 ? r->ratio / usual : 1.0;
    if (++r->row < SMP__SLOW_STEPS)
        return;
    r->named = slow;
    r->change = slow ? SMP__RANK_SLOW : SMP__RANK_RECOVERED;
    r->mean = r->sum / r->row;
    r->times = r->sum_times / r->row;
    begin_row(r);
}

void smp__slow_ranks_add(smp__slow_ranks *slow, const double *work_us)
{
    for (int i = 0; i < slow->n; i++)
        slow->sorted[i] = slow->rank[i].ratio = work_us[i] / slow->rank[i].predicted_us;
    qsort(slow->sorted, (size_t)slow->n, sizeof(*slow->sorted), compare_ratios);
    slow->usual = slow->sorted[(slow->n - 1) / 2];
    for (int i = 0; i < slow->n; i++)
        add_step(&slow->rank[i], slow->rank[i].ratio > SLOW * fmax(slow->usual, 1.0), slow->usual);
}

void smp__slow_ranks_close(smp__slow_ranks *slow)
{
    free(slow->rank);
    free(slow->sorted);
    *slow = (smp__slow_ranks){0};
}
