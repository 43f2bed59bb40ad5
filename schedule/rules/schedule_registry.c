/* The list of schedules, and the defaults of what a schedule may leave out. */
#include <string.h>

#include "schedule/rules/kinds.h"

static const smp_schedule_kind *const kinds[] = {
    &smp__schedule_simple,        &smp__schedule_interleaved, &smp__schedule_zero_bubble,
    &smp__schedule_breadth_first, &smp__schedule_forward,     NULL,
};

const smp_schedule_kind *const *smp_schedules(void)
{
    return kinds;
}

const smp_schedule_kind *smp_schedule_find(const char *name)
{
    for (int i = 0; name && kinds[i]; i++)
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i];
    return name && strcmp(name, smp__schedule_auto.name) == 0 ? &smp__schedule_auto : NULL;
}

int smp_schedule_stage_rank(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                            int stage)
{
    return kind->stage_rank ? kind->stage_rank(shape, stage) : stage % shape->pipeline;
}

int smp_schedule_stage_of(const smp_schedule_kind *kind, const smp_schedule_shape *shape, int rank,
                          int chunk)
{
    int n_stage = shape->pipeline * shape->chunks, found = -1;
    for (int stage = 0; stage < n_stage; stage++)
        if (smp_schedule_stage_rank(kind, shape, stage) == rank && ++found == chunk)
            return stage;
    return -1;
}
