/* Reading plan files, and checking them by themselves: keys, types, counts, ranks, that programs name
 * only micro-batches and chunks that exist. Agreement with the model is smp_plan_bind's, that of
 * the programs with each other the verifier's.
 *
 * Memory is bounded by the size of the file: every count is compared with a list that the file
 * spells out before anything of that size is made. Linear in the file. */
#include <stdio.h>
#include <string.h>

#include "graph/base/yaml.h"
#include "schedule/plan.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_US 1e300
#define MAX_RATE 1e21
#define MAX_BYTES ((int64_t)1 << 62)

enum { MAX_DEVICES = 1 << 20, MAX_STAGES = 1 << 20, MAX_BATCH = 1 << 30, MAX_CORES = 1 << 16 };

static smp_status required(const smp_yaml_node *map, const char *what, const char *key,
                           const smp_yaml_node **out)
{
    *out = smp_yaml_get(map, key);
    if (!*out)
        return smp_fail_at(smp_yaml_where(map), "%s: key '%s' is missing", what, key);
    return SMP_OK;
}

/* The map under a key of `map`, with known keys only. */
static smp_status read_map(const smp_yaml_node *map, const char *what, const char *key,
                           const char *const *keys, size_t n_key, const smp_yaml_node **out)
{
    SMP_TRY(required(map, what, key, out));
    SMP_TRY(smp_yaml_map(*out, key));
    return smp_yaml_known_keys(*out, key, keys, n_key);
}

static smp_status read_list(const smp_yaml_node *map, const char *what, const char *key,
                            const smp_yaml_node **out)
{
    SMP_TRY(required(map, what, key, out));
    return smp_yaml_list(*out, key);
}

static smp_status read_int64(const smp_yaml_node *map, const char *what, const char *key,
                             int64_t min, int64_t max, int64_t *out)
{
    const smp_yaml_node *node;
    char name[64];
    SMP_TRY(required(map, what, key, &node));
    snprintf(name, sizeof name, "%s: %s", what, key);
    return smp_yaml_int(node, name, min, max, out);
}

static smp_status read_int(const smp_yaml_node *map, const char *what, const char *key, int min,
                           int max, int *out)
{
    int64_t value;
    SMP_TRY(read_int64(map, what, key, min, max, &value));
    *out = (int)value;
    return SMP_OK;
}

static smp_status read_double(const smp_yaml_node *map, const char *what, const char *key,
                              double min, double max, double *out)
{
    const smp_yaml_node *node;
    char name[64];
    SMP_TRY(required(map, what, key, &node));
    snprintf(name, sizeof name, "%s: %s", what, key);
    return smp_yaml_double(node, name, min, max, out);
}

