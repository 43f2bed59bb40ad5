/* Reading sketches: the keys of a plan file, all but `stages:` optional. Memory is bounded by the
 * size of the file. */
#include <stdlib.h>
#include <string.h>

#include "schedule/plan/plan_field.h"
#include "schedule/plan/sketch.h"

/* The file's name belongs to the document; the sketch has its own copy. */
static smp_where keep_where(const smp_sketch *sketch, const smp_yaml_node *node)
{
    smp_where where = smp_yaml_where(node);
    where.file = sketch->stages_where.file;
    return where;
}

/* A map that may be absent (*out NULL). */
static smp_status optional_map(const smp_yaml_node *top, const char *key, const char *const *keys,
                               size_t n_key, const smp_yaml_node **out)
{
    *out = NULL;
    return smp_yaml_get(top, key) ? smp__field_map(top, "plan", key, keys, n_key, out) : SMP_OK;
}

static smp_status optional_int(const smp_yaml_node *map, const char *what, const char *key, int max,
                               int *out)
{
    return smp_yaml_get(map, key) ? smp__field_int(map, what, key, 1, max, out) : SMP_OK;
}

static smp_status optional_text(const smp_yaml_node *map, const char *what, const char *key,
                                smp_arena *arena, const char **out)
{
    return smp_yaml_get(map, key) ? smp__field_text(map, what, key, arena, out) : SMP_OK;
}

static smp_status read_model(const smp_yaml_node *top, smp_sketch *sketch)
{
    static const char *const keys[] = {"path", "name", "fingerprint"};
    const smp_yaml_node *map;
    SMP_TRY(optional_map(top, "model", keys, SMP__COUNT(keys), &map));
    if (!map)
        return SMP_OK;
    SMP_TRY(optional_text(map, "model", "path", sketch->arena, &sketch->model_path));
    SMP_TRY(optional_text(map, "model", "name", sketch->arena, &sketch->model_name));
    const smp_yaml_node *fingerprint = smp_yaml_get(map, "fingerprint");
    if (!fingerprint)
        return SMP_OK;
    sketch->has_fingerprint = true;
    sketch->fingerprint_where = keep_where(sketch, fingerprint);
    return smp__field_fingerprint(map, &sketch->fingerprint);
}

static smp_status read_numbers(const smp_yaml_node *top, smp_sketch *sketch)
{
    static const char *const parallel_keys[] = {"devices", "pipeline", "ddp", "placement",
                                                "chunks"};
    static const char *const batch_keys[] = {"microbatches", "microbatch_size"};
    const smp_yaml_node *map;
    int devices = 0;
    SMP_TRY(optional_map(top, "parallel", parallel_keys, SMP__COUNT(parallel_keys), &map));
    if (map) {
        const char *what = "parallel";
        sketch->parallel_where = keep_where(sketch, map);
        SMP_TRY(optional_int(map, what, "devices", SMP__MAX_DEVICES, &devices));
        SMP_TRY(optional_int(map, what, "pipeline", SMP__MAX_DEVICES, &sketch->pipeline));
        SMP_TRY(optional_int(map, what, "ddp", SMP__MAX_DEVICES, &sketch->ddp));
        SMP_TRY(optional_int(map, what, "chunks", SMP__MAX_STAGES, &sketch->chunks));
        sketch->has_placement = smp_yaml_get(map, "placement") != NULL;
        if (sketch->has_placement)
            SMP_TRY(smp__field_placement(map, &sketch->placement));
        if (devices > 0 && sketch->ddp == 0 && sketch->pipeline > 0 &&
            devices % sketch->pipeline == 0)
            sketch->ddp = devices / sketch->pipeline;
    }
    SMP_TRY(optional_map(top, "batch", batch_keys, SMP__COUNT(batch_keys), &map));
    if (!map)
        return SMP_OK;
    SMP_TRY(optional_int(map, "batch", "microbatches", SMP__MAX_BATCH, &sketch->microbatches));
    if (!smp_yaml_get(map, "microbatch_size"))
        return SMP_OK;
    return smp__field_int64(map, "batch", "microbatch_size", 1, SMP__MAX_BATCH,
                            &sketch->microbatch_size);
}

