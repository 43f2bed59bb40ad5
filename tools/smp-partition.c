/* smp-partition: plans a model, or judges a plan. Wiring and exit code; the options stand in
 * tools/partition/partition_options.c. */
#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/base/clock.h"
#include "graph/ops/custom_op.h"
#include "schedule/auto/list_schedule.h"
#include "schedule/check/check.h"
#include "schedule/check/same_bits.h"
#include "schedule/plan/op_pattern.h"
#include "schedule/foreign/foreign_judge.h"
#include "schedule/foreign/foreign_take.h"
#include "tools/partition/outputs.h"
#include "tools/partition/split_from.h"
#include "schedule/plan/relative_path.h"
#include "schedule/plan/split_patterns.h"
#include "schedule/planner/planner_build.h"
#include "schedule/show/explain.h"
#include "schedule/show/picture.h"
#include "schedule/show/stage_table.h"
#include "schedule/tensor/tensor_plan.h"

enum { MAX_LOCAL = 1 << 16 };

/* What a run reads; freed together. */
typedef struct inputs {
    smp_graph *graph;
    smp_profile *profile;
    smp_cluster *cluster; /* NULL: the sketch's */
    smp_cluster *groups;  /* of the cluster's devices, or the sketch's; NULL: none */
    smp_sketch *sketch;   /* of --fix, or checked */
    smp__split_from split_from;
    smp_foreign *foreign;    /* of --schedule-from */
    int32_t *pin, *together; /* of the graph that is planned */
    smp_where *pin_where;
    smp_tensor_request tensor; /* of smp-partition MODEL */
} inputs;

/* What `adapt` reads. */
typedef struct planning {
    const smp_partition_options *options;
    inputs *in;
} planning;

static void free_inputs(inputs *in)
{
    free(in->pin);
    free(in->pin_where);
    free(in->together);
    smp_sketch_destroy(in->sketch);
    smp__split_from_close(&in->split_from);
    smp_foreign_destroy(in->foreign);
    smp_cluster_destroy(in->groups);
    smp_cluster_destroy(in->cluster);
    smp_profile_destroy(in->profile);
    smp_graph_destroy(in->graph);
}

/* Devices that compute every op together. */
static int tensor_of(const smp_search_request *request)
{
    return request->splitting.devices > 1 ? request->splitting.devices : 1;
}

/* Without a cluster file: so many devices of this machine as asked for, directly or by stages,
 * replicas and the devices of a group, else one per core, or one GPU. */
static int local_devices(const smp_search_request *request, const inputs *in)
{
    const int tensor = in->tensor.tensor > 1 ? in->tensor.tensor : 1;
    if (request->devices > 0)
        return request->devices;
    if (request->stages > 0 || request->ddp > 0 || tensor > 1) {
        int64_t devices = (int64_t)(request->stages > 0 ? request->stages : 1) *
                          (request->ddp > 0 ? request->ddp : 1) * tensor;
        return devices > SMP_MAX_COUNT ? SMP_MAX_COUNT : (int)devices;
    }
    bool own_memory = smp_backend_of(request->graph->target)->own_memory;
    long cores = own_memory ? 1 : sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > SMP_MAX_COUNT ? SMP_MAX_COUNT : (int)cores;
}

/* The cluster as groups of as many devices as compute every op together. */
static smp_status group_devices(smp_search_request *r, inputs *in)
{
    const int tensor = tensor_of(r);
    const smp_cluster *cluster = r->cluster;
    if (tensor == (cluster->of ? cluster->group : 1))
        return SMP_OK;
    r->cluster = cluster->of ? cluster->of : cluster;
    if (tensor == 1)
        return SMP_OK;
    smp_status status = smp_cluster_group(r->cluster, tensor, &in->groups);
    if (status == SMP_OK)
        r->cluster = in->groups;
    else if (status == SMP_ERR_INPUT && in->sketch && in->sketch->parallel_where.file)
        return smp_fail_at(in->sketch->parallel_where, "%s", smp_last_error());
    return status;
}

