/* What an elastic job does next: which plan, whether it goes on after a failure, and with which
 * devices; see elastic_job.h.
 *
 * A program that fails by itself fails again: the second such failure within a hundred steps, on
 * another device or on none that is known, ends the job. What is killed from outside may
 * be killed again, a few times, with growing pauses. A device whose processes fail is left out. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/transport/comm.h"
#include "graph/base/clock.h"
#include "tools/elastic/start_ranks.h"

enum { MOST_IN_A_ROW = 5, LONGEST_PAUSE_S = 60 };
static const double usual_cost_s = 5.0; /* of going on, before it is known */

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

void smp__elastic_fail(smp__elastic_job *job, smp_status status)
{
    smp__events_say("%s", smp_last_error());
    smp__events_put(&job->events, "error", "\"exit_code\": %d", smp_status_exit_code(status));
    job->code = smp_status_exit_code(status);
    job->life = SMP__LIFE_OVER;
}

/* Rank 0 writes its rows into memory of this host. */
static bool is_home(const smp__elastic_job *job)
{
    for (int i = 0; i < job->slots.n; i++)
        if (job->hosts.host[job->slots.slot[i].host].local && smp__slot_usable(&job->slots.slot[i]))
            return true;
    return false;
}

/* Why there are too few devices, or what they lack. */
static void wait_for_devices(smp__elastic_job *job, int at_hand)
{
    const smp__elastic_options *o = job->options;
    const char *why = at_hand < o->least ? "-n asks for more"
                      : !is_home(job)    ? "none of them is of this host, where rank 0 is"
                                         : job->plans.of[at_hand].why;
    if (!job->told_few)
        smp__events_say(
            "%d device%s at hand, expected %d to %d: %s; waiting for more, at most %g s "
            "(%s/devices says which are at hand)",
            at_hand, plural(at_hand), o->least, o->most, why ? why : "no plan", o->wait_s,
            job->folder);
    smp__events_put(&job->events, "wait", "\"at_hand\": %d, \"needed\": %d", at_hand, o->least);
    job->told_few = true;
    if (job->life != SMP__LIFE_WAIT)
        job->until_s = smp_clock_s() + o->wait_s;
    job->life = SMP__LIFE_WAIT;
}

/* number: of the plan. */
static smp_status begin_plan(smp__elastic_job *job, int number)
{
    job->life = SMP__LIFE_PLAN;
    if (job->plans.child > 0 && job->plans.planned == number && !job->plans.pinned)
        return SMP_OK; /* whatever its priority: no rank runs beside it */
    const int devices = smp__plans_devices(&job->plans, number);
    smp__plans_stop(&job->plans);
    if (job->recovers)
        smp__events_say("%s; planning for %d device%s", job->why.data ? job->why.data : "", devices,
                        plural(devices));
    return smp__plans_begin(&job->plans, number, false);
}

smp_status smp__elastic_choose(smp__elastic_job *job)
{
    const int least = job->options->least;
    const int at_hand = smp__slots_count(&job->slots);
    if (!job->plans.first)
        return begin_plan(job, 0);
    if (!smp__hosts_settled(&job->hosts))
        return SMP_OK; /* looked at again soon */
    if (at_hand >= least && !is_home(job)) {
        wait_for_devices(job, at_hand);
        return SMP_OK;
    }
    smp__slow_look(job);
    int n = smp__slow_most(job);
    bool later = false;
    for (; n >= least; n--) {
        const bool known = smp__plans_find(&job->plans, n);
        if (!known && smp__plans_may_begin(&job->plans, n))
            return begin_plan(job, n);
        later = later || !known;
        if (job->plans.of[n].state == SMP__PLAN_MADE)
            break;
    }
    const int even = n >= least ? smp__plans_best(&job->plans, least, n) : 0;
    const int best = smp__slow_best(job, even);
    if (best == 0 && later) { /* a search that has failed is tried again */
        job->until_s = smp_clock_s() + 1.0;
        job->life = SMP__LIFE_PAUSE;
        return SMP_OK;
    }
    if (best == 0) {
        wait_for_devices(job, at_hand);
        return SMP_OK;
    }
    smp__plans_stop(&job->plans); /* ahead, for another number */
    job->told_few = false;
    return smp__elastic_start(job, best);
}

double smp__elastic_cost_s(const smp__elastic_job *job)
{
    return job->cost_s > 0.0 ? job->cost_s : usual_cost_s;
}

