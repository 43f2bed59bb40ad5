/* The plans of an elastic job; see the header. */
#include "tools/elastic/plans.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "graph/base/clock.h"
#include "schedule/check/same_bits.h"
#include "tools/elastic/output/events.h"

enum { PATH_BYTES = 4096, REPORT_BYTES = 4096, AHEAD_NICE = 19, MOST_FAILURES = 4 };
static const double again_s = 30.0; /* after a search that failed */
static const double about = 0.9;    /* of what keeps replicas busy, to be as good */
static const double gain = 0.1;     /* of a plan for fewer devices, to be preferred */

int smp__plans_devices(const smp__plans *p, int number)
{
    return number == smp__plans_uneven(p) ? p->uneven.n : number;
}

/* devices: as of smp__plans_uneven; 0: the first. */
static smp_status path_of(const smp__plans *p, int devices, char *path, size_t size)
{
    const bool uneven = devices == smp__plans_uneven(p);
    const int n = devices > 0 ? snprintf(path, size, "%s/planned-for-%d%s%s.yaml", p->folder,
                                         smp__plans_devices(p, devices), uneven ? "-" : "",
                                         uneven ? p->uneven.name : "")
                              : snprintf(path, size, "%s/planned-first.yaml", p->folder);
    return n < (int)size ? SMP_OK : smp_fail(SMP_ERR_INPUT, "%s: the name is too long", p->folder);
}

void smp__plans_set_speeds(smp__plans *p, const smp__speeds *speeds)
{
    const int uneven = smp__plans_uneven(p);
    if (p->uneven.n == speeds->n && strcmp(p->uneven.name, speeds->name) == 0)
        return;
    if (p->child > 0 && p->planned == uneven)
        smp__plans_stop(p);
    free(p->of[uneven].why);
    p->of[uneven] = (smp__known_plan){.state = SMP__PLAN_UNKNOWN};
    p->uneven = *speeds;
    if (speeds->n > 0) /* of an earlier supervisor, or before they were others */
        (void)smp__plans_find(p, uneven);
}

smp_status smp__plans_path(const smp__plans *p, int devices, char *path, size_t size)
{
    /* which may be for more than the job has now */
    const bool first = devices <= p->options->most && devices == smp_plan_processes(p->first);
    return path_of(p, first ? 0 : devices, path, size);
}

smp_status smp__plans_alike_path(const smp__plans *p, int devices, char *path, size_t size)
{
    const int n = snprintf(path, size, "%s/planned-for-%d-as-%016" PRIx64 ".yaml", p->folder,
                           devices, p->like_cuts);
    return n < (int)size ? SMP_OK : smp_fail(SMP_ERR_INPUT, "%s: the name is too long", p->folder);
}

/* The file of a plan, and what is known of it. */
static smp_status path_to(const smp__plans *p, int devices, bool pinned, char path[PATH_BYTES])
{
    return pinned ? smp__plans_alike_path(p, devices, path, PATH_BYTES)
                  : path_of(p, devices, path, PATH_BYTES);
}

static smp__known_plan *known(const smp__plans *p, int devices, bool pinned)
{
    return pinned ? &p->alike[devices] : &p->of[devices];
}

/* Any number of replicas up to the blocks has the same bits; where they do not divide them, some
 * spend one on padding. How much of the time replicas compute, added up over their numbers. */
static double busy_share(int blocks, int devices)
{
    double sum = 0.0;
    for (int ddp = 1; ddp <= devices && ddp <= blocks; ddp++)
        sum += (double)blocks / ((double)ddp * smp_gradient_share(blocks, ddp));
    return sum;
}

/* Blocks cost a replica accumulators, so there are at most two for each device; of those numbers
 * the least that keeps replicas about as busy as any does. It has to divide the micro-batches, and
 * the first plan's replicas have to divide it, which has none idle. */
int smp__plans_choose_blocks(int blocks, int64_t microbatches, int devices)
{
    double most = 0.0;
    int best = blocks;
    for (int b = blocks; b <= 2 * devices; b += blocks)
        if (microbatches % b == 0)
            most = fmax(most, busy_share(b, devices));
    while (best <= 2 * devices &&
           (microbatches % best != 0 || busy_share(best, devices) < about * most))
        best += blocks;
    return best <= 2 * devices ? best : blocks;
}

/* What is planned for: the ranks' device and format, and the operators that they load. */
static smp_options planning_options(const smp__elastic_options *o)
{
    smp_options job = o->partition.job;
    job.model = o->run.common.operand;
    job.runtime.device = o->run.train.job.runtime.device;
    job.runtime.precision = o->run.train.job.runtime.precision;
    job.runtime.plugins = o->run.train.job.runtime.plugins;
    job.runtime.n_plugins = o->run.train.job.runtime.n_plugins;
    return job;
}

