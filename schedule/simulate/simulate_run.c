/* The event loop. A runner goes through its program until it must wait: for an event (its compute
 * is done, data arrives) or, blocked, for a time that another runner's action will fix. Receives
 * are posted ahead, so data arrives whether or not its `<` has been reached.
 * O(log ranks) per compute action. */
#include "schedule/simulate/simulate_state.h"

#include <math.h>

#include "graph/base/clock.h"

/* What a rank has of a core while another one wants it: who wakes up takes no core away, and the
 * kernel looks at its tick, 250 times a second, whose slice is over. */
#define SLICE_US 4000.0

/* Slices cut short before they become twice as long: a step of days is not told tick by tick. */
enum { MOST_CUTS = 1 << 18 };

void smp__sim_wake(smp__sim *sim, int runner)
{
    smp__sim_runner *r = &sim->runner[runner];
    r->blocked = false;
    if (r->ready)
        return;
    r->ready = true;
    sim->queue[(sim->queue_head + sim->n_queue++) % sim->n_runner] = runner;
}

static void record_start(smp__sim *sim, const smp__sim_runner *r)
{
    double *start_us = sim->start_us[r - sim->runner];
    if (start_us)
        start_us[r->next] = sim->now_us;
}

static void record_end(smp__sim *sim, const smp__sim_runner *r, double at_us)
{
    double *end_us = sim->end_us[r - sim->runner];
    if (end_us)
        end_us[r->next] = at_us;
}

/* The next event of a core: its action is done, or its slice is over and another one waits. */
static void core_plan(smp__sim *sim, int index)
{
    const smp__sim_core *core = &sim->core[index];
    double at_us = core->end_us, over_us = core->taken_us + sim->slice_us;
    if (core->waiting.n > 0 && over_us < at_us)
        at_us = over_us > sim->now_us ? over_us : sim->now_us;
    smp_heap_set(&sim->events, sim->n_runner + index, at_us);
}

static void core_start(smp__sim *sim, int index, int seat)
{
    smp__sim_core *core = &sim->core[index];
    smp__sim_runner *r = &sim->runner[core->member[seat]];
    bool switches = core->last >= 0 && core->last != seat;
    double from_us = sim->now_us + (switches ? sim->input->cluster->core_switch_us : 0.0);
    if (core->last != seat || sim->now_us > core->freed_us)
        core->taken_us = from_us;
    core->running = core->last = seat;
    core->end_us = from_us + core->work_us[seat];
    if (!r->begun) {
        r->begun = true;
        r->started_us = sim->now_us;
        record_start(sim, r);
    }
    core_plan(sim, index);
}

static void begin_compute(smp__sim *sim, int runner, double duration_us)
{
    smp__sim_runner *r = &sim->runner[runner];
    r->phase = SMP__SIM_RUN;
    if (!sim->core) {
        r->started_us = sim->now_us;
        record_start(sim, r);
        smp_heap_set(&sim->events, runner, sim->now_us + duration_us);
        return;
    }
    smp__sim_core *core = &sim->core[r->core];
    core->work_us[r->seat] = duration_us;
    r->begun = false;
    if (core->running < 0) {
        core_start(sim, r->core, r->seat);
    } else {
        smp_heap_set(&core->waiting, r->seat, sim->now_us);
        core_plan(sim, r->core);
    }
}

/* When the inputs of an action have arrived; false if one has not been sent. */
static bool inputs_arrive(const smp__sim *sim, const smp__sim_runner *r, const smp_action *a,
                          double *latest_us)
{
    const smp_flow *flow = sim->crossing.flow;
    int stage = smp__sim_stage(sim, r->rank, a->chunk);
    smp_transfer_kind kind = smp__crossing_kind(a->kind);
    *latest_us = 0.0;
    if (a->kind == SMP_ACTION_W || !sim->crossing.receives[kind][stage])
        return true;
    for (int32_t i = flow->in_begin[stage]; i < flow->in_begin[stage + 1]; i++) {
        int32_t transfer = flow->in_list[i];
        if (flow->transfer[transfer].kind != kind || sim->link_of[transfer] < 0)
            continue;
        double at_us = *smp__sim_arrival(sim, r->replica, transfer, a->microbatch);
        if (at_us < 0.0)
            return false;
        if (at_us > *latest_us)
            *latest_us = at_us;
    }
    return true;
}

/* A normal number of mean 0 and deviation 1, the same whenever it is asked for: the sum of twelve
 * even ones. */
