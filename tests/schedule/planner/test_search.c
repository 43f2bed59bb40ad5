/* The search against trying everything, with a made-up model of schedules; what a request fixes;
 * and the answers when nothing fits. */
#include "tests/partition/problem_fixture.h"

#include "schedule/planner/search.h"

static const char *const names[] = {"simple", "interleaved", NULL};

static bool known(void *context, const char *name)
{
    (void)context;
    return strcmp(name, names[0]) == 0 || strcmp(name, names[1]) == 0;
}

static smp_status check(void *context, const char *name, int pipeline, int chunks, int microbatches,
                        bool training)
{
    (void)context;
    (void)training;
    if (chunks > 1 && strcmp(name, "simple") == 0)
        return smp_fail(SMP_ERR_INPUT, "simple: one chunk");
    return pipeline * microbatches > 0 ? SMP_OK : smp_fail(SMP_ERR_FAILED, "no numbers");
}

static int stage_rank(void *context, const char *name, int pipeline, int chunks, int stage)
{
    (void)context;
    (void)name;
    (void)chunks;
    return stage % pipeline;
}

static int live(void *context, const char *name, int pipeline, int chunks, int microbatches,
                int rank, bool training)
{
    (void)context;
    int all = microbatches * chunks;
    int few = chunks == 1 ? pipeline - rank : (chunks + 1) * pipeline - 2 * rank;
    if (!training)
        return 1;
    return strcmp(name, "simple") == 0 || all < few ? all : few;
}

/* After its last backward a rank updates its weights; before that a single stage reduces their
 * gradients in a ring. */
static double tail_us(const smp_partition *partition, const smp_cluster *cluster,
                      const smp_costs *costs, bool training, int chunks, int ddp)
{
    double bytes = 0.0, d = ddp;
    for (int s = 0; s < partition->n_stage; s++)
        bytes = fmax(bytes, (double)partition->load[s].weight_bytes);
    double ring_us =
        chunks == 1 ? 2.0 * (d - 1.0) / d * 1e6 / cluster->inter_node.bytes_per_s : 0.0;
    return training ? bytes * (ring_us + 1e6 / costs->optimizer_bytes_per_s) : 0.0;
}

static double model_step_us(const smp_partition *partition, const smp_cluster *cluster,
                            const smp_costs *costs, bool training, int pipeline, int chunks,
                            int ddp, int microbatches, bool simple)
{
    double fill_us = 0.0;
    for (int s = 0; s + 1 < pipeline; s++)
        fill_us += partition->load[s].load_us;
    return microbatches * partition->bottleneck_us + fill_us + (simple ? 3.0 : 2.0 + chunks) +
           tail_us(partition, cluster, costs, training, chunks, ddp);
}

/* context: counts the calls. Peaks are those of the cost model. */
static smp_status evaluate(void *context, const smp_search_request *request, const smp_costs *costs,
                           smp_candidate *c)
{
    ++*(int *)context;
    c->step_us =
        model_step_us(c->partition, request->cluster, costs, request->graph->training, c->pipeline,
                      c->chunks, c->ddp, c->microbatches, strcmp(c->schedule, "simple") == 0);
    c->peak_bytes = 0;
    for (int r = 0; r < c->pipeline; r++) {
        int64_t bytes = 0;
        for (int s = 0; s < c->partition->n_stage; s++)
            bytes += c->stage_rank[s] == r ? c->partition->load[s].memory_bytes : 0;
        int64_t limit = request->memory_bytes ? request->memory_bytes
                                              : request->cluster->device[c->device[r]].memory_bytes;
        c->rank_peak_bytes[r] = bytes;
        if (bytes > c->peak_bytes)
            c->peak_bytes = bytes;
        if (r == 0 || limit - bytes < c->room_bytes) {
            c->room_bytes = limit - bytes;
            c->worst_rank = r;
        }
    }
    c->fits = c->room_bytes >= 0;
    return SMP_OK;
}

static smp_schedule_model make_model(int *calls)
{
    *calls = 0;
    return (smp_schedule_model){.context = calls,
                                .names = names,
                                .known = known,
                                .check = check,
                                .stage_rank = stage_rank,
                                .live = live,
                                .evaluate = evaluate};
}

