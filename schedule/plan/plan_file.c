/* Reading plan files. A plan is a sketch that leaves nothing out, so there is one reader: for a
 * whole plan every key has to be there, and counts, ranks and programs have to go together; of a
 * sketch only `stages:` (schedule/plan/FORMAT.md). Agreement with the model is smp_plan_bind's,
 * that of the programs with each other the verifier's.
 *
 * Memory is bounded by the size of the file: every count is compared with a list that the file
 * spells out before anything of that size is made. Linear in the file. */
#include <stdlib.h>

#include "profile/estimate.h"
#include "schedule/plan/gradient_blocks.h"
#include "schedule/plan/plan_field.h"
#include "schedule/plan/sketch.h"

typedef struct reader {
    smp_sketch *sketch;
    smp_arena *arena;
    bool whole;          /* nothing may be missing */
    int devices, groups; /* 0: not given; devices / tensor, 0 where that differs */
} reader;

/* The file's name belongs to the document: places share a copy of it. */
static smp_where keep_where(const reader *r, const smp_yaml_node *node)
{
    smp_where where = smp_yaml_where(node);
    where.file = r->sketch->stages_where.file;
    return where;
}

/* Is this key to be read? What a whole plan lacks is then missed by the read. */
static bool is_wanted(const reader *r, const smp_yaml_node *map, const char *key)
{
    return r->whole || smp_yaml_get(map, key);
}

static smp_status read_int(const reader *r, const smp_yaml_node *map, const char *what,
                           const char *key, int min, int max, int *out)
{
    return is_wanted(r, map, key) ? smp__field_int(map, what, key, min, max, out) : SMP_OK;
}

static smp_status read_text(const reader *r, const smp_yaml_node *map, const char *what,
                            const char *key, const char **out)
{
    return is_wanted(r, map, key) ? smp__field_text(map, what, key, r->arena, out) : SMP_OK;
}

/* `set: ["NAME=VALUE", ...]`, which may be absent. */
static smp_status read_settings(const reader *r, const smp_yaml_node *map, smp_settings *out)
{
    const smp_yaml_node *list = smp_yaml_get(map, "set");
    if (!list)
        return SMP_OK;
    SMP_TRY(smp_yaml_list(list, "model: set"));
    const int n = smp_yaml_list_size(list);
    if (n > SMP_MAX_SETTINGS)
        return smp_fail_at(smp_yaml_where(list), "model: set: got %d, expected at most %d", n,
                           SMP_MAX_SETTINGS);
    const char **text = SMP_ARENA_NEW(r->arena, const char *, (size_t)n);
    if (!text)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < n; i++) {
        const char *setting;
        SMP_TRY(smp_yaml_string(smp_yaml_list_at(list, i), "model: set", &setting));
        text[i] = smp_arena_strdup(r->arena, setting);
        if (!text[i])
            return SMP_ERR_NO_MEMORY;
    }
    *out = (smp_settings){.n = n, .text = text};
    return SMP_OK;
}

static smp_status read_model(const reader *r, const smp_yaml_node *top)
{
    static const char *const keys[] = {"path", "name", "set", "fingerprint"};
    smp_sketch *sketch = r->sketch;
    const smp_yaml_node *map;
    if (!is_wanted(r, top, "model"))
        return SMP_OK;
    SMP_TRY(smp__field_map(top, "plan", "model", keys, SMP__COUNT(keys), &map));
    SMP_TRY(read_text(r, map, "model", "path", &sketch->model_path));
    SMP_TRY(read_text(r, map, "model", "name", &sketch->model_name));
    SMP_TRY(read_settings(r, map, &sketch->settings));
    if (!is_wanted(r, map, "fingerprint"))
        return SMP_OK;
    SMP_TRY(smp__field_fingerprint(map, &sketch->fingerprint));
    sketch->has_fingerprint = true;
    sketch->fingerprint_where = keep_where(r, smp_yaml_get(map, "fingerprint"));
    return SMP_OK;
}

/* Does a stage say how many devices compute its ops? */
static bool says_tensor(const smp_yaml_node *stages)
{
    bool says = false;
    for (int i = 0; stages && smp_yaml_kind_of(stages) == SMP_YAML_LIST && !says &&
                    i < smp_yaml_list_size(stages);
         i++) {
        const smp_yaml_node *stage = smp_yaml_list_at(stages, i);
        says = smp_yaml_kind_of(stage) == SMP_YAML_MAP && smp_yaml_get(stage, "tensor");
    }
    return says;
}

