/* Why the ranks were idle. A rank waits for the last of its inputs: until that message leaves its
 * sender the cause lies upstream, from then on in the link. What lies upstream is the pipeline
 * filling up before the rank's first backward (without backwards: before its first forward),
 * running empty after its last forward, and in between stages that are not equally fast. One pass
 * over the programs. */
#include "schedule/simulate/simulate_state.h"

#include <math.h>

typedef struct idle_walk {
    const smp__sim *sim;
    int rank;
    int64_t first_backward, last_forward; /* positions; program n and -1: there is none */
    double busy_until_us;
} idle_walk;

static bool is_backward(smp_action_kind kind)
{
    return kind == SMP_ACTION_B || kind == SMP_ACTION_I;
}

static idle_walk begin_walk(const smp__sim *sim, int rank)
{
    const smp_program *program = &sim->input->program[rank];
    idle_walk w = {.sim = sim, .rank = rank, .first_backward = program->n, .last_forward = -1};
    int64_t first_forward = program->n;
    for (int64_t i = program->n - 1; i >= 0; i--) {
        smp_action_kind kind = program->action[i].kind;
        if (is_backward(kind))
            w.first_backward = i;
        if (kind == SMP_ACTION_F)
            first_forward = i;
        if (kind == SMP_ACTION_F && w.last_forward < 0)
            w.last_forward = i;
    }
    if (w.first_backward == program->n)
        w.first_backward = first_forward;
    return w;
}

/* Adds to what stands for waiting on other ranks at a position of the program. */
static void add_upstream(const idle_walk *w, int64_t at, double us)
{
    smp_simulation *s = w->sim->result;
    if (us <= 0.0)
        return;
    if (at <= w->first_backward)
        s->warmup_us[w->rank] += us;
    else if (at > w->last_forward)
        s->drain_us[w->rank] += us;
    else
        s->imbalance_us[w->rank] += us;
}

/* When the message that the action waited for longest left its sender, and when it was there. */
static void last_input(const idle_walk *w, const smp_action *a, double *sent_us, double *arrival_us)
{
    const smp__sim *sim = w->sim;
    const smp_flow *flow = sim->crossing.flow;
    int stage = smp__sim_stage(sim, w->rank, a->chunk);
    smp_transfer_kind kind = smp__crossing_kind(a->kind);
    *sent_us = *arrival_us = 0.0;
    if (a->kind == SMP_ACTION_W || !sim->crossing.receives[kind][stage])
        return;
    for (int32_t i = flow->in_begin[stage]; i < flow->in_begin[stage + 1]; i++) {
        int32_t transfer = flow->in_list[i];
        if (flow->transfer[transfer].kind != kind || sim->link_of[transfer] < 0)
            continue;
        int64_t message = smp__sim_message(sim, sim->shown, transfer, a->microbatch);
        double at_us = sim->arrival_us[message];
        if (at_us < *arrival_us)
            continue;
        *arrival_us = at_us;
        *sent_us = sim->sent_us[message];
    }
}

static double between(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* When the host has done what an action waits for: copies, and updates of weights that are gathered
 * for it; of those that are not it waits as it goes on. */
static double host_done_us(const idle_walk *w, int64_t at, const smp_action *a)
{
    const smp__sim *sim = w->sim;
    const smp__sim_runner *r = &sim->runner[sim->shown * sim->input->pipeline + w->rank];
    const double copied_us = smp__sim_offloaded_us(sim, r, at);
    return r->gathered_us ? fmax(copied_us, smp__sim_updated_us(sim, r, a->chunk)) : copied_us;
}

/* Idle from the end of what was done before until a compute action: for the sender, for the
 * message, for the host, for a core or for weights. */
static void before_compute(idle_walk *w, int64_t at, const smp_action *a, double start_us)
{
    double sent_us, arrival_us;
    if (start_us <= w->busy_until_us)
        return;
    smp_simulation *s = w->sim->result;
    last_input(w, a, &sent_us, &arrival_us);
    sent_us = between(sent_us, w->busy_until_us, start_us);
    arrival_us = between(arrival_us, sent_us, start_us);
    const double host_us = between(host_done_us(w, at, a), arrival_us, start_us);
    add_upstream(w, at, sent_us - w->busy_until_us);
    s->transfer_us[w->rank] += arrival_us - sent_us;
    s->offload_us[w->rank] += host_us - arrival_us;
    s->imbalance_us[w->rank] += start_us - host_us;
}

/* Without overlap a rank does nothing else while it sends or receives. */
static void in_message(idle_walk *w, int64_t at, const smp_action *a, double end_us)
{
    bool receives = a->kind == SMP_ACTION_RECV_F || a->kind == SMP_ACTION_RECV_B;
    double sent_us = w->busy_until_us, arrival_us;
    if (end_us <= w->busy_until_us)
        return;
    if (receives)
        last_input(w, a, &sent_us, &arrival_us);
    sent_us = between(sent_us, w->busy_until_us, end_us);
    add_upstream(w, at, sent_us - w->busy_until_us);
    w->sim->result->transfer_us[w->rank] += end_us - sent_us;
    w->busy_until_us = end_us;
}

static void walk_rank(const smp__sim *sim, int rank)
{
    const smp_program *program = &sim->input->program[rank];
    smp_simulation *s = sim->result;
    idle_walk w = begin_walk(sim, rank);
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        double start_us = s->start_us[rank][i], end_us = s->end_us[rank][i];
        if (smp_action_is_compute(a->kind)) {
            before_compute(&w, i, a, start_us);
            w.busy_until_us = end_us;
        } else if (a->kind == SMP_ACTION_OPTIMIZE) {
            if (start_us > w.busy_until_us)
                s->reduction_us[rank] += start_us - w.busy_until_us;
            w.busy_until_us = end_us;
        } else if (smp_action_is_message(a->kind) && !sim->input->cluster->overlap) {
            in_message(&w, i, a, end_us);
        }
    }
    if (s->step_us > w.busy_until_us)
        s->drain_us[rank] += s->step_us - w.busy_until_us;
    s->idle_us[rank] = s->warmup_us[rank] + s->drain_us[rank] + s->transfer_us[rank] +
                       s->offload_us[rank] + s->imbalance_us[rank] + s->reduction_us[rank];
}

void smp__sim_idle(const smp__sim *sim)
{
    for (int rank = 0; rank < sim->result->pipeline; rank++)
        walk_rank(sim, rank);
}