static void open_random(fixture *f, smp_search_request *request, int seed, int devices)
{
    fixture_random random = {(uint64_t)seed};
    fixture_shape shape = {.n_op = 10 + fixture_below(&random, 16),
                           .skip_percent = 25,
                           .source_percent = 5,
                           .training = seed % 4 != 3};
    char *model = fixture_model(&random, &shape);
    fixture_cluster(f, devices, 4, 1e6);
    fixture_open(f, model, 1, 1);
    free(model);
    *request = (smp_search_request){.graph = f->graph,
                                    .cluster = &f->cluster,
                                    .devices = devices,
                                    .microbatch_size = 1,
                                    .partitioner = "linear"};
}

/* The winner by the rule of search.h, everything tried. */
typedef struct winner {
    int pipeline, chunks, microbatches;
    bool simple;
    double time;
    int64_t peak;
} winner;

typedef struct trial_list {
    winner item[512];
    int n;
} trial_list;

static void try_all_of(fixture *f, const smp_search_request *request, int pipeline, int chunks,
                       bool simple, trial_list *list)
{
    smp_problem problem = f->problem;
    int ddp = request->devices / pipeline, n_stage = pipeline * chunks;
    for (int m = 1; m <= 4 * pipeline; m++) {
        smp_partition *partition = NULL, *shared = NULL;
        if ((m & (m - 1)) != 0 && m != pipeline)
            continue;
        for (int s = 0; s < n_stage; s++) {
            f->stage_rank[s] = s % pipeline;
            f->limit[s] = INT64_MAX / 8;
            f->live[s] = (double)live(NULL, names[!simple], pipeline, chunks, m, s % pipeline,
                                      f->graph->training) /
                         chunks;
        }
        for (int r = 0; r < pipeline; r++)
            f->device[r] = r;
        problem.n_stage = n_stage;
        problem.pipeline = pipeline;
        /* Where memory does not bind, one partition serves all micro-batches and schedules. */
        double one[FIXTURE_MAX_STAGES];
        for (int s = 0; s < n_stage; s++)
            one[s] = 1.0;
        problem.live = one;
        if (n_stage > f->graph->n_op ||
            smp_partition_solve(&problem, "linear", m, &shared) != SMP_OK)
            continue;
        problem.live = f->live;
        assert_int_equal(SMP_OK, smp_partition_evaluate(&problem, shared->stage, &partition));
        smp_partition_destroy(shared);
        winner w = {pipeline, chunks, m, simple, 0.0, 0};
        w.time = request->objective == SMP_OBJECTIVE_BOTTLENECK
                     ? partition->bottleneck_us / ddp
                     : model_step_us(partition, &f->cluster, f->costs, f->graph->training, pipeline,
                                     chunks, ddp, m, simple) /
                           m / ddp;
        for (int r = 0; r < pipeline; r++) {
            int64_t bytes = 0;
            for (int s = r; s < n_stage; s += pipeline)
                bytes += partition->load[s].memory_bytes;
            w.peak = bytes > w.peak ? bytes : w.peak;
        }
        assert_true(list->n < 512);
        list->item[list->n++] = w;
        smp_partition_destroy(partition);
    }
}

static const winner *best_of(const trial_list *list)
{
    double least = INFINITY;
    const winner *best = NULL;
    for (int i = 0; i < list->n; i++)
        least = fmin(least, list->item[i].time);
    for (int i = 0; i < list->n; i++) {
        const winner *w = &list->item[i];
        if (w->time <= 1.01 * least &&
            (!best || w->microbatches < best->microbatches ||
             (w->microbatches == best->microbatches && w->peak < best->peak)))
            best = w;
    }
    return best;
}

