/* What a configuration costs: by lowering, simulation and the memory planner, the same that make
 * the plan. */
#include "profile/overlap_costs.h"
#include "schedule/planner/fit/fit.h"

#include <math.h>
#include <stdlib.h>

#include "schedule/auto/list_schedule.h"
#include "schedule/lower/lower.h"

void smp_candidate_destroy(smp_candidate *candidate)
{
    if (!candidate)
        return;
    free(candidate->device);
    free(candidate->stage_rank);
    free(candidate->rank_peak_bytes);
    free(candidate->offload);
    smp_partition_destroy(candidate->partition);
    free(candidate);
}

/* The stage with most weights, for which hops and buckets are chosen; its rank and bytes. */
static smp_simulation_input ring_input(const smp__planner *planner, const smp_candidate *candidate,
                                       int *rank, int64_t *bytes)
{
    const smp_partition *partition = candidate->partition;
    int most = 0;
    for (int s = 1; s < partition->n_stage; s++)
        if (partition->load[s].weight_bytes > partition->load[most].weight_bytes)
            most = s;
    *rank = candidate->stage_rank[most];
    *bytes = partition->load[most].weight_bytes;
    return (smp_simulation_input){.pipeline = candidate->pipeline,
                                  .ddp = candidate->ddp,
                                  .sharding = candidate->sharding,
                                  .gradient_blocks = planner->request.options.gradient_blocks,
                                  .graph = planner->request.graph,
                                  .cluster = planner->request.cluster,
                                  .device = candidate->device};
}

smp_sharding smp__candidate_sharding(const smp__planner *planner, const smp_candidate *candidate)
{
    smp_sharding sharding = candidate->sharding;
    int rank;
    int64_t bytes;
    if (sharding.bucket_bytes != SMP_BUCKET_AUTO)
        return sharding;
    const smp_simulation_input input = ring_input(planner, candidate, &rank, &bytes);
    sharding.bucket_bytes = smp_bucket_bytes(&input, rank, bytes);
    return sharding;
}

/* The largest weight with uses in several stages. */
static int64_t tied_bytes(const smp_graph *graph, const int32_t *stage)
{
    int64_t most = 0;
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        const int64_t bytes = param->elements * (int64_t)sizeof(float);
        bool tied = false;
        for (int32_t u = param->use_begin + 1; u < param->use_end && !param->idle; u++)
            tied |= stage[graph->use[u].op] != stage[graph->use[param->use_begin].op];
        if (tied && bytes > most)
            most = bytes;
    }
    return most;
}

int smp__candidate_hops(const smp__planner *planner, const smp_candidate *candidate,
                        int choice[SMP_HOPS_CHOICES])
{
    int rank;
    int64_t bytes;
    const smp_simulation_input input = ring_input(planner, candidate, &rank, &bytes);
    return smp_node_replicas(&input, rank, bytes,
                             tied_bytes(planner->request.graph, candidate->partition->stage),
                             choice);
}

smp_status smp__candidate_choose_hops(smp__planner *planner, smp_candidate *candidate)
{
    int choice[SMP_HOPS_CHOICES], best = 0;
    if (candidate->sharding.node_replicas != SMP_HOPS_AUTO)
        return SMP_OK;
    const int n = smp__candidate_hops(planner, candidate, choice);
    double least_us = INFINITY;
    for (int i = 0; i < n && n > 1; i++) {
        double step_us;
        candidate->sharding.node_replicas = choice[i];
        SMP_TRY(smp__planner_step_us(planner, candidate, &step_us));
        best = step_us < least_us ? i : best;
        least_us = fmin(step_us, least_us);
    }
    candidate->sharding.node_replicas = choice[best];
    return SMP_OK;
}

smp_schedule_shape smp__candidate_shape(const smp__planner *planner, const smp_candidate *candidate)
{
    smp_schedule_shape shape = smp__planner_shape(planner, candidate->pipeline, candidate->chunks,
                                                  candidate->microbatches, candidate->active);
    shape.sharding = candidate->sharding;
    shape.lag = candidate->lag;
    return shape;
}

smp_schedule_shape smp__held_shape(const smp__planner *planner, const smp_candidate *candidate)
{
    smp_schedule_shape shape = smp__candidate_shape(planner, candidate);
    if (planner->held.any_travels)
        shape.offloading = (smp_offloading){candidate->horizon, planner->held.travels};
    return shape;
}

