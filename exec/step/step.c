/* One step: walks the rank's program. The executor decides nothing: what runs, when receives are
 * posted and sends completed all stands in the plan and the memory plan. File by file:
 *
 *   step_inputs.c          the caller's arrays are checked and on their way to the device
 *   loss_share.c           what each micro-batch counts in the loss; replicas tell each other
 *   reduce.c               receives for the gradients of tied weights are posted
 *   run_program, here      for every action of the program, in its order:
 *     messages.c             completes sends whose memory is needed now, posts receives ahead;
 *                            waits for what an F, B or I reads; starts what a > sends
 *     offload/travel.c       completes stores whose memory is needed now; S, L: copies to and
 *                            from host memory start; waits for what a B or I reads of them
 *     run_stage.c            F, B, I, W: the operators of a stage, by its layout; between two of
 *                            them the transport moves on, and the host waits for a device far
 *                            behind
 *     cost_samples.c         what they took, if the costs of this run are wanted
 *     reduce.c               the end of a block of gradients: its place in the tree of sums;
 *                            R: a chunk's gradients are final, their sum over replicas starts;
 *                            O: all sums are there
 *   state/device_wait.c    the one wait: the device may be far behind until everything before the
 *                          optimizer is done, then the host reads losses and the gradient norm
 *   save/checkpoint_keep.c  waits until the state before is written, if it is kept in memory
 *   state/weights.c        the norm; if all is finite the update (enqueued: no wait)
 *   transport/comm.c       the losses and times of all ranks
 *
 * A failure anywhere ends in fail_step: the others get a notice, and their waits end. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "exec/offload/stash_copies.h"
#include "exec/optimizer/lr_schedule.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/state/device_wait.h"
#include "exec/state/progress.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "exec/step/cost_samples.h"
#include "exec/step/gather.h"
#include "exec/inputs/loss_share.h"
#include "exec/step/messages.h"
#include "exec/group/op_group.h"
#include "exec/step/reduce.h"
#include "exec/step/run_stage.h"
#include "exec/step/step_sums.h"
#include "exec/inputs/step_inputs.h"
#include "exec/step/stepping.h"

static smp_status run_action(smp *s, const smp_action *action)
{
    int chunk = action->chunk, mb = action->microbatch;
    switch (action->kind) {
    case SMP_ACTION_F:
        SMP_TRY(smp__messages_arrive(s, chunk, mb, SMP_TRANSFER_F));
        SMP_TRY(smp__gather_wait(s, chunk));
        SMP_TRY(smp__stamp_begin(s));
        return smp__stage_forward(s, chunk, mb);
    case SMP_ACTION_B:
        SMP_TRY(smp__messages_arrive(s, chunk, mb, SMP_TRANSFER_B));
        SMP_TRY(smp__stash_copies_loaded(s, chunk, mb));
        SMP_TRY(smp__gather_wait(s, chunk));
        SMP_TRY(smp__stamp_begin(s));
        SMP_TRY(smp__reduce_begin_chunk(s, chunk, mb));
        SMP_TRY(smp__stage_backward(s, chunk, mb));
        return smp__reduce_block(s, chunk, mb);
    case SMP_ACTION_I:
        SMP_TRY(smp__messages_arrive(s, chunk, mb, SMP_TRANSFER_B));
        SMP_TRY(smp__stash_copies_loaded(s, chunk, mb));
        SMP_TRY(smp__gather_wait(s, chunk));
        SMP_TRY(smp__stamp_begin(s));
        return smp__stage_input(s, chunk, mb);
    case SMP_ACTION_W:
        SMP_TRY(smp__gather_wait(s, chunk));
        SMP_TRY(smp__stamp_begin(s));
        SMP_TRY(smp__reduce_begin_chunk(s, chunk, mb));
        SMP_TRY(smp__stage_weight(s, chunk, mb));
        return smp__reduce_block(s, chunk, mb);
    case SMP_ACTION_SEND_F:
        return smp__messages_send(s, chunk, mb, SMP_TRANSFER_F);
    case SMP_ACTION_SEND_B:
        return smp__messages_send(s, chunk, mb, SMP_TRANSFER_B);
    case SMP_ACTION_RECV_F:
    case SMP_ACTION_RECV_B:
        return SMP_OK; /* posted ahead; the F, B or I that needs it waits */
    case SMP_ACTION_STORE:
    case SMP_ACTION_LOAD:
        return smp__stash_copies_begin(
            s, chunk, mb, action->kind == SMP_ACTION_STORE ? SMP_COPY_TO_HOST : SMP_COPY_TO_DEVICE);
    case SMP_ACTION_GATHER:
        return smp__gather_start(s, chunk, smp__device_position(s));
    case SMP_ACTION_DROP:
        return SMP_OK; /* the memory plan gives its place to others */
    case SMP_ACTION_REDUCE:
        return smp__reduce_start(s, chunk);
    case SMP_ACTION_ALL:
        return smp__reduce_across(s, chunk);
    case SMP_ACTION_OPTIMIZE:
        return smp__reduce_finish(s);
    }
    return smp_fail(SMP_ERR_FAILED, "unknown kind of action %d", (int)action->kind);
}

