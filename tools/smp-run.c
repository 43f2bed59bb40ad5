/* smp-run: executes a plan. Wiring and exit code. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/checkpoint/kept_folder.h"
#include "tools/elastic/supervisor.h"
#include "tools/run/run_options.h"
#include "tools/run/supervised.h"
#include "tools/run/training_loop.h"
#include "exec/transport/comm.h"
#include "exec/transport/mpi_lifetime.h"
#include "graph/base/text.h"

/* What smp_load will take its state from, if nothing is damaged. */
static smp_status find_receipt(const smp_train_options *o, bool *found,
                               char receipt[SMP__RECEIPT_BYTES])
{
    const char *kept = o->job.runtime.keep_every > 0 ? o->job.runtime.keep_in : NULL;
    bool later = false;
    if (kept && !o->resume_best)
        SMP_TRY(smp__kept_is_later(kept, o->checkpoint, &later));
    return smp__checkpoint_find_receipt(later ? kept : o->checkpoint, o->resume_best, found,
                                        receipt);
}

/* All ranks go by what rank 0 finds where the job is to go on. */
static smp_status settle_resume(smp__run_options *a, int rank)
{
    struct {
        smp_status status;
        bool found;
        char receipt[SMP__RECEIPT_BYTES];
    } at = {SMP_OK, false, ""};
    smp_text changed = {0};
    if (!a->train.resume)
        return SMP_OK;
    if (rank == 0)
        at.status = find_receipt(&a->train, &at.found, at.receipt);
    smp__watchdog_begin(SMP__WATCHED_START, "MPI_Bcast");
    MPI_Bcast(&at, sizeof at, MPI_BYTE, 0, MPI_COMM_WORLD);
    smp__watchdog_end();
    if (at.status != SMP_OK)
        return rank == 0 ? at.status : smp_fail(at.status, "rank 0 has failed");
    a->train.resume = at.found || !a->train.resume_auto;
    smp_status status = SMP_OK;
    if (at.receipt[0] != '\0')
        status = smp__run_options_settle(a, at.receipt, &changed);
    for (char *rest = changed.data, *line; rank == 0 && (line = strsep(&rest, "\n"));)
        if (*line != '\0')
            fprintf(stderr, "smp-run: %s\n", line);
    smp_text_free(&changed);
    return status;
}

/* The exit code. */
static int train(smp__run_options *a)
{
    int rank = 0;
    bool job_broken = false, stopped = false;
    const smp_options *job = &a->train.job;
    if (a->train.rows)
        smp__supervised_begin();
    smp__watchdog_allow(smp__comm_patience(job->runtime.timeout_start_s, job->runtime.timeout_s),
                        smp__comm_patience(job->runtime.timeout_save_s, job->runtime.timeout_s));
    smp_status status =
        smp__mpi_open(); /* here, so that a job that cannot be made has ranks, too */
    if (status == SMP_OK) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        status = settle_resume(a, rank);
    }
    if (status == SMP_OK) {
        status = smp__train(&a->train, &job_broken, &stopped);
    }
    int code = stopped ? SMP__EXIT_STOPPED : smp_status_exit_code(status);
    if (job_broken) { /* a step failed on this rank alone, or a peer is gone: nobody can go on */
        fprintf(stderr, "smp-run: %s\n", smp_last_error());
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    if (status != SMP_OK && rank == 0)
        fprintf(stderr, "smp-run: %s\n", smp_last_error());
    return code; /* all ranks have just agreed on how the job ends: MPI is closed at exit */
}

int main(int argc, char **argv)
{
    smp__run_options a = {0};
    int code = 0;
    if (smp__elastic_asked(argc, argv))
        return smp__elastic(argc, argv);
    smp_status status = smp__run_options_read(argc, argv, &a);
    if (status == SMP_OK && !smp_options_answer(&smp__run_table, &a, &status))
        code = train(&a); /* which says itself what went wrong */
    else
        code = smp_options_end(&smp__run_table, status);
    smp__run_options_free(&a);
    return code;
}
