/* The supervisor: one thread, one loop, which waits for signals, children, pipes and the end of
 * ranks, and looks at files in between; see the header. */
#include "tools/elastic/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exec/checkpoint/kept_folder.h"
#include "exec/log/step_log.h"
#include "exec/transport/comm.h"
#include "graph/base/clock.h"
#include "tools/elastic/output/outlet.h"
#include "tools/elastic/start_ranks.h"
#include "tools/elastic/hosts/user_signals.h"

enum { TICK_MS = 50, FIXED_POLLS = 3, PATH_BYTES = 4096 };
static const double longest_tick_s = 0.5; /* that counts as quiet: the supervisor may be stopped */
static const double grace_s = 10.0;       /* for all ranks to end after the first has, */
static const double short_grace_s = 0.3;  /* ... before the last step: to say what they know */
static const double launcher_s = 5.0;     /* for the launcher to end after its ranks */
static const double ask_again_s = 0.5;    /* between signals to ranks that start */

bool smp__elastic_asked(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--elastic") == 0)
            return true;
    return false;
}

/* The folder of kept states: the user's, or one by the name of DIR in memory. */
static smp_status name_keep(smp__elastic_job *job)
{
    char path[SMP__CHECKPOINT_PATH_BYTES];
    SMP_TRY(smp__kept_default(job->folder, path));
    job->keep = strdup(job->options->keep_in ? job->options->keep_in : path);
    if (!job->keep)
        return smp_fail_memory(sizeof path);
    for (size_t n = strlen(job->keep); n > 1 && job->keep[n - 1] == '/'; n--)
        job->keep[n - 1] = '\0'; /* names of files beside it are made of its own */
    return SMP_OK;
}

static smp_status name_files(smp__elastic_job *job)
{
    const smp_train_options *train = &job->options->run.train;
    char program[PATH_BYTES];
    SMP_TRY(smp__checkpoint_folder_make(train->checkpoint));
    job->folder = realpath(train->checkpoint, NULL);
    if (!job->folder)
        return smp_fail(SMP_ERR_INPUT, "%s: %s", train->checkpoint, strerror(errno));
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n < 0)
        return smp_fail(SMP_ERR_FAILED, "/proc/self/exe: %s", strerror(errno));
    program[n] = '\0';
    job->program = strdup(program);
    const char *gpus = getenv("CUDA_VISIBLE_DEVICES");
    job->gpus = gpus ? strdup(gpus) : NULL;
    job->picked = calloc((size_t)job->options->most, sizeof *job->picked);
    if (!job->program || !job->picked)
        return smp_fail_memory(PATH_BYTES);
    if (train->resume && !train->resume_auto && !smp__checkpoint_exists(job->folder))
        return smp_fail(SMP_ERR_INPUT, "--resume: %s: nothing is saved there", train->checkpoint);
    return name_keep(job);
}

/* As of a run without a supervisor: a new job goes on with what it finds only if that is asked for.
 */
static smp_status check_new(const smp__elastic_job *job)
{
    const smp_train_options *train = &job->options->run.train;
    const bool kept = job->options->keep_every > 0 && smp__checkpoint_exists(job->keep);
    if (!train->resume && smp__checkpoint_exists(job->folder))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: holds a checkpoint already, and no elastic.yaml: continue it with "
                        "--resume or choose another directory",
                        job->folder);
    if (!train->resume && kept)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: holds the state of a run that was not ended: continue it with "
                        "--resume=auto, remove it, or choose another folder by --keep-in",
                        job->keep);
    const bool begins = !kept && !smp__checkpoint_exists(job->folder);
    return begins && train->log ? smp__step_log_check_new(train->log) : SMP_OK;
}

static smp_status open_hosts(smp__elastic_job *job)
{
    const smp__elastic_options *o = job->options;
    const char *device = o->run.train.job.runtime.device;
    const smp__hosts_options options = {.file = o->hosts,
                                        .agent = o->agent,
                                        .devices = o->most,
                                        .gpus = device && strcmp(device, "cpu") != 0,
                                        .program = job->program,
                                        .keep = job->keep,
                                        .beat_limit_s = o->beat_limit_s,
                                        .keep_for_s = o->keep_for_s,
                                        .say = smp__events_say,
                                        .meanwhile = smp__elastic_meanwhile,
                                        .of = job};
    return smp__hosts_open(&options, &job->hosts);
}

