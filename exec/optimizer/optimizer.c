/* The optimizer registry, and what of the options an update reads. */
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

smp_status smp_optimizer_unknown(const char *name)
{
    const char *names[N_OPTIMIZER];
    for (int i = 0; i < N_OPTIMIZER; i++)
        names[i] = optimizers[i]->name;
    return smp_fail_choice((smp_where){0}, "optimizer", name, names, N_OPTIMIZER);
}

smp_status smp_optimizer_check(const smp_optimizer *optimizer, const smp_optimizer_options *options)
{
    if (options->nesterov && !optimizer->reads.nesterov)
        return smp_fail(SMP_ERR_INPUT, "nesterov: optimizer '%s' has no such momentum",
                        optimizer->name);
    return SMP_OK;
}

/* Bounded, so that the rate stays a float; no element of a direction is longer than its norm. */
float smp_trust_of(const smp_optimizer *optimizer, smp_update *update, double weight_squares,
                   double direction_squares)
{
    const double most = 1e30, weight = sqrt(weight_squares), direction = sqrt(direction_squares);
    if (optimizer->keep)
        update->kept = optimizer->keep(update, update->kept, direction);
    else if (!(weight > 0.0) || !(direction > 0.0))
        return 1.0f;
    return (float)fmin(optimizer->trust(update, weight, direction), most);
}

smp_status smp_state_precision_read(const char *what, const char *text, bool *bf16)
{
    static const char *const formats[] = {"fp32", "bf16"};
    const char *meant = text ? smp_precision_word(text) : formats[0];
    *bf16 = strcmp(meant, formats[1]) == 0;
    return *bf16 || strcmp(meant, formats[0]) == 0
               ? SMP_OK
               : smp_fail_choice((smp_where){0}, what, text, formats, 2);
}

#define DEFAULT(field, option, most, value, ...) .field = value,
smp_optimizer_options smp_optimizer_default(void)
{
    return (smp_optimizer_options){.name = smp_optimizers()[0]->name,
                                   .lr = 1e-3f,
                                   .weight_decay = 0.1f,
                                   .clip_norm = 1.0f,
                                   .loss_scale_init = 65536.0f,
                                   .scale_window = 1000,
                                   .min_scale = 1.0f,
                                   .delayed_shift = 2,
                                   SMP_UPDATE_SETTINGS(DEFAULT, SMP_NO_SETTING)};
}

#define COPY(field, ...) .field = o->field,
smp_update_settings smp_update_settings_of(const smp_optimizer_options *o)
{
    return (smp_update_settings){
        .lr = 1.0f, .weight_decay = o->weight_decay, SMP_UPDATE_SETTINGS(COPY, COPY)};
}
