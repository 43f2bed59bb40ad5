/* The search with the real schedules: its ten best against every configuration planned by itself;
 * recomputation only where it is needed; kinds of ranks against each rank; bounds below what they
 * bound; time limits; what would help; clusters of 16,384 devices. */
#include "tests/case_count.h"
#include "tests/schedule/fixture.h"

#include <math.h>
#include <time.h>

#include "graph/base/clock.h"
#include "schedule/planner/planner.h"
#include "schedule/planner/search/search_state.h"
#include "schedule/verify/verify.h"

typedef struct setting {
    smp_graph *graph;
    smp_device_spec *device;
    smp_cluster cluster;
    smp_search_request request;
} setting;

/* Blocks of a transformer, small enough to be planned hundreds of times. */
static char *make_model(int blocks, int width)
{
    smp_text text = {0};
    smp_text_append(&text,
                    "smp: 1\nname: blocks\nlet: {T: 16, d: %d, heads: 2, layers: %d}\n"
                    "inputs: {tokens: {dtype: int32, shape: [T]}, targets: {dtype: int32, shape: "
                    "[T]}}\nops:\n"
                    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 64, features: d}\n"
                    "  - repeat: layers\n    as: i\n    ops:\n"
                    "      - {op: layernorm, name: \"h{i}.ln\", in: x, out: a}\n"
                    "      - {op: linear, name: \"h{i}.fc\", in: a, out: a, features: 4*d}\n"
                    "      - {op: gelu, name: \"h{i}.gelu\", in: a, out: a}\n"
                    "      - {op: linear, name: \"h{i}.proj\", in: a, out: a, features: d}\n"
                    "      - {op: add, name: \"h{i}.res\", in: [x, a], out: x}\n"
                    "  - {op: linear, name: head, in: x, out: logits, features: 64, bias: false}\n"
                    "  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"
                    "loss: loss\n",
                    width, blocks);
    assert_false(text.failed);
    return text.data;
}

