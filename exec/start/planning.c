/* Planning from options: reads what they name, asks the planner. What a plan that is kept (`fix`)
 * says holds where no option says otherwise. See the header. */
#include "exec/start/planning.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/optimizer/optimizer.h"
#include "graph/base/divisor.h"
#include "schedule/auto/list_schedule.h"
#include "schedule/plan/freeze.h"
#include "schedule/plan/op_pattern.h"
#include "schedule/plan/split_patterns.h"
#include "schedule/planner/search/search.h"
#include "schedule/tensor/tensor_mix.h"

enum {
    MAX_LOCAL = 1 << 16,
    USUAL_BATCH = 512 /* samples of a step, or the least above that the degrees divide */
};

/* Devices that compute every op together. */
static int tensor_of(const smp_search_request *request)
{
    return request->splitting.devices > 1 ? request->splitting.devices : 1;
}

/* Without a cluster file: so many devices of this machine as asked for, directly or by stages,
 * replicas and the devices of a group, else one per core, or one GPU. */
static int local_devices(const smp__planning *p)
{
    const smp_search_request *r = &p->request;
    const int tensor = p->tensor.tensor > 1 ? p->tensor.tensor : 1;
    if (r->options.devices > 0)
        return r->options.devices;
    if (r->options.stages > 0 || r->options.ddp > 0 || tensor > 1) {
        int64_t devices = (int64_t)(r->options.stages > 0 ? r->options.stages : 1) *
                          (r->options.ddp > 0 ? r->options.ddp : 1) * tensor;
        return devices > SMP_MAX_COUNT ? SMP_MAX_COUNT : (int)devices;
    }
    bool own_memory = smp_backend_of(r->graph->target)->own_memory;
    long cores = own_memory ? 1 : sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > SMP_MAX_COUNT ? SMP_MAX_COUNT : (int)cores;
}

/* The cluster as groups of as many devices as compute every op together. */
static smp_status group_devices(smp__planning *p)
{
    smp_search_request *r = &p->request;
    const int tensor = tensor_of(r);
    const smp_cluster *cluster = r->cluster;
    if (p->rank_begin || tensor == (cluster->of ? cluster->group : 1))
        return SMP_OK;
    r->cluster = cluster->of ? cluster->of : cluster;
    if (tensor == 1)
        return SMP_OK;
    smp_status status = smp_cluster_group(r->cluster, tensor, &p->groups);
    if (status == SMP_OK)
        r->cluster = p->groups;
    else if (status == SMP_ERR_INPUT && p->sketch && p->sketch->parallel_where.file)
        return smp_fail_at(p->sketch->parallel_where, "%s", smp_last_error());
    return status;
}

/* The same where groups differ; the first device of each stands for it. */
static smp_status group_ranks(smp__planning *p, int ranks, int replicas)
{
    smp_search_request *r = &p->request;
    int *device = p->device = calloc((size_t)ranks * (size_t)replicas, sizeof *device);
    if (!device)
        return smp_fail_memory((size_t)ranks * (size_t)replicas * sizeof *device);
    smp_first_devices(p->rank_begin, ranks, replicas, device);
    smp_status status =
        smp_cluster_group_ranks(r->cluster, p->rank_begin, ranks, replicas, &p->groups);
    if (status == SMP_ERR_INPUT)
        return smp_fail_at(p->sketch->stages_where, "%s", smp_last_error());
    SMP_TRY(status);
    r->cluster = p->groups;
    r->rank_begin = p->rank_begin;
    r->device = device;
    return SMP_OK;
}

