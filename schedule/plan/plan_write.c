/* Writing plans: the YAML of a plan file and the same content as one JSON object. The same plan
 * gives the same bytes: keys stand in one order, numbers have the fewest digits that read back
 * equal.
 *
 * YAML's flow maps are JSON but for quotes and line breaks, so both come from one description: a
 * writer that knows where it stands. Linear in the plan. */
#include <inttypes.h>
#include <string.h>

#include "schedule/plan/plan.h"

typedef struct writer {
    smp_text *text;
    bool json;
    bool first; /* nothing stands in the current map or list yet */
} writer;

/* Words that YAML 1.1 would not read as a string, in any capitals. */
static bool is_reserved(const char *value)
{
    static const char *const words[] = {"true", "false", "yes", "no",  "on", "off",
                                        "null", "y",     "n",   "nan", "inf"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t k = 0;
        while (value[k] && words[i][k] && (value[k] | 0x20) == words[i][k])
            k++;
        if (!value[k] && !words[i][k])
            return true;
    }
    return false;
}

/* Letters, digits and "_./-", beginning with a letter, "_", "/", "./" or "../": needs no quotes. */
static bool is_plain(const char *value)
{
    char c = value[0];
    bool path = c == '/' || strncmp(value, "./", 2) == 0 || strncmp(value, "../", 3) == 0;
    bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if ((!word && !path) || is_reserved(value))
        return false;
    for (; *value; value++) {
        c = *value;
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              strchr("_./-", c)))
            return false;
    }
    return true;
}

static void put_string(writer *w, const char *value)
{
    if (!w->json && is_plain(value))
        smp_text_append(w->text, "%s", value);
    else
        smp_text_append_quoted(w->text, value);
}

static void separate(writer *w)
{
    if (!w->first)
        smp_text_append(w->text, ", ");
    w->first = false;
}

static void open_with(writer *w, char bracket)
{
    smp_text_append(w->text, "%c", bracket);
    w->first = true;
}

static void close_with(writer *w, char bracket)
{
    smp_text_append(w->text, "%c", bracket);
    w->first = false;
}

static void put_key(writer *w, const char *key)
{
    separate(w);
    smp_text_append(w->text, w->json ? "\"%s\": " : "%s: ", key);
}

/* A key of the top map: in YAML a line of its own, and alone on it before a list. */
static void put_top_key(writer *w, const char *key, bool list)
{
    if (w->json)
        put_key(w, key);
    else
        smp_text_append(w->text, "%s%s:%s", w->first ? "" : "\n", key, list ? "" : " ");
    w->first = false;
}

static void put_text(writer *w, const char *key, const char *value)
{
    put_key(w, key);
    put_string(w, value);
}

static void put_int(writer *w, const char *key, int64_t value)
{
    put_key(w, key);
    smp_text_append(w->text, "%" PRId64, value);
}

static void put_double(writer *w, const char *key, double value)
{
    put_key(w, key);
    smp_text_append_double(w->text, value);
}

static void put_bool(writer *w, const char *key, bool value)
{
    put_key(w, key);
    smp_text_append(w->text, value ? "true" : "false");
}

/* Items of the lists under the top map: in YAML a line each. */
static void begin_item(writer *w)
{
    if (w->json)
        separate(w);
    else
        smp_text_append(w->text, "\n  - ");
}

/* An op's text and how it is split, a line each. */
static void put_split(writer *w, const smp_splitting *splitting)
{
    if (splitting->devices <= 1 || splitting->n_entry == 0)
        return;
    put_top_key(w, "split", true);
    if (w->json)
        open_with(w, '[');
    for (int32_t i = 0; i < splitting->n_entry; i++) {
        begin_item(w);
        open_with(w, '{');
        put_text(w, "op", splitting->entry[i].op);
        put_text(w, "as", splitting->entry[i].as);
        close_with(w, '}');
    }
    if (w->json)
        close_with(w, ']');
}

