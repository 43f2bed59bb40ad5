/* Reading plan files, and checking them by themselves: keys, types, counts, ranks, that programs name
 * only micro-batches and chunks that exist. Agreement with the model is smp_plan_bind's, that of
 * the programs with each other the verifier's.
 *
 * Memory is bounded by the size of the file: every count is compared with a list that the file
 * spells out before anything of that size is made. Linear in the file. */
#include "schedule/plan/plan_field.h"

/* The file's name belongs to the document: the plan's places share a copy of it. */
static smp_where keep_where(const smp_plan *plan, const smp_yaml_node *node)
{
    smp_where where = smp_yaml_where(node);
    where.file = plan->place.stages.file;
    return where;
}

static smp_status keep_file(const smp_yaml *yaml, smp_plan *plan)
{
    const char *file = smp_arena_strdup(plan->arena, smp_yaml_file(yaml));
    plan->place.stages.file = plan->place.fingerprint.file = file;
    plan->place.schedule.file = plan->place.predicted.file = file;
    return file ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status read_parallel(const smp_yaml_node *top, smp_plan *plan)
{
    static const char *const keys[] = {"devices", "pipeline", "ddp", "placement", "chunks"};
    const smp_yaml_node *map;
    SMP_TRY(smp__field_map(top, "plan", "parallel", keys, SMP__COUNT(keys), &map));
    SMP_TRY(smp__field_int(map, "parallel", "devices", 1, SMP__MAX_DEVICES, &plan->devices));
    SMP_TRY(smp__field_int(map, "parallel", "pipeline", 1, SMP__MAX_DEVICES, &plan->pipeline));
    SMP_TRY(smp__field_int(map, "parallel", "ddp", 1, SMP__MAX_DEVICES, &plan->ddp));
    SMP_TRY(smp__field_int(map, "parallel", "chunks", 1, SMP__MAX_STAGES, &plan->chunks));
    SMP_TRY(smp__field_placement(map, &plan->placement));
    if ((int64_t)plan->pipeline * plan->ddp != plan->devices)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "devices")),
                           "parallel: devices: got %d, expected pipeline * ddp = %lld",
                           plan->devices, (long long)plan->pipeline * plan->ddp);
    if ((int64_t)plan->pipeline * plan->chunks > SMP__MAX_STAGES)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "chunks")),
                           "parallel: got %d ranks of %d chunks, expected at most %d stages",
                           plan->pipeline, plan->chunks, SMP__MAX_STAGES);
    plan->n_stage = plan->pipeline * plan->chunks;
    return SMP_OK;
}

static smp_status read_head(const smp_yaml_node *top, smp_plan *plan)
{
    static const char *const model_keys[] = {"path", "name", "fingerprint"};
    static const char *const batch_keys[] = {"microbatches", "microbatch_size"};
    const smp_yaml_node *model, *batch, *schedule;
    SMP_TRY(smp__field_map(top, "plan", "model", model_keys, SMP__COUNT(model_keys), &model));
    SMP_TRY(smp__field_text(model, "model", "path", plan->arena, &plan->model_path));
    SMP_TRY(smp__field_text(model, "model", "name", plan->arena, &plan->model_name));
    SMP_TRY(smp__field_fingerprint(model, &plan->fingerprint));
    plan->place.fingerprint = keep_where(plan, smp_yaml_get(model, "fingerprint"));
    SMP_TRY(read_parallel(top, plan));
    SMP_TRY(smp__field_map(top, "plan", "batch", batch_keys, SMP__COUNT(batch_keys), &batch));
    SMP_TRY(smp__field_int(batch, "batch", "microbatches", 1, SMP__MAX_BATCH, &plan->microbatches));
    SMP_TRY(smp__field_int64(batch, "batch", "microbatch_size", 1, SMP__MAX_BATCH,
                             &plan->microbatch_size));
    SMP_TRY(smp__field(top, "plan", "schedule", &schedule));
    plan->place.schedule = keep_where(plan, schedule);
    SMP_TRY(smp__copy_text(schedule, "schedule", plan->arena, &plan->schedule));
    plan->schedule = smp_schedule_name(plan->schedule);
    return smp__plan_read_target(top, &plan->target);
}

static smp_status read_stage_ops(const smp_yaml_node *map, smp_arena *arena, smp_plan_stage *stage)
{
    const smp_yaml_node *list;
    SMP_TRY(smp__field_list(map, "stage", "ops", &list));
    stage->n_op = smp_yaml_list_size(list);
    if (stage->n_op < 1)
        return smp_fail_at(smp_yaml_where(list), "stage: ops: got an empty list, expected ops");
    const char **op = SMP_ARENA_NEW(arena, const char *, (size_t)stage->n_op);
    if (!op)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < stage->n_op; i++)
        SMP_TRY(smp__copy_text(smp_yaml_list_at(list, i), "stage: op", arena, &op[i]));
    stage->op = op;
    return SMP_OK;
}

