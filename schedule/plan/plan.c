/* The plan as an object: made of a sketch that leaves nothing out, what it says about ranks and
 * stages, and its agreement with a model. The file is read by plan_file.c and written by
 * plan_write.c. */
#include "schedule/plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/model/op.h"
#include "schedule/plan/plan_field.h"
#include "schedule/plan/sketch.h"

/* A plan trains if a program goes backward. */
static bool goes_backward(const smp_program *program)
{
    for (int64_t i = 0; i < program->n; i++)
        if (smp_action_is_compute(program->action[i].kind) &&
            program->action[i].kind != SMP_ACTION_F)
            return true;
    return false;
}

/* Its ops as names; what the stage says is the sketch's. Who names ops to recompute and does not
 * say how long they take has not said that they are fewer than all. */
static smp_status fill_stage(const smp_sketch_stage *from, smp_arena *arena, int64_t *work,
                             smp_plan_stage *stage)
{
    const char **op = SMP_ARENA_NEW(arena, const char *, (size_t)from->n_entry);
    bool *recompute = SMP_ARENA_NEW(arena, bool, (size_t)from->n_entry);
    bool *offload = SMP_ARENA_NEW(arena, bool, (size_t)from->n_entry);
    if (!op || !recompute || !offload)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < from->n_entry; i++)
        op[i] = from->entry[i].text;
    SMP_TRY(smp_sketch_op_mask(&from->recompute, "recompute", from->stage, op, from->n_entry, work,
                               recompute));
    SMP_TRY(smp_sketch_op_mask(&from->offload, "offload", from->stage, op, from->n_entry, work,
                               offload));
    *stage = (smp_plan_stage){.rank = from->rank,
                              .n_op = from->n_entry,
                              .op = op,
                              .recompute = recompute,
                              .offload = offload,
                              .forward_us = from->forward_us,
                              .backward_us = from->backward_us,
                              .forward_exchange_us = from->forward_exchange_us,
                              .backward_exchange_us = from->backward_exchange_us,
                              .weight_bytes = from->weight_bytes,
                              .stash_bytes = from->stash_bytes,
                              .offload_bytes = from->offload_bytes};
    const int32_t n_recompute = smp_plan_stage_recomputes(stage);
    if (n_recompute > 0)
        stage->recompute_us = n_recompute < from->n_entry && from->recompute_us >= 0.0
                                  ? from->recompute_us
                                  : from->forward_us;
    return SMP_OK;
}

/* NULL unless a stage says it; another one's is half. */
static smp_status fill_split(const smp_sketch *sketch, const double **out)
{
    double *input_us = NULL;
    for (int s = 0; s < sketch->n_stage; s++)
        if (sketch->stage[s].backward_input_us >= 0 && !input_us) {
            input_us = SMP_ARENA_NEW(sketch->arena, double, (size_t)sketch->n_stage);
            if (!input_us)
                return SMP_ERR_NO_MEMORY;
        }
    for (int s = 0; input_us && s < sketch->n_stage; s++) {
        const smp_sketch_stage *stage = &sketch->stage[s];
        input_us[s] =
            stage->backward_input_us >= 0 ? stage->backward_input_us : stage->backward_us / 2;
    }
    *out = input_us;
    return SMP_OK;
}

static smp_status list_fewer(smp_plan *plan)
{
    const int most = smp_plan_tensor(plan);
    size_t n = 0;
    for (int s = 0; s < plan->n_stage; s++)
        n += (size_t)plan->stage[s].n_op;
    smp_split_fewer *fewer = SMP_ARENA_NEW(plan->arena, smp_split_fewer, n);
    if (!fewer)
        return SMP_ERR_NO_MEMORY;
    plan->splitting.fewer = fewer;
    plan->splitting.n_fewer = 0;
    for (int s = 0; s < plan->n_stage; s++) {
        const int own = smp_plan_rank_tensor(plan, plan->stage[s].rank);
        for (int32_t i = 0; own < most && i < plan->stage[s].n_op; i++)
            fewer[plan->splitting.n_fewer++] = (smp_split_fewer){plan->stage[s].op[i], own};
    }
    return SMP_OK;
}

