/* What the rooms of the executor ask of a job: addresses, which weights and stages
 * are here, and where a failure happened. */
#include "exec/state/handle.h"

#include <stdio.h>

#include "schedule/plan/gradient_blocks.h"

/* Micro-batches of a block of gradients. */
static int block_size(const smp *s)
{
    return s->work->microbatches / smp_gradient_share(s->plan->gradient_blocks, s->comm->ddp_size);
}

static int end_block(const smp *s, int replica)
{
    return smp_gradient_begin(s->plan->gradient_blocks, s->comm->ddp_size, replica + 1);
}

int64_t smp__job_microbatch(const smp *s, int replica, int microbatch)
{
    const int64_t number =
        replica == s->comm->replica
            ? s->work->number
            : (int64_t)end_block(s, replica) * block_size(s) - s->work->microbatches;
    return number + microbatch;
}

int smp__job_first(const smp *s, int replica)
{
    return replica == s->comm->replica
               ? s->work->first
               : s->work->microbatches -
                     (end_block(s, replica) - end_block(s, replica - 1)) * block_size(s);
}

void smp__job_number(smp *s)
{
    const int end = end_block(s, s->comm->replica), begin = end_block(s, s->comm->replica - 1);
    s->work->first = s->work->microbatches - (end - begin) * block_size(s);
    s->work->number = (int64_t)end * block_size(s) - s->work->microbatches;
}

int64_t smp__job_microbatches(const smp *s)
{
    return (int64_t)s->plan->gradient_blocks * block_size(s);
}

int64_t smp__job_samples(const smp *s, int replica, int microbatch)
{
    const int64_t left =
        s->given->samples - smp__job_microbatch(s, replica, microbatch) * s->work->batch;
    return left < 0 || microbatch < smp__job_first(s, replica) ? 0
           : left < s->work->batch                             ? left
                                                               : s->work->batch;
}

int64_t smp__job_following(const smp *s, int replica, int microbatch)
{
    int64_t first = smp__job_microbatch(s, replica, microbatch) + 1;
    int64_t n = (s->given->samples + s->work->batch - 1) / s->work->batch - first;
    return n < 0 ? 0 : n;
}

static void *input_address(const smp *s, int input, int microbatch)
{
    const smp__input *in = &s->given->input[input];
    bool full = smp__job_samples(s, s->comm->replica, microbatch) == s->work->batch;
    const int first = smp__job_first(s, s->comm->replica);
    return (char *)(full ? in->data + (microbatch - first) * in->stride : in->padded);
}

void *smp__job_address(const smp *s, int chunk, smp_ref ref, int microbatch)
{
    const smp_memory_rank *memory = s->memory;
    switch (ref.space) {
    case SMP_SPACE_NONE:
        return NULL;
    case SMP_SPACE_INPUT:
        return input_address(s, ref.index, s->given->first_microbatch + microbatch);
    case SMP_SPACE_STASH:
        return s->buffers->arena +
               memory->stash[ref.index][(int64_t)chunk * s->work->microbatches + microbatch] +
               ref.offset;
    case SMP_SPACE_WORK:
        return s->buffers->arena + memory->work + ref.offset;
    case SMP_SPACE_BORDER:
        return s->buffers->arena +
               memory->border[(int64_t)(memory->border_begin[chunk] + ref.index) *
                                  s->work->microbatches +
                              microbatch];
    case SMP_SPACE_LOSS:
        return s->buffers->arena + memory->loss + (int64_t)microbatch * SMP_LOSS_SLOT_BYTES;
    case SMP_SPACE_LOSS_GRADIENT:
        return s->buffers->loss_gradient + (int64_t)microbatch * SMP_LOSS_SLOT_BYTES;
    }
    return NULL;
}

int32_t smp__job_find_param(const smp *s, int32_t param)
{
    int32_t low = 0, high = s->memory->n_param;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (s->memory->param[middle].param < param)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->memory->n_param && s->memory->param[low].param == param ? low : -1;
}

int smp__job_states(const smp *s)
{
    return s->graph->training ? s->optimizer->states : 0;
}