/* r->devices, where it is not 0, is the number of groups. */
static smp_status open_cluster(const smp_partition_options *o, smp_search_request *r, inputs *in)
{
    r->cluster = in->sketch ? in->sketch->cluster : NULL;
    if (o->cluster) {
        SMP_TRY(smp_cluster_read(o->cluster, &in->cluster));
    } else if (!r->cluster) {
        r->devices = local_devices(r, in);
        SMP_TRY(smp__at_numbers(r, smp_cluster_default(in->graph->target, in->profile,
                                                       r->devices * tensor_of(r), &in->cluster)));
    }
    if (in->cluster)
        r->cluster = in->cluster;
    SMP_TRY(group_devices(r, in));
    if (r->devices == 0)
        r->devices = smp_cluster_devices(r->cluster);
    return SMP_OK;
}

static smp_status keep_microbatches(const smp_sketch *sketch, smp_search_request *r)
{
    int64_t stages = (int64_t)r->stages * (r->chunks > 0 ? r->chunks : 1);
    if (r->microbatches > 0 || sketch->microbatches == 0)
        return SMP_OK;
    if (sketch->microbatches > SMP_MAX_FORWARDS / stages)
        return smp_fail_at(
            sketch->batch_where,
            "batch: microbatches: got %d, expected at most %d forward actions of %lld "
            "stages",
            sketch->microbatches, SMP_MAX_FORWARDS, (long long)stages);
    r->microbatches = sketch->microbatches;
    return SMP_OK;
}

static smp_status keep_schedule(const smp_sketch *sketch, smp_search_request *r)
{
    const smp_schedule_kind *kind = smp_schedule_find(sketch->schedule);
    if (r->schedule || !sketch->schedule || kind == &smp__schedule_auto)
        return SMP_OK;
    if (!kind) {
        smp_status status = smp_schedule_fail_name("schedule", sketch->schedule);
        return status == SMP_ERR_INPUT ? smp_fail_at(sketch->schedule_where, "%s", smp_last_error())
                                       : status;
    }
    r->schedule = kind->name;
    return SMP_OK;
}

/* What the plan to keep says holds where no option says otherwise. */
static smp_status keep_numbers(const smp_partition_options *o, const inputs *in,
                               smp_search_request *r)
{
    const smp_sketch *sketch = in->sketch;
    if (r->stages == 0 && r->ddp == 0 && r->chunks == 0)
        r->numbers_where =
            sketch->parallel_where.file ? sketch->parallel_where : sketch->stages_where;
    smp_sketch_shape(sketch, &r->stages, &r->chunks);
    if (r->ddp == 0)
        r->ddp = sketch->ddp;
    SMP_TRY(keep_microbatches(sketch, r));
    if (r->microbatch_size == 0)
        r->microbatch_size = sketch->microbatch_size;
    if (r->gradient_blocks == 0)
        r->gradient_blocks = sketch->gradient_blocks;
    r->sharding = smp_sharding_keep(r->sharding, sketch->sharding);
    if (r->loading_horizon == 0)
        r->loading_horizon = sketch->loading_horizon;
    bool same_ranks = r->stages == sketch->pipeline && r->ddp == sketch->ddp;
    if (!o->has_placement && sketch->has_placement && (!sketch->device || same_ranks))
        r->placement = sketch->placement;
    r->device = sketch->device;
    r->products = &sketch->products;
    r->library_bytes = sketch->library_bytes;
    if (r->devices == 0 && r->ddp > 0)
        r->devices = local_devices(r, in);
    return keep_schedule(sketch, r);
}

/* What the request says of the ops of the graph that is planned. */
static smp_status adapt(void *context, smp_search_request *r)
{
    const smp_partition_options *o = ((planning *)context)->options;
    inputs *in = ((planning *)context)->in;
    free(in->pin);
    free(in->pin_where);
    free(in->together);
    in->pin = in->together = NULL;
    in->pin_where = NULL;
    if (o->fix)
        SMP_TRY(smp_sketch_pins(in->sketch, r->graph, o->fix_stages, &in->pin, &in->pin_where));
    if (o->n_cut > 0)
        SMP_TRY(smp_op_cuts(r->graph, "--cut-at", o->cut, o->n_cut, &in->together));
    r->pin = in->pin;
    r->pin_where = in->pin_where;
    r->together = in->together;
    return SMP_OK;
}

