/* What a job runs on: device, number format, whether the memory is enough, the transport.
 * Every rank of a job takes the same. */
#include "exec/job/choose_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/job/setup.h"
#include "exec/offload/stash_copies.h"
#include "exec/state/device_wait.h"
#include "exec/state/updates.h"
#include "exec/step/cost_samples.h"
#include "exec/transport/own_core.h"

/* The precision asked for, else the plan's, else fp32; states as the plan says. */
static smp_status find_precision(smp *s)
{
    s->target->precision = s->plan ? s->plan->target.precision : SMP_PRECISION_FP32;
    if (s->plan)
        s->target->bf16_states = s->plan->target.bf16_states;
    else
        SMP_TRY(smp_state_precision_read("state_precision", s->options->planning.state_precision,
                                         &s->target->bf16_states));
    return s->options->runtime.precision
               ? smp_precision_read((smp_where){0}, "precision", s->options->runtime.precision,
                                    &s->target->precision)
               : SMP_OK;
}

static smp_status check_kernels(const smp *s, const smp_device *device)
{
    for (int32_t i = 0; i < s->graph->n_op; i++) {
        const smp_op *op = &s->graph->op[i];
        if (!device->kernels(op->kind, s->target->precision))
            return smp_fail_at(smp_op_where(s->graph, op),
                               "op '%s' (%s): device '%s' has no kernel for it", op->name,
                               op->kind->name, device->name);
    }
    if (s->graph->training && device->updates && !device->updates(s->optimizer))
        return smp_fail(SMP_ERR_INPUT, "optimizer '%s': device '%s' has no kernel for it",
                        s->optimizer->name, device->name);
    return SMP_OK;
}

static smp_status check_present(const smp *s, const smp_device *device)
{
    smp_status status = device->present();
    if (s->comm->world_size == 1)
        return status;
    return smp_fail_context(status, "rank %d", s->comm->world_rank);
}

/* Can this rank run the model on the device? Leaves the graph with that target if so. */
static smp_status try_device(smp *s, const smp_device *device)
{
    smp_target target = {device->backend, s->target->precision, s->target->bf16_states};
    smp_status status = smp_target_check(target);
    if (status != SMP_OK && !s->options->runtime.precision && s->plan)
        return smp_fail_context(status,
                                "the plan is for %s in %s, the job on %s (see --device and "
                                "--precision)",
                                smp_backend_name(s->plan->target.backend),
                                smp_precision_name(s->plan->target.precision), device->name);
    SMP_TRY(status);
    SMP_TRY(check_present(s, device));
    SMP_TRY(smp_graph_set_target(s->graph, target));
    SMP_TRY(smp_graph_check_runnable(s->graph));
    return check_kernels(s, device);
}

static smp_status choose_best(smp *s)
{
    smp_status status = SMP_ERR_FAILED;
    size_t used = 0;
    for (int i = 0; smp_devices()[i]; i++) {
        const smp_device *device = smp_devices()[i];
        status = smp__comm_agree(s->comm, try_device(s, device));
        if (status == SMP_OK) {
            s->device = device;
            return SMP_OK;
        }
        if (s->comm->failed)
            return status;
        if (used < sizeof(s->setup->found->device_note)) {
            int n = snprintf(s->setup->found->device_note + used,
                             sizeof(s->setup->found->device_note) - used, "%s%s: %s",
                             used > 0 ? "; " : "", device->name, smp_last_error());
            used += n > 0 ? (size_t)n : 0;
        }
    }
    return smp_fail(status, "no device can run it: %s", s->setup->found->device_note);
}

smp_status smp__choose_device(smp *s)
{
    const char *name = s->options->runtime.device ? s->options->runtime.device : "cpu";
    SMP_TRY(smp__comm_agree(s->comm, find_precision(s)));
    if (strcmp(name, "auto") == 0) {
        SMP_TRY(choose_best(s));
    } else {
        s->device = smp_device_find(name); /* checked with the options */
        SMP_TRY(smp__comm_agree(s->comm, try_device(s, s->device)));
    }
    s->target->backend = s->device->backend;
    return SMP_OK;
}

smp_status smp__device_open(smp *s)
{
    smp_device_options options = {.precision = s->target->precision,
                                  .node_rank = s->comm->node_rank,
                                  .stamps = smp__device_stamps(s, smp__cost_marks(s)),
                                  .host_copies =
                                      smp__stash_copies_slots(s) + smp__updates_copies_weights(s)};
    smp_status status = smp__device_queue_open(s);
    if (status == SMP_OK)
        status = s->device->open(&options, &s->device_context);
    SMP_TRY(smp__comm_agree(s->comm, status));
    return SMP_OK;
}

/* What libraries take of a GPU when kernels run for the first time, and are loaded. Assumed where
 * no profile has said it. */
static const int64_t LIBRARY_BYTES = (int64_t)512 << 20;

static int64_t libraries(const smp *s)
{
    return s->plan->library_bytes > 0 ? s->plan->library_bytes : LIBRARY_BYTES;
}

int64_t smp__device_needs(const smp *s)
{
    return s->memory->arena_bytes + s->buffers->extra_bytes + libraries(s);
}

typedef struct memory_need {
    char id[64];
    int64_t needed, available;
} memory_need;