/* What an earlier supervisor has left, or a new job. */
static smp_status open_job(smp__elastic_job *job)
{
    const smp__elastic_options *o = job->options;
    smp_text path = {0};
    bool found = false;
    SMP_TRY(smp__events_open(o->events, &job->events));
    SMP_TRY(name_files(job));
    SMP_TRY(open_hosts(job));
    SMP_TRY(smp__elastic_take_folder(job)); /* no agent is started yet */
    smp_text_append(&path, "%s-rows", job->keep);
    smp_status status = path.failed ? smp_fail_memory(1) : smp__rows_open(path.data, &job->rows);
    smp_text_free(&path);
    SMP_TRY(status);
    SMP_TRY(smp__slots_open(job->folder, o->most, &job->hosts, &job->slots));
    SMP_TRY(smp__record_read(job->folder, o->planning.data, &job->record, &job->slots, &found));
    if (job->record.incarnation == 0)
        SMP_TRY(check_new(job));
    job->rows.tell_pace = smp__slow_tell;
    job->rows.context = job;
    SMP_TRY(smp__rows_take(&job->rows, job->record.job, job->record.rows));
    smp__slots_look(&job->slots);
    job->failed_last = job->reached = job->rows.last;
    smp__events_put(
        &job->events, "begin",
        "\"starts\": %d, \"step\": %" PRId64 ", \"least\": %d, \"most\": %d, \"at_hand\": %d",
        job->record.incarnation, job->rows.last, o->least, o->most, smp__slots_count(&job->slots));
    if (job->record.incarnation > 0)
        smp__events_say("%s/elastic.yaml: goes on with a job that was started %d time%s before",
                        job->folder, job->record.incarnation,
                        job->record.incarnation == 1 ? "" : "s");
    return smp__plans_open(o, job->folder, job->record.incarnation > 0, &job->plans);
}

bool smp__elastic_write_record(smp__elastic_job *job)
{
    job->record.rows = smp__rows_printed(&job->rows) ? job->rows.last : job->rows.row;
    if (job->ousted)
        return false;
    const smp_status status =
        smp__record_write(job->folder, job->options->planning.data, &job->record, &job->slots,
                          job->picked, job->devices);
    if (status != SMP_OK)
        smp__events_say("%s", smp_last_error());
    return status == SMP_OK;
}

static bool runs(const smp__elastic_job *job)
{
    return job->life == SMP__LIFE_RUN || job->life == SMP__LIFE_END;
}

static void kill_all(smp__elastic_job *job)
{
    smp__ranks_kill(&job->hosts);
    smp__child_kill(&job->launcher.child);
}

/* Ranks save and end; the second signal ends them at once. */
static void take_signal(smp__elastic_job *job, int number)
{
    smp__events_put(&job->events, "signal", "\"signal\": %d", number);
    if (!runs(job)) {
        job->code = SMP__EXIT_STOPPED;
        job->life = SMP__LIFE_OVER;
    } else if (job->user_end) {
        kill_all(job);
    } else {
        job->user_end = true;
        job->reshapes = false;
        job->ask_again = true;
    }
}

/* Ranks save and end. While they start, the signal may reach mpirun before it passes signals on, or
 * before there are ranks: it is sent again until all are there. Then once is enough, and another
 * one could meet ranks that are about to end. */
static void ask_ranks(smp__elastic_job *job)
{
    const bool all_there = job->loaded_s > 0.0 || job->resumed;
    const double now_s = smp_clock_s();
    if (!job->ask_again || job->hosts.ranks.first_gone >= 0 ||
        (!all_there && now_s < job->asked_s + ask_again_s))
        return;
    job->asked_s = now_s;
    job->ask_again = !all_there;
    smp__launcher_signal(&job->launcher, SIGUSR1);
}

static void take_signals(smp__elastic_job *job)
{
    for (int number; (number = smp__user_signals_take(job->signals)) > 0;)
        take_signal(job, number);
}

/* A rank is lost: its launcher has a while to say how and to end. */
static void note_loss(smp__elastic_job *job, double before_s)
{
    if (job->recovers && job->lost_s > job->started_s)
        return;
    job->recovers = true;
    job->paused_s = 0.0;
    job->noticed_s = smp_clock_s();
    job->lost_s = job->noticed_s - before_s;
    job->until_s = job->noticed_s + grace_s;
}

