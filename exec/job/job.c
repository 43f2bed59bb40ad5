/* Building a job on one rank: layouts, memory plan, arena, operator state, address tables. */
#include "exec/job/job.h"

#include <stdio.h>
#include <stdlib.h>

#include "exec/job/agree_choices.h"
#include "exec/job/agree_gemms.h"
#include "exec/job/choose_device.h"
#include "exec/job/group_calls.h"
#include "exec/offload/stash_copies.h"
#include "exec/save/checkpoint_save.h"
#include "exec/state/device_wait.h"
#include "exec/state/shards.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "exec/step/captures.h"
#include "exec/step/cost_samples.h"
#include "exec/step/gather.h"
#include "exec/step/joint_sums.h"
#include "exec/inputs/loss_share.h"
#include "exec/step/message_lanes.h"
#include "exec/step/messages.h"
#include "exec/group/op_group.h"
#include "exec/step/reduce.h"
#include "exec/step/step_sums.h"
#include "exec/inputs/step_inputs.h"
#include "exec/step/stepping.h"
#include "exec/step/warm_up.h"

/* Bytes in `extra` before the inputs, which begin at multiples of 256. */
static int64_t loss_gradient_bytes(const smp *s)
{
    return ((int64_t)s->work->microbatches * SMP_LOSS_SLOT_BYTES + 255) / 256 * 256;
}

static float *accumulator(const smp *s, int32_t use)
{
    for (int32_t i = 0; i < s->memory->n_use; i++)
        if (s->memory->use[i].use == use)
            return (float *)(s->buffers->arena + smp_memory_use_at(s->memory, &s->memory->use[i]));
    return NULL;
}

/* Addresses of an op's weights and of its accumulators. */
static smp_status find_weights(smp *s, smp__call *call)
{
    const smp_op *op = call->op;
    call->param = calloc((size_t)op->n_param + 1, sizeof(*call->param));
    call->dparam = calloc((size_t)op->n_param + 1, sizeof(*call->dparam));
    if (smp_precision_is_half(s->target->precision))
        call->param16 = calloc((size_t)op->n_param + 1, sizeof(*call->param16));
    if (!call->param || !call->dparam ||
        (smp_precision_is_half(s->target->precision) && !call->param16))
        return smp_fail_memory((size_t)op->n_param * sizeof(*call->param));
    for (int32_t k = 0; k < op->n_param; k++) {
        int32_t index = smp__job_find_param(s, op->param[k]);
        if (index < 0)
            return smp_fail(SMP_ERR_FAILED, "op '%s': weight %d has no place on this rank",
                            op->name, k);
        const smp_memory_param *param = &s->memory->param[index];
        const smp_memory_region *region = &s->memory->region[param->region];
        if (!s->memory->part_weight && !region->in_host)
            call->param[k] = smp__weight_at(s, index, 0);
        if (call->param16 && region->weight16 >= 0)
            call->param16[k] = s->buffers->arena + region->weight16 + 2 * param->at;
        if (s->graph->training)
            call->dparam[k] = accumulator(s, op->use[k]);
    }
    return SMP_OK;
}

static smp_status prepare_call(smp *s, const smp_layout_call *layout, smp__call *call)
{
    const smp_op *op = &s->graph->op[layout->op];
    call->layout = layout;
    call->op = op;
    call->kernels = s->device->kernels(op->kind, s->target->precision);
    call->pair = layout->pair && call->kernels->forward_fused;
    call->input_pair = layout->input_pair && call->kernels->backward_input_fused;
    SMP_TRY(find_weights(s, call));
    if (!call->kernels->prepare)
        return SMP_OK;
    return call->kernels->prepare(s->graph, op, s->work->batch,
                                  s->device->kernel_context(s->device_context), &call->state);
}

