/* The simulator's set-up and result (see simulate.h). The loop is in simulate_run.c, reductions in
 * simulate_reduce.c. O(n log ranks) for n actions. */
#include "schedule/simulate/simulate.h"

#include <math.h>
#include <stdlib.h>

#include "schedule/simulate/simulate_state.h"
#include "schedule/simulate/update_price.h"

/* What smp_simulate gives out, with what it is made of. */
typedef struct owned_simulation {
    smp_simulation simulation; /* first: the caller's pointer */
    smp_arena *arena;
} owned_simulation;

void smp_simulation_destroy(smp_simulation *simulation)
{
    if (!simulation)
        return;
    owned_simulation *owned = (owned_simulation *)simulation;
    smp_arena_destroy(owned->arena);
    free(owned);
}

static smp_status create_result(const smp_simulation_input *input, smp_simulation **out)
{
    owned_simulation *owned = calloc(1, sizeof *owned);
    if (!owned)
        return smp_fail_memory(sizeof *owned);
    smp_simulation *s = &owned->simulation;
    size_t n_rank = (size_t)input->pipeline;
    owned->arena = smp_arena_create();
    if (!owned->arena)
        goto failed;
    s->pipeline = input->pipeline;
    double **totals[] = {&s->updated_us,   &s->busy_us,     &s->idle_us,    &s->warmup_us,
                         &s->drain_us,     &s->transfer_us, &s->offload_us, &s->late_us,
                         &s->imbalance_us, &s->reduction_us};
    for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++)
        if (!(*totals[i] = SMP_ARENA_NEW(owned->arena, double, n_rank)))
            goto failed;
    *out = s;
    return SMP_OK;
failed:
    smp_simulation_destroy(s);
    return SMP_ERR_NO_MEMORY;
}

static smp_status check_times(const smp_simulation_input *input, int n_stage)
{
    const double *times[] = {input->forward_us, input->backward_us, input->backward_input_us,
                             input->recompute_us};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        for (int stage = 0; times[i] && stage < n_stage; stage++)
            if (!isfinite(times[i][stage]) || times[i][stage] < 0.0)
                return smp_fail(SMP_ERR_INPUT, "stage %d takes %g us, expected a finite time >= 0",
                                stage, times[i][stage]);
    return SMP_OK;
}

static smp_status check_program(const smp_simulation_input *input, int rank)
{
    for (int64_t i = 0; i < input->program[rank].n; i++) {
        const smp_action *a = &input->program[rank].action[i];
        bool known = (unsigned)a->kind <= SMP_ACTION_OPTIMIZE;
        bool chunk = a->kind == SMP_ACTION_OPTIMIZE || (a->chunk >= 0 && a->chunk < input->chunks);
        bool mb = !smp_action_has_microbatch(a->kind) ||
                  (a->microbatch >= 0 && a->microbatch < input->microbatches);
        if (!known || !chunk || !mb)
            return smp_fail(SMP_ERR_INPUT,
                            "rank %d, action %lld: micro-batch %d of chunk %d, there are %d "
                            "micro-batches and %d chunks",
                            rank, (long long)i + 1, (int)a->microbatch, (int)a->chunk,
                            input->microbatches, input->chunks);
    }
    return SMP_OK;
}

static smp_status check_input(const smp_simulation_input *input)
{
    if (input->pipeline < 1 || input->chunks < 1 || input->ddp < 1 || input->microbatches < 1)
        return smp_fail(SMP_ERR_INPUT,
                        "pipeline %d, chunks %d, ddp %d, micro-batches %d: expected at least 1 of "
                        "each",
                        input->pipeline, input->chunks, input->ddp, input->microbatches);
    int64_t devices = (int64_t)input->pipeline * input->ddp;
    int known = smp_cluster_devices(input->cluster);
    if (devices > known)
        return smp_fail(SMP_ERR_INPUT, "cluster '%s' has %d devices, %d * %d are needed",
                        input->cluster->name, known, input->ddp, input->pipeline);
    for (int64_t i = 0; i < devices; i++)
        if (input->device[i] < 0 || input->device[i] >= known)
            return smp_fail(
                SMP_ERR_INPUT, "cluster '%s' has %d devices, rank %lld of %lld lies on device %d",
                input->cluster->name, known, (long long)i, (long long)devices, input->device[i]);
    SMP_TRY(check_times(input, input->flow->n_stage));
    for (int rank = 0; rank < input->pipeline; rank++)
        SMP_TRY(check_program(input, rank));
    return SMP_OK;
}