static void test_search_prunes_nothing_that_wins(void **state)
{
    (void)state;
    static const int device_counts[] = {1, 2, 4, 6, 8};
    int calls_sum = 0, configurations = 0;
    for (int seed = 0; seed < 18; seed++) {
        fixture f;
        smp_search_request request;
        smp_search_result result;
        trial_list list = {.n = 0};
        int calls, devices = device_counts[seed % 5];
        open_random(&f, &request, seed, devices);
        request.objective = seed % 3 == 0 ? SMP_OBJECTIVE_BOTTLENECK : SMP_OBJECTIVE_STEP;
        smp_schedule_model model = make_model(&calls);
        if (smp_search(&request, f.costs, &model, &result) != SMP_OK)
            fail_msg("seed %d: %s", seed, smp_last_error());
        for (int p = 1; p <= devices; p++) {
            if (devices % p != 0)
                continue;
            try_all_of(&f, &request, p, 1, true, &list);
            for (int v = 1; v <= 4 && (v == 1 || p > 1); v *= 2)
                try_all_of(&f, &request, p, v, false, &list);
        }
        const winner *best = best_of(&list);
        if (result.best->microbatches != best->microbatches ||
            result.best->peak_bytes != best->peak || result.best->pipeline != best->pipeline ||
            result.best->chunks != best->chunks)
            fail_msg("seed %d: got %d x %d, m %d, peak %lld, expected %d x %d, m %d, peak %lld",
                     seed, result.best->pipeline, result.best->chunks, result.best->microbatches,
                     (long long)result.best->peak_bytes, best->pipeline, best->chunks,
                     best->microbatches, (long long)best->peak);
        assert_int_equal(result.n_tried, calls);
        assert_int_equal(result.tried[0]->microbatches, result.best->microbatches);
        assert_null(result.tried[0]->partition);
        calls_sum += calls;
        configurations += list.n;
        smp_search_result_destroy(&result);
        fixture_close(&f);
    }
    assert_true(calls_sum < configurations * 7 / 10); /* it does prune */
}

static void test_search_respects_what_is_fixed(void **state)
{
    (void)state;
    fixture f;
    smp_search_request request;
    smp_search_result result;
    int calls;
    open_random(&f, &request, 5, 8);
    smp_schedule_model model = make_model(&calls);
    request.ddp = 2;
    request.chunks = 2;
    request.microbatches = 7;
    request.placement = SMP_PLACEMENT_SPREAD;
    assert_int_equal(smp_search(&request, f.costs, &model, &result), SMP_OK);
    assert_int_equal(result.best->pipeline, 4);
    assert_int_equal(result.best->ddp, 2);
    assert_int_equal(result.best->microbatches, 7);
    assert_int_equal(result.best->partition->n_stage, 8);
    assert_string_equal(result.best->schedule, "interleaved");
    for (int d = 0; d < 2; d++) {
        for (int r = 0; r < 4; r++)
            assert_int_equal(result.best->device[d * 4 + r], r * 2 + d);
    }
    smp_search_result_destroy(&result);
    request.placement = SMP_PLACEMENT_CLUSTER;
    request.schedule = "interleaved";
    request.stages = 4;
    assert_int_equal(smp_search(&request, f.costs, &model, &result), SMP_OK);
    assert_int_equal(result.best->device[5], 5);
    smp_search_result_destroy(&result);
    fixture_close(&f);
}

static void expect_error(smp_search_request request, const fixture *f, smp_status status,
                         const char *part)
{
    int calls;
    smp_schedule_model model = make_model(&calls);
    smp_search_result result;
    assert_int_equal(smp_search(&request, f->costs, &model, &result), status);
    if (!strstr(smp_last_error(), part))
        fail_msg("'%s' does not mention '%s'", smp_last_error(), part);
}

static void test_search_refuses_contradictions(void **state)
{
    (void)state;
    fixture f;
    smp_search_request request, r;
    open_random(&f, &request, 6, 8);
    r = request;
    r.stages = 3;
    expect_error(r, &f, SMP_ERR_INPUT, "divisor");
    r.ddp = 2;
    expect_error(r, &f, SMP_ERR_INPUT, "3 stages * 2 replicas");
    r = request;
    r.devices = 9;
    expect_error(r, &f, SMP_ERR_INPUT, "devices: got 9");
    r = request;
    r.schedule = "sideways";
    expect_error(r, &f, SMP_ERR_INPUT, "'simple', 'interleaved'");
    r.schedule = "simple";
    r.chunks = 2;
    expect_error(r, &f, SMP_ERR_INPUT, "one chunk");
    r = request;
    r.stages = 8;
    r.chunks = 100;
    expect_error(r, &f, SMP_ERR_NO_FIT, "ops");
    r = request;
    r.partitioner = "oracle";
    expect_error(r, &f, SMP_ERR_INPUT, "oracle");
    fixture_close(&f);
}

/* Pins from outside count like those of the model: what they allow is planned, with as many chunks
 * as they need; what no pipeline has is refused by name. */