static smp_status read_stage(const smp_yaml_node *map, int index, const smp_plan *plan,
                             smp_plan_stage *stage)
{
    static const char *const keys[] = {"stage",      "rank",        "ops",          "recompute",
                                       "forward_us", "backward_us", "weight_bytes", "stash_bytes"};
    const smp_yaml_node *recompute;
    int number;
    SMP_TRY(smp_yaml_map(map, "stage"));
    SMP_TRY(smp_yaml_known_keys(map, "stage", keys, SMP__COUNT(keys)));
    SMP_TRY(smp__field_int(map, "stage", "stage", 0, SMP__MAX_STAGES, &number));
    if (number != index)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "stage")),
                           "stage: stage: got %d, expected %d: stages stand in forward order",
                           number, index);
    SMP_TRY(smp__field_int(map, "stage", "rank", 0, plan->pipeline - 1, &stage->rank));
    SMP_TRY(read_stage_ops(map, plan->arena, stage));
    SMP_TRY(smp__field(map, "stage", "recompute", &recompute));
    SMP_TRY(smp_yaml_bool(recompute, "stage: recompute", &stage->recompute));
    SMP_TRY(smp__field_double(map, "stage", "forward_us", 0, SMP__MAX_US, &stage->forward_us));
    SMP_TRY(smp__field_double(map, "stage", "backward_us", 0, SMP__MAX_US, &stage->backward_us));
    SMP_TRY(
        smp__field_int64(map, "stage", "weight_bytes", 0, SMP__MAX_BYTES, &stage->weight_bytes));
    return smp__field_int64(map, "stage", "stash_bytes", 0, SMP__MAX_BYTES, &stage->stash_bytes);
}

static smp_status read_stages(const smp_yaml_node *top, smp_plan *plan)
{
    const smp_yaml_node *list;
    SMP_TRY(smp__field_list(top, "plan", "stages", &list));
    if (smp_yaml_list_size(list) != plan->n_stage)
        return smp_fail_at(smp_yaml_where(list),
                           "stages: got %d entries, expected pipeline * chunks = %d",
                           smp_yaml_list_size(list), plan->n_stage);
    smp_plan_stage *stage = SMP_ARENA_NEW(plan->arena, smp_plan_stage, (size_t)plan->n_stage);
    int *held = SMP_ARENA_NEW(plan->arena, int, (size_t)plan->pipeline);
    smp_where *place = SMP_ARENA_NEW(plan->arena, smp_where, (size_t)plan->n_stage);
    if (!stage || !held || !place)
        return SMP_ERR_NO_MEMORY;
    plan->stage = stage;
    plan->place.stage = place;
    plan->place.stages = keep_where(plan, list);
    for (int s = 0; s < plan->n_stage; s++) {
        const smp_yaml_node *map = smp_yaml_list_at(list, s);
        place[s] = keep_where(plan, map);
        SMP_TRY(read_stage(map, s, plan, &stage[s]));
        if (++held[stage[s].rank] > plan->chunks)
            return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "rank")),
                               "stage: rank: rank %d holds more than %d stage%s", stage[s].rank,
                               plan->chunks, plan->chunks == 1 ? "" : "s");
    }
    return SMP_OK;
}

static smp_status check_program(const smp_yaml_node *node, const smp_plan *plan, int rank)
{
    const smp_program *program = &plan->program[rank];
    int64_t forwards = 0;
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *action = &program->action[i];
        forwards += action->kind == SMP_ACTION_F;
        if (action->chunk >= plan->chunks || action->microbatch >= plan->microbatches)
            return smp_fail_at(smp_yaml_where(node),
                               "programs: rank %d: action %lld is for micro-batch %d of chunk %d, "
                               "the plan has %d micro-batches and %d chunks",
                               rank, (long long)i + 1, (int)action->microbatch, (int)action->chunk,
                               plan->microbatches, plan->chunks);
    }
    if (forwards != (int64_t)plan->microbatches * plan->chunks)
        return smp_fail_at(smp_yaml_where(node),
                           "programs: rank %d: got %lld forward actions, expected microbatches * "
                           "chunks = %lld",
                           rank, (long long)forwards, (long long)plan->microbatches * plan->chunks);
    return SMP_OK;
}

/* A plan trains if a program goes backward. */
static bool goes_backward(const smp_program *program)
{
    for (int64_t i = 0; i < program->n; i++)
        if (smp_action_is_compute(program->action[i].kind) &&
            program->action[i].kind != SMP_ACTION_F)
            return true;
    return false;
}