/* Which replicas are simulated, and how fast their devices are. */
static smp_status choose_replicas(smp__sim *sim)
{
    const smp_simulation_input *input = sim->input;
    bool all = input->cluster->cores_per_node > 0;
    int n_kept, p = input->pipeline, *kept = SMP_ARENA_NEW(sim->arena, int, (size_t)input->ddp);
    if (!kept)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_replicas_that_count(input->cluster, input->precision, p, input->ddp, input->device,
                                    kept, &n_kept));
    sim->n_replica = all ? input->ddp : n_kept;
    sim->replica = SMP_ARENA_NEW(sim->arena, int, (size_t)sim->n_replica);
    sim->counts = SMP_ARENA_NEW(sim->arena, bool, (size_t)sim->n_replica);
    sim->share = SMP_ARENA_NEW(sim->arena, double, (size_t)sim->n_replica *(size_t)p);
    double *slowest = SMP_ARENA_NEW(sim->arena, double, (size_t)p);
    if (!sim->replica || !sim->counts || !sim->share || !slowest)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < p; r++)
        slowest[r] = smp__sim_slowest(input, r);
    for (int i = 0; i < n_kept; i++)
        sim->counts[all ? kept[i] : i] = true;
    for (int i = 0; i < sim->n_replica; i++)
        sim->replica[i] = all ? i : kept[i];
    for (int i = 0; i < sim->n_replica * p; i++)
        sim->share[i] = smp__sim_share(input, sim->replica[i / p], i % p, slowest[i % p]);
    return SMP_OK;
}

/* Room for the times of replicas that count, in the memory of the result. */
static smp_status create_records(smp__sim *sim)
{
    smp_arena *arena = ((owned_simulation *)sim->result)->arena;
    sim->start_us = SMP_ARENA_NEW(arena, double *, (size_t)sim->n_runner);
    sim->end_us = SMP_ARENA_NEW(arena, double *, (size_t)sim->n_runner);
    if (!sim->start_us || !sim->end_us)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < sim->n_runner; i++) {
        size_t n = (size_t)sim->input->program[sim->runner[i].rank].n;
        if (!sim->counts[sim->runner[i].replica])
            continue;
        sim->start_us[i] = SMP_ARENA_NEW(arena, double, n);
        sim->end_us[i] = SMP_ARENA_NEW(arena, double, n);
        if (!sim->start_us[i] || !sim->end_us[i])
            return SMP_ERR_NO_MEMORY;
    }
    return SMP_OK;
}

/* Gives every runner a seat on its core. */
static smp_status create_cores(smp__sim *sim)
{
    int cores = sim->input->cluster->nodes * sim->input->cluster->cores_per_node;
    sim->core = SMP_ARENA_NEW(sim->arena, smp__sim_core, (size_t)cores);
    if (!sim->core)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < sim->n_runner; i++) {
        sim->runner[i].core = smp_cluster_core_of(sim->input->cluster, sim->runner[i].device);
        sim->runner[i].seat = sim->core[sim->runner[i].core].n_member++;
    }
    for (int i = 0; i < cores; i++) {
        smp__sim_core *core = &sim->core[i];
        core->running = core->last = -1;
        core->member = SMP_ARENA_NEW(sim->arena, int, (size_t)core->n_member);
        core->work_us = SMP_ARENA_NEW(sim->arena, double, (size_t)core->n_member);
        if (!core->member || !core->work_us)
            return SMP_ERR_NO_MEMORY;
        SMP_TRY(smp_heap_init(&core->waiting, sim->arena, core->n_member));
    }
    for (int i = 0; i < sim->n_runner; i++)
        sim->core[sim->runner[i].core].member[sim->runner[i].seat] = i;
    return SMP_OK;
}

