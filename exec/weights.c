/* Weights of this rank: initial values, update, hash. Initial values are functions of seed, weight
 * and position, so they do not depend on who holds the weight. */
#include <math.h>
#include <string.h>

#include "exec/job.h"
#include "graph/base/random.h"
#include "graph/base/text.h"

static const double two_pi = 6.283185307179586;

/* Four values per counter: uniform words, or two Box-Muller pairs. */
static void draw(const smp_param *param, uint64_t key, int64_t index, float value[4])
{
    smp_random4 word = smp_random_philox(key, (uint64_t)index, 0);
    if (param->init == SMP_INIT_UNIFORM) {
        for (int k = 0; k < 4; k++)
            value[k] = (2.0f * smp_random_uniform(word.v[k]) - 1.0f) * param->init_scale;
        return;
    }
    for (int k = 0; k < 4; k += 2) {
        double radius = sqrt(-2.0 * log(1.0 - (double)smp_random_uniform(word.v[k])));
        double angle = two_pi * (double)smp_random_uniform(word.v[k + 1]);
        value[k] = (float)(radius * cos(angle)) * param->init_scale;
        value[k + 1] = (float)(radius * sin(angle)) * param->init_scale;
    }
}

static void init_param(const smp_param *param, uint64_t key, float *weight)
{
    if (param->init == SMP_INIT_ZERO || param->init == SMP_INIT_ONE) {
        for (int64_t i = 0; i < param->elements; i++)
            weight[i] = param->init == SMP_INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    for (int64_t i = 0; i < param->elements; i += 4) {
        float value[4];
        draw(param, key, i / 4, value);
        for (int64_t k = 0; k < 4 && i + k < param->elements; k++)
            weight[i + k] = value[k];
    }
}

void smp__weights_init(smp *s)
{
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp_memory_param *param = &s->memory->param[i];
        uint64_t key = smp_random_mix(s->options.seed ^ smp_random_mix((uint64_t)param->param));
        init_param(&s->graph->param[param->param], key, (float *)(s->arena + param->weight));
    }
}

void smp__weights_update(smp *s, int64_t step, float lr, float grad_scale)
{
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp_memory_param *param = &s->memory->param[i];
        const smp_param *p = &s->graph->param[param->param];
        smp_update update = {.weight = (float *)(s->arena + param->weight),
                             .grad = (const float *)(s->arena + param->grad),
                             .elements = p->elements,
                             .grad_scale = grad_scale,
                             .lr = lr,
                             .weight_decay = p->decay ? s->options.weight_decay : 0.0f,
                             .step = step,
                             .options = &s->options};
        for (int k = 0; k < s->optimizer->states; k++)
            update.state[k] = (float *)(s->arena + param->state[k]);
        s->optimizer->update(&update);
    }
    /* Accumulators start the next step at zero. A single use's accumulator is its gradient. */
    for (int32_t i = 0; i < s->memory->n_use; i++) {
        const smp_memory_use *use = &s->memory->use[i];
        int32_t param = s->memory->param[use->param].param;
        s->device->zero(s->arena + use->offset,
                        s->graph->param[param].elements * (int64_t)sizeof(float));
    }
}

smp_status smp__weights_hash(smp *s, uint64_t *hash)
{
    /* Each owner hashes its weights; the hashes are combined in the order of the weights. 32 bits
     * at a time are exact in a double sum. */
    memset(s->norm, 0, (size_t)s->graph->n_param * sizeof(double));
    uint64_t all = 0;
    for (int half = 0; half < 2; half++) {
        for (int32_t i = 0; i < s->graph->n_param; i++)
            s->norm[i] = 0.0;
        for (int32_t i = 0; i < s->memory->n_param; i++) {
            const smp_memory_param *param = &s->memory->param[i];
            uint64_t own = smp_hash(0, s->arena + param->weight,
                                    (size_t)s->graph->param[param->param].elements * 4);
            if (param->owner)
                s->norm[param->param] = (double)((half ? own >> 32 : own) & 0xffffffffu);
        }
        MPI_Allreduce(MPI_IN_PLACE, s->norm, s->graph->n_param, MPI_DOUBLE, MPI_SUM,
                      s->comm.pipeline);
        all = smp_hash(all, s->norm, (size_t)s->graph->n_param * sizeof(double));
    }
    *hash = all;
    return SMP_OK;
}
