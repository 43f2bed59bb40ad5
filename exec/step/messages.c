/* Tensors between stages: for every transfer of this rank a channel with a request per
 * micro-batch. Receives are posted and sends completed where the memory plan says. */
#include "exec/step/messages.h"

#include <stdio.h>
#include <stdlib.h>

#include "exec/state/updates.h"
#include "exec/step/cost_samples.h"
#include "exec/step/message_lanes.h"
#include "exec/step/stepping.h"

static bool is_incoming(const smp *s, const smp_transfer *transfer)
{
    return s->work->stage_rank[transfer->to_stage] == s->comm->pipeline_rank;
}

static int32_t border_of(const smp *s, const smp__channel *channel)
{
    const smp_transfer *transfer = &s->work->flow->transfer[channel->transfer];
    const smp_layout *layout = s->work->chunk[channel->chunk].layout;
    if (transfer->kind == SMP_TRANSFER_F && channel->outgoing)
        return smp_layout_border(layout, SMP_BORDER_OUT, transfer->tensor);
    smp_border_kind kind = transfer->kind == SMP_TRANSFER_F ? SMP_BORDER_IN
                           : channel->outgoing              ? SMP_BORDER_GRAD_OUT
                                                            : SMP_BORDER_GRAD_IN;
    return smp_layout_border(layout, kind, channel->transfer);
}

static smp_status open_channel(smp *s, smp__chunk *stage, smp__channel *channel)
{
    const int64_t n = s->work->microbatches;
    const bool arrives = !channel->outgoing && s->record;
    stage->n_channel++; /* what it gets is freed with it */
    channel->request = calloc((size_t)n, sizeof(*channel->request));
    if (arrives)
        channel->arrived_us = calloc((size_t)n, sizeof(*channel->arrived_us));
    if (!channel->request || (arrives && !channel->arrived_us))
        return smp_fail_memory((size_t)n * sizeof(*channel->request));
    channel->border = border_of(s, channel);
    if (channel->border < 0)
        return smp_fail(SMP_ERR_FAILED, "stage %d has no border buffer for transfer %d",
                        stage->stage, channel->transfer);
    return SMP_OK;
}

/* One for each receiver, of what comes in one. */
static smp_status add_channels(smp *s, int32_t index)
{
    const smp_transfer *transfer = &s->work->flow->transfer[index];
    int from = s->work->stage_rank[transfer->from_stage];
    int to = s->work->stage_rank[transfer->to_stage];
    if (from == to)
        return SMP_OK; /* both ends on this rank (or neither): no message */
    bool outgoing = from == s->comm->pipeline_rank;
    int chunk = smp__job_chunk_of_stage(s, outgoing ? transfer->from_stage : transfer->to_stage);
    int first, peer = outgoing ? to : from;
    smp__chunk *stage = &s->work->chunk[chunk];
    if (transfer->bytes > s->endpoint->transport->max_message_bytes)
        return smp_fail(SMP_ERR_FAILED,
                        "tensor '%s' is %lld bytes per micro-batch, the transport "
                        "sends %lld at once: use a smaller micro-batch",
                        s->graph->tensor[transfer->tensor].name, (long long)transfer->bytes,
                        (long long)s->endpoint->transport->max_message_bytes);
    for (int i = 0; i < smp__comm_ends(s->comm, peer, outgoing, &first); i++) {
        smp__channel *channel = &stage->channel[stage->n_channel];
        *channel = (smp__channel){.transfer = index,
                                  .peer = peer,
                                  .lane = smp__lane_of_transfer(s, index, i),
                                  .chunk = chunk,
                                  .outgoing = outgoing};
        SMP_TRY(open_channel(s, stage, channel));
    }
    return SMP_OK;
}