/* Runners, the event queue, and the cores if they are shared. */
static smp_status create_runners(smp__sim *sim)
{
    const smp_simulation_input *input = sim->input;
    bool shared = input->cluster->cores_per_node > 0;
    sim->n_runner = sim->n_replica * input->pipeline; /* at most the cluster's devices */
    sim->runner = SMP_ARENA_NEW(sim->arena, smp__sim_runner, (size_t)sim->n_runner);
    sim->queue = SMP_ARENA_NEW(sim->arena, int, (size_t)sim->n_runner);
    sim->compute_end_us = SMP_ARENA_NEW(sim->arena, double, (size_t)sim->n_replica);
    if (!sim->runner || !sim->queue || !sim->compute_end_us)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < sim->n_runner; i++) {
        smp__sim_runner *r = &sim->runner[i];
        r->replica = i / input->pipeline;
        r->rank = i % input->pipeline;
        r->device = input->device[sim->replica[r->replica] * input->pipeline + r->rank];
    }
    SMP_TRY(smp_heap_init(
        &sim->events, sim->arena,
        sim->n_runner + (shared ? input->cluster->nodes * input->cluster->cores_per_node : 0)));
    return shared ? create_cores(sim) : SMP_OK;
}

/* The update of so many bytes of weights, `far` of which have their fp32 values in host memory
 * alone. */
static double update_us(const smp__sim *sim, int64_t bytes, int64_t far)
{
    const smp_simulation_input *input = sim->input;
    const smp_target target = input->graph->target;
    const double near_us =
        (double)(bytes - far) * smp_update_us_per_byte(input->cluster, target, input->sharding,
                                                       input->optimizer_bytes_per_s);
    return far == 0 ? near_us
                    : near_us + (double)far * smp_host_update_us_per_byte(input->cluster, target,
                                                                          input->sharding);
}

/* A weight that several chunks have is made for the first of them. */
static smp_status set_updates(smp__sim *sim)
{
    const int chunks = sim->input->chunks, n_rank = sim->input->pipeline;
    sim->updated_us = SMP_ARENA_NEW(sim->arena, double, (size_t)n_rank *(size_t)chunks);
    if (!sim->updated_us)
        return SMP_ERR_NO_MEMORY;
    for (int rank = 0; rank < n_rank; rank++) {
        const int64_t most = smp__sim_rank_bytes(sim, rank);
        int64_t bytes = 0, half_only = 0;
        for (int chunk = 0; chunk < chunks; chunk++) {
            bytes += sim->trained_bytes[smp__sim_stage(sim, rank, chunk)];
            half_only += sim->half_only_bytes[smp__sim_stage(sim, rank, chunk)];
            const int64_t all = bytes < most ? bytes : most;
            sim->updated_us[rank * chunks + chunk] =
                update_us(sim, all, half_only < all ? half_only : all);
        }
    }
    return SMP_OK;
}

