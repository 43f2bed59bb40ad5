/* The end of an elastic job; see elastic_job.h. What is in memory alone gets to the disk, those who
 * read what it prints are waited for, and hosts are left. */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_copy.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/checkpoint/folder_lock.h"
#include "graph/base/clock.h"
#include "tools/elastic/elastic_job.h"
#include "tools/elastic/output/outlet.h"
#include "tools/elastic/hosts/user_signals.h"

enum { TICK_MS = 50 };
static const double drain_s = 2.0; /* for a reader to read on, after a signal */

/* false: hosts hold what they keep. */
static bool remove_kept(smp__elastic_job *job)
{
    if (smp__hosts_remove(&job->hosts) == SMP_OK)
        return true;
    smp__events_say("%s; what is left in memory, %s, is removed after %g s", smp_last_error(),
                    job->keep, job->options->keep_for_s);
    return false;
}

/* The job ends before its last step: what is in memory alone gets to the disk. false: it stays
 * there, and hosts hold it. */
static bool save_kept(smp__elastic_job *job)
{
    int64_t step = 0;
    if (job->record.incarnation == 0)
        return job->options->keep_every == 0 || !smp__checkpoint_exists(job->keep);
    if (job->options->keep_every == 0)
        return true;
    if (job->ousted) /* the other supervisor has what agents hold */
        return false;
    /* Hosts that ranks have left may still have something; a program may not have saved. */
    if (job->code == 0 && !job->options->command)
        return job->hosts.n == 1 || remove_kept(job);
    const smp__meanwhile meanwhile = {smp__elastic_meanwhile, job};
    const smp_status status =
        job->hosts.n > 1 ? smp__hosts_save(&job->hosts, job->folder, &step)
                         : smp__checkpoint_copy_last(job->keep, job->folder, &meanwhile, &step);
    if (status != SMP_OK) {
        smp__events_say("%s; the state stays in memory, %s", smp_last_error(), job->keep);
        if (job->code == 0 || job->code == SMP__EXIT_STOPPED) /* which say: saved */
            job->code = 1;
        return false;
    }
    if (step > 0)
        smp__events_say("the state of step %" PRId64 " is saved in %s", step, job->folder);
    return remove_kept(job);
}

/* Waits for those who read what is left; not for long if a signal asks for the end, or has. */
static void drain(smp__elastic_job *job)
{
    struct pollfd signal = {.fd = job->signals, .events = POLLIN};
    const double begin_s = smp_clock_s();
    for (;;) {
        const bool failed = smp__rows_print(&job->rows) != SMP_OK;
        const bool printed = failed || smp__rows_printed(&job->rows);
        const bool hurries = job->user_end || smp__outlet_full(STDOUT_FILENO);
        if ((printed && smp__outlet_flush(STDERR_FILENO) == 0) ||
            (hurries && smp_clock_s() > begin_s + drain_s))
            return;
        if (poll(&signal, 1, TICK_MS) > 0 && smp__user_signals_take(job->signals) > 0)
            return;
    }
}

void smp__elastic_close(smp__elastic_job *job, bool opened)
{
    bool recorded = opened || job->rows.fresh, saved = true;
    if (opened) {
        saved = save_kept(job);
        drain(job);
        if (job->record.incarnation > 0)
            recorded = smp__elastic_write_record(job);
        recorded = recorded && smp__rows_printed(&job->rows);
        if (!smp__rows_printed(&job->rows))
            smp__events_say("rows that are not printed stay in %s: the same command prints them",
                            job->rows.path);
        if (job->code == 0 &&
            (job->rows.lost || !smp__rows_printed(&job->rows) || smp__outlet_broken(STDOUT_FILENO)))
            job->code = 1;
        smp__events_sum(&job->events, job->code);
        (void)smp__outlet_flush(STDERR_FILENO);
    }
    smp__rows_close(&job->rows, recorded); /* which says how far rows have been printed */
    smp__plans_close(&job->plans);
    smp__moves_free(&job->moves);
    smp__slots_close(&job->slots);
    smp__hosts_close(&job->hosts, saved);
    smp__events_close(&job->events);
    smp__folder_lock_release(job->lock);
    if (job->signals >= 0)
        close(job->signals);
    smp_text_free(&job->why);
    free(job->picked);
    free(job->gpus);
    free(job->program);
    free(job->keep);
    free(job->folder);
}