static smp_status wait_sends(smp *s, int64_t position)
{
    const int64_t first = s->memory->wait_begin[position];
    const int64_t end = s->memory->wait_begin[position + 1];
    if (first == end)
        return SMP_OK;
    const double begin_s = smp__spent_begin(s->record);
    for (int64_t i = first; i < end; i++)
        SMP_TRY(smp__messages_sent(s, s->memory->wait[i]));
    smp__spent_end(s->record, SMP__SPENT_SENDS, begin_s);
    return SMP_OK;
}

/* run_action, and the time in it that waiting for the group took. */
static smp_status run_timed(smp *s, const smp_action *action)
{
    const smp_action_kind kind = action->kind;
    const bool backward = kind == SMP_ACTION_B || kind == SMP_ACTION_I || kind == SMP_ACTION_W;
    const double before_s = s->stepping->tensor_group ? s->stepping->tensor_group->waited_s : 0.0;
    SMP_TRY(run_action(s, action));
    if (s->stepping->tensor_group)
        smp__spent_add(s->record,
                       kind == SMP_ACTION_F ? SMP__SPENT_GROUP_FORWARD
                       : backward           ? SMP__SPENT_GROUP_BACKWARD
                                            : SMP__SPENT_GROUP_OTHER,
                       s->stepping->tensor_group->waited_s - before_s);
    return SMP_OK;
}

/* Once what it waits for is there; O after that and the norm. */
static bool begins_itself(smp_action_kind kind)
{
    return smp_action_is_compute(kind) || kind == SMP_ACTION_OPTIMIZE;
}

static smp_status run_program(smp *s)
{
    const smp_memory_rank *memory = s->memory;
    for (int64_t i = 0; i < s->work->program->n; i++) {
        const smp_action *action = &s->work->program->action[i];
        smp__place_action(s->place, action);
        SMP_TRY(wait_sends(s, i));
        SMP_TRY(smp__stash_copies_stored(s, i));
        for (int64_t k = memory->post_begin[i]; k < memory->post_begin[i + 1]; k++)
            SMP_TRY(smp__messages_post(s, memory->post[k]));
        if (s->record && !begins_itself(action->kind))
            SMP_TRY(smp__stamp_begin(s));
        SMP_TRY(run_timed(s, action));
        SMP_TRY(smp__keep_look(s));
        if (action->kind != SMP_ACTION_OPTIMIZE) /* it ends when the weights are updated */
            SMP_TRY(smp__stamp_end(s));
    }
    return wait_sends(s, s->work->program->n);
}

/* The one wait of a step: then the host may read the losses and the sums of squares. */
static smp_status finish_device_work(smp *s, bool training)
{
    if (training) {
        SMP_TRY(smp__cost_optimizer_begin(s, SMP__OPTIMIZER_NORM));
        const double begin_s = smp__spent_begin(s->record);
        SMP_TRY(smp__weights_square(s));
        smp__spent_end(s->record, SMP__SPENT_NORM, begin_s);
        SMP_TRY(smp__cost_optimizer_end(s, SMP__OPTIMIZER_NORM));
    }
    if (s->memory->loss >= 0)
        SMP_TRY(s->device->download(s->device_context, s->buffers->loss,
                                    s->buffers->arena + s->memory->loss,
                                    (int64_t)s->work->microbatches * SMP_LOSS_SLOT_BYTES));
    SMP_TRY(smp__device_idle(s));
    smp__device_note_update(s);
    smp__stash_copies_note_ends(s);
    double beside_s[2];
    smp__updates_times(s, beside_s);
    smp__record_beside(s->record, beside_s);
    return SMP_OK;
}

/* Would an update make the weights worse than they are, because something is not finite or there is
 * no target? The same on every rank, since it is made of sums over all ranks: of the gradient's
 * squares, and of what this rank knows of the losses. The norm is that of the true gradient. */