/* The plan for all devices; where nothing is said of gradient blocks once more with as many as
 * leave room for fewer replicas, if that fits. */
static smp_status make_first(const smp__plans *p, const char *path)
{
    smp_options job = planning_options(p->options);
    smp_plan_options *o = &job.planning;
    smp_plan *plan = NULL;
    o->devices = p->options->most;
    SMP_TRY(smp_plan_write(&job, path));
    if (o->gradient_blocks > 0)
        return SMP_OK;
    SMP_TRY(smp_plan_read(path, &plan));
    const int blocks = smp_plan_blocks(plan);
    o->gradient_blocks = smp__plans_choose_blocks(blocks, smp_plan_microbatches(plan), o->devices);
    o->microbatch_size = plan->microbatch_size;
    o->global_batch = plan->microbatch_size * smp_plan_microbatches(plan);
    o->microbatches = 0; /* for ddp of the plan alone */
    const bool again = plan->training && o->gradient_blocks != blocks;
    smp_plan_destroy(plan);
    const smp_status status = again ? smp_plan_write(&job, path) : SMP_OK;
    return status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT ? SMP_OK : status;
}

/* Does the number of replicas decide bits? */
static bool decides_ddp(const smp__plans *p)
{
    return p->first->training && (smp_joint_op(p->graph) || smp_wire_is_bf16(p->first->sharding));
}

/* What decides bits is that of the first; where stages lie, and what else is shape, is searched. */
static smp_status make_later(const smp__plans *p, int devices, const char *path)
{
    const smp_plan *first = p->first;
    const int tensor = smp_plan_tensor(first);
    char from[PATH_BYTES];
    smp_options job = planning_options(p->options);
    smp_plan_options *o = &job.planning;
    SMP_TRY(path_of(p, 0, from, sizeof from));
    job.runtime.device = smp_backend_name(first->target.backend);
    job.runtime.precision = smp_precision_name(first->target.precision);
    o->devices = smp__plans_devices(p, devices);
    o->speed = devices == smp__plans_uneven(p) ? p->uneven.speed : NULL;
    o->n_speed = o->devices;
    o->global_batch = first->microbatch_size * smp_plan_microbatches(first);
    o->microbatch_size = first->microbatch_size;
    o->gradient_blocks = smp_plan_blocks(first);
    o->tensor = tensor > 1 ? SMP_DEFAULT : 1;
    o->split_from = tensor > 1 ? from : NULL;
    o->n_split = 0;
    o->stages = o->ddp = o->chunks = o->microbatches = o->group = o->active_microbatches = 0;
    o->weight_lag = o->loading_horizon = o->shard = 0;
    if (decides_ddp(p))
        o->ddp = first->ddp; /* which decides bits, then */
    o->shard_what = o->prefetch = o->node_replicas = SMP_DEFAULT;
    o->schedule_from = NULL;
    o->n_cut_at = 0;
    if (p->pinned) {
        o->fix = p->like; /* with how it splits ops */
        o->split_from = NULL;
        o->tensor = tensor > 1 ? SMP_DEFAULT : 1;
        o->ddp = devices / p->like_unit;
        o->shard = SMP_DEFAULT;
    }
    return smp_plan_write(&job, path);
}

static _Noreturn void plan_in_child(const smp__plans *p, int devices, pid_t parent, int report)
{
    char path[PATH_BYTES];
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (getppid() != parent)
        _exit(1);
    if (p->ahead)
        (void)!nice(AHEAD_NICE);
    smp_status status = path_to(p, devices, p->pinned, path);
    if (status == SMP_OK)
        status = devices > 0 ? make_later(p, devices, path) : make_first(p, path);
    if (status != SMP_OK)
        (void)!write(report, smp_last_error(), strnlen(smp_last_error(), REPORT_BYTES - 1));
    _exit(smp_status_exit_code(status));
}

static void set_none(smp__known_plan *of, const char *why)
{
    free(of->why);
    of->why = strdup(why);
    of->state = SMP__PLAN_NONE;
}

static smp_status begin(smp__plans *p, int devices, bool ahead, bool pinned)
{
    int report[2];
    const pid_t self = getpid();
    p->ahead = ahead;
    p->pinned = pinned;
    if (pipe(report) != 0)
        return smp_fail(SMP_ERR_FAILED, "no pipe for planning: %s", strerror(errno));
    fcntl(report[0], F_SETFD, FD_CLOEXEC);
    fcntl(report[1], F_SETFD, FD_CLOEXEC);
    p->child = fork();
    if (p->child == 0)
        plan_in_child(p, devices, self, report[1]);
    close(report[1]);
    if (p->child < 0) {
        const int error = errno;
        p->child = 0;
        close(report[0]);
        return smp_fail(SMP_ERR_FAILED, "no process for planning: %s", strerror(error));
    }
    p->planned = devices;
    p->report = report[0];
    return SMP_OK;
}

