/* A folder of a test program's own, made before its tests, and empty after them. */
#ifndef SMP_TESTS_TOOLS_SCRATCH_FOLDER_H
#define SMP_TESTS_TOOLS_SCRATCH_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

#endif