/* request.devices, where it is not 0, is the number of groups. */
static smp_status open_cluster(smp__planning *p)
{
    smp_search_request *r = &p->request;
    const char *file = p->options->planning.cluster;
    r->cluster = p->sketch ? p->sketch->cluster : NULL;
    if (file) {
        SMP_TRY(smp_cluster_read(file, &p->cluster));
        if (p->profile && p->cluster->keep_bytes_per_s == 0.0)
            p->cluster->keep_bytes_per_s = p->profile->keep_bytes_per_s;
        if (p->profile && p->cluster->launch.kernel_us == 0.0)
            p->cluster->launch = p->profile->launch;
    } else if (!r->cluster) {
        r->options.devices = local_devices(p);
        const int *begin = tensor_of(r) > 1 ? p->rank_begin : NULL;
        const int devices = begin ? r->options.devices / p->n_ranks * begin[p->n_ranks]
                                  : r->options.devices * tensor_of(r);
        SMP_TRY(smp__at_numbers(
            r, smp_cluster_default(p->graph->target, p->profile, devices, &p->cluster)));
    }
    if (p->cluster)
        r->cluster = p->cluster;
    if (!p->cluster && p->options->planning.speed)
        return smp_fail(SMP_ERR_INPUT,
                        "planning.speed: not for the cluster of a plan that is kept");
    if (p->options->planning.speed)
        SMP_TRY(smp_cluster_set_speeds(p->cluster, p->options->planning.speed,
                                       p->options->planning.n_speed));
    SMP_TRY(group_devices(p));
    if (r->options.devices == 0)
        r->options.devices = smp_cluster_devices(r->cluster);
    return SMP_OK;
}

static smp_status keep_microbatches(const smp_sketch *sketch, smp_search_request *r)
{
    int64_t stages = (int64_t)r->options.stages * (r->options.chunks > 0 ? r->options.chunks : 1);
    if (r->options.microbatches > 0 || sketch->microbatches == 0 || r->options.global_batch > 0)
        return SMP_OK;
    if (sketch->microbatches > SMP_MAX_FORWARDS / stages)
        return smp_fail_at(
            sketch->batch_where,
            "batch: microbatches: got %d, expected at most %d forward actions of %lld "
            "stages",
            sketch->microbatches, SMP_MAX_FORWARDS, (long long)stages);
    r->options.microbatches = sketch->microbatches;
    return SMP_OK;
}

static smp_status keep_schedule(const smp_sketch *sketch, smp_search_request *r)
{
    const smp_schedule_kind *kind = smp_schedule_find(sketch->schedule);
    if (r->options.schedule || !sketch->schedule || kind == &smp__schedule_auto)
        return SMP_OK;
    if (!kind) {
        smp_status status = smp_schedule_fail_name("schedule", sketch->schedule);
        return status == SMP_ERR_INPUT ? smp_fail_at(sketch->schedule_where, "%s", smp_last_error())
                                       : status;
    }
    r->options.schedule = kind->name;
    return SMP_OK;
}

static smp_status keep_numbers(smp__planning *p)
{
    const smp_sketch *sketch = p->sketch;
    smp_search_request *r = &p->request;
    if (r->options.stages == 0 && r->options.ddp == 0 && r->options.chunks == 0)
        r->numbers_where =
            sketch->parallel_where.file ? sketch->parallel_where : sketch->stages_where;
    smp_sketch_shape(sketch, &r->options.stages, &r->options.chunks);
    if (r->options.ddp == 0)
        r->options.ddp = sketch->ddp;
    SMP_TRY(keep_microbatches(sketch, r));
    if (r->options.microbatch_size == 0)
        r->options.microbatch_size = sketch->microbatch_size;
    if (r->options.gradient_blocks == 0)
        r->options.gradient_blocks = sketch->gradient_blocks;
    r->sharding = smp_sharding_keep(r->sharding, sketch->sharding);
    if (r->options.loading_horizon == 0)
        r->options.loading_horizon = sketch->loading_horizon;
    bool same_ranks = r->options.stages == sketch->pipeline && r->options.ddp == sketch->ddp;
    if (r->placement == SMP_PLACEMENT_AUTO && sketch->has_placement &&
        (!sketch->device || same_ranks))
        r->placement = sketch->placement;
    r->device = sketch->device;
    r->library_bytes = sketch->library_bytes;
    if (r->options.devices == 0 && r->options.ddp > 0)
        r->options.devices = local_devices(p);
    return keep_schedule(sketch, r);
}

