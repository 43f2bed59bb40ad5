/* Children with pipes; see the header. */
#define _GNU_SOURCE /* pipe2 */
#include "tools/elastic/hosts/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOT_STARTED = 127 };

/* Ends of the pipes of one child: [0] is read from, [1] written to. */
typedef struct pipes {
    int in[2], out[2], err[2], report[2];
} pipes;

static void close_one(int *file)
{
    if (*file >= 0)
        close(*file);
    *file = -1;
}

static void close_all(pipes *p)
{
    int *const all[] = {p->in, p->out, p->err, p->report};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        close_one(&all[i][0]);
        close_one(&all[i][1]);
    }
}

static bool open_all(pipes *p, bool talks)
{
    *p = (pipes){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    return (!talks || pipe2(p->in, O_CLOEXEC) == 0) && pipe2(p->out, O_CLOEXEC) == 0 &&
           pipe2(p->err, O_CLOEXEC) == 0 && pipe2(p->report, O_CLOEXEC) == 0;
}

/* In the child: nothing here but system calls. */
static _Noreturn void become(char *const *argv, pid_t parent, int death_signal, const pipes *p)
{
    sigset_t none;
    const int in = p->in[0] >= 0 ? p->in[0] : open("/dev/null", O_RDONLY);
    setpgid(0, 0); /* what a terminal sends goes to the supervisor alone */
    prctl(PR_SET_PDEATHSIG, death_signal);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (getppid() == parent && in >= 0 && dup2(in, STDIN_FILENO) >= 0 &&
        dup2(p->out[1], STDOUT_FILENO) >= 0 && dup2(p->err[1], STDERR_FILENO) >= 0)
        execvp(argv[0], argv);
    const int error = errno;
    const ssize_t n = write(p->report[1], &error, sizeof error);
    (void)n; /* the parent is gone */
    _exit(NOT_STARTED);
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
    return smp_fail(SMP_ERR_INPUT, "'%s' cannot be started: %s", program, strerror(error));
}

static int take_end(int *file)
{
    const int taken = *file;
    if (taken >= 0)
        fcntl(taken, F_SETFL, O_NONBLOCK);
    *file = -1;
    return taken;
}

smp_status smp__child_start(char *const *argv, bool talks, int death_signal, smp__child *out)
{
    pipes p;
    const pid_t self = getpid();
    const pid_t child = open_all(&p, talks) ? fork() : -1;
    smp_status status;
    *out = (smp__child)SMP__NO_CHILD;
    if (child == 0)
        become(argv, self, death_signal, &p);
    if (child < 0) {
        status = smp_fail(SMP_ERR_FAILED, "no process for '%s': %s", argv[0], strerror(errno));
    } else {
        setpgid(child, child); /* whichever of the two is first */
        close_one(&p.report[1]);
        status = wait_start(child, p.report[0], argv[0]);
    }
    if (status == SMP_OK) {
        out->pid = child;
        out->in = take_end(&p.in[1]);
        out->out = take_end(&p.out[0]);
        out->err = take_end(&p.err[0]);
    }
    close_all(&p);
    return status;
}

bool smp__child_reap(smp__child *child)
{
    if (child->pid > 0 && !child->ended && waitpid(child->pid, &child->status, WNOHANG) > 0)
        child->ended = true;
    return child->pid == 0 || child->ended;
}

void smp__child_kill(const smp__child *child)
{
    if (child->pid > 0 && !child->ended)
        kill(-child->pid, SIGKILL);
}

void smp__child_bury(smp__child *child)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int i = 0; i < 20 && !smp__child_reap(child); i++)
        nanosleep(&pause, NULL);
}

void smp__child_close(smp__child *child)
{
    close_one(&child->in);
    close_one(&child->out);
    close_one(&child->err);
    child->pid = 0;
}