/* Are more devices so much faster that it pays within the horizon to go on with them? */
static bool pays(smp__elastic_job *job, int devices)
{
    const double now_us = smp__slow_now_us(job), horizon_s = job->options->horizon_s;
    const double then_us = job->plans.of[devices].step_us;
    return smp__going_on_s(smp__elastic_cost_s(job), then_us, now_us, horizon_s) <
           smp__going_on_s(0.0, now_us, now_us, horizon_s);
}

/* Ends the ranks at the end of a step, saved, to go on with others; job->why says why. Without a
 * state in memory what is not saved would be lost: they have all the time they need. */
static void ask_end(smp__elastic_job *job)
{
    const smp_runtime_options *runtime = &job->options->run.train.job.runtime;
    const double save_s = smp__comm_patience(runtime->timeout_save_s, runtime->timeout_s);
    job->recovers = job->reshapes = true;
    job->lost_s = smp_clock_s();
    job->until_s = save_s > 0.0 && job->options->keep_every > 0 ? job->lost_s + save_s : INFINITY;
    job->life = SMP__LIFE_END;
    smp__launcher_signal(&job->launcher, SIGUSR1);
}

enum { N_AHEAD = 4 };
static void list_ahead(const smp__elastic_job *job, int ahead[N_AHEAD])
{
    const int n = job->devices;
    const int list[] = {n - 1, n - smp__elastic_most_on_host(job), n - 2, n / 2};
    memcpy(ahead, list, sizeof list);
}

/* The next plan to have at hand; 0: all are known. */
static int wanted(smp__elastic_job *job)
{
    int ahead[N_AHEAD];
    list_ahead(job, ahead);
    const int n = job->devices;
    const int slow = smp__slow_wanted(job);
    if (slow > 0)
        return slow;
    for (int more = smp__slow_most(job); more > n; more--)
        if (!smp__plans_find(&job->plans, more) && smp__plans_may_begin(&job->plans, more))
            return more;
    for (int i = 0; i < N_AHEAD; i++)
        if (ahead[i] >= job->options->least && !smp__plans_find(&job->plans, ahead[i]) &&
            smp__plans_may_begin(&job->plans, ahead[i]))
            return ahead[i];
    return 0;
}

/* The next one with the stages of the plan in use; between one host and itself nothing moves. */
static int wanted_alike(smp__elastic_job *job)
{
    int ahead[N_AHEAD];
    list_ahead(job, ahead);
    for (int i = 0; i < N_AHEAD && job->hosts.n > 1; i++)
        if (ahead[i] >= job->options->least && !smp__plans_find_alike(&job->plans, ahead[i]))
            return ahead[i];
    return 0;
}

smp_status smp__elastic_look_ahead(smp__elastic_job *job)
{
    if (job->life != SMP__LIFE_RUN || !job->resumed || job->user_end)
        return SMP_OK;
    smp__slow_look(job);
    const int next = wanted(job), idle = smp__slots_count(&job->slots) - job->devices;
    const int best = smp__plans_best(&job->plans, job->devices, smp__slow_most(job));
    if (next <= job->devices && best > job->devices && pays(job, best)) {
        smp_text_free(&job->why);
        smp_text_append(&job->why, "%d devices are at hand", best);
        ask_end(job);
    } else if (smp__slow_better(job) > 0) {
        job->slow.ends = true;
        job->slow.changes++;
        ask_end(job);
    } else if (job->plans.child == 0 && next > 0) {
        if (smp__plans_begin(&job->plans, next, true) != SMP_OK) /* the job does not depend on it */
            smp__plans_note_failure(&job->plans, next, smp_last_error());
    } else if (next <= job->devices && idle > 0 && !job->told_idle) {
        smp__events_say("%d device%s stay%s idle: no plan with more than %d is enough faster", idle,
                        plural(idle), idle == 1 ? "s" : "", job->devices);
        smp__events_put(&job->events, "idle", "\"devices\": %d", idle);
        job->told_idle = true;
    } else if (next == 0 && job->plans.child == 0) {
        const int alike = wanted_alike(job);
        if (alike > 0 && smp__plans_begin_alike(&job->plans, alike) != SMP_OK)
            smp__events_say("%s", smp_last_error());
    }
    return SMP_OK;
}

