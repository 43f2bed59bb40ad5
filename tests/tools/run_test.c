/* Runs a test and writes down what it took: run_test NAME LABEL BUDGET_S TRIES -- COMMAND...
 *
 * Appends "NAME LABEL wall_s processor_s code" to SMP_TEST_TIMES, where that is set. Processor time
 * is that of all descendants: orphans become children of this process (Linux), which waits for
 * them. What still runs when the command has ended is killed. The exit code is the command's, but
 * 1 where a test that passed took more than twice its budget of processor time. The budget is that
 * of a machine that takes REFERENCE_S for `work`: a slower or a busy one is found out by doing that
 * work here and now, and the budget grows by as much. Twice, because a busy moment may be over by
 * then. SMP_TEST_LONG lifts it.
 *
 * Jobs of Open MPI get a session folder of their own: in the one that they share by default a job
 * that ends removes what another one is about to use.
 *
 * A command that fails is run up to TRIES times: what compares times may meet a busy moment. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    SKIPPED = 77,
    CANNOT_RUN = 127,
    WORDS = 1 << 18,
    ROUNDS = 100,
    REPEATS = 5,
    CHILDREN = 256,
    MOST_OPEN = 16
};
static const double REFERENCE_S = 0.1; /* of `work` */
static const double SLACK = 2;

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

static double used_s(int who)
{
    struct rusage use;
    getrusage(who, &use);
    return seconds_of(use.ru_utime) + seconds_of(use.ru_stime);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A walk through 2 MiB in an order that no prefetcher knows, and a division a word. */
static uint64_t work(uint64_t *word)
{
    uint64_t sum = 0, at = 1;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < WORDS; i++) {
            at = at * 6364136223846793005U + 1442695040888963407U;
            sum += word[at >> 46] / (at >> 40 | 1);
            word[at >> 46] = at;
        }
    return sum;
}

/* How many times as long as the reference this machine takes now, at least 1. */
static double slowness(void)
{
    uint64_t *word = calloc(WORDS, sizeof *word);
    volatile uint64_t result = word ? work(word) : 0;
    double most = 0;
    for (int i = 0; word && i < REPEATS; i++) {
        const double begin = used_s(RUSAGE_SELF);
        result = result + work(word);
        const double took = used_s(RUSAGE_SELF) - begin;
        most = took > most ? took : most;
    }
    free(word);
    return most > REFERENCE_S ? most / REFERENCE_S : 1;
}

/* Kills and waits for children until there are none. */
static void end_orphans(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    for (;;) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        FILE *file = fopen(path, "r");
        int pid, n = 0;
        while (file && n < CHILDREN && fscanf(file, "%d", &pid) == 1) {
            fprintf(stderr, "run_test: %s left process %d running\n", name, pid);
            kill(pid, SIGKILL);
            n++;
        }
        if (file)
            fclose(file);
        if (n == 0)
            return;
        while (n-- > 0)
            waitpid(-1, NULL, 0);
    }
}

static const char sessions_name[] = "OMPI_MCA_orte_tmpdir_base";

/* Whether `folder` was made; a caller that has chosen one keeps it. */
static int make_sessions(char *folder)
{
    return !getenv(sessions_name) && mkdtemp(folder) && setenv(sessions_name, folder, 1) == 0;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    (void)remove(path); /* what is in use, or gone, stays so */
    return 0;
}

static int run_once(char **command)
{
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(command[0], command);
        fprintf(stderr, "run_test: %s: %s\n", command[0], strerror(errno));
        _exit(CANNOT_RUN);
    }
    int status = 0;
    for (pid_t ended = 0; child > 0 && ended != child;) {
        ended = wait(&status);
        if (ended < 0 && errno != EINTR)
            break;
    }
    if (child < 0)
        return CANNOT_RUN;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void write_line(const char *line)
{
    const char *path = getenv("SMP_TEST_TIMES");
    const int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (file >= 0 && write(file, line, strlen(line)) < 0)
        fprintf(stderr, "run_test: %s: %s\n", path, strerror(errno));
    if (file >= 0)
        close(file);
}

int main(int argc, char **argv)
{
    if (argc < 7 || strcmp(argv[5], "--") != 0) {
        fprintf(stderr, "usage: run_test NAME LABELS BUDGET_S TRIES -- COMMAND...\n");
        return 2;
    }
    const char *name = argv[1];
    const double budget_s = atof(argv[3]);
    const int tries = atoi(argv[4]);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    char sessions[] = P_tmpdir "/smp-mpi-XXXXXX"; /* short: names of sockets have 107 bytes */
    const int own_sessions = make_sessions(sessions);
    int code = 1;
    double wall_s = 0, processor_s = 0;
    for (int i = 0; i < tries && code != 0 && code != SKIPPED; i++) {
        if (i > 0)
            printf("run_test: %s: code %d, try %d of %d\n", name, code, i + 1, tries);
        fflush(NULL);
        const double wall = now_s(), processor = used_s(RUSAGE_CHILDREN);
        code = run_once(argv + 6);
        end_orphans(name);
        wall_s = now_s() - wall;
        processor_s = used_s(RUSAGE_CHILDREN) - processor;
    }
    if (own_sessions)
        nftw(sessions, remove_entry, MOST_OPEN, FTW_DEPTH | FTW_PHYS);
    char line[512];
    snprintf(line, sizeof line, "%s\t%s\t%.2f\t%.2f\t%d\n", name, argv[2], wall_s, processor_s,
             code);
    write_line(line);
    const double limit_s = SLACK * budget_s;
    if (code == 0 && budget_s > 0 && processor_s > limit_s && !getenv("SMP_TEST_LONG")) {
        const double slower = slowness();
        if (processor_s > limit_s * slower) {
            fprintf(stderr,
                    "run_test: %s took %.1f s of processor time; its budget is %.1f s, here %.1f\n",
                    name, processor_s, budget_s, budget_s * slower);
            code = 1;
        }
    }
    return code;
}