/* Is the end of a rank no end of the job? Of passes over the data the last step is not known. */
static bool is_early(const smp__elastic_job *job)
{
    const smp_train_options *train = &job->options->run.train;
    return !job->user_end && !job->reshapes && train->epochs == 0 &&
           smp__ranks_step(&job->hosts) < train->steps && job->rows.last < train->steps;
}

/* The launcher hangs before there are ranks: it is killed. Without beats that cannot be told. */
static void look_at_start(smp__elastic_job *job)
{
    const smp_runtime_options *runtime = &job->options->run.train.job.runtime;
    const double start_s = smp__comm_patience(runtime->timeout_start_s, runtime->timeout_s);
    if (job->options->keep_every == 0 || start_s <= 0.0 || job->hosts.ranks.n_known > 0 ||
        job->resumed || job->killed || job->launcher.child.ended ||
        smp_clock_s() < job->started_s + start_s)
        return;
    smp__events_say("no rank has beaten within %g s (--timeout-start): the launcher is killed",
                    start_s);
    note_loss(job, start_s);
    job->killed = true;
    kill_all(job);
}

/* A host is lost, and its ranks are: nothing more is heard of them. */
static void look_at_lost_host(smp__elastic_job *job)
{
    if (job->hosts.lost < 0 || job->lost_host >= 0)
        return;
    job->lost_host = job->hosts.lost;
    job->recovers = job->recovers && !job->reshapes; /* it begins now, whatever is under way */
    note_loss(job, job->hosts.lost_s);
    job->killed = true;
    kill_all(job);
}

/* By its agent, or by the launcher, which may hang where one is killed before it has beaten. */
static bool is_rank_gone(const smp__elastic_job *job)
{
    return job->hosts.ranks.first_gone >= 0 || job->launcher.told.signal > 0;
}

static void look_at_ranks(smp__elastic_job *job)
{
    const smp__ranks *ranks = &job->hosts.ranks;
    if (job->loaded_s == 0.0 && (job->rows.loaded || ranks->n_known == ranks->n))
        job->loaded_s = smp_clock_s();
    const int quiet = smp__ranks_quiet(&job->hosts, job->options->beat_limit_s);
    if (quiet >= 0 && job->stalled < 0) {
        job->stalled = quiet;
        note_loss(job, ranks->rank[quiet].quiet_s);
        smp__ranks_kill_one(&job->hosts, quiet);
    }
    if (!is_rank_gone(job) || job->launcher.child.ended)
        return;
    note_loss(job, 0.0);
    job->until_s = fmin(job->until_s, smp_clock_s() + grace_s);
    if (!job->killed && (job->stalled >= 0 || is_early(job)))
        job->until_s = fmin(job->until_s, job->noticed_s + short_grace_s);
}

static smp_status read_rows(smp__elastic_job *job)
{
    const int64_t before = job->rows.at, again = job->rows.n_again;
    SMP_TRY(smp__rows_read(&job->rows));
    if (job->rows.at == before && job->rows.n_again == again)
        return SMP_OK;
    job->mark_s = smp_clock_s();
    job->n_marks = job->rows.at - job->rows.first + 1;
    if (job->resumed)
        smp__events_steps(&job->events, job->rows.at);
    if (!job->resumed) {
        job->first_mark_s = job->mark_s;
        smp__elastic_note_resumed(job);
        smp__elastic_write_record(job);
    }
    return SMP_OK;
}

/* A rank does not end although it is killed: it waits in the kernel, for a disk or a driver. */
static smp_status fail_living(const smp__elastic_job *job)
{
    const smp__ranks *ranks = &job->hosts.ranks;
    char name[SMP__SLOT_NAME];
    int i = 0;
    while (i < ranks->n - 1 && (ranks->rank[i].pid == 0 || ranks->rank[i].gone))
        i++;
    return smp_fail(SMP_ERR_FAILED,
                    "process %d, rank %d on device %s, is killed and has not ended within %g s: "
                    "the job ends; the same command goes on once it is gone",
                    ranks->rank[i].pid, i, smp__slot_name(&job->slots, job->picked[i], name),
                    grace_s);
}

