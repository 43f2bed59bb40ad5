/* The list of schedules, and the defaults of what a schedule may leave out. */
#include <string.h>

#include "schedule/kinds.h"

static const smp_schedule_kind *const kinds[] = {
    &smp__schedule_simple,
    &smp__schedule_interleaved,
    NULL,
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
    return NULL;
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