/* The splitting of --split-from and nothing else of that plan or checkpoint. */
static smp_status ask_split_from(const smp_partition_options *o, inputs *in,
                                 smp_tensor_request *out)
{
    SMP_TRY(smp__split_from_open(o->split_from, &in->split_from));
    const smp_splitting *from = &in->split_from.splitting;
    if (o->n_split > 0)
        return smp_fail(SMP_ERR_INPUT, "--split: with --split-from, which says how ops are split");
    if (o->has_tensor && o->tensor > 0 && o->tensor != from->devices)
        return smp_fail(SMP_ERR_INPUT, "--tensor: got %d, expected the %d of --split-from %s",
                        o->tensor, from->devices, o->split_from);
    *out = (smp_tensor_request){.tensor = from->devices,
                                .fixed = from->entry,
                                .n_fixed = from->n_entry,
                                .only_fixed = true};
    return SMP_OK;
}

/* What the options say of groups of devices, else the plan to keep; the devices of this machine are
 * then so many times as much. */
static smp_status ask_tensor(const smp_partition_options *o, inputs *in, smp_tensor_request *out)
{
    const bool kept =
        in->sketch && in->sketch->splitting.devices > 1 && !o->has_tensor && !o->split_from;
    *out = (smp_tensor_request){.tensor = o->tensor, .fixed = o->split, .n_fixed = o->n_split};
    if (kept && o->n_split > 0)
        return smp_fail(SMP_ERR_INPUT, "--split: with --fix of a plan that says how ops are split: "
                                       "give --tensor, or change the plan");
    if (kept)
        *out =
            (smp_tensor_request){.tensor = in->sketch->splitting.devices,
                                 .fixed = in->sketch->splitting.entry,
                                 .n_fixed = in->sketch->splitting.n_entry,
                                 .only_fixed = true,
                                 .overlap = in->sketch->splitting.overlap ? SMP_TENSOR_OVERLAP_YES
                                                                          : SMP_TENSOR_OVERLAP_NO};
    if (o->split_from)
        SMP_TRY(ask_split_from(o, in, out));
    if (!kept || o->has_tensor_overlap)
        out->overlap = (smp_tensor_overlap)o->tensor_overlap;
    if (out->tensor != 1 && o->far_tensor)
        return smp_fail(SMP_ERR_INPUT,
                        "--placement %s: devices that compute ops together (--tensor) are "
                        "neighbours of one node: expected T last, DPT or PDT",
                        o->far_tensor);
    if (out->tensor == 1 && out->n_fixed > 0)
        return smp_fail(SMP_ERR_INPUT,
                        "--split: nothing is split without --tensor: give --tensor T, or auto");
    return SMP_OK;
}

/* The graph becomes what the plan is for. */
static smp_status set_target(const smp_partition_options *o, inputs *in)
{
    smp_target target;
    SMP_TRY(smp_partition_options_target(o, in->sketch, in->profile, &target));
    SMP_TRY(smp_graph_set_target(in->graph, target));
    SMP_TRY(smp_graph_check_kernels(in->graph));
    return in->profile ? smp_profile_check_target(in->profile, target) : SMP_OK;
}