static void open_setting(setting *s, int blocks, int width, int nodes, int per_node)
{
    char *model = make_model(blocks, width);
    *s = (setting){0};
    if (smp_graph_parse("model.yaml", model, strlen(model), &s->graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    free(model);
    int devices = nodes * per_node;
    s->device = calloc((size_t)devices, sizeof *s->device);
    assert_non_null(s->device);
    for (int d = 0; d < devices; d++)
        s->device[d] = (smp_device_spec){
            .name = "d", .memory_bytes = (int64_t)1 << 40, .flops_fp32 = 1e11, .bytes_per_s = 1e11};
    s->cluster = (smp_cluster){.name = "c",
                               .nodes = nodes,
                               .devices_per_node = per_node,
                               .device = s->device,
                               .intra_node = {.latency_us = 1, .bytes_per_s = 1e11},
                               .inter_node = {.latency_us = 3, .bytes_per_s = 1e10},
                               .overlap = true};
    s->request = (smp_search_request){.graph = s->graph,
                                      .cluster = &s->cluster,
                                      .options.devices = devices,
                                      .options.microbatch_size = 2,
                                      .options.partitioner = "linear",
                                      .placement = SMP_PLACEMENT_AUTO,
                                      .options.seed = 1};
}

static void close_setting(setting *s)
{
    free(s->device);
    smp_graph_destroy(s->graph);
}

/* What the search says of a configuration. */
typedef struct outcome {
    double time;
    int64_t peak;
    int64_t all; /* micro-batches of all replicas */
    int pipeline, chunks, n_recompute, active;
} outcome;

typedef struct outcome_list {
    outcome item[1024];
    int n;
    double least;
} outcome_list;

static outcome outcome_of(const smp_candidate *c)
{
    int64_t all = (int64_t)c->microbatches * c->ddp;
    return (outcome){.time = c->step_us / (double)all / (double)c->microbatch_size,
                     .peak = c->peak_bytes,
                     .all = all,
                     .pipeline = c->pipeline,
                     .chunks = c->chunks,
                     .active = c->active,
                     .n_recompute = c->n_recompute};
}

/* Plans with everything fixed but the bound on live micro-batches; nothing if it does not fit. */
static void plan_fixed(const setting *s, int pipeline, int chunks, int microbatches,
                       const char *schedule, smp_placement placement, outcome_list *list)
{
    smp_search_request request = s->request;
    smp_planner_result result;
    request.options.stages = pipeline;
    request.options.chunks = chunks;
    request.options.microbatches = microbatches;
    request.options.schedule = schedule;
    request.placement = placement;
    smp_status status = smp_plan_make(&request, "model.yaml", &result);
    if (status == SMP_ERR_INPUT || status == SMP_ERR_NO_FIT)
        return;
    assert_int_equal(SMP_OK, status);
    assert_int_equal(result.active_microbatches, result.search.best->active);
    for (int i = 0; i < result.search.n_tried; i++) {
        const smp_candidate *tried = result.search.tried[i];
        assert_string_equal(schedule, tried->schedule);
        assert_true(tried->active >= 0 && tried->active < 2 * pipeline);
        assert_true(list->n < 1024);
        if (tried->fits)
            list->item[list->n++] = outcome_of(tried);
    }
    smp_planner_result_destroy(&result);
}

static void plan_all(const setting *s, outcome_list *list)
{
    const smp_schedule_kind *const *kinds = smp_schedules();
    int devices = s->request.options.devices, fixed = s->request.options.microbatches;
    for (int p = 1; p <= devices; p++) {
        if (devices % p != 0)
            continue;
        for (int v = 1; v <= 4 && (v == 1 || p > 1); v *= 2)
            for (int k = 0; kinds[k]; k++)
                for (int m = 1; m <= (fixed > 0 ? fixed : 4 * p); m++) {
                    if (fixed > 0 ? m != fixed : (m & (m - 1)) != 0 && m != p)
                        continue;
                    bool spreads = p > 1 && p < devices && s->cluster.nodes > 1;
                    if (s->request.placement != SMP_PLACEMENT_SPREAD || !spreads)
                        plan_fixed(s, p, v, m, kinds[k]->name, SMP_PLACEMENT_CLUSTER, list);
                    if (s->request.placement != SMP_PLACEMENT_CLUSTER && spreads)
                        plan_fixed(s, p, v, m, kinds[k]->name, SMP_PLACEMENT_SPREAD, list);
                }
    }
    list->least = INFINITY;
    for (int i = 0; i < list->n; i++)
        list->least = fmin(list->least, list->item[i].time);
}

/* The rule of planner_build.h: within 1 % of the best the fewer micro-batches, then the smaller
 * peak. */
static bool stands_before(const outcome_list *list, const outcome *a, const outcome *b)
{
    bool a_close = a->time <= 1.01 * list->least, b_close = b->time <= 1.01 * list->least;
    if (a_close != b_close)
        return a_close;
    if (!a_close && a->time != b->time)
        return a->time < b->time;
    if (a->all != b->all)
        return a->all < b->all;
    return a->peak != b->peak ? a->peak < b->peak : a->time < b->time;
}

static void sort_outcomes(outcome_list *list)
{
    for (int i = 1; i < list->n; i++)
        for (int k = i; k > 0 && stands_before(list, &list->item[k], &list->item[k - 1]); k--) {
            outcome swap = list->item[k];
            list->item[k] = list->item[k - 1];
            list->item[k - 1] = swap;
        }
}

/* What the search promises to list: bounds on live micro-batches only near the best. */
static bool is_listed(const outcome_list *list, const outcome *o)
{
    return o->active == 0 || o->time <= 1.01 * list->least;
}

typedef struct found {
    bool any;
    int n_recompute, n_pruned;
    double time;
} found;

/* The ten best of the search are those of all configurations planned one by one. */
static void check_ten_best(const setting *s, found *out)
{
    static outcome_list list;
    smp_planner_result result;
    list.n = 0;
    *out = (found){0};
    plan_all(s, &list);
    sort_outcomes(&list);
    smp_status status = smp_plan_make(&s->request, "model.yaml", &result);
    if (list.n == 0) {
        assert_int_equal(SMP_ERR_NO_FIT, status);
        return;
    }
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_search_result *search = &result.search;
    int listed = 0, n = 0;
    for (int i = 0; i < list.n && listed < SMP_SEARCH_LISTED; i++)
        listed += is_listed(&list, &list.item[i]);
    assert_true(search->n_tried >= listed);
    for (int i = 0; i < listed; i++) {
        outcome got = outcome_of(search->tried[i]);
        assert_true(search->tried[i]->fits);
        if (!is_listed(&list, &got))
            continue;
        while (!is_listed(&list, &list.item[n]))
            n++;
        const outcome *want = &list.item[n++];
        if (got.time != want->time || got.peak != want->peak || got.all != want->all)
            fail_msg("place %d: got %d x %d, time %.17g, peak %lld, expected %d x %d, time %.17g, "
                     "peak %lld",
                     i, got.pipeline, got.chunks, got.time, (long long)got.peak, want->pipeline,
                     want->chunks, want->time, (long long)want->peak);
    }
    assert_int_equal(search->n_config, search->n_tried + search->n_pruned_time +
                                           search->n_pruned_memory + search->n_no_pipeline +
                                           search->n_skipped);
    *out = (found){true, search->best->n_recompute, search->n_pruned_time + search->n_pruned_memory,
                   list.item[0].time};
    smp_planner_result_destroy(&result);
}

static void test_planner_search_lists_the_ten_best(void **state)
{
    (void)state;
    static const struct {
        int nodes, blocks;
        int64_t memory;
    } row[] = {{1, 2, 0}, {2, 5, 400000}, /* the others in the long run alone */
               {1, 3, 0}, {1, 4, 300000}, {1, 5, 400000}, {1, 6, 600000},
               {2, 3, 0}, {2, 4, 300000}, {2, 6, 600000}};
    const int n = is_long() ? (int)(sizeof row / sizeof *row) : 2;
    int pruned = 0;
    for (int i = 0; i < n; i++) {
        setting s;
        found counts;
        open_setting(&s, row[i].blocks, 32, row[i].nodes, 4 / row[i].nodes);
        s.request.options.memory_bytes = row[i].memory;
        if (row[i].nodes > 1) /* orders of their own: test_device_orders.c */
            s.request.placement = i % 2 ? SMP_PLACEMENT_SPREAD : SMP_PLACEMENT_CLUSTER;
        check_ten_best(&s, &counts);
        assert_true(counts.any);
        assert_int_equal(0, counts.n_recompute);
        pruned += counts.n_pruned;
        close_setting(&s);
    }
    assert_true(pruned > (is_long() ? 300 : 75));
}

/* Six devices of three speeds on two nodes: replicas differ, in any pipeline and placement. Orders
 * of their own: test_device_orders.c. */
static void test_planner_search_with_replicas_that_differ(void **state)
{
    (void)state;
    setting s;
    found counts;
    int pruned = 0;
    for (int i = is_long() ? 0 : 2; i < 6; i += is_long() ? 1 : 3) {
        open_setting(&s, is_long() ? 3 : 2, 32, 2, 3);
        s.cluster.inter_node.bytes_per_s = i / 2 == 1 ? 1e8 : 1e10;
        for (int d = 1; d < 6 && i > 1; d++)
            s.device[d].flops_fp32 = 1e11 / (1 + (d + i / 2) % 3);
        s.request.options.microbatches = 4;
        s.request.placement = i % 2 ? SMP_PLACEMENT_SPREAD : SMP_PLACEMENT_CLUSTER;
        check_ten_best(&s, &counts);
        assert_true(counts.any);
        pruned += counts.n_pruned;
        close_setting(&s);
    }
    assert_true(pruned > (is_long() ? 20 : 3));
}

static void test_planner_search_recomputes_where_it_must(void **state)
{
    (void)state;
    static const struct {
        int64_t memory;
        int microbatches; /* 0: auto */
    } few[] = {{250000, 0}, {375000, 8}, {450000, 0}, {500000, 8}};
    const int n = is_long() ? 26 : (int)(sizeof few / sizeof *few);
    int with = 0, without = 0, only = 0;
    for (int i = 0; i < n; i++) {
        setting s;
        found none, automatic;
        open_setting(&s, 3, 32, 1, 2);
        s.request.options.memory_bytes = is_long() ? 250000 + 50000 * (i / 2) : few[i].memory;
        s.request.options.microbatches = is_long() ? i % 2 * 8 : few[i].microbatches;
        check_ten_best(&s, &none);
        s.request.options.recompute = SMP_RECOMPUTE_AUTO;
        check_ten_best(&s, &automatic);
        assert_true(automatic.any || !none.any);
        assert_true(!none.any || automatic.time <= none.time);
        with += automatic.n_recompute > 0;
        without += automatic.any && automatic.n_recompute == 0;
        only += automatic.any && !none.any;
        close_setting(&s);
    }
    assert_true(with > 0);
    assert_true(without > 0);
    assert_true(only > 0);
}

/* The best of a sharding, planned by itself; false: nothing fits. */
static bool plan_sharding(const setting *s, smp_sharding sharding, double *time)
{
    smp_search_request request = s->request;
    smp_planner_result result;
    request.sharding = sharding;
    smp_status status = smp_plan_make(&request, "model.yaml", &result);
    if (status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT)
        return false;
    assert_int_equal(SMP_OK, status);
    assert_int_equal(0, result.search.n_shard);
    const outcome best = outcome_of(result.search.tried[0]);
    *time = best.time;
    for (int i = 1; i < result.search.n_tried; i++)
        if (result.search.tried[i]->fits)
            *time = fmin(*time, outcome_of(result.search.tried[i]).time);
    smp_planner_result_destroy(&result);
    return true;
}

/* Against each degree planned by itself: the search finds a plan wherever one of them does, within
 * 1 % of the fastest, and says the same of every degree that it did not leave out. Returns how many
 * are in shards. Of few degrees the fastest is hardly slower, and has whole states where they
 * do. */
static int check_degrees(setting *s, int *n_line, int *whole, double *worst, double *worst_few)
{
    const smp_sharding base = {1, SMP_SHARD_OPTIMIZER, SMP_BUCKET_AUTO, 0, SMP_PREFETCH_AUTO};
    smp_planner_result result;
    double least = INFINITY, time[3][3] = {{0}};
    for (int what = 0; what < 3; what++)
        for (int i = what > 0; i < 3; i++) { /* none stands in the first row */
            smp_sharding sharding = base;
            sharding.shard = 1 << i;
            sharding.what = (smp_shard_what)what;
            time[what][i] = INFINITY;
            if (plan_sharding(s, sharding, &time[what][i]))
                least = fmin(least, time[what][i]);
        }
    s->request.sharding = base;
    s->request.sharding.shard = SMP_SHARD_AUTO;
    s->request.any_shard_what = true;
    smp_status status = smp_plan_make(&s->request, "model.yaml", &result);
    if (least == INFINITY) {
        assert_int_equal(SMP_ERR_NO_FIT, status);
        return 0;
    }
    assert_int_equal(SMP_OK, status);
    const smp_search_result *search = &result.search;
    const double got = outcome_of(search->tried[0]).time;
    *worst = fmax(*worst, got / least);
    assert_int_equal(s->request.options.stages == 2 ? 4 : 7, search->n_shard);
    for (int k = 0; k < search->n_shard; k++) {
        const smp_shard_tried *line = &search->shard[k];
        const double want = time[line->what][line->shard >> 1];
        if (line->fits && !(line->sample_us >= want * (1 - 1e-9)))
            fail_msg("%d, %d: %.17g, expected no less than %.17g", line->shard, line->what,
                     line->sample_us, want);
        *n_line += line->fits && line->sample_us <= want * (1 + 1e-9);
    }
    const int sharded = result.plan->sharding.shard > 1;
    smp_planner_result_destroy(&result);
    s->request.few_shards = true;
    assert_int_equal(SMP_OK, smp_plan_make(&s->request, "model.yaml", &result));
    *worst_few = fmax(*worst_few, outcome_of(result.search.tried[0]).time / least);
    *whole += result.plan->ddp > 1 && result.plan->sharding.shard == 1;
    smp_planner_result_destroy(&result);
    return sharded;
}

static void test_planner_search_degrees(void **state)
{
    (void)state;
    static const int few[] = {0, 3, 7, 12, 14}; /* each way to recompute and to share out ranks */
    const int n = is_long() ? 20 : (int)(sizeof few / sizeof *few);
    int n_line = 0, sharded = 0, whole = 0;
    double worst = 0, worst_few = 0;
    for (int k = 0; k < n; k++) {
        const int at = is_long() ? k : few[k], nodes = 1 + at / 10, i = at % 10;
        setting s;
        open_setting(&s, 3, 32, nodes, 4 / nodes);
        s.request.options.memory_bytes = i < 9 ? 200000 + 50000 * i : 0;
        s.request.options.recompute = i % 2 ? SMP_RECOMPUTE_AUTO : SMP_RECOMPUTE_NONE;
        s.request.options.stages = i % 3 == 2 ? 2 : i % 3 == 1 ? 0 : 1;
        sharded += check_degrees(&s, &n_line, &whole, &worst, &worst_few);
        close_setting(&s);
    }
    print_message(
        "%d searches, %d in shards, %d degrees as by themselves, worst %.4f, of few %.4f, "
        "%d whole\n",
        n, sharded, n_line, worst, worst_few, whole);
    assert_true(worst <= 1.01 && worst_few <= 1.05);
    assert_true(!is_long() || whole > 0);
    assert_true(sharded >= n / 4 && n_line >= n);
}

static void test_planner_search_recomputes_all(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result, again;
    open_setting(&s, 3, 32, 1, 2);
    s.request.options.recompute = SMP_RECOMPUTE_ALL;
    assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
    assert_int_equal(result.plan->n_stage, result.search.best->n_recompute);
    for (int i = 0; i < result.plan->n_stage; i++)
        assert_int_equal(result.plan->stage[i].n_op,
                         smp_plan_stage_recomputes(&result.plan->stage[i]));
    s.request.options.recompute = SMP_RECOMPUTE_AUTO; /* all fits */
    assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &again));
    assert_int_equal(0, again.search.best->n_recompute);
    assert_true(again.plan->predicted.step_us / again.plan->microbatches <=
                result.plan->predicted.step_us / result.plan->microbatches);
    smp_planner_result_destroy(&result);
    smp_planner_result_destroy(&again);
    close_setting(&s);
}

