/* Reduction of weight gradients.
 *
 * Every use of a weight has its own accumulator. In it a block of micro-batches is folded; then it
 * is added to the sums of earlier blocks, in the tree of schedule/plan/gradient_blocks.h, which
 * goes on over the replicas: the accumulators of a chunk are reduced in one piece as soon as its
 * last backward is done. After that a weight with several uses gets their sum in op order, a fixed
 * left fold, wherever the uses lie: ranks that share a tied weight exchange their accumulators and
 * each computes the same sum. */
#include "exec/step/reduce.h"

#include <stdio.h>
#include <stdlib.h>

#include "exec/step/message_lanes.h"
#include "exec/step/messages.h"
#include "schedule/memory/bytes.h"

static float *at(const smp *s, int64_t offset)
{
    return (float *)(s->arena + offset);
}

/* Is `rank` the pipeline rank of a stage that uses the weight? */
static bool rank_holds(const smp *s, int32_t param, int rank)
{
    const smp_param *p = &s->graph->param[param];
    for (int32_t use = p->use_begin; use < p->use_end; use++)
        if (s->stage_rank[s->stage_of_op[s->graph->use[use].op]] == rank)
            return true;
    return false;
}

/* One outgoing message per local use and other holder, one incoming per remote use. With `list`
 * NULL only counts. */
static int tie_messages(smp *s, smp__tie_message *list)
{
    int n = 0;
    for (int32_t i = 0; i < s->memory->n_use; i++) {
        const smp_memory_use *use = &s->memory->use[i];
        int32_t param = s->memory->param[use->param].param;
        int owner = s->stage_rank[use->stage];
        for (int peer = 0; peer < s->comm.pipeline_size; peer++) {
            bool incoming = !use->local && peer == owner;
            bool outgoing =
                use->local && peer != s->comm.pipeline_rank && rank_holds(s, param, peer);
            if (!incoming && !outgoing)
                continue;
            if (list)
                list[n] = (smp__tie_message){
                    .use = use->use,
                    .peer = peer,
                    .chunk = use->local ? smp__job_chunk_of_stage(s, use->stage) : -1,
                    .offset = use->offset};
            n++;
        }
    }
    return n;
}

static int64_t use_bytes(const smp *s, int32_t use)
{
    return s->graph->param[s->graph->use[use].param].elements * (int64_t)sizeof(float);
}

smp_status smp__reduce_ties(smp *s)
{
    smp__reducer *r = &s->reducer;
    if (!s->graph->training)
        return SMP_OK;
    r->n_tie = tie_messages(s, NULL);
    r->tie = calloc((size_t)r->n_tie + 1, sizeof(*r->tie));
    if (!r->tie)
        return smp_fail_memory((size_t)r->n_tie * sizeof(*r->tie));
    tie_messages(s, r->tie);
    return SMP_OK;
}

smp_status smp__reduce_build(smp *s)
{
    smp__reducer *r = &s->reducer;
    r->bucket = calloc((size_t)s->chunks, sizeof(smp_reduction *));
    if (!r->bucket)
        return smp_fail_memory((size_t)s->chunks * sizeof(smp_reduction *));
    if (!s->graph->training)
        return SMP_OK;
    for (int i = 0; i < r->n_tie; i++) {
        smp__tie_message *tie = &r->tie[i];
        const smp_use *use = &s->graph->use[tie->use];
        tie->lane = smp__lane_of_tie(s, s->stage_of_op[use->op],
                                     tie->chunk < 0 ? s->comm.pipeline_rank : tie->peer);
        if (use_bytes(s, tie->use) > s->transport->max_message_bytes)
            return smp_fail(SMP_ERR_FAILED,
                            "tied weight '%s' is too long for one message: keep its "
                            "ops in one stage (group)",
                            s->graph->param[use->param].name);
    }
    return SMP_OK;
}

void smp__reduce_free(smp *s)
{
    free(s->reducer.bucket);
    free(s->reducer.tie);
}

static int64_t tie_tag(const smp *s, int32_t use)
{
    return (int64_t)s->flow->n_transfer * s->microbatches + use;
}

static smp_status post_ties(smp *s)
{
    for (int i = 0; i < s->reducer.n_tie; i++) {
        smp__tie_message *tie = &s->reducer.tie[i];
        if (tie->chunk < 0)
            SMP_TRY(s->transport->receive(s->transport_context, tie->lane, tie_tag(s, tie->use),
                                          at(s, tie->offset), use_bytes(s, tie->use),
                                          &tie->request));
    }
    return SMP_OK;
}

smp_status smp__reduce_begin_step(smp *s)
{
    return s->transport->on_device ? SMP_OK : post_ties(s);
}