smp_status smp_plan_set_groups(smp_plan *plan, const int *rank_begin)
{
    const size_t n = (size_t)plan->pipeline + 1;
    int *begin = SMP_ARENA_NEW(plan->arena, int, n);
    bool differ = false;
    if (!begin)
        return SMP_ERR_NO_MEMORY;
    memcpy(begin, rank_begin, n * sizeof *begin);
    for (int r = 0; r < plan->pipeline; r++)
        differ |= begin[r + 1] - begin[r] != smp_plan_tensor(plan);
    if (!differ)
        return SMP_OK;
    plan->rank_begin = begin;
    return list_fewer(plan);
}

/* Which stages anything travels of. */
static smp_status set_travels(smp_plan *plan)
{
    bool *travels = SMP_ARENA_NEW(plan->arena, bool, (size_t)plan->n_stage);
    bool any = false;
    if (!travels)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < plan->n_stage; s++)
        any |= travels[s] = plan->stage[s].offload_bytes > 0;
    plan->travels = any ? travels : NULL;
    if (any && plan->loading_horizon == 0)
        plan->loading_horizon = 1;
    return SMP_OK;
}

/* The cluster of a plan whose groups differ was read as it is. */
static smp_status set_groups(const smp_sketch *sketch, smp_plan *plan)
{
    smp_cluster *groups;
    if (!sketch->groups_differ)
        return SMP_OK;
    int *begin = SMP_ARENA_NEW(plan->arena, int, (size_t)plan->pipeline + 1);
    if (!begin)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_sketch_groups(sketch, plan->pipeline, begin));
    SMP_TRY(smp_plan_set_groups(plan, begin));
    if (!plan->cluster)
        return SMP_OK;
    smp_status status =
        smp_cluster_group_ranks(plan->cluster, begin, plan->pipeline, plan->ddp, &groups);
    if (status == SMP_ERR_INPUT)
        return smp_fail_at(plan->place.stages, "%s", smp_last_error());
    SMP_TRY(status);
    status = smp_cluster_copy(groups, plan->arena, &plan->cluster);
    smp_cluster_destroy(groups);
    return status;
}

/* The plan that a whole sketch spells out, in the sketch's own arena. */
static smp_status fill_plan(const smp_sketch *sketch, smp_plan *plan)
{
    smp_plan_stage *stage = SMP_ARENA_NEW(sketch->arena, smp_plan_stage, (size_t)sketch->n_stage);
    smp_where *place = SMP_ARENA_NEW(sketch->arena, smp_where, (size_t)sketch->n_stage);
    int64_t work = 0;
    if (!stage || !place)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < sketch->n_stage; s++) {
        place[s] = sketch->stage[s].where;
        SMP_TRY(fill_stage(&sketch->stage[s], sketch->arena, &work, &stage[s]));
    }
    *plan = (smp_plan){.model_path = sketch->model_path,
                       .model_name = sketch->model_name,
                       .settings = sketch->settings,
                       .fingerprint = sketch->fingerprint,
                       .devices = sketch->pipeline * sketch->ddp,
                       .pipeline = sketch->pipeline,
                       .ddp = sketch->ddp,
                       .chunks = sketch->chunks,
                       .splitting = sketch->splitting,
                       .placement = sketch->placement,
                       .device = sketch->device,
                       .microbatches = sketch->microbatches,
                       .microbatch_size = sketch->microbatch_size,
                       .sharding = sketch->sharding,
                       .gradient_blocks =
                           sketch->gradient_blocks > 0 ? sketch->gradient_blocks : sketch->ddp,
                       .loading_horizon = sketch->loading_horizon,
                       .schedule = sketch->schedule,
                       .target = sketch->target,
                       .library_bytes = sketch->library_bytes,
                       .n_stage = sketch->n_stage,
                       .stage = stage,
                       .program = sketch->program,
                       .predicted = sketch->predicted,
                       .cluster = sketch->cluster,
                       .optimizer_bytes_per_s = sketch->optimizer_bytes_per_s,
                       .products = sketch->products,
                       .freezing = sketch->freezing,
                       .place = {.fingerprint = sketch->fingerprint_where,
                                 .schedule = sketch->schedule_where,
                                 .stages = sketch->stages_where,
                                 .predicted = sketch->predicted_where,
                                 .host = sketch->host_where,
                                 .stage = place,
                                 .program = sketch->program_where},
                       .arena = sketch->arena};
    for (int r = 0; r < plan->pipeline; r++)
        plan->training |= goes_backward(&plan->program[r]);
    SMP_TRY(set_travels(plan));
    SMP_TRY(set_groups(sketch, plan));
    return fill_split(sketch, &plan->backward_input_us);
}

