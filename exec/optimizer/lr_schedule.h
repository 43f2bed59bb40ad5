/* The learning rate as a function of the step: a linear warm-up, then a schedule of a table. */
#ifndef SMP_EXEC_OPTIMIZER_LR_SCHEDULE_H
#define SMP_EXEC_OPTIMIZER_LR_SCHEDULE_H

#include "graph/base/text.h"
#include "smp.h"

typedef struct smp_lr_schedule {
    const char *name;
    const char *summary; /* a line of smp-run --help */
    bool decays;         /* until options->decay_steps, after which the rate is min_lr */
    bool falls;          /* by gamma, every decay_every steps */
    /* The rate of a step after the warm-up and, if it decays, before decay_steps. */
    double (*rate)(const smp_optimizer_options *options, int64_t step);
} smp_lr_schedule;

/* All of them; the last has a NULL name. */
const smp_lr_schedule *smp_lr_schedules(void);

/* The schedule that options->lr_schedule names; NULL there: cosine with decay_steps, else constant.
 * NULL if unknown. */
const smp_lr_schedule *smp_lr_schedule_of(const smp_optimizer_options *options);

/* SMP_ERR_INPUT: no such schedule; decay_steps, decay_every or gamma without one that
 * takes it, or the other way round. */
smp_status smp_lr_schedule_check(const smp_optimizer_options *options);

/* step: from 1. Warm-up: linear to options->lr over warmup_steps. */
float smp_learning_rate(const smp_optimizer_options *options, int64_t step);

#endif