/* The smallest peak of all configurations, and with recomputation no larger. */
static void test_planner_search_minimises_memory(void **state)
{
    (void)state;
    static outcome_list list;
    int smaller = 0;
    for (int nodes = is_long() ? 1 : 2; nodes <= 2; nodes++) {
        setting s;
        smp_planner_result none, automatic;
        open_setting(&s, is_long() ? 1 + nodes : 1, 32, nodes, 4 / nodes);
        s.request.options.optimize = SMP_OPTIMIZE_MEMORY;
        list.n = 0;
        plan_all(&s, &list);
        int64_t least = INT64_MAX;
        for (int i = 0; i < list.n; i++)
            least = list.item[i].peak < least ? list.item[i].peak : least;
        assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &none));
        assert_true((double)none.search.best->peak_bytes <= 1.01 * (double)least);
        s.request.options.microbatches = 8;
        s.request.options.stages = 2;
        smp_planner_result_destroy(&none);
        assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &none));
        s.request.options.recompute = SMP_RECOMPUTE_AUTO;
        assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &automatic));
        assert_true(automatic.search.best->peak_bytes <=
                    none.search.best->peak_bytes + none.search.best->peak_bytes / 100);
        smaller += automatic.search.best->peak_bytes < none.search.best->peak_bytes;
        smp_planner_result_destroy(&none);
        smp_planner_result_destroy(&automatic);
        close_setting(&s);
    }
    assert_true(smaller > 0);
}