static smp_status plan_memory(smp *s)
{
    smp__work *work = s->work;
    int rank = s->comm->pipeline_rank;
    smp_layout **layout = calloc((size_t)work->chunks, sizeof(*layout));
    work->chunk = calloc((size_t)work->chunks, sizeof(*work->chunk));
    work->stage_of_chunk = calloc((size_t)work->chunks, sizeof(*work->stage_of_chunk));
    if (!layout || !work->chunk || !work->stage_of_chunk) {
        free(layout);
        return smp_fail_memory((size_t)work->chunks * sizeof(*work->chunk));
    }
    smp_status status = smp_memory_plan_rank(s->plan, s->graph, work->flow, rank,
                                             smp__job_states(s), layout, &s->memory);
    for (int chunk = 0; chunk < work->chunks; chunk++) {
        work->chunk[chunk].layout = layout[chunk];
        work->chunk[chunk].stage = smp_plan_stage_of(s->plan, rank, chunk);
        work->stage_of_chunk[chunk] = work->chunk[chunk].stage;
    }
    free(layout);
    return status;
}

static smp_status build_calls(smp *s)
{
    for (int chunk = 0; chunk < s->work->chunks; chunk++) {
        smp__chunk *c = &s->work->chunk[chunk];
        c->call = calloc((size_t)c->layout->n_call + 1, sizeof(*c->call));
        if (!c->call)
            return smp_fail_memory((size_t)c->layout->n_call * sizeof(*c->call));
        for (int32_t i = 0; i < c->layout->n_call; i++) {
            SMP_TRY(prepare_call(s, &c->layout->call[i], &c->call[i]));
            SMP_TRY(smp__comm_answer(s->comm));
        }
    }
    return SMP_OK;
}

static smp_status build_host_buffers(smp *s)
{
    SMP_TRY(smp__step_sums_open(s));
    return s->options->runtime.record_trace ? smp__record_open(s->work->program->n, &s->record)
                                            : SMP_OK;
}

/* What is on the device besides the arena, and the host memory that it copies from and to. */
static smp_status build_device_buffers(smp *s)
{
    const int64_t loss = SMP_LOSS_SLOT_BYTES * (int64_t)s->work->microbatches;
    const int64_t piece = s->device->host_memory ? 0 : SMP__PIECE_BYTES;
    SMP_TRY(s->device->reserve(s->device_context, s->buffers->extra_bytes, &s->buffers->extra));
    const int64_t inputs = smp__inputs_host_bytes(s), weights = smp__weights_host_bytes(s);
    SMP_TRY(s->device->reserve_host(s->device_context, 2 * loss + weights + piece + inputs,
                                    &s->buffers->host));
    s->buffers->loss = s->buffers->host;
    s->buffers->share = s->buffers->host + loss;
    s->buffers->piece = piece > 0 ? s->buffers->host + 2 * loss + weights : NULL;
    smp__inputs_place(s, s->buffers->extra + loss_gradient_bytes(s),
                      s->buffers->host + 2 * loss + weights + piece);
    s->buffers->loss_gradient = s->buffers->extra;
    return smp__weights_place(s, s->buffers->host + 2 * loss);
}

/* Everything that is known before memory is taken. */
static smp_status build_plan(smp *s)
{
    smp__work *work = s->work;
    work->chunks = s->plan->chunks;
    work->microbatches = s->plan->microbatches;
    work->batch = s->plan->microbatch_size;
    smp__job_number(s);
    s->given->samples = smp__job_global_batch(s);
    work->program = &s->plan->program[s->comm->pipeline_rank];
    work->stage_rank = calloc((size_t)s->plan->n_stage, sizeof(*work->stage_rank));
    if (!work->stage_rank)
        return smp_fail_memory((size_t)s->plan->n_stage * sizeof(*work->stage_rank));
    for (int stage = 0; stage < s->plan->n_stage; stage++)
        work->stage_rank[stage] = s->plan->stage[stage].rank;
    SMP_TRY(smp__weights_open(s));
    SMP_TRY(smp_plan_bind(s->plan, s->graph, &work->stage_of_op));
    SMP_TRY(
        smp_flow_build(s->graph, work->stage_of_op, s->plan->n_stage, work->batch, &work->flow));
    SMP_TRY(plan_memory(s));
    SMP_TRY(smp__pieces_build(s));
    SMP_TRY(smp__inputs_build(s));
    SMP_TRY(smp__loss_share_build(s));
    SMP_TRY(smp__cost_samples_build(s));
    SMP_TRY(smp__group_calls_build(s));
    s->buffers->extra_bytes = loss_gradient_bytes(s) + smp__inputs_bytes(s);
    return build_host_buffers(s);
}