static smp_status find_unsound(smp *s, double *norm, bool *overflowed, bool *unsound)
{
    enum { WRONG, ROWS };
    double sum[SMP__STEP_SUMS] = {0};
    smp__step_sums_count(s, &sum[WRONG], &sum[ROWS]);
    SMP_TRY(smp__weights_norm(s, sum, norm));
    bool no_target = s->graph->loss >= 0 && sum[ROWS] == 0.0;
    *norm /= (double)smp__progress_scale(s->progress);
    *overflowed = !isfinite(*norm) || sum[WRONG] > 0.0;
    *unsound = *overflowed || no_target;
    return SMP_OK;
}

/* After the reductions: take the loss scale out, clip, then update the weights. A step with a loss
 * or a gradient that is not finite, or without any target, changes nothing. */
static smp_status update(smp *s, smp_step_result *result)
{
    const float scaled = smp__progress_scale(s->progress), limit = s->options->optimizer.clip_norm;
    float scale = 1.0f / scaled;
    bool overflowed = false, unsound = false;
    result->lr = smp_learning_rate(&s->options->optimizer, s->step + 1);
    result->loss_scale = (double)scaled;
    SMP_TRY(find_unsound(s, &result->grad_norm, &overflowed, &unsound));
    result->skipped = smp__progress_count(s->progress, overflowed, unsound);
    if (limit > 0.0f && result->grad_norm > (double)limit)
        scale = (float)((double)limit / result->grad_norm) / scaled;
    SMP_TRY(smp__keep_wait(s));
    SMP_TRY(smp__stamp_begin(s));
    SMP_TRY(smp__cost_optimizer_begin(s, SMP__OPTIMIZER_UPDATE));
    if (!unsound)
        SMP_TRY(smp__weights_update(s, s->step + 1, (float)result->lr, scale));
    SMP_TRY(smp__cost_optimizer_end(s, SMP__OPTIMIZER_UPDATE));
    return smp__stamp_end(s);
}

static smp_status check_call(const smp *s, const void *const *inputs, int64_t samples,
                             const void *result)
{
    if (!s || !inputs || !result)
        return smp_fail(SMP_ERR_INPUT, "a NULL argument");
    if (samples < 1 || samples > smp__job_global_batch(s))
        return smp_fail(SMP_ERR_INPUT, "a batch of %" PRId64 " samples: expected 1 to %" PRId64,
                        samples, smp__job_global_batch(s));
    return smp__job_usable(s);
}

static double begin(smp *s, bool training, int64_t samples)
{
    s->given->training = training;
    s->given->samples = samples;
    smp__device_queue_begin(s);
    smp__place_begin(s->place);
    const double begin_s = smp__step_sums_begin(s);
    smp__comm_enter(s->comm);
    return begin_s;
}

static smp_status fail_step(smp *s, smp_status status)
{
    s->broken = true;
    if (status == SMP_ERR_FAILED)
        smp__device_blame(s);
    if (!s->comm->told)
        smp__job_context(s, status);
    smp__comm_notify(s->comm, status); /* first, since the next may wait for the device */
    if (s->endpoint->transport->abort)
        s->endpoint->transport->abort(s->endpoint->context);
    return status;
}

smp_status smp_step_short(smp *s, const void *const *inputs, int64_t samples,
                          smp_step_result *result)
{
    SMP_TRY(check_call(s, inputs, samples, result));
    SMP_TRY(smp__keep_check_told(s));
    bool training = s->graph->training;
    smp_step_result done = {.step = s->step + 1, .loss_scale = 1.0};
    smp__record_begin(s->record, begin(s, training, samples));
    smp__cost_samples_begin(s);
    smp_status status = smp__inputs_begin(s, inputs);
    if (status == SMP_OK)
        status = smp__loss_share_begin(s, inputs);
    if (status == SMP_OK && training)
        status = smp__reduce_begin_step(s);
    if (status == SMP_OK)
        status = run_program(s);
    if (status == SMP_OK)
        status = finish_device_work(s, training);
    if (status == SMP_OK)
        status = smp__cost_samples_end(s);
    if (status == SMP_OK)
        smp__step_sums_read(s);
    if (status == SMP_OK && training)
        status = update(s, &done);
    if (status == SMP_OK)
        status = smp__step_sums_collect(s, &done);
    if (status != SMP_OK)
        return fail_step(s, status);
    smp__place_doing(s->place, smp__between_steps);
    s->step++;
    status = smp__progress_advance(s->progress, samples, s->options->runtime.max_skipped, &done);
    s->broken = status != SMP_OK;
    if (status != SMP_OK)
        return status; /* on all ranks */
    if ((status = smp__keep_step(s, &done)) != SMP_OK)
        return fail_step(s, status);
    *result = done;
    return SMP_OK;
}