smp_status smp__drop_transfers(const smp__planner *planner, const smp_candidate *candidate,
                               int rank, smp_program *program)
{
    int64_t kept = 0;
    int *stage = calloc((size_t)candidate->chunks, sizeof *stage);
    if (!stage)
        return smp_fail_memory((size_t)candidate->chunks * sizeof *stage);
    for (int s = 0, c = 0; s < candidate->partition->n_stage; s++)
        if (candidate->stage_rank[s] == rank)
            stage[c++] = s;
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action a = program->action[i];
        const bool host = a.kind == SMP_ACTION_STORE || a.kind == SMP_ACTION_LOAD;
        if (!host || planner->held.travels[stage[a.chunk]])
            program->action[kept++] = a;
    }
    program->n = kept;
    free(stage);
    return SMP_OK;
}

smp_status smp__planner_simulation_input(const smp__planner *planner,
                                         const smp_candidate *candidate, smp_arena *arena,
                                         smp_simulation_input *out)
{
    const smp_partition *partition = candidate->partition;
    size_t n = (size_t)partition->n_stage;
    double *forward_us = SMP_ARENA_NEW(arena, double, n);
    double *backward_us = SMP_ARENA_NEW(arena, double, n);
    double *recompute_us = SMP_ARENA_NEW(arena, double, n);
    int64_t *weight_bytes = SMP_ARENA_NEW(arena, int64_t, n);
    if (!forward_us || !backward_us || !recompute_us || !weight_bytes)
        return SMP_ERR_NO_MEMORY;
    for (size_t s = 0; s < n; s++) {
        forward_us[s] = partition->load[s].forward_us;
        backward_us[s] = partition->load[s].backward_us;
        recompute_us[s] = partition->load[s].recompute_us;
        weight_bytes[s] = partition->load[s].weight_bytes;
    }
    /* Half of it unless it was measured. */
    const double *backward_input_us = NULL;
    if (planner->request.profile)
        SMP_TRY(smp_split_backward(planner->costs, partition->stage, partition->n_stage,
                                   backward_us, arena, &backward_input_us));
    *out = (smp_simulation_input){.pipeline = candidate->pipeline,
                                  .chunks = candidate->chunks,
                                  .ddp = candidate->ddp,
                                  .sharding = smp__candidate_sharding(planner, candidate),
                                  .microbatches = candidate->microbatches,
                                  .stage_rank = candidate->stage_rank,
                                  .forward_us = forward_us,
                                  .backward_us = backward_us,
                                  .backward_input_us = backward_input_us,
                                  .recompute_us = recompute_us,
                                  .weight_bytes = weight_bytes,
                                  .offload_bytes = planner->held.offload_bytes,
                                  .horizon = candidate->horizon,
                                  .gradient_blocks = planner->request.options.gradient_blocks,
                                  .flow = planner->held.flow,
                                  .graph = planner->request.graph,
                                  .cluster = planner->request.cluster,
                                  .device = candidate->device,
                                  .optimizer_bytes_per_s = planner->costs->optimizer_bytes_per_s,
                                  .precision = planner->request.graph->target.precision};
    return SMP_OK;
}

/* Is the backward of a stage split in its rank's program? */
static bool splits(const smp_candidate *candidate, const smp_program *program, int stage)
{
    const int rank = candidate->stage_rank[stage];
    int chunk = 0;
    for (int s = 0; s < stage; s++)
        chunk += candidate->stage_rank[s] == rank;
    return program && smp_layout_is_split(&program[rank], chunk);
}

smp_status smp__planner_expose(const smp__planner *planner, const smp_candidate *candidate,
                               const smp_program *program, double *backward_us, double *input_us)
{
    const smp_graph *graph = planner->request.graph;
    const smp_partition *partition = candidate->partition;
    if (!planner->costs->hidden_us)
        return SMP_OK;
    int32_t *op = malloc(((size_t)graph->n_op + 1) * sizeof *op);
    smp_status status = op ? SMP_OK : smp_fail_memory((size_t)graph->n_op * sizeof *op);
    for (int s = 0; s < partition->n_stage && status == SMP_OK; s++) {
        double us = 0;
        int32_t n = 0;
        for (int32_t u = 0; u < graph->n_op; u++)
            if (partition->stage[u] == s)
                op[n++] = u;
        status =
            smp_costs_exposed_us(planner->costs, graph, op, n, splits(candidate, program, s), &us);
        backward_us[s] += us;
        if (input_us)
            input_us[s] += us;
    }
    free(op);
    return status;
}

