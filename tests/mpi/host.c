/* A program that has the library as a guest: it writes down what it sees of its own process, lets
 * jobs fail and train, and prints what is not as it was; nothing if all is.
 *   host own|library|crowded MODEL FOLDER    the program initialises MPI, or leaves it to the
 *                                            library; or there are more ranks than cores
 *   host leave MODEL FOLDER                  the last rank ends in the middle of its job, exit code
 *                                            3 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fenv.h>
#include <locale.h>
#include <mpi.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "smp.h"

extern char **environ;

enum { VIEW_BYTES = 1 << 18, STEPS = 2, INPUTS = 2, OPENMP_THREADS = 3 };

/* What belongs to the thread or to nobody comes first, then what an open MPI changes, too. */
typedef struct view {
    char text[VIEW_BYTES];
    size_t used;
    size_t mpi; /* where that begins */
} view;

/* SA_RESTORER: of every handler that was ever set, the default one included. */
static const unsigned SET_BY_C_LIBRARY = 0x04000000;
static int differences;
static char random_state[128]; /* of rand(), which belongs to the host */

static void die(const char *what)
{
    fprintf(stderr, "host: %s: %s\n", what, smp_last_error());
    exit(1);
}

static void add(view *v, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(v->text + v->used, VIEW_BYTES - v->used, format, arguments);
    va_end(arguments);
    v->used += (size_t)n;
    if (v->used >= VIEW_BYTES)
        die("too much to see");
}

static void add_thread(view *v)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    add(v, "cores");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cores))
            add(v, " %d", cpu);
    add(v, "\nscheduling policy %d\n", sched_getscheduler(0));
    add(v, "timer slack %d\n", prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL));
    add(v, "OpenMP threads %d\n", omp_get_max_threads());
    add(v, "rounding %d, traps %d\n", fegetround(), fegetexcept());
#ifdef __SSE__
    add(v, "floating-point modes %x\n", __builtin_ia32_stmxcsr() & ~0x3fu); /* without its flags */
#endif
    add(v, "locale of the thread %d\n", uselocale((locale_t)0) == LC_GLOBAL_LOCALE);
}

static void add_process(view *v)
{
    char folder[4096];
    const mode_t mask = umask(0);
    umask(mask);
    add(v, "random numbers ");
    for (size_t i = 0; i < sizeof random_state; i++)
        add(v, "%02x", (unsigned char)random_state[i]);
    add(v, "\n");
    add(v, "umask %o\n", (unsigned)mask);
    add(v, "folder %s\n", getcwd(folder, sizeof folder));
    add(v, "locale %s\n", setlocale(LC_ALL, NULL));
    for (char **entry = environ; *entry; entry++)
        add(v, "environment %s\n", *entry);
}

static void add_folder(view *v, const char *path, int links)
{
    char name[512], target[4096];
    struct dirent *entry;
    DIR *folder = opendir(path);
    if (!folder)
        die(path);
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] == '.' || (links && atoi(entry->d_name) == dirfd(folder)))
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        ssize_t n = links ? readlink(name, target, sizeof target - 1) : 0;
        target[n > 0 ? n : 0] = '\0';
        add(v, "%s %s\n", name, target);
    }
    closedir(folder);
}

static void look(view *v)
{
    v->used = 0;
    add_thread(v);
    add_process(v);
    v->mpi = v->used;
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0)
            add(v, "signal %d: %p %x\n", number, (void *)action.sa_handler,
                (unsigned)action.sa_flags & ~SET_BY_C_LIBRARY);
    }
    add_folder(v, "/proc/self/fd", 1);
    add_folder(v, "/proc/self/task", 0);
}

static int has_line(const char *text, const char *line, size_t length)
{
    for (const char *at = text; *at; at = strchr(at, '\n') + 1)
        if (strncmp(at, line, length) == 0)
            return 1;
    return 0;
}

static void print_missing(const char *when, const char *sign, const char *text, const char *other)
{
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        const size_t length = (size_t)(strchr(line, '\n') - line) + 1;
        if (!has_line(other, line, length)) {
            printf("%s: %s %.*s", when, sign, (int)length, line);
            differences++;
        }
    }
}

static void compare(const char *when, view *before, int with_mpi)
{
    static view now;
    look(&now);
    const char first = before->text[before->mpi];
    if (!with_mpi)
        before->text[before->mpi] = now.text[now.mpi] = '\0';
    print_missing(when, "was", before->text, now.text);
    print_missing(when, "is", now.text, before->text);
    before->text[before->mpi] = first;
}