/* An entry of cut_at may hold several patterns, with commas between. */
static smp_status read_cuts(smp__planning *p)
{
    const smp_plan_options *o = &p->options->planning;
    size_t most = 1;
    for (int i = 0; i < o->n_cut_at; i++)
        most += strlen(o->cut_at[i]) + 1;
    p->cut = calloc(most, sizeof *p->cut);
    p->cut_text = calloc(most, 1);
    if (!p->cut || !p->cut_text)
        return smp_fail_memory(most * sizeof *p->cut);
    char *at = p->cut_text, *rest = NULL;
    for (int i = 0; i < o->n_cut_at; i++) {
        char *copy = at;
        at = stpcpy(at, o->cut_at[i]) + 1;
        for (char *w = strtok_r(copy, ",", &rest); w; w = strtok_r(NULL, ",", &rest))
            p->cut[p->n_cut++] = w;
        if (p->n_cut == 0)
            return smp_fail(SMP_ERR_INPUT, "--cut-at: got '%s', expected a pattern of op names",
                            o->cut_at[i]);
    }
    return SMP_OK;
}

/* The ops of smaller groups, by the sketch's stages. */
static smp_status list_fewer(smp__planning *p, const int *begin, int ranks)
{
    const smp_graph *graph = p->graph;
    int32_t *pin;
    smp_where *where;
    SMP_TRY(smp_sketch_pins(p->sketch, graph, NULL, &pin, &where));
    free(where);
    smp_status status = SMP_OK;
    p->fewer = calloc((size_t)graph->n_op, sizeof *p->fewer);
    if (!p->fewer)
        status = smp_fail_memory((size_t)graph->n_op * sizeof *p->fewer);
    for (int32_t o = 0; o < graph->n_op && status == SMP_OK; o++) {
        const int rank = pin[o] < 0 ? 0 : pin[o] % ranks;
        const int size = pin[o] < 0 ? 0 : begin[rank + 1] - begin[rank];
        if (size == 0)
            status = smp_fail_at(p->sketch->stages_where,
                                 "op '%s' lies in no stage, expected it in one where stages have "
                                 "groups of their own (`tensor`)",
                                 graph->op[o].name);
        else if (size < p->sketch->splitting.devices)
            p->fewer[p->n_fewer++] = (smp_split_fewer){graph->op[o].name, size};
    }
    free(pin);
    return status;
}

/* Groups of the sizes that the sketch's stages say; nothing where these say none. Of the whole
 * graph. */
static smp_status find_groups(smp__planning *p, int ranks)
{
    if (!p->sketch || !p->sketch->groups_differ || ranks == 0)
        return SMP_OK;
    int *begin = p->rank_begin = calloc((size_t)ranks + 1, sizeof *begin);
    p->n_ranks = ranks;
    if (!begin)
        return smp_fail_memory(((size_t)ranks + 1) * sizeof *begin);
    SMP_TRY(smp_sketch_groups(p->sketch, ranks, begin));
    return list_fewer(p, begin, ranks);
}

/* All devices then are those of its replicas. */
static smp_status keep_groups(smp__planning *p, bool asked)
{
    smp_plan_options *o = &p->request.options;
    if (p->options->planning.split_from || p->options->planning.tensor != SMP_DEFAULT)
        return SMP_OK;
    SMP_TRY(find_groups(p, o->stages));
    if (!p->rank_begin)
        return SMP_OK;
    const int all = p->rank_begin[o->stages];
    if (o->ddp == 0)
        o->ddp = asked && o->devices / all > 0 ? o->devices / all : 1;
    if (asked && o->devices != o->ddp * all)
        return smp_fail_at(p->sketch->stages_where,
                           "the groups of a replica are %d devices: %d replicas need %d, got %d",
                           all, o->ddp, o->ddp * all, o->devices);
    o->devices = o->ddp * all;
    p->tensor.rank_begin = p->rank_begin;
    p->tensor.fewer = p->fewer;
    p->tensor.n_fewer = p->n_fewer;
    return SMP_OK;
}