/* The numbers go together, as far as they are there. */
static smp_status check_parallel(const reader *r, const smp_yaml_node *map)
{
    const smp_sketch *sketch = r->sketch;
    const int64_t groups = (int64_t)sketch->pipeline * sketch->ddp;
    const int tensor = sketch->splitting.devices;
    if (r->groups > 0 && groups > 0 && groups != r->groups)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "devices")),
                           "parallel: devices: got %d, expected pipeline * ddp%s = %lld",
                           r->devices, tensor > 1 ? " * tensor" : "",
                           (long long)(groups * (tensor > 1 ? tensor : 1)));
    if ((int64_t)sketch->pipeline * sketch->chunks > SMP__MAX_STAGES)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "chunks")),
                           "parallel: got %d ranks of %d chunks, expected at most %d stages",
                           sketch->pipeline, sketch->chunks, SMP__MAX_STAGES);
    return SMP_OK;
}

/* shard and shard_what: both or neither. */
static smp_status read_sharding(const smp_yaml_node *map, smp_sketch *sketch)
{
    const smp_yaml_node *shard = smp_yaml_get(map, "shard"), *what;
    const char *text;
    sketch->sharding = (smp_sharding){.shard = 1, .prefetch = SMP_PREFETCH_DEFAULT};
    if (smp_yaml_get(map, "bucket_bytes"))
        SMP_TRY(smp__field_int64(map, "parallel", "bucket_bytes", 1, SMP__MAX_SUM_BYTES,
                                 &sketch->sharding.bucket_bytes));
    if (smp_yaml_get(map, "node_replicas"))
        SMP_TRY(smp__field_int(map, "parallel", "node_replicas", 2, SMP__MAX_DEVICES,
                               &sketch->sharding.node_replicas));
    if (smp_yaml_get(map, "prefetch"))
        SMP_TRY(smp__field_int(map, "parallel", "prefetch", 0, SMP__MAX_STAGES,
                               &sketch->sharding.prefetch));
    bool bf16 = false;
    SMP_TRY(smp__field_bf16(map, "parallel", "gradient_wire", &bf16));
    sketch->sharding.gradient_wire = bf16 ? SMP_WIRE_BF16 : SMP_WIRE_FP32;
    const smp_yaml_node *states = smp_yaml_get(map, "offload_states");
    if (states)
        SMP_TRY(
            smp_yaml_bool(states, "parallel: offload_states", &sketch->sharding.offload_states));
    if (!shard && !smp_yaml_get(map, "shard_what"))
        return SMP_OK;
    SMP_TRY(smp__field_int(map, "parallel", "shard", 1, SMP__MAX_DEVICES, &sketch->sharding.shard));
    SMP_TRY(smp__field(map, "parallel", "shard_what", &what));
    text = smp_yaml_text(what);
    smp_status status = smp_shard_what_read(text ? text : "", &sketch->sharding.what);
    if (status != SMP_OK)
        return smp_fail_at(smp_yaml_where(what), "parallel: shard_what: %s", smp_last_error());
    if (sketch->ddp > 0 && smp_shard_check(sketch->sharding.shard, sketch->ddp) != SMP_OK)
        return smp_fail_at(smp_yaml_where(shard), "parallel: %s", smp_last_error());
    return SMP_OK;
}

static smp_status check_hops(const smp_yaml_node *map, const smp_sketch *sketch)
{
    if (sketch->ddp == 0 || smp_hops_check(sketch->sharding, sketch->ddp) == SMP_OK)
        return SMP_OK;
    return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "node_replicas")), "parallel: %s",
                       smp_last_error());
}