static smp_status set_costs(smp__sim *sim)
{
    const smp_simulation_input *input = sim->input;
    int n_stage = input->flow->n_stage;
    for (int kind = 0; kind <= SMP_ACTION_W; kind++) {
        sim->cost_us[kind] =
            SMP_ARENA_NEW(sim->arena, double, (size_t)sim->n_replica *(size_t)n_stage);
        if (!sim->cost_us[kind])
            return SMP_ERR_NO_MEMORY;
    }
    double *forward_sums = SMP_ARENA_NEW(sim->arena, double, (size_t)n_stage);
    double *backward_sums = SMP_ARENA_NEW(sim->arena, double, (size_t)n_stage);
    if (!forward_sums || !backward_sums)
        return SMP_ERR_NO_MEMORY;
    smp__sim_joint_us(input, forward_sums, backward_sums);
    for (int i = 0; i < sim->n_replica * n_stage; i++) {
        int stage = i % n_stage;
        double share = sim->share[i / n_stage * input->pipeline + input->stage_rank[stage]];
        double whole = input->backward_us[stage];
        double first = smp__sim_input_us(input, stage);
        double again = input->recompute_us ? input->recompute_us[stage] : 0.0;
        double sums = backward_sums[stage]; /* and those of what runs again, by its time */
        if (again > 0.0 && input->forward_us[stage] > 0.0)
            sums += fmin(again / input->forward_us[stage], 1.0) * forward_sums[stage];
        sim->cost_us[SMP_ACTION_F][i] = share * input->forward_us[stage] + forward_sums[stage];
        sim->cost_us[SMP_ACTION_B][i] = share * (again + whole) + sums;
        sim->cost_us[SMP_ACTION_I][i] = share * (again + first) + sums;
        sim->cost_us[SMP_ACTION_W][i] = share * (whole > first ? whole - first : 0.0);
    }
    SMP_TRY(smp__sim_count_trained(sim));
    sim->optimizer_us = SMP_ARENA_NEW(sim->arena, double, (size_t)input->pipeline);
    if (!sim->optimizer_us)
        return SMP_ERR_NO_MEMORY;
    if (smp_updates_beside(input->sharding.offload_states, input->graph->target))
        SMP_TRY(set_updates(sim));
    for (int rank = 0; rank < input->pipeline && !sim->updated_us; rank++)
        sim->optimizer_us[rank] = update_us(sim, smp__sim_rank_bytes(sim, rank), 0);
    return smp__sim_add_summands(sim);
}

static smp_status create_messages(smp__sim *sim)
{
    const smp_flow *flow = sim->crossing.flow;
    const smp_simulation_input *input = sim->input;
    size_t rows = (size_t)sim->n_replica * (size_t)flow->n_transfer;
    size_t microbatches = (size_t)input->microbatches;
    if (rows > SIZE_MAX / microbatches)
        return smp_fail_memory(SIZE_MAX);
    SMP_TRY(smp__crossing_links(&sim->crossing, sim->arena, &sim->link_of, &sim->n_link));
    sim->transfer_us = SMP_ARENA_NEW(sim->arena, double, rows);
    sim->arrival_us = SMP_ARENA_NEW(sim->arena, double, rows *microbatches);
    sim->link_free_us =
        SMP_ARENA_NEW(sim->arena, double, (size_t)sim->n_replica *(size_t)sim->n_link);
    sim->sent_us = SMP_ARENA_NEW(sim->arena, double, rows *microbatches);
    if (!sim->transfer_us || !sim->arrival_us || !sim->link_free_us || !sim->sent_us)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < rows * microbatches; i++)
        sim->arrival_us[i] = -1.0;
    return smp__crossing_times(&sim->crossing, input->cluster, input->device, input->ddp,
                               sim->replica, sim->n_replica, sim->arena, sim->transfer_us);
}

/* A `<` ends when its data is there. */
static double receive_end_us(const smp__sim *sim, int rank, const smp_action *a, double start_us)
{
    const smp_flow *flow = sim->crossing.flow;
    int stage = smp__sim_stage(sim, rank, a->chunk);
    smp_transfer_kind kind = smp__crossing_kind(a->kind);
    for (int32_t i = flow->in_begin[stage]; i < flow->in_begin[stage + 1]; i++) {
        int32_t transfer = flow->in_list[i];
        if (flow->transfer[transfer].kind != kind || sim->link_of[transfer] < 0)
            continue;
        double at_us = *smp__sim_arrival(sim, sim->shown, transfer, a->microbatch);
        if (at_us > start_us)
            start_us = at_us;
    }
    return start_us;
}

/* The replica that computes longest, of those that count. */
static void choose_shown(smp__sim *sim)
{
    sim->shown = -1;
    for (int i = 0; i < sim->n_replica; i++)
        if (sim->counts[i] &&
            (sim->shown < 0 || sim->compute_end_us[i] > sim->compute_end_us[sim->shown]))
            sim->shown = i;
    sim->result->replica = sim->replica[sim->shown];
    sim->result->start_us = &sim->start_us[sim->shown * sim->input->pipeline];
    sim->result->end_us = &sim->end_us[sim->shown * sim->input->pipeline];
}