static smp_status copy_text(const smp_yaml_node *node, const char *what, smp_arena *arena,
                            const char **out)
{
    const char *text;
    SMP_TRY(smp_yaml_string(node, what, &text));
    if (!*text)
        return smp_fail_at(smp_yaml_where(node), "%s: got an empty string", what);
    *out = smp_arena_strdup(arena, text);
    return *out ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status read_text(const smp_yaml_node *map, const char *what, const char *key,
                            smp_arena *arena, const char **out)
{
    const smp_yaml_node *node;
    char name[64];
    SMP_TRY(required(map, what, key, &node));
    snprintf(name, sizeof name, "%s: %s", what, key);
    return copy_text(node, name, arena, out);
}

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

static smp_status read_fingerprint(const smp_yaml_node *model, smp_plan *plan)
{
    uint64_t *out = &plan->fingerprint;
    enum { DIGITS = 16 };
    const smp_yaml_node *node;
    const char *text;
    SMP_TRY(required(model, "model", "fingerprint", &node));
    SMP_TRY(smp_yaml_string(node, "model: fingerprint", &text));
    if (strlen(text) != DIGITS || strspn(text, "0123456789abcdef") != DIGITS)
        return smp_fail_at(smp_yaml_where(node),
                           "model: fingerprint: got '%s', expected %d hexadecimal digits", text,
                           DIGITS);
    plan->place.fingerprint = keep_where(plan, node);
    *out = 0;
    for (const char *c = text; *c; c++)
        *out = *out << 4 | (uint64_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
    return SMP_OK;
}

static smp_status read_placement(const smp_yaml_node *parallel, smp_placement *out)
{
    const smp_yaml_node *node;
    const char *text;
    SMP_TRY(required(parallel, "parallel", "placement", &node));
    SMP_TRY(smp_yaml_string(node, "parallel: placement", &text));
    if (strcmp(text, "cluster") != 0 && strcmp(text, "spread") != 0)
        return smp_fail_at(smp_yaml_where(node),
                           "parallel: placement: got '%s', expected cluster or spread", text);
    *out = text[0] == 'c' ? SMP_PLACEMENT_CLUSTER : SMP_PLACEMENT_SPREAD;
    return SMP_OK;
}

static smp_status read_parallel(const smp_yaml_node *top, smp_plan *plan)
{
    static const char *const keys[] = {"devices", "pipeline", "ddp", "placement", "chunks"};
    const smp_yaml_node *map;
    SMP_TRY(read_map(top, "plan", "parallel", keys, COUNT(keys), &map));
    SMP_TRY(read_int(map, "parallel", "devices", 1, MAX_DEVICES, &plan->devices));
    SMP_TRY(read_int(map, "parallel", "pipeline", 1, MAX_DEVICES, &plan->pipeline));
    SMP_TRY(read_int(map, "parallel", "ddp", 1, MAX_DEVICES, &plan->ddp));
    SMP_TRY(read_int(map, "parallel", "chunks", 1, MAX_STAGES, &plan->chunks));
    SMP_TRY(read_placement(map, &plan->placement));
    if ((int64_t)plan->pipeline * plan->ddp != plan->devices)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "devices")),
                           "parallel: devices: got %d, expected pipeline * ddp = %lld",
                           plan->devices, (long long)plan->pipeline * plan->ddp);
    if ((int64_t)plan->pipeline * plan->chunks > MAX_STAGES)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "chunks")),
                           "parallel: got %d ranks of %d chunks, expected at most %d stages",
                           plan->pipeline, plan->chunks, MAX_STAGES);
    plan->n_stage = plan->pipeline * plan->chunks;
    return SMP_OK;
}

static smp_status read_head(const smp_yaml_node *top, smp_plan *plan)
{
    static const char *const model_keys[] = {"path", "name", "fingerprint"};
    static const char *const batch_keys[] = {"microbatches", "microbatch_size"};
    const smp_yaml_node *model, *batch, *schedule;
    SMP_TRY(read_map(top, "plan", "model", model_keys, COUNT(model_keys), &model));
    SMP_TRY(read_text(model, "model", "path", plan->arena, &plan->model_path));
    SMP_TRY(read_text(model, "model", "name", plan->arena, &plan->model_name));
    SMP_TRY(read_fingerprint(model, plan));
    SMP_TRY(read_parallel(top, plan));
    SMP_TRY(read_map(top, "plan", "batch", batch_keys, COUNT(batch_keys), &batch));
    SMP_TRY(read_int(batch, "batch", "microbatches", 1, MAX_BATCH, &plan->microbatches));
    SMP_TRY(read_int64(batch, "batch", "microbatch_size", 1, MAX_BATCH, &plan->microbatch_size));
    SMP_TRY(required(top, "plan", "schedule", &schedule));
    plan->place.schedule = keep_where(plan, schedule);
    return copy_text(schedule, "schedule", plan->arena, &plan->schedule);
}