/* What the request says of the ops of the graph that is planned. */
static smp_status adapt_request(void *context, smp_search_request *r)
{
    smp__planning *p = context;
    const smp_plan_options *o = &p->options->planning;
    free(p->pin);
    free(p->pin_where);
    free(p->together);
    p->pin = p->together = NULL;
    p->pin_where = NULL;
    if (o->fix)
        SMP_TRY(smp_sketch_pins(p->sketch, r->graph, o->fix_stages, &p->pin, &p->pin_where));
    if (p->n_cut > 0)
        SMP_TRY(smp_op_cuts(r->graph, "--cut-at", p->cut, p->n_cut, &p->together));
    if (r->rank_begin && p->pin)
        smp_tensor_pin_between(r->graph, r->rank_begin, r->options.stages, p->pin);
    r->pin = p->pin;
    r->pin_where = p->pin_where;
    r->together = p->together;
    return SMP_OK;
}

static smp_status read_splits(smp__planning *p)
{
    const smp_plan_options *o = &p->options->planning;
    p->split = calloc((size_t)o->n_split + 1, sizeof *p->split);
    if (!p->split)
        return smp_fail_memory(((size_t)o->n_split + 1) * sizeof *p->split);
    for (; p->n_split < o->n_split; p->n_split++)
        SMP_TRY(smp_split_entry_parse("--split", o->split[p->n_split], &p->split[p->n_split]));
    return SMP_OK;
}

/* The splitting of --split-from and nothing else of that plan or checkpoint. */
static smp_status ask_split_from(smp__planning *p)
{
    const smp_plan_options *o = &p->options->planning;
    SMP_TRY(smp__split_from_open(o->split_from, &p->split_from));
    const smp_splitting *from = &p->split_from.splitting;
    if (o->n_split > 0)
        return smp_fail(SMP_ERR_INPUT, "--split: with --split-from, which says how ops are split");
    if (o->tensor > 0 && o->tensor != from->devices)
        return smp_fail(SMP_ERR_INPUT, "--tensor: got %d, expected the %d of --split-from %s",
                        o->tensor, from->devices, o->split_from);
    p->tensor = (smp_tensor_request){.tensor = from->devices,
                                     .fixed = from->entry,
                                     .n_fixed = from->n_entry,
                                     .only_fixed = true};
    return SMP_OK;
}

/* Where nothing says how many devices compute an op together: any number (0), unless a plan or an
 * order of actions for single devices is kept, or a placement that has no groups. */
static int default_tensor(const smp__planning *p, bool neighbours)
{
    return p->sketch || p->options->planning.schedule_from || !neighbours ? 1 : 0;
}

/* What the options say of groups of devices, else the plan to keep; the devices of this machine are
 * then so many times as much. */
static smp_status ask_tensor(smp__planning *p)
{
    const smp_plan_options *o = &p->options->planning;
    smp_tensor_request *out = &p->tensor;
    smp_placement placement;
    bool neighbours = true;
    if (o->placement)
        SMP_TRY(smp__placement_read("--placement", o->placement, &placement, &neighbours));
    const bool kept =
        p->sketch && p->sketch->splitting.devices > 1 && o->tensor == SMP_DEFAULT && !o->split_from;
    SMP_TRY(read_splits(p));
    *out = (smp_tensor_request){.tensor = o->tensor == SMP_DEFAULT ? default_tensor(p, neighbours)
                                                                   : o->tensor,
                                .fixed = p->split,
                                .n_fixed = p->n_split};
    if (out->tensor == 0 && !smp_target_splits(p->graph->target))
        out->tensor = 1;
    out->mix = out->tensor == 0 && !p->sketch && p->n_split == 0 && p->n_cut == 0;
    if (kept && p->n_split > 0)
        return smp_fail(SMP_ERR_INPUT, "--split: with --fix of a plan that says how ops are split: "
                                       "give --tensor, or change the plan");
    if (kept)
        *out =
            (smp_tensor_request){.tensor = p->sketch->splitting.devices,
                                 .fixed = p->sketch->splitting.entry,
                                 .n_fixed = p->sketch->splitting.n_entry,
                                 .only_fixed = true,
                                 .overlap = p->sketch->splitting.overlap ? SMP_TENSOR_OVERLAP_YES
                                                                         : SMP_TENSOR_OVERLAP_NO};
    if (o->split_from)
        SMP_TRY(ask_split_from(p));
    if (o->tensor_overlap != SMP_DEFAULT)
        out->overlap = (smp_tensor_overlap)o->tensor_overlap;
    SMP_TRY(smp_target_check_devices(p->graph->target, out->tensor));
    if (out->tensor == 1 && out->n_fixed > 0)
        return smp_fail(SMP_ERR_INPUT,
                        "--split: nothing is split with --tensor 1: give another, or auto");
    if (out->tensor != 1 && !neighbours)
        return smp_fail(SMP_ERR_INPUT,
                        "--placement %s: devices that compute ops together (--tensor) are "
                        "neighbours of one node: expected T last, DPT or PDT",
                        o->placement);
    return SMP_OK;
}

