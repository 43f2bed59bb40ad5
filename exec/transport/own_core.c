/* Affinity, scheduling policy and timer slack of the calling thread. All are hints: a refusal costs
 * time only. Workers: a count of tasks that were asked for, under a lock since the thread sleeps
 * until there are more, and a count of those that are done. */
#define _GNU_SOURCE /* CPU affinity */
#include "exec/transport/own_core.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* What the thread had before the first of its jobs. */
static _Thread_local struct {
    int jobs;
    cpu_set_t cores;
    bool bound, batch;
    int slack_ns;
} host;

/* Dealt out in turn as smp_cluster_core_of says: short waits would otherwise move ranks around, and
 * the prediction could not know where. */
static bool bind_to_core(int node_rank)
{
    cpu_set_t own;
    int wanted = -1;
    if (sched_getaffinity(0, sizeof(host.cores), &host.cores) == 0 && CPU_COUNT(&host.cores) > 1)
        wanted = node_rank % CPU_COUNT(&host.cores);
    for (int cpu = 0; wanted >= 0 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &host.cores) && wanted-- == 0) {
            CPU_ZERO(&own);
            CPU_SET(cpu, &own);
            return sched_setaffinity(0, sizeof(own), &own) == 0;
        }
    return false;
}

static bool set_policy(int policy)
{
    const struct sched_param none = {0};
    return sched_setscheduler(0, policy, &none) == 0;
}

void smp__own_core_take(int node_rank)
{
    if (host.jobs++ > 0)
        return;
    host.bound = bind_to_core(node_rank);
    /* a host that has chosen another policy knows why */
    host.batch = sched_getscheduler(0) == SCHED_OTHER && set_policy(SCHED_BATCH);
    /* sleeps last some microseconds, not fifty more */
    host.slack_ns = prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

void smp__own_core_give_back(void)
{
    if (host.jobs == 0 || --host.jobs > 0)
        return;
    if (host.bound)
        sched_setaffinity(0, sizeof(host.cores), &host.cores);
    if (host.batch)
        set_policy(SCHED_OTHER);
    if (host.slack_ns > 0)
        prctl(PR_SET_TIMERSLACK, (unsigned long)host.slack_ns, 0UL, 0UL, 0UL);
}

bool smp__own_core_start(pthread_t *thread, void *(*run)(void *), void *of)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    if (host.jobs > 0 && host.bound)
        pthread_attr_setaffinity_np(&attributes, sizeof(host.cores), &host.cores);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(thread, &attributes, run, of) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

int smp__own_core_count(pid_t of)
{
    cpu_set_t cores;
    return sched_getaffinity(of, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

bool smp__own_core_spare(int node_ranks)
{
    return 2L * node_ranks <= sysconf(_SC_NPROCESSORS_ONLN) && smp__own_core_count(0) > 1;
}

struct smp__worker {
    smp__worker_task *task;
    void *of;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    int64_t asked;
    bool ends;
    _Atomic int64_t done;
    _Atomic int64_t failed; /* the first task that failed; INT64_MAX: none has */
    smp_status status;      /* ... and what it said, written before that */
    char message[768];
};

/* Is there a task of this number? false: the thread is to end. */
static bool has_task(smp__worker *w, int64_t number)
{
    pthread_mutex_lock(&w->lock);
    while (w->asked <= number && !w->ends)
        pthread_cond_wait(&w->changed, &w->lock);
    const bool goes_on = !w->ends;
    pthread_mutex_unlock(&w->lock);
    return goes_on;
}

static void *work(void *of)
{
    smp__worker *w = of;
    for (int64_t i = 0; has_task(w, i); i++) {
        if (w->status == SMP_OK && (w->status = w->task(w->of, i)) != SMP_OK) {
            snprintf(w->message, sizeof w->message, "%s", smp_last_error());
            atomic_store_explicit(&w->failed, i, memory_order_release);
        }
        atomic_store_explicit(&w->done, i + 1, memory_order_release);
    }
    return NULL;
}

static void destroy(smp__worker *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

smp_status smp__worker_start(smp__worker_task *task, void *of, smp__worker **out)
{
    smp__worker *w = calloc(1, sizeof *w);
    if (!w)
        return smp_fail_memory(sizeof *w);
    w->task = task;
    w->of = of;
    atomic_init(&w->done, 0);
    atomic_init(&w->failed, INT64_MAX);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (smp__own_core_start(&w->thread, work, w)) {
        *out = w;
        return SMP_OK;
    }
    destroy(w);
    return smp_fail(SMP_ERR_FAILED, "no thread can be started beside this one");
}

void smp__worker_ask(smp__worker *w, int64_t n)
{
    pthread_mutex_lock(&w->lock);
    w->asked = n;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

smp_status smp__worker_test(smp__worker *w, int64_t number, bool *done)
{
    *done = atomic_load_explicit(&w->done, memory_order_acquire) > number;
    if (!*done || atomic_load_explicit(&w->failed, memory_order_acquire) > number)
        return SMP_OK;
    return smp_fail(w->status, "%s", w->message);
}

static void tell_end(smp__worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void smp__worker_stop(smp__worker *w)
{
    if (!w)
        return;
    tell_end(w);
    pthread_join(w->thread, NULL);
    destroy(w);
}

void smp__worker_leave(smp__worker *w)
{
    if (!w)
        return;
    tell_end(w);
    pthread_detach(w->thread);
}