static void put_freezing(writer *w, const smp_freezing *freezing)
{
    if (freezing->n == 0)
        return;
    put_top_key(w, "freeze", true);
    if (w->json)
        open_with(w, '[');
    for (int32_t i = 0; i < freezing->n; i++) {
        begin_item(w);
        put_string(w, freezing->entry[i].text);
    }
    if (w->json)
        close_with(w, ']');
}

static void put_placement(writer *w, const smp_plan *plan)
{
    if (plan->placement != SMP_PLACEMENT_LISTED) {
        put_text(w, "placement", plan->placement == SMP_PLACEMENT_CLUSTER ? "cluster" : "spread");
        return;
    }
    put_key(w, "placement");
    open_with(w, '[');
    for (int i = 0; i < plan->devices; i++) {
        separate(w);
        smp_text_append(w->text, "%d", plan->device[i]);
    }
    close_with(w, ']');
}

static void put_head(writer *w, const smp_plan *plan)
{
    put_top_key(w, "smp", false);
    smp_text_append(w->text, "1");
    put_top_key(w, "model", false);
    open_with(w, '{');
    put_text(w, "path", plan->model_path);
    put_text(w, "name", plan->model_name);
    if (plan->settings.n > 0) {
        put_key(w, "set");
        open_with(w, '[');
        for (int i = 0; i < plan->settings.n; i++) {
            separate(w);
            put_string(w, plan->settings.text[i]);
        }
        close_with(w, ']');
    }
    put_key(w, "fingerprint");
    smp_text_append(w->text, "\"%016" PRIx64 "\"", plan->fingerprint);
    close_with(w, '}');
    put_top_key(w, "parallel", false);
    open_with(w, '{');
    put_int(w, "devices", smp_plan_processes(plan));
    put_int(w, "pipeline", plan->pipeline);
    put_int(w, "ddp", plan->ddp);
    if (plan->splitting.devices > 1)
        put_int(w, "tensor", plan->splitting.devices);
    if (plan->splitting.devices > 1 && plan->splitting.overlap)
        put_bool(w, "tensor_overlap", true);
    if (plan->sharding.shard > 1) {
        put_int(w, "shard", plan->sharding.shard);
        put_text(w, "shard_what", smp_shard_what_name(plan->sharding.what));
    }
    if (smp_shards(plan->sharding, SMP_SHARD_WEIGHTS, plan->training) &&
        plan->sharding.prefetch != SMP_PREFETCH_DEFAULT)
        put_int(w, "prefetch", plan->sharding.prefetch);
    if (plan->sharding.node_replicas > 1)
        put_int(w, "node_replicas", plan->sharding.node_replicas);
    if (plan->sharding.bucket_bytes > 0)
        put_int(w, "bucket_bytes", plan->sharding.bucket_bytes);
    if (smp_wire_is_bf16(plan->sharding))
        put_text(w, "gradient_wire", "bf16");
    put_placement(w, plan);
    put_int(w, "chunks", plan->chunks);
    if (plan->sharding.offload_states)
        put_bool(w, "offload_states", true);
    close_with(w, '}');
    put_split(w, &plan->splitting);
    put_freezing(w, &plan->freezing);
    put_top_key(w, "batch", false);
    open_with(w, '{');
    put_int(w, "microbatches", plan->microbatches);
    put_int(w, "microbatch_size", plan->microbatch_size);
    if (plan->gradient_blocks != plan->ddp)
        put_int(w, "gradient_blocks", plan->gradient_blocks);
    if (w->json) /* for programs: it follows from the others */
        put_int(w, "global_batch", smp_plan_microbatches(plan) * plan->microbatch_size);
    close_with(w, '}');
    put_top_key(w, "schedule", false);
    put_string(w, plan->schedule);
    if (plan->loading_horizon > 0) {
        put_top_key(w, "loading_horizon", false);
        smp_text_append(w->text, "%d", plan->loading_horizon);
    }
    if (smp_target_equal(plan->target, (smp_target){0}))
        return;
    put_top_key(w, "execution", false);
    open_with(w, '{');
    put_text(w, "device", smp_backend_name(plan->target.backend));
    put_text(w, "precision", smp_precision_name(plan->target.precision));
    if (plan->target.bf16_states)
        put_text(w, "state_precision", "bf16");
    if (plan->library_bytes > 0)
        put_int(w, "libraries", plan->library_bytes);
    close_with(w, '}');
}