smp_status smp__plans_begin(smp__plans *p, int devices, bool ahead)
{
    return begin(p, devices, ahead, false);
}

smp_status smp__plans_begin_alike(smp__plans *p, int devices)
{
    const smp_status status = begin(p, devices, true, true);
    if (status != SMP_OK) /* the usual one goes */
        set_none(&p->alike[devices], smp_last_error());
    return status;
}

static void forget_child(smp__plans *p)
{
    if (p->report >= 0)
        close(p->report);
    p->report = -1;
    p->child = 0;
}

void smp__plans_stop(smp__plans *p)
{
    if (p->child > 0) {
        kill(p->child, SIGKILL);
        waitpid(p->child, NULL, 0);
    }
    forget_child(p);
}

static uint64_t cuts_of(const smp_plan *plan)
{
    const int degree[] = {plan->pipeline, plan->chunks, smp_plan_tensor(plan)};
    uint64_t cuts = smp_hash(0, degree, sizeof degree);
    for (int s = 0; s < plan->n_stage; s++) {
        cuts = smp_hash(cuts, &plan->stage[s].rank, sizeof plan->stage[s].rank);
        for (int32_t i = 0; i < plan->stage[s].n_op; i++)
            cuts = smp_hash(cuts, plan->stage[s].op[i], strlen(plan->stage[s].op[i]) + 1);
    }
    return cuts;
}

/* The plan in the folder is one, and has the bits of the first. */
static smp_status take_plan(smp__plans *p, int devices, bool pinned)
{
    char path[PATH_BYTES];
    smp__known_plan *of = known(p, devices, pinned);
    smp_plan *plan = NULL;
    smp_text reason = {0};
    bool same = false;
    SMP_TRY(path_to(p, devices, pinned, path));
    SMP_TRY(smp_plan_read(path, &plan));
    smp_status status = smp_same_bits(p->first, plan, &same, &reason);
    if (status == SMP_OK && same)
        status = smp_same_joint_bits(p->first, plan, p->graph, &same, &reason);
    if (status == SMP_OK && same && smp_plan_processes(plan) == smp__plans_devices(p, devices)) {
        of->state = SMP__PLAN_MADE;
        of->step_us = plan->predicted.step_us + plan->predicted.waits_us;
        of->cuts = cuts_of(plan);
    } else if (status == SMP_OK) {
        set_none(of, same ? "it uses fewer devices" : reason.data);
    }
    smp_text_free(&reason);
    smp_plan_destroy(plan);
    return status;
}

static smp_status take_first(smp__plans *p)
{
    char path[PATH_BYTES];
    SMP_TRY(path_of(p, 0, path, sizeof path));
    SMP_TRY(smp_plan_read(path, &p->first));
    SMP_TRY(smp_plan_open_model(p->first, path, 0, &p->graph));
    const int devices = smp_plan_processes(p->first);
    const smp_predicted *predicted = &p->first->predicted;
    if (devices <= p->options->most)
        p->of[devices] = (smp__known_plan){.state = SMP__PLAN_MADE,
                                           .step_us = predicted->step_us + predicted->waits_us,
                                           .cuts = cuts_of(p->first)};
    return SMP_OK;
}

/* The search was killed for memory, for instance: that says nothing of the plan. */
void smp__plans_note_failure(smp__plans *p, int devices, const char *why)
{
    smp__known_plan *of = &p->of[devices];
    of->again_s = smp_clock_s() + again_s;
    if (++of->failures >= MOST_FAILURES)
        set_none(of, why);
    devices = smp__plans_devices(p, devices);
    smp__events_say("planning for %d device%s has failed: %s%s", devices, devices == 1 ? "" : "s",
                    why, of->failures < MOST_FAILURES ? "; it is tried again" : "");
}

bool smp__plans_may_begin(const smp__plans *p, int devices)
{
    return p->of[devices].failures == 0 || smp_clock_s() >= p->of[devices].again_s;
}

smp_status smp__plans_end(smp__plans *p, int status)
{
    char why[REPORT_BYTES] = "";
    const int devices = p->planned;
    const bool ahead = p->ahead;
    const ssize_t n = read(p->report, why, sizeof why - 1);
    why[n > 0 ? n : 0] = '\0';
    forget_child(p);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code < 0)
        snprintf(why, sizeof why, "planning ended by signal %d", WTERMSIG(status));
    if (devices == 0 && code != 0)
        return smp_fail(code == 2   ? SMP_ERR_INPUT
                        : code == 3 ? SMP_ERR_NO_FIT
                                    : SMP_ERR_FAILED,
                        "%s", why);
    if (devices == 0)
        return take_first(p);
    smp__known_plan *of = known(p, devices, p->pinned);
    of->ahead = ahead;
    if (code == 2 || code == 3 || (code != 0 && p->pinned))
        set_none(of, why);
    else if (code != 0)
        smp__plans_note_failure(p, devices, why);
    else if (take_plan(p, devices, p->pinned) != SMP_OK)
        set_none(of, smp_last_error());
    return SMP_OK;
}