static void test_search_takes_pins_from_outside(void **state)
{
    (void)state;
    fixture f;
    smp_search_request request;
    smp_search_result result;
    int calls;
    open_random(&f, &request, 6, 2);
    smp_schedule_model model = make_model(&calls);
    int32_t *pin = calloc((size_t)f.graph->n_op, sizeof *pin);
    assert_non_null(pin);
    for (int32_t op = 0; op < f.graph->n_op; op++)
        pin[op] = -1;
    request.pin = pin;
    request.stages = 2;
    pin[f.graph->n_op - 1] = 5; /* six stages on two ranks */
    assert_int_equal(smp_search(&request, f.costs, &model, &result), SMP_OK);
    assert_true(result.best->partition->n_stage >= 6);
    assert_int_equal(result.best->partition->stage[f.graph->n_op - 1], 5);
    smp_search_result_destroy(&result);
    request.chunks = 2;
    expect_error(request, &f, SMP_ERR_INPUT, "pinned to stage 5, expected 0 to 3");
    free(pin);
    fixture_close(&f);
}

/* auto is the better of both placements; where they are the same, only one is tried. */
static void test_search_weighs_placements(void **state)
{
    (void)state;
    int spread = 0, cluster = 0;
    for (int seed = 0; seed < 8; seed++) {
        fixture f;
        smp_search_request request;
        smp_search_result result[3];
        int calls;
        open_random(&f, &request, seed, 8);
        f.cluster.inter_node.bytes_per_s = 1e5;
        request.stages = 2;
        request.chunks = 1;
        request.microbatches = seed % 2 ? 64 : 1;
        request.schedule = "simple";
        smp_schedule_model model = make_model(&calls);
        for (int p = 0; p < 3; p++) {
            request.placement = (smp_placement)p;
            assert_int_equal(smp_search(&request, f.costs, &model, &result[p]), SMP_OK);
        }
        assert_int_equal(result[2].n_config, 2);
        assert_true(result[2].best->step_us ==
                    fmin(result[0].best->step_us, result[1].best->step_us));
        spread += result[2].best->placement == SMP_PLACEMENT_SPREAD;
        cluster += result[2].best->placement == SMP_PLACEMENT_CLUSTER;
        for (int p = 0; p < 3; p++)
            smp_search_result_destroy(&result[p]);
        request.devices = 4; /* of one node */
        assert_int_equal(smp_search(&request, f.costs, &model, &result[0]), SMP_OK);
        assert_int_equal(result[0].n_config, 1);
        smp_search_result_destroy(&result[0]);
        fixture_close(&f);
    }
    assert_true(spread > 0 && cluster > 0);
}

/* The number after "or " / "with " before " of memory per device". */
static int64_t suggested_memory(const char *message)
{
    const char *end = strstr(message, " of memory per device");
    assert_non_null(end);
    const char *unit = end, *number;
    while (unit[-1] != ' ')
        unit--;
    number = unit - 1;
    while (number[-1] != ' ')
        number--;
    char text[64];
    int64_t bytes;
    snprintf(text, sizeof text, "%.*s%.*s", (int)(unit - 1 - number), number, (int)(end - unit),
             unit);
    assert_true(smp_parse_bytes(text, &bytes));
    return bytes;
}

static void test_search_says_what_would_fit(void **state)
{
    (void)state;
    int checked = 0;
    for (int seed = 0; seed < 24; seed++) {
        fixture f;
        smp_search_request request;
        smp_search_result result;
        int calls;
        open_random(&f, &request, seed, 4);
        smp_schedule_model model = make_model(&calls);
        request.memory_bytes = 4000 + 1000 * (seed % 8);
        smp_status status = smp_search(&request, f.costs, &model, &result);
        if (status == SMP_OK) {
            assert_true(result.best->fits);
            smp_search_result_destroy(&result);
        } else {
            assert_int_equal(status, SMP_ERR_NO_FIT);
            assert_non_null(strstr(smp_last_error(), "rank"));
            assert_non_null(strstr(smp_last_error(), "stage"));
            request.memory_bytes = suggested_memory(smp_last_error());
            request.memory_bytes += request.memory_bytes / 100; /* the message is rounded */
            assert_int_equal(smp_search(&request, f.costs, &model, &result), SMP_OK);
            smp_search_result_destroy(&result);
            checked++;
        }
        fixture_close(&f);
    }
    assert_true(checked > 10);
}