/* Nothing, everything, or the names of ops. True: the last. */
static bool put_mask(writer *w, const char *key, const smp_plan_stage *stage, const bool *mask)
{
    int32_t n = smp_plan_stage_count(stage, mask);
    if (n == 0 || n == stage->n_op) {
        put_bool(w, key, n > 0);
        return false;
    }
    put_key(w, key);
    open_with(w, '[');
    for (int32_t i = 0; i < stage->n_op; i++) {
        if (!mask[i])
            continue;
        separate(w);
        put_string(w, stage->op[i]);
    }
    close_with(w, ']');
    return true;
}

/* What is made again, with how long that takes; what travels, if anything may. */
static void put_masks(writer *w, const smp_plan_stage *stage)
{
    if (put_mask(w, "recompute", stage, stage->recompute))
        put_double(w, "recompute_us", stage->recompute_us);
    if (smp_plan_stage_offloads(stage) == 0)
        return;
    put_mask(w, "offload", stage, stage->offload);
    put_int(w, "offload_bytes", stage->offload_bytes);
}

static void put_stage(writer *w, const smp_plan *plan, int index)
{
    const smp_plan_stage *stage = &plan->stage[index];
    begin_item(w);
    open_with(w, '{');
    put_int(w, "stage", index);
    put_int(w, "rank", stage->rank);
    if (plan->rank_begin)
        put_int(w, "tensor", smp_plan_rank_tensor(plan, stage->rank));
    put_key(w, "ops");
    open_with(w, '[');
    for (int32_t i = 0; i < stage->n_op; i++) {
        separate(w);
        put_string(w, stage->op[i]);
    }
    close_with(w, ']');
    put_masks(w, stage);
    put_double(w, "forward_us", stage->forward_us);
    put_double(w, "backward_us", stage->backward_us);
    if (stage->forward_exchange_us > 0)
        put_double(w, "forward_exchange_us", stage->forward_exchange_us);
    if (stage->backward_exchange_us > 0)
        put_double(w, "backward_exchange_us", stage->backward_exchange_us);
    if (plan->backward_input_us)
        put_double(w, "backward_input_us", plan->backward_input_us[index]);
    put_int(w, "weight_bytes", stage->weight_bytes);
    put_int(w, "stash_bytes", stage->stash_bytes);
    close_with(w, '}');
}

static void put_lists(writer *w, const smp_plan *plan)
{
    put_top_key(w, "stages", true);
    if (w->json)
        open_with(w, '[');
    for (int s = 0; s < plan->n_stage; s++)
        put_stage(w, plan, s);
    if (w->json)
        close_with(w, ']');
    put_top_key(w, "programs", true);
    if (w->json)
        open_with(w, '[');
    for (int r = 0; r < plan->pipeline; r++) {
        begin_item(w);
        smp_text_append(w->text, "\"");
        smp_program_format(&plan->program[r], w->text);
        smp_text_append(w->text, "\"");
    }
    if (w->json)
        close_with(w, ']');
}

/* A number for each rank. */
static void put_ranks(writer *w, const char *key, const smp_plan *plan, const int64_t *bytes)
{
    put_key(w, key);
    open_with(w, '[');
    for (int r = 0; r < plan->pipeline; r++) {
        separate(w);
        smp_text_append(w->text, "%" PRId64, bytes[r]);
    }
    close_with(w, ']');
}