/* How many devices compute every op together; in whole plans too it may be missing: one. */
static smp_status read_tensor(reader *r, const smp_yaml_node *map)
{
    int *tensor = &r->sketch->splitting.devices;
    const bool differ = r->sketch->groups_differ;
    r->groups = differ ? 0 : r->devices;
    if (!smp_yaml_get(map, "tensor"))
        return SMP_OK;
    SMP_TRY(smp__field_int(map, "parallel", "tensor", 1, SMP__MAX_TENSOR, tensor));
    if (!differ && r->devices % *tensor != 0)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "tensor")),
                           "parallel: tensor: got %d, expected a divisor of `devices`, %d", *tensor,
                           r->devices);
    r->groups = differ ? 0 : r->devices / *tensor;
    const smp_yaml_node *overlap = smp_yaml_get(map, "tensor_overlap");
    return overlap
               ? smp_yaml_bool(overlap, "parallel: tensor_overlap", &r->sketch->splitting.overlap)
               : SMP_OK;
}

static smp_status read_parallel(reader *r, const smp_yaml_node *top)
{
    static const char *const keys[] = {
        "devices",        "pipeline",     "ddp",           "tensor",    "shard",  "shard_what",
        "bucket_bytes",   "prefetch",     "node_replicas", "placement", "chunks", "tensor_overlap",
        "offload_states", "gradient_wire"};
    const char *what = "parallel";
    smp_sketch *sketch = r->sketch;
    const smp_yaml_node *map;
    if (!is_wanted(r, top, what))
        return SMP_OK;
    SMP_TRY(smp__field_map(top, "plan", what, keys, SMP__COUNT(keys), &map));
    sketch->parallel_where = keep_where(r, map);
    SMP_TRY(read_int(r, map, what, "devices", 1, SMP__MAX_DEVICES, &r->devices));
    SMP_TRY(read_int(r, map, what, "pipeline", 1, SMP__MAX_DEVICES, &sketch->pipeline));
    SMP_TRY(read_int(r, map, what, "ddp", 1, SMP__MAX_DEVICES, &sketch->ddp));
    SMP_TRY(read_int(r, map, what, "chunks", 1, SMP__MAX_STAGES, &sketch->chunks));
    SMP_TRY(read_tensor(r, map));
    const smp_yaml_node *placement = smp_yaml_get(map, "placement");
    if (r->groups == 0 && placement &&
        !r->sketch->groups_differ) /* a list has one entry each, a word none */
        r->groups = smp_yaml_list_size(placement);
    if (sketch->ddp == 0 && sketch->pipeline > 0 && !r->sketch->groups_differ &&
        r->groups % sketch->pipeline == 0)
        sketch->ddp = r->groups / sketch->pipeline;
    sketch->has_placement = is_wanted(r, map, "placement");
    if (sketch->has_placement)
        SMP_TRY(smp__field_placement(map, sketch->pipeline, sketch->ddp, r->arena,
                                     &sketch->placement, &sketch->device));
    if (r->sketch->groups_differ && sketch->placement != SMP_PLACEMENT_CLUSTER)
        return smp_fail_at(smp_yaml_where(placement),
                           "parallel: placement: got another one than cluster, which groups of "
                           "different sizes (`tensor` of a stage) have");
    SMP_TRY(read_sharding(map, sketch));
    SMP_TRY(check_hops(map, sketch));
    return check_parallel(r, map);
}

/* In whole plans too it may be missing: one for each replica. */
static smp_status read_blocks(const reader *r, const smp_yaml_node *batch)
{
    smp_sketch *sketch = r->sketch;
    if (!smp_yaml_get(batch, "gradient_blocks"))
        return SMP_OK;
    SMP_TRY(smp__field_int(batch, "batch", "gradient_blocks", 1, SMP_MAX_GRADIENT_BLOCKS,
                           &sketch->gradient_blocks));
    if (sketch->ddp == 0 || sketch->microbatches == 0) /* of a sketch */
        return SMP_OK;
    smp_status status =
        smp_gradient_blocks_check(sketch->gradient_blocks, sketch->ddp, sketch->microbatches);
    if (status == SMP_OK)
        status = smp_gradient_hops_check(sketch->gradient_blocks, sketch->ddp,
                                         sketch->sharding.node_replicas);
    if (status != SMP_ERR_INPUT)
        return status;
    return smp_fail_at(smp_yaml_where(smp_yaml_get(batch, "gradient_blocks")), "batch: %s",
                       smp_last_error());
}

