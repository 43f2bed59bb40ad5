/* A rank under a supervisor; see the header. */
#include "exec/elastic/supervised.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

void smp__supervised_begin(void)
{
    const pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it ended before that was asked for */
        raise(SIGKILL);
}

smp_status smp__supervised_output(const char *option, const char *path)
{
    const int file = open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    const bool moved = file >= 0 && dup2(file, STDOUT_FILENO) >= 0;
    const int error = errno;
    if (file >= 0)
        close(file);
    return moved ? SMP_OK : smp_fail(SMP_ERR_FAILED, "%s: %s: %s", option, path, strerror(error));
}

void smp__supervised_mark(int64_t step, double loss)
{
    uint64_t bits;
    memcpy(&bits, &loss, sizeof bits);
    printf(SMP__STEP_MARK "\n", step, bits);
    fflush(stdout);
}

void smp__supervised_pace(int rank, double times)
{
    printf(SMP__PACE_MARK "\n", rank, times);
    fflush(stdout);
}

void smp__supervised_loaded(bool from_memory, double fetched)
{
    printf(SMP__LOAD_MARK "\n", from_memory, fetched);
    fflush(stdout);
}