static smp_options options_of(const char *model)
{
    smp_options options = smp_options_default();
    options.model = model;
    options.planning.microbatches = 2;
    options.runtime.timeout_s = 60;
    return options;
}

/* What the callers of exit do not see: nothing of a job stays, so the next one can be made. */
static void fail_once(const char *folder)
{
    smp *job = NULL;
    char absent[4096];
    snprintf(absent, sizeof absent, "%s/absent.yaml", folder);
    smp_options options = options_of(absent);
    if (smp_init(&job, &options) != SMP_ERR_INPUT || !strstr(smp_last_error(), "absent.yaml"))
        die("a model that is not there");
}

static void step(smp *job, double *loss)
{
    float values[2][1024];
    const void *inputs[INPUTS] = {values[0], values[1]};
    smp_step_result result;
    for (int i = 0; i < 1024; i++)
        values[0][i] = values[1][i] = (float)(i % 7) * 0.25f;
    if (smp_step(job, inputs, &result) != SMP_OK)
        die("smp_step");
    *loss = result.loss;
}

static smp *open_job(const char *model, int keep)
{
    smp *job = NULL;
    smp_options options = options_of(model);
    options.runtime.keep_scheduling = keep;
    if (smp_init(&job, &options) != SMP_OK)
        die("smp_init");
    return job;
}

static void train(const char *model, const char *folder, double loss[STEPS])
{
    smp *job = open_job(model, 0);
    for (int i = 0; i < STEPS; i++)
        step(job, &loss[i]);
    if (smp_save(job, folder) != SMP_OK || smp_load(job, folder) != SMP_OK)
        die("smp_save, smp_load");
    smp_finalize(job);
}

/* Between the calls of a job the thread is the host's: only its cores and what goes with them may
 * be the job's, and not even those if the host says so. */
static void look_inside(const char *model, view *before, int crowded)
{
    double loss;
    smp *job = open_job(model, 1);
    step(job, &loss);
    compare("within a job that keeps the scheduling", before, 0);
    smp_finalize(job);
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    const int several = CPU_COUNT(&cores) > 1;
    smp *first = open_job(model, 0), *second = open_job(model, 0);
    step(first, &loss);
    sched_getaffinity(0, sizeof cores, &cores);
    if (crowded != (sched_getscheduler(0) == SCHED_BATCH) ||
        (crowded && several && CPU_COUNT(&cores) != 1))
        die("a rank of a crowded machine has a core, others have none");
    smp_finalize(first);
    smp_finalize(second);
}

/* A child that ends by itself takes nothing from its parent. */
static void end_a_child(void)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        alarm(10);
        exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        die("a child that ends");
}

static void leave(const char *model)
{
    double loss;
    smp *job = open_job(model, 0);
    step(job, &loss);
    if (smp_rank(job, SMP_WORLD) == smp_size(job, SMP_WORLD) - 1)
        exit(3);
    for (;;)
        step(job, &loss);
}

static void visit(const char *model, const char *folder, int own, int crowded)
{
    static view before;
    double loss[2][STEPS];
    look(&before);
    fail_once(folder);
    compare("after a first smp_init that failed", &before, own);
    if (!own)
        look(&before);
    train(model, folder, loss[0]);
    compare("after a job", &before, 1);
    end_a_child();
    fail_once(folder);
    compare("after another smp_init that failed", &before, 1);
    train(model, folder, loss[1]);
    compare("after a second job", &before, 1);
    look_inside(model, &before, crowded);
    compare("after two jobs at once", &before, 1);
    if (memcmp(loss[0], loss[1], sizeof loss[0]) != 0) {
        printf("the losses of the second job differ: %.9g, %.9g\n", loss[0][1], loss[1][1]);
        differences++;
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: host own|library|crowded|leave MODEL FOLDER\n");
        return 2;
    }
    const int own = strcmp(argv[1], "own") == 0, crowded = strcmp(argv[1], "crowded") == 0;
    if (own)
        MPI_Init(&argc, &argv);
    omp_set_num_threads(OPENMP_THREADS);
    initstate(1, random_state, sizeof random_state);
    if (strcmp(argv[1], "leave") == 0)
        leave(argv[2]);
    visit(argv[2], argv[3], own, crowded);
    if (own)
        MPI_Finalize();
    return differences > 0;
}