/* Samples of a step, which JSON has: what the other numbers come to, not a wish. */
static smp_status check_global_batch(const smp_sketch *sketch, const smp_yaml_node *batch)
{
    const int ddp = sketch->ddp > 0 ? sketch->ddp : 1;
    const int blocks = sketch->gradient_blocks > 0 ? sketch->gradient_blocks : ddp;
    const int64_t microbatches = smp_gradient_microbatches(blocks, ddp, sketch->microbatches);
    const int64_t size = sketch->microbatch_size;
    int64_t said;
    if (!smp_yaml_get(batch, "global_batch"))
        return SMP_OK;
    SMP_TRY(smp__field_int64(batch, "batch", "global_batch", 1, INT64_MAX, &said));
    if (sketch->ddp > 0 && size > 0 && said % size == 0 && said / size == microbatches)
        return SMP_OK;
    return smp_fail_at(smp_yaml_where(smp_yaml_get(batch, "global_batch")),
                       "batch: global_batch: got %lld, expected what ddp, microbatches and their "
                       "size come to",
                       (long long)said);
}

static smp_status read_head(reader *r, const smp_yaml_node *top)
{
    static const char *const batch_keys[] = {"microbatches", "microbatch_size", "gradient_blocks",
                                             "global_batch"};
    smp_sketch *sketch = r->sketch;
    const smp_yaml_node *batch, *schedule;
    SMP_TRY(read_model(r, top));
    SMP_TRY(read_parallel(r, top));
    if (is_wanted(r, top, "batch")) {
        SMP_TRY(smp__field_map(top, "plan", "batch", batch_keys, SMP__COUNT(batch_keys), &batch));
        sketch->batch_where = keep_where(r, batch);
        SMP_TRY(read_int(r, batch, "batch", "microbatches", 1, SMP__MAX_MICROBATCHES,
                         &sketch->microbatches));
        if (is_wanted(r, batch, "microbatch_size"))
            SMP_TRY(smp__field_int64(batch, "batch", "microbatch_size", 1, SMP__MAX_MICROBATCH,
                                     &sketch->microbatch_size));
        SMP_TRY(read_blocks(r, batch));
        SMP_TRY(check_global_batch(sketch, batch));
    }
    if (is_wanted(r, top, "schedule")) {
        SMP_TRY(smp__field(top, "plan", "schedule", &schedule));
        SMP_TRY(smp__copy_text(schedule, "schedule", r->arena, &sketch->schedule));
        sketch->schedule = smp_schedule_name(sketch->schedule);
        sketch->schedule_where = keep_where(r, schedule);
    }
    if (smp_yaml_get(top, "loading_horizon"))
        SMP_TRY(smp__field_int(top, "plan", "loading_horizon", 1, SMP__MAX_STAGES,
                               &sketch->loading_horizon));
    sketch->has_target = smp_yaml_get(top, "execution") != NULL;
    return smp__plan_read_target(top, &sketch->target, &sketch->library_bytes);
}

/* A list of texts, or one text. */
static smp_status read_entries(const reader *r, const smp_yaml_node *ops, const char *what,
                               const smp_sketch_entry **out, int32_t *n_out)
{
    bool single = smp_yaml_kind_of(ops) == SMP_YAML_SCALAR;
    int32_t n = single ? 1 : smp_yaml_list_size(ops);
    smp_sketch_entry *entry = SMP_ARENA_NEW(r->arena, smp_sketch_entry, (size_t)n);
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n; i++) {
        const smp_yaml_node *node = single ? ops : smp_yaml_list_at(ops, i);
        SMP_TRY(smp__copy_text(node, what, r->arena, &entry[i].text));
        entry[i].where = keep_where(r, node);
    }
    *out = entry;
    *n_out = n;
    return SMP_OK;
}

/* A list; in a sketch also the text of one entry. */
static smp_status read_ops(const reader *r, const smp_yaml_node *map, smp_sketch_stage *stage)
{
    const smp_yaml_node *ops;
    SMP_TRY(smp__field(map, "stage", "ops", &ops));
    if (r->whole || smp_yaml_kind_of(ops) != SMP_YAML_SCALAR)
        SMP_TRY(smp_yaml_list(ops, r->whole ? "ops" : "stage: ops"));
    SMP_TRY(read_entries(r, ops, "stage: op", &stage->entry, &stage->n_entry));
    if (r->whole && stage->n_entry < 1)
        return smp_fail_at(smp_yaml_where(ops), "stage: ops: got an empty list, expected ops");
    return SMP_OK;
}

