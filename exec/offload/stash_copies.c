/* Copies of one rank's stashes: exec/offload/stash_copies.h. Which, where to and when stands in the
 * memory plan. Slots: two for each (chunk, micro-batch). */
#include "exec/offload/stash_copies.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "exec/state/device_wait.h"

struct smp__stash_copies {
    smp_offload_area *area;
    int64_t *begun; /* [slots] position of the S or L; -1: never */
};

static int64_t pair_of(const smp *s, int chunk, int microbatch)
{
    return (int64_t)chunk * s->work->microbatches + microbatch;
}

static int slot_of(const smp *s, int chunk, int microbatch, smp_copy_direction way)
{
    return (int)(pair_of(s, chunk, microbatch) * SMP_COPY_DIRECTIONS) + (int)way;
}

static bool is_offloaded(const smp *s, int chunk, int microbatch)
{
    return s->memory->host_at[pair_of(s, chunk, microbatch)] >= 0;
}

int smp__stash_copies_slots(const smp *s)
{
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        for (int mb = 0; mb < s->work->microbatches; mb++)
            if (is_offloaded(s, chunk, mb))
                return (int)pair_of(s, s->work->chunks, 0) * SMP_COPY_DIRECTIONS;
    return 0;
}

static smp_status open(smp *s)
{
    smp__stash_copies *t = s->stash_copies = calloc(1, sizeof *t);
    const smp_offload_area_options options = {.device = s->device,
                                              .device_context = s->device_context,
                                              .bytes = s->memory->host_bytes,
                                              .slots = smp__stash_copies_slots(s),
                                              .folder = s->options->runtime.offload_to};
    if (!t)
        return smp_fail_memory(sizeof *t);
    t->begun = malloc(((size_t)options.slots + 1) * sizeof *t->begun);
    if (!t->begun)
        return smp_fail_memory((size_t)options.slots * sizeof *t->begun);
    for (int i = 0; i < options.slots; i++)
        t->begun[i] = -1;
    SMP_TRY(smp_offload_area_open(&options, &t->area));
    return s->plan->sharding.offload_states ? smp_offload_area_base(t->area, &s->buffers->host_area)
                                            : SMP_OK;
}

smp_status smp__stash_copies_open(smp *s)
{
    if (s->memory->host_bytes == 0)
        return SMP_OK;
    return smp_fail_context(open(s), "rank %d", s->comm->world_rank);
}

void smp__stash_copies_close(smp *s)
{
    if (!s->stash_copies)
        return;
    if (s->comm->failed) {
        smp_offload_area_abandon(s->stash_copies->area);
        return;
    }
    smp_offload_area_close(s->stash_copies->area);
    free(s->stash_copies->begun);
    free(s->stash_copies);
    s->stash_copies = NULL;
}

smp_status smp__stash_copies_begin(smp *s, int chunk, int microbatch, smp_copy_direction way)
{
    const smp_ref block = {
        .space = SMP_SPACE_STASH,
        .index = way == SMP_COPY_TO_HOST ? SMP_BLOCK_AWAY : SMP_BLOCK_BACK,
    };
    const int slot = slot_of(s, chunk, microbatch, way);
    s->stash_copies->begun[slot] = smp__device_position(s);
    return smp_offload_area_begin(s->stash_copies->area, slot, way,
                                  smp__job_address(s, chunk, block, microbatch),
                                  s->memory->host_at[pair_of(s, chunk, microbatch)],
                                  s->work->chunk[chunk].layout->block_bytes[block.index]);
}

typedef struct copy_wait {
    const smp *job;
    int slot;
    smp_action action;
    bool failed; /* the copy, not what else was moved on */
} copy_wait;

static void describe(const void *context, char *buffer, size_t size)
{
    const copy_wait *w = context;
    snprintf(buffer, size, "the stash of micro-batch %d of stage %d on its way %s (%s)",
             (int)w->action.microbatch, w->job->work->stage_of_chunk[w->action.chunk],
             w->action.kind == SMP_ACTION_STORE ? "out" : "back",
             smp_offload_area_name(w->job->stash_copies->area));
}

static smp_status test(void *context, bool *done)
{
    copy_wait *w = context;
    const smp *s = w->job;
    const smp_status joined = smp_offload_area_join(s->stash_copies->area, w->slot, done);
    w->failed = joined != SMP_OK;
    SMP_TRY(joined);
    return *done || !s->endpoint->context ? SMP_OK
                                          : s->endpoint->transport->progress(s->endpoint->context);
}

static smp_status wait_for(smp *s, int chunk, int microbatch, smp_copy_direction way)
{
    const smp_action_kind kind = way == SMP_COPY_TO_HOST ? SMP_ACTION_STORE : SMP_ACTION_LOAD;
    copy_wait w = {s, slot_of(s, chunk, microbatch, way), {kind, microbatch, chunk}, false};
    const smp_status status = smp__comm_wait_until(s->comm, &(smp_wait){0}, test, describe, &w);
    if (status != SMP_OK && status != SMP_ERR_PEER)
        smp__place_action(s->place, &w.action);
    return status;
}

smp_status smp__stash_copies_stored(smp *s, int64_t position)
{
    const smp_memory_rank *memory = s->memory;
    for (int64_t i = memory->stored_begin[position]; i < memory->stored_begin[position + 1]; i++)
        SMP_TRY(
            wait_for(s, memory->stored[i].chunk, memory->stored[i].microbatch, SMP_COPY_TO_HOST));
    return SMP_OK;
}

smp_status smp__stash_copies_loaded(smp *s, int chunk, int microbatch)
{
    return is_offloaded(s, chunk, microbatch) ? wait_for(s, chunk, microbatch, SMP_COPY_TO_DEVICE)
                                              : SMP_OK;
}

smp_status smp__stash_copies_at_once(smp *s, int chunk, int microbatch, smp_copy_direction way)
{
    if (!is_offloaded(s, chunk, microbatch))
        return SMP_OK;
    SMP_TRY(smp__stash_copies_begin(s, chunk, microbatch, way));
    return wait_for(s, chunk, microbatch, way);
}

void smp__stash_copies_note_ends(smp *s)
{
    double *ended_us = smp__record_ended_us(s->record);
    for (int i = 0; s->stash_copies && ended_us && i < smp__stash_copies_slots(s); i++) {
        const int64_t at = s->stash_copies->begun[i];
        double begin_s, end_s;
        if (at >= 0 && smp_offload_area_times(s->stash_copies->area, i, &begin_s, &end_s))
            ended_us[at] = smp__record_us(s->record, end_s);
    }
}

static double ended_us_of(const smp *s, int chunk, int microbatch, smp_copy_direction way)
{
    return smp__record_ended_us(
        s->record)[s->stash_copies->begun[slot_of(s, chunk, microbatch, way)]];
}

double smp__stash_copies_ready_us(const smp *s, int64_t position)
{
    const smp_memory_rank *memory = s->memory;
    const smp_action *a = &s->work->program->action[position];
    double ready_us = 0.0;
    if (!s->stash_copies || !s->record)
        return 0.0;
    for (int64_t i = memory->stored_begin[position]; i < memory->stored_begin[position + 1]; i++)
        ready_us = fmax(ready_us, ended_us_of(s, memory->stored[i].chunk,
                                              memory->stored[i].microbatch, SMP_COPY_TO_HOST));
    if ((a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_I) &&
        is_offloaded(s, a->chunk, a->microbatch))
        ready_us = fmax(ready_us, ended_us_of(s, a->chunk, a->microbatch, SMP_COPY_TO_DEVICE));
    return ready_us;
}
