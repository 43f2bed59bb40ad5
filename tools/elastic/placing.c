/* Which plan for so many devices, and which hosts have which ranks. On one host nothing moves;
 * without states in memory all ranks read the disk. */
#include <stdio.h>
#include <stdlib.h>

#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/optimizer/optimizer.h"
#include "tools/elastic/elastic_job.h"

/* A plan, and what comes of it. Zero-initialise. */
typedef struct way {
    char path[4096];
    double step_us;
    smp__move move;
} way;

/* Plans for equal devices have no slow one: there are enough others (may_move). */
static bool is_taken(const smp__slot *slot)
{
    return smp__slot_usable(slot) && slot->speed == 0.0;
}

/* false: there are too many. */
static bool find_places(const smp__slots *slots, int devices, smp__places *p)
{
    *p = (smp__places){0};
    for (int i = 0, left = devices; i < slots->n; i++) {
        const smp__slot *slot = &slots->slot[i];
        if (!is_taken(slot))
            continue;
        if (p->n == 0 || p->host[p->n - 1] != slot->host) {
            if (p->n == SMP__MOVE_HOSTS)
                return false;
            p->host[p->n++] = slot->host;
        }
        p->slots[p->n - 1]++;
        p->ranks[p->n - 1] += left > 0;
        p->n_used = left > 0 ? p->n : p->n_used;
        left--;
    }
    return true;
}

static smp_status weigh(const smp__elastic_job *job, const smp__places *p, way *w)
{
    const char *name = job->options->run.train.job.optimizer.name;
    const smp_optimizer *optimizer = smp_optimizer_find(name ? name : "adamw");
    smp_plan *plan = NULL;
    if (!optimizer)
        return smp_fail(SMP_ERR_INPUT, "no optimizer is called '%s'", name);
    SMP_TRY(smp_plan_read(w->path, &plan));
    const smp_status status = smp__moves_weigh(&job->moves, p, plan, job->plans.graph,
                                               optimizer->states, optimizer->keep, &w->move);
    smp_plan_destroy(plan);
    return status;
}

static void pick(const smp__slots *slots, const smp__places *p, const int *host_of, int devices,
                 int *picked)
{
    for (int at = 0, n = 0; at < p->n && n < devices; at++)
        for (int i = 0; i < slots->n && n < devices; i++)
            if (is_taken(&slots->slot[i]) && slots->slot[i].host == p->host[host_of[at]])
                picked[n++] = i;
}

static void say_alike(const way *fastest, const way *alike)
{
    char moved[2][32];
    smp__events_say("the plan with the stages of the one before is taken: %.1f ms a step instead "
                    "of %.1f, %s to move instead of %s, %.1f s instead of %.1f",
                    1e-3 * alike->step_us, 1e-3 * fastest->step_us,
                    smp_format_bytes(moved[0], sizeof moved[0], alike->move.bytes),
                    smp_format_bytes(moved[1], sizeof moved[1], fastest->move.bytes), alike->move.s,
                    fastest->move.s);
}

/* Both ways; the better one. */
static smp_status choose(smp__elastic_job *job, const smp__places *p, int devices, way ways[2],
                         way **best)
{
    way *fastest = &ways[0], *alike = &ways[1];
    const double horizon_s = job->options->horizon_s, ref_us = fastest->step_us;
    SMP_TRY(weigh(job, p, fastest));
    if (!job->moves.held || !smp__plans_find_alike(&job->plans, devices) ||
        job->plans.alike[devices].state != SMP__PLAN_MADE)
        return SMP_OK;
    alike->step_us = job->plans.alike[devices].step_us;
    SMP_TRY(smp__plans_alike_path(&job->plans, devices, alike->path, sizeof alike->path));
    SMP_TRY(weigh(job, p, alike));
    if (smp__going_on_s(alike->move.s, alike->step_us, ref_us, horizon_s) <
        smp__going_on_s(fastest->move.s, fastest->step_us, ref_us, horizon_s)) {
        say_alike(fastest, alike);
        *best = alike;
    }
    return SMP_OK;
}

/* The job does not depend on it. */
static void place_hosts(smp__elastic_job *job, const smp__places *p, int devices, way ways[2],
                        way **best)
{
    smp__moves *moves = &job->moves;
    smp_status status = choose(job, p, devices, ways, best);
    if (status == SMP_OK)
        status = smp__moves_take(moves, p, &(*best)->move);
    if (status == SMP_OK) {
        pick(&job->slots, p, (*best)->move.host_of, devices, job->picked);
        if (moves->held)
            moves->bytes = (*best)->move.bytes;
        moves->s = (*best)->move.s;
        moves->step_us = (*best)->step_us;
    } else {
        smp__events_say("what has to move is not weighed: %s", smp_last_error());
        *best = ways;
    }
    smp__move_free(p, &ways[0].move);
    smp__move_free(p, &ways[1].move);
}

/* Devices that are slow have their ranks in the plan: no host changes its place. */
static bool may_move(const smp__elastic_job *job)
{
    return job->hosts.n > 1 && job->options->keep_every > 0 &&
           smp__slots_even(&job->slots) == smp__slots_count(&job->slots);
}

/* What hosts have in memory by now. One is complete at the end of the step after it. */
static void note_held(smp__elastic_job *job, bool in_memory)
{
    smp__moves_end(&job->moves, job->n_marks > job->options->keep_every, in_memory);
    for (int i = 0; i < job->hosts.n; i++) {
        if (job->hosts.host[i].lost)
            smp__moves_lose(&job->moves, i);
        job->hosts.host[i].lost = false;
    }
}

smp_status smp__elastic_place(smp__elastic_job *job, int number, char *path, size_t size)
{
    smp__moves *moves = &job->moves;
    const int devices = smp__plans_devices(&job->plans, number);
    const bool in_memory = job->options->keep_every > 0 && smp__checkpoint_exists(job->keep);
    way *ways = calloc(2, sizeof *ways), *best = ways;
    smp__places p;
    if (!ways)
        return smp_fail_memory(2 * sizeof *ways);
    note_held(job, in_memory);
    moves->bytes = in_memory && job->hosts.n > 1 ? -1 : 0;
    moves->s = 0.0;
    moves->step_us = ways->step_us = job->plans.of[number].step_us;
    smp__slots_pick(&job->slots, devices, job->picked);
    smp_status status = smp__plans_path(&job->plans, number, ways->path, sizeof ways->path);
    if (status == SMP_OK && may_move(job) && find_places(&job->slots, devices, &p))
        place_hosts(job, &p, devices, ways, &best);
    if (status == SMP_OK && snprintf(path, size, "%s", best->path) >= (int)size)
        status = smp_fail(SMP_ERR_INPUT, "%s: the name is too long", best->path);
    free(ways);
    return status;
}
