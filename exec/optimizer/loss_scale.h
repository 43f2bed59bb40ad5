/* Loss scaling: the gradient of the loss is multiplied by a scale, so that gradients of activations
 * do not vanish in few bits of exponent, and gradients of weights are divided by it before anything
 * is made of them (Micikevicius et al., "Mixed Precision Training", ICLR 2018). A dynamic scale
 * looks for the largest that does not overflow:
 *
 *   after a step that overflowed, which is skipped: the count of good steps begins again; of
 *     `delayed_shift` overflows the last one, and every further one, halves the scale, not below
 *     min_scale;
 *   after `window` good steps in a row: the scale is doubled, and so many overflows are to come
 *     again before it is halved.
 *
 * That is Megatron-Core's DynamicGradScaler, whose hysteresis is delayed_shift; under the names of
 * the DynamicLossScaler that SageMaker has its parameters from (DeepSpeed's counts one step more
 * before it doubles). With a delayed_shift of 1 it is PyTorch's GradScaler (factors 2 and 1/2,
 * growth_interval the window). By powers of two nothing is rounded that was not before. */
#ifndef SMP_EXEC_OPTIMIZER_LOSS_SCALE_H
#define SMP_EXEC_OPTIMIZER_LOSS_SCALE_H

#include <stdbool.h>

#include "graph/base/text.h"
#include "graph/model/target.h"
#include "smp.h"

/* What does not change. */
typedef struct smp_loss_scaling {
    bool on;      /* else the scale is 1 */
    bool dynamic; /* else it is init */
    float init, min;
    int64_t window;
    int delayed_shift;
} smp_loss_scaling;

/* What changes with the steps. */
typedef struct smp_loss_scale {
    float scale;  /* of the next step, above 0 */
    int64_t good; /* steps in a row, fewer than the window */
    int left;     /* overflows until the scale is halved, 1: the next one does it */
} smp_loss_scale;

/* Reads what the options say. SMP_ERR_INPUT names the one that cannot be. */
smp_status smp_loss_scaling_read(const smp_optimizer_options *options, smp_precision precision,
                                 smp_loss_scaling *out);
smp_loss_scale smp_loss_scale_begin(const smp_loss_scaling *scaling);
/* What a job with other options left behind, within these. */
smp_loss_scale smp_loss_scale_resume(const smp_loss_scaling *scaling, smp_loss_scale saved);
/* After a step that was done, or skipped because it overflowed. Nothing if it is not dynamic. */
void smp_loss_scale_next(const smp_loss_scaling *scaling, bool overflowed, smp_loss_scale *scale);
/* Would another overflow sooner or later lower it? */
static inline bool smp_loss_scale_can_fall(const smp_loss_scaling *scaling, smp_loss_scale scale)
{
    return scaling->dynamic && scale.scale > scaling->min;
}

#endif