/* Every rank planned by itself gives what its kind gave; and what a rank needs at least is no more
 * than that. */
static void check_peaks(const setting *s, const smp_planner_result *result, bool *equal_kinds)
{
    smp__planner planner;
    smp__evaluation exact, kinds;
    const smp_candidate *best = result->search.best;
    int64_t *least = calloc((size_t)best->pipeline, sizeof *least);
    assert_non_null(least);
    assert_int_equal(SMP_OK, smp__planner_open(&s->request, &planner));
    assert_int_equal(SMP_OK, smp__planner_least_bytes(&planner, best, least));
    assert_int_equal(SMP_OK, smp__planner_evaluate(&planner, best, NULL, true, &exact));
    assert_int_equal(SMP_OK, smp__planner_evaluate(&planner, best, NULL, false, &kinds));
    for (int r = 0; r < best->pipeline; r++) {
        assert_int_equal(exact.peak_bytes[r], kinds.peak_bytes[r]);
        assert_int_equal(exact.peak_bytes[r], best->rank_peak_bytes[r]);
        assert_true(least[r] <= exact.peak_bytes[r]);
        assert_true(least[r] > 0);
    }
    *equal_kinds = *equal_kinds || planner.peaks.n < (size_t)best->pipeline;
    smp__evaluation_free(&exact);
    smp__evaluation_free(&kinds);
    smp__planner_close(&planner);
    free(least);
}

