/* The start of a job as smp.h has it: with the planner. */
#include "smp.h"

#include "exec/job/job.h"
#include "exec/start/plan_from_options.h"

smp_status smp_init(smp **out, const smp_options *options)
{
    return smp__job_open(out, options, smp__plan_from_options);
}
