/* A worker for each way, whose tasks are slots in the order in which they were asked for. A slot is
 * asked for once until it was waited for, so as many places as there are slots are never full. */
#include "exec/offload/copy_threads.h"

#include <stdlib.h>

#include "exec/transport/own_core.h"
#include "graph/base/clock.h"

typedef struct copy {
    smp_copy_direction way;
    void *values;
    int64_t at, bytes;
    double begin_s, end_s;
    int64_t number; /* of the way's tasks; -1: never asked for */
} copy;

typedef struct way {
    smp__copy_threads *all;
    smp__worker *worker;
    int *queue; /* [slots] */
    int64_t asked;
} way;

struct smp__copy_threads {
    const smp_offload_area_kind *kind;
    void *context;
    int slots;
    copy *copy; /* [slots] */
    way way[SMP_COPY_DIRECTIONS];
};

static smp_status move_piece(void *of, int64_t number)
{
    const way *w = of;
    const smp__copy_threads *all = w->all;
    copy *c = &all->copy[w->queue[number % all->slots]];
    c->begin_s = smp_clock_s();
    const smp_status status = all->kind->move(all->context, c->way, c->values, c->at, c->bytes);
    c->end_s = smp_clock_s();
    return status;
}

static smp_status start_way(smp__copy_threads *all, way *w)
{
    w->all = all;
    w->queue = calloc((size_t)all->slots, sizeof *w->queue);
    if (!w->queue)
        return smp_fail_memory((size_t)all->slots * sizeof *w->queue);
    return smp_fail_context(smp__worker_start(move_piece, w, &w->worker), "offload");
}

smp_status smp__copy_threads_start(const smp_offload_area_kind *kind, void *context, int slots,
                                   smp__copy_threads **out)
{
    smp__copy_threads *all = calloc(1, sizeof *all);
    if (!all)
        return smp_fail_memory(sizeof *all);
    *all = (smp__copy_threads){.kind = kind, .context = context, .slots = slots > 0 ? slots : 1};
    all->copy = calloc((size_t)all->slots, sizeof *all->copy);
    smp_status status =
        all->copy ? SMP_OK : smp_fail_memory((size_t)all->slots * sizeof *all->copy);
    for (int i = 0; i < all->slots && status == SMP_OK; i++)
        all->copy[i].number = -1;
    for (int i = 0; i < SMP_COPY_DIRECTIONS && status == SMP_OK; i++)
        status = start_way(all, &all->way[i]);
    if (status != SMP_OK) {
        smp__copy_threads_stop(all);
        return status;
    }
    *out = all;
    return SMP_OK;
}

void smp__copy_threads_stop(smp__copy_threads *all)
{
    for (int i = 0; all && i < SMP_COPY_DIRECTIONS; i++) {
        smp__worker_stop(all->way[i].worker);
        free(all->way[i].queue);
    }
    if (all)
        free(all->copy);
    free(all);
}

void smp__copy_threads_leave(smp__copy_threads *all)
{
    for (int i = 0; all && i < SMP_COPY_DIRECTIONS; i++)
        smp__worker_leave(all->way[i].worker);
}

void smp__copy_threads_ask(smp__copy_threads *all, int slot, smp_copy_direction to, void *values,
                           int64_t at, int64_t bytes)
{
    way *w = &all->way[to];
    all->copy[slot] =
        (copy){.way = to, .values = values, .at = at, .bytes = bytes, .number = w->asked};
    w->queue[w->asked % all->slots] = slot;
    smp__worker_ask(w->worker, ++w->asked);
}

smp_status smp__copy_threads_test(smp__copy_threads *all, int slot, bool *done)
{
    const copy *c = &all->copy[slot];
    *done = true;
    return c->number < 0 ? SMP_OK : smp__worker_test(all->way[c->way].worker, c->number, done);
}

void smp__copy_threads_times(const smp__copy_threads *all, int slot, double *begin_s, double *end_s)
{
    *begin_s = all->copy[slot].begin_s;
    *end_s = all->copy[slot].end_s;
}
