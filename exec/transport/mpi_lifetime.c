/* Opening MPI, and closing it at exit. */
#include "exec/transport/mpi_lifetime.h"

#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

#include "exec/device/cuda_queues.h"
#include "exec/transport/comm.h"
#include "graph/base/environment.h"

static pid_t owner; /* the process whose MPI we opened; 0: none */
static int groups;  /* open, or broken */

static void close_at_exit(void)
{
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised || groups > 0 || getpid() != owner) /* not in a child of the host */
        return;
    MPI_Finalize(); /* unwatched: all ranks have just agreed to end their last job */
}

static smp_status open_mpi(void)
{
    smp_environment environment;
    smp_environment_save(&environment); /* without memory for it the variables stay */
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
    smp__ask_for_cuda_queues();
    /* unwatched: mpirun ends a job whose process dies in MPI_Init */
    int threads; /* this one alone calls MPI, beside others that do not */
    const int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &threads);
    smp_environment_restore(&environment);
    SMP_TRY(smp__comm_check(code, "MPI_Init"));
    owner = getpid();
    atexit(close_at_exit);
    return SMP_OK;
}

smp_status smp__mpi_open(void)
{
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (finalised)
        return smp_fail(SMP_ERR_FAILED, "the program has finalised MPI: no job can follow");
    return initialised ? SMP_OK : open_mpi();
}

bool smp__mpi_owned(void)
{
    return owner != 0;
}

void smp__mpi_enter(void)
{
    groups++;
}

void smp__mpi_leave(void)
{
    groups--;
}
