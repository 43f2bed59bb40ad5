/* Planning from the library's options: what smp_plan_write and smp_init with a model do. */
#include "exec/start/plan_from_options.h"

#include <stdlib.h>
#include <string.h>

#include "exec/device/device.h"
#include "exec/job/choose_device.h"
#include "graph/base/clock.h"
#include "graph/ops/custom_op.h"
#include "schedule/plan/freeze.h"
#include "schedule/plan/split_patterns.h"
#include "schedule/tensor/tensor_plan.h"

#define TIME_LIMIT_S 10.0 /* what smp-partition takes by default */

static smp_status fill_request(const smp_options *options, int devices, smp_search_request *request)
{
    request->devices = devices;
    request->stages = options->stages;
    request->ddp = options->ddp;
    request->chunks = options->chunks;
    request->microbatches = options->microbatches;
    request->microbatch_size = options->microbatch_size;
    request->gradient_blocks = options->gradient_blocks;
    request->sharding = (smp_sharding){.shard = options->shard,
                                       .bucket_bytes = SMP_BUCKET_AUTO,
                                       .node_replicas = SMP_HOPS_AUTO,
                                       .prefetch = SMP_PREFETCH_AUTO};
    bool bf16;
    SMP_TRY(smp__option_bf16("gradient_wire", options->gradient_wire, &bf16));
    request->sharding.gradient_wire = bf16 ? SMP_WIRE_BF16 : SMP_WIRE_FP32;
    if (options->shard_what)
        SMP_TRY(smp_fail_context(smp_shard_what_read(options->shard_what, &request->sharding.what),
                                 "shard_what"));
    if (options->microbatch_size == 0)
        request->microbatch_size = request->profile ? request->profile->microbatch_size : 1;
    if (options->schedule && smp_schedule_find(options->schedule) != &smp__schedule_auto)
        request->schedule = smp_schedule_name(options->schedule);
    request->seed = 1;
    request->recompute = SMP_RECOMPUTE_AUTO;
    request->offload = request->offload_states = SMP_OFFLOAD_AUTO;
    request->placement = SMP_PLACEMENT_AUTO;
    request->advise = true;
    request->deadline_s = smp_clock_s() + TIME_LIMIT_S;
    if (devices < 1 || options->stages < 0 || options->ddp < 0 || options->chunks < 0 ||
        options->microbatches < 0 || options->microbatch_size < 0 || options->shard < 0 ||
        options->tensor < 0)
        return smp_fail(SMP_ERR_INPUT, "devices, stages, ddp, tensor, shard, chunks, microbatches "
                                       "and microbatch_size: expected 0 (auto) or more");
    return SMP_OK;
}

static smp_status freeze(const smp_options *options, smp_graph *graph)
{
    smp_freezing freezing = {.n = options->n_freeze};
    if (options->n_freeze < 0 || (options->n_freeze > 0 && !options->freeze))
        return smp_fail(SMP_ERR_INPUT, "n_freeze: got %d without as many in freeze",
                        options->n_freeze);
    smp_freeze_entry *entry = calloc((size_t)options->n_freeze + 1, sizeof *entry);
    if (!entry)
        return smp_fail_memory(((size_t)options->n_freeze + 1) * sizeof *entry);
    for (int i = 0; i < options->n_freeze; i++)
        entry[i].text = options->freeze[i];
    freezing.entry = entry;
    smp_status status = smp_freezing_apply(&freezing, graph);
    free(entry);
    return status;
}

/* entry: [options->n_split], whose ops are the caller's to free, those that were read. */
static smp_status read_splits(const smp_options *options, smp_split_entry *entry,
                              smp_tensor_request *out)
{
    *out = (smp_tensor_request){.tensor = options->tensor, .fixed = entry};
    if (options->tensor == 1 && options->n_split > 0)
        return smp_fail(SMP_ERR_INPUT,
                        "split: got %d, expected none with tensor 1, where no op is "
                        "split",
                        options->n_split);
    for (; out->n_fixed < options->n_split; out->n_fixed++)
        SMP_TRY(smp_split_entry_parse("split", options->split[out->n_fixed], &entry[out->n_fixed]));
    return SMP_OK;
}

