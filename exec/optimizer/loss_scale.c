/* Loss scaling: see the header. */
#include "exec/optimizer/loss_scale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Shares of micro-batches times these, and factors of clipping over them, are normal floats. */
static const float LARGEST = 0x1p100f, LEAST = 0x1p-100f;

static smp_status check_numbers(const smp_optimizer_options *o)
{
    if (!(o->loss_scale_init >= LEAST && o->loss_scale_init <= LARGEST))
        return smp_fail(SMP_ERR_INPUT, "loss scale at first %g: expected %g to %g",
                        (double)o->loss_scale_init, (double)LEAST, (double)LARGEST);
    if (!(o->min_scale >= LEAST && o->min_scale <= o->loss_scale_init))
        return smp_fail(SMP_ERR_INPUT, "least loss scale %g: expected %g to the %g it begins with",
                        (double)o->min_scale, (double)LEAST, (double)o->loss_scale_init);
    if (o->scale_window < 1 || o->delayed_shift < 1)
        return smp_fail(SMP_ERR_INPUT,
                        "scale window %lld, delayed shift %d: expected 1 or more steps and "
                        "overflows",
                        (long long)o->scale_window, o->delayed_shift);
    return SMP_OK;
}

smp_status smp_loss_scaling_read(const smp_optimizer_options *o, smp_precision precision,
                                 smp_loss_scaling *out)
{
    const char *name = o->loss_scale                     ? o->loss_scale
                       : precision == SMP_PRECISION_FP16 ? "auto"
                                                         : "off";
    char *end;
    *out = (smp_loss_scaling){.init = 1.0f};
    if (strcmp(name, "off") == 0)
        return SMP_OK;
    if (strcmp(name, "auto") == 0) {
        SMP_TRY(check_numbers(o));
        *out = (smp_loss_scaling){
            true, true, o->loss_scale_init, o->min_scale, o->scale_window, o->delayed_shift};
        return SMP_OK;
    }
    const float scale = strtof(name, &end);
    if (end == name || *end != '\0' || !(scale >= LEAST && scale <= LARGEST))
        return smp_fail(SMP_ERR_INPUT,
                        "loss scale '%s': expected auto, off, or a number from %g to %g", name,
                        (double)LEAST, (double)LARGEST);
    *out = (smp_loss_scaling){.on = true, .init = scale};
    return SMP_OK;
}

smp_loss_scale smp_loss_scale_begin(const smp_loss_scaling *scaling)
{
    return (smp_loss_scale){.scale = scaling->init, .left = scaling->delayed_shift};
}

smp_loss_scale smp_loss_scale_resume(const smp_loss_scaling *scaling, smp_loss_scale saved)
{
    saved.scale = fminf(fmaxf(saved.scale, scaling->min), LARGEST);
    if (saved.good >= scaling->window)
        saved.good = scaling->window - 1;
    if (saved.left > scaling->delayed_shift)
        saved.left = scaling->delayed_shift;
    return saved;
}

void smp_loss_scale_next(const smp_loss_scaling *scaling, bool overflowed, smp_loss_scale *scale)
{
    if (!scaling->dynamic)
        return;
    scale->good = overflowed ? 0 : scale->good + 1;
    if (overflowed && scale->left > 1) {
        scale->left--;
    } else if (overflowed) {
        scale->scale = fmaxf(0.5f * scale->scale, scaling->min);
    } else if (scale->good == scaling->window) {
        scale->good = 0;
        scale->left = scaling->delayed_shift;
        scale->scale = fminf(2.0f * scale->scale, LARGEST);
    }
}