static void test_search_uses_memory_limits(void **state)
{
    (void)state;
    /* Balanced by time, stage 0 would hold 3 of the 4 heavy weights. */
    static const char text[] =
        "smp: 1\nname: heavy\nmode: inference\nops:\n"
        "  - {op: opaque, name: a, out: a, cost: {forward_us: 10, weight_bytes: 100, output_bytes: "
        "1}}\n"
        "  - {op: opaque, name: b, in: a, out: b, cost: {forward_us: 10, weight_bytes: 100, "
        "output_bytes: 1}}\n"
        "  - {op: opaque, name: c, in: b, out: c, cost: {forward_us: 10, weight_bytes: 100, "
        "output_bytes: 1}}\n"
        "  - {op: opaque, name: d, in: c, out: d, cost: {forward_us: 30, weight_bytes: 100, "
        "output_bytes: 1}}\n";
    fixture f;
    int calls;
    smp_schedule_model model = make_model(&calls);
    smp_search_result result;
    fixture_cluster(&f, 2, 2, 1e6);
    fixture_open(&f, text, 1, 1);
    smp_search_request request = {.graph = f.graph,
                                  .cluster = &f.cluster,
                                  .devices = 2,
                                  .stages = 2,
                                  .chunks = 1,
                                  .microbatches = 4,
                                  .microbatch_size = 1};
    assert_int_equal(smp_search(&request, f.costs, &model, &result), SMP_OK);
    assert_close(result.best->partition->bottleneck_us, 31);
    smp_search_result_destroy(&result);
    request.memory_bytes = 201; /* two weights, and a byte that crosses the border */
    assert_int_equal(smp_search(&request, f.costs, &model, &result), SMP_OK);
    assert_close(result.best->partition->bottleneck_us, 41);
    assert_true(result.best->partition->fits);
    smp_search_result_destroy(&result);
    request.memory_bytes = 200;
    assert_int_equal(smp_search(&request, f.costs, &model, &result), SMP_ERR_NO_FIT);
    fixture_close(&f);
}

static void test_search_minimises_memory(void **state)
{
    (void)state;
    int smaller = 0;
    for (int seed = 0; seed < 10; seed++) {
        fixture f;
        smp_search_request request;
        smp_search_result fast, small;
        int calls;
        open_random(&f, &request, seed, 4);
        smp_schedule_model model = make_model(&calls);
        assert_int_equal(smp_search(&request, f.costs, &model, &fast), SMP_OK);
        request.optimize = SMP_OPTIMIZE_MEMORY;
        assert_int_equal(smp_search(&request, f.costs, &model, &small), SMP_OK);
        assert_true((double)small.best->peak_bytes <= 1.02 * (double)fast.best->peak_bytes);
        smaller += small.best->peak_bytes < fast.best->peak_bytes;
        smp_search_result_destroy(&fast);
        smp_search_result_destroy(&small);
        fixture_close(&f);
    }
    assert_true(smaller > 5);
}

/* A tie is worth splitting for many micro-batches over a fast link, and not over a slow one. */
static void test_search_weighs_split_ties(void **state)
{
    (void)state;
    static const char text[] =
        "smp: 1\nname: tied\n"
        "inputs: {x: {dtype: float32, shape: [4096]}}\n"
        "ops:\n"
        "  - {op: linear, name: a, in: x, out: x, features: 4096, bias: false, cost: {forward_us: "
        "100, backward_us: 200, output_bytes: 10}}\n"
        "  - {op: linear, name: b, in: x, out: x, features: 4096, bias: false, weight: a.weight, "
        "cost: {forward_us: 100, backward_us: 200, output_bytes: 10}}\n"
        "  - {op: linear, name: c, in: x, out: x, features: 8, bias: false, cost: {forward_us: 10, "
        "backward_us: 20, output_bytes: 10}}\n";
    for (int slow = 0; slow < 2; slow++) {
        fixture f;
        smp_partition *partition;
        fixture_cluster(&f, 2, 2, slow ? 1e9 : 1e13);
        fixture_open(&f, text, 2, 1);
        assert_int_equal(smp_partition_solve(&f.problem, NULL, 8, &partition), SMP_OK);
        assert_int_equal(partition->stage[1], slow ? 0 : 1);
        assert_true(partition->lower_bound_us <= 331);
        smp_partition_destroy(partition);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_prunes_nothing_that_wins),
        cmocka_unit_test(test_search_respects_what_is_fixed),
        cmocka_unit_test(test_search_refuses_contradictions),
        cmocka_unit_test(test_search_takes_pins_from_outside),
        cmocka_unit_test(test_search_weighs_placements),
        cmocka_unit_test(test_search_says_what_would_fit),
        cmocka_unit_test(test_search_uses_memory_limits),
        cmocka_unit_test(test_search_minimises_memory),
        cmocka_unit_test(test_search_weighs_split_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
