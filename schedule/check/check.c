/* The check of a plan, from a sketch to findings and scores; see the header. Each step is taken
 * only if those before it found nothing that makes it meaningless. */
#include "schedule/check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/auto/list_schedule.h"
#include "schedule/check/check_build.h"
#include "schedule/plan/gradient_blocks.h"

static int pick(int option, int written, int otherwise)
{
    return option > 0 ? option : written > 0 ? written : otherwise;
}

static smp_status pick_schedule(smp__check_build *b)
{
    const smp_sketch *sketch = b->sketch;
    const char *name = b->request.options.schedule;
    if (!name)
        name = sketch->schedule ? sketch->schedule : "interleaved";
    b->kind = smp_schedule_find(name);
    if (b->kind)
        return SMP_OK;
    smp_status status = smp_schedule_fail_name("schedule", name);
    if (status != SMP_ERR_INPUT)
        return status;
    return SMP__FIND(&b->out->findings, ILLEGAL, "schedule", sketch->schedule_where, "%s",
                     smp_last_error());
}

static smp_status check_shape(smp__check_build *b)
{
    const smp_sketch *sketch = b->sketch;
    smp_findings *findings = &b->out->findings;
    const smp_cluster *cluster = b->request.cluster;
    int p = b->shape.pipeline, v = b->shape.chunks, m = b->shape.microbatches;
    int64_t devices = (int64_t)p * b->request.options.ddp;
    const int *begin = b->request.rank_begin;
    if (v == 0 || (int64_t)p * v != sketch->n_stage)
        return SMP__FIND(findings, ILLEGAL, "shape", sketch->stages_where,
                         v == 0 ? "%d stages cannot be shared out evenly over %d ranks"
                                : "got %d stages, expected pipeline * chunks = %d * %d",
                         sketch->n_stage, p, v);
    if (!begin && devices > smp_cluster_devices(cluster)) {
        const int tensor = cluster->of ? cluster->group : 1;
        char each[32] = "";
        if (tensor > 1)
            snprintf(each, sizeof each, " * tensor %d", tensor);
        return SMP__FIND(findings, ILLEGAL, "devices", sketch->parallel_where,
                         "%d ranks * %d replicas%s need %lld devices, cluster '%s' has %d", p,
                         b->request.options.ddp, each, (long long)devices * tensor, cluster->name,
                         smp_cluster_devices(cluster->of ? cluster->of : cluster));
    }
    b->request.options.devices = (int)devices;
    if (b->request.placement == SMP_PLACEMENT_LISTED && !begin &&
        (p != sketch->pipeline || b->request.options.ddp != sketch->ddp))
        return SMP__FIND(findings, ILLEGAL, "devices", sketch->parallel_where,
                         "the placement lists the devices of %d ranks * %d replicas, asked for are "
                         "%d * %d",
                         sketch->pipeline, sketch->ddp, p, b->request.options.ddp);
    const smp_sharding sharding = b->request.sharding;
    if (b->request.options.gradient_blocks > 0 &&
        (smp_gradient_blocks_check(b->request.options.gradient_blocks, b->request.options.ddp, m) !=
             SMP_OK ||
         smp_gradient_joint_check(b->request.options.gradient_blocks, b->request.options.ddp,
                                  b->request.graph) != SMP_OK ||
         smp_gradient_hops_check(b->request.options.gradient_blocks, b->request.options.ddp,
                                 sharding.node_replicas) != SMP_OK))
        return SMP__FIND(findings, ILLEGAL, "shape", sketch->batch_where, "%s", smp_last_error());
    if (smp_shard_check(sharding.shard, b->request.options.ddp) != SMP_OK)
        return SMP__FIND(findings, ILLEGAL, "shape", sketch->parallel_where, "%s",
                         smp_last_error());
    if (smp_hops_check(sharding, b->request.options.ddp) != SMP_OK)
        return SMP__FIND(findings, ILLEGAL, "shape", sketch->parallel_where, "%s",
                         smp_last_error());
    if ((int64_t)p * v > SMP_MAX_FORWARDS / m)
        return SMP__FIND(findings, ILLEGAL, "shape", sketch->parallel_where,
                         "%d ranks * %d chunks * %d micro-batches, expected at most %d forward "
                         "actions",
                         p, v, m, SMP_MAX_FORWARDS);
    if (b->kind && smp_schedule_check(b->kind, &b->shape) != SMP_OK)
        return SMP__FIND(findings, ILLEGAL, "schedule", sketch->schedule_where, "%s",
                         smp_last_error());
    return SMP_OK;
}

