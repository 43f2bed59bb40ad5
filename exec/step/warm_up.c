/* Every kernel of the job runs (those of NCCL's sums do where it is opened), on zeroes, before the
 * weights are there and before the first message. CUDA loads a kernel when it is first launched,
 * and may wait for all others to do so: one that waits for a message of another rank, which waits
 * for what is to be loaded, would wait for ever. The first step is then like the others, too. Where
 * there are several ways to compute something, they are tried here (graph/model/choice.h). O(two
 * micro-batches). */
#include "exec/step/warm_up.h"

#include <string.h>

#include "exec/offload/stash_copies.h"
#include "exec/state/device_wait.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "exec/step/run_stage.h"
#include "graph/model/choice.h"

enum { SOME = 64 };

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

smp_status smp__warm_up(smp *s)
{
    if (s->device->host_memory)
        return SMP_OK;
    smp__choices *choices = s->device->choices ? s->device->choices(s->device_context) : NULL;
    if (choices)
        choices->trying = true;
    SMP_TRY(run_stages(s, 0));
    if (s->graph->training &&
        s->work->microbatches > 1) /* the first writes gradients, others add */
        SMP_TRY(run_stages(s, 1));
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
