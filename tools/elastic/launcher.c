/* The launcher of a job; see the header. */
#include "tools/elastic/launcher.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/elastic/output/outlet.h"

enum { BLOCK = 64 * 1024, LINE_BYTES = 1 << 16 };

/* Sets `count` variables, unless they are set. */
static int set_all(const char *const (*pair)[2], size_t count)
{
    int failed = 0;
    for (size_t i = 0; i < count; i++)
        failed |= setenv(pair[i][0], pair[i][1], 0);
    return failed;
}

smp_status smp__launcher_prepare(int n, const char *shell)
{
    static const char *const always[][2] = {
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
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
    static const char *const alone[][2] = {{"OMPI_MCA_plm", "isolated"}};
    const char *const several[][2] = {
        {"OMPI_MCA_plm", "rsh"},
        {"OMPI_MCA_plm_rsh_agent", shell},
        {"OMPI_MCA_plm_rsh_no_tree_spawn", "1"}, /* the shell is here alone */
        {"OMPI_MCA_oob_tcp_keepalive_time", "1"},
        {"OMPI_MCA_oob_tcp_keepalive_intvl", "1"},
        {"OMPI_MCA_oob_tcp_keepalive_probes", "4"},
    };
    int failed = set_all(always, sizeof always / sizeof always[0]);
    const char *plm = getenv("OMPI_MCA_plm");
    if (shell && plm && strcmp(plm, "isolated") == 0) /* set while there was one host */
        failed |= unsetenv("OMPI_MCA_plm");
    failed |= shell ? set_all(several, sizeof several / sizeof several[0]) : set_all(alone, 1);
    if (n > sysconf(_SC_NPROCESSORS_ONLN))
        failed |= set_all(crowded, 2);
    if (geteuid() == 0)
        failed |= set_all(as_root, 2);
    return failed ? smp_fail_memory(1) : SMP_OK;
}

smp_status smp__launcher_start(char *const *argv, smp__launcher *out)
{
    /* Asked to end, it ends its ranks and removes its files. */
    *out = (smp__launcher){.child = SMP__NO_CHILD, .told = {.rank = -1}};
    char why[512];
    const smp_status status = smp__child_start(argv, false, SIGTERM, &out->child);
    if (status != SMP_ERR_INPUT)
        return status;
    snprintf(why, sizeof why, "%.500s", smp_last_error());
    return smp_fail(SMP_ERR_INPUT, "%s; --launcher names another program", why);
}

/* What Open MPI says of the rank that ended a job. */
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
    relay(&l->child.out, &l->out_part, STDOUT_FILENO, NULL, most_waiting);
    relay(&l->child.err, &l->err_part, STDERR_FILENO, &l->told, most_waiting);
}

void smp__launcher_read(smp__launcher *l)
{
    relay_both(l, SMP__OUTLET_MOST);
}

void smp__launcher_put_polls(const smp__launcher *l, struct pollfd *polls)
{
    const bool out = smp__outlet_flush(STDOUT_FILENO) < SMP__OUTLET_MOST;
    const bool err = smp__outlet_flush(STDERR_FILENO) < SMP__OUTLET_MOST;
    polls[0] = (struct pollfd){.fd = out ? l->child.out : -1, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = err ? l->child.err : -1, .events = POLLIN};
}

void smp__launcher_signal(const smp__launcher *l, int number)
{
    if (l->child.pid > 0 && !l->child.ended)
        kill(l->child.pid, number);
}

void smp__launcher_close(smp__launcher *l)
{
    relay_both(l, SIZE_MAX);
    if (l->out_part.length > 0)
        pass_line(&l->out_part, STDOUT_FILENO, NULL);
    if (l->err_part.length > 0)
        pass_line(&l->err_part, STDERR_FILENO, &l->told);
    smp_text_free(&l->out_part);
    smp_text_free(&l->err_part);
    smp__child_close(&l->child);
}

int smp__launcher_code(const smp__launcher *l)
{
    return WIFSIGNALED(l->child.status) ? 128 + WTERMSIG(l->child.status)
                                        : WEXITSTATUS(l->child.status);
}
