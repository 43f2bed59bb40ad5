/* The hosts of a job; see the header. */
#include "tools/elastic/hosts/hosts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "graph/base/clock.h"
#include "tools/elastic/hosts/agent_command.h"

static const double connect_s = 20.0; /* for an agent to answer */
static const double margin_s = 1.0;   /* over the limit of ranks, for a host to be heard */
static const double beat_s = 0.5;     /* between words to an agent */
static const double first_pause_s = 1.0, longest_pause_s = 30.0;
static const double forgiven_s = 60.0; /* up for so long, a host begins anew */
static const double remove_s = 10.0, leave_s = 2.0;

static smp_status add_host(smp__hosts *h, const smp__listed_host *listed, bool local)
{
    smp__host *more = realloc(h->host, ((size_t)h->n + 1) * sizeof *more);
    if (!more)
        return smp_fail_memory(sizeof *more);
    h->host = more;
    h->host[h->n] = (smp__host){.name = strdup(listed->name),
                                .devices = listed->devices,
                                .local = local,
                                .listed = true,
                                .link = SMP__NO_LINK,
                                .pause_s = first_pause_s};
    return h->host[h->n++].name ? SMP_OK : smp_fail_memory(SMP__HOST_NAME);
}

/* The supervisor's own host is the first: rank 0 is there. */
static smp_status take_list(smp__hosts *h, const smp__host_list *list)
{
    int own = -1;
    for (int i = 0; i < list->n && own < 0; i++)
        own = smp__host_is_here(list->host[i].name) ? i : -1;
    if (own < 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: this host is not among the %d named: start the job on one of them",
                        h->options.file ? h->options.file : "the batch system", list->n);
    SMP_TRY(add_host(h, &list->host[own], true));
    for (int i = 0; i < list->n; i++)
        if (i != own)
            SMP_TRY(add_host(h, &list->host[i], false));
    return SMP_OK;
}

smp_status smp__hosts_open(const smp__hosts_options *options, smp__hosts *out)
{
    smp__host_list list = {0};
    *out = (smp__hosts){.options = *options, .ranks = {.first_gone = -1}, .lost = -1};
    SMP_TRY(smp__agent_template(options->agent, out->agent, sizeof out->agent));
    if (options->file) {
        (void)stat(options->file, &out->looked);
        SMP_TRY(smp__host_list_read(options->file, &list));
    } else {
        SMP_TRY(smp__host_list_batch(options->gpus, &list));
    }
    smp__listed_host alone = {"localhost", options->devices};
    const smp_status status = list.n > 0 ? take_list(out, &list) : add_host(out, &alone, true);
    smp__host_list_free(&list);
    return status;
}

/* Hosts that the file names now; the devices of those that are known stay what they were. */
static void read_again(smp__hosts *h)
{
    struct stat info;
    smp__host_list list = {0};
    if (!h->options.file || stat(h->options.file, &info) != 0 || info.st_size == 0 ||
        (info.st_ino == h->looked.st_ino && info.st_size == h->looked.st_size &&
         info.st_mtim.tv_sec == h->looked.st_mtim.tv_sec &&
         info.st_mtim.tv_nsec == h->looked.st_mtim.tv_nsec))
        return;
    h->looked = info;
    if (smp__host_list_read(h->options.file, &list) != SMP_OK) {
        h->options.say("%s; the hosts stay as they are", smp_last_error());
        return;
    }
    for (int k = 0; k < h->n; k++)
        h->host[k].listed = false;
    for (int i = 0; i < list.n; i++) {
        int k = 0;
        while (k < h->n && strcmp(h->host[k].name, list.host[i].name) != 0)
            k++;
        if (k == h->n && (h->n >= SMP__HOSTS_MOST || add_host(h, &list.host[i], false) != SMP_OK))
            break;
        h->host[k].listed = true;
        h->host[k].again_s = fmin(h->host[k].again_s, smp_clock_s());
        if (h->host[k].devices != list.host[i].devices)
            h->options.say("%s: host %s has %d devices for this job, not %d, until it is started "
                           "again",
                           h->options.file, h->host[k].name, h->host[k].devices,
                           list.host[i].devices);
    }
    smp__host_list_free(&list);
}

