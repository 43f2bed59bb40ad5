/* Opening MPI, and closing it at exit. The thread that watches wakes up ten times a second while a
 * call is watched, and lives no longer than that. */
#include "exec/transport/mpi_lifetime.h"

#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "exec/device/device.h"
#include "exec/transport/comm.h"
#include "exec/transport/own_core.h"
#include "graph/base/clock.h"
#include "graph/base/environment.h"
#include "graph/base/text.h"

static pid_t owner; /* the process whose MPI we opened; 0: none */
static int groups;  /* open, or broken */

static const double WAKE_S = 0.1, MAX_GAP_S = 0.2; /* in a longer one the process did not run */

static struct {
    double limit_s[2]; /* by phase */
    double left_s;
    const char *call;
    double call_limit_s;
    bool running, done;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} dog = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void smp__watchdog_allow(double start_s, double end_s)
{
    dog.limit_s[SMP__WATCHED_START] = start_s;
    dog.limit_s[SMP__WATCHED_END] = end_s;
}

/* What whoever started the process says of it; -1: nothing. */
static int64_t told_number(const char *by_mpirun, const char *by_slurm)
{
    const char *text = getenv(by_mpirun);
    int64_t number = -1;
    if (!text)
        text = getenv(by_slurm);
    return text && smp_parse_int(text, &number) ? number : -1;
}

static _Noreturn void give_up(void)
{
    char line[512], host[256] = "", others[64];
    const long long rank = told_number("OMPI_COMM_WORLD_RANK", "SLURM_PROCID");
    const long long size = told_number("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS");
    gethostname(host, sizeof(host) - 1);
    if (size == 2 && rank >= 0)
        snprintf(others, sizeof others, "rank %lld", 1 - rank);
    else
        snprintf(others, sizeof others, "%lld other ranks", size > 0 ? size - 1 : 0);
    int n = snprintf(line, sizeof(line),
                     "smp-run: rank %lld on host %s: %s has not returned for %g s: it waits for "
                     "%s\n",
                     rank, host, dog.call, dog.call_limit_s, others);
    ssize_t written = write(STDERR_FILENO, line, (size_t)n);
    (void)written; /* nobody left to tell */
    _exit(1);
}

/* Under the lock. */
static void sleep_a_while(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(1e9 * WAKE_S);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&dog.changed, &dog.lock, &until);
}

static void *watch(void *none)
{
    double seen_s = smp_clock_s();
    pthread_mutex_lock(&dog.lock);
    while (!dog.done && dog.left_s > 0.0) {
        sleep_a_while();
        const double now_s = smp_clock_s(), gap_s = now_s - seen_s;
        dog.left_s -= gap_s < MAX_GAP_S ? gap_s : MAX_GAP_S;
        seen_s = now_s;
    }
    if (!dog.done)
        give_up();
    pthread_mutex_unlock(&dog.lock);
    return none;
}

void smp__watchdog_begin(smp__watched phase, const char *call)
{
    if (dog.limit_s[phase] <= 0.0)
        return;
    dog.call = call;
    dog.left_s = dog.call_limit_s = dog.limit_s[phase];
    dog.done = false;
    dog.running = smp__own_core_start(&dog.thread, watch, NULL);
}

void smp__watchdog_end(void)
{
    if (!dog.running)
        return;
    pthread_mutex_lock(&dog.lock);
    dog.done = true;
    pthread_cond_signal(&dog.changed);
    pthread_mutex_unlock(&dog.lock);
    pthread_join(dog.thread, NULL);
    dog.running = false;
}

static void close_at_exit(void)
{
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised || groups > 0 || getpid() != owner) /* not in a child of the host */
        return;
    smp__watchdog_begin(SMP__WATCHED_END, "MPI_Finalize");
    MPI_Finalize(); /* in a library unwatched: all ranks have just agreed to end their last job */
    smp__watchdog_end();
}

static smp_status open_mpi(void)
{
    smp_environment environment;
    smp_environment_save(&environment); /* without memory for it the variables stay */
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
    for (int i = 0; smp_devices()[i]; i++)
        if (smp_devices()[i]->before_mpi)
            smp_devices()[i]->before_mpi();
    /* in a library unwatched: mpirun ends a job whose process dies in MPI_Init */
    int threads; /* this one alone calls MPI, beside others that do not */
    smp__watchdog_begin(SMP__WATCHED_START, "MPI_Init");
    const int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &threads);
    smp__watchdog_end();
    smp_environment_restore(&environment);
    SMP_TRY(smp__comm_check(code, "MPI_Init"));
    owner = getpid();
    atexit(close_at_exit);
    return SMP_OK;
}

smp_status smp__mpi_open(void)
{
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (finalised)
        return smp_fail(SMP_ERR_FAILED, "the program has finalised MPI: no job can follow");
    return initialised ? SMP_OK : open_mpi();
}

bool smp__mpi_owned(void)
{
    return owner != 0;
}

void smp__mpi_enter(void)
{
    groups++;
}

void smp__mpi_leave(void)
{
    groups--;
}