static void test_planner_search_plans_kinds_of_ranks(void **state)
{
    (void)state;
    const smp_schedule_kind *const *kinds = smp_schedules();
    bool equal_kinds = false;
    for (int k = 0; kinds[k]; k++)
        for (int v = 1; v <= 2; v++)
            for (int recompute = 0; recompute < 3; recompute += 2) {
                if (!is_long() && (k + v + recompute / 2) % 2)
                    continue;
                setting s;
                smp_planner_result result;
                open_setting(&s, is_long() ? 12 : 8, 16, 1, 8);
                s.request.options.stages = 8;
                s.request.options.chunks = v;
                s.request.options.microbatches = 3;
                s.request.options.schedule = kinds[k]->name;
                s.request.options.recompute = (smp_recompute)recompute;
                if (smp_plan_make(&s.request, "model.yaml", &result) == SMP_OK) {
                    check_peaks(&s, &result, &equal_kinds);
                    smp_planner_result_destroy(&result);
                }
                close_setting(&s);
            }
    assert_true(equal_kinds);
}

/* A limit that has passed already: something is planned, and the rest is reported as left out. */
static void test_planner_search_stops_in_time(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result;
    open_setting(&s, 4, 32, 1, 4);
    s.request.options.partitioner = NULL;
    s.request.deadline_s = smp_work_s();
    assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
    assert_true(result.search.timed_out);
    assert_true(result.search.n_skipped > 0);
    assert_int_equal(1, result.search.n_tried);
    assert_int_equal(SMP_OK, smp_verify(result.plan, s.graph));
    smp_planner_result_destroy(&result);
    s.request.deadline_s = smp_work_s() + 1000.0;
    assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
    assert_false(result.search.timed_out);
    assert_int_equal(0, result.search.n_skipped);
    smp_planner_result_destroy(&result);
    close_setting(&s);
}

