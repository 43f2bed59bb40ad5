/* Affinity, scheduling policy and timer slack of the calling thread. All are hints: a refusal costs
 * time only. */
#define _GNU_SOURCE /* CPU affinity */
#include "exec/transport/own_core.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

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