static smp_status read_entries(const smp_yaml_node *map, const smp_sketch *sketch,
                               smp_sketch_stage *stage)
{
    const smp_yaml_node *ops;
    SMP_TRY(smp__field(map, "stage", "ops", &ops));
    bool single = smp_yaml_kind_of(ops) == SMP_YAML_SCALAR;
    if (!single)
        SMP_TRY(smp_yaml_list(ops, "stage: ops"));
    stage->n_entry = single ? 1 : smp_yaml_list_size(ops);
    smp_sketch_entry *entry =
        SMP_ARENA_NEW(sketch->arena, smp_sketch_entry, (size_t)stage->n_entry);
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    stage->entry = entry;
    for (int32_t i = 0; i < stage->n_entry; i++) {
        const smp_yaml_node *node = single ? ops : smp_yaml_list_at(ops, i);
        SMP_TRY(smp__copy_text(node, "stage: op", sketch->arena, &entry[i].text));
        entry[i].where = keep_where(sketch, node);
    }
    return SMP_OK;
}

static smp_status read_stage(const smp_yaml_node *map, int index, const smp_sketch *sketch,
                             smp_sketch_stage *stage)
{
    static const char *const keys[] = {"stage",      "rank",        "ops",          "recompute",
                                       "forward_us", "backward_us", "weight_bytes", "stash_bytes"};
    SMP_TRY(smp_yaml_map(map, "stage"));
    SMP_TRY(smp_yaml_known_keys(map, "stage", keys, SMP__COUNT(keys)));
    *stage = (smp_sketch_stage){
        .stage = index, .rank = -1, .recompute = -1, .where = keep_where(sketch, map)};
    if (smp_yaml_get(map, "stage"))
        SMP_TRY(smp__field_int(map, "stage", "stage", 0, SMP__MAX_STAGES - 1, &stage->stage));
    if (smp_yaml_get(map, "rank"))
        SMP_TRY(smp__field_int(map, "stage", "rank", 0, SMP__MAX_DEVICES - 1, &stage->rank));
    const smp_yaml_node *recompute = smp_yaml_get(map, "recompute");
    if (recompute) {
        bool value;
        SMP_TRY(smp_yaml_bool(recompute, "stage: recompute", &value));
        stage->recompute = value;
    }
    return read_entries(map, sketch, stage);
}

static int compare_stages(const void *left, const void *right)
{
    const smp_sketch_stage *a = left, *b = right;
    if (a->stage != b->stage)
        return a->stage < b->stage ? -1 : 1;
    return a->where.line != b->where.line ? (a->where.line > b->where.line) * 2 - 1
                                          : (a->where.column > b->where.column) * 2 - 1;
}

static smp_status read_stages(const smp_yaml_node *top, smp_sketch *sketch)
{
    const smp_yaml_node *list;
    SMP_TRY(smp__field_list(top, "plan", "stages", &list));
    int n = smp_yaml_list_size(list);
    sketch->stages_where = keep_where(sketch, list);
    if (n < 1)
        return smp_fail_at(sketch->stages_where, "stages: got an empty list, expected stages");
    smp_sketch_stage *stage = SMP_ARENA_NEW(sketch->arena, smp_sketch_stage, (size_t)n);
    if (!stage)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < n; s++)
        SMP_TRY(read_stage(smp_yaml_list_at(list, s), s, sketch, &stage[s]));
    qsort(stage, (size_t)n, sizeof *stage, compare_stages);
    for (int s = 1; s < n; s++) {
        if (stage[s].stage == stage[s - 1].stage)
            return smp_fail_at(stage[s].where, "stage: stage: got %d twice, first at line %d",
                               stage[s].stage, stage[s - 1].where.line);
    }
    sketch->stage = stage;
    sketch->n_listed = n;
    sketch->n_stage = stage[n - 1].stage + 1;
    return SMP_OK;
}

static smp_status read_programs(const smp_yaml_node *top, smp_sketch *sketch)
{
    const smp_yaml_node *list;
    if (!smp_yaml_get(top, "programs"))
        return SMP_OK;
    SMP_TRY(smp__field_list(top, "plan", "programs", &list));
    int n = smp_yaml_list_size(list);
    smp_program *program = SMP_ARENA_NEW(sketch->arena, smp_program, (size_t)n);
    smp_where *where = SMP_ARENA_NEW(sketch->arena, smp_where, (size_t)n);
    if (!program || !where)
        return SMP_ERR_NO_MEMORY;
    sketch->programs_where = keep_where(sketch, list);
    sketch->program = program;
    sketch->program_where = where;
    for (int r = 0; r < n; r++) {
        const smp_yaml_node *node = smp_yaml_list_at(list, r);
        const char *text;
        where[r] = keep_where(sketch, node);
        SMP_TRY(smp_yaml_string(node, "program", &text));
        sketch->n_program = r + 1; /* smp_sketch_destroy frees so many */
        SMP_TRY(smp_program_parse(text, r, smp_yaml_where(node), &program[r]));
    }
    return SMP_OK;
}