void smp__elastic_change(smp__elastic_job *job)
{
    int gone = -1;
    char name[SMP__SLOT_NAME];
    for (int i = 0; i < job->devices && gone < 0; i++)
        gone = smp__slot_usable(&job->slots.slot[job->picked[i]]) ? -1 : job->picked[i];
    const int at_hand = smp__slots_count(&job->slots);
    job->slow.ends =
        job->slow.ends && gone < 0 && job->life == SMP__LIFE_END; /* else for devices */
    job->told_idle = false;
    smp__events_put(&job->events, "devices", "\"at_hand\": %d", at_hand);
    if (job->life == SMP__LIFE_WAIT || job->life == SMP__LIFE_PLAN ||
        job->life == SMP__LIFE_PAUSE || job->life == SMP__LIFE_START) {
        job->told_few = false;
        if (job->life == SMP__LIFE_START && gone >= 0)
            job->life = SMP__LIFE_CHOOSE;
        if (job->life == SMP__LIFE_PLAN && job->plans.first)
            job->life = SMP__LIFE_CHOOSE;
        if (job->life == SMP__LIFE_WAIT)
            job->life = SMP__LIFE_CHOOSE;
        return;
    }
    if ((job->life != SMP__LIFE_RUN && job->life != SMP__LIFE_END) || gone < 0 || job->user_end ||
        job->lost_host >= 0)
        return;
    smp_text_free(&job->why);
    smp_text_append(&job->why, "device %s is no longer at hand, %d %s",
                    smp__slot_name(&job->slots, gone, name), at_hand, at_hand == 1 ? "is" : "are");
    job->recovers = job->reshapes = true;
    job->lost_s = job->until_s = smp_clock_s();
    job->life = SMP__LIFE_END;
    smp__ranks_kill(&job->hosts); /* what is lost is lost: no save is waited for */
    if (job->hosts.ranks.n_known < job->hosts.ranks.n)
        smp__launcher_signal(&job->launcher, SIGTERM); /* it kills those that have not beaten */
}

static double step_time(const smp__elastic_job *job)
{
    return job->n_marks > 1 ? (job->mark_s - job->first_mark_s) / (double)(job->n_marks - 1) : 0.0;
}

/* Steps that are computed again do not count. */
static void count_useful(smp__elastic_job *job)
{
    const double fresh = (double)(job->n_marks - job->rows.n_again);
    if (job->n_marks > 0)
        job->events.useful_s +=
            (job->mark_s - job->first_mark_s + step_time(job)) * fresh / (double)job->n_marks;
}

static void put_failure(smp__elastic_job *job, int rank, int slot, int code)
{
    const int signal = job->launcher.told.signal;
    char name[SMP__SLOT_NAME] = "";
    const char *host = job->lost_host >= 0 ? job->hosts.host[job->lost_host].name
                       : slot >= 0         ? job->hosts.host[job->slots.slot[slot].host].name
                                           : "";
    smp_text_free(&job->why);
    if (job->lost_host >= 0)
        smp_text_append(&job->why, "host %s ", host);
    else if (rank >= 0)
        smp_text_append(&job->why, "rank %d (device %s) ", rank,
                        smp__slot_name(&job->slots, slot, name));
    else
        smp_text_append(&job->why,
                        WIFSIGNALED(job->launcher.child.status) ? "the launcher " : "the job ");
    if (job->lost_host >= 0)
        smp_text_append(&job->why, "was lost after step %" PRId64, job->reached);
    else if (job->stalled >= 0)
        smp_text_append(&job->why, "did not beat for %g s after step %" PRId64 " and was killed",
                        job->options->beat_limit_s, job->reached);
    else if (signal > 0 || code > 128)
        smp_text_append(&job->why, "died after step %" PRId64 " (signal %d)", job->reached,
                        signal > 0 ? signal : code - 128);
    else
        smp_text_append(&job->why, "failed after step %" PRId64 " (exit code %d)", job->reached,
                        code);
    smp__events_put(&job->events, "failure",
                    "\"rank\": %d, \"device\": %d, \"step\": %" PRId64
                    ", \"signal\": %d, \"exit_code\": %d, \"stalled\": %s, \"host\": \"%s\", "
                    "\"host_lost\": %s",
                    rank, slot, job->reached, signal, code, job->stalled >= 0 ? "true" : "false",
                    host, job->lost_host >= 0 ? "true" : "false");
}

/* Did the program end itself, rather than somebody else it? */
static bool fails_by_itself(const smp__elastic_job *job, int code)
{
    const int signal = job->launcher.told.signal;
    const bool outside =
        signal == SIGKILL || signal == SIGTERM || signal == SIGHUP || (signal == 0 && code > 128);
    return job->stalled < 0 && job->lost_host < 0 && !outside;
}