static smp_status move_messages_on(void *context)
{
    const smp *s = context;
    return s->endpoint->transport->progress(s->endpoint->context);
}

/* Calls bring tensors of the whole graph, what operators say that they exchange, and weights in
 * pieces. 0: no operator is computed by several devices. */
static int64_t group_floats(const smp *s)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    int64_t most = 1;
    if (s->comm->tensor_size == 1)
        return 0;
    for (int32_t t = 0; t < whole->n_tensor; t++)
        if (whole->tensor[t].elements * s->work->batch > most)
            most = whole->tensor[t].elements * s->work->batch;
    for (int32_t o = 0; o < s->graph->n_op; o++) {
        smp_op_work work;
        smp_op_work_get(s->graph, &s->graph->op[o], s->work->batch, &work);
        const int64_t forward = work.forward_exchange.bytes;
        const int64_t backward = work.backward_input_exchange.bytes;
        const int64_t each = (forward > backward ? forward : backward) / (int64_t)sizeof(float);
        if (each * s->comm->tensor_size > most)
            most = each * s->comm->tensor_size;
    }
    return most;
}

static smp_status build_group(smp *s)
{
    const int64_t most = group_floats(s);
    if (most == 0)
        return SMP_OK;
    s->stepping->tensor_group = calloc(1, sizeof(*s->stepping->tensor_group));
    if (!s->stepping->tensor_group)
        return smp_fail_memory(sizeof(*s->stepping->tensor_group));
    if (s->endpoint->transport->group) {
        s->stepping->tensor_group->group = *s->endpoint->transport->group(s->endpoint->context);
        s->stepping->tensor_group->most = most;
        return SMP_OK;
    }
    SMP_TRY(smp__op_group_open(s->stepping->tensor_group, s->comm, s->comm->tensor, most,
                               move_messages_on, s));
    s->stepping->tensor_group->timed = s->options->runtime.record_trace;
    return s->device->host_memory
               ? SMP_OK
               : smp__op_group_stage(s->stepping->tensor_group, s->device, s->device_context);
}

static smp_status note_wait(void *of, bool over)
{
    smp *s = of;
    return s->given->training ? smp__stamp_wait(s, over) : SMP_OK; /* evaluations time nothing */
}

static smp_status build_tensor_group(smp *s)
{
    SMP_TRY(build_group(s));
    smp__op_group *group = s->stepping->tensor_group;
    if (group && !s->device->host_memory)
        smp__group_time(&group->group, note_wait, s, &group->timed_group);
    return SMP_OK;
}

static smp_status build_memory(smp *s)
{
    SMP_TRY(s->device->reserve(s->device_context, s->memory->arena_bytes, &s->buffers->arena));
    SMP_TRY(build_device_buffers(s));
    SMP_TRY(smp__stash_copies_open(s));
    SMP_TRY(build_tensor_group(s));
    SMP_TRY(build_calls(s));
    SMP_TRY(smp__updates_open(s, smp__stash_copies_slots(s)));
    SMP_TRY(smp__messages_build(s));
    SMP_TRY(smp__reduce_build(s));
    SMP_TRY(smp__gather_build(s));
    return smp__joint_build(s);
}

/* Others may wait for this rank in the norms of an optimizer: devices of its group, ranks of its
 * shard group. Who fails tells them at once, and all give up what the device waits for. */
static smp_status run_kernels(smp *s)
{
    smp_status status =
        smp_fail_context(smp__warm_up(s), "rank %d, %s, first run of the kernels",
                         s->comm->world_rank, s->device->describe(s->device_context));
    if (status != SMP_OK && (s->stepping->tensor_group || s->comm->shard_size > 1))
        smp__comm_notify(s->comm, status);
    if (!s->comm->failed)
        status = smp__comm_agree(s->comm, status);
    if (s->comm->failed && s->endpoint->transport->abort)
        s->endpoint->transport->abort(s->endpoint->context);
    return status;
}

/* In flight at once: R, A and G of every chunk, an item for each of its regions, and those that
 * several chunks have in common. */
static int most_sums(const smp *s)
{
    const int common = s->memory->n_region - s->memory->chunk_region[s->work->chunks];
    return 3 * (s->memory->n_region + s->work->chunks * (common + 1)) + 2 * s->memory->n_use;
}