static smp_status check_model(smp__check_build *b)
{
    const smp_sketch *sketch = b->sketch;
    const smp_graph *graph = b->request.graph;
    if (!sketch->has_fingerprint || sketch->fingerprint == graph->fingerprint)
        return SMP_OK;
    return SMP__FIND(&b->out->findings, ILLEGAL, "fingerprint", sketch->fingerprint_where,
                     "the plan is for a model of fingerprint %016llx, model '%s' has %016llx",
                     (unsigned long long)sketch->fingerprint, graph->name,
                     (unsigned long long)graph->fingerprint);
}

static smp_status check_numbers(smp__check_build *b, bool use_placement)
{
    smp_search_request *r = &b->request;
    const smp_sketch *sketch = b->sketch;
    int p = r->options.stages, v = r->options.chunks;
    smp_sketch_shape(sketch, &p, &v);
    int m = pick(r->options.microbatches, sketch->microbatches, p > 1 << 20 ? 1 << 22 : 4 * p);
    b->shape = (smp_schedule_shape){.pipeline = p,
                                    .chunks = v,
                                    .microbatches = m,
                                    .training = r->graph->training,
                                    .active = r->options.active_microbatches,
                                    .lag = r->options.weight_lag,
                                    .group = r->options.group};
    r->options.ddp = pick(r->options.ddp, sketch->ddp, 1);
    r->sharding = smp_sharding_keep(r->sharding, sketch->sharding);
    if (r->sharding.shard < 1)
        r->sharding.shard = 1;
    r->sharding.offload_states = smp__states_in_host(r);
    b->shape.sharding = r->sharding;
    b->other_memory = r->sharding.offload_states != sketch->sharding.offload_states;
    if (r->options.loading_horizon == 0)
        r->options.loading_horizon = sketch->loading_horizon;
    if (r->options.gradient_blocks == 0 && r->options.ddp == sketch->ddp &&
        m == sketch->microbatches)
        r->options.gradient_blocks = sketch->gradient_blocks;
    if (r->options.microbatch_size <= 0)
        r->options.microbatch_size = sketch->microbatch_size;
    if (r->options.microbatch_size <= 0)
        r->options.microbatch_size = r->profile ? r->profile->microbatch_size : 1;
    if (r->options.microbatch_size > 1 << 20)
        return smp_fail(SMP_ERR_INPUT, "micro-batch size %lld, expected 1 to %d",
                        (long long)r->options.microbatch_size, 1 << 20);
    if (!use_placement || r->placement == SMP_PLACEMENT_AUTO)
        r->placement = sketch->has_placement ? sketch->placement : SMP_PLACEMENT_CLUSTER;
    if (r->rank_begin)
        r->placement = SMP_PLACEMENT_LISTED;
    else
        r->device = sketch->device;
    r->library_bytes = sketch->library_bytes;
    SMP_TRY(pick_schedule(b));
    b->same_numbers = b->kind && p == sketch->pipeline && v == sketch->chunks &&
                      m == sketch->microbatches && sketch->schedule &&
                      strcmp(sketch->schedule, b->kind->name) == 0;
    SMP_TRY(check_model(b));
    if (r->splitting.devices > 1 && r->splitting.n_entry == 0)
        SMP_TRY(SMP__FIND(&b->out->findings, NOTE, "split", sketch->parallel_where,
                          "no op is split: %d devices of a group all compute the same",
                          r->splitting.devices));
    return check_shape(b);
}

