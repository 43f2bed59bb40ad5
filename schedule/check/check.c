/* The check of a plan, from a sketch to findings and scores; see the header. Each step is taken only
 * if those before it found nothing that makes it meaningless. */
#include "schedule/check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/check/check_build.h"

static bool legal_so_far(const smp__check_build *b)
{
    return b->out->findings.n_level[SMP_FINDING_ILLEGAL] == 0;
}

static int pick(int option, int written, int otherwise)
{
    return option > 0 ? option : written > 0 ? written : otherwise;
}

static smp_status pick_schedule(smp__check_build *b)
{
    const smp_sketch *sketch = b->sketch;
    const char *name = b->request->schedule;
    smp_text names = {0};
    if (!name)
        name = sketch->schedule ? sketch->schedule : "interleaved";
    b->kind = smp_schedule_find(name);
    if (b->kind)
        return SMP_OK;
    smp_schedule_put_names(&names);
    smp_schedule_put_nearest(&names, name);
    smp_status status =
        smp__find(&b->out->findings, SMP_FINDING_ILLEGAL, "schedule", sketch->schedule_where,
                  "schedule: got '%s', expected one of %s", name, names.data ? names.data : "none");
    smp_text_free(&names);
    return status;
}

static smp_status check_shape(smp__check_build *b)
{
    enum { MAX_FORWARDS = 1 << 18 };
    const smp_sketch *sketch = b->sketch;
    smp_findings *findings = &b->out->findings;
    int p = b->shape.pipeline, v = b->shape.chunks;
    int64_t devices = (int64_t)p * b->ddp, on_hand = smp_cluster_devices(b->cluster);
    if (v == 0 || (int64_t)p * v != sketch->n_stage)
        return smp__find(findings, SMP_FINDING_ILLEGAL, "shape", sketch->stages_where,
                         v == 0 ? "%d stages cannot be shared out evenly over %d ranks"
                                : "got %d stages, expected pipeline * chunks = %d * %d",
                         sketch->n_stage, p, v);
    if (devices > on_hand)
        return smp__find(findings, SMP_FINDING_ILLEGAL, "devices", sketch->parallel_where,
                         "%d ranks * %d replicas need %lld devices, cluster '%s' has %lld", p,
                         b->ddp, (long long)devices, b->cluster->name, (long long)on_hand);
    if ((int64_t)p * v > MAX_FORWARDS / b->shape.microbatches)
        return smp__find(findings, SMP_FINDING_ILLEGAL, "shape", sketch->parallel_where,
                         "%d ranks * %d chunks * %d micro-batches, expected at most %d forward "
                         "actions",
                         p, v, b->shape.microbatches, MAX_FORWARDS);
    if (b->kind && smp_schedule_check(b->kind, &b->shape) != SMP_OK)
        return smp__find(findings, SMP_FINDING_ILLEGAL, "schedule", sketch->schedule_where, "%s",
                         smp_last_error());
    return SMP_OK;
}

smp_status smp__check_numbers(smp__check_build *b, bool use_placement)
{
    const smp_search_request *r = b->request;
    const smp_sketch *sketch = b->sketch;
    int p = r->stages, v = r->chunks;
    smp_sketch_shape(sketch, &p, &v);
    int64_t size = r->profile ? r->profile->microbatch_size : 1;
    b->ddp = pick(r->ddp, sketch->ddp, 1);
    int m = pick(r->microbatches, sketch->microbatches, p > 1 << 20 ? 1 << 22 : 4 * p);
    b->n_stage = sketch->n_stage;
    b->shape = (smp_schedule_shape){.pipeline = p,
                                    .chunks = v,
                                    .microbatches = m,
                                    .training = r->graph->training,
                                    .active = r->active_microbatches,
                                    .group = r->group};
    b->microbatch_size = sketch->microbatch_size > 0 ? sketch->microbatch_size : size;
    if (r->microbatch_size > 0)
        b->microbatch_size = r->microbatch_size;
    if (b->microbatch_size > 1 << 20)
        return smp_fail(SMP_ERR_INPUT, "micro-batch size %lld, expected 1 to %d",
                        (long long)b->microbatch_size, 1 << 20);
    b->placement = sketch->has_placement ? sketch->placement : SMP_PLACEMENT_CLUSTER;
    if (use_placement && r->placement != SMP_PLACEMENT_AUTO)
        b->placement = r->placement;
    SMP_TRY(pick_schedule(b));
    b->same_numbers = b->kind && p == sketch->pipeline && v == sketch->chunks &&
                      m == sketch->microbatches && sketch->schedule &&
                      strcmp(sketch->schedule, b->kind->name) == 0;
    if (sketch->has_fingerprint && sketch->fingerprint != r->graph->fingerprint)
        SMP_TRY(smp__find(&b->out->findings, SMP_FINDING_ILLEGAL, "fingerprint",
                          sketch->fingerprint_where,
                          "the plan was made for %s%s%s with fingerprint %016llx, model '%s' has "
                          "%016llx",
                          sketch->model_name ? "model '" : "a model",
                          sketch->model_name ? sketch->model_name : "",
                          sketch->model_name ? "'" : "", (unsigned long long)sketch->fingerprint,
                          r->graph->name, (unsigned long long)r->graph->fingerprint));
    return check_shape(b);
}