/* whole: the sketch has programs, and says cpu by saying nothing. */
static smp_status find_target(const smp__planning *p, bool whole, smp_target *out)
{
    const smp_runtime_options *o = &p->options->runtime;
    const char *states = p->options->planning.state_precision;
    smp_target target = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    if (whole || (p->sketch && p->sketch->has_target))
        target = p->sketch->target;
    else if (p->profile)
        target = smp_profile_target(p->profile);
    if (o->device)
        SMP_TRY(smp_backend_read((smp_where){0}, "--device", o->device, &target.backend));
    if (o->precision)
        SMP_TRY(smp_precision_read((smp_where){0}, "--precision", o->precision, &target.precision));
    if (states)
        SMP_TRY(smp_state_precision_read("--state-precision", states, &target.bf16_states));
    if (smp_target_check(target) != SMP_OK)
        return smp_fail(SMP_ERR_INPUT,
                        "--device %s: it has no %s, which %s: give --device %s or --precision "
                        "fp32",
                        smp_backend_name(target.backend), smp_precision_name(target.precision),
                        o->precision ? "--precision asks for" : "the plan or the profile is in",
                        smp_backend_with(target.precision));
    *out = target;
    return SMP_OK;
}

/* The graph becomes what the plan is for, with the products of the profile, else of a plan that is
 * kept. written: the plan has programs, and runs with its own, whatever a profile says. */
static smp_status set_target(smp__planning *p, smp_target target, bool written)
{
    const smp_gemm_choices *products = p->profile && !written ? &p->profile->products
                                       : p->sketch            ? &p->sketch->products
                                                              : NULL;
    SMP_TRY(smp_graph_set_target(p->graph, target));
    SMP_TRY(smp_graph_check_kernels(p->graph));
    if (products)
        SMP_TRY(smp_gemm_choices_give(products, p->graph));
    return p->profile ? smp_profile_check_target(p->profile, target) : SMP_OK;
}

static smp_status freeze(smp__planning *p)
{
    const smp_plan_options *o = &p->options->planning;
    smp_freeze_entry entry[SMP_MAX_FREEZES];
    for (int i = 0; i < o->n_freeze; i++)
        entry[i] = (smp_freeze_entry){o->freeze[i], {"--freeze", 0, 0}};
    const smp_freezing asked = {.n = o->n_freeze, .entry = entry};
    const bool says = o->n_freeze > 0 || !p->sketch;
    return smp_freezing_apply(says ? &asked : &p->sketch->freezing, p->graph);
}

static smp_status read_profile(smp__planning *p)
{
    p->request.graph = p->graph;
    if (p->options->planning.profile)
        SMP_TRY(smp_profile_read(p->options->planning.profile, p->graph, &p->profile));
    p->request.profile = p->profile;
    return SMP_OK;
}

static smp_status check_devices(const smp__planning *p, bool asked)
{
    const smp_search_request *r = &p->request;
    const int devices = smp_cluster_devices(r->cluster);
    if (r->options.devices > devices && !p->cluster)
        return smp_fail(SMP_ERR_INPUT,
                        "%d devices are needed, the cluster of %s has %d: give --cluster FILE",
                        r->options.devices, p->options->planning.fix, devices);
    if (asked || r->options.devices <= devices)
        return SMP_OK;
    return smp__at_numbers(r,
                           smp_fail(SMP_ERR_INPUT, "the plan needs %d devices, cluster '%s' has %d",
                                    r->options.devices, r->cluster->name, devices));
}

