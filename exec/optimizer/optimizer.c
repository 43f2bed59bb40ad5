/* The optimizer registry and the learning rate as a function of the step. */
#include "exec/optimizer/optimizer.h"

#include <math.h>
#include <string.h>

#define ENTRY(name) &smp__optimizer_##name,
static const smp_optimizer *const optimizers[] = {SMP_OPTIMIZERS(ENTRY) NULL};

enum { N_OPTIMIZER = sizeof(optimizers) / sizeof(*optimizers) - 1 };

const smp_optimizer *const *smp_optimizers(void)
{
    return optimizers;
}

const smp_optimizer *smp_optimizer_find(const char *name)
{
    for (int i = 0; optimizers[i]; i++) {
        if (!strcmp(optimizers[i]->name, name))
            return optimizers[i];
    }
    return NULL;
}

void smp_optimizer_list(smp_text *text)
{
    for (int i = 0; i < N_OPTIMIZER; i++)
        smp_text_append_choice(text, optimizers[i]->name, i, N_OPTIMIZER);
}

/* Half a cosine wave from the peak to the floor (Loshchilov and Hutter, "SGDR", ICLR 2017, without
 * restarts). In double: the step's share of the decay must not jump at large step numbers. */
float smp_learning_rate(const smp_options *options, int64_t step)
{
    const double peak = options->lr;
    const double floor_lr = options->min_lr;
    if (step <= options->warmup_steps)
        return (float)(peak * (double)step / (double)options->warmup_steps);
    if (options->decay_steps <= 0)
        return options->lr;
    if (step >= options->decay_steps)
        return options->min_lr;
    const double length = (double)(options->decay_steps - options->warmup_steps);
    const double done = (double)(step - options->warmup_steps) / length;
    const double pi = 3.14159265358979323846;
    return (float)(floor_lr + 0.5 * (peak - floor_lr) * (1.0 + cos(pi * done)));
}
