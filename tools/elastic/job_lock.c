/* A job is run by one supervisor: a lock of DIR, beside the one of its ranks, which both have to
 * run out where another host was lost with them; see elastic_job.h. */
#include <math.h>
#include <poll.h>

#include "exec/checkpoint/folder_lock.h"
#include "graph/base/clock.h"
#include "tools/elastic/elastic_job.h"
#include "tools/elastic/hosts/user_signals.h"

#define LOCK_NAME ".elastic-lock"
static const double look_s = 1.0;

/* That of another host runs out if it was lost; one that is renewed meanwhile is of a job that
 * lives. *left_s: as of smp__folder_lock_take_as. */
static smp_status await_lock(smp__elastic_job *job, const char *name, double *left_s,
                             smp__folder_lock **lock)
{
    const double until_s = smp_clock_s() + SMP__LOCK_LEASE_S + SMP__LOCK_RENEW_S;
    *left_s = INFINITY;
    for (bool told = false;; told = true) {
        struct pollfd signal = {.fd = job->signals, .events = POLLIN};
        const double before_s = *left_s;
        const smp_status status = smp__folder_lock_take_as(job->folder, name, 0.0, left_s, lock);
        if (status != SMP_ERR_INPUT || *left_s <= 0.0 || *left_s > before_s ||
            smp_clock_s() > until_s)
            return status;
        if (!told)
            smp__events_say("waits for a lock to run out: %s", smp_last_error());
        (void)poll(&signal, 1, (int)(1e3 * fmin(*left_s, look_s)) + 1);
        SMP_TRY(smp__elastic_meanwhile(job));
    }
}

smp_status smp__elastic_take_folder(smp__elastic_job *job)
{
    smp__folder_lock *ranks = NULL;
    double left_s;
    SMP_TRY(await_lock(job, LOCK_NAME, &left_s, &job->lock));
    job->renewed_s = smp_clock_s();
    const smp_status status = await_lock(job, SMP__SAVE_LOCK, &left_s, &ranks);
    smp__folder_lock_release(ranks);
    /* What an earlier job left on this host agents end, and ranks say who else it is. */
    return status == SMP_ERR_INPUT && left_s == 0.0 ? SMP_OK : status;
}

/* After a long stop another supervisor may have it. One that nobody has is taken again; where it
 * cannot be written it is tried again. */
smp_status smp__elastic_renew(smp__elastic_job *job)
{
    const double now_s = smp_clock_s();
    double left_s;
    if (job->renewed_s == 0.0 || now_s < job->renewed_s + SMP__LOCK_RENEW_S)
        return SMP_OK;
    job->renewed_s = now_s;
    if (job->lock && smp__folder_lock_check(job->lock) == SMP_OK)
        return SMP_OK;
    smp__folder_lock_release(job->lock);
    job->lock = NULL;
    const smp_status status =
        smp__folder_lock_take_as(job->folder, LOCK_NAME, 0.0, &left_s, &job->lock);
    job->ousted = status == SMP_ERR_INPUT && left_s >= 0.0;
    return job->ousted ? status : SMP_OK;
}

smp_status smp__elastic_meanwhile(void *of)
{
    smp__elastic_job *job = of;
    const int number = smp__user_signals_take(job->signals);
    if (number == 0)
        return smp__elastic_renew(job);
    smp__events_put(&job->events, "signal", "\"signal\": %d", number);
    job->user_end = true;
    return smp_fail(SMP_ERR_INPUT, "signal %d ends the wait", number);
}