static smp_status simulate(const smp__planner *planner, const smp_candidate *candidate,
                           smp__evaluation *evaluation)
{
    smp_simulation_input input;
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? smp__planner_simulation_input(planner, candidate, arena, &input)
                              : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status =
            smp__planner_expose(planner, candidate, evaluation->program,
                                (double *)input.backward_us, (double *)input.backward_input_us);
    if (status == SMP_OK) {
        input.program = evaluation->program;
        status = smp_simulate(&input, &evaluation->simulation);
    }
    smp_arena_destroy(arena);
    return status;
}

/* An evaluation without peaks; program: NULL for that of the rule, else taken over. */
static smp_status simulate_candidate(smp__planner *planner, const smp_candidate *candidate,
                                     smp_program *program, smp__evaluation *out)
{
    size_t n = (size_t)candidate->pipeline;
    *out = (smp__evaluation){.program = calloc(n, sizeof *out->program),
                             .peak_bytes = calloc(n, sizeof *out->peak_bytes),
                             .host_bytes = calloc(n, sizeof *out->host_bytes),
                             .pipeline = candidate->pipeline};
    if (!out->program || !out->peak_bytes || !out->host_bytes)
        return smp_fail_memory(n * sizeof *out->program);
    SMP_TRY(smp__planner_hold(planner, candidate->partition, candidate->offload));
    const smp_schedule_shape shape = smp__held_shape(planner, candidate);
    if (!program)
        SMP_TRY(smp_lower(smp_schedule_find(candidate->schedule), &shape, planner->held.flow,
                          out->program));
    for (size_t r = 0; program && r < n; r++) {
        out->program[r] = program[r];
        program[r] = (smp_program){0};
    }
    return simulate(planner, candidate, out);
}

smp_status smp__planner_evaluate(smp__planner *planner, const smp_candidate *candidate,
                                 smp_program *program, bool exactly, smp__evaluation *out)
{
    smp__evaluation evaluation;
    double limit_us = exactly ? 0.0 : candidate->give_up_us;
    smp_status status = simulate_candidate(planner, candidate, program, &evaluation);
    if (status == SMP_OK && !(limit_us > 0.0 && evaluation.simulation->step_us > limit_us))
        status = smp__planner_peaks(planner, candidate, evaluation.program, exactly,
                                    evaluation.peak_bytes, evaluation.host_bytes);
    if (status == SMP_OK)
        *out = evaluation;
    else
        smp__evaluation_free(&evaluation);
    return status;
}

smp_status smp__planner_step_us(smp__planner *planner, const smp_candidate *candidate,
                                double *step_us)
{
    smp__evaluation evaluation;
    smp_status status = simulate_candidate(planner, candidate, NULL, &evaluation);
    if (status == SMP_OK)
        *step_us = evaluation.simulation->step_us;
    smp__evaluation_free(&evaluation);
    return status;
}

void smp__evaluation_free(smp__evaluation *evaluation)
{
    for (int r = 0; evaluation->program && r < evaluation->pipeline; r++)
        smp_program_free(&evaluation->program[r]);
    free(evaluation->program);
    free(evaluation->peak_bytes);
    free(evaluation->host_bytes);
    smp_simulation_destroy(evaluation->simulation);
    *evaluation = (smp__evaluation){0};
}

int64_t smp__planner_limit(const smp__planner *planner, const smp_candidate *candidate, int rank)
{
    return smp__memory_of_rank(&planner->request, candidate->device, candidate->pipeline,
                               candidate->ddp, candidate->sharding, rank);
}

int64_t smp__planner_room(const smp__planner *planner, const smp_candidate *candidate,
                          const int64_t *bytes, int *tight_rank)
{
    int64_t least = INT64_MAX;
    *tight_rank = 0;
    for (int r = 0; r < candidate->pipeline; r++) {
        int64_t room = smp__planner_limit(planner, candidate, r) - bytes[r];
        if (room < least) {
            least = room;
            *tight_rank = r;
        }
    }
    return least;
}

smp_status smp__planner_judge(smp__planner *planner, smp_candidate *candidate)
{
    smp__evaluation evaluation;
    SMP_TRY(smp__planner_evaluate(planner, candidate, NULL, false, &evaluation));
    candidate->step_us = evaluation.simulation->step_us;
    candidate->peak_bytes = 0;
    for (int r = 0; r < candidate->pipeline; r++) {
        candidate->rank_peak_bytes[r] = evaluation.peak_bytes[r];
        if (candidate->peak_bytes < evaluation.peak_bytes[r])
            candidate->peak_bytes = evaluation.peak_bytes[r];
    }
    candidate->room_bytes =
        smp__planner_room(planner, candidate, evaluation.peak_bytes, &candidate->worst_rank);
    candidate->fits = candidate->room_bytes >= 0;
    smp__evaluation_free(&evaluation);
    return SMP_OK;
}