static int64_t least_common(int64_t a, int64_t b)
{
    return a / smp_common_divisor(a, b) * b;
}

/* Plans are compared by their time per sample, and what makes steps of other sizes trains
 * differently: where the request leaves the global batch open, all have the same. */
static void set_batch(smp_plan_options *o, bool any_size)
{
    const int64_t fixed = (o->gradient_blocks > 0 ? o->gradient_blocks
                           : o->ddp > 0           ? o->ddp
                                                  : 1) *
                          o->microbatch_size;
    const int64_t all = least_common(least_common(fixed, o->ddp > 0 ? 1 : o->devices),
                                     any_size ? SMP_TENSOR_MOST_SIZE : 1);
    const int64_t unit = all <= USUAL_BATCH ? all : fixed;
    if (o->global_batch == 0 && o->microbatches == 0)
        o->global_batch = (USUAL_BATCH + unit - 1) / unit * unit;
}

/* What is asked for, else what a plan says. */
static smp_settings settings_of(const smp__planning *p)
{
    const smp_plan_options *o = &p->options->planning;
    if (o->n_set > 0 || !p->sketch)
        return (smp_settings){.n = o->n_set, .text = o->set};
    return p->sketch->settings;
}

smp_status smp__planning_open(const smp_options *options, const smp_target *target, int ranks,
                              smp__planning *p)
{
    const smp_plan_options *o = &options->planning;
    smp_search_request *r = &p->request;
    smp_target found;
    *p = (smp__planning){.options = options};
    SMP_TRY(smp__plan_request_fill(o, ranks, r));
    SMP_TRY(read_cuts(p));
    const bool asked = r->options.devices > 0;
    if (o->fix)
        SMP_TRY(smp_sketch_read(o->fix, &p->sketch));
    SMP_TRY(smp_graph_read_joined(options->model, settings_of(p), &p->graph));
    SMP_TRY(read_profile(p));
    SMP_TRY(freeze(p));
    if (!target)
        SMP_TRY(find_target(p, false, &found));
    SMP_TRY(set_target(p, target ? *target : found, false));
    SMP_TRY(ask_tensor(p));
    if (o->fix) {
        SMP_TRY(keep_numbers(p));
        SMP_TRY(keep_groups(p, asked));
    }
    if (o->schedule_from)
        SMP_TRY(smp_foreign_begin(o->schedule_from, r, &p->foreign));
    const bool any_size = r->options.microbatch_size == 0 && !p->profile;
    if (r->options.microbatch_size == 0)
        r->options.microbatch_size = p->profile ? p->profile->microbatch_size : 1;
    SMP_TRY(open_cluster(p));
    set_batch(&r->options, any_size);
    if (r->sharding.shard == 0 && !o->fix && !o->schedule_from) {
        r->sharding.shard = SMP_SHARD_AUTO;
        r->few_shards = true;
    }
    p->tensor.any_size = any_size && r->options.global_batch > 0;
    return check_devices(p, asked);
}

/* The model as one device of a group computes it, as the sketch says. */
static smp_status split_model(smp__planning *p)
{
    if (p->sketch->splitting.devices <= 1)
        return SMP_OK;
    p->sketch->splitting.fewer = p->fewer;
    p->sketch->splitting.n_fewer = p->n_fewer;
    SMP_TRY(smp_splitting_resolve(&p->sketch->splitting, p->graph, p->sketch->arena,
                                  &p->request.splitting));
    return smp_splitting_apply(&p->request.splitting, 0, &p->graph);
}

static smp_status open_checked_model(smp__planning *p, const char *plan)
{
    if (p->options->model)
        return smp_graph_read_joined(p->options->model, settings_of(p), &p->graph);
    if (!p->sketch->model_path)
        return smp_fail(SMP_ERR_INPUT, "%s: the plan names no model: give --model FILE", plan);
    const smp_plan named = {.model_path = p->sketch->model_path, .settings = p->sketch->settings};
    return smp_plan_open_model(&named, plan, 0, &p->graph);
}

