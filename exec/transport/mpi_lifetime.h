/* Who opens MPI closes it. A process can open MPI once, so where the library does, it stays open
 * for the jobs to come and is closed when the process exits (as PETSc, Horovod and mpi4py do). */
#ifndef SMP_EXEC_TRANSPORT_MPI_LIFETIME_H
#define SMP_EXEC_TRANSPORT_MPI_LIFETIME_H

#include <stdbool.h>

#include "graph/base/status.h"

/* Opens MPI unless it is open. Ranks wait by testing and sleeping (smp__comm_pause), so Open MPI
 * must not give the core away by itself: with its mpi_yield_when_idle, which mpirun --oversubscribe
 * sets, every test between two operators would. Leaves the environment as it is. */
smp_status smp__mpi_open(void);
/* The library did, and closes it. */
bool smp__mpi_owned(void);

/* A group of ranks begins and ends well. With one that does not end the process exits with MPI
 * open, since ranks that are gone or wait elsewhere would never come to MPI_Finalize. */
void smp__mpi_enter(void);
void smp__mpi_leave(void);

/* A thread that ends the process where MPI has calls that cannot be waited for otherwise. It needs
 * neither MPI nor another rank.
 *
 * For a program whose process it may end; a library leaves its host alone. 0: never. */
void smp__watchdog_allow(double start_s, double end_s);

typedef enum smp__watched { SMP__WATCHED_START, SMP__WATCHED_END } smp__watched;
/* The calling thread is about to make the call of MPI. If it has not returned in time, the rank
 * says who and where it is and for how many it waits, and the process ends with exit code 1. Time
 * in which the process does not run does not count. One at a time; `call` is static text. */
void smp__watchdog_begin(smp__watched phase, const char *call);
void smp__watchdog_end(void);

#endif