/* true, false, or a list of ops; `what`: "stage: recompute". */
static smp_status read_mask(const reader *r, const smp_yaml_node *node, const char *what,
                            smp_sketch_mask *mask)
{
    bool value;
    if (smp_yaml_kind_of(node) == SMP_YAML_LIST) {
        mask->what = SMP_SKETCH_OPS;
        return read_entries(r, node, what, &mask->entry, &mask->n);
    }
    SMP_TRY(smp_yaml_bool(node, what, &value));
    mask->what = value;
    return SMP_OK;
}

static smp_status read_masks(const reader *r, const smp_yaml_node *map, smp_sketch_stage *stage)
{
    const smp_yaml_node *recompute, *offload = smp_yaml_get(map, "offload");
    if (offload)
        SMP_TRY(read_mask(r, offload, "stage: offload", &stage->offload));
    if (!is_wanted(r, map, "recompute"))
        return SMP_OK;
    SMP_TRY(smp__field(map, "stage", "recompute", &recompute));
    return read_mask(r, recompute, "stage: recompute", &stage->recompute);
}

static smp_status read_double(const reader *r, const smp_yaml_node *map, const char *what,
                              const char *key, double min, double max, double *out)
{
    return is_wanted(r, map, key) ? smp__field_double(map, what, key, min, max, out) : SMP_OK;
}

static smp_status read_bytes(const reader *r, const smp_yaml_node *map, const char *key,
                             int64_t *out)
{
    return is_wanted(r, map, key) ? smp__field_int64(map, "stage", key, 0, SMP__MAX_SUM_BYTES, out)
                                  : SMP_OK;
}

/* A sketch may have them, too; they are held to the same. */
static smp_status read_stage_costs(const reader *r, const smp_yaml_node *map,
                                   smp_sketch_stage *stage)
{
    const char *what = "stage";
    const smp_yaml_node *again = smp_yaml_get(map, "recompute_us");
    if (again && stage->recompute.what != SMP_SKETCH_OPS)
        return smp_fail_at(
            smp_yaml_where(again),
            "stage: recompute_us: got one beside `recompute: %s`, expected it beside "
            "a list of ops",
            stage->recompute.what > 0 ? "true" : "false");
    if (again)
        SMP_TRY(
            smp__field_double(map, what, "recompute_us", 0, SMP__MAX_SUM_US, &stage->recompute_us));
    SMP_TRY(read_double(r, map, what, "forward_us", 0, SMP__MAX_SUM_US, &stage->forward_us));
    SMP_TRY(read_double(r, map, what, "backward_us", 0, SMP__MAX_SUM_US, &stage->backward_us));
    if (smp_yaml_get(map, "forward_exchange_us"))
        SMP_TRY(smp__field_double(map, what, "forward_exchange_us", 0, stage->forward_us,
                                  &stage->forward_exchange_us));
    if (smp_yaml_get(map, "backward_exchange_us"))
        SMP_TRY(smp__field_double(map, what, "backward_exchange_us", 0, stage->backward_us,
                                  &stage->backward_exchange_us));
    if (smp_yaml_get(map, "backward_input_us"))
        SMP_TRY(smp__field_double(map, what, "backward_input_us", 0, stage->backward_us,
                                  &stage->backward_input_us));
    SMP_TRY(read_bytes(r, map, "weight_bytes", &stage->weight_bytes));
    if (stage->offload.what > 0)
        SMP_TRY(read_bytes(r, map, "offload_bytes", &stage->offload_bytes));
    else if (smp_yaml_get(map, "offload_bytes"))
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "offload_bytes")),
                           "stage: offload_bytes: got one without `offload`, expected it beside "
                           "that");
    return read_bytes(r, map, "stash_bytes", &stage->stash_bytes);
}