static smp_status read_programs(const smp_yaml_node *top, smp_plan *plan)
{
    const smp_yaml_node *list;
    SMP_TRY(smp__field_list(top, "plan", "programs", &list));
    if (smp_yaml_list_size(list) != plan->pipeline)
        return smp_fail_at(smp_yaml_where(list), "programs: got %d, expected one per rank: %d",
                           smp_yaml_list_size(list), plan->pipeline);
    smp_program *program = SMP_ARENA_NEW(plan->arena, smp_program, (size_t)plan->pipeline);
    smp_where *place = SMP_ARENA_NEW(plan->arena, smp_where, (size_t)plan->pipeline);
    if (!program || !place)
        return SMP_ERR_NO_MEMORY;
    plan->place.program = place;
    plan->program = program; /* from here on smp_plan_destroy frees the actions */
    for (int r = 0; r < plan->pipeline; r++) {
        const smp_yaml_node *node = smp_yaml_list_at(list, r);
        const char *text;
        place[r] = keep_where(plan, node);
        SMP_TRY(smp_yaml_string(node, "program", &text));
        SMP_TRY(smp_program_parse(text, r, smp_yaml_where(node), &program[r]));
        SMP_TRY(check_program(node, plan, r));
        plan->training |= goes_backward(&program[r]);
    }
    return SMP_OK;
}

static smp_status read_predicted(const smp_yaml_node *top, smp_plan *plan)
{
    static const char *const keys[] = {"step_us",        "bubble", "samples_per_s", "bottleneck_us",
                                       "lower_bound_us", "gap",    "peak_bytes"};
    smp_predicted *predicted = &plan->predicted;
    const smp_yaml_node *map, *list;
    const char *what = "predicted";
    SMP_TRY(smp__field_map(top, "plan", what, keys, SMP__COUNT(keys), &map));
    SMP_TRY(smp__field_double(map, what, "step_us", 0, SMP__MAX_US, &predicted->step_us));
    SMP_TRY(smp__field_double(map, what, "bubble", 0, 1, &predicted->bubble));
    SMP_TRY(
        smp__field_double(map, what, "samples_per_s", 0, SMP__MAX_US, &predicted->samples_per_s));
    SMP_TRY(
        smp__field_double(map, what, "bottleneck_us", 0, SMP__MAX_US, &predicted->bottleneck_us));
    SMP_TRY(
        smp__field_double(map, what, "lower_bound_us", 0, SMP__MAX_US, &predicted->lower_bound_us));
    SMP_TRY(smp__field_double(map, what, "gap", -1, SMP__MAX_US, &predicted->gap));
    SMP_TRY(smp__field_list(map, what, "peak_bytes", &list));
    if (smp_yaml_list_size(list) != plan->pipeline)
        return smp_fail_at(smp_yaml_where(list),
                           "predicted: peak_bytes: got %d, expected one per rank: %d",
                           smp_yaml_list_size(list), plan->pipeline);
    int64_t *peak = SMP_ARENA_NEW(plan->arena, int64_t, (size_t)plan->pipeline);
    if (!peak)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < plan->pipeline; r++)
        SMP_TRY(smp_yaml_int(smp_yaml_list_at(list, r), "predicted: peak_bytes", 0, SMP__MAX_BYTES,
                             &peak[r]));
    predicted->peak_bytes = peak;
    plan->place.predicted = keep_where(plan, list);
    return SMP_OK;
}

static smp_status read_plan(const smp_yaml *yaml, smp_plan *plan)
{
    static const char *const keys[] = {"smp",    "model",    "parallel",  "batch",   "schedule",
                                       "stages", "programs", "predicted", "cluster", "execution"};
    const smp_yaml_node *top;
    SMP_TRY(smp_yaml_top(yaml, &top));
    SMP_TRY(smp_yaml_known_keys(top, "plan", keys, SMP__COUNT(keys)));
    SMP_TRY(keep_file(yaml, plan));
    SMP_TRY(read_head(top, plan));
    SMP_TRY(read_stages(top, plan));
    SMP_TRY(read_programs(top, plan));
    SMP_TRY(read_predicted(top, plan));
    return smp__plan_read_cluster(top, plan->devices, plan->arena, &plan->cluster,
                                  &plan->optimizer_bytes_per_s);
}

/* Frees the document. */
static smp_status make_plan(smp_yaml *yaml, smp_plan **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_plan *plan = NULL;
    smp_arena *arena = smp_arena_create();
    if (arena)
        plan = SMP_ARENA_NEW(arena, smp_plan, 1);
    if (plan) {
        plan->arena = arena;
        status = read_plan(yaml, plan);
    } else {
        smp_arena_destroy(arena);
    }
    if (status == SMP_OK)
        *out = plan;
    else
        smp_plan_destroy(plan);
    smp_yaml_destroy(yaml);
    return status;
}

smp_status smp_plan_read(const char *path, smp_plan **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_read(path, &yaml));
    return make_plan(yaml, out);
}

smp_status smp_plan_parse(const char *name, const char *text, size_t bytes, smp_plan **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_parse(name, text, bytes, &yaml));
    return make_plan(yaml, out);
}
