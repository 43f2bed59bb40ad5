/* The plan as an object: what it says about ranks and stages, and its agreement with a model. The
 * file is read by plan_file.c and written by plan_write.c. */
#include "schedule/plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void smp_plan_destroy(smp_plan *plan)
{
    if (!plan)
        return;
    for (int r = 0; plan->program && r < plan->pipeline; r++)
        smp_program_free((smp_program *)&plan->program[r]);
    smp_arena_destroy(plan->arena);
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
        return smp_graph_read(path, out);
    smp_text beside = {0};
    smp_text_append_bytes(&beside, plan_path, (size_t)(slash - plan_path) + 1);
    smp_text_append(&beside, "%s", path);
    smp_status status = SMP_ERR_NO_MEMORY;
    if (beside.failed)
        smp_fail_memory(strlen(plan_path) + strlen(path));
    else if (!can_read(beside.data) && can_read(path))
        status = smp_graph_read(path, out);
    else
        status = smp_graph_read(beside.data, out);
    smp_text_free(&beside);
    return status;
}

smp_status smp_plan_open_model(const smp_plan *plan, const char *plan_path, smp_graph **out)
{
    smp_graph *graph;
    SMP_TRY(read_model(plan, plan_path, &graph));
    smp_status status = smp_graph_set_target(graph, plan->target);
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
        *stage_of_op = stage;
    else
        free(stage);
    return status;
}

smp_schedule_shape smp_plan_shape(const smp_plan *plan)
{
    return (smp_schedule_shape){.pipeline = plan->pipeline,
                                .chunks = plan->chunks,
                                .microbatches = plan->microbatches,
                                .training = plan->training};
}

int smp_plan_stage_of(const smp_plan *plan, int rank, int chunk)
{
    for (int s = 0; s < plan->n_stage; s++)
        if (plan->stage[s].rank == rank && chunk-- == 0)
            return s;
    return -1;
}

int smp_plan_device(smp_placement placement, int pipeline, int ddp, int replica, int rank)
{
    return placement == SMP_PLACEMENT_CLUSTER ? replica * pipeline + rank : rank * ddp + replica;
}