static smp_status refuse(const smp__elastic_job *job, const char *why)
{
    return smp_fail(SMP_ERR_FAILED,
                    "%s; %s: the job ends; %s/elastic.yaml and the same command go "
                    "on from there",
                    job->why.data ? job->why.data : "", why, job->folder);
}

static smp_status note_slot(smp__elastic_job *job, int slot)
{
    const int allowed = job->options->failures_allowed;
    if (slot < 0 || !smp__slots_fail(&job->slots, slot, job->rows.last, allowed))
        return SMP_OK;
    char name[SMP__SLOT_NAME];
    const char *host = job->hosts.host[job->slots.slot[slot].host].name;
    smp__events_put(&job->events, "left_out", "\"device\": %d, \"host\": \"%s\"", slot, host);
    smp__events_say("device %s is left out: %d processes have failed there",
                    smp__slot_name(&job->slots, slot, name), job->slots.slot[slot].failures);
    return SMP_OK;
}

/* Is it worth going on? */
static smp_status count_failure(smp__elastic_job *job, int code)
{
    const smp__told *told = &job->launcher.told;
    const bool launcher = WIFSIGNALED(job->launcher.child.status) && !job->killed;
    const bool by_signal = told->signal > 0 || (code > 128 && !launcher);
    const int rank = job->lost_host >= 0                            ? -1
                     : job->stalled >= 0                            ? job->stalled
                     : told->rank >= 0 && told->rank < job->devices ? told->rank
                     : by_signal                                    ? job->hosts.ranks.first_gone
                                                                    : -1;
    const int slot = rank >= 0 && rank < job->devices ? job->picked[rank] : -1;
    const bool moved = job->rows.last > job->failed_last;
    const bool other = slot < 0 || slot != job->failed_slot;
    job->in_a_row = moved ? 1 : job->in_a_row + 1;
    put_failure(job, rank, slot, code);
    job->events.failures++;
    job->record.failures++;
    job->failed_last = job->rows.last;
    job->failed_slot = slot;
    SMP_TRY(note_slot(job, slot));
    if (fails_by_itself(job, code)) {
        const bool again =
            job->own_failures > 0 && job->rows.last < job->own_failed_at + SMP__FORGIVEN_STEPS;
        job->own_failures++;
        job->own_failed_at = job->rows.last;
        if (again && other)
            return refuse(job, "it has failed by itself twice in a hundred steps, and not on one "
                               "device");
    }
    if (job->in_a_row > MOST_IN_A_ROW)
        return refuse(job, "no step between the last failures");
    return SMP_OK;
}

static void pause_or_choose(smp__elastic_job *job)
{
    const int n = job->in_a_row - 2;
    job->paused_s = job->reshapes || n < 0 ? 0.0 : fmin(ldexp(1.0, n), LONGEST_PAUSE_S);
    job->until_s = smp_clock_s() + job->paused_s;
    job->life = job->paused_s > 0.0 ? SMP__LIFE_PAUSE : SMP__LIFE_CHOOSE;
}

static void end(smp__elastic_job *job, int code)
{
    job->code = code;
    job->life = SMP__LIFE_OVER;
}

/* A signal has met a recovery: is what ranks have done in memory, or on the disk? What is in memory
 * is copied to the disk when the job ends. */
static bool is_saved(const smp__elastic_job *job)
{
    smp__saved *list = NULL;
    int n = 0;
    int64_t saved = 0;
    if (job->options->keep_every > 0 &&
        (smp__checkpoint_exists(job->keep) || smp__hosts_have_state(&job->hosts)))
        return true;
    if (smp__checkpoint_list(job->folder, &list, &n) == SMP_OK)
        for (int i = 0; i < n; i++)
            saved = list[i].step > saved ? list[i].step : saved;
    free(list);
    return saved >= job->rows.last;
}

/* All ranks have ended; why: as far as it was asked for. The last step was done a while before. */
static void put_ended(smp__elastic_job *job, int code)
{
    const char *why = code == 0                         ? "done"
                      : job->reshapes && job->slow.ends ? "slow"
                      : job->reshapes                   ? "devices"
                      : job->user_end                   ? "signal"
                                                        : "failure";
    smp__events_put(&job->events, "ended",
                    "\"why\": \"%s\", \"exit_code\": %d, \"step\": %" PRId64
                    ", \"since_step_s\": %.3f, \"detect_s\": %.3f",
                    why, code, job->rows.at, job->n_marks > 0 ? job->ended_s - job->mark_s : 0.0,
                    job->recovers ? job->ended_s - job->lost_s : 0.0);
}