static smp_status read_stage(const reader *r, const smp_yaml_node *map, int index,
                             smp_sketch_stage *stage)
{
    static const char *const keys[] = {"stage",
                                       "rank",
                                       "ops",
                                       "recompute",
                                       "forward_us",
                                       "backward_us",
                                       "recompute_us",
                                       "stash_bytes",
                                       "weight_bytes",
                                       "backward_input_us",
                                       "offload",
                                       "offload_bytes",
                                       "tensor",
                                       "forward_exchange_us",
                                       "backward_exchange_us"};
    int highest = r->whole ? r->sketch->pipeline : SMP__MAX_DEVICES;
    SMP_TRY(smp_yaml_map(map, "stage"));
    SMP_TRY(smp_yaml_known_keys(map, "stage", keys, SMP__COUNT(keys)));
    *stage = (smp_sketch_stage){.stage = index,
                                .rank = -1,
                                .recompute = {.what = -1},
                                .offload = {.what = -1},
                                .backward_input_us = -1,
                                .recompute_us = -1.0,
                                .where = keep_where(r, map)};
    SMP_TRY(read_int(r, map, "stage", "stage", 0, SMP__MAX_STAGES - 1, &stage->stage));
    if (r->whole && stage->stage != index)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "stage")),
                           "stage: stage: got %d, expected %d: stages stand in forward order",
                           stage->stage, index);
    SMP_TRY(read_int(r, map, "stage", "rank", 0, highest - 1, &stage->rank));
    if (smp_yaml_get(map, "tensor"))
        SMP_TRY(smp__field_int(map, "stage", "tensor", 1, SMP__MAX_TENSOR, &stage->tensor));
    SMP_TRY(read_masks(r, map, stage));
    SMP_TRY(read_ops(r, map, stage));
    return read_stage_costs(r, map, stage);
}

/* In a whole plan a rank holds `chunks` stages. */
static smp_status check_held(const reader *r, const smp_yaml_node *list,
                             const smp_sketch_stage *stage)
{
    const smp_sketch *sketch = r->sketch;
    int *held = SMP_ARENA_NEW(r->arena, int, (size_t)sketch->pipeline);
    if (!held)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < sketch->pipeline * sketch->chunks; s++)
        if (++held[stage[s].rank] > sketch->chunks)
            return smp_fail_at(smp_yaml_where(smp_yaml_get(smp_yaml_list_at(list, s), "rank")),
                               "stage: rank: rank %d holds more than %d stage%s", stage[s].rank,
                               sketch->chunks, sketch->chunks == 1 ? "" : "s");
    return SMP_OK;
}

static int compare_stages(const void *left, const void *right)
{
    const smp_sketch_stage *a = left, *b = right;
    if (a->stage != b->stage)
        return a->stage < b->stage ? -1 : 1;
    return a->where.line != b->where.line ? (a->where.line > b->where.line) * 2 - 1
                                          : (a->where.column > b->where.column) * 2 - 1;
}

static smp_status read_stages(const reader *r, const smp_yaml_node *top)
{
    smp_sketch *sketch = r->sketch;
    const smp_yaml_node *list;
    SMP_TRY(smp__field_list(top, "plan", "stages", &list));
    int n = smp_yaml_list_size(list);
    sketch->stages_where = keep_where(r, list);
    if (r->whole && n != sketch->pipeline * sketch->chunks)
        return smp_fail_at(sketch->stages_where,
                           "stages: got %d entries, expected pipeline * chunks = %d", n,
                           sketch->pipeline * sketch->chunks);
    if (n < 1)
        return smp_fail_at(sketch->stages_where, "stages: got an empty list, expected stages");
    smp_sketch_stage *stage = SMP_ARENA_NEW(r->arena, smp_sketch_stage, (size_t)n);
    if (!stage)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < n; s++)
        SMP_TRY(read_stage(r, smp_yaml_list_at(list, s), s, &stage[s]));
    if (r->whole)
        SMP_TRY(check_held(r, list, stage));
    else
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

/* In a whole plan the groups of the ranks and replicas are all its devices; in a sketch the largest
 * group that a stage says may be the largest of all. */