/* The launcher is gone: so are its ranks, or they are killed. What they have said counts. */
static smp_status end_incarnation(smp__elastic_job *job)
{
    note_loss(job, 0.0);
    if (!smp__ranks_gone(&job->hosts)) {
        smp__ranks_kill(&job->hosts);
        job->left_s = job->left_s > 0.0 ? job->left_s : smp_clock_s();
        return smp_clock_s() < job->left_s + grace_s ? SMP_OK : fail_living(job);
    }
    SMP_TRY(read_rows(job));
    if (smp__launcher_code(&job->launcher) == 0) {
        smp__rows_end_line(&job->rows);
        SMP_TRY(read_rows(job));
    }
    smp__launcher_read(&job->launcher);
    job->reached = job->rows.last;
    smp__elastic_judge(job, smp__launcher_code(&job->launcher));
    smp__launcher_close(&job->launcher);
    if (job->life != SMP__LIFE_OVER)
        smp__elastic_write_record(job);
    return SMP_OK;
}

/* Children that have ended. */
static smp_status reap(smp__elastic_job *job)
{
    int status = 0;
    if (job->plans.child > 0 && waitpid(job->plans.child, &status, WNOHANG) > 0) {
        const int number = job->plans.planned;
        SMP_TRY(smp__plans_end(&job->plans, status));
        const smp__known_plan *of = job->plans.pinned ? job->plans.alike : job->plans.of;
        const bool made = number == 0 || of[number].state == SMP__PLAN_MADE;
        smp__events_put(&job->events, "plan",
                        "\"devices\": %d, \"made\": %s, \"ahead\": %s, \"alike\": %s",
                        number > 0 ? smp__plans_devices(&job->plans, number) : job->options->most,
                        made ? "true" : "false", job->plans.ahead ? "true" : "false",
                        job->plans.pinned ? "true" : "false");
        if (job->life == SMP__LIFE_PLAN)
            job->life = SMP__LIFE_CHOOSE;
    }
    (void)smp__child_reap(&job->launcher.child);
    return SMP_OK;
}

/* The ranks, then the launcher, which says who was first. */
static void end_late(smp__elastic_job *job)
{
    if (job->launcher.child.ended || smp_clock_s() <= job->until_s)
        return;
    if (job->killed)
        kill_all(job);
    smp__ranks_kill(&job->hosts);
    job->killed = true;
    job->until_s = fmax(job->until_s, smp_clock_s() + launcher_s);
}

/* Agents, and what they tell; the event of each host that comes or goes. */
static smp_status look_at_hosts(smp__elastic_job *job, double elapsed_s)
{
    static const char *const state[] = {"lost", "starting", "up", "refused"};
    smp__hosts *hosts = &job->hosts;
    smp__hosts_look(hosts, elapsed_s);
    for (int i = 0; i < hosts->n && hosts->n > 1; i++) {
        smp__host *host = &hosts->host[i];
        if (host->state == host->told || host->state == SMP__HOST_STARTING)
            continue;
        smp__events_put(&job->events, "host", "\"host\": \"%s\", \"state\": \"%s\"", host->name,
                        state[host->state]);
        host->told = host->state;
    }
    if (hosts->host[0].tried && hosts->kind[0] == '\0')
        return smp_fail(SMP_ERR_FAILED, "this host cannot be used, the job ends");
    if (runs(job))
        look_at_lost_host(job);
    return SMP_OK;
}

/* Agents are ready for the ranks. */
static smp_status launch(smp__elastic_job *job)
{
    bool ready;
    SMP_TRY(smp__hosts_ready(&job->hosts, &ready));
    if (!ready)
        return SMP_OK;
    SMP_TRY(smp__elastic_launch(job));
    smp__elastic_write_record(job);
    return SMP_OK;
}