static smp_status read_stage_ops(const smp_yaml_node *map, smp_arena *arena, smp_plan_stage *stage)
{
    const smp_yaml_node *list;
    SMP_TRY(read_list(map, "stage", "ops", &list));
    stage->n_op = smp_yaml_list_size(list);
    if (stage->n_op < 1)
        return smp_fail_at(smp_yaml_where(list), "stage: ops: got an empty list, expected ops");
    const char **op = SMP_ARENA_NEW(arena, const char *, (size_t)stage->n_op);
    if (!op)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < stage->n_op; i++)
        SMP_TRY(copy_text(smp_yaml_list_at(list, i), "stage: op", arena, &op[i]));
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
    SMP_TRY(smp_yaml_known_keys(map, "stage", keys, COUNT(keys)));
    SMP_TRY(read_int(map, "stage", "stage", 0, MAX_STAGES, &number));
    if (number != index)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "stage")),
                           "stage: stage: got %d, expected %d: stages stand in forward order",
                           number, index);
    SMP_TRY(read_int(map, "stage", "rank", 0, plan->pipeline - 1, &stage->rank));
    SMP_TRY(read_stage_ops(map, plan->arena, stage));
    SMP_TRY(required(map, "stage", "recompute", &recompute));
    SMP_TRY(smp_yaml_bool(recompute, "stage: recompute", &stage->recompute));
    SMP_TRY(read_double(map, "stage", "forward_us", 0, MAX_US, &stage->forward_us));
    SMP_TRY(read_double(map, "stage", "backward_us", 0, MAX_US, &stage->backward_us));
    SMP_TRY(read_int64(map, "stage", "weight_bytes", 0, MAX_BYTES, &stage->weight_bytes));
    return read_int64(map, "stage", "stash_bytes", 0, MAX_BYTES, &stage->stash_bytes);
}

static smp_status read_stages(const smp_yaml_node *top, smp_plan *plan)
{
    const smp_yaml_node *list;
    SMP_TRY(read_list(top, "plan", "stages", &list));
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
    SMP_TRY(read_list(top, "plan", "programs", &list));
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
        SMP_TRY(smp_program_parse(text, smp_yaml_where(node), &program[r]));
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
    SMP_TRY(read_map(top, "plan", what, keys, COUNT(keys), &map));
    SMP_TRY(read_double(map, what, "step_us", 0, MAX_US, &predicted->step_us));
    SMP_TRY(read_double(map, what, "bubble", 0, 1, &predicted->bubble));
    SMP_TRY(read_double(map, what, "samples_per_s", 0, MAX_US, &predicted->samples_per_s));
    SMP_TRY(read_double(map, what, "bottleneck_us", 0, MAX_US, &predicted->bottleneck_us));
    SMP_TRY(read_double(map, what, "lower_bound_us", 0, MAX_US, &predicted->lower_bound_us));
    SMP_TRY(read_double(map, what, "gap", -1, MAX_US, &predicted->gap));
    SMP_TRY(read_list(map, what, "peak_bytes", &list));
    if (smp_yaml_list_size(list) != plan->pipeline)
        return smp_fail_at(smp_yaml_where(list),
                           "predicted: peak_bytes: got %d, expected one per rank: %d",
                           smp_yaml_list_size(list), plan->pipeline);
    int64_t *peak = SMP_ARENA_NEW(plan->arena, int64_t, (size_t)plan->pipeline);
    if (!peak)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < plan->pipeline; r++)
        SMP_TRY(smp_yaml_int(smp_yaml_list_at(list, r), "predicted: peak_bytes", 0, MAX_BYTES,
                             &peak[r]));
    predicted->peak_bytes = peak;
    plan->place.predicted = keep_where(plan, list);
    return SMP_OK;
}

static smp_status read_points(const smp_yaml_node *link, const char *what, smp_arena *arena,
                              smp_link_spec *out)
{
    static const char *const keys[] = {"bytes", "us"};
    const smp_yaml_node *list;
    if (!smp_yaml_get(link, "points"))
        return SMP_OK;
    SMP_TRY(read_list(link, what, "points", &list));
    int n = smp_yaml_list_size(list);
    int64_t *bytes = SMP_ARENA_NEW(arena, int64_t, (size_t)n);
    double *us = SMP_ARENA_NEW(arena, double, (size_t)n);
    if (!bytes || !us)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < n; i++) {
        const smp_yaml_node *point = smp_yaml_list_at(list, i);
        SMP_TRY(smp_yaml_map(point, "point"));
        SMP_TRY(smp_yaml_known_keys(point, "point", keys, COUNT(keys)));
        SMP_TRY(read_int64(point, "point", "bytes", i > 0 ? bytes[i - 1] + 1 : 0, MAX_BYTES,
                           &bytes[i]));
        SMP_TRY(read_double(point, "point", "us", 0, MAX_US, &us[i]));
    }
    out->n_point = n;
    out->point_bytes = bytes;
    out->point_us = us;
    return SMP_OK;
}