static smp_status check_groups(const reader *r, const smp_yaml_node *top)
{
    smp_sketch *sketch = r->sketch;
    const smp_yaml_node *map = smp_yaml_get(top, "parallel");
    for (int s = 0; s < sketch->n_listed && !r->whole; s++)
        if (sketch->stage[s].tensor > sketch->splitting.devices)
            sketch->splitting.devices = sketch->stage[s].tensor;
    if (!r->sketch->groups_differ || !r->whole)
        return SMP_OK;
    int *begin = SMP_ARENA_NEW(r->arena, int, (size_t)sketch->pipeline + 1);
    if (!begin)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_sketch_groups(sketch, sketch->pipeline, begin));
    const int64_t all = begin[sketch->pipeline];
    if (all * sketch->ddp != r->devices)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "devices")),
                           "parallel: devices: got %d, expected ddp * the %lld of all ranks' "
                           "groups = %lld",
                           r->devices, (long long)all, (long long)all * sketch->ddp);
    return SMP_OK;
}

static smp_status check_program(const smp_yaml_node *node, const smp_sketch *plan, int rank)
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

static smp_status read_programs(const reader *r, const smp_yaml_node *top)
{
    smp_sketch *sketch = r->sketch;
    const smp_yaml_node *list;
    if (!is_wanted(r, top, "programs"))
        return SMP_OK;
    SMP_TRY(smp__field_list(top, "plan", "programs", &list));
    int n = smp_yaml_list_size(list);
    if (r->whole && n != sketch->pipeline)
        return smp_fail_at(smp_yaml_where(list), "programs: got %d, expected one per rank: %d", n,
                           sketch->pipeline);
    smp_program *program = SMP_ARENA_NEW(r->arena, smp_program, (size_t)n);
    smp_where *where = SMP_ARENA_NEW(r->arena, smp_where, (size_t)n);
    if (!program || !where)
        return SMP_ERR_NO_MEMORY;
    sketch->programs_where = keep_where(r, list);
    sketch->program = program;
    sketch->program_where = where;
    for (int rank = 0; rank < n; rank++) {
        const smp_yaml_node *node = smp_yaml_list_at(list, rank);
        const char *text;
        where[rank] = keep_where(r, node);
        SMP_TRY(smp_yaml_string(node, "program", &text));
        sketch->n_program = rank + 1; /* smp_sketch_destroy frees so many */
        SMP_TRY(smp_program_parse(text, rank, smp_yaml_where(node), &program[rank]));
        if (r->whole)
            SMP_TRY(check_program(node, sketch, rank));
    }
    return SMP_OK;
}

static smp_status read_predictions(const reader *r, const smp_yaml_node *map, smp_predicted *out)
{
    /* no bound: made for the bottleneck, or long ago */
    const bool bound = smp_yaml_get(map, "step_lower_bound_us");
    const struct {
        const char *key;
        double min, max, *value;
    } number[] = {
        {"step_us", 0, SMP__MAX_SUM_US, &out->step_us},
        {"bubble", 0, 1, &out->bubble},
        {"samples_per_s", 0, SMP__MAX_RATIO, &out->samples_per_s},
        {"bottleneck_us", 0, SMP__MAX_SUM_US, &out->bottleneck_us},
        {"lower_bound_us", 0, SMP__MAX_SUM_US, &out->lower_bound_us},
        {"gap", -1, SMP__MAX_RATIO, &out->gap},
        {"step_lower_bound_us", 0, SMP__MAX_SUM_US, &out->step_lower_bound_us},
        {"step_gap", -1, SMP__MAX_RATIO, &out->step_gap},
    };
    for (size_t i = 0; i < sizeof number / sizeof number[0] - (bound ? 0 : 2); i++)
        SMP_TRY(read_double(r, map, "predicted", number[i].key, number[i].min, number[i].max,
                            number[i].value));
    return SMP_OK;
}

/* A number of bytes for each rank. */
static smp_status read_ranks(const reader *r, const smp_yaml_node *map, const char *key,
                             const char *what, const int64_t **out, int *n_out, smp_where *where)
{
    const smp_yaml_node *list;
    SMP_TRY(smp__field_list(map, "predicted", key, &list));
    const int n = smp_yaml_list_size(list);
    if (r->whole && n != r->sketch->pipeline)
        return smp_fail_at(smp_yaml_where(list), "%s: got %d, expected one per rank: %d", what, n,
                           r->sketch->pipeline);
    int64_t *bytes = SMP_ARENA_NEW(r->arena, int64_t, (size_t)n);
    if (!bytes)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < n; i++)
        SMP_TRY(smp_yaml_int(smp_yaml_list_at(list, i), what, 0, SMP__MAX_SUM_BYTES, &bytes[i]));
    *where = keep_where(r, list);
    *out = bytes;
    *n_out = n;
    return SMP_OK;
}

