/* smp-run: executes a plan. Wiring and exit code. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_copy.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "tools/elastic/hosts/agent.h"
#include "tools/elastic/supervisor.h"
#include "tools/run/run_options.h"
#include "exec/elastic/supervised.h"
#include "tools/run/training_loop.h"
#include "exec/transport/comm.h"
#include "exec/transport/mpi_lifetime.h"
#include "graph/base/text.h"

/* What smp_load will take its state from, if nothing is damaged. */
typedef struct source {
    smp_status status; /* of any rank, by the lowest */
    smp__saved last;   /* the save on the disk that counts; saved -1: none, -2: no directory */
    int rank;          /* that reads the receipt */
    int64_t step;      /* of the state in memory; -1: it is on the disk */
    bool found;
    char receipt[SMP__RECEIPT_BYTES];
} source;

static smp_status find_last_save(const char *directory, smp__saved *out)
{
    smp__saved *list = NULL;
    int n = 0;
    if (access(directory, F_OK) != 0)
        return SMP_OK;
    SMP_TRY(smp__checkpoint_list(directory, &list, &n));
    const smp__saved *last = smp__checkpoint_last(list, n);
    *out = last ? *last : (smp__saved){.saved = -1};
    free(list);
    return SMP_OK;
}

/* What is kept on this machine, a line each with the rank. */
static smp_status say_kept(const char *kept, int rank, smp_text *lines)
{
    smp__kept_state *states = NULL;
    int n = 0;
    SMP_TRY(smp__kept_states(kept, &states, &n));
    for (int i = 0; i < n; i++) {
        if (states[i].number == INT64_MAX) /* it cannot be read */
            continue;
        smp_text_append(lines, "%d ", rank);
        smp__kept_state_print(&states[i], lines);
        smp_text_append(lines, "\n");
    }
    smp__kept_states_free(states, n);
    return lines->failed ? SMP_ERR_NO_MEMORY : SMP_OK;
}

/* The ranks of a machine see the same folder: one speaks for them. Collective. */
static bool is_first_of_machine(void)
{
    MPI_Comm here;
    int rank;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_rank(here, &rank);
    MPI_Comm_free(&here);
    return rank == 0;
}

/* The lines of all ranks, malloc'ed; NULL without memory, or where MPI cannot count so many. */
static char *gather_lines(const smp_text *own, int size)
{
    const int bytes = own->length > INT_MAX ? INT_MAX : (int)own->length;
    int64_t total = 0;
    int *count = calloc(2 * (size_t)size, sizeof *count);
    if (!count)
        return NULL;
    MPI_Allgather(&bytes, 1, MPI_INT, count, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < size && total <= INT_MAX; i++) {
        count[size + i] = (int)total;
        total += count[i];
    }
    char *all = total < INT_MAX ? calloc((size_t)total + 1, 1) : NULL;
    if (all)
        MPI_Allgatherv(own->data ? own->data : "", bytes, MPI_BYTE, all, count, count + size,
                       MPI_BYTE, MPI_COMM_WORLD);
    free(count);
    return all;
}

/* The best state of all of it that is whole, unless what is saved is later, and a rank on whose
 * machine it has its name. */
static smp_status choose_kept(char *lines, int size, source *from)
{
    smp__kept_state *states = NULL;
    int n = 0, n_chosen = 0;
    smp_status status = smp__kept_states_parse(lines, size, &states, &n);
    int *chosen = calloc((size_t)n + 1, sizeof *chosen);
    if (status == SMP_OK && !chosen)
        status = smp_fail_memory((size_t)n * sizeof *chosen);
    if (status == SMP_OK)
        status = smp__kept_choose(states, n, chosen, &n_chosen);
    const bool later =
        n_chosen > 0 && smp__kept_is_after(&states[chosen[0]], from->last.saved, from->last.step);
    for (int i = n - 1; later && i >= 0; i--)
        if (states[i].named && smp__kept_same(&states[i], &states[chosen[0]])) {
            from->rank = states[i].machine;
            from->step = states[i].step;
        }
    smp__kept_states_free(states, n);
    free(chosen);
    return status;
}

static void read_receipt(const smp_train_options *o, source *from)
{
    char path[SMP__CHECKPOINT_PATH_BYTES];
    from->found = from->step >= 0;
    if (!from->found) {
        from->status = smp__checkpoint_find_receipt(o->checkpoint, o->resume_best, &from->found,
                                                    from->receipt);
        return;
    }
    smp__checkpoint_path(path, o->job.runtime.keep_in, from->step);
    if (smp__checkpoint_receipt(path, from->receipt) != SMP_OK)
        from->receipt[0] = '\0'; /* passed over, as when it is loaded */
}

/* Collective, unwatched but for the time that all of it may take. */
static void find_source(const smp_train_options *o, int rank, source *from)
{
    const char *kept =
        o->job.runtime.keep_every > 0 && !o->resume_best ? o->job.runtime.keep_in : NULL;
    smp_text lines = {0};
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    *from = (source){.status = SMP_OK, .last.saved = -2, .rank = 0, .step = -1};
    if (rank == 0 && kept)
        from->status = find_last_save(o->checkpoint, &from->last);
    MPI_Bcast(&from->last, sizeof from->last, MPI_BYTE, 0, MPI_COMM_WORLD);
    const bool first = is_first_of_machine();
    if (first && kept && from->last.saved > -2 && from->status == SMP_OK)
        from->status = say_kept(kept, rank, &lines);
    char *all = gather_lines(&lines, size);
    if (all && from->status == SMP_OK)
        from->status = choose_kept(all, size, from);
    if (!all)
        from->status = smp_fail_memory(lines.length);
    free(all);
    smp_text_free(&lines);
    int failed = from->status == SMP_OK ? size : rank;
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (failed < size)
        from->rank = failed;
    else if (rank == from->rank)
        read_receipt(o, from);
}

/* All ranks go by what the ranks find where the job is to go on. */
static smp_status settle_resume(smp__run_options *a, int rank)
{
    source at;
    smp_text changed = {0};
    if (!a->train.resume)
        return SMP_OK;
    smp__watchdog_begin(SMP__WATCHED_START, "MPI_Bcast");
    find_source(&a->train, rank, &at);
    const int from = at.rank;
    MPI_Bcast(&at, sizeof at, MPI_BYTE, from, MPI_COMM_WORLD);
    smp__watchdog_end();
    if (at.status != SMP_OK && rank == from && rank > 0)
        fprintf(stderr, "smp-run: rank %d: %s\n", rank, smp_last_error());
    if (at.status != SMP_OK)
        return rank == from ? at.status : smp_fail(at.status, "rank %d has failed", from);
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
    if (smp__agent_asked(argc, argv))
        return smp__agent(argc, argv);
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