void smp__elastic_judge(smp__elastic_job *job, int code)
{
    const bool lost = job->launcher.told.signal > 0 || job->stalled >= 0 || job->lost_host >= 0;
    job->ended_s = smp_clock_s();
    job->reshapes = job->reshapes && job->lost_host < 0; /* that is told, whatever was under way */
    put_ended(job, code);
    count_useful(job);
    if (code == 0) {
        end(job, code);
    } else if (job->user_end && (code == SMP__EXIT_STOPPED || !job->resumed)) {
        end(job, SMP__EXIT_STOPPED); /* without a step nothing is lost */
    } else if (job->user_end) {
        smp__events_say("ranks were asked to save and end, and ended with exit code %d", code);
        end(job, is_saved(job) ? SMP__EXIT_STOPPED : 1);
    } else if (!lost && (code == 2 || code == 3)) {
        end(job, code); /* bad input stays bad; a rank has said what */
    } else if (job->reshapes) {
        job->events.changes++;
        job->record.changes++;
        pause_or_choose(job);
    } else if (code == SMP__EXIT_STOPPED && job->lost_host < 0) {
        end(job, code); /* somebody has asked a rank */
    } else {
        job->recovers = true;
        const smp_status status = count_failure(job, code);
        if (status != SMP_OK)
            smp__elastic_fail(job, status);
        else
            pause_or_choose(job);
    }
}

void smp__elastic_note_resumed(smp__elastic_job *job)
{
    smp__events *e = &job->events;
    const int64_t from = job->rows.first - 1;
    const int64_t lost = job->reached > from ? job->reached - from : 0;
    const bool memory = job->rows.from_memory;
    const char *source = from == 0 ? "beginning" : memory ? "memory" : "checkpoint";
    const double now_s = job->first_mark_s;
    const double loaded_s = job->loaded_s > 0.0 ? job->loaded_s : now_s;
    double s[SMP__N_PHASE] = {0};
    job->resumed = true;
    if (job->recovers) {
        s[SMP__DETECT] = job->ended_s - job->lost_s;
        s[SMP__PLAN] = job->started_s - job->ended_s - job->paused_s;
        job->cost_s = s[SMP__PLAN] + now_s - job->started_s;
    } else {
        job->cost_s = now_s - job->started_s;
    }
    s[SMP__START] = loaded_s - job->started_s;
    s[SMP__LOAD] = now_s - loaded_s;
    smp__events_put(e, "resumed",
                    "\"incarnation\": %d, \"devices\": %d, \"from\": \"%s\", \"step\": %" PRId64
                    ", \"done\": %" PRId64 ", \"lost_steps\": %" PRId64
                    ", \"detect_s\": %.3f, \"pause_s\": %.3f, \"plan_s\": %.3f, "
                    "\"start_s\": %.3f, \"load_s\": %.3f, \"fetched_bytes\": %.0f",
                    job->record.incarnation, job->devices, source, from, job->rows.at, lost,
                    s[SMP__DETECT], job->recovers ? job->paused_s : 0.0, s[SMP__PLAN],
                    s[SMP__START], s[SMP__LOAD], job->rows.fetched);
    if (!job->recovers)
        return;
    for (int i = 0; i < SMP__N_PHASE; i++)
        e->phase_s[i] += s[i];
    e->steps_lost += lost;
    job->record.steps_lost += lost;
    char moved[64] = "", bytes[32];
    if (job->rows.fetched > 0)
        snprintf(moved, sizeof moved, "; %s came from other hosts",
                 smp_format_bytes(bytes, sizeof bytes, (int64_t)job->rows.fetched));
    smp__events_say("%s; plan for %d device%s%s; going on from %s, step %" PRId64
                    "; %.1f + %.1f + %.1f + %.1f s; lost %" PRId64 " step%s%s",
                    job->why.data ? job->why.data : "", job->devices, plural(job->devices),
                    job->plans.of[job->number].ahead ? " made ahead" : "", source, from,
                    s[SMP__DETECT], s[SMP__PLAN], s[SMP__START], s[SMP__LOAD], lost,
                    lost == 1 ? "" : "s", moved);
    job->recovers = false;
}
