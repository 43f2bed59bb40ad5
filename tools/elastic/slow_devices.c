/* Devices of an elastic job that are slower than the others: what ranks tell of them, the speed
 * that is noted, and when another plan pays: one that knows of them, or one without them; see
 * elastic_job.h.
 *
 * A finding is acted upon once it has cost as much as a change would: what lasts for less is passed
 * over, and what lasts costs at most twice of what it has to. Each such change makes the next one
 * dearer, and a device that is left out is tried again after pauses that double. */

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "exec/log/slow_ranks.h"
#include "graph/base/clock.h"
#include "tools/elastic/start_ranks.h"

enum { DOUBLINGS = 5, SEEN_STEPS = 3 * SMP__SLOW_STEPS };
static const double at_a_change = 0.1; /* of a pause, where ranks start anyway */
static const double least_cost_s = 2.0;

static bool is_picked(const smp__elastic_job *job, int slot)
{
    for (int i = 0; i < job->devices; i++)
        if (job->picked[i] == slot)
            return true;
    return false;
}

/* Ranks that take turns on cores are as fast as those let them be, whatever their devices do. */
static bool take_turns(const smp__elastic_job *job)
{
    return !job->hosts.options.gpus &&
           smp__elastic_most_on_host(job) > sysconf(_SC_NPROCESSORS_ONLN);
}

/* Whoever reads events, or goes on with the job, knows the speeds, why ever they are others: a host
 * that has gone and devices that are named anew are forgiven elsewhere. */
static void tell_speeds(smp__elastic_job *job)
{
    bool changed = false;
    for (int i = 0; i < job->slots.n; i++) {
        smp__slot *at = &job->slots.slot[i];
        if (at->speed == at->told_speed)
            continue;
        changed = true;
        at->told_speed = at->speed;
        smp__events_put(&job->events, "slow", "\"device\": %d, \"host\": \"%s\", \"speed\": %.2f",
                        i, job->hosts.host[at->host].name, at->speed > 0.0 ? at->speed : 1.0);
    }
    if (changed)
        smp__elastic_write_record(job);
}

static void note_speed(smp__elastic_job *job, int slot, double speed)
{
    smp__slot *at = &job->slots.slot[slot];
    char name[SMP__SLOT_NAME];
    const double now_s = smp_clock_s();
    smp__slot_name(&job->slots, slot, name);
    if (speed == at->speed)
        return;
    at->times_slow += at->speed == 0.0;
    at->speed = speed;
    at->slow_s = now_s;
    if (is_picked(job, slot))
        job->slow.since_s = now_s;
    if (speed > 0.0)
        smp__events_say("device %s is slow after step %lld: it runs at %.2f of its usual speed",
                        name, (long long)job->rows.at, speed);
    else
        smp__events_say("device %s runs at its usual speed again", name);
    tell_speeds(job);
}

void smp__slow_tell(void *context, int rank, double times)
{
    smp__elastic_job *job = context;
    if (job->options->ignore_slow || rank >= job->devices || take_turns(job))
        return;
    smp__slot *slot = &job->slots.slot[job->picked[rank]];
    slot->slow_in = job->record.incarnation;
    note_speed(job, job->picked[rank], smp__slow_speed(times, slot->speed));
}

/* Those that run and are not told of again are slow no more; those that do not are tried again. */
static void forget_old(smp__elastic_job *job)
{
    const bool runs = job->life == SMP__LIFE_RUN;
    const double now_s = smp_clock_s();
    for (int i = 0; i < job->slots.n; i++) {
        smp__slot *at = &job->slots.slot[i];
        char name[SMP__SLOT_NAME];
        const double pause_s = smp__slow_pause_s(at->times_slow) * (runs ? 1.0 : at_a_change);
        if (at->speed == 0.0 || job->slow.ends)
            continue;
        if (is_picked(job, i)) {
            if (runs && at->slow_in != job->record.incarnation && job->n_marks >= SEEN_STEPS)
                note_speed(job, i, 0.0);
        } else if (now_s >= at->slow_s + pause_s) {
            at->speed = 0.0;
            smp__events_say("device %s, left out for being slow, may be tried again",
                            smp__slot_name(&job->slots, i, name));
        }
    }
}

static void speeds_of(const smp__elastic_job *job, const int *picked, int n, smp__speeds *out)
{
    out->n = n;
    for (int i = 0; i < n; i++) {
        const double speed = job->slots.slot[picked[i]].speed;
        out->speed[i] = speed > 0.0 ? speed : 1.0;
    }
}

void smp__slow_look(smp__elastic_job *job)
{
    int picked[SMP__ELASTIC_DEVICES];
    smp__speeds speeds;
    forget_old(job);
    tell_speeds(job);
    const int n = smp__slots_count(&job->slots);
    smp__slots_pick(&job->slots, n, picked);
    speeds_of(job, picked, n, &speeds);
    smp__speeds_name(&speeds);
    if (speeds.name[0] == '\0')
        speeds.n = 0;
    if (job->plans.of)
        smp__plans_set_speeds(&job->plans, &speeds);
}

void smp__slow_begin(smp__elastic_job *job, int number)
{
    smp__slow_devices *slow = &job->slow;
    const bool uneven = number == smp__plans_uneven(&job->plans);
    slow->planned.n = job->devices;
    for (int i = 0; i < job->devices; i++)
        slow->planned.speed[i] = uneven ? job->plans.uneven.speed[i] : 1.0;
    slow->now = slow->planned;
    slow->now_us = job->moves.step_us;
    slow->since_s = smp_clock_s();
    slow->ends = false;
}