/* As written, or as the schedule places them if no stage says. */
static smp_status fill_ranks(smp__check_build *b)
{
    const smp_sketch *sketch = b->sketch;
    smp_findings *findings = &b->out->findings;
    int given = 0, p = b->shape.pipeline;
    int *held = SMP_ARENA_NEW(b->arena, int, (size_t)p);
    if (!held)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < sketch->n_listed; i++)
        given += sketch->stage[i].rank >= 0;
    for (int s = 0; s < b->n_stage; s++)
        b->rank[s] = smp_schedule_stage_rank(b->kind, &b->shape, s);
    for (int i = 0; given > 0 && i < sketch->n_listed; i++) {
        const smp_sketch_stage *stage = &sketch->stage[i];
        if (stage->rank < 0)
            return smp__find(findings, SMP_FINDING_ILLEGAL, "rank", stage->where,
                             "stage %d has no rank, others have", stage->stage);
        if (stage->rank >= p)
            return smp__find(findings, SMP_FINDING_ILLEGAL, "rank", stage->where,
                             "stage %d: rank: got %d, expected 0 to %d", stage->stage, stage->rank,
                             p - 1);
        b->rank[stage->stage] = stage->rank;
        if (++held[stage->rank] > b->shape.chunks)
            return smp__find(findings, SMP_FINDING_ILLEGAL, "rank", stage->where,
                             "rank %d holds more than %d stage%s", stage->rank, b->shape.chunks,
                             b->shape.chunks == 1 ? "" : "s");
    }
    return SMP_OK;
}

/* A rule places stages in one way only. Where no rule was asked for, ranks dealt out in another way
 * make it the schedule of no rule. */
static smp_status check_placement(smp__check_build *b)
{
    bool asked = b->request->schedule || b->sketch->schedule;
    b->by_rule = true;
    for (int s = 0; s < b->n_stage; s++) {
        int rule = smp_schedule_stage_rank(b->kind, &b->shape, s);
        if (b->rank[s] == rule)
            continue;
        b->by_rule = false;
        if (asked && !b->kind->any_placement)
            SMP_TRY(smp__find(&b->out->findings, SMP_FINDING_ILLEGAL, "rank",
                              b->sketch->stages_where,
                              "stage %d lies on rank %d, schedule '%s' places it on rank %d", s,
                              b->rank[s], b->kind->name, rule));
    }
    if (!b->by_rule && !asked)
        b->kind = &smp__schedule_auto;
    return SMP_OK;
}

smp_status smp__check_ranks(smp__check_build *b)
{
    int p = b->shape.pipeline;
    b->rank = SMP_ARENA_NEW(b->arena, int, (size_t)b->n_stage);
    b->device = SMP_ARENA_NEW(b->arena, int, (size_t)p *(size_t)b->ddp);
    if (!b->rank || !b->device)
        return SMP_ERR_NO_MEMORY;
    for (int d = 0; d < b->ddp; d++) {
        for (int r = 0; r < p; r++)
            b->device[d * p + r] = smp_plan_device(b->placement, p, b->ddp, d, r);
    }
    SMP_TRY(fill_ranks(b));
    return legal_so_far(b) ? check_placement(b) : SMP_OK;
}

int64_t smp__check_limit(const smp__check_build *b, int rank)
{
    int64_t limit = INT64_MAX;
    if (b->request->memory_bytes > 0)
        return b->request->memory_bytes;
    for (int d = 0; d < b->ddp; d++) {
        int64_t bytes = b->cluster->device[b->device[d * b->shape.pipeline + rank]].memory_bytes;
        limit = bytes < limit ? bytes : limit;
    }
    return limit;
}

static smp_status run_steps(smp__check_build *b, bool use_placement, smp_costs **costs)
{
    const smp_search_request *r = b->request;
    b->stage = SMP_ARENA_NEW(b->arena, int32_t, (size_t)r->graph->n_op);
    if (!b->stage)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_graph_check_kernels(r->graph));
    SMP_TRY(smp__check_numbers(b, use_placement));
    bool shaped = legal_so_far(b);
    SMP_TRY(smp__check_stages(r->graph, b->sketch, b->n_stage, b->stage, &b->out->findings));
    if (shaped)
        SMP_TRY(smp__check_ranks(b));
    if (!legal_so_far(b))
        return SMP_OK;
    SMP_TRY(smp_costs_build(r->graph, b->cluster, r->profile, b->microbatch_size, costs));
    b->costs = *costs;
    snprintf(b->out->cost_source, sizeof b->out->cost_source, "%s", b->costs->source);
    SMP_TRY(smp__check_loads(b));
    SMP_TRY(smp__check_plan(b));
    return legal_so_far(b) ? smp__check_compare(b) : SMP_OK;
}

smp_status smp_check_sketch(const smp_search_request *request, bool use_placement,
                            const smp_sketch *sketch, smp_check *out)
{
    smp_check check = {.findings = {.arena = smp_arena_create()}};
    smp_costs *costs = NULL;
    smp__check_build build = {.request = request,
                              .sketch = sketch,
                              .cluster = request->cluster ? request->cluster : sketch->cluster,
                              .out = &check,
                              .arena = smp_arena_create()};
    smp_status status = SMP_ERR_NO_MEMORY;
    if (check.findings.arena && build.arena) {
        if (build.cluster)
            status = run_steps(&build, use_placement, &costs);
        else
            status = smp_fail(SMP_ERR_INPUT, "the plan has no `cluster:`: give --cluster FILE");
    }
    smp_costs_destroy(costs);
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
    smp_plan_destroy(check->plan);
    smp_partition_destroy(check->partition);
    *check = (smp_check){0};
}
