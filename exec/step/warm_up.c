/* Every kernel of the job runs (those of NCCL's sums do where it is opened), on zeroes, before the
 * weights are there and before the first message. CUDA loads a kernel when it is first launched,
 * and may wait for all others to do so: one that waits for a message of another rank, which waits
 * for what is to be loaded, would wait for ever. And the host waits in the launch, where it hears
 * of no rank that has failed. So devices that compute operators together exchange nothing here. The
 * first step is then like the others, too. Where there are several ways to compute something, they
 * are tried here (graph/math/choice.h). O(two micro-batches). */
#include "exec/step/warm_up.h"

#include <string.h>

#include "exec/group/op_group.h"
#include "exec/offload/stash_copies.h"
#include "exec/state/device_wait.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "exec/step/run_stage.h"
#include "exec/step/stepping.h"
#include "graph/math/choice.h"

enum { SOME = 64 };

/* A group as if every device had what this one has. */
typedef struct lone_group {
    const smp_op_group *of;
    const smp_device *device;
    void *device_context;
} lone_group;

static smp_status copy(const lone_group *g, float *to, const float *from, int64_t n)
{
    return g->device->copy(g->device_context, to, from, n * (int64_t)sizeof *to);
}

static smp_status all_reduce(void *context, float *values, int64_t n)
{
    (void)context, (void)values, (void)n;
    return SMP_OK;
}

static smp_status all_gather(void *context, const float *own, float *all, int64_t n)
{
    const lone_group *g = context;
    for (int32_t i = 0; i < g->of->size; i++)
        SMP_TRY(copy(g, all + i * n, own, n));
    return SMP_OK;
}

static smp_status reduce_scatter(void *context, const float *all, float *own, int64_t n)
{
    const lone_group *g = context;
    return copy(g, own, all + g->of->index * n, n);
}

static smp_status all_to_all(void *context, const float *all, float *got, int64_t n)
{
    const lone_group *g = context;
    return copy(g, got, all, n * g->of->size);
}

static smp_status shift(void *context, const float *own, float *got, int64_t n, int32_t by)
{
    (void)by;
    return copy(context, got, own, n);
}

static smp_status shifted(void *context)
{
    (void)context;
    return SMP_OK;
}

static smp_status read(void *context, const void *from, int64_t bytes)
{
    const smp_op_group *of = ((const lone_group *)context)->of;
    return of->read(of->context, from, bytes);
}

static smp_status have_read(void *context, void *host, int64_t bytes)
{
    const smp_op_group *of = ((const lone_group *)context)->of;
    return of->have_read(of->context, host, bytes);
}

/* A micro-batch through all chunks of this rank, with whatever its messages would have brought. */
static smp_status run_stages(smp *s, int microbatch)
{
    for (int training = 0; training <= (int)s->graph->training; training++)
        for (int chunk = 0; chunk < s->work->chunks; chunk++) {
            s->given->training = training;
            SMP_TRY(smp__stage_forward(s, chunk, microbatch));
            if (training)
                SMP_TRY(smp__stash_copies_at_once(s, chunk, microbatch, SMP_COPY_TO_HOST));
        }
    for (int chunk = s->work->chunks - 1; chunk >= 0 && s->graph->training; chunk--) {
        SMP_TRY(smp__stash_copies_at_once(s, chunk, microbatch, SMP_COPY_TO_DEVICE));
        SMP_TRY(smp__stage_backward(s, chunk, microbatch));
    }
    return SMP_OK;
}

static smp_status run_alone(smp *s, int microbatch)
{
    smp__op_group *group = s->stepping->tensor_group;
    if (!group)
        return run_stages(s, microbatch);
    const smp_op_group before = group->group;
    lone_group lone = {&before, s->device, s->device_context};
    group->group = (smp_op_group){.size = before.size,
                                  .index = before.index,
                                  .context = &lone,
                                  .all_reduce = all_reduce,
                                  .all_gather = all_gather,
                                  .reduce_scatter = reduce_scatter,
                                  .all_to_all = all_to_all,
                                  .shift = shift,
                                  .shifted = shifted,
                                  .read = read,
                                  .have_read = have_read};
    const smp_status status = run_stages(s, microbatch);
    group->group = before;
    return status;
}

smp_status smp__warm_up(smp *s)
{
    if (s->device->host_memory)
        return SMP_OK;
    smp__choices *choices = s->device->choices ? s->device->choices(s->device_context) : NULL;
    if (choices)
        choices->trying = true;
    SMP_TRY(run_alone(s, 0));
    if (s->graph->training &&
        s->work->microbatches > 1) /* the first writes gradients, others add */
        SMP_TRY(run_alone(s, 1));
    if (choices)
        choices->trying = false;
    SMP_TRY(smp__weights_round(s));
    if (s->memory->arena_bytes >= 2 * SOME * (int64_t)sizeof(float)) /* sums of tied gradients */
        SMP_TRY(s->device->add(s->device_context, SMP_F32, s->buffers->arena,
                               s->buffers->arena + SOME * sizeof(float), SOME));
    if (s->graph->training) {
        SMP_TRY(smp__weights_square(s));
        SMP_TRY(smp__weights_update(s, 1, 0.0f, 1.0f));
        SMP_TRY(smp__updates_finish(s));
    }
    SMP_TRY(s->device->zero(s->device_context, s->buffers->arena, s->memory->arena_bytes));
    SMP_TRY(smp__device_idle(s));
    if (s->buffers->host_area)
        memset(s->buffers->host_area, 0, (size_t)s->memory->host_bytes);
    return SMP_OK;
}