static double normal_of(const smp__sim *sim, const smp__sim_runner *r)
{
    enum { EVEN_ONES = 12 };
    const int64_t place[] = {sim->input->draw, r - sim->runner, r->next};
    uint64_t hash = smp_hash(0, place, sizeof place);
    double sum = 0.0;
    for (int i = 0; i < EVEN_ONES; i++) {
        hash = smp_hash(hash, &hash, sizeof hash);
        sum += (double)(hash >> 11) / 0x1p53;
    }
    return sum - EVEN_ONES / 2;
}

/* What a compute action takes, this time. */
static double own_cost_us(const smp__sim *sim, const smp__sim_runner *r, const smp_action *a)
{
    const int64_t first = (int64_t)r->replica * sim->crossing.flow->n_stage;
    const double us = sim->cost_us[a->kind][first + smp__sim_stage(sim, r->rank, a->chunk)];
    if (sim->input->draw == 0)
        return us;
    return fmax(0.0, us * (1.0 + sim->input->cluster->scatter * normal_of(sim, r)));
}

/* A forward ends no earlier than the update of the last of its weights: what is more than its own
 * time is waiting. */
static double cost_us(const smp__sim *sim, smp__sim_runner *r, const smp_action *a)
{
    const double own_us = own_cost_us(sim, r, a);
    if (!sim->updated_us || a->kind != SMP_ACTION_F)
        return own_us;
    const double left_us = smp__sim_updated_us(sim, r, a->chunk) - sim->now_us;
    if (left_us <= own_us)
        return own_us;
    r->late_us += left_us - own_us;
    r->compute_us -= left_us - own_us;
    return left_us;
}

/* Likewise of the weights that are being gathered. */
static bool weights_arrive(const smp__sim_runner *r, const smp_action *a, double *latest_us)
{
    double at_us = r->gathered_us ? r->gathered_us[a->chunk] : 0.0;
    if (at_us > *latest_us)
        *latest_us = at_us;
    return at_us >= 0.0;
}

/* true: the action is done and the next begins now. */
static bool step_compute(smp__sim *sim, int runner, const smp_action *a)
{
    smp__sim_runner *r = &sim->runner[runner];
    if (r->phase == SMP__SIM_RUN) {
        r->compute_us += sim->now_us - r->started_us;
        if (sim->now_us > sim->compute_end_us[r->replica])
            sim->compute_end_us[r->replica] = sim->now_us;
        if (a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_W)
            smp__sim_backward(sim, r, smp__sim_stage(sim, r->rank, a->chunk));
        record_end(sim, r, sim->now_us);
        return true;
    }
    double latest_us;
    const double host_us = smp__sim_offloaded_us(sim, r, r->next);
    if (!inputs_arrive(sim, r, a, &latest_us) || !weights_arrive(r, a, &latest_us))
        r->blocked = true;
    else if (host_us > latest_us && host_us > sim->now_us)
        smp_heap_set(&sim->events, runner, host_us);
    else if (latest_us > sim->now_us)
        smp_heap_set(&sim->events, runner, latest_us);
    else
        begin_compute(sim, runner, cost_us(sim, r, a));
    return false;
}

/* Puts the messages of a `>` on their links and gives the last arrival. Without overlap the sender
 * is occupied by one after the other. */
static double send_messages(smp__sim *sim, const smp__sim_runner *r, const smp_action *a)
{
    const smp_flow *flow = sim->crossing.flow;
    int stage = smp__sim_stage(sim, r->rank, a->chunk);
    double free_us = sim->now_us, last_us = sim->now_us;
    for (int32_t i = flow->out_begin[stage]; i < flow->out_begin[stage + 1]; i++) {
        int32_t transfer = flow->out_list[i];
        if (flow->transfer[transfer].kind != smp__crossing_kind(a->kind) ||
            sim->link_of[transfer] < 0)
            continue;
        double *link_us =
            &sim->link_free_us[(int64_t)r->replica * sim->n_link + sim->link_of[transfer]];
        double start_us = *link_us > free_us ? *link_us : free_us;
        *link_us = start_us + sim->transfer_us[(int64_t)r->replica * flow->n_transfer + transfer];
        *smp__sim_arrival(sim, r->replica, transfer, a->microbatch) = *link_us;
        sim->sent_us[smp__sim_message(sim, r->replica, transfer, a->microbatch)] = sim->now_us;
        if (!sim->input->cluster->overlap)
            free_us = *link_us;
        if (*link_us > last_us)
            last_us = *link_us;
        int receiver = r->replica * sim->crossing.n_rank +
                       sim->crossing.rank_of[flow->transfer[transfer].to_stage];
        if (sim->runner[receiver].blocked)
            smp__sim_wake(sim, receiver);
    }
    return last_us;
}

