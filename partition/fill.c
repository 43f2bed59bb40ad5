/* Memory alone. What an interval needs grows with the interval, so going from the front, each stage
 * as far as its limit allows, puts every border as far back as any split can have it; going from the
 * back, as far forward. Together they bound the borders; a bisection over the limits finds the split
 * that needs least. O(n * degree) per walk. */
#include <math.h>

#include "partition/split.h"

enum { BISECTIONS = 60 };
#define FILL_PRECISION 1e-3

static bool fits(const smp__line *line, int k, const smp__interval *interval, double fill)
{
    double limit = fill * fmax((double)line->problem->memory_limit[k], 1.0);
    return smp__interval_memory(line, k, interval) <= limit;
}

/* Extends every stage as far as `fill` times its limit allows. True: the line is used up. */
static bool walk(const smp__line *line, double fill, int32_t *border)
{
    border[0] = 0;
    for (int k = 0; k < line->n_stage; k++) {
        smp__interval interval = {0};
        int32_t j = border[k];
        for (; j < line->border_hi[k + 1]; j++) {
            smp__interval_push_right(line, k, &interval, border[k], j);
            if (!fits(line, k, &interval, fill))
                break;
        }
        if (j <= border[k] || j < line->border_lo[k + 1])
            return false;
        border[k + 1] = j;
    }
    return true;
}

static bool walk_back(const smp__line *line, int32_t *border)
{
    border[line->n_stage] = line->n;
    for (int k = line->n_stage - 1; k >= 0; k--) {
        smp__interval interval = {0};
        int32_t i = border[k + 1];
        for (; i > line->border_lo[k]; i--) {
            smp__interval_push_left(line, k, &interval, i - 1, border[k + 1]);
            if (!fits(line, k, &interval, 1.0))
                break;
        }
        if (i >= border[k + 1] || i > line->border_hi[k])
            return false;
        border[k] = i;
    }
    return true;
}

bool smp__memory_windows(const smp__line *line, int32_t *lo, int32_t *hi)
{
    if (!line->feasible || !walk(line, 1.0, hi) || !walk_back(line, lo))
        return false;
    for (int k = 0; k <= line->n_stage; k++) {
        if (lo[k] > hi[k])
            return false;
    }
    return true;
}

smp_status smp__split_memory(const smp__line *line, double at_most, smp__split *split, double *fill)
{
    double lo = 0.0, hi = isfinite(at_most) ? at_most : 1.0;
    split->found = line->feasible;
    while (split->found && !walk(line, hi, split->border)) {
        split->work += line->n;
        split->found = !isfinite(at_most);
        lo = hi;
        hi *= 4.0;
    }
    if (!split->found)
        return SMP_OK;
    for (int i = 0; i < BISECTIONS && hi - lo > FILL_PRECISION * hi; i++) {
        double mid = lo + (hi - lo) / 2;
        if (walk(line, mid, split->border))
            hi = mid;
        else
            lo = mid;
        split->work += line->n;
    }
    walk(line, hi, split->border);
    *fill = hi;
    return SMP_OK;
}
