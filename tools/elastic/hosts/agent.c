/* The agent of a host; see the header. One thread; it waits for its supervisor, its ranks and
 * signals, and answers at once, but for the end of processes that it has killed. */
#include "tools/elastic/hosts/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_copy.h"
#include "exec/checkpoint/kept_folder.h"
#include "graph/base/clock.h"
#include "graph/base/text.h"
#include "tools/elastic/hosts/agent_lock.h"
#include "tools/elastic/hosts/host_kind.h"
#include "tools/elastic/hosts/rank_watch.h"

enum { PATH_BYTES = 4096, FIXED_POLLS = 3, PIECE = SMP__AGENT_LINE - 16 };
static const double longest_tick_s = 0.5; /* that counts: the agent may be stopped */
static const double look_s = 1.0;         /* while it is alone */
static const double patience_s = 10.0;    /* with ranks that are about to end */

typedef enum life { SERVES, ALONE, ENDS } life;

typedef struct agent {
    const char *keep;
    double limit_s, keep_for_s;
    smp__agent_lock lock;
    smp__rank_watch watch;
    int signals;
    life life;
    bool released;   /* the supervisor needs it no longer */
    double silent_s; /* of the supervisor */
    smp_text heard, unsent;
    size_t sent; /* bytes of `unsent` */
} agent;

bool smp__agent_asked(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], SMP__AGENT_WORD) == 0;
}

smp_status smp__agent_shared(const char *keep, char *path, unsigned long size)
{
    return snprintf(path, size, "%s-mpi", keep) < (int)size
               ? SMP_OK
               : smp_fail(SMP_ERR_INPUT, "%s: the name is too long", keep);
}

/* What earlier ranks left of what they shared: a launcher that is killed leaves it behind. */
static void sweep(const char *keep)
{
    char path[PATH_BYTES];
    struct stat info;
    if (smp__agent_shared(keep, path, sizeof path) != SMP_OK)
        return;
    const int directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const bool own = directory >= 0 && fstat(directory, &info) == 0 && info.st_uid == geteuid();
    DIR *all = own ? fdopendir(directory) : NULL;
    if (!all) {
        if (directory >= 0)
            close(directory);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(all));)
        unlinkat(dirfd(all), entry->d_name, 0); /* "." and ".." stay */
    closedir(all);
    rmdir(path);
}

static smp_status make_shared(const char *keep)
{
    char path[PATH_BYTES];
    struct stat info;
    SMP_TRY(smp__agent_shared(keep, path, sizeof path));
    sweep(keep);
    if (mkdir(path, 0700) != 0 &&
        (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()))
        return smp_fail(SMP_ERR_INPUT, "%s: cannot be made a folder of this user's", path);
    return SMP_OK;
}

/* Sends what the stream takes; the rest, which is what was asked for, waits. */
static void send_unsent(agent *a)
{
    while (a->sent < a->unsent.length) {
        const ssize_t n =
            write(STDOUT_FILENO, a->unsent.data + a->sent, a->unsent.length - a->sent);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            a->life = a->life == SERVES ? ALONE : a->life;
        if (n <= 0)
            break;
        a->sent += (size_t)n;
    }
    if (a->sent == a->unsent.length)
        a->unsent.length = a->sent = 0;
    if (a->unsent.failed)
        a->life = a->life == SERVES ? ALONE : a->life;
}

/* What went wrong, in one line. */
static void answer_failure(agent *a, int64_t number)
{
    char why[SMP__AGENT_LINE / 2];
    snprintf(why, sizeof why, "%s", smp_last_error());
    for (char *at = why; *at; at++)
        *at = *at == '\n' ? ' ' : *at;
    smp_text_append(&a->unsent, "failed %" PRId64 " %s\n", number, why);
}

static smp_status begin_watch(agent *a, int ranks)
{
    smp__rank_watch_close(&a->watch);
    SMP_TRY(smp__rank_watch_end_orphans(a->keep));
    SMP_TRY(make_shared(a->keep));
    return smp__rank_watch_open(a->keep, ranks, &a->watch);
}

static smp_status remove_kept(const char *keep)
{
    smp__kept_folder *folder = NULL;
    if (access(keep, F_OK) != 0)
        return SMP_OK;
    SMP_TRY(smp__kept_enter(keep, true, patience_s, &folder));
    smp__kept_remove(folder);
    smp__kept_leave(folder);
    return SMP_OK;
}