/* grad = sum of the accumulators of all uses, in op order. */
static smp_status sum_uses(smp *s, int32_t index)
{
    const smp_memory_param *param = &s->memory->param[index];
    const smp_param *p = &s->graph->param[param->param];
    if (p->use_end - p->use_begin == 1)
        return SMP_OK; /* the accumulator is the gradient */
    bool first = true;
    for (int32_t i = 0; i < s->memory->n_use; i++) { /* rising use: op order */
        const smp_memory_use *use = &s->memory->use[i];
        if (use->param != index)
            continue;
        if (first)
            SMP_TRY(s->device->copy(s->device_context, at(s, param->grad), at(s, use->offset),
                                    p->elements * (int64_t)sizeof(float)));
        else
            SMP_TRY(s->device->add(s->device_context, SMP_F32, at(s, param->grad),
                                   at(s, use->offset), p->elements));
        first = false;
    }
    return SMP_OK;
}

/* The block of micro-batch `microbatch` is complete: a binary counter. Level k holds the sum of 2^k
 * blocks or nothing, and a carry is an addition. After the last block all that is left is added. */
smp_status smp__reduce_block(smp *s, int chunk, int microbatch)
{
    const smp_memory_bucket *bucket = &s->memory->bucket[chunk];
    const int blocks = s->plan->gradient_blocks / s->comm.ddp_size, size = s->microbatches / blocks;
    const int done = (microbatch + 1) / size;
    const int64_t bytes = bucket->elements * (int64_t)sizeof(float);
    if (blocks == 1 || (microbatch + 1) % size != 0 || bucket->elements == 0)
        return SMP_OK;
    int level = 0;
    for (int before = done - 1; before > 0 && (done == blocks || before % 2 == 1);
         before /= 2, level++)
        if (before % 2 == 1)
            SMP_TRY(s->device->add(s->device_context, SMP_F32, at(s, bucket->offset),
                                   at(s, bucket->level + level * bytes), bucket->elements));
    if (done == blocks)
        return SMP_OK;
    SMP_TRY(s->device->copy(s->device_context, at(s, bucket->level + level * bytes),
                            at(s, bucket->offset), bytes));
    return s->device->zero(s->device_context, at(s, bucket->offset), bytes);
}

/* The chunk's accumulators are final: to the other holders of tied weights. */
static smp_status send_ties(smp *s, int chunk)
{
    for (int i = 0; i < s->reducer.n_tie; i++) {
        smp__tie_message *tie = &s->reducer.tie[i];
        if (tie->chunk == chunk)
            SMP_TRY(s->transport->send(s->transport_context, tie->lane, tie_tag(s, tie->use),
                                       at(s, tie->offset), use_bytes(s, tie->use), &tie->request));
    }
    return SMP_OK;
}

smp_status smp__reduce_start(smp *s, int chunk)
{
    const smp_memory_bucket *bucket = &s->memory->bucket[chunk];
    if (s->comm.ddp_size == 1)
        return send_ties(s, chunk);
    if (bucket->elements == 0)
        return SMP_OK;
    return s->transport->reduce(s->transport_context, at(s, bucket->offset), bucket->elements,
                                &s->reducer.bucket[chunk]);
}

typedef struct reduction_wait {
    const smp *job;
    smp_reduction **reduction;
} reduction_wait;

static void describe_reduction(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "the gradients of the other replicas");
}

static smp_status test_reduction(void *context, bool *done)
{
    const reduction_wait *wait = context;
    const smp *s = wait->job;
    return s->transport->reduce_test(s->transport_context, wait->reduction, done);
}

static smp_status wait_reduction(smp *s, smp_reduction **reduction)
{
    reduction_wait wait = {s, reduction};
    if (!*reduction)
        return SMP_OK;
    return smp__comm_wait_until(&s->comm, &(smp_wait){0}, test_reduction, describe_reduction,
                                &wait);
}

smp_status smp__reduce_finish(smp *s)
{
    for (int chunk = 0; chunk < s->chunks && s->comm.ddp_size > 1; chunk++) {
        SMP_TRY(wait_reduction(s, &s->reducer.bucket[chunk]));
        SMP_TRY(send_ties(s, chunk));
    }
    if (s->transport->on_device) /* a receive posted earlier would busy the device all step */
        SMP_TRY(post_ties(s));
    for (int i = 0; i < s->reducer.n_tie; i++)
        SMP_TRY(smp__messages_wait_tie(s, &s->reducer.tie[i]));
    for (int32_t i = 0; i < s->memory->n_param; i++)
        SMP_TRY(sum_uses(s, i));
    return SMP_OK;
}