/* Ranks of a host that is lost are. */
static void lose_ranks(smp__hosts *h, int host)
{
    for (int i = 0; i < h->ranks.n; i++) {
        smp__rank *rank = &h->ranks.rank[i];
        if (rank->pid == 0 || rank->host != host || rank->gone)
            continue;
        rank->gone = true;
        h->ranks.first_gone = h->ranks.first_gone < 0 ? i : h->ranks.first_gone;
    }
}

static void lose(smp__hosts *h, int i, const char *why)
{
    smp__host *host = &h->host[i];
    const bool was_up = host->state == SMP__HOST_UP;
    const double now_s = smp_clock_s();
    if (was_up && now_s > host->since_s + forgiven_s)
        host->pause_s = first_pause_s;
    if (was_up || !host->tried)
        h->options.say("host %s %s: %s", host->name, was_up ? "is lost" : "cannot be used", why);
    if (was_up && host->used && h->lost < 0) {
        h->lost = i;
        h->lost_s = host->link.silent_s;
    }
    host->lost = host->lost || was_up;
    lose_ranks(h, i);
    smp__agent_link_cut(&host->link);
    host->state = SMP__HOST_DOWN;
    host->tried = true;
    host->again_s = now_s + host->pause_s;
    host->pause_s = fmin(2.0 * host->pause_s, longest_pause_s);
}

static void start_agent(smp__hosts *h, int i)
{
    smp__host *host = &h->host[i];
    const smp_status status =
        smp__agent_start(&h->options, h->agent, host->name, host->local, &host->link);
    host->since_s = smp_clock_s();
    host->state = SMP__HOST_STARTING;
    if (status != SMP_OK)
        lose(h, i, smp_last_error());
}

/* All devices of a job are of the kind of the local ones. */
static void welcome(smp__hosts *h, int i)
{
    smp__host *host = &h->host[i];
    const bool again = host->tried;
    host->tried = true;
    host->since_s = smp_clock_s();
    if (h->kind[0] == '\0')
        snprintf(h->kind, sizeof h->kind, "%s", host->link.kind);
    host->state = strcmp(h->kind, host->link.kind) == 0 ? SMP__HOST_UP : SMP__HOST_REFUSED;
    if (host->state == SMP__HOST_REFUSED) {
        h->options.say("host %s is not used: it has %s, this one %s", host->name, host->link.kind,
                       h->kind);
        smp__agent_link_say(&host->link, "end");
        smp__agent_link_cut(&host->link); /* nothing is read of it any more */
        return;
    }
    if (again)
        h->options.say("host %s is there again", host->name);
}

typedef struct teller {
    smp__hosts *hosts;
    int host;
} teller;

static void take_rank(void *of, const smp__told_rank *told)
{
    const teller *from = of;
    smp__hosts *h = from->hosts;
    const smp__host *host = &h->host[from->host];
    if (!host->used || host->link.ready != h->incarnation || told->rank < 0 ||
        told->rank >= h->ranks.n || told->pid < 1)
        return;
    smp__rank *rank = &h->ranks.rank[told->rank];
    if (rank->pid == 0) {
        h->ranks.n_known++;
        *rank = (smp__rank){.pid = told->pid, .host = from->host};
    } else if (rank->host != from->host || rank->gone) {
        return;
    }
    rank->step = told->step > rank->step ? told->step : rank->step;
    rank->quiet_s = told->quiet_s;
    rank->gone = !told->lives;
    if (rank->gone && h->ranks.first_gone < 0)
        h->ranks.first_gone = told->rank;
}

