/* Lists of sums; see the header. */
#include "exec/step/sum_list.h"

#include <stdio.h>
#include <stdlib.h>

#include "exec/state/device_wait.h"
#include "exec/step/stepping.h"
#include "exec/transport/comm.h"
#include "exec/step/reduce_state.h"

static int members_of(const smp *s, smp_reach reach)
{
    return reach == SMP_REACH_ALL     ? s->comm->ddp_size
           : reach == SMP_REACH_GROUP ? s->comm->shard_size
                                      : s->comm->ddp_size / s->comm->shard_size;
}

smp_status smp__sum_list_add(const smp *s, smp__sum_list *list, const smp_sum *sum, int64_t offset,
                             int32_t region, int64_t elements)
{
    smp__sum_item *grown = realloc(list->item, ((size_t)list->n + 1) * sizeof *grown);
    if (!grown)
        return smp_fail_memory(((size_t)list->n + 1) * sizeof *grown);
    list->item = grown;
    smp__sum_item *item = &list->item[list->n++];
    *item = (smp__sum_item){.sum = *sum, .offset = offset, .region = region};
    if (sum->cut)
        return SMP_OK;
    const int members = members_of(s, sum->reach);
    item->cut = calloc((size_t)members + 1, sizeof *item->cut);
    if (!item->cut)
        return smp_fail_memory((size_t)members * sizeof *item->cut);
    for (int i = 0; i <= members; i++)
        item->cut[i] = elements / members * i + elements % members * i / members;
    item->sum.cut = item->cut;
    return SMP_OK;
}

void smp__sum_lists_free(smp__sum_list *list, int n)
{
    for (int i = 0; list && i < n; i++) {
        for (int k = 0; k < list[i].n; k++)
            free(list[i].item[k].cut);
        free(list[i].item);
    }
    free(list);
}

smp_status smp__sum_list_start(smp *s, smp__sum_list *list, int64_t base, int end)
{
    while (list->started < end) {
        smp__sum_item *item = &list->item[list->started++];
        item->sum.data = (float *)(s->buffers->arena + base) + item->offset;
        SMP_TRY(s->endpoint->transport->reduce(s->endpoint->context, &item->sum, &item->reduction));
    }
    return SMP_OK;
}

typedef struct reduction_wait {
    const smp *job;
    smp_reduction **reduction;
    const char *what;
} reduction_wait;

static void describe_reduction(const void *context, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s", ((const reduction_wait *)context)->what);
}

static smp_status test_reduction(void *context, bool *done)
{
    const reduction_wait *wait = context;
    const smp *s = wait->job;
    return s->endpoint->transport->reduce_test(s->endpoint->context, wait->reduction, done);
}

/* A step is recorded, an evaluation after it not. */
static void note_end(const smp *s, smp__sum_list *list)
{
    for (int i = 0; i < list->n; i++)
        if (!list->ended_us || i >= list->started || list->item[i].reduction)
            return;
    if (list->ended_us && smp__record_is_on(s->record))
        *list->ended_us = smp__record_us(s->record, smp_clock_s());
    list->ended_us = NULL;
}

void smp__sum_list_record(smp *s, smp__sum_list *list)
{
    if (!smp__record_is_on(s->record) || s->endpoint->transport->on_device)
        return;
    list->ended_us = &smp__record_ended_us(s->record)[smp__device_position(s)];
    note_end(s, list);
}

static smp_status look_at_sums(smp *s, smp__sum_list *list)
{
    for (int i = 0; i < list->n && list->ended_us; i++) {
        bool done;
        if (list->item[i].reduction)
            SMP_TRY(s->endpoint->transport->reduce_test(s->endpoint->context,
                                                        &list->item[i].reduction, &done));
    }
    note_end(s, list);
    return SMP_OK;
}

smp_status smp__sum_lists_look(smp *s)
{
    if (!smp__record_is_on(s->record) || !s->device->host_memory || s->comm->ddp_size == 1)
        return SMP_OK;
    for (int chunk = 0; chunk < s->work->chunks; chunk++) {
        SMP_TRY(look_at_sums(s, &s->stepping->reducer->gather[chunk]));
        SMP_TRY(look_at_sums(s, &s->stepping->reducer->scatter[chunk]));
        SMP_TRY(look_at_sums(s, &s->stepping->reducer->across[chunk]));
    }
    return SMP_OK;
}

smp_status smp__sum_list_wait(smp *s, smp__sum_list *list, const char *what)
{
    for (int i = 0; i < list->n; i++) {
        reduction_wait wait = {s, &list->item[i].reduction, what};
        if (list->item[i].reduction)
            SMP_TRY(smp__comm_wait_until(s->comm, &(smp_wait){0}, test_reduction,
                                         describe_reduction, &wait));
    }
    note_end(s, list);
    list->started = 0;
    return SMP_OK;
}