static smp_status open_inputs(const smp_partition_options *o, smp_search_request *r, inputs *in)
{
    SMP_TRY(smp_graph_read(o->model, &in->graph));
    r->graph = in->graph;
    if (o->profile)
        SMP_TRY(smp_profile_read(o->profile, in->graph, &in->profile));
    r->profile = in->profile;
    if (o->fix)
        SMP_TRY(smp_sketch_read(o->fix, &in->sketch));
    const bool says = o->freezing.n > 0 || !in->sketch;
    SMP_TRY(smp_freezing_apply(says ? &o->freezing : &in->sketch->freezing, in->graph));
    SMP_TRY(set_target(o, in));
    SMP_TRY(ask_tensor(o, in, &in->tensor));
    if (o->fix)
        SMP_TRY(keep_numbers(o, in, r));
    if (o->schedule_from)
        SMP_TRY(smp_foreign_begin(o->schedule_from, r, &in->foreign));
    if (r->microbatch_size == 0)
        r->microbatch_size = in->profile ? in->profile->microbatch_size : 1;
    SMP_TRY(open_cluster(o, r, in));
    int devices = smp_cluster_devices(r->cluster);
    if (r->devices > devices && !in->cluster)
        return smp_fail(SMP_ERR_INPUT,
                        "%d devices are needed, the cluster of %s has %d: give --cluster FILE",
                        r->devices, o->fix, devices);
    if (o->request.devices > 0 || r->devices <= devices)
        return SMP_OK;
    return smp__at_numbers(r,
                           smp_fail(SMP_ERR_INPUT, "the plan needs %d devices, cluster '%s' has %d",
                                    r->devices, r->cluster->name, devices));
}

static smp_status print_text(FILE *stream, const smp_text *text)
{
    if (text->length > 0 &&
        (fwrite(text->data, 1, text->length, stream) != text->length || fflush(stream) != 0))
        return smp_fail(SMP_ERR_FAILED, "standard output: %s", strerror(errno));
    return SMP_OK;
}

/* The plan's file, with the model as seen from there. */
static smp_status write_plan(const smp_partition_options *o, smp_plan *plan, const char *model)
{
    smp_text text = {0};
    char *path = NULL;
    if (!o->output)
        return SMP_OK;
    SMP_TRY(smp_relative_path(o->output, model, &path));
    const char *kept = plan->model_path;
    plan->model_path = path ? path : model;
    smp_status status = smp_plan_format(plan, &text);
    if (status == SMP_OK)
        status = smp_file_write(o->output, text.data, text.length);
    plan->model_path = kept;
    smp_text_free(&text);
    free(path);
    return status;
}

static smp_status show(const smp_partition_options *o, const smp_text *shown,
                       const smp_text *reasons)
{
    SMP_TRY(print_text(stdout, shown));
    if (o->explain && !o->json)
        fputc('\n', stdout);
    return print_text(stdout, reasons);
}

static smp_status put_reasons(const smp_tensor_result *made, smp_text *reasons)
{
    SMP_TRY(smp_explain_tensor(made, reasons));
    SMP_TRY(smp_explain_plan(&made->result, reasons));
    SMP_TRY(smp_explain_hints(&made->request, &made->result, reasons));
    return smp_plan_draw_text(made->result.plan, made->request.graph, 0, reasons);
}

/* Files first, so that what is printed is true. A file that cannot be made, such as an export in
 * which this plan cannot be said, takes nothing else away: the plan is written and shown, then the
 * program fails. */
static smp_status write_results(const smp_partition_options *o, smp_tensor_result *made)
{
    const smp_planner_result *result = &made->result;
    const smp_graph *graph = made->request.graph;
    smp_text shown = {0}, reasons = {0};
    smp_status status = SMP_OK;
    if (o->json)
        status = smp_plan_format_json(result->plan, &shown);
    else
        status = smp_stage_table(result->plan, result->search.best->partition, graph, &shown);
    if (status == SMP_OK && o->explain)
        status = o->json ? smp_explain_json(made, &shown) : put_reasons(made, &reasons);
    if (status == SMP_OK)
        status = write_plan(o, result->plan, o->model);
    if (status == SMP_OK) {
        const smp_status made_files = smp_write_outputs(o, result->plan, graph);
        status = show(o, &shown, &reasons);
        status = made_files != SMP_OK ? made_files : status;
    }
    smp_text_free(&shown);
    smp_text_free(&reasons);
    return status;
}