static smp_status from_yaml(smp_yaml *yaml, smp_plan **out)
{
    smp_sketch *sketch;
    SMP_TRY(smp__sketch_from_yaml(yaml, true, &sketch));
    smp_plan *plan = SMP_ARENA_NEW(sketch->arena, smp_plan, 1);
    smp_status status = plan ? fill_plan(sketch, plan) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        *out = plan;
    else
        smp_sketch_destroy(sketch);
    return status;
}

smp_status smp_plan_read(const char *path, smp_plan **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_read(path, &yaml));
    return from_yaml(yaml, out);
}

smp_status smp_plan_parse(const char *name, const char *text, size_t bytes, smp_plan **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_parse(name, text, bytes, &yaml));
    return from_yaml(yaml, out);
}

void smp_plan_destroy(smp_plan *plan)
{
    if (!plan)
        return;
    for (int r = 0; plan->program && r < plan->pipeline; r++)
        smp_program_free((smp_program *)&plan->program[r]);
    smp_arena_destroy(plan->arena);
}

smp_status smp_plan_set_stages(smp_plan *plan, const smp_graph *graph,
                               const smp_partition *partition, const int *stage_rank,
                               const bool *offload, const int64_t *offload_bytes)
{
    size_t n_stage = (size_t)partition->n_stage;
    smp_plan_stage *stage = SMP_ARENA_NEW(plan->arena, smp_plan_stage, n_stage);
    const char **name = SMP_ARENA_NEW(plan->arena, const char *, (size_t)graph->n_op);
    bool *recompute = SMP_ARENA_NEW(plan->arena, bool, (size_t)graph->n_op);
    bool *away = SMP_ARENA_NEW(plan->arena, bool, (size_t)graph->n_op);
    if (!stage || !name || !recompute || !away)
        return SMP_ERR_NO_MEMORY;
    for (size_t s = 0; s < n_stage; s++) {
        const smp_stage_load *load = &partition->load[s];
        stage[s] = (smp_plan_stage){.rank = stage_rank[s],
                                    .op = name,
                                    .recompute = recompute,
                                    .offload = away,
                                    .forward_us = load->forward_us,
                                    .backward_us = load->backward_us,
                                    .forward_exchange_us = load->forward_exchange_us,
                                    .backward_exchange_us = load->backward_exchange_us,
                                    .recompute_us = load->recompute_us,
                                    .weight_bytes = load->weight_bytes,
                                    .stash_bytes = load->stash_bytes,
                                    .offload_bytes = offload ? offload_bytes[s] : 0};
        name += load->n_op;
        recompute += load->n_op;
        away += load->n_op;
    }
    for (int32_t u = 0; u < graph->n_op; u++) {
        smp_plan_stage *home = &stage[partition->stage[u]];
        const char *copy = smp_arena_strdup(plan->arena, graph->op[u].name);
        if (!copy)
            return SMP_ERR_NO_MEMORY;
        ((bool *)home->recompute)[home->n_op] = partition->recompute[u];
        ((bool *)home->offload)[home->n_op] = offload && offload[u];
        ((const char **)home->op)[home->n_op++] = copy;
    }
    plan->stage = stage;
    plan->n_stage = partition->n_stage;
    return set_travels(plan);
}

/* Is `path` a file that can be opened? */
static bool can_read(const char *path)
{
    return access(path, R_OK) == 0;
}

static smp_status read_model(const smp_plan *plan, const char *plan_path, smp_graph **out)
{
    const char *path = plan->model_path;
    const char *slash = plan_path ? strrchr(plan_path, '/') : NULL;
    if (path[0] == '/' || !slash)
        return smp_graph_read_joined(path, plan->settings, out);
    smp_text beside = {0};
    smp_text_append_bytes(&beside, plan_path, (size_t)(slash - plan_path) + 1);
    smp_text_append(&beside, "%s", path);
    smp_status status = SMP_ERR_NO_MEMORY;
    if (beside.failed)
        smp_fail_memory(strlen(plan_path) + strlen(path));
    else if (!can_read(beside.data) && can_read(path))
        status = smp_graph_read_joined(path, plan->settings, out);
    else
        status = smp_graph_read_joined(beside.data, plan->settings, out);
    smp_text_free(&beside);
    return status;
}