static smp_status make_plan(const smp_options *options, const smp_search_request *request,
                            smp_plan **out)
{
    smp_tensor_request how = {0};
    smp_tensor_result made = {0};
    if (options->n_split < 0 || (options->n_split > 0 && !options->split))
        return smp_fail(SMP_ERR_INPUT, "n_split: got %d without as many in split",
                        options->n_split);
    smp_split_entry *entry = calloc((size_t)options->n_split + 1, sizeof *entry);
    if (!entry)
        return smp_fail_memory(((size_t)options->n_split + 1) * sizeof *entry);
    smp_status status = read_splits(options, entry, &how);
    if (status == SMP_OK)
        status = smp_tensor_plan(request, &how, options->model, &made);
    if (status == SMP_OK) {
        *out = made.result.plan;
        made.result.plan = NULL;
    }
    smp_tensor_result_destroy(&made);
    for (int32_t i = 0; i < how.n_fixed; i++)
        free((char *)entry[i].op);
    free(entry);
    return status;
}

smp_status smp__plan_from_options(const smp_options *options, int ranks, smp_target target,
                                  smp_plan **out)
{
    smp_graph *graph = NULL;
    smp_profile *profile = NULL;
    smp_cluster *cluster = NULL;
    int devices = options->devices > 0 ? options->devices : ranks;
    smp_search_request request = {0};
    smp_status status = smp_graph_read(options->model, &graph);
    if (status == SMP_OK)
        status = freeze(options, graph);
    if (status == SMP_OK)
        status = smp_graph_set_target(graph, target);
    if (status == SMP_OK && options->profile)
        status = smp_profile_read(options->profile, graph, &profile);
    if (status == SMP_OK)
        status = options->cluster ? smp_cluster_read(options->cluster, &cluster)
                                  : smp_cluster_default(target, profile, devices, &cluster);
    if (status == SMP_OK) {
        request.graph = graph;
        request.profile = profile;
        request.cluster = cluster;
        status = fill_request(options, devices, &request);
    }
    if (status == SMP_OK)
        status = make_plan(options, &request, out);
    smp_cluster_destroy(cluster);
    smp_profile_destroy(profile);
    smp_graph_destroy(graph);
    return status;
}

/* What options->device and precision ask for; "auto": what is in this machine. */
static smp_status find_target(const smp_options *options, smp_target *target)
{
    const char *name = options->device ? options->device : "cpu";
    *target = (smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    if (options->precision)
        SMP_TRY(smp_precision_read((smp_where){0}, "precision", options->precision,
                                   &target->precision));
    SMP_TRY(smp__option_bf16("state_precision", options->state_precision, &target->bf16_states));
    if (strcmp(name, "auto") != 0) {
        SMP_TRY(smp_device_backend(name, &target->backend));
        return smp_target_check(*target);
    }
    for (int i = 0; smp_devices()[i]; i++)
        if (smp_devices()[i]->present() == SMP_OK) {
            target->backend = smp_devices()[i]->backend;
            break;
        }
    return smp_target_check(*target);
}

smp_status smp_plan_write(const smp_options *options, const char *path)
{
    if (!options || !options->model || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_plan_write needs options.model and a path");
    smp_plan *plan = NULL;
    smp_text text = {0};
    smp_target target;
    SMP_TRY(find_target(options, &target));
    SMP_TRY(smp_plugins_load(options->plugins, options->n_plugins));
    smp_status status = smp__plan_from_options(options, 1, target, &plan);
    if (status == SMP_OK)
        status = smp_plan_format(plan, &text);
    if (status == SMP_OK)
        status = smp_file_write(path, text.data, text.length);
    smp_text_free(&text);
    smp_plan_destroy(plan);
    return status;
}
