/* An MPI that knows GPUs opens CUDA, which then looks at how many queues it is to have: MPI_Init
 * sees that, a user's own setting stands, and the environment is afterwards what it was. */
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/cuda/cuda_queues.h"
#include "exec/device/device.h"
#include "exec/transport/mpi_lifetime.h"

static char seen[16];

/* In front of the library's. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const char *queues = getenv(SMP__CUDA_QUEUES);
    strncpy(seen, queues ? queues : "none", sizeof seen - 1);
    return PMPI_Init_thread(argc, argv, required, provided);
}

static void test_queues_are_asked_for(void **state)
{
    (void)state;
    const char *number = getenv("OMPI_COMM_WORLD_RANK");
    const bool given = number && atoi(number) % 2 == 1;
    unsetenv(SMP__CUDA_QUEUES);
    if (given)
        setenv(SMP__CUDA_QUEUES, "8", 1);
    assert_int_equal(smp__mpi_open(), SMP_OK);
    assert_string_equal(seen, given ? "8" : smp_device_find("cuda") ? "32" : "none");
    const char *left = getenv(SMP__CUDA_QUEUES);
    assert_string_equal(left ? left : "none", given ? "8" : "none");
    assert_int_equal(smp__cuda_queues(), given ? 8 : 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_queues_are_asked_for)};
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    if (failures > 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