static void look_at_host(smp__hosts *h, int i, double elapsed_s)
{
    smp__host *host = &h->host[i];
    teller from = {h, i};
    char why[64];
    if (host->state == SMP__HOST_REFUSED || (host->state == SMP__HOST_DOWN && !host->listed))
        return;
    if (host->state == SMP__HOST_DOWN) {
        if ((host->local || h->kind[0] != '\0') && smp_clock_s() >= host->again_s)
            start_agent(h, i);
        return;
    }
    host->link.silent_s += elapsed_s;
    const bool hears = smp__agent_link_hear(&host->link, take_rank, &from);
    const double limit_s = host->state == SMP__HOST_STARTING ? connect_s
                           : h->options.beat_limit_s > 0.0   ? h->options.beat_limit_s + margin_s
                                                             : INFINITY;
    if (!hears) {
        (void)smp__child_reap(&host->link.child);
        lose(h, i, host->link.why[0] != '\0' ? host->link.why : "its agent has ended");
    } else if (host->link.silent_s > limit_s) {
        snprintf(why, sizeof why, "nothing is heard of it for %.1f s", host->link.silent_s);
        lose(h, i, why);
    } else if (host->state == SMP__HOST_STARTING && host->link.greeted) {
        welcome(h, i);
    } else if (host->state == SMP__HOST_STARTING && host->link.failed >= 0) {
        lose(h, i, host->link.why);
    } else if (!host->listed && !host->used) {
        smp__agent_link_say(&host->link, "end");
        lose(h, i, "it is no longer named");
    }
}

void smp__hosts_look(smp__hosts *h, double elapsed_s)
{
    const double now_s = smp_clock_s();
    const bool says = now_s >= h->said_s + beat_s;
    read_again(h);
    for (int i = 0; i < h->n; i++) {
        if (says && h->host[i].state == SMP__HOST_UP)
            smp__agent_link_say(&h->host[i].link, "beat");
        look_at_host(h, i, elapsed_s);
    }
    if (says)
        h->said_s = now_s;
}

bool smp__hosts_settled(const smp__hosts *h)
{
    for (int i = 0; i < h->n && h->incarnation == 0; i++)
        if (!h->host[i].tried)
            return false;
    return true;
}

bool smp__host_usable(const smp__host *host)
{
    return host->state == SMP__HOST_UP && host->listed;
}

bool smp__hosts_have_state(const smp__hosts *h)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].state == SMP__HOST_UP && h->host[i].link.has_state)
            return true;
    return false;
}

smp_status smp__hosts_begin(smp__hosts *h, int64_t incarnation, int n)
{
    smp__rank *rank = calloc((size_t)n, sizeof *rank);
    if (!rank)
        return smp_fail_memory((size_t)n * sizeof *rank);
    free(h->ranks.rank);
    h->ranks = (smp__ranks){.n = n, .rank = rank, .first_gone = -1};
    h->incarnation = incarnation;
    h->lost = -1;
    for (int i = 0; i < h->n; i++)
        if (h->host[i].used)
            smp__agent_link_say(&h->host[i].link, "watch %lld %d", (long long)incarnation, n);
    return SMP_OK;
}

smp_status smp__hosts_ready(smp__hosts *h, bool *ready)
{
    *ready = true;
    for (int i = 0; i < h->n; i++) {
        smp__host *host = &h->host[i];
        if (!host->used)
            continue;
        const bool failed = host->link.failed == h->incarnation;
        if (failed && host->local)
            return smp_fail(SMP_ERR_FAILED, "host %s: %s", host->name, host->link.why);
        if (failed && host->state == SMP__HOST_UP)
            lose(h, i, host->link.why);
        *ready = *ready && host->state == SMP__HOST_UP && host->link.ready == h->incarnation;
    }
    return SMP_OK;
}

int smp__ranks_quiet(const smp__hosts *h, double limit_s)
{
    for (int i = 0; i < h->ranks.n && limit_s > 0.0; i++) {
        const smp__rank *rank = &h->ranks.rank[i];
        if (rank->pid > 0 && !rank->gone && rank->quiet_s > limit_s)
            return i;
    }
    return -1;
}