/* One that lies in the folder already. */
static bool find_made(smp__plans *p, int devices, bool pinned)
{
    char path[PATH_BYTES];
    smp__known_plan *of = known(p, devices, pinned);
    if (path_to(p, devices, pinned, path) != SMP_OK || access(path, R_OK) != 0 ||
        take_plan(p, devices, pinned) != SMP_OK)
        return false;
    if (of->state == SMP__PLAN_NONE) /* of another job: made anew */
        of->state = SMP__PLAN_UNKNOWN;
    of->ahead = true;
    return of->state != SMP__PLAN_UNKNOWN;
}

bool smp__plans_find(smp__plans *p, int devices)
{
    if (p->of[devices].state != SMP__PLAN_UNKNOWN)
        return true;
    if (smp__plans_devices(p, devices) % smp_plan_tensor(p->first) != 0) {
        set_none(&p->of[devices], "the devices that compute an op together do not divide them");
        return true;
    }
    return find_made(p, devices, false);
}

bool smp__plans_find_alike(smp__plans *p, int devices)
{
    smp__known_plan *alike = &p->alike[devices];
    const smp__known_plan *of = &p->of[devices];
    if (alike->state != SMP__PLAN_UNKNOWN || of->state == SMP__PLAN_UNKNOWN || !p->like)
        return true;
    if (p->like_unit == 0 || devices % p->like_unit != 0 ||
        devices / p->like_unit > smp_plan_blocks(p->first) ||
        (of->state == SMP__PLAN_MADE && of->cuts == p->like_cuts) ||
        (decides_ddp(p) && devices / p->like_unit != p->first->ddp)) {
        set_none(alike, "not with the stages of the plan in use");
        return true;
    }
    return find_made(p, devices, true);
}

static void forget_alike(smp__plans *p)
{
    for (int n = 0; p->alike && n <= p->options->most; n++) {
        free(p->alike[n].why);
        p->alike[n] = (smp__known_plan){.state = SMP__PLAN_UNKNOWN};
    }
}

smp_status smp__plans_use(smp__plans *p, const char *path)
{
    smp_plan *plan = NULL;
    p->like = NULL;
    if (p->pinned) /* ... to those of another plan */
        smp__plans_stop(p);
    SMP_TRY(smp_plan_read(path, &plan));
    const uint64_t cuts = cuts_of(plan);
    if (cuts != p->like_cuts)
        forget_alike(p);
    p->like = path;
    p->like_cuts = cuts;
    p->like_unit = plan->rank_begin ? 0 : plan->pipeline * smp_plan_tensor(plan);
    smp_plan_destroy(plan);
    return SMP_OK;
}

int smp__plans_best(const smp__plans *p, int least, int most)
{
    int best = 0;
    for (int n = most; n >= least; n--)
        if (p->of[n].state == SMP__PLAN_MADE &&
            (best == 0 || p->of[n].step_us < (1.0 - gain) * p->of[best].step_us))
            best = n;
    return best;
}

/* Those of another job, which a later one must not take for its own. */
static void remove_old(const smp__plans *p)
{
    static const char begin[] = "planned-";
    DIR *all = opendir(p->folder);
    for (const struct dirent *entry; all && (entry = readdir(all));)
        if (strncmp(entry->d_name, begin, sizeof begin - 1) == 0)
            unlinkat(dirfd(all), entry->d_name, 0);
    if (all)
        closedir(all);
}

smp_status smp__plans_open(const smp__elastic_options *options, const char *folder, bool known,
                           smp__plans *out)
{
    *out = (smp__plans){.options = options, .folder = folder, .report = -1};
    out->of = calloc((size_t)options->most + 2, sizeof *out->of);
    out->alike = calloc((size_t)options->most + 2, sizeof *out->alike);
    if (!out->of || !out->alike)
        return smp_fail_memory(((size_t)options->most + 2) * sizeof *out->of);
    if (known)
        return take_first(out);
    remove_old(out);
    return SMP_OK;
}

void smp__plans_close(smp__plans *p)
{
    smp__plans_stop(p);
    for (int n = 0; p->of && n <= smp__plans_uneven(p); n++)
        free(p->of[n].why);
    forget_alike(p);
    free(p->of);
    free(p->alike);
    smp_plan_destroy(p->first);
    smp_graph_destroy(p->graph);
    *p = (smp__plans){.report = -1};
}
