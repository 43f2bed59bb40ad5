/* Schedules of the learning rate; one function and one line of the table each. All in double: a
 * step's share of the decay must not jump at large step numbers. */
#include "exec/optimizer/lr_schedule.h"

#include <math.h>
#include <string.h>

/* How much of the decay is done, from 0 to 1. */
static double done(const smp_optimizer_options *o, int64_t step)
{
    return (double)(step - o->warmup_steps) / (double)(o->decay_steps - o->warmup_steps);
}

static double constant(const smp_optimizer_options *o, int64_t step)
{
    (void)step;
    return o->lr;
}

static double linear(const smp_optimizer_options *o, int64_t step)
{
    return o->min_lr + ((double)o->lr - o->min_lr) * (1.0 - done(o, step));
}

/* Half a cosine wave from the peak to the floor (Loshchilov and Hutter, "SGDR", ICLR 2017, without
 * restarts). */
static double cosine(const smp_optimizer_options *o, int64_t step)
{
    const double pi = 3.14159265358979323846;
    return o->min_lr + 0.5 * ((double)o->lr - o->min_lr) * (1.0 + cos(pi * done(o, step)));
}

/* Vaswani et al., "Attention is all you need", NeurIPS 2017, equation 3, with the peak at the end
 * of the warm-up; a job without one begins at it. */
static double inverse_sqrt(const smp_optimizer_options *o, int64_t step)
{
    const double peak_step = o->warmup_steps > 0 ? (double)o->warmup_steps : 1.0;
    return fmax(o->min_lr, (double)o->lr * sqrt(peak_step / (double)step));
}

/* How much is left of the peak after so many times decay_every steps. */
static double fallen(const smp_optimizer_options *o, double times)
{
    return fmax(o->min_lr, (double)o->lr * pow(o->gamma > 0 ? (double)o->gamma : 0.1, times));
}

/* From the peak on, in units of decay_every. */
static double times_fallen(const smp_optimizer_options *o, int64_t step)
{
    const int64_t peak_step = o->warmup_steps > 0 ? o->warmup_steps : 1;
    return (double)(step - peak_step) / (double)o->decay_every;
}

static double in_steps(const smp_optimizer_options *o, int64_t step)
{
    return fallen(o, floor(times_fallen(o, step)));
}

static double exponential(const smp_optimizer_options *o, int64_t step)
{
    return fallen(o, times_fallen(o, step));
}

static const smp_lr_schedule schedules[] = {
    {"constant", "after the warm-up as it is", false, false, constant},
    {"linear", "straight to --min-lr at step --decay-steps", true, false, linear},
    {"cosine", "half a wave to --min-lr at step --decay-steps", true, false, cosine},
    {"inverse-sqrt", "as 1 / sqrt(step), not below --min-lr", false, false, inverse_sqrt},
    {"step", "times --gamma every --decay-every steps, likewise", false, true, in_steps},
    {"exponential", "the same, a little in every step", false, true, exponential},
    {NULL, NULL, false, false, NULL},
};
enum { N_SCHEDULE = sizeof(schedules) / sizeof(*schedules) - 1 };

const smp_lr_schedule *smp_lr_schedules(void)
{
    return schedules;
}

const smp_lr_schedule *smp_lr_schedule_of(const smp_optimizer_options *options)
{
    const char *name = options->lr_schedule;
    if (!name)
        name = options->decay_steps > 0 ? "cosine" : "constant";
    for (int i = 0; i < N_SCHEDULE; i++)
        if (strcmp(schedules[i].name, name) == 0)
            return &schedules[i];
    return NULL;
}

smp_status smp_lr_schedule_check(const smp_optimizer_options *options)
{
    const smp_lr_schedule *schedule = smp_lr_schedule_of(options);
    const char *names[N_SCHEDULE];
    for (int i = 0; i < N_SCHEDULE; i++)
        names[i] = schedules[i].name;
    if (!schedule)
        return smp_fail_choice((smp_where){0}, "lr-schedule", options->lr_schedule, names,
                               N_SCHEDULE);
    if (schedule->decays && options->decay_steps <= 0)
        return smp_fail(SMP_ERR_INPUT,
                        "lr-schedule '%s': got no end, expected the step at which the rate is "
                        "--min-lr (--decay-steps)",
                        schedule->name);
    if (!schedule->decays && options->decay_steps > 0)
        return smp_fail(SMP_ERR_INPUT,
                        "lr-schedule '%s': got an end at step %lld (--decay-steps), expected none: "
                        "it goes on for ever",
                        schedule->name, (long long)options->decay_steps);
    if (schedule->falls != (options->decay_every > 0))
        return smp_fail(SMP_ERR_INPUT,
                        "lr-schedule '%s': got %lld steps after which the rate falls "
                        "(--decay-every), expected %s",
                        schedule->name, (long long)options->decay_every,
                        schedule->falls ? "1 or more" : "none");
    if (!(options->gamma >= 0 && options->gamma < 1) || (options->gamma > 0 && !schedule->falls))
        return smp_fail(SMP_ERR_INPUT, "lr-schedule '%s': got gamma %g, expected %s",
                        schedule->name, (double)options->gamma,
                        schedule->falls ? "more than 0 and less than 1" : "none");
    return SMP_OK;
}

float smp_learning_rate(const smp_optimizer_options *options, int64_t step)
{
    const smp_lr_schedule *schedule = smp_lr_schedule_of(options);
    if (step <= options->warmup_steps)
        return (float)((double)options->lr * (double)step / (double)options->warmup_steps);
    if (schedule->decays && step >= options->decay_steps)
        return options->min_lr;
    return (float)schedule->rate(options, step);
}