/* Ranks were lost with their host: what these kept, of the two copies, a slow host may have alone,
 * which it is not to be left out with. */
static bool may_hold_alone(const smp__elastic_job *job)
{
    bool slow = false;
    for (int i = 0; i < job->devices; i++) {
        const smp__slot *slot = &job->slots.slot[job->picked[i]];
        slow = slow || (slot->speed > 0.0 && smp__slot_usable(slot));
    }
    return slow && job->lost_host >= 0 && job->options->keep_every > 0;
}

int smp__slow_most(const smp__elastic_job *job)
{
    const int even = smp__slots_even(&job->slots);
    return even >= job->options->least && !may_hold_alone(job) ? even
                                                               : smp__slots_count(&job->slots);
}

static bool are_same(const smp__speeds *a, const smp__speeds *b)
{
    return a->n == b->n && memcmp(a->speed, b->speed, (size_t)a->n * sizeof *a->speed) == 0;
}

double smp__slow_now_us(smp__elastic_job *job)
{
    smp__slow_devices *slow = &job->slow;
    smp__speeds now;
    speeds_of(job, job->picked, job->devices, &now);
    if (are_same(&now, &slow->now))
        return slow->now_us;
    slow->now = now;
    if (are_same(&now, &slow->planned))
        slow->now_us = job->moves.step_us;
    else if (smp__speeds_step(job->plan, &now, &slow->now_us) != SMP_OK)
        slow->now_us = job->moves.step_us / smp__speeds_least(&now);
    return slow->now_us;
}

int smp__slow_wanted(smp__elastic_job *job)
{
    smp__plans *plans = &job->plans;
    const int wanted[] = {smp__plans_uneven(plans), smp__slow_most(job)};
    if (plans->uneven.n == 0)
        return 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!smp__plans_find(plans, wanted[i]) && smp__plans_may_begin(plans, wanted[i]))
            return wanted[i];
    return 0;
}

/* One that runs, or is at hand and does not: the slowest. -1: none is slow. */
static int slowest(const smp__elastic_job *job)
{
    int at = -1;
    for (int i = 0; i < job->slots.n; i++) {
        const double speed = job->slots.slot[i].speed;
        if (smp__slot_usable(&job->slots.slot[i]) && speed > 0.0 &&
            (at < 0 || speed < job->slots.slot[at].speed))
            at = i;
    }
    return at;
}

/* Predicted, of a plan that is made, on the devices that it would get; one for equal devices that
 * gets a slow one waits for that all the time, at most. */
static double step_us_of(const smp__elastic_job *job, int number)
{
    const smp__plans *plans = &job->plans;
    const int slow = slowest(job);
    const bool on_slow =
        slow >= 0 && number != smp__plans_uneven(plans) && number > smp__slots_even(&job->slots);
    return plans->of[number].step_us / (on_slow ? job->slots.slot[slow].speed : 1.0);
}

int smp__slow_best(const smp__elastic_job *job, int even)
{
    const int uneven = smp__plans_uneven(&job->plans);
    if (job->plans.uneven.n == 0 || job->plans.of[uneven].state != SMP__PLAN_MADE)
        return even;
    return even == 0 || step_us_of(job, uneven) < step_us_of(job, even) ? uneven : even;
}

static void say_why(smp__elastic_job *job, int number, double now_us, double then_us)
{
    char name[SMP__SLOT_NAME], now[32], then[32];
    const int slow = slowest(job), n = smp__plans_devices(&job->plans, number);
    const bool without = number != smp__plans_uneven(&job->plans) && slow >= 0;
    smp_text_free(&job->why);
    if (slow >= 0)
        smp_text_append(&job->why, "device %s runs at %.2f of its usual speed",
                        smp__slot_name(&job->slots, slow, name), job->slots.slot[slow].speed);
    else
        smp_text_append(&job->why, "devices run at their usual speed again");
    smp_text_append(&job->why, ": predicted for a step %s as it was, %s on %d device%s%s",
                    smp_format_us(now, sizeof now, now_us),
                    smp_format_us(then, sizeof then, then_us), n, n == 1 ? "" : "s",
                    without ? " without it" : "");
}

int smp__slow_better(smp__elastic_job *job)
{
    const smp__plans *plans = &job->plans;
    const int most = smp__slow_most(job);
    if (slowest(job) < 0 && smp__speeds_least(&job->slow.planned) == 1.0)
        return 0;
    if (plans->of[most].state == SMP__PLAN_UNKNOWN ||
        (plans->uneven.n > 0 && plans->of[smp__plans_uneven(plans)].state == SMP__PLAN_UNKNOWN))
        return 0;
    const int best = smp__slow_best(job, smp__plans_best(plans, job->options->least, most));
    if (best == 0)
        return 0;
    const double now_us = smp__slow_now_us(job), then_us = step_us_of(job, best);
    const double gain = 1.0 - then_us / now_us;
    const int doublings = job->slow.changes < DOUBLINGS ? job->slow.changes : DOUBLINGS;
    const double cost_s = ldexp(fmax(smp__elastic_cost_s(job), least_cost_s), doublings);
    if (gain * job->options->horizon_s <= cost_s ||
        gain * (smp_clock_s() - job->slow.since_s) < cost_s)
        return 0;
    say_why(job, best, now_us, then_us);
    return best;
}