/* A host has a span for each part of a weight that lies alone: more than a line holds. */
static void tell_state(agent *a, const smp__kept_state *state)
{
    smp_text text = {0};
    size_t at = 0;
    smp__kept_state_print(state, &text);
    for (; text.length - at > PIECE; at += PIECE)
        smp_text_append(&a->unsent, "more %.*s\n", (int)PIECE, text.data + at);
    if (text.failed)
        a->unsent.failed = true;
    else
        smp_text_append(&a->unsent, "state %s\n", text.data + at);
    smp_text_free(&text);
}

static smp_status tell_states(agent *a)
{
    smp__kept_state *states = NULL;
    int n = 0;
    SMP_TRY(smp__kept_states(a->keep, &states, &n));
    for (int i = 0; i < n; i++)
        tell_state(a, &states[i]);
    smp__kept_states_free(states, n);
    smp_text_append(&a->unsent, "states\n");
    return SMP_OK;
}

static smp_status put_state(agent *a, uint64_t id, int64_t step, const char *path)
{
    int64_t bytes = 0;
    const int to = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: %s", path, strerror(errno));
    const smp_status status = smp__kept_put_ranges(a->keep, id, step, to, path, NULL, &bytes);
    close(to);
    if (status == SMP_OK)
        smp_text_append(&a->unsent, "put %" PRId64 "\n", bytes);
    return status;
}

static void take_line(agent *a, const char *line)
{
    int64_t number = 0;
    uint64_t id = 0;
    int ranks = 0, at = 0;
    if (sscanf(line, "watch %" SCNd64 " %d", &number, &ranks) == 2 && ranks > 0 &&
        ranks <= SMP__AGENT_RANKS) {
        if (begin_watch(a, ranks) == SMP_OK)
            smp_text_append(&a->unsent, "ready %" PRId64 " %d\n", number,
                            smp__checkpoint_exists(a->keep));
        else
            answer_failure(a, number);
    } else if (strcmp(line, "kill all") == 0) {
        smp__rank_watch_kill(&a->watch);
    } else if (sscanf(line, "kill %d", &ranks) == 1 && ranks >= 0 && ranks < a->watch.n) {
        smp__rank_watch_kill_one(&a->watch, ranks);
    } else if (strcmp(line, "states") == 0) {
        if (tell_states(a) != SMP_OK)
            answer_failure(a, 0);
    } else if (sscanf(line, "put %" SCNx64 " %" SCNd64 " %n", &id, &number, &at) == 2 && at > 0) {
        if (put_state(a, id, number, line + at) != SMP_OK)
            answer_failure(a, 0);
    } else if (strcmp(line, "remove") == 0) {
        if (remove_kept(a->keep) == SMP_OK)
            smp_text_append(&a->unsent, "removed\n");
        else
            answer_failure(a, 0);
    } else if (strcmp(line, "end") == 0) {
        a->released = true;
        a->life = ENDS;
    }
}

/* What the supervisor says; a line that is too long is not from one. */
static void hear(agent *a)
{
    char block[SMP__AGENT_LINE];
    const ssize_t n = read(STDIN_FILENO, block, sizeof block);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    smp_text_append_bytes(&a->heard, block, n > 0 ? (size_t)n : 0);
    a->silent_s = 0.0;
    size_t at = 0;
    for (char *end; a->heard.length > at &&
                    (end = memchr(a->heard.data + at, '\n', a->heard.length - at)) != NULL;) {
        *end = '\0';
        take_line(a, a->heard.data + at);
        at = (size_t)(end - a->heard.data) + 1;
    }
    if (at > 0)
        memmove(a->heard.data, a->heard.data + at, a->heard.length - at);
    a->heard.length -= at;
    if (a->life == SERVES && (n <= 0 || a->heard.length > SMP__AGENT_LINE || a->heard.failed))
        a->life = ALONE;
}

/* All ranks that have beaten here, unless the supervisor does not take what was said before. */
static void report(agent *a)
{
    if (a->unsent.length > 0)
        return;
    for (int i = 0; i < a->watch.n; i++) {
        const smp__watched *rank = &a->watch.rank[i];
        if (rank->pid > 0)
            smp_text_append(&a->unsent, "rank %d %d %d %" PRId64 " %.0f\n", i, rank->pid,
                            !rank->gone, rank->step, 1e3 * rank->quiet_s);
    }
    smp_text_append(&a->unsent, "beat\n");
}

static void take_signals(agent *a)
{
    struct signalfd_siginfo info;
    while (read(a->signals, &info, sizeof info) == (ssize_t)sizeof info)
        a->life = ENDS; /* a later agent comes: the ranks are its to end */
}