smp_status smp__messages_build(smp *s)
{
    const smp_flow *flow = s->work->flow;
    int64_t tags = (int64_t)flow->n_transfer * s->work->microbatches + s->graph->n_use;
    int64_t max_tag = s->endpoint->transport->max_tag(s->endpoint->context);
    if (tags > max_tag)
        return smp_fail(SMP_ERR_FAILED,
                        "the plan needs %lld message tags, the transport has %lld: use fewer "
                        "micro-batches",
                        (long long)tags, (long long)max_tag);
    for (int chunk = 0; chunk < s->work->chunks; chunk++) {
        int stage = s->work->stage_of_chunk[chunk];
        int32_t n = flow->out_begin[stage + 1] - flow->out_begin[stage] +
                    flow->in_begin[stage + 1] - flow->in_begin[stage];
        const size_t most = (size_t)n * (size_t)s->comm->tensor_most; /* receivers of each */
        s->work->chunk[chunk].channel = calloc(most + 1, sizeof(smp__channel));
        if (!s->work->chunk[chunk].channel)
            return smp_fail_memory((size_t)n * sizeof(smp__channel));
    }
    for (int32_t i = 0; i < flow->n_transfer; i++)
        if (is_incoming(s, &flow->transfer[i]) ||
            s->work->stage_rank[flow->transfer[i].from_stage] == s->comm->pipeline_rank)
            SMP_TRY(add_channels(s, i));
    return SMP_OK;
}

void smp__messages_free(smp *s)
{
    for (int chunk = 0; s->work->chunk && chunk < s->work->chunks; chunk++) {
        for (int i = 0; i < s->work->chunk[chunk].n_channel; i++) {
            free(s->work->chunk[chunk].channel[i].request);
            free(s->work->chunk[chunk].channel[i].arrived_us);
        }
        free(s->work->chunk[chunk].channel);
    }
    free(s->stepping->lanes);
}

/* Of what comes in. */
static smp__channel *find_channel(smp *s, int32_t transfer)
{
    const smp_transfer *t = &s->work->flow->transfer[transfer];
    smp__chunk *chunk = &s->work->chunk[smp__job_chunk_of_stage(s, t->to_stage)];
    for (int i = 0; i < chunk->n_channel; i++)
        if (chunk->channel[i].transfer == transfer)
            return &chunk->channel[i];
    return NULL;
}

/* A step is recorded, an evaluation after it not. */
static bool records(const smp *s, const smp__channel *channel)
{
    return channel->arrived_us && smp__record_is_on(s->record);
}

static void see_arrival(const smp *s, smp__channel *channel, int microbatch)
{
    if (records(s, channel) && channel->arrived_us[microbatch] == 0.0)
        channel->arrived_us[microbatch] = smp__record_us(s->record, smp_clock_s());
}

smp_status smp__messages_look(smp *s)
{
    /* Looking would make the queue of a device wait. */
    if (!smp__record_is_on(s->record) || !s->endpoint->context || !s->device->host_memory)
        return SMP_OK;
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        for (int i = 0; i < s->work->chunk[chunk].n_channel; i++) {
            smp__channel *channel = &s->work->chunk[chunk].channel[i];
            for (int mb = 0; !channel->outgoing && mb < s->work->microbatches; mb++) {
                bool done;
                if (!channel->request[mb].active)
                    continue;
                SMP_TRY(s->endpoint->transport->test(s->endpoint->context, &channel->request[mb],
                                                     &done));
                if (done)
                    see_arrival(s, channel, mb);
            }
        }
    return SMP_OK;
}

static void *channel_data(const smp *s, const smp__channel *channel, int microbatch)
{
    smp_ref ref = {.space = SMP_SPACE_BORDER, .index = channel->border};
    return smp__job_address(s, channel->chunk, ref, microbatch);
}

static int64_t tag_of(const smp *s, const smp__channel *channel, int microbatch)
{
    return (int64_t)channel->transfer * s->work->microbatches + microbatch;
}

smp_status smp__messages_post(smp *s, smp_memory_message message)
{
    smp__channel *channel = find_channel(s, message.transfer);
    if (records(s, channel))
        channel->arrived_us[message.microbatch] = 0.0;
    return s->endpoint->transport->receive(
        s->endpoint->context, channel->lane, tag_of(s, channel, message.microbatch),
        channel_data(s, channel, message.microbatch),
        s->work->flow->transfer[channel->transfer].bytes, &channel->request[message.microbatch]);
}