static const smp_hint *find_hint(const smp_hint *hint, int n, smp_hint_kind kind)
{
    for (int i = 0; i < n; i++)
        if (hint[i].kind == kind)
            return &hint[i];
    return NULL;
}

/* The gain of more micro-batches is what planning with them gains. */
static void test_planner_search_hints(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result, more;
    smp_hint hint[SMP_HINTS_MAX];
    int n = -1;
    open_setting(&s, 4, 32, 2, 2);
    s.request.options.stages = 4;
    s.request.options.chunks = 1;
    s.request.options.microbatches = 4;
    s.request.options.schedule = "interleaved";
    assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
    assert_int_equal(SMP_OK, smp_planner_hints(&s.request, &result, SMP_HINTS_ALL, hint, &n));
    assert_true(n > 0 && n <= SMP_HINTS_MAX);
    for (int i = 0; i < n; i++) {
        assert_true(hint[i].gain > 0.0 && hint[i].gain < 1.0);
        assert_true(strlen(hint[i].text) > 0);
        assert_true(i == 0 || hint[i].gain <= hint[i - 1].gain);
    }
    const smp_hint *twice = find_hint(hint, n, SMP_HINT_MICROBATCHES);
    assert_non_null(twice);
    s.request.options.microbatches = 8;
    assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &more));
    double gain = 1.0 - more.plan->predicted.step_us / 8 / (result.plan->predicted.step_us / 4);
    assert_true(fabs(gain - twice->gain) < 1e-9);
    const smp_hint *all = find_hint(hint, n, SMP_HINT_FREE_LINKS);
    const smp_hint *inter = find_hint(hint, n, SMP_HINT_INTER_LINK);
    assert_non_null(all);
    assert_true(!inter || inter->gain <= all->gain + 1e-9);
    smp_planner_result_destroy(&result);
    smp_planner_result_destroy(&more);
    close_setting(&s);
}