static smp_status run_plan(const smp_partition_options *o)
{
    inputs in = {0};
    smp_tensor_result made = {0};
    smp_search_request request = o->request;
    planning context = {o, &in};
    char *path = NULL;
    smp_status status = o->output ? smp_relative_path(o->output, o->model, &path) : SMP_OK;
    if (status == SMP_OK)
        status = open_inputs(o, &request, &in);
    if (status == SMP_OK) {
        if (o->time_limit_s > 0)
            request.deadline_s = smp_clock_s() + o->time_limit_s;
        in.tensor.adapt = adapt;
        in.tensor.context = &context;
        status = smp_tensor_plan(&request, &in.tensor, path ? path : o->model, &made);
    }
    if (status == SMP_OK && in.foreign)
        status = smp_foreign_take_order(in.foreign, &made.request, &made.result);
    if (status == SMP_OK && made.result.search.timed_out)
        fprintf(stderr,
                "smp-partition: the time limit of %g s struck: this is the best plan until then\n",
                o->time_limit_s);
    if (status == SMP_OK && smp_plan_tensor(made.result.plan) > 1 &&
        made.result.plan->splitting.n_entry == 0)
        fprintf(stderr, "smp-partition: no op is split: every device of a group computes all\n");
    if (status == SMP_OK)
        status = write_results(o, &made);
    smp_tensor_result_destroy(&made);
    free_inputs(&in);
    free(path);
    return status;
}

/* The model as one device of a group computes it, as the sketch says. */
static smp_status split_model(smp_search_request *r, inputs *in)
{
    if (in->sketch->splitting.devices <= 1)
        return SMP_OK;
    SMP_TRY(
        smp_splitting_resolve(&in->sketch->splitting, in->graph, in->sketch->arena, &r->splitting));
    return smp_splitting_apply(&r->splitting, 0, &in->graph);
}

static smp_status open_checked(const smp_partition_options *o, smp_search_request *r, inputs *in)
{
    SMP_TRY(smp_sketch_read(o->plan, &in->sketch));
    if (o->model) {
        SMP_TRY(smp_graph_read(o->model, &in->graph));
    } else if (in->sketch->model_path) {
        smp_plan named = {.model_path = in->sketch->model_path};
        SMP_TRY(smp_plan_open_model(&named, o->plan, 0, &in->graph));
    } else {
        return smp_fail(SMP_ERR_INPUT, "%s: the plan names no model: give --model FILE", o->plan);
    }
    SMP_TRY(smp_freezing_apply(&in->sketch->freezing, in->graph));
    SMP_TRY(split_model(r, in));
    r->graph = in->graph;
    if (o->profile)
        SMP_TRY(smp_profile_read(o->profile, in->graph, &in->profile));
    r->profile = in->profile;
    SMP_TRY(set_target(o, in));
    int pipeline = r->stages, chunks = r->chunks, ddp = r->ddp > 0 ? r->ddp : in->sketch->ddp;
    smp_sketch_shape(in->sketch, &pipeline, &chunks);
    int64_t devices = (int64_t)pipeline * (ddp > 0 ? ddp : 1);
    const int most = MAX_LOCAL / tensor_of(r) > 0 ? MAX_LOCAL / tensor_of(r) : 1;
    r->devices = devices > most ? most : (int)devices; /* more are a finding */
    return open_cluster(o, r, in);
}

static smp_status write_check(const smp_partition_options *o, const smp_check *check,
                              const smp_search_request *request)
{
    smp_text shown = {0}, reasons = {0};
    smp_status status;
    if (o->json)
        status = smp_check_report_json(check, request, &shown);
    else
        status = smp_check_report(check, request, &shown);
    if (status == SMP_OK && o->explain && check->plan && o->json) {
        status = smp_explain_checked_json(check->plan, check->partition, request->graph, &shown);
    } else if (status == SMP_OK && o->explain && check->plan) {
        smp_explain_splitting(check->plan, &reasons);
        smp_explain_bottleneck(check->plan, check->partition, &reasons);
        status = smp_plan_draw_text(check->plan, request->graph, 0, &reasons);
    }
    if (status == SMP_OK && check->plan)
        status = smp_write_outputs(o, check->plan, request->graph);
    if (status == SMP_OK && check->plan)
        status = write_plan(o, check->plan, request->graph->path);
    if (status == SMP_OK)
        status = show(o, &shown, &reasons);
    smp_text_free(&shown);
    smp_text_free(&reasons);
    return status;
}

