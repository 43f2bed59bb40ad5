/* What tests on however many ranks begin and end with: a folder that every rank knows, and calls
 * whose failure ends all ranks. */
#ifndef SMP_TESTS_EXEC_OPEN_RANKS_H
#define SMP_TESTS_EXEC_OPEN_RANKS_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "graph/base/status.h"

static int world_rank, world_size;
static char ranks_folder[64]; /* the same on every rank */

static inline void must(smp_status status)
{
    if (status != SMP_OK) {
        fprintf(stderr, "rank %d: %s\n", world_rank, smp_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static inline void open_ranks(int *argc, char ***argv)
{
    int threads;
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* no rank waits for one that failed */
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    snprintf(ranks_folder, sizeof ranks_folder, "%s/smp-test-XXXXXX", P_tmpdir);
    if (world_rank == 0 && !mkdtemp(ranks_folder))
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Bcast(ranks_folder, sizeof ranks_folder, MPI_CHAR, 0, MPI_COMM_WORLD);
}

/* The test has emptied the folder. Returns its failures, and one for what is left. */
static inline int close_ranks(int failed)
{
    if (world_rank == 0 && rmdir(ranks_folder) != 0) {
        perror(ranks_folder);
        failed++;
    }
    MPI_Finalize();
    return failed;
}

#endif
