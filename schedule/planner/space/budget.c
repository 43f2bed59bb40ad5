/* Time of a search: see the header. */
#include "schedule/planner/space/budget.h"

#include "graph/base/clock.h"

/* By when parts end, in shares of the time. An action that is under way when its part ends takes
 * longer. */
static const double part_end[2][3] = {{0.8, 1.0, 1.0}, {0.65, 0.82, 0.89}};

static const double effort_s[] = {1.0, 10.0, 100.0, 0.0};

double smp_effort_s(smp_effort effort)
{
    return effort_s[effort];
}

double smp_effort_begin(smp_effort effort, double limit_s)
{
    const double all_s = effort_s[effort] > 0.0 ? effort_s[effort] : limit_s;
    smp_work_limit(all_s, limit_s);
    return all_s > 0.0 ? smp_work_s() + all_s : 0.0;
}

void smp__budget_open(smp__budget *budget, double end_s)
{
    *budget = (smp__budget){.begin_s = smp_work_s(), .end_s = end_s, .part_s = end_s};
}

void smp__budget_begin(smp__budget *budget, smp__part part, bool quick)
{
    if (budget->end_s > 0.0)
        budget->part_s =
            budget->begin_s + part_end[quick][part] * (budget->end_s - budget->begin_s);
}

bool smp__budget_is_over(const smp__budget *budget)
{
    return smp_work_past(budget->part_s);
}

double smp__budget_share(const smp__budget *budget, double share)
{
    const double now_s = smp_work_s();
    return now_s < budget->part_s ? now_s + share * (budget->part_s - now_s) : budget->part_s;
}

bool smp__budget_loses_patience(smp__budget *budget)
{
    const bool past = smp_work_past(budget->patience_s);
    budget->lost_patience |= past;
    return past;
}