/* One for every five ops, as many as a block has; malloc'ed. */
static int32_t *block_labels(const smp_graph *graph)
{
    int32_t *label = calloc((size_t)graph->n_op, sizeof *label);
    assert_non_null(label);
    for (int32_t op = 0; op < graph->n_op; op++)
        label[op] = (op + 4) / 5;
    return label;
}

/* 16,384 devices: a large model, everything left open; in any time under sanitizers. In the
 * ordinary run a smaller one, which is cut between its blocks. */
static void test_planner_search_large_cluster(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result;
    const int nodes = 2048;
    open_setting(&s, is_long() ? 200 : 16, 256, nodes, 8);
    if (!is_long())
        s.request.together = block_labels(s.graph);
    s.request.options.partitioner = NULL;
    s.request.options.memory_bytes = 24000000;
    clock_t start = clock(); /* of the processor: the machine may be busy */
    if (smp_plan_make(&s.request, "model.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    double took_s = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (took_s > 20.0 && !SANITIZED)
        fail_msg("planning took %.1f s", took_s);
    assert_int_equal(nodes * 8, result.plan->pipeline * result.plan->ddp);
    assert_true(result.search.best->pipeline > 1);
    assert_true(result.search.n_config > (is_long() ? 300 : 100));
    free((void *)s.request.together);
    smp_planner_result_destroy(&result);
    close_setting(&s);
}

/* What a large search looks at first, it may have to take: enough micro-batches to fill the
 * pipeline, stages of several ops, and the optimizer's states on the device. */
static void test_planner_search_begins_well(void **state)
{
    (void)state;
    smp_graph *graph;
    smp_cluster *cluster;
    smp__planner planner;
    smp__configs configs;
    if (smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-175b.yaml", &graph) != SMP_OK ||
        smp_cluster_read(SMP_SOURCE_DIR "/examples/cluster-a100-1k.yaml", &cluster) != SMP_OK ||
        smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, SMP_PRECISION_BF16}) != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_search_request request = {.graph = graph,
                                        .cluster = cluster,
                                        .options.devices = smp_cluster_devices(cluster),
                                        .options.microbatch_size = 1,
                                        .options.recompute = SMP_RECOMPUTE_AUTO,
                                        .placement = SMP_PLACEMENT_AUTO};
    assert_int_equal(SMP_OK, smp__planner_open(&request, &planner));
    assert_int_equal(SMP_OK, smp__configs_list(&planner, &configs));
    assert_int_equal(SMP_OK, smp__search_order(&configs));
    assert_true(configs.quick);
    const smp__config *first = &configs.config[0];
    const int stages = first->mapping->pipeline * first->chunks;
    if (first->microbatches < 4 * first->mapping->pipeline || stages > graph->n_op / 4 ||
        first->sharding.offload_states)
        fail_msg("%d ranks of %d chunks, %d micro-batches, states %s first",
                 first->mapping->pipeline, first->chunks, first->microbatches,
                 first->sharding.offload_states ? "away" : "here");
    smp__configs_free(&configs);
    smp__planner_close(&planner);
    smp_cluster_destroy(cluster);
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner_search_begins_well),
        cmocka_unit_test(test_planner_search_lists_the_ten_best),
        cmocka_unit_test(test_planner_search_with_replicas_that_differ),
        cmocka_unit_test(test_planner_search_recomputes_where_it_must),
        cmocka_unit_test(test_planner_search_degrees),
        cmocka_unit_test(test_planner_search_recomputes_all),
        cmocka_unit_test(test_planner_search_minimises_memory),
        cmocka_unit_test(test_planner_search_plans_kinds_of_ranks),
        cmocka_unit_test(test_planner_search_stops_in_time),
        cmocka_unit_test(test_planner_search_hints),
        cmocka_unit_test(test_planner_search_large_cluster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