static void serve(agent *a)
{
    struct pollfd *polls = NULL;
    double before_s = smp_clock_s(), reported_s = 0.0;
    while (a->life == SERVES) {
        struct pollfd *more = realloc(polls, ((size_t)a->watch.n + FIXED_POLLS) * sizeof *polls);
        if (!more)
            break;
        polls = more;
        polls[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
        polls[1] = (struct pollfd){.fd = a->signals, .events = POLLIN};
        polls[2] =
            (struct pollfd){.fd = a->unsent.length > 0 ? STDOUT_FILENO : -1, .events = POLLOUT};
        const int ranks = smp__rank_watch_put_polls(&a->watch, polls + FIXED_POLLS);
        const int ready = poll(polls, (nfds_t)(FIXED_POLLS + ranks), SMP__AGENT_EVERY_MS / 2);
        const double now_s = smp_clock_s();
        const double tick_s = now_s - before_s < longest_tick_s ? now_s - before_s : longest_tick_s;
        before_s = now_s;
        const bool gone =
            ready > 0 && smp__rank_watch_take_polls(&a->watch, polls + FIXED_POLLS, ranks);
        smp__rank_watch_look(&a->watch, tick_s);
        a->silent_s += tick_s;
        if (ready > 0 && polls[1].revents)
            take_signals(a);
        if (ready > 0 && polls[0].revents && a->life == SERVES)
            hear(a);
        if (gone || now_s >= reported_s + 1e-3 * SMP__AGENT_EVERY_MS) {
            report(a);
            reported_s = now_s;
        }
        send_unsent(a);
        if (a->life == SERVES && a->limit_s > 0.0 && a->silent_s > a->limit_s)
            a->life = ALONE;
    }
    free(polls);
}

/* Nobody is told of anything any more: the streams are not what keeps a connection open. */
static void leave_streams(void)
{
    const int null = open("/dev/null", O_RDWR);
    for (int i = 0; null >= 0 && i <= STDERR_FILENO; i++)
        dup2(null, i);
    if (null > STDERR_FILENO)
        close(null);
}

/* The memory is there for a supervisor that comes again, as long as this process is. */
static void hold(agent *a)
{
    struct pollfd wait = {.fd = a->signals, .events = POLLIN};
    const double until_s = smp_clock_s() + a->keep_for_s;
    smp__rank_watch_kill(&a->watch);
    leave_streams();
    for (double left_s; (left_s = until_s - smp_clock_s()) > 0.0;)
        if (poll(&wait, 1, (int)(1e3 * (left_s < look_s ? left_s : look_s)) + 1) > 0)
            return;
    if (remove_kept(a->keep) == SMP_OK) /* unless another job of the user's has it by now */
        sweep(a->keep);
}

static smp_status open_agent(agent *a)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    a->signals = sigprocmask(SIG_BLOCK, &ends, NULL) == 0
                     ? signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK)
                     : -1;
    if (a->signals < 0)
        return smp_fail(SMP_ERR_FAILED, "signals: %s", strerror(errno));
    SMP_TRY(smp__rank_watch_check());
    SMP_TRY(smp__agent_lock_take(a->keep, &a->lock));
    SMP_TRY(smp__rank_watch_end_orphans(a->keep));
    return make_shared(a->keep); /* where ranks cannot be prepared for none are asked for */
}

int smp__agent(int argc, char **argv)
{
    char kind[SMP__KIND_BYTES];
    agent a = {.watch = {.directory = -1}, .signals = -1, .lock = {.file = -1}};
    if (argc != 6 || argv[2][0] != '/' || !smp_parse_double(argv[3], &a.limit_s) ||
        !smp_parse_double(argv[4], &a.keep_for_s)) {
        fprintf(stderr, "smp-run: " SMP__AGENT_WORD " is for smp-run --elastic\n");
        return 2;
    }
    a.keep = argv[2];
    fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK);
    if (open_agent(&a) == SMP_OK) {
        smp__host_kind(argv[5], kind, sizeof kind);
        smp_text_append(&a.unsent, SMP__AGENT_HELLO "%s\n", kind);
        serve(&a);
    } else {
        answer_failure(&a, 0);
        send_unsent(&a);
        a.life = ENDS;
    }
    if (a.life == ALONE)
        hold(&a);
    else if (a.released)
        sweep(a.keep);
    smp__rank_watch_close(&a.watch);
    smp__agent_lock_drop(&a.lock);
    smp_text_free(&a.heard);
    smp_text_free(&a.unsent);
    return 0;
}