bool smp__job_keeps(const smp *s)
{
    return s->graph->training && s->optimizer->keep;
}

int smp__job_chunk_of_stage(const smp *s, int stage)
{
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        if (s->work->stage_of_chunk[chunk] == stage)
            return chunk;
    return -1;
}

smp_status smp__job_usable(const smp *s)
{
    if (s->broken || s->comm->failed)
        return smp_fail(SMP_ERR_FAILED, "an earlier call failed: the job can only be finalised");
    return SMP_OK;
}

static bool has_input(const smp *s, int input)
{
    return input >= 0 && input < s->graph->n_input;
}

const char *smp_input_name(const smp *s, int input)
{
    return has_input(s, input) ? s->graph->tensor[input].name : NULL;
}

int64_t smp_input_elements(const smp *s, int input)
{
    return has_input(s, input) ? s->graph->tensor[input].elements : 0;
}

int smp_input_is_int(const smp *s, int input)
{
    return has_input(s, input) && s->graph->tensor[input].dtype == SMP_I32;
}

int smp_input_is_split(const smp *s, int input)
{
    return has_input(s, input) && !s->graph->tensor[input].unsplit;
}

int smp_input_needed(const smp *s, int input)
{
    if (!has_input(s, input))
        return 0;
    for (int64_t i = s->graph->consumer_begin[input]; i < s->graph->consumer_begin[input + 1]; i++)
        if (s->work->stage_rank[s->work->stage_of_op[s->graph->consumer[i].op]] ==
            s->comm->pipeline_rank)
            return 1;
    return 0;
}

int64_t smp_step_samples(const smp *s)
{
    return s->work->batch * (s->work->microbatches - smp__job_first(s, s->comm->replica));
}

int64_t smp_samples_before(const smp *s)
{
    const int replica = s->comm->replica;
    return s->work->batch * smp__job_microbatch(s, replica, smp__job_first(s, replica));
}

int64_t smp_microbatch_samples(const smp *s)
{
    return s->work->batch;
}

int64_t smp__job_global_batch(const smp *s)
{
    return s->work->batch * smp__job_microbatches(s);
}

smp_status smp__job_leave(smp *s, smp_status status)
{
    if (status != SMP_ERR_PEER)
        smp__place_doing(s->place, smp__between_steps);
    return status;
}

smp_status smp__job_context(const smp *s, smp_status status)
{
    if (status == SMP_OK)
        return status;
    char of_group[48] = "";
    if (s->comm->tensor_size > 1)
        snprintf(of_group, sizeof(of_group), ", device %d of %d", s->comm->tensor_rank,
                 s->comm->tensor_size);
    const char *doing = smp__place_words(s->place);
    const smp_action at = smp__place_at(s->place);
    if (doing)
        return smp_fail_context(status, "rank %d (replica %d, pipeline rank %d%s, %s)",
                                s->comm->world_rank, s->comm->replica, s->comm->pipeline_rank,
                                of_group, doing);
    if (at.kind != SMP_ACTION_OPTIMIZE && at.chunk < 0)
        return smp_fail_context(status,
                                "rank %d (replica %d, pipeline rank %d%s, before the first "
                                "action)",
                                s->comm->world_rank, s->comm->replica, s->comm->pipeline_rank,
                                of_group);
    smp_text action = {0};
    smp_action_format(&at, &action);
    /* the optimizer step is one of all stages of the rank: the first stands for them */
    int stage = s->work->stage_of_chunk[at.chunk >= 0 ? at.chunk : 0];
    char where[64];
    snprintf(where, sizeof(where), ", stage %d", stage);
    char mb[64] = "";
    if (at.microbatch >= 0)
        snprintf(mb, sizeof(mb), ", micro-batch %d", at.microbatch);
    smp_fail_context(status, "rank %d (replica %d, pipeline rank %d%s%s%s, action %s)",
                     s->comm->world_rank, s->comm->replica, s->comm->pipeline_rank, of_group, where,
                     mb, action.data ? action.data : "?");
    smp_text_free(&action);
    return status;
}