/* Of the prediction the peaks have to be right; the step depends on costs, and is only compared. */
static smp_status read_predicted(const smp_yaml_node *top, smp_sketch *sketch)
{
    static const char *const keys[] = {"step_us",        "bubble", "samples_per_s", "bottleneck_us",
                                       "lower_bound_us", "gap",    "peak_bytes"};
    const smp_yaml_node *map, *list;
    SMP_TRY(optional_map(top, "predicted", keys, SMP__COUNT(keys), &map));
    if (map && smp_yaml_get(map, "step_us"))
        SMP_TRY(smp__field_double(map, "predicted", "step_us", 0, SMP__MAX_US, &sketch->step_us));
    if (!map || !smp_yaml_get(map, "peak_bytes"))
        return SMP_OK;
    SMP_TRY(smp__field_list(map, "predicted", "peak_bytes", &list));
    int n = smp_yaml_list_size(list);
    int64_t *peak = SMP_ARENA_NEW(sketch->arena, int64_t, (size_t)n);
    if (!peak)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < n; r++)
        SMP_TRY(smp_yaml_int(smp_yaml_list_at(list, r), "predicted: peak_bytes", 0, SMP__MAX_BYTES,
                             &peak[r]));
    sketch->predicted_where = keep_where(sketch, list);
    sketch->n_peak = n;
    sketch->peak_bytes = peak;
    return SMP_OK;
}

static smp_status read_sketch(const smp_yaml *yaml, smp_sketch *sketch)
{
    static const char *const keys[] = {"smp",    "model",    "parallel",  "batch",   "schedule",
                                       "stages", "programs", "predicted", "cluster", "execution"};
    const smp_yaml_node *top, *schedule;
    SMP_TRY(smp_yaml_top(yaml, &top));
    SMP_TRY(smp_yaml_known_keys(top, "plan", keys, SMP__COUNT(keys)));
    sketch->stages_where.file = smp_arena_strdup(sketch->arena, smp_yaml_file(yaml));
    if (!sketch->stages_where.file)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(read_model(top, sketch));
    SMP_TRY(read_numbers(top, sketch));
    schedule = smp_yaml_get(top, "schedule");
    if (schedule) {
        sketch->schedule_where = keep_where(sketch, schedule);
        SMP_TRY(smp__copy_text(schedule, "schedule", sketch->arena, &sketch->schedule));
        sketch->schedule = smp_schedule_name(sketch->schedule);
    }
    sketch->has_target = smp_yaml_get(top, "execution") != NULL;
    SMP_TRY(smp__plan_read_target(top, &sketch->target));
    SMP_TRY(read_stages(top, sketch));
    SMP_TRY(read_programs(top, sketch));
    SMP_TRY(read_predicted(top, sketch));
    return smp__plan_read_cluster(top, 1, sketch->arena, &sketch->cluster,
                                  &sketch->optimizer_bytes_per_s);
}

/* Frees the document. */
static smp_status make_sketch(smp_yaml *yaml, smp_sketch **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *arena = smp_arena_create();
    smp_sketch *sketch = arena ? SMP_ARENA_NEW(arena, smp_sketch, 1) : NULL;
    if (sketch) {
        sketch->arena = arena;
        status = read_sketch(yaml, sketch);
    } else {
        smp_arena_destroy(arena);
    }
    if (status == SMP_OK)
        *out = sketch;
    else
        smp_sketch_destroy(sketch);
    smp_yaml_destroy(yaml);
    return status;
}

smp_status smp_sketch_read(const char *path, smp_sketch **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_read(path, &yaml));
    return make_sketch(yaml, out);
}

smp_status smp_sketch_parse(const char *name, const char *text, size_t bytes, smp_sketch **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_parse(name, text, bytes, &yaml));
    return make_sketch(yaml, out);
}

void smp_sketch_destroy(smp_sketch *sketch)
{
    if (!sketch)
        return;
    for (int r = 0; r < sketch->n_program; r++)
        smp_program_free((smp_program *)&sketch->program[r]);
    smp_arena_destroy(sketch->arena);
}