static void put_predicted(writer *w, const smp_plan *plan)
{
    const smp_predicted *predicted = &plan->predicted;
    put_top_key(w, "predicted", false);
    open_with(w, '{');
    put_double(w, "step_us", predicted->step_us);
    if (predicted->waits_us > 0.0)
        put_double(w, "waits_us", predicted->waits_us);
    put_double(w, "bubble", predicted->bubble);
    put_double(w, "samples_per_s", predicted->samples_per_s);
    put_double(w, "bottleneck_us", predicted->bottleneck_us);
    put_double(w, "lower_bound_us", predicted->lower_bound_us);
    put_double(w, "gap", predicted->gap);
    if (predicted->step_lower_bound_us > 0.0) {
        put_double(w, "step_lower_bound_us", predicted->step_lower_bound_us);
        put_double(w, "step_gap", predicted->step_gap);
    }
    put_ranks(w, "peak_bytes", plan, predicted->peak_bytes);
    if (predicted->host_bytes)
        put_ranks(w, "host_bytes", plan, predicted->host_bytes);
    if (predicted->communicator_bytes > 0)
        put_int(w, "communicator_bytes", predicted->communicator_bytes);
    if (predicted->costs)
        put_text(w, "costs", predicted->costs);
    if (predicted->error > 0.0)
        put_double(w, "error", predicted->error);
    close_with(w, '}');
}

static void put_link(writer *w, const char *key, const smp_link_spec *link)
{
    put_key(w, key);
    open_with(w, '{');
    put_double(w, "latency_us", link->latency_us);
    put_double(w, "bytes_per_s", link->bytes_per_s);
    if (link->n_point > 0) {
        put_key(w, "points");
        open_with(w, '[');
        for (int i = 0; i < link->n_point; i++) {
            separate(w);
            open_with(w, '{');
            put_int(w, "bytes", link->point_bytes[i]);
            put_double(w, "us", link->point_us[i]);
            close_with(w, '}');
        }
        close_with(w, ']');
    }
    close_with(w, '}');
}

static bool same_device(const smp_device_spec *a, const smp_device_spec *b)
{
    return smp_devices_alike(a, b) && a->bytes_per_s == b->bytes_per_s &&
           strcmp(a->name, b->name) == 0;
}

static void put_efficiency(writer *w, const smp_efficiency *e)
{
    put_key(w, "efficiency");
    open_with(w, '{');
    for (int i = 0; i < smp_efficiency_n_field; i++) {
        const smp_efficiency_field *f = &smp_efficiency_fields[i];
        const double value = *(const double *)((const char *)e + f->offset);
        if (value != *(const double *)((const char *)&smp_efficiency_ideal + f->offset))
            put_double(w, f->key, value);
    }
    if (e->n_tile > 0) {
        put_key(w, "tiles");
        open_with(w, '[');
        for (int i = 0; i < e->n_tile; i++) {
            separate(w);
            open_with(w, '{');
            put_int(w, "rows", e->tile[i].rows);
            put_int(w, "columns", e->tile[i].columns);
            put_double(w, "share", e->tile[i].share);
            close_with(w, '}');
        }
        close_with(w, ']');
    }
    if (*e->from)
        put_text(w, "from", e->from);
    close_with(w, '}');
}

/* Runs of equal devices. */
static void put_devices(writer *w, const smp_cluster *cluster)
{
    int n = smp_cluster_devices(cluster);
    put_key(w, "devices");
    open_with(w, '[');
    for (int begin = 0, end = 0; begin < n; begin = end) {
        const smp_device_spec *device = &cluster->device[begin];
        while (end < n && same_device(device, &cluster->device[end]))
            end++;
        separate(w);
        open_with(w, '{');
        put_int(w, "count", end - begin);
        put_text(w, "name", device->name);
        put_int(w, "memory", device->memory_bytes);
        put_double(w, "flops_fp32", device->flops_fp32);
        if (device->flops_tf32 > 0)
            put_double(w, "flops_tf32", device->flops_tf32);
        put_double(w, "flops_bf16", device->flops_bf16);
        if (device->flops_fp16 > 0)
            put_double(w, "flops_fp16", device->flops_fp16);
        if (device->flops_fp8 > 0)
            put_double(w, "flops_fp8", device->flops_fp8);
        put_double(w, "bytes_per_s", device->bytes_per_s);
        if (smp_device_speed(device) < 1)
            put_double(w, "speed", device->speed);
        if (device->efficiency)
            put_efficiency(w, device->efficiency);
        close_with(w, '}');
    }
    close_with(w, ']');
}