/* In a sketch's prediction the bytes have to be right; the step depends on costs, and is only
 * compared. */
static smp_status read_predicted(const reader *r, const smp_yaml_node *top)
{
    static const char *const keys[] = {
        "step_us",        "bubble",     "samples_per_s",       "bottleneck_us",
        "lower_bound_us", "gap",        "step_lower_bound_us", "step_gap",
        "peak_bytes",     "host_bytes", "communicator_bytes",  "costs",
        "error",          "waits_us"};
    const char *what = "predicted";
    smp_sketch *sketch = r->sketch;
    const smp_yaml_node *map;
    if (!is_wanted(r, top, what))
        return SMP_OK;
    SMP_TRY(smp__field_map(top, "plan", what, keys, SMP__COUNT(keys), &map));
    SMP_TRY(read_predictions(r, map, &sketch->predicted));
    if (smp_yaml_get(map, "costs"))
        SMP_TRY(smp__field_text(map, what, "costs", sketch->arena, &sketch->predicted.costs));
    if (smp_yaml_get(map, "waits_us"))
        SMP_TRY(smp__field_double(map, what, "waits_us", 0, SMP__MAX_SUM_US,
                                  &sketch->predicted.waits_us));
    if (smp_yaml_get(map, "error"))
        SMP_TRY(smp__field_double(map, what, "error", 0, 10, &sketch->predicted.error));
    if (smp_yaml_get(map, "communicator_bytes"))
        SMP_TRY(smp__field_int64(map, what, "communicator_bytes", 0, SMP_MAX_BYTES,
                                 &sketch->predicted.communicator_bytes));
    if (smp_yaml_get(map, "host_bytes"))
        SMP_TRY(read_ranks(r, map, "host_bytes", "predicted: host_bytes",
                           &sketch->predicted.host_bytes, &sketch->n_host, &sketch->host_where));
    return is_wanted(r, map, "peak_bytes")
               ? read_ranks(r, map, "peak_bytes", "predicted: peak_bytes",
                            &sketch->predicted.peak_bytes, &sketch->n_peak,
                            &sketch->predicted_where)
               : SMP_OK;
}

static smp_status read_top(reader *r, const smp_yaml *yaml)
{
    static const char *const keys[] = {
        "smp",      "model",     "parallel", "split",     "batch",  "schedule",        "stages",
        "programs", "predicted", "cluster",  "execution", "freeze", "loading_horizon", "products"};
    smp_sketch *sketch = r->sketch;
    const smp_yaml_node *top;
    SMP_TRY(smp_yaml_document(yaml, "plan", keys, SMP__COUNT(keys), &top));
    sketch->stages_where.file = smp_arena_strdup(r->arena, smp_yaml_file(yaml));
    if (!sketch->stages_where.file)
        return SMP_ERR_NO_MEMORY;
    sketch->groups_differ = says_tensor(smp_yaml_get(top, "stages"));
    SMP_TRY(read_head(r, top));
    SMP_TRY(smp__freezing_read(top, sketch->stages_where.file, r->arena, &sketch->freezing));
    SMP_TRY(read_stages(r, top));
    SMP_TRY(check_groups(r, top));
    SMP_TRY(smp__plan_read_split(top, sketch->stages_where.file, r->arena, &sketch->splitting));
    SMP_TRY(read_programs(r, top));
    SMP_TRY(read_predicted(r, top));
    SMP_TRY(smp_gemm_choices_read(top, "plan", r->arena, &sketch->products));
    return smp__plan_read_cluster(top, r->whole ? r->devices : 1,
                                  r->sketch->groups_differ ? 1 : sketch->splitting.devices,
                                  r->arena, &sketch->cluster, &sketch->optimizer_bytes_per_s);
}

smp_status smp__sketch_from_yaml(smp_yaml *yaml, bool whole, smp_sketch **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *arena = smp_arena_create();
    smp_sketch *sketch = arena ? SMP_ARENA_NEW(arena, smp_sketch, 1) : NULL;
    if (sketch) {
        reader r = {.sketch = sketch, .arena = arena, .whole = whole};
        sketch->arena = arena;
        status = read_top(&r, yaml);
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