static smp_status run_check(const smp_partition_options *o)
{
    inputs in = {0};
    smp_check check = {0};
    smp_search_request request = o->request;
    smp_status status = open_checked(o, &request, &in);
    if (status == SMP_OK) {
        if (o->time_limit_s > 0)
            request.deadline_s = smp_clock_s() + o->time_limit_s;
        status = smp_check_sketch(&request, o->has_placement, in.sketch, &check);
    }
    if (status == SMP_OK)
        status = write_check(o, &check, &request);
    if (status == SMP_OK && !check.legal)
        status = smp_fail(SMP_ERR_INPUT, "%s: the plan is illegal: %d finding%s", o->plan,
                          check.findings.n_level[SMP_FINDING_ILLEGAL],
                          check.findings.n_level[SMP_FINDING_ILLEGAL] == 1 ? "" : "s");
    else if (status == SMP_OK && !check.fits)
        status =
            smp_fail(SMP_ERR_NO_FIT, "%s: the plan is legal, but does not fit the memory", o->plan);
    smp_check_free(&check);
    free_inputs(&in);
    return status;
}

static smp_status write_verdict(const smp_partition_options *o, const smp_foreign_verdict *verdict)
{
    smp_text shown = {0};
    smp_status status =
        o->json ? smp_foreign_report_json(verdict, &shown) : smp_foreign_report(verdict, &shown);
    if (status == SMP_OK)
        status = print_text(stdout, &shown);
    smp_text_free(&shown);
    if (status == SMP_OK && !verdict->legal)
        status =
            smp_fail(SMP_ERR_INPUT, "%s: %s", o->plan,
                     verdict->complete ? "the schedule deadlocks" : "the schedule is not complete");
    return status;
}

/* A schedule of another framework. */
static smp_status judge_foreign(const smp_partition_options *o)
{
    smp_foreign *foreign = NULL;
    smp_plan *costs = NULL;
    smp_foreign_verdict verdict = {0};
    double deadline_s = o->time_limit_s > 0 ? smp_clock_s() + o->time_limit_s : 0;
    smp_status status = o->costs ? smp_plan_read(o->costs, &costs) : SMP_OK;
    if (status == SMP_OK)
        status = smp_foreign_read(o->plan, o->request.stages, o->request.microbatches, &foreign);
    if (status == SMP_OK)
        status = smp_foreign_judge(foreign, costs, deadline_s, &verdict);
    if (status == SMP_OK)
        status = write_verdict(o, &verdict);
    smp_foreign_verdict_free(&verdict);
    smp_foreign_destroy(foreign);
    smp_plan_destroy(costs);
    return status;
}

static smp_status compare_bits(const smp_partition_options *o)
{
    smp_text shown = {0};
    const smp_status status = smp_same_bits_report(o->plan, o->same_bits_as, o->json, &shown);
    const smp_status printed = print_text(stdout, &shown);
    smp_text_free(&shown);
    return printed != SMP_OK ? printed : status;
}

static smp_status check(const smp_partition_options *o)
{
    bool foreign;
    if (o->same_bits_as)
        return compare_bits(o);
    SMP_TRY(smp_foreign_is(o->plan, &foreign));
    if (foreign)
        return judge_foreign(o);
    if (o->costs)
        return smp_fail(SMP_ERR_INPUT, "--costs: %s is a plan, which has costs of its own",
                        o->plan);
    return run_check(o);
}

static smp_status run(const smp_partition_options *o)
{
    SMP_TRY(smp_plugins_load(o->plugins.item, o->plugins.n));
    return o->check ? check(o) : run_plan(o);
}

/* Solvers and layouts of millions of ops take and free the same amounts of memory again and again:
 * what was freed is kept, as fresh pages cost more than the work done in them. */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    (void)mallopt(M_TOP_PAD, 16 << 20);
#endif
}

int main(int argc, char **argv)
{
    keep_freed_memory();
    smp_partition_options options;
    smp_status status = smp_partition_options_parse(argc, argv, &options);
    if (status == SMP_OK && !smp_options_answer(&smp__partition_table, &options, &status))
        status = run(&options);
    const int code = smp_options_end(&smp__partition_table, status);
    smp_partition_options_free(&options);
    return code;
}
