/* Runs a command and says what it took: appends "SECONDS PEAK_KIB EXIT_CODE" to a file and exits as
 * the command did. Wall time, and the largest resident set of the command (getrusage).
 *   bench_run FILE COMMAND [ARGUMENT...] */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "graph/base/clock.h"

/* As a shell counts: 128 and the signal for a command that was killed. */
static int exit_code(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_run FILE COMMAND [ARGUMENT...]\n");
        return 2;
    }
    double start_s = smp_clock_s();
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[2], argv + 2);
        fprintf(stderr, "bench_run: %s: %s\n", argv[2], strerror(errno));
        _exit(127);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0) {
        if (errno != EINTR)
            child = -1;
    }
    double took_s = smp_clock_s() - start_s;
    struct rusage usage;
    FILE *file = child > 0 && getrusage(RUSAGE_CHILDREN, &usage) == 0 ? fopen(argv[1], "a") : NULL;
    if (!file || fprintf(file, "%.3f %ld %d\n", took_s, usage.ru_maxrss, exit_code(status)) < 0 ||
        fclose(file) != 0) {
        fprintf(stderr, "bench_run: %s: %s\n", argv[1], strerror(errno));
        return 127;
    }
    return exit_code(status);
}