void smp__ranks_kill_one(smp__hosts *h, int rank)
{
    if (h->ranks.rank[rank].pid > 0 && !h->ranks.rank[rank].gone)
        smp__agent_link_say(&h->host[h->ranks.rank[rank].host].link, "kill %d", rank);
}

void smp__ranks_kill(smp__hosts *h)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].state == SMP__HOST_UP && h->host[i].used)
            smp__agent_link_say(&h->host[i].link, "kill all");
}

bool smp__ranks_gone(const smp__hosts *h)
{
    for (int i = 0; i < h->ranks.n; i++)
        if (h->ranks.rank[i].pid > 0 && !h->ranks.rank[i].gone)
            return false;
    return true;
}

int64_t smp__ranks_step(const smp__hosts *h)
{
    int64_t most = 0;
    for (int i = 0; i < h->ranks.n; i++)
        most = h->ranks.rank[i].step > most ? h->ranks.rank[i].step : most;
    return most;
}

int smp__hosts_count_polls(const smp__hosts *h)
{
    return 3 * h->n;
}

void smp__hosts_put_polls(const smp__hosts *h, struct pollfd *polls)
{
    for (int i = 0; i < h->n; i++)
        smp__agent_link_put_polls(&h->host[i].link, polls + 3 * (size_t)i);
}

static void pass_tick(void)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    nanosleep(&pause, NULL);
}

smp_status smp__hosts_await(smp__hosts *h, bool (*answered)(const smp__agent_link *link),
                            double limit_s)
{
    const double until_s = smp_clock_s() + limit_s;
    for (bool all = false; !all;) {
        smp__hosts_look(h, 0.0); /* agents that are busy are silent */
        all = true;
        for (int i = 0; i < h->n; i++) {
            if (h->host[i].state != SMP__HOST_UP)
                continue;
            if (h->host[i].link.failed >= 0)
                return smp_fail(SMP_ERR_FAILED, "host %s: %s", h->host[i].name,
                                h->host[i].link.why);
            all = all && answered(&h->host[i].link);
        }
        if (!all && smp_clock_s() > until_s)
            return smp_fail(SMP_ERR_FAILED, "a host does not answer within %g s", limit_s);
        if (!all && h->options.meanwhile)
            SMP_TRY(h->options.meanwhile(h->options.of));
        if (!all)
            pass_tick();
    }
    return SMP_OK;
}

void smp__hosts_say(smp__hosts *h, const char *line)
{
    for (int i = 0; i < h->n; i++) {
        h->host[i].link.failed = -1;
        if (h->host[i].state == SMP__HOST_UP)
            smp__agent_link_say(&h->host[i].link, "%s", line);
    }
}

static bool has_removed(const smp__agent_link *link)
{
    return link->removed;
}

smp_status smp__hosts_remove(smp__hosts *h)
{
    smp__hosts_say(h, "remove");
    return smp__hosts_await(h, has_removed, remove_s);
}

void smp__hosts_close(smp__hosts *h, bool release)
{
    const double until_s = smp_clock_s() + leave_s;
    for (int i = 0; i < h->n && release; i++)
        if (h->host[i].state == SMP__HOST_UP)
            smp__agent_link_say(&h->host[i].link, "end");
    for (int i = 0; i < h->n; i++) {
        smp__host *host = &h->host[i];
        while (release && host->state == SMP__HOST_UP && !smp__child_reap(&host->link.child) &&
               smp_clock_s() < until_s)
            pass_tick();
        if (release || host->state != SMP__HOST_UP)
            smp__agent_link_cut(&host->link);
        else
            smp__agent_link_leave(&host->link);
        free(host->name);
    }
    free(h->host);
    free(h->ranks.rank);
    *h = (smp__hosts){.lost = -1};
}