static void put_launch(writer *w, const smp_launch_costs *launch)
{
    if (launch->kernel_us <= 0.0)
        return;
    put_key(w, "launch");
    open_with(w, '{');
    put_double(w, "kernel_us", launch->kernel_us);
    put_double(w, "graph_us", launch->graph_us);
    put_double(w, "graph_kernel_us", launch->graph_kernel_us);
    close_with(w, '}');
}

/* What the prediction assumed of the machine itself, not of groups of its devices: enough to
 * simulate the plan by itself and to score another one beside it. */
static void put_cluster(writer *w, const smp_plan *plan)
{
    const smp_cluster *cluster = plan->cluster->of ? plan->cluster->of : plan->cluster;
    int64_t memory = cluster->device[0].memory_bytes;
    for (int d = 1; d < smp_cluster_devices(cluster); d++)
        if (memory > cluster->device[d].memory_bytes)
            memory = cluster->device[d].memory_bytes;
    put_top_key(w, "cluster", false);
    open_with(w, '{');
    put_text(w, "name", cluster->name);
    put_int(w, "nodes", cluster->nodes);
    put_int(w, "devices_per_node", cluster->devices_per_node);
    put_int(w, "cores_per_node", cluster->cores_per_node);
    if (cluster->adapters_per_node > 0)
        put_int(w, "adapters_per_node", cluster->adapters_per_node);
    if (cluster->cores_per_node > 0 && cluster->core_switch_us != SMP_DEFAULT_CORE_SWITCH_US)
        put_double(w, "core_switch_us", cluster->core_switch_us);
    if (cluster->scatter > 0.0)
        put_double(w, "scatter", cluster->scatter);
    if (cluster->keep_bytes_per_s > 0.0)
        put_double(w, "keep_bytes_per_s", cluster->keep_bytes_per_s);
    put_launch(w, &cluster->launch);
    if (cluster->host_memory_bytes > 0)
        put_int(w, "host_memory", cluster->host_memory_bytes);
    put_int(w, "memory", memory);
    put_bool(w, "overlap", cluster->overlap);
    put_double(w, "optimizer_bytes_per_s", plan->optimizer_bytes_per_s);
    put_link(w, "intra_node", &cluster->intra_node);
    put_link(w, "inter_node", &cluster->inter_node);
    if (cluster->host.bytes_per_s > 0)
        put_link(w, "host", &cluster->host);
    put_devices(w, cluster);
    close_with(w, '}');
}

static void put_products(writer *w, const smp_gemm_choices *products)
{
    put_top_key(w, "products", false);
    open_with(w, '{');
    put_int(w, "format", SMP_GEMMS_FORMAT);
    put_text(w, "device", products->device);
    put_text(w, "library", products->library);
    put_key(w, "chosen");
    open_with(w, '[');
    for (int i = 0; i < products->n; i++) {
        separate(w);
        open_with(w, '{');
        put_text(w, "product", products->choice[i].product);
        put_text(w, "algorithm", products->choice[i].algorithm);
        close_with(w, '}');
    }
    close_with(w, ']');
    close_with(w, '}');
}

static smp_status format_plan(const smp_plan *plan, smp_text *text, bool json)
{
    writer w = {.text = text, .json = json, .first = true};
    if (json)
        open_with(&w, '{');
    put_head(&w, plan);
    put_lists(&w, plan);
    put_predicted(&w, plan);
    if (plan->cluster)
        put_cluster(&w, plan);
    if (plan->products.device)
        put_products(&w, &plan->products);
    smp_text_append(text, json ? "}\n" : "\n");
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

smp_status smp_plan_format(const smp_plan *plan, smp_text *yaml)
{
    return format_plan(plan, yaml, false);
}

smp_status smp_plan_format_json(const smp_plan *plan, smp_text *json)
{
    return format_plan(plan, json, true);
}