static bool step_send(smp__sim *sim, int runner, const smp_action *a)
{
    smp__sim_runner *r = &sim->runner[runner];
    if (r->phase == SMP__SIM_RUN)
        return true;
    record_start(sim, r);
    double last_us = send_messages(sim, r, a);
    record_end(sim, r, last_us);
    if (sim->input->cluster->overlap || last_us <= sim->now_us)
        return true;
    r->phase = SMP__SIM_RUN;
    smp_heap_set(&sim->events, runner, last_us);
    return false;
}

/* Without overlap: when the receiver, free from started_us, has taken the messages one after the
 * other. A message takes its whole time of the receiver too, at the same time as of the sender if
 * the receiver is there by then. */
static double take_messages(const smp__sim *sim, const smp__sim_runner *r, const smp_action *a)
{
    const smp_flow *flow = sim->crossing.flow;
    int stage = smp__sim_stage(sim, r->rank, a->chunk);
    double free_us = r->started_us;
    for (int32_t i = flow->in_begin[stage]; i < flow->in_begin[stage + 1]; i++) {
        int32_t transfer = flow->in_list[i];
        if (flow->transfer[transfer].kind != smp__crossing_kind(a->kind) ||
            sim->link_of[transfer] < 0)
            continue;
        double takes_us = sim->transfer_us[(int64_t)r->replica * flow->n_transfer + transfer];
        double sent_us = *smp__sim_arrival(sim, r->replica, transfer, a->microbatch) - takes_us;
        free_us = (sent_us > free_us ? sent_us : free_us) + takes_us;
    }
    return free_us;
}

static bool step_receive(smp__sim *sim, int runner, const smp_action *a)
{
    smp__sim_runner *r = &sim->runner[runner];
    if (r->phase == SMP__SIM_BEGIN) {
        record_start(sim, r);
        r->started_us = sim->now_us;
        if (sim->input->cluster->overlap)
            return true; /* posted; the action that needs the data waits */
        r->phase = SMP__SIM_WAIT;
    }
    if (r->phase == SMP__SIM_RUN) {
        record_end(sim, r, sim->now_us);
        return true;
    }
    double latest_us;
    if (!inputs_arrive(sim, r, a, &latest_us)) {
        r->blocked = true;
        return false;
    }
    r->phase = SMP__SIM_RUN;
    smp_heap_set(&sim->events, runner, take_messages(sim, r, a));
    return false;
}

static bool step_optimize(smp__sim *sim, int runner)
{
    smp__sim_runner *r = &sim->runner[runner];
    if (r->phase == SMP__SIM_RUN) {
        r->optimizer_us = sim->now_us - r->started_us;
        record_end(sim, r, sim->now_us);
        return true;
    }
    const double host_us = smp__sim_offloaded_us(sim, r, r->next);
    if (r->reductions_left == 0 && r->owed_us > 0) {
        r->reduced_us = fmax(r->reduced_us, sim->now_us) + r->owed_us;
        r->owed_us = 0;
    }
    if (r->reductions_left > 0)
        r->blocked = true;
    else if (host_us > r->reduced_us && host_us > sim->now_us)
        smp_heap_set(&sim->events, runner, host_us);
    else if (r->reduced_us > sim->now_us)
        smp_heap_set(&sim->events, runner, r->reduced_us);
    else
        begin_compute(sim, runner, sim->optimizer_us[r->rank]);
    return false;
}

static bool step_all(smp__sim *sim, int runner, const smp_action *a)
{
    smp__sim_runner *r = &sim->runner[runner];
    const int stage = smp__sim_stage(sim, r->rank, a->chunk);
    if (r->phase == SMP__SIM_BEGIN) {
        record_start(sim, r);
        r->phase = SMP__SIM_WAIT;
    }
    if (sim->reduce_end_us[stage] > sim->now_us) {
        smp_heap_set(&sim->events, runner, sim->reduce_end_us[stage]);
        return false;
    }
    r->blocked = !smp__sim_all(sim, r, stage);
    return !r->blocked;
}

