/* smp-run: executes a plan. Wiring and exit code. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/run_options.h"
#include "exec/training_loop.h"
#include "exec/transport/mpi_lifetime.h"
#include "graph/base/text.h"
#include "graph/math/math.h"
#include "profile/cuda_info.h"

static void print_version(void)
{
    smp_text text = {0};
    smp_text_append(&text, "smp-run %s\n%s\n", smp_version(), smp_math_name());
    smp_cuda_describe(&text);
    fputs(text.data ? text.data : "", stdout);
    smp_text_free(&text);
}

/* One process prints what all of them found: rank 0, or a process not started by mpirun. */
static bool speaks(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return !rank || strcmp(rank, "0") == 0;
}

int main(int argc, char **argv)
{
    smp__run_options a = {0};
    smp_status status = smp__run_options_read(argc, argv, &a);
    if (status != SMP_OK || a.help || a.version) {
        if (status != SMP_OK && speaks())
            fprintf(stderr, "smp-run: %s\n", smp_last_error());
        else if (status == SMP_OK && speaks() && a.help)
            smp__run_options_help();
        else if (status == SMP_OK && speaks())
            print_version();
        return smp_status_exit_code(status);
    }
    int rank = 0;
    bool job_broken = false;
    status = smp__mpi_open(); /* here, so that a job that cannot be made has ranks, too */
    if (status == SMP_OK) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        status = smp__train(&a.train, &job_broken);
    }
    int code = smp_status_exit_code(status);
    if (job_broken) { /* a step failed on this rank alone, or a peer is gone: nobody can go on */
        fprintf(stderr, "smp-run: %s\n", smp_last_error());
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    if (status != SMP_OK && rank == 0)
        fprintf(stderr, "smp-run: %s\n", smp_last_error());
    return code; /* all ranks have just agreed on how the job ends: MPI is closed at exit */
}
