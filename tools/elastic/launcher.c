/* The launcher of a job; see the header. */
#define _GNU_SOURCE /* pipe2 */
#include "tools/elastic/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/elastic/outlet.h"

enum { BLOCK = 64 * 1024, LINE_BYTES = 1 << 16, NOT_STARTED = 127 };

smp_status smp__launcher_prepare(int n)
{
    static const char *const always[][2] = {
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_plm", "isolated"},
        {"HWLOC_HIDE_ERRORS", "2"},
        {"OMPI_MCA_odls_base_sigkill_timeout",
         "0"}, /* those that a dead rank leaves have nothing to do */
    };
    static const char *const crowded[][2] = {
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_mpi_yield_when_idle", "1"},
    };
    static const char *const as_root[][2] = {
        {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        failed |= setenv(always[i][0], always[i][1], 0);
    for (size_t i = 0; i < 2 && n > sysconf(_SC_NPROCESSORS_ONLN); i++)
        failed |= setenv(crowded[i][0], crowded[i][1], 0);
    for (size_t i = 0; i < 2 && geteuid() == 0; i++)
        failed |= setenv(as_root[i][0], as_root[i][1], 0);
    return failed ? smp_fail_memory(1) : SMP_OK;
}

/* In the child: nothing here but system calls. */
static _Noreturn void become(char *const *argv, pid_t parent, int out, int err, int report)
{
    sigset_t none;
    const int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);                    /* what a terminal sends goes to the supervisor alone */
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* it ends its ranks and removes its files */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (getppid() == parent && null >= 0 && dup2(null, STDIN_FILENO) >= 0 &&
        dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0)
        execvp(argv[0], argv);
    const int error = errno;
    const ssize_t n = write(report, &error, sizeof error);
    (void)n; /* the parent is gone */
    _exit(NOT_STARTED);
}

static void close_pair(const int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
}

/* Waits until the child has become the program; report: what it has to say where it has not. */
static smp_status wait_start(pid_t child, int report, const char *program)
{
    int error = 0;
    ssize_t n;
    do
        n = read(report, &error, sizeof error);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return SMP_OK;
    waitpid(child, NULL, 0);
    return smp_fail(SMP_ERR_INPUT, "'%s' cannot be started: %s; --launcher names another program",
                    program, strerror(error));
}

smp_status smp__launcher_start(char *const *argv, smp__launcher *out)
{
    int from_out[2] = {-1, -1}, from_err[2] = {-1, -1}, report[2] = {-1, -1};
    const pid_t self = getpid();
    pid_t child = -1;
    if (pipe2(from_out, O_CLOEXEC) == 0 && pipe2(from_err, O_CLOEXEC) == 0 &&
        pipe2(report, O_CLOEXEC) == 0)
        child = fork();
    if (child < 0) {
        const int error = errno;
        close_pair(from_out);
        close_pair(from_err);
        close_pair(report);
        return smp_fail(SMP_ERR_FAILED, "no process for '%s': %s", argv[0], strerror(error));
    }
    if (child == 0)
        become(argv, self, from_out[1], from_err[1], report[1]);
    setpgid(child, child); /* whichever of the two is first */
    close(from_out[1]);
    close(from_err[1]);
    close(report[1]);
    const smp_status status = wait_start(child, report[0], argv[0]);
    close(report[0]);
    if (status != SMP_OK) {
        close(from_out[0]);
        close(from_err[0]);
        return status;
    }
    fcntl(from_out[0], F_SETFL, O_NONBLOCK);
    fcntl(from_err[0], F_SETFL, O_NONBLOCK);
    *out =
        (smp__launcher){.pid = child, .out = from_out[0], .err = from_err[0], .told = {.rank = -1}};
    return SMP_OK;
}

/* What Open MPI says of the rank that ended a job, and ranks of what they go on from. */
static void note_line(smp__told *told, const char *line)
{
    const char *rank = strstr(line, "process rank "), *by = strstr(line, "exited on signal ");
    if (rank && by && told->signal == 0) {
        told->rank = (int)strtol(rank + strlen("process rank "), NULL, 10);
        told->signal = (int)strtol(by + strlen("exited on signal "), NULL, 10);
    }
    const char *abort_by = strstr(line, "MPI_ABORT was invoked on rank ");
    if (abort_by && told->rank < 0)
        told->rank = (int)strtol(abort_by + strlen("MPI_ABORT was invoked on rank "), NULL, 10);
    if (strncmp(line, "smp-run: resumed ", strlen("smp-run: resumed ")) == 0) {
        told->loaded = true;
        told->from_memory = strstr(line, "from memory") != NULL;
    }
}

static void pass_line(smp_text *part, int to, smp__told *told)
{
    if (told)
        note_line(told, part->data);
    smp__outlet_put(to, part->data, part->length);
    part->length = 0;
}

/* Reads a pipe until nothing is there, or too much waits for a reader; closes it at its end. */
static void relay(int *from, smp_text *part, int to, smp__told *told, size_t most_waiting)
{
    char block[BLOCK];
    while (*from >= 0 && smp__outlet_flush(to) < most_waiting) {
        const ssize_t n = read(*from, block, sizeof block);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            close(*from);
            *from = -1;
        }
        for (ssize_t at = 0; at < n;) {
            const char *end = memchr(block + at, '\n', (size_t)(n - at));
            const size_t length = end ? (size_t)(end - block - at) + 1 : (size_t)(n - at);
            smp_text_append_bytes(part, block + at, length);
            at += (ssize_t)length;
            if (part->length > 0 && (end || part->length >= LINE_BYTES))
                pass_line(part, to, told);
        }
    }
}

static void relay_both(smp__launcher *l, size_t most_waiting)
{
    relay(&l->out, &l->out_part, STDOUT_FILENO, NULL, most_waiting);
    relay(&l->err, &l->err_part, STDERR_FILENO, &l->told, most_waiting);
}

void smp__launcher_read(smp__launcher *l)
{
    relay_both(l, SMP__OUTLET_MOST);
}

void smp__launcher_put_polls(const smp__launcher *l, struct pollfd *polls)
{
    const bool out = smp__outlet_flush(STDOUT_FILENO) < SMP__OUTLET_MOST;
    const bool err = smp__outlet_flush(STDERR_FILENO) < SMP__OUTLET_MOST;
    polls[0] = (struct pollfd){.fd = out ? l->out : -1, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = err ? l->err : -1, .events = POLLIN};
}

void smp__launcher_signal(const smp__launcher *l, int number)
{
    if (l->pid > 0 && !l->ended)
        kill(l->pid, number);
}

void smp__launcher_kill(const smp__launcher *l)
{
    if (l->pid > 0 && !l->ended) /* it is not reaped: the group is its own */
        kill(-l->pid, SIGKILL);
}

void smp__launcher_close(smp__launcher *l)
{
    relay_both(l, SIZE_MAX);
    if (l->out >= 0)
        close(l->out);
    if (l->err >= 0)
        close(l->err);
    l->out = l->err = -1;
    if (l->out_part.length > 0)
        pass_line(&l->out_part, STDOUT_FILENO, NULL);
    if (l->err_part.length > 0)
        pass_line(&l->err_part, STDERR_FILENO, &l->told);
    smp_text_free(&l->out_part);
    smp_text_free(&l->err_part);
    l->pid = 0;
}

int smp__launcher_code(const smp__launcher *l)
{
    return WIFSIGNALED(l->status) ? 128 + WTERMSIG(l->status) : WEXITSTATUS(l->status);
}