static smp_status read_link(const smp_yaml_node *cluster, const char *key, smp_arena *arena,
                            smp_link_spec *out)
{
    static const char *const keys[] = {"latency_us", "bytes_per_s", "points"};
    const smp_yaml_node *map;
    SMP_TRY(read_map(cluster, "cluster", key, keys, COUNT(keys), &map));
    SMP_TRY(read_double(map, key, "latency_us", 0, MAX_US, &out->latency_us));
    SMP_TRY(read_double(map, key, "bytes_per_s", 0, MAX_RATE, &out->bytes_per_s));
    if (!(out->bytes_per_s > 0))
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "bytes_per_s")),
                           "%s: bytes_per_s: got 0, expected more", key);
    return read_points(map, key, arena, out);
}

/* Devices are alike: their speed is in the times of the stages. */
static smp_status make_devices(const smp_plan *plan, smp_cluster *cluster, int64_t memory)
{
    int n = smp_cluster_devices(cluster);
    smp_device_spec *device = SMP_ARENA_NEW(plan->arena, smp_device_spec, (size_t)n);
    if (!device)
        return SMP_ERR_NO_MEMORY;
    for (int d = 0; d < n; d++)
        device[d] = (smp_device_spec){
            .name = cluster->name, .memory_bytes = memory, .flops_fp32 = 1, .bytes_per_s = 1};
    cluster->device = device;
    return SMP_OK;
}

static smp_status read_cluster(const smp_yaml_node *top, smp_plan *plan)
{
    static const char *const keys[] = {"name",    "nodes",      "devices_per_node",
                                       "memory",  "intra_node", "cores_per_node",
                                       "overlap", "inter_node", "optimizer_bytes_per_s"};
    const smp_yaml_node *map, *overlap;
    int64_t memory;
    if (!smp_yaml_get(top, "cluster"))
        return SMP_OK;
    smp_cluster *cluster = SMP_ARENA_NEW(plan->arena, smp_cluster, 1);
    if (!cluster)
        return SMP_ERR_NO_MEMORY;
    const char *what = "cluster";
    SMP_TRY(read_map(top, "plan", what, keys, COUNT(keys), &map));
    SMP_TRY(read_text(map, what, "name", plan->arena, &cluster->name));
    SMP_TRY(read_int(map, what, "nodes", 1, MAX_DEVICES, &cluster->nodes));
    SMP_TRY(read_int(map, what, "devices_per_node", 1, MAX_DEVICES, &cluster->devices_per_node));
    SMP_TRY(read_int(map, what, "cores_per_node", 0, MAX_CORES, &cluster->cores_per_node));
    SMP_TRY(read_int64(map, what, "memory", 0, MAX_BYTES, &memory));
    SMP_TRY(required(map, what, "overlap", &overlap));
    SMP_TRY(smp_yaml_bool(overlap, "cluster: overlap", &cluster->overlap));
    SMP_TRY(
        read_double(map, what, "optimizer_bytes_per_s", 0, MAX_RATE, &plan->optimizer_bytes_per_s));
    SMP_TRY(read_link(map, "intra_node", plan->arena, &cluster->intra_node));
    SMP_TRY(read_link(map, "inter_node", plan->arena, &cluster->inter_node));
    int64_t devices = (int64_t)cluster->nodes * cluster->devices_per_node;
    if (devices < plan->devices || devices > MAX_DEVICES)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "nodes")),
                           "cluster: got %lld devices, expected %d (the plan's) to %d",
                           (long long)devices, plan->devices, MAX_DEVICES);
    plan->cluster = cluster;
    return make_devices(plan, cluster, memory);
}

static smp_status read_plan(const smp_yaml *yaml, smp_plan *plan)
{
    static const char *const keys[] = {"smp",    "model",    "parallel",  "batch",  "schedule",
                                       "stages", "programs", "predicted", "cluster"};
    const smp_yaml_node *top;
    SMP_TRY(smp_yaml_top(yaml, &top));
    SMP_TRY(smp_yaml_known_keys(top, "plan", keys, COUNT(keys)));
    SMP_TRY(keep_file(yaml, plan));
    SMP_TRY(read_head(top, plan));
    SMP_TRY(read_stages(top, plan));
    SMP_TRY(read_programs(top, plan));
    SMP_TRY(read_predicted(top, plan));
    return read_cluster(top, plan);
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