/* One round of what does not wait. */
static smp_status advance(smp__elastic_job *job, double elapsed_s)
{
    (void)smp__outlet_flush(STDERR_FILENO);
    SMP_TRY(smp__elastic_renew(job));
    SMP_TRY(smp__rows_print(&job->rows));
    SMP_TRY(reap(job));
    SMP_TRY(look_at_hosts(job, elapsed_s));
    if (smp__slots_look(&job->slots))
        smp__elastic_change(job);
    if (runs(job)) {
        smp__launcher_read(&job->launcher);
        SMP_TRY(read_rows(job));
        look_at_ranks(job);
        look_at_start(job);
        ask_ranks(job);
        if (job->life == SMP__LIFE_END || is_rank_gone(job))
            end_late(job);
        if (job->launcher.child.ended)
            SMP_TRY(end_incarnation(job));
    }
    const bool over = smp_clock_s() > job->until_s;
    if (job->life == SMP__LIFE_PAUSE && over)
        job->life = SMP__LIFE_CHOOSE;
    if (job->life == SMP__LIFE_WAIT && over)
        return smp_fail(SMP_ERR_NO_FIT,
                        "no %d devices within %g s: the job ends; the same command "
                        "goes on once there are more",
                        job->options->least, job->options->wait_s);
    if (job->life == SMP__LIFE_CHOOSE)
        SMP_TRY(smp__elastic_choose(job));
    if (job->life == SMP__LIFE_START)
        SMP_TRY(launch(job));
    return smp__elastic_look_ahead(job);
}

/* Waits for what comes first, or a tick. polls: grows with the hosts. */
static smp_status wait_events(smp__elastic_job *job, struct pollfd **polls)
{
    const int hosts = smp__hosts_count_polls(&job->hosts);
    struct pollfd *more = realloc(*polls, (size_t)(hosts + FIXED_POLLS) * sizeof *more);
    int n = 0;
    if (!more)
        return smp_fail_memory((size_t)(hosts + FIXED_POLLS) * sizeof *more);
    *polls = more;
    more[n++] = (struct pollfd){.fd = job->signals, .events = POLLIN};
    if (runs(job)) { /* a descriptor of -1 is passed over */
        smp__launcher_put_polls(&job->launcher, more + n);
        n += 2;
    }
    smp__hosts_put_polls(&job->hosts, more + n);
    (void)poll(more, (nfds_t)(n + hosts), TICK_MS);
    return SMP_OK;
}

/* Nothing of the job runs any more, on hosts that answer. */
static void stop_all(smp__elastic_job *job)
{
    const double until_s = smp_clock_s() + grace_s;
    const struct timespec pause = {.tv_nsec = 2000000};
    smp__plans_stop(&job->plans);
    if (job->launcher.child.pid == 0)
        return;
    while (smp_clock_s() < until_s) {
        kill_all(job);
        const bool ended = smp__child_reap(&job->launcher.child);
        smp__hosts_look(&job->hosts, 0.0);
        if (ended && smp__ranks_gone(&job->hosts))
            break;
        nanosleep(&pause, NULL);
    }
    smp__launcher_close(&job->launcher);
}

static void watch(smp__elastic_job *job)
{
    struct pollfd *polls = NULL;
    double before_s = smp_clock_s();
    while (job->life != SMP__LIFE_OVER) {
        smp_status status = wait_events(job, &polls);
        const double now_s = smp_clock_s();
        take_signals(job);
        if (job->life == SMP__LIFE_OVER)
            break;
        if (status == SMP_OK)
            status = advance(job, fmin(now_s - before_s, longest_tick_s));
        before_s = now_s;
        if (status != SMP_OK)
            smp__elastic_fail(job, status);
    }
    free(polls);
    stop_all(job);
}

static int supervise(const smp__elastic_options *options)
{
    smp__elastic_job job = {.options = options,
                            .events = {.file = -1},
                            .rows = {.file = -1},
                            .plans = {.report = -1},
                            .launcher = {.child = SMP__NO_CHILD},
                            .hosts = {.lost = -1},
                            .lost_host = -1,
                            .stalled = -1,
                            .failed_slot = -1,
                            .signals = smp__user_signals_open()};
    const smp_status status =
        job.signals < 0 ? smp_fail(SMP_ERR_FAILED, "signals: %s", strerror(errno)) : open_job(&job);
    const bool opened = status == SMP_OK;
    if (opened)
        watch(&job);
    else
        smp__elastic_fail(&job, status);
    if (!opened && job.user_end)
        job.code = SMP__EXIT_STOPPED;
    smp__elastic_close(&job, opened);
    return job.code;
}

int smp__elastic(int argc, char **argv)
{
    smp__elastic_options options;
    smp_status status = smp__elastic_options_read(argc, argv, &options);
    int code;
    if (status == SMP_OK && !smp_options_answer(&options.table, &options, &status))
        code = supervise(&options);
    else
        code = smp_options_end(&options.table, status);
    smp__elastic_options_free(&options);
    return code;
}