smp_status smp_step(smp *s, const void *const *inputs, smp_step_result *result)
{
    return smp_step_short(s, inputs, s ? smp__job_global_batch(s) : 0, result);
}

/* Waits for the sends of micro-batch slot 0 to the next stage, or for those that jump over stages
 * too. */
static smp_status wait_chunk_sends(smp *s, bool jumps)
{
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        for (int i = 0; i < s->work->chunk[chunk].n_channel; i++) {
            smp__channel *channel = &s->work->chunk[chunk].channel[i];
            const smp_transfer *transfer = &s->work->flow->transfer[channel->transfer];
            if (channel->outgoing && (jumps || transfer->to_stage == transfer->from_stage + 1))
                SMP_TRY(smp__messages_wait(s, channel, 0));
        }
    return SMP_OK;
}

/* Forward of one micro-batch through this rank's chunks, in the buffers that micro-batch 0 has in
 * training. Other buffers may share the memory of a tensor for the next stage, so its send is
 * complete before the next action begins; a tensor that jumps over stages has its memory until the
 * backward pass, and is waited for before the next micro-batch. In the order (micro-batch, stage)
 * that cannot deadlock: the first action not yet done only waits for what comes before it. */
static smp_status evaluate_microbatch(smp *s, int mb)
{
    s->given->first_microbatch = mb;
    for (int chunk = 0; chunk < s->work->chunks; chunk++) {
        smp__place_action(s->place, &(smp_action){SMP_ACTION_F, mb, chunk});
        SMP_TRY(wait_chunk_sends(s, chunk == 0));
        for (int i = 0; i < s->work->chunk[chunk].n_channel; i++) {
            const smp__channel *channel = &s->work->chunk[chunk].channel[i];
            smp_memory_message message = {.transfer = channel->transfer};
            if (!channel->outgoing &&
                s->work->flow->transfer[channel->transfer].kind == SMP_TRANSFER_F)
                SMP_TRY(smp__messages_post(s, message));
        }
        SMP_TRY(smp__messages_arrive(s, chunk, 0, SMP_TRANSFER_F));
        SMP_TRY(smp__gather_parts(s, chunk));
        SMP_TRY(smp__stage_forward(s, chunk, 0));
        SMP_TRY(smp__messages_send(s, chunk, 0, SMP_TRANSFER_F));
    }
    if (s->memory->loss < 0)
        return SMP_OK;
    return s->device->download(s->device_context,
                               s->buffers->loss + (int64_t)mb * SMP_LOSS_SLOT_BYTES,
                               s->buffers->arena + s->memory->loss, SMP_LOSS_SLOT_BYTES);
}

smp_status smp_evaluate_short(smp *s, const void *const *inputs, int64_t samples,
                              smp_step_result *result)
{
    SMP_TRY(check_call(s, inputs, samples, result));
    smp_step_result done = {.loss_scale = 1.0};
    smp_status status = smp__trace_collect(s); /* the stamps of the last step go */
    if (status == SMP_OK) {
        begin(s, false, samples);
        status = smp__inputs_begin(s, inputs);
    }
    if (status == SMP_OK)
        status = smp__loss_share_begin(s, inputs);
    if (status == SMP_OK)
        status = smp__gather_all(s);
    for (int mb = 0; status == SMP_OK && mb < s->work->microbatches; mb++)
        status = evaluate_microbatch(s, mb);
    s->given->first_microbatch = 0;
    if (status == SMP_OK)
        status = wait_chunk_sends(s, true);
    if (status == SMP_OK)
        status = smp__device_idle(s);
    if (status == SMP_OK)
        smp__step_sums_read(s);
    if (status == SMP_OK)
        status = smp__step_sums_collect(s, &done);
    if (status != SMP_OK)
        return fail_step(s, status);
    smp__place_doing(s->place, smp__between_steps);
    done.predicted_us = 0.0; /* the plan predicts training steps */
    *result = done;
    return SMP_OK;
}

smp_status smp_evaluate(smp *s, const void *const *inputs, smp_step_result *result)
{
    return smp_evaluate_short(s, inputs, s ? smp__job_global_batch(s) : 0, result);
}