/* Before the arena, since it takes memory of the device too: what is free afterwards is free. */
static smp_status open_transport(smp *s)
{
    smp_transport_options options = {.comm = s->comm,
                                     .device = s->device,
                                     .device_context = s->device_context,
                                     .reductions = most_sums(s),
                                     .group_floats = group_floats(s),
                                     .later_bytes = smp__device_needs(s)};
    smp_status status = smp__reduce_open(s, options.terms);
    if (status == SMP_OK)
        status = smp__messages_lanes(s, &options);
    SMP_TRY(smp__comm_agree(s->comm, status));
    SMP_TRY(smp__choose_transport(s, &options));
    return smp__comm_agree(s->comm, s->endpoint->transport->open(&options, &s->endpoint->context));
}

smp_status smp__job_build(smp *s)
{
    SMP_TRY(smp__comm_agree(s->comm, build_plan(s)));
    SMP_TRY(smp__device_open(s));
    SMP_TRY(open_transport(s));
    SMP_TRY(smp__device_check_memory(s));
    SMP_TRY(smp__gemms_ask(s));
    SMP_TRY(smp__comm_agree(s->comm, build_memory(s)));
    SMP_TRY(smp__agree_kernels(s, run_kernels));
    SMP_TRY(smp__captures_make(s));
    SMP_TRY(smp__comm_agree(s->comm, smp__device_note_libraries(s)));
    return smp__comm_agree(s->comm, smp__weights_init(s));
}

static void free_chunk(smp__chunk *chunk)
{
    for (int32_t i = 0; chunk->call && i < chunk->layout->n_call; i++) {
        smp__call *call = &chunk->call[i];
        if (call->state && call->kernels->release)
            call->kernels->release(call->state);
        free(call->param);
        free(call->param16);
        free(call->dparam);
    }
    free(chunk->call);
    smp_layout_destroy(chunk->layout);
}

static void free_device(smp *s)
{
    if (!s->device_context)
        return;
    if (s->buffers->arena)
        s->device->release(s->device_context, s->buffers->arena, s->memory->arena_bytes);
    if (s->buffers->extra)
        s->device->release(s->device_context, s->buffers->extra, s->buffers->extra_bytes);
    if (s->buffers->host)
        s->device->release_host(s->device_context, s->buffers->host);
    s->device->close(s->device_context);
}

/* What is still under way. Its failure is nobody's concern any more: what failed before stays the
 * last error. */
static void wait_for_work(smp *s)
{
    char before[1024];
    snprintf(before, sizeof(before), "%s", smp_last_error());
    bool failed = smp__save_close(s) != SMP_OK;
    if (s->device_context && !s->broken && !s->comm->failed)
        failed = smp__updates_finish(s) != SMP_OK || smp__device_idle(s) != SMP_OK || failed;
    if (failed)
        smp_fail(SMP_ERR_FAILED, "%s", before);
}

void smp__job_free(smp *s)
{
    wait_for_work(s);
    smp__updates_close(s);
    smp__stash_copies_close(s);
    if (s->comm->failed)
        return; /* messages in flight may still read and write these buffers */
    smp__captures_free(s);
    smp__reduce_free(s);
    smp__joint_free(s);
    if (s->stepping->tensor_group)
        smp__op_group_close(s->stepping->tensor_group);
    free(s->stepping->tensor_group);
    smp__messages_free(s);
    if (s->endpoint->context)
        s->endpoint->transport->close(s->endpoint->context);
    for (int chunk = 0; s->work->chunk && chunk < s->work->chunks; chunk++)
        free_chunk(&s->work->chunk[chunk]);
    free_device(s);
    smp_memory_destroy(s->memory);
    smp_flow_destroy(s->work->flow);
    smp_plan_destroy(s->plan);
    smp_graph_destroy(s->graph);
    free(s->work->chunk);
    free(s->work->stage_of_chunk);
    free(s->work->stage_rank);
    free(s->work->stage_of_op);
    free(s->given->input);
    smp__weights_close(s);
    free(s->given->rows);
    smp__step_sums_close(s);
    smp__record_close(s->record);
    smp__device_queue_close(s);
    smp__cost_samples_free(s);
    smp__group_calls_free(s);
}