/* Buckets begin before R does. */
static void complete_reduction(const smp__sim *sim, int stage, double *start_us, double *end_us)
{
    *end_us = sim->reduce_end_us[stage];
    *start_us = fmin(*start_us, sim->reduce_from_us[stage]);
}

/* What is known only at the end: when receives and reductions ended, and the totals. */
static void complete_result(smp__sim *sim)
{
    smp_simulation *s = sim->result;
    const smp__sim_runner *runner = &sim->runner[sim->shown * s->pipeline];
    double idle = 0.0, compute_end_us = sim->compute_end_us[sim->shown];
    for (int rank = 0; rank < s->pipeline; rank++) {
        const smp_program *program = &sim->input->program[rank];
        for (int64_t i = 0; i < program->n; i++) {
            const smp_action *a = &program->action[i];
            bool receives = a->kind == SMP_ACTION_RECV_F || a->kind == SMP_ACTION_RECV_B;
            if (receives && sim->input->cluster->overlap)
                s->end_us[rank][i] = receive_end_us(sim, rank, a, s->start_us[rank][i]);
            else if (a->kind == SMP_ACTION_REDUCE)
                complete_reduction(sim, smp__sim_stage(sim, rank, a->chunk), &s->start_us[rank][i],
                                   &s->end_us[rank][i]);
            else if (a->kind == SMP_ACTION_GATHER)
                s->end_us[rank][i] = sim->gather[rank][i].end_us;
            else if (a->kind == SMP_ACTION_ALL)
                s->end_us[rank][i] = sim->all_end_us[smp__sim_stage(sim, rank, a->chunk)];
            if (s->end_us[rank][i] > s->step_us)
                s->step_us = s->end_us[rank][i];
        }
        s->busy_us[rank] = runner[rank].compute_us + runner[rank].optimizer_us;
        s->late_us[rank] = s->offload_us[rank] = runner[rank].late_us;
        s->updated_us[rank] = smp__sim_updated_us(sim, &runner[rank], sim->input->chunks - 1);
        if (compute_end_us > 0.0)
            idle += 1.0 - runner[rank].compute_us / compute_end_us;
    }
    for (int i = 0; i < sim->n_runner; i++)
        if (sim->runner[i].done_us > s->step_us)
            s->step_us = sim->runner[i].done_us;
    s->bubble = idle > 0.0 ? idle / s->pipeline : 0.0;
    smp__sim_idle(sim);
}

static smp_status simulate_in(smp__sim *sim)
{
    const smp_simulation_input *input = sim->input;
    SMP_TRY(smp__crossing_build(sim->arena, input->flow, input->stage_rank, input->pipeline,
                                input->chunks, &sim->crossing));
    SMP_TRY(choose_replicas(sim));
    SMP_TRY(create_runners(sim));
    SMP_TRY(create_records(sim));
    SMP_TRY(create_messages(sim));
    SMP_TRY(smp__sim_offload_init(sim));
    SMP_TRY(smp__sim_reduce_init(sim));
    SMP_TRY(set_costs(sim));
    SMP_TRY(smp__sim_run(sim));
    choose_shown(sim);
    complete_result(sim);
    if (!isfinite(sim->result->step_us)) /* by a link or a rate that no file may have */
        return smp_fail(SMP_ERR_INPUT, "a step on cluster '%s' takes %g us, expected a finite time",
                        sim->input->cluster->name, sim->result->step_us);
    return SMP_OK;
}

smp_status smp_simulate(const smp_simulation_input *input, smp_simulation **out)
{
    SMP_TRY(check_input(input));
    smp__sim sim = {.input = input};
    smp_simulation *result = NULL;
    SMP_TRY(create_result(input, &result));
    sim.result = result;
    sim.arena = smp_arena_create();
    smp_status status = sim.arena ? simulate_in(&sim) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(sim.arena);
    if (status == SMP_OK)
        *out = result;
    else
        smp_simulation_destroy(result);
    return status;
}
