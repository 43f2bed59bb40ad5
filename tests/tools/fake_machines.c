/* Preloaded into smp-run: its ranks are on the machines that $FAKE_MACHINES names, a digit for each
 * rank of the world. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) int MPI_Comm_split_type(MPI_Comm comm, int type, int key,
                                                               MPI_Info info, MPI_Comm *out)
{
    const char *machines = getenv("FAKE_MACHINES");
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!machines || strlen(machines) <= (size_t)rank)
        return PMPI_Comm_split_type(comm, type, key, info, out);
    return MPI_Comm_split(comm, machines[rank], key, out);
}
