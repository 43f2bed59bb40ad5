/* Reading ahead: tools/run/read_ahead.h. One thread, one request at a time, told by its phase.
 *
 * Which samples are read is the caller's decision, so nothing depends on how fast the thread is. It
 * is started before the rank binds itself to a core (exec/transport/own_core.c), and so may run on
 * any that is free; by policy it never takes a core from a rank that computes when it wakes up. */
#define _GNU_SOURCE /* SCHED_BATCH */
#include "tools/run/read_ahead.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "exec/transport/own_core.h"
#include "graph/base/clock.h"
#include "graph/base/status.h"

typedef enum phase {
    IDLE,
    ASKED, /* the thread's: `what`, its buffers, `status`, `message`, `took_us` */
    DONE,
    ENDS
} phase;

struct smp__read_ahead {
    pthread_t thread;
    pthread_mutex_t lock; /* of `phase` */
    pthread_cond_t changed;
    phase phase;
    smp__reading what;
    smp_status status;
    char message[1024];
    double took_us;
};

smp_status smp__reading_do(const smp__reading *what)
{
    for (int i = 0; i < what->n_input && what->count > 0; i++)
        if (what->buffer[i])
            SMP_TRY(smp_data_read(what->data, what->first, what->count, i, what->buffer[i]));
    return SMP_OK;
}

static void set_phase(smp__read_ahead *a, phase to)
{
    pthread_mutex_lock(&a->lock);
    a->phase = to;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Waits for a phase after which this side may go on. */
static phase wait_for(smp__read_ahead *a, phase one, phase other)
{
    pthread_mutex_lock(&a->lock);
    while (a->phase != one && a->phase != other)
        pthread_cond_wait(&a->changed, &a->lock);
    const phase now = a->phase;
    pthread_mutex_unlock(&a->lock);
    return now;
}

static void *read_batches(void *of)
{
    smp__read_ahead *a = of;
    const struct sched_param none = {0};
    sched_setscheduler(0, SCHED_BATCH, &none); /* refused: costs time only */
    while (wait_for(a, ASKED, ENDS) == ASKED) {
        const double begin_s = smp_clock_s();
        a->status = smp__reading_do(&a->what);
        a->took_us = 1e6 * (smp_clock_s() - begin_s);
        if (a->status != SMP_OK)
            snprintf(a->message, sizeof a->message, "%s", smp_last_error());
        set_phase(a, DONE);
    }
    return NULL;
}

smp__read_ahead *smp__read_ahead_start(void)
{
    smp__read_ahead *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (smp__own_core_start(&a->thread, read_batches, a))
        return a;
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
    return NULL;
}

void smp__read_ahead_stop(smp__read_ahead *a)
{
    if (!a)
        return;
    wait_for(a, IDLE, DONE);
    set_phase(a, ENDS);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

void smp__read_ahead_ask(smp__read_ahead *a, const smp__reading *what)
{
    a->what = *what;
    set_phase(a, ASKED);
}

smp_status smp__read_ahead_wait(smp__read_ahead *a)
{
    wait_for(a, DONE, DONE);
    set_phase(a, IDLE);
    return a->status == SMP_OK ? SMP_OK : smp_fail(a->status, "%s", a->message);
}

double smp__read_ahead_took_us(const smp__read_ahead *a)
{
    return a->took_us;
}