static void begin_time(smp__planning *p)
{
    const smp_plan_options *o = &p->options->planning;
    p->request.deadline_s = smp_effort_begin(o->effort, o->time_limit_s);
}

smp_status smp__planning_open_checked(const smp_options *options, const char *plan,
                                      smp__planning *p)
{
    smp_search_request *r = &p->request;
    smp_target target;
    *p = (smp__planning){.options = options};
    SMP_TRY(smp__plan_request_fill(&options->planning, 0, r));
    SMP_TRY(smp_sketch_read(plan, &p->sketch));
    SMP_TRY(open_checked_model(p, plan));
    SMP_TRY(smp_freezing_apply(&p->sketch->freezing, p->graph));
    int pipeline = r->options.stages, chunks = r->options.chunks,
        ddp = r->options.ddp > 0 ? r->options.ddp : p->sketch->ddp;
    smp_sketch_shape(p->sketch, &pipeline, &chunks);
    SMP_TRY(find_groups(p, pipeline));
    SMP_TRY(split_model(p));
    SMP_TRY(read_profile(p));
    const bool written = p->sketch->n_program > 0;
    SMP_TRY(find_target(p, written, &target));
    SMP_TRY(set_target(p, target, written));
    int64_t devices = (int64_t)pipeline * (ddp > 0 ? ddp : 1);
    const int most = MAX_LOCAL / tensor_of(r) > 0 ? MAX_LOCAL / tensor_of(r) : 1;
    r->options.devices = devices > most ? most : (int)devices; /* more are a finding */
    SMP_TRY(open_cluster(p));
    if (p->rank_begin)
        SMP_TRY(group_ranks(p, pipeline, ddp > 0 ? ddp : 1));
    begin_time(p);
    return SMP_OK;
}

/* Where nothing fits with the workspaces of products by a library, without these; advice is of the
 * last attempt. */
static smp_status plan_fitting(smp__planning *p, const char *model_path)
{
    const smp_gemm_choices *products = p->graph->products;
    const bool advise = p->request.advise;
    int n = 0;
    if (!products)
        return smp_tensor_plan(&p->request, &p->tensor, model_path, &p->made);
    SMP_TRY(smp_gemm_choices_give_lean(products, p->graph, &n));
    if (n > 0) {
        p->graph->products = products;
        p->request.advise = false;
        smp_status status = smp_tensor_plan(&p->request, &p->tensor, model_path, &p->made);
        p->request.advise = advise;
        if (status != SMP_ERR_NO_FIT)
            return status;
        SMP_TRY(smp_gemm_choices_give_lean(products, p->graph, &n));
    }
    SMP_TRY(smp_tensor_plan(&p->request, &p->tensor, model_path, &p->made));
    p->made.n_lean = n;
    return SMP_OK;
}

smp_status smp__planning_run(smp__planning *p, const char *model_path)
{
    begin_time(p);
    p->tensor.adapt = adapt_request;
    p->tensor.context = p;
    SMP_TRY(plan_fitting(p, model_path));
    return p->foreign ? smp_foreign_take_order(p->foreign, &p->made.request, &p->made.result)
                      : SMP_OK;
}

void smp__planning_close(smp__planning *p)
{
    smp_tensor_result_destroy(&p->made);
    for (int i = 0; i < p->n_split; i++)
        free((char *)p->split[i].op);
    free(p->split);
    free(p->cut);
    free(p->cut_text);
    free(p->pin);
    free(p->pin_where);
    free(p->together);
    free(p->rank_begin);
    free(p->fewer);
    free(p->device);
    smp_sketch_destroy(p->sketch);
    smp__split_from_close(&p->split_from);
    smp_foreign_destroy(p->foreign);
    smp_cluster_destroy(p->groups);
    smp_cluster_destroy(p->cluster);
    smp_profile_destroy(p->profile);
    smp_graph_destroy(p->graph);
}