static smp_status fail_memory(const smp *s, const memory_need *own, int64_t needed,
                              int64_t available, int sharers)
{
    char total[32], room[32], arena[32], planned[32], extra[32], taken[32], others[96] = "";
    smp_format_bytes(total, sizeof(total), own->needed);
    smp_format_bytes(room, sizeof(room), available);
    smp_format_bytes(arena, sizeof(arena), s->memory->arena_bytes);
    smp_format_bytes(planned, sizeof(planned),
                     s->plan->predicted.peak_bytes[s->comm->pipeline_rank]);
    smp_format_bytes(extra, sizeof(extra), s->buffers->extra_bytes);
    smp_format_bytes(taken, sizeof(taken), libraries(s));
    if (sharers > 1) {
        char all[32];
        smp_format_bytes(all, sizeof(all), needed);
        snprintf(others, sizeof(others), ", and the %d ranks that share it need %s", sharers, all);
    }
    return smp_fail(SMP_ERR_NO_FIT,
                    "rank %d (replica %d, pipeline rank %d) needs %s on %s: %s for its stages (the "
                    "plan says %s), %s for inputs and %s for libraries (%s); %s are free%s: use "
                    "more stages, fewer micro-batches in flight, a smaller micro-batch or "
                    "--recompute",
                    s->comm->world_rank, s->comm->replica, s->comm->pipeline_rank, total,
                    s->device->describe(s->device_context), arena, planned, extra, taken,
                    s->plan->library_bytes > 0 ? "as the plan says" : "assumed", room, others);
}

/* To share a GPU is slow, and rarely meant. */
static smp_status fail_sharing(const smp *s, const memory_need *all)
{
    const int ranks = s->comm->node_size;
    int gpus = 0;
    for (int i = 0, k; i < ranks; i++) {
        for (k = 0; k < i && memcmp(all[k].id, all[i].id, sizeof(all->id)) != 0;)
            k++;
        gpus += k == i;
    }
    return smp_fail(SMP_ERR_INPUT,
                    "rank %d: %d ranks on this host see %d GPU%s: start as many ranks as GPUs, "
                    "show each one of its own (CUDA_VISIBLE_DEVICES), or let them share: "
                    "--share-gpus (runtime.share_gpus)",
                    s->comm->world_rank, ranks, gpus, gpus == 1 ? "" : "s");
}

/* A device that several ranks share must hold the arenas of all. */
static smp_status check_shared(smp *s, const memory_need *own, const memory_need *all)
{
    int64_t needed = 0, available = INT64_MAX;
    int sharers = 0;
    for (int i = 0; i < s->comm->node_size; i++) {
        if (memcmp(all[i].id, own->id, sizeof(own->id)) != 0)
            continue;
        sharers++;
        needed += all[i].needed;
        available = all[i].available < available ? all[i].available : available;
    }
    s->setup->found->free_bytes = available;
    s->setup->found->sharers = sharers;
    if (sharers > 1 && !s->options->runtime.share_gpus)
        return fail_sharing(s, all);
    if (needed <= available)
        return SMP_OK;
    return fail_memory(s, own, needed, available, sharers);
}

smp_status smp__device_check_memory(smp *s)
{
    memory_need own = {{0}, 0, INT64_MAX};
    void *all;
    if (s->device->host_memory)
        return SMP_OK; /* it is found out by touching it */
    SMP_TRY(smp__comm_agree(s->comm, s->device->available(s->device_context, &own.available)));
    s->device->identity(s->device_context, own.id);
    own.needed = smp__device_needs(s);
    SMP_TRY(smp__comm_gather_node(s->comm, &own, (int)sizeof(own), &all));
    smp_status status = smp__comm_agree(s->comm, check_shared(s, &own, all));
    free(all);
    return status;
}

smp_status smp__device_note_libraries(smp *s)
{
    int64_t available = 0;
    if (s->device->host_memory || s->setup->found->sharers > 1)
        return SMP_OK;
    SMP_TRY(s->device->available(s->device_context, &available));
    const int64_t taken =
        s->setup->found->free_bytes - available - s->memory->arena_bytes - s->buffers->extra_bytes;
    s->setup->found->library_bytes = taken > 0 ? taken : 0;
    return SMP_OK;
}

/* NCCL's threads keep to the cores that their rank is bound to: to one, which may count as two, by
 * mpirun -n 2. Who started the rank knows how many there are. */
static smp_status note_binding(smp *s)
{
    enum { FEW = 4 };
    const int own = smp__own_core_count(0), all = smp__own_core_count(getppid());
    int lacking = own < FEW && own < all ? FEW - own : 0;
    SMP_TRY(smp__comm_max(s->comm, &lacking));
    if (lacking > 0)
        snprintf(s->setup->found->transport_note, sizeof(s->setup->found->transport_note),
                 "ranks are bound to few cores (%d), which NCCL's threads share: mpirun --bind-to "
                 "numa, or none",
                 FEW - lacking);
    return SMP_OK;
}

smp_status smp__choose_transport(smp *s, const smp_transport_options *options)
{
    s->endpoint->transport = smp_transport_choose(options, s->setup->found->transport_note,
                                                  sizeof(s->setup->found->transport_note));
    if (s->endpoint->transport)
        return s->endpoint->transport->on_device ? note_binding(s) : SMP_OK;
    if (s->comm->failed)
        return SMP_ERR_PEER;
    return smp_fail(SMP_ERR_FAILED, "no transport serves device '%s': %s", s->device->name,
                    s->setup->found->transport_note);
}