smp_status smp_plan_open_model(const smp_plan *plan, const char *plan_path, int index,
                               smp_graph **out)
{
    smp_graph *graph;
    SMP_TRY(read_model(plan, plan_path, &graph));
    smp_status status = smp_freezing_apply(&plan->freezing, graph);
    if (status == SMP_OK)
        status = smp_splitting_apply(&plan->splitting, index, &graph);
    if (status == SMP_OK)
        status = smp_graph_set_target(graph, plan->target);
    if (status == SMP_OK)
        status = smp_gemm_choices_give(&plan->products, graph);
    if (status == SMP_OK)
        *out = graph;
    else
        smp_graph_destroy(graph);
    return status;
}

smp_where smp_plan_stage_where(const smp_plan *plan, int stage)
{
    return plan->place.stage ? plan->place.stage[stage] : plan->place.stages;
}

smp_where smp_plan_program_where(const smp_plan *plan, int rank)
{
    return plan->place.program ? plan->place.program[rank] : (smp_where){0};
}

/* Most names are those of the op after the last one: no look-up. */
static int32_t find_op(const smp_graph *graph, int32_t guess, const char *name)
{
    if (guess < graph->n_op && strcmp(graph->op[guess].name, name) == 0)
        return guess;
    return smp_graph_find_op(graph, name);
}

/* Stage of every op, -1 where no stage names it. */
static smp_status assign_stages(const smp_plan *plan, const smp_graph *graph, int32_t *stage)
{
    for (int32_t u = 0; u < graph->n_op; u++)
        stage[u] = -1;
    for (int s = 0; s < plan->n_stage; s++) {
        int32_t previous = -1;
        for (int32_t i = 0; i < plan->stage[s].n_op; i++) {
            const char *name = plan->stage[s].op[i];
            int32_t u = find_op(graph, previous + 1, name);
            if (u < 0)
                return smp_fail_at(smp_plan_stage_where(plan, s),
                                   "stage %d holds op '%s', model '%s' has none", s, name,
                                   graph->name);
            if (stage[u] >= 0)
                return smp_fail_at(smp_plan_stage_where(plan, s),
                                   "op '%s' lies in stage %d and in stage %d", name, (int)stage[u],
                                   s);
            if (u < previous)
                return smp_fail_at(smp_plan_stage_where(plan, s),
                                   "stage %d names op '%s' after op '%s', expected the order of "
                                   "the model",
                                   s, name, graph->op[previous].name);
            stage[u] = s;
            previous = u;
        }
    }
    return SMP_OK;
}

/* What devices tell each other in an op takes all of a group, and no others. */
static smp_status check_groups(const smp_plan *plan, const smp_graph *graph, const int32_t *stage)
{
    for (int32_t u = 0; plan->rank_begin && u < graph->n_op; u++) {
        const smp_op *op = &graph->op[u];
        const int at = smp_op_attr_index(op->kind, "devices");
        const int devices = smp_plan_rank_tensor(plan, plan->stage[stage[u]].rank);
        if (at >= 0 && op->attr[at].i > 1 && op->attr[at].i != devices)
            return smp_fail_at(smp_plan_stage_where(plan, stage[u]),
                               "op '%s' is for %lld devices, and lies in stage %d, which has %d",
                               op->name, (long long)op->attr[at].i, (int)stage[u], devices);
    }
    return SMP_OK;
}

static smp_status check_stages(const smp_plan *plan, const smp_graph *graph, const int32_t *stage)
{
    for (int32_t u = 0; u < graph->n_op; u++) {
        const smp_op *op = &graph->op[u];
        if (stage[u] < 0)
            return smp_fail_at(plan->place.stages, "op '%s' of the model lies in no stage",
                               op->name);
        for (int32_t i = 0; i < op->n_in; i++) {
            int32_t producer = graph->tensor[op->in[i]].producer;
            if (producer >= 0 && stage[producer] > stage[u])
                return smp_fail_at(smp_plan_stage_where(plan, stage[u]),
                                   "op '%s' in stage %d reads the output of op '%s' in stage "
                                   "%d, expected the same or an earlier stage",
                                   op->name, (int)stage[u], graph->op[producer].name,
                                   (int)stage[producer]);
        }
    }
    return SMP_OK;
}