smp_status smp__messages_send(smp *s, int chunk, int microbatch, smp_transfer_kind kind)
{
    for (int i = 0; i < s->work->chunk[chunk].n_channel; i++) {
        smp__channel *channel = &s->work->chunk[chunk].channel[i];
        const smp_transfer *transfer = &s->work->flow->transfer[channel->transfer];
        if (!channel->outgoing || transfer->kind != kind)
            continue;
        smp__message_sample *sample = smp__cost_message(s, channel->transfer, microbatch);
        if (sample)
            sample->sent_s = smp_clock_s();
        SMP_TRY(s->endpoint->transport->send(
            s->endpoint->context, channel->lane, tag_of(s, channel, microbatch),
            channel_data(s, channel, microbatch), transfer->bytes, &channel->request[microbatch]));
    }
    return SMP_OK;
}

typedef struct message_wait {
    smp *job;
    smp_request *request;
    const smp__channel *channel; /* NULL: of a tied weight */
    int microbatch;
    const smp__tie_message *tie;
} message_wait;

static void describe_message(const void *context, char *buffer, size_t size)
{
    const message_wait *wait = context;
    const smp *s = wait->job;
    if (!wait->channel) {
        snprintf(buffer, size, "pipeline rank %d and the gradient of tied weight '%s'",
                 wait->tie->peer, s->graph->param[s->graph->use[wait->tie->use].param].name);
        return;
    }
    const smp_transfer *transfer = &s->work->flow->transfer[wait->channel->transfer];
    const char *what = transfer->kind == SMP_TRANSFER_F ? "activations" : "gradients";
    if (wait->channel->outgoing)
        snprintf(buffer, size, "pipeline rank %d to take the %s of micro-batch %d from stage %d",
                 wait->channel->peer, what, wait->microbatch, transfer->from_stage);
    else
        snprintf(buffer, size, "the %s of micro-batch %d from stage %d on pipeline rank %d", what,
                 wait->microbatch, transfer->from_stage, wait->channel->peer);
}

static smp_status test_message(void *context, bool *done)
{
    const message_wait *wait = context;
    const smp *s = wait->job;
    SMP_TRY(s->endpoint->transport->test(s->endpoint->context, wait->request, done));
    if (*done)
        return SMP_OK;
    SMP_TRY(smp__updates_look(wait->job));
    return s->endpoint->transport->progress(s->endpoint->context); /* reductions move on */
}

smp_status smp__messages_wait(smp *s, smp__channel *channel, int microbatch)
{
    message_wait wait = {s, &channel->request[microbatch], channel, microbatch, NULL};
    return smp__comm_wait_until(s->comm, &(smp_wait){0}, test_message, describe_message, &wait);
}

smp_status smp__messages_wait_tie(smp *s, smp__tie_message *tie)
{
    message_wait wait = {s, &tie->request, NULL, 0, tie};
    return smp__comm_wait_until(s->comm, &(smp_wait){0}, test_message, describe_message, &wait);
}

smp_status smp__messages_arrive(smp *s, int chunk, int microbatch, smp_transfer_kind kind)
{
    for (int i = 0; i < s->work->chunk[chunk].n_channel; i++) {
        smp__channel *channel = &s->work->chunk[chunk].channel[i];
        if (channel->outgoing || s->work->flow->transfer[channel->transfer].kind != kind)
            continue;
        smp__message_sample *sample = smp__cost_message(s, channel->transfer, microbatch);
        if (sample)
            sample->awaited_s = smp_clock_s();
        SMP_TRY(smp__messages_wait(s, channel, microbatch));
        see_arrival(s, channel, microbatch);
        if (sample)
            sample->arrived_s = smp_clock_s();
    }
    return SMP_OK;
}

smp_status smp__messages_sent(smp *s, smp_memory_message message)
{
    const smp_transfer *t = &s->work->flow->transfer[message.transfer];
    const smp__chunk *chunk = &s->work->chunk[smp__job_chunk_of_stage(s, t->from_stage)];
    for (int i = 0; i < chunk->n_channel; i++)
        if (chunk->channel[i].transfer == message.transfer)
            SMP_TRY(smp__messages_wait(s, &chunk->channel[i], message.microbatch));
    return SMP_OK;
}