/* As written, or as the schedule places them if no stage says. */
static smp_status fill_ranks(smp__check_build *b)
{
    const smp_sketch *sketch = b->sketch;
    smp_findings *findings = &b->out->findings;
    int given = 0, p = b->shape.pipeline, v = b->shape.chunks;
    int *held = SMP_ARENA_NEW(b->arena, int, (size_t)p);
    b->rank = SMP_ARENA_NEW(b->arena, int, (size_t)sketch->n_stage);
    if (!held || !b->rank)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < sketch->n_listed; i++)
        given += sketch->stage[i].rank >= 0;
    for (int s = 0; s < sketch->n_stage; s++)
        b->rank[s] = smp_schedule_stage_rank(b->kind, &b->shape, s);
    for (int i = 0; given > 0 && i < sketch->n_listed; i++) {
        const smp_sketch_stage *stage = &sketch->stage[i];
        if (stage->rank < 0 || stage->rank >= p)
            return SMP__FIND(findings, ILLEGAL, "rank", stage->where,
                             stage->rank < 0 ? "stage %d has no rank, others have"
                                             : "stage %d: rank: got %d, expected 0 to %d",
                             stage->stage, stage->rank, p - 1);
        b->rank[stage->stage] = stage->rank;
        if (++held[stage->rank] > v)
            return SMP__FIND(findings, ILLEGAL, "rank", stage->where,
                             "rank %d holds more than %d stage%s", stage->rank, v,
                             v == 1 ? "" : "s");
    }
    return SMP_OK;
}

/* A rule places stages in one way only. Where no rule was asked for, ranks dealt out in another way
 * make it the schedule of no rule. */
static smp_status check_placement(smp__check_build *b)
{
    bool asked = b->request.options.schedule || b->sketch->schedule;
    b->by_rule = true;
    for (int s = 0; s < b->sketch->n_stage; s++) {
        int rule = smp_schedule_stage_rank(b->kind, &b->shape, s);
        if (b->rank[s] == rule)
            continue;
        b->by_rule = false;
        if (asked && !b->kind->any_placement)
            SMP_TRY(SMP__FIND(&b->out->findings, ILLEGAL, "rank", b->sketch->stages_where,
                              "stage %d lies on rank %d, schedule '%s' places it on rank %d", s,
                              b->rank[s], b->kind->name, rule));
    }
    if (!b->by_rule && !asked)
        b->kind = &smp__schedule_auto;
    return SMP_OK;
}

static smp_status run_steps(smp__check_build *b, bool use_placement)
{
    const smp_graph *graph = b->request.graph;
    if (!b->request.cluster)
        return smp_fail(SMP_ERR_INPUT, "the plan has no `cluster:`: give --cluster FILE");
    b->stage = SMP_ARENA_NEW(b->arena, int32_t, (size_t)graph->n_op);
    if (!b->stage)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_graph_check_kernels(graph));
    SMP_TRY(check_numbers(b, use_placement));
    bool shaped = smp__check_is_legal(b);
    SMP_TRY(smp__check_stages(graph, b->sketch, b->sketch->n_stage, b->stage, &b->out->findings));
    if (shaped)
        SMP_TRY(fill_ranks(b));
    if (smp__check_is_legal(b))
        SMP_TRY(check_placement(b));
    return smp__check_is_legal(b) ? smp__check_score(b) : SMP_OK;
}

smp_status smp_check_sketch(const smp_search_request *request, bool use_placement,
                            const smp_sketch *sketch, smp_check *out)
{
    smp_check check = {.findings = {.arena = smp_arena_create()}};
    smp__check_build build = {
        .request = *request, .sketch = sketch, .out = &check, .arena = smp_arena_create()};
    if (!request->cluster)
        build.request.cluster = sketch->cluster;
    smp_status status =
        check.findings.arena && build.arena ? run_steps(&build, use_placement) : SMP_ERR_NO_MEMORY;
    smp__check_plans_free(&build);
    smp_arena_destroy(build.arena);
    check.legal = status == SMP_OK && check.findings.n_level[SMP_FINDING_ILLEGAL] == 0;
    check.fits = check.legal && check.findings.n_level[SMP_FINDING_UNFIT] == 0;
    if (status == SMP_OK)
        *out = check;
    else
        smp_check_free(&check);
    return status;
}

void smp_check_free(smp_check *check)
{
    free(check->findings.item);
    smp_arena_destroy(check->findings.arena);
    if (check->same.plan != check->any.plan && check->same.plan != check->plan)
        smp_plan_destroy(check->same.plan);
    if (check->any.plan != check->plan)
        smp_plan_destroy(check->any.plan);
    smp_plan_destroy(check->plan);
    smp_partition_destroy(check->partition);
    *check = (smp_check){0};
}