smp_status smp_plan_bind(const smp_plan *plan, const smp_graph *graph, int32_t **stage_of_op)
{
    if (plan->fingerprint != graph->fingerprint)
        return smp_fail_at(
            plan->place.fingerprint,
            "the plan was made for model '%s' with fingerprint %016llx, model '%s' has "
            "%016llx: plan again",
            plan->model_name, (unsigned long long)plan->fingerprint, graph->name,
            (unsigned long long)graph->fingerprint);
    if (plan->training != graph->training)
        return smp_fail_at(plan->place.fingerprint,
                           "the programs of the plan %s backward actions, model '%s' %s",
                           plan->training ? "have" : "have no", graph->name,
                           graph->training ? "is trained" : "is for inference");
    if (!smp_target_equal(plan->target, graph->target))
        return smp_fail_at(
            plan->place.fingerprint, "the plan is for %s in %s, model '%s' was opened for %s in %s",
            smp_backend_name(plan->target.backend), smp_precision_name(plan->target.precision),
            graph->name, smp_backend_name(graph->target.backend),
            smp_precision_name(graph->target.precision));
    size_t bytes = (size_t)graph->n_op * sizeof(int32_t);
    int32_t *stage = malloc(bytes > 0 ? bytes : 1);
    if (!stage)
        return smp_fail_memory(bytes);
    smp_status status = assign_stages(plan, graph, stage);
    if (status == SMP_OK)
        status = check_stages(plan, graph, stage);
    if (status == SMP_OK)
        status = check_groups(plan, graph, stage);
    if (status == SMP_OK)
        *stage_of_op = stage;
    else
        free(stage);
    return status;
}

smp_schedule_shape smp_plan_shape(const smp_plan *plan)
{
    return (smp_schedule_shape){
        .pipeline = plan->pipeline,
        .chunks = plan->chunks,
        .microbatches = plan->microbatches,
        .training = plan->training,
        .sharding = plan->sharding,
        .offloading = {.horizon = plan->loading_horizon, .stage = plan->travels}};
}

int smp_plan_stage_of(const smp_plan *plan, int rank, int chunk)
{
    for (int s = 0; s < plan->n_stage; s++)
        if (plan->stage[s].rank == rank && chunk-- == 0)
            return s;
    return -1;
}

int smp_placement_device(smp_placement placement, const int *listed, int pipeline, int ddp,
                         int replica, int rank)
{
    int place = replica * pipeline + rank;
    if (placement == SMP_PLACEMENT_LISTED)
        return listed[place];
    return placement == SMP_PLACEMENT_CLUSTER ? place : rank * ddp + replica;
}

int smp_plan_device(const smp_plan *plan, int replica, int rank)
{
    if (plan->rank_begin)
        return replica * plan->rank_begin[plan->pipeline] + plan->rank_begin[rank];
    return smp_placement_device(plan->placement, plan->device, plan->pipeline, plan->ddp, replica,
                                rank);
}

void smp_first_devices(const int *rank_begin, int pipeline, int ddp, int *device)
{
    for (int i = 0; i < pipeline * ddp; i++)
        device[i] = i / pipeline * rank_begin[pipeline] + rank_begin[i % pipeline];
}

bool smp_plan_place(const smp_plan *plan, int process, int *replica, int *rank, int *index)
{
    for (int k = 0; k < plan->ddp; k++)
        for (int r = 0; r < plan->pipeline; r++) {
            const int first = smp_plan_first_process(plan, k, r);
            if (process < first || process >= first + smp_plan_rank_tensor(plan, r))
                continue;
            *replica = k;
            *rank = r;
            *index = process - first;
            return true;
        }
    return false;
}

smp_placement smp_placement_of(const int *listed, int pipeline, int ddp)
{
    for (int placement = SMP_PLACEMENT_CLUSTER; placement <= SMP_PLACEMENT_SPREAD; placement++) {
        bool same = true;
        for (int i = 0; i < pipeline * ddp && same; i++)
            same = listed[i] == smp_placement_device((smp_placement)placement, NULL, pipeline, ddp,
                                                     i / pipeline, i % pipeline);
        if (same)
            return (smp_placement)placement;
    }
    return SMP_PLACEMENT_LISTED;
}
