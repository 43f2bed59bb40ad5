/* Worker threads; see the header. Each has a queue of slots that is as long as there are slots, so
 * it never fills: a slot is in it once. A copy is handed over by the queue's lock and handed back
 * by its `done`. */
#include "exec/offload/far_threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "exec/transport/own_core.h"
#include "graph/base/clock.h"

typedef struct copy {
    smp_far_way way;
    void *values;
    int64_t at, bytes;
    double begin_s, end_s;
    smp_status status;
    atomic_bool done; /* the fields above are the asking thread's again */
} copy;

typedef struct worker {
    smp__far_threads *all;
    smp_far_way way;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t asked;
    int *queue; /* [slots] */
    int first, n;
    bool ends;
    char message[768]; /* of the first copy that failed; read once that is done */
} worker;

struct smp__far_threads {
    const smp_far_kind *kind;
    void *context;
    int slots;
    copy *copy; /* [slots] */
    worker worker[SMP_FAR_WAYS];
};

/* The next slot, -1: the thread is to end. */
static int next_slot(worker *w)
{
    int slot = -1;
    pthread_mutex_lock(&w->lock);
    while (w->n == 0 && !w->ends)
        pthread_cond_wait(&w->asked, &w->lock);
    if (!w->ends) {
        slot = w->queue[w->first];
        w->first = (w->first + 1) % w->all->slots;
        w->n--;
    }
    pthread_mutex_unlock(&w->lock);
    return slot;
}

static void *work(void *of)
{
    worker *w = of;
    const smp__far_threads *all = w->all;
    for (int slot; (slot = next_slot(w)) >= 0;) {
        copy *c = &all->copy[slot];
        c->begin_s = smp_clock_s();
        c->status = all->kind->move(all->context, c->way, c->values, c->at, c->bytes);
        c->end_s = smp_clock_s();
        if (c->status != SMP_OK && !w->message[0])
            snprintf(w->message, sizeof w->message, "%s", smp_last_error());
        atomic_store_explicit(&c->done, true, memory_order_release);
    }
    return NULL;
}

static smp_status start_worker(smp__far_threads *all, smp_far_way way)
{
    worker *w = &all->worker[way];
    w->all = all;
    w->way = way;
    w->queue = calloc((size_t)all->slots, sizeof *w->queue);
    if (!w->queue)
        return smp_fail_memory((size_t)all->slots * sizeof *w->queue);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->asked, NULL);
    w->running = smp__own_core_start(&w->thread, work, w);
    if (w->running)
        return SMP_OK;
    pthread_cond_destroy(&w->asked);
    pthread_mutex_destroy(&w->lock);
    return smp_fail(SMP_ERR_FAILED, "offload: no thread can be started for its copies");
}

smp_status smp__far_threads_start(const smp_far_kind *kind, void *context, int slots,
                                  smp__far_threads **out)
{
    smp__far_threads *all = calloc(1, sizeof *all);
    if (!all)
        return smp_fail_memory(sizeof *all);
    *all = (smp__far_threads){.kind = kind, .context = context, .slots = slots > 0 ? slots : 1};
    all->copy = calloc((size_t)all->slots, sizeof *all->copy);
    smp_status status =
        all->copy ? SMP_OK : smp_fail_memory((size_t)all->slots * sizeof *all->copy);
    for (int way = 0; way < SMP_FAR_WAYS && status == SMP_OK; way++)
        status = start_worker(all, (smp_far_way)way);
    for (int i = 0; i < all->slots && status == SMP_OK; i++)
        atomic_init(&all->copy[i].done, true);
    if (status != SMP_OK) {
        smp__far_threads_stop(all);
        return status;
    }
    *out = all;
    return SMP_OK;
}

static void tell_end(worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->asked);
    pthread_mutex_unlock(&w->lock);
}

void smp__far_threads_stop(smp__far_threads *all)
{
    for (int way = 0; all && way < SMP_FAR_WAYS; way++) {
        worker *w = &all->worker[way];
        if (w->running) {
            tell_end(w);
            pthread_join(w->thread, NULL);
            pthread_cond_destroy(&w->asked);
            pthread_mutex_destroy(&w->lock);
        }
        free(w->queue);
    }
    if (all)
        free(all->copy);
    free(all);
}

void smp__far_threads_leave(smp__far_threads *all)
{
    for (int way = 0; all && way < SMP_FAR_WAYS; way++) {
        tell_end(&all->worker[way]);
        pthread_detach(all->worker[way].thread);
    }
}

void smp__far_threads_ask(smp__far_threads *all, int slot, smp_far_way way, void *values,
                          int64_t at, int64_t bytes)
{
    worker *w = &all->worker[way];
    copy *c = &all->copy[slot];
    c->way = way;
    c->values = values;
    c->at = at;
    c->bytes = bytes;
    atomic_store_explicit(&c->done, false, memory_order_relaxed);
    pthread_mutex_lock(&w->lock);
    w->queue[(w->first + w->n++) % all->slots] = slot;
    pthread_cond_signal(&w->asked);
    pthread_mutex_unlock(&w->lock);
}

smp_status smp__far_threads_test(smp__far_threads *all, int slot, bool *done)
{
    const copy *c = &all->copy[slot];
    *done = atomic_load_explicit(&c->done, memory_order_acquire);
    if (!*done || c->status == SMP_OK)
        return SMP_OK;
    return smp_fail(c->status, "%s", all->worker[c->way].message);
}

void smp__far_threads_times(const smp__far_threads *all, int slot, double *begin_s, double *end_s)
{
    *begin_s = all->copy[slot].begin_s;
    *end_s = all->copy[slot].end_s;
}