static bool step(smp__sim *sim, int runner, const smp_action *a)
{
    const smp__sim_runner *r = &sim->runner[runner];
    switch (a->kind) {
    case SMP_ACTION_F:
    case SMP_ACTION_B:
    case SMP_ACTION_I:
    case SMP_ACTION_W:
        return step_compute(sim, runner, a);
    case SMP_ACTION_SEND_F:
    case SMP_ACTION_SEND_B:
        return step_send(sim, runner, a);
    case SMP_ACTION_RECV_F:
    case SMP_ACTION_RECV_B:
        return step_receive(sim, runner, a);
    case SMP_ACTION_STORE:
    case SMP_ACTION_LOAD:
        record_start(sim, r);
        record_end(sim, r, smp__sim_offload(sim, &sim->runner[runner], a));
        return true;
    case SMP_ACTION_GATHER:
        record_start(sim, r);
        smp__sim_gather_weights(sim, &sim->runner[runner], a->chunk);
        return true;
    case SMP_ACTION_DROP:
        record_start(sim, r);
        record_end(sim, r, sim->now_us);
        return true;
    case SMP_ACTION_ALL:
        return step_all(sim, runner, a);
    case SMP_ACTION_REDUCE:
        record_start(sim, r);
        smp__sim_reduce(sim, smp__sim_stage(sim, r->rank, a->chunk));
        return true;
    case SMP_ACTION_OPTIMIZE:
        return step_optimize(sim, runner);
    }
    return true;
}

static void go_on(smp__sim *sim, int runner)
{
    smp__sim_runner *r = &sim->runner[runner];
    const smp_program *program = smp__sim_program(sim, r);
    while (r->next < program->n && step(sim, runner, &program->action[r->next])) {
        r->next++;
        r->phase = SMP__SIM_BEGIN;
        r->done_us = sim->now_us;
    }
}

/* The slice is over in the middle of an action, the rest of which waits for the next. */
static void core_cut(smp__sim *sim, int index)
{
    smp__sim_core *core = &sim->core[index];
    int seat = core->running;
    if (++sim->n_cut % MOST_CUTS == 0)
        sim->slice_us *= 2;
    core->work_us[seat] = core->end_us - sim->now_us;
    core_start(sim, index, smp_heap_pop(&core->waiting));
    smp_heap_set(&core->waiting, seat, sim->now_us);
    core_plan(sim, index);
}

/* The action is done: until its slice is over the runner may begin another before anybody else. */
static void core_complete(smp__sim *sim, int index)
{
    smp__sim_core *core = &sim->core[index];
    int runner = core->member[core->running];
    core->running = -1;
    core->freed_us = sim->now_us;
    if (core->waiting.n > 0 && sim->now_us - core->taken_us >= sim->slice_us)
        core_start(sim, index, smp_heap_pop(&core->waiting));
    go_on(sim, runner);
    if (core->running < 0 && core->waiting.n > 0)
        core_start(sim, index, smp_heap_pop(&core->waiting));
}

static smp_status fail_deadlock(const smp__sim *sim, const smp__sim_runner *r)
{
    smp_text text = {0};
    smp_action_format(&smp__sim_program(sim, r)->action[r->next], &text);
    smp_status status = smp_fail(SMP_ERR_FAILED,
                                 "the simulated step stops: rank %d waits at action %lld %s for "
                                 "what nobody sends",
                                 r->rank, (long long)r->next + 1, text.data ? text.data : "");
    smp_text_free(&text);
    return status;
}

smp_status smp__sim_run(smp__sim *sim)
{
    int64_t n_event = 0;
    sim->slice_us = SLICE_US;
    for (int i = 0; i < sim->n_runner; i++)
        smp__sim_wake(sim, i);
    for (;;) {
        while (sim->n_queue > 0) {
            int runner = sim->queue[sim->queue_head];
            sim->queue_head = (sim->queue_head + 1) % sim->n_runner;
            sim->n_queue--;
            sim->runner[runner].ready = false;
            go_on(sim, runner);
        }
        if (sim->events.n == 0)
            break;
        int event = smp_heap_pop(&sim->events);
        n_event++;
        sim->now_us = sim->events.key[event];
        int core = event - sim->n_runner;
        if (core < 0)
            go_on(sim, event);
        else if (sim->now_us < sim->core[core].end_us)
            core_cut(sim, core);
        else
            core_complete(sim, core);
    }
    smp_work_count(SMP_WORK_EVENT, (double)n_event);
    for (int i = 0; i < sim->n_runner; i++)
        smp_work_count(SMP_WORK_ACTION, (double)sim->runner[i].next);
    for (int i = 0; i < sim->n_runner; i++)
        if (sim->runner[i].next < smp__sim_program(sim, &sim->runner[i])->n)
            return fail_deadlock(sim, &sim->runner[i]);
    return SMP_OK;
}
