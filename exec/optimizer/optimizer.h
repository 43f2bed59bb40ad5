/* The optimizers: one smp_optimizer per file, listed in SMP_OPTIMIZERS. Updates are element-wise,
 * so they do not depend on how weights are spread over ranks; where a whole weight counts, its
 * norms come from outside. */
#ifndef SMP_EXEC_OPTIMIZER_OPTIMIZER_H
#define SMP_EXEC_OPTIMIZER_OPTIMIZER_H

#include "exec/optimizer/bf16_states.h"
#include "graph/base/text.h"
#include "graph/model/dtype.h"
#include "graph/model/target.h"
#include "smp.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP_MAX_OPTIMIZER_STATES = 2 }; /* as many as the planner reserves memory for */

/* The settings that some optimizers read, in the order of smp-run --help. A row makes the field
 * below, its copy from the field of the same name of smp_optimizer_options, and the option.
 * NUMBER: field, option, the most that it may be, from 0, default, help; its range check and the
 * key of --weights-like, too. FLAG: field, option, help. */
#define SMP_UPDATE_SETTINGS(NUMBER, FLAG)                                                          \
    NUMBER(beta1, "beta1", 0.999999, 0.9, "adamw, lamb, novograd; lion's first")                   \
    NUMBER(beta2, "beta2", 0.999999, 0.95, "adamw, lamb, novograd; lion's second")                 \
    NUMBER(epsilon, "epsilon", 1.0, 1e-8, "adamw, lamb, novograd")                                 \
    NUMBER(momentum, "momentum", 0.999999, 0.9, "sgd, lars")                                       \
    FLAG(nesterov, "nesterov", "sgd: look ahead along the momentum")                               \
    NUMBER(trust_coefficient, "trust-coefficient", 1e6, 1e-3, "lars")
#define SMP_NO_SETTING(...) /* in place of NUMBER or FLAG */

/* What the updates of one weight take besides its gradient: the job's numbers, or its own. */
typedef struct smp_update_settings {
    float lr;           /* times the learning rate of the step */
    float weight_decay; /* decoupled but for lars, novograd; 0 where it does not apply */
#define SMP__NUMBER(field, ...) float field;
#define SMP__FLAG(field, ...) bool field;
    SMP_UPDATE_SETTINGS(SMP__NUMBER, SMP__FLAG)
#undef SMP__NUMBER
#undef SMP__FLAG
} smp_update_settings;

smp_optimizer_options smp_optimizer_default(void);
/* Those of the options, with decay. */
smp_update_settings smp_update_settings_of(const smp_optimizer_options *options);

typedef struct smp_update {
    float *weight;     /* [elements], updated */
    const float *grad; /* [elements] */
    /* NULL: an update. Else a measurement: [elements], written, the direction that the weight is to
     * go in, and `weight` is read only; may be `grad` itself. */
    float *direction;
    /* [elements] each, updated; zero before the first step */
    float *state[SMP_MAX_OPTIMIZER_STATES];
    /* In place of these, of as many as the optimizer has; NULL: they are floats. */
    uint16_t *state16[SMP_MAX_OPTIMIZER_STATES];
    smp_state_rounding rounding; /* of state16 */
    void *weight16;              /* [elements] copy of the weight in `half`, written; NULL: none */
    smp_dtype half;
    int64_t elements;
    float grad_scale; /* clipping, and the loss scale taken out: multiply the gradient */
    float lr;
    float trust;  /* of `trust` below, 1 where a weight has none */
    double kept;  /* of `keep` below, as it is after this step */
    int64_t step; /* from 1 */
    const smp_update_settings *settings;
    /* On a device: another one that is made with it, in the same formats; NULL: none. No array of
     * one is written by another. */
    const struct smp_update *next;
} smp_update;

typedef struct smp_optimizer {
    const char *name;
    const char *summary; /* a line of smp-run --help */
    int states;          /* arrays of one number per weight */
    /* 1 or true where it reads that one; lr and weight_decay, which all read, stay 0. */
    smp_update_settings reads;
    /* On the CPU, called by smp_optimizer_apply: states are floats. */
    void (*update)(const smp_update *update);

    /* The trust ratio of optimizers whose rate for a weight depends on all of it; NULL: not this
     * one. From the Euclidean norms of the weight and of its direction before the update, neither
     * 0, to what stands in update->trust. Only weights of two or more dimensions have one. */
    double (*trust)(const smp_update *update, double weight_norm, double direction_norm);
    /* With `trust`, of optimizers that keep a number for each whole weight, of any dimension: from
     * what it is, 0 before the first step, and the norm of the direction, to what `trust` finds in
     * update->kept. There is then no ratio of 1 for norms that are 0. */
    double (*keep)(const smp_update *update, double kept, double direction_norm);
    /* With `trust`: makes the directions, updates the states; the update that follows gets the
     * direction as its gradient. NULL: the direction is the gradient as it is. */
    void (*measure)(const smp_update *update);
} smp_optimizer;

/* All optimizers, the default first. <name>.c defines smp__optimizer_<name>; <name>.cu, if there is
 * one, smp__cuda_<name>. */
#define SMP_OPTIMIZERS(X)                                                                          \
    X(adamw)                                                                                       \
    X(sgd)                                                                                         \
    X(lion)                                                                                        \
    X(lamb)                                                                                        \
    X(lars)                                                                                        \
    X(novograd)

#define SMP__OPTIMIZER_DECLARE(name) extern const smp_optimizer smp__optimizer_##name;
SMP_OPTIMIZERS(SMP__OPTIMIZER_DECLARE)
#undef SMP__OPTIMIZER_DECLARE

const smp_optimizer *smp_optimizer_find(const char *name); /* NULL if unknown */
const smp_optimizer *const *smp_optimizers(void);          /* NULL-terminated */
smp_status smp_optimizer_unknown(const char *name);        /* SMP_ERR_INPUT names all */
/* What states are kept in: "fp32", also for NULL, or "bf16". SMP_ERR_INPUT, with `what`. */
smp_status smp_state_precision_read(const char *what, const char *text, bool *bf16);

/* An update on the CPU, or where update->direction says so a measurement, of states in either
 * format. */
void smp_optimizer_apply(const smp_optimizer *optimizer, const smp_update *update);

/* update->trust of a weight from its sums of squares: 1 where a norm is 0. Of an optimizer with
 * `keep` update->kept goes from before this step to after it. */
float smp_trust_of(const smp_optimizer *optimizer, smp_update *update, double weight_squares,
                   double direction_squares);

/* SMP_ERR_INPUT: options->nesterov is set, and this optimizer does not read it. */
smp_status smp_optimizer_check(const smp_optimizer *optimizer,
                               const smp_optimizer_options *options);

#ifdef __cplusplus
}
#endif

#endif
