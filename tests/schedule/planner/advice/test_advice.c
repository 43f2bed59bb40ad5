/* Advice is followed to the letter: what a refusal says would fit is planned as it is printed, and
 * fits in the step that it states; what hints say would help is planned too, and saves what they
 * state. */
#include "tests/case_count.h"
#include "tests/partition/problem_fixture.h"

#include "schedule/planner/planner.h"

typedef struct setting {
    smp_graph *graph;
    fixture f; /* cluster and devices */
    smp_search_request request;
} setting;

static void read_model(const char *model, smp_graph **graph)
{
    if (smp_graph_parse("model.yaml", model, strlen(model), graph) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), model);
}

/* The graph is the setting's own. */
static smp_op_cost_override *cost_of(const smp_graph *graph, int32_t op)
{
    return (smp_op_cost_override *)graph->op[op].cost;
}

static int divisor_of(int n, fixture_random *random)
{
    int d = 1 + fixture_below(random, n);
    return n % d == 0 ? d : 1;
}

/* Some numbers fixed, some not. */
static void open_setting(setting *s, fixture_random *random, int recompute)
{
    static const char *const schedules[] = {"simple", "interleaved", "zero-bubble"};
    int devices = 1 + fixture_below(random, 4);
    fixture_shape shape = {.n_op = 4 + fixture_below(random, 3),
                           .groups = fixture_below(random, 3),
                           .stages = 1 + fixture_below(random, devices),
                           .group_percent = 30,
                           .pin_percent = fixture_chance(random, 25) ? 20 : 0,
                           .skip_percent = 30,
                           .training = fixture_chance(random, 85),
                           .zero_costs = fixture_chance(random, 20)};
    char *model = fixture_model(random, &shape);
    *s = (setting){0};
    read_model(model, &s->graph);
    free(model);
    for (int32_t i = 0; i < s->graph->n_op; i++) /* few weights, so that stashes count */
        cost_of(s->graph, i)->weight_bytes /= 8;
    fixture_cluster(&s->f, devices, fixture_chance(random, 50) ? devices : 2,
                    fixture_chance(random, 50) ? 1e6 : 1e8);
    int used = fixture_chance(random, 25) ? divisor_of(devices, random) : devices;
    s->request = (smp_search_request){.graph = s->graph,
                                      .cluster = &s->f.cluster,
                                      .options.devices = used,
                                      .options.microbatch_size = 1,
                                      .options.seed = 1,
                                      .advise = true,
                                      .placement = SMP_PLACEMENT_AUTO,
                                      .options.recompute = (smp_recompute)recompute};
    if (fixture_chance(random, 40))
        s->request.options.stages = divisor_of(used, random);
    if (fixture_chance(random, 20))
        s->request.options.ddp = s->request.options.stages > 0 ? used / s->request.options.stages
                                                               : divisor_of(used, random);
    if (fixture_chance(random, 40))
        s->request.options.microbatches = 1 << fixture_below(random, 5);
    if (fixture_chance(random, 30))
        s->request.options.chunks = 1 + fixture_below(random, 2);
    if (fixture_chance(random, 75))
        s->request.options.schedule = schedules[fixture_below(random, 3)];
    if (fixture_chance(random, 15)) {
        s->request.options.schedule = "zero-bubble";
        s->request.options.active_microbatches = 1 + fixture_below(random, 6);
    }
}

/* As much memory as a part of what the request takes without a limit; false: it cannot be
 * planned. */
static bool limit_memory(smp_search_request *request, double part)
{
    smp_planner_result result;
    if (smp_plan_make(request, "model.yaml", &result) != SMP_OK)
        return false;
    request->options.memory_bytes = 1 + (int64_t)(part * (double)result.search.best->peak_bytes);
    smp_planner_result_destroy(&result);
    return true;
}

static void close_setting(setting *s)
{
    smp_graph_destroy(s->graph);
}

/* What options are advised, and how often. */
enum { OPEN, ACTIVE, STATES, LAG, SHARDS, SIZE, RANKS, DEVICES, LESS, MEMORY, N_ADVICE };

/* One option as printed; its kind. */
static int apply_option(const char *option, const char *value, smp_search_request *request)
{
    int number = atoi(value);
    bool automatic = strcmp(value, "auto") == 0;
    assert_true(automatic || number > 0 || strcmp(value, "memory") == 0);
    if (strcmp(option, "--recompute") == 0 && automatic)
        request->options.recompute = SMP_RECOMPUTE_AUTO;
    else if (strcmp(option, "--pipeline") == 0 && automatic)
        request->options.schedule = NULL;
    else if (strcmp(option, "--chunks") == 0 && automatic)
        request->options.chunks = 0;
    else if (strcmp(option, "--microbatches") == 0 && automatic)
        request->options.microbatches = 0;
    else if (strcmp(option, "--offload-states") == 0 && automatic)
        return request->options.offload_states = SMP_OFFLOAD_AUTO, STATES;
    else if (strcmp(option, "--weight-lag") == 0 && automatic)
        return request->options.weight_lag = 0, LAG;
    else if (strcmp(option, "--shard") == 0 && automatic)
        return request->sharding.shard = SMP_SHARD_AUTO, request->any_shard_what = true, SHARDS;
    else if (strcmp(option, "--stages") == 0 && automatic)
        return request->options.stages = 0, RANKS;
    else if (strcmp(option, "--ddp") == 0 && automatic)
        return request->options.ddp = 0, RANKS;
    else if (strcmp(option, "-n") == 0)
        return request->options.devices = number, DEVICES;
    else if (strcmp(option, "--active-microbatches") == 0)
        return request->options.active_microbatches = number, ACTIVE;
    else if (strcmp(option, "--microbatch-size") == 0)
        return request->options.microbatch_size = number, SIZE;
    else if (strcmp(option, "--optimize") == 0)
        return request->options.optimize = SMP_OPTIMIZE_MEMORY, LESS;
    else
        fail_msg("what is '%s %s'?", option, value);
    return OPEN;
}

static int apply(char *change, smp_search_request *request)
{
    char *rest = change, *memory = strstr(change, " of memory per device");
    int kind = -1;
    if (memory) {
        *memory = '\0';
        assert_true(smp_parse_bytes(change, &request->options.memory_bytes));
        return MEMORY;
    }
    if (strcmp(change, "no --active-microbatches") == 0)
        return request->options.active_microbatches = 0, ACTIVE;
    for (char *option = strtok_r(rest, " ", &rest); option; option = strtok_r(NULL, " ", &rest)) {
        char *value = strtok_r(NULL, " ", &rest);
        assert_non_null(value);
        int this = apply_option(option, value, request);
        kind = kind < 0 ? this : kind;
    }
    assert_true(kind >= 0);
    return kind;
}

/* Plans what "CHANGE (step TIME: ...)" says. */
static int follow(const smp_search_request *request, char *item)
{
    char said[32], step[32], *details = strstr(item, " (step ");
    smp_search_request changed = *request;
    smp_planner_result result;
    assert_non_null(details);
    *details = '\0';
    snprintf(said, sizeof said, "%.*s", (int)strcspn(details + 7, ":"), details + 7);
    char *change = strdup(item);
    int kind = apply(change, &changed);
    free(change);
    if (smp_plan_make(&changed, "model.yaml", &result) != SMP_OK)
        fail_msg("advised: '%s'; but then: %s", item, smp_last_error());
    smp_format_us(step, sizeof step, result.plan->predicted.step_us);
    if (strcmp(said, step) != 0)
        fail_msg("advised: '%s' for a step of %s, but it takes %s", item, said, step);
    smp_planner_result_destroy(&result);
    return kind;
}

/* What was planned and is not advised does not fit. */
static void check_rest(const smp_search_request *request, const char *message)
{
    static const char *const options[] = {
        "--recompute auto",  "--pipeline auto", "--chunks auto",         "--microbatches auto",
        "--optimize memory", "--shard auto",    "--offload-states auto", "--weight-lag auto"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        smp_search_request changed = *request;
        smp_planner_result result;
        if (strstr(message, options[i]))
            continue;
        char *option = strdup(options[i]);
        apply(option, &changed);
        free(option);
        if (memcmp(&changed, request, sizeof changed) == 0)
            continue;
        changed.advise = false;
        smp_status status = smp_plan_make(&changed, "model.yaml", &result);
        if (status != SMP_ERR_NO_FIT)
            fail_msg("'%s' was not advised, and fits: %s", options[i], message);
    }
}

/* How many pieces of advice a refusal gives; each is followed. */
static int follow_all(const smp_search_request *request, int *count)
{
    static const char head[] = "It would fit with ";
    char *message = strdup(smp_last_error()), *item = strstr(message, head);
    int n = 0;
    check_rest(request, message);
    if (item)
        item += sizeof head - 1;
    while (item) {
        char *next = strstr(item, ", or ");
        if (next)
            *next = '\0';
        count[follow(request, item)]++;
        item = next ? next + 5 : NULL;
        n++;
    }
    free(message);
    return n;
}

/* In these cases a change helps that only a search of every partition finds, or that leaves open
 * what was to recompute everywhere. */
static const int near[] = {262, 1096, 1243};
enum { N_NEAR = sizeof near / sizeof near[0] };

/* Of the first 80 some that take little: every kind of advice that these give is among theirs. */
static const int few[] = {68, 73, 0,  50, 17, 20, 42, 64, 65, 66, 67,
                          69, 70, 71, 72, 74, 75, 76, 77, 78, 79};
enum { N_FEW = sizeof few / sizeof few[0] };

static void test_advice_fits(void **state)
{
    (void)state;
    int n = few_or_many(N_FEW, 80), refused = 0, advised = 0, count[N_ADVICE] = {0};
    for (int k = 0; k < n + N_NEAR; k++) {
        const int i = k >= n ? 80 + k - n : n <= N_FEW ? few[k] : k;
        fixture_random random = {(uint64_t)(k >= n ? near[k - n] : i) << 32};
        smp_planner_result result;
        setting s;
        open_setting(&s, &random, fixture_below(&random, 3));
        if (i % 2 == 1) { /* states may lie in host memory, and a schedule may be bound */
            s.f.cluster.host = (smp_link_spec){.latency_us = 1, .bytes_per_s = 1e9};
            s.request.options.weight_lag = 1 + i % 3;
        }
        bool exists = limit_memory(&s.request, 0.3 + 0.01 * fixture_below(&random, 70));
        s.request.options.objective =
            fixture_chance(&random, 20) ? SMP_OBJECTIVE_BOTTLENECK : SMP_OBJECTIVE_STEP;
        smp_status status =
            exists ? smp_plan_make(&s.request, "model.yaml", &result) : SMP_ERR_INPUT;
        if (status == SMP_OK)
            smp_planner_result_destroy(&result);
        else if (status != SMP_ERR_INPUT)
            assert_int_equal(SMP_ERR_NO_FIT, status);
        if (status == SMP_ERR_NO_FIT && strstr(smp_last_error(), "does not fit: ")) {
            refused++;
            advised += follow_all(&s.request, count);
        }
        close_setting(&s);
    }
    print_message(
        "%d refusals, %d pieces of advice: %d open numbers, %d live micro-batches, %d "
        "states away, %d lags, %d shards, %d ranks, %d devices, %d for memory, %d memory\n",
        refused, advised, count[OPEN], count[ACTIVE], count[STATES], count[LAG], count[SHARDS],
        count[RANKS], count[DEVICES], count[LESS], count[MEMORY]);
    assert_true(refused >= n * 3 / 10 && count[MEMORY] >= refused * 9 / 10);
    assert_true(count[SHARDS] >= n / 60 && count[LAG] > 0);
    assert_true((count[ACTIVE] > 0 && count[SHARDS] > 0 && count[RANKS] > 0) || n < N_FEW);
    assert_true(count[OPEN] > 0 && count[DEVICES] > 0);
    assert_true(count[OPEN] >= n / 25 && count[RANKS] >= n / 40 && count[DEVICES] >= n / 40);
}

/* Operators whose bytes follow from shapes. */
static void test_advice_microbatch_size(void **state)
{
    (void)state;
    smp_cluster *cluster = NULL;
    smp_planner_result result;
    int count[N_ADVICE] = {0};
    setting s = {0};
    if (smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &s.graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_cluster_local(4, &cluster));
    s.request = (smp_search_request){.graph = s.graph,
                                     .cluster = cluster,
                                     .options.devices = 4,
                                     .options.stages = 2,
                                     .options.microbatches = 8,
                                     .options.microbatch_size = 16,
                                     .options.memory_bytes = (int64_t)60 << 20,
                                     .options.recompute = SMP_RECOMPUTE_NONE,
                                     .options.schedule = "simple",
                                     .options.partitioner = "linear",
                                     .advise = true,
                                     .options.seed = 1};
    assert_int_equal(SMP_ERR_NO_FIT, smp_plan_make(&s.request, "model.yaml", &result));
    assert_true(follow_all(&s.request, count) >= 3);
    assert_true(count[SIZE] == 1 && count[MEMORY] == 1);
    smp_cluster_destroy(cluster);
    close_setting(&s);
}

/* Nothing fits with the optimizer's states on the devices. */
static void test_advice_states(void **state)
{
    (void)state;
    smp_cluster *cluster = NULL;
    smp_planner_result result;
    int count[N_ADVICE] = {0};
    setting s = {0};
    if (smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &s.graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_cluster_local(4, &cluster));
    cluster->host = (smp_link_spec){.latency_us = 10, .bytes_per_s = 4e9};
    s.request = (smp_search_request){.graph = s.graph,
                                     .cluster = cluster,
                                     .options.devices = 4,
                                     .options.stages = 4,
                                     .options.ddp = 1,
                                     .options.chunks = 1,
                                     .options.microbatches = 1,
                                     .options.microbatch_size = 1,
                                     .options.memory_bytes = (int64_t)3300 << 10,
                                     .options.recompute = SMP_RECOMPUTE_NONE,
                                     .options.schedule = "simple",
                                     .options.partitioner = "linear",
                                     .advise = true,
                                     .options.seed = 1};
    assert_int_equal(SMP_ERR_NO_FIT, smp_plan_make(&s.request, "model.yaml", &result));
    (void)follow_all(&s.request, count);
    assert_int_equal(1, count[STATES]);
    smp_cluster_destroy(cluster);
    close_setting(&s);
}

/* The change that a hint names, made here. */
static void apply_hint(const smp_hint *hint, setting *s, const smp_plan *plan)
{
    smp_search_request *r = &s->request;
    smp_link_spec *links[] = {&s->f.cluster.intra_node, &s->f.cluster.inter_node};
    r->options.devices = hint->pipeline * hint->ddp;
    r->options.stages = hint->pipeline;
    r->options.ddp = hint->ddp;
    r->options.chunks = hint->chunks;
    r->options.microbatches = hint->microbatches;
    r->options.schedule = hint->schedule;
    r->options.memory_bytes = hint->memory_bytes;
    if (hint->kind != SMP_HINT_MEMORY)
        r->placement = plan->placement;
    if (hint->kind == SMP_HINT_RECOMPUTE)
        r->options.recompute = SMP_RECOMPUTE_AUTO;
    for (int i = 0; i < 2; i++) {
        double factor = hint->kind == SMP_HINT_FREE_LINKS                               ? 1e9
                        : hint->kind == (i ? SMP_HINT_INTER_LINK : SMP_HINT_INTRA_LINK) ? 2.0
                                                                                        : 1.0;
        links[i]->latency_us /= factor;
        links[i]->bytes_per_s *= factor;
    }
    for (int32_t i = 0; i < s->graph->n_op; i++) {
        smp_op *op = (smp_op *)&s->graph->op[i]; /* the setting's own */
        if (hint->kind == SMP_HINT_FREE_OPS)
            op->pin = op->group = -1;
        if (i == hint->op) {
            cost_of(s->graph, i)->forward_us *= 0.5;
            cost_of(s->graph, i)->backward_us *= 0.5;
        }
    }
}

static double time_of(const smp_search_request *request, const smp_plan *plan)
{
    double us = request->options.objective == SMP_OBJECTIVE_BOTTLENECK
                    ? plan->predicted.bottleneck_us
                    : plan->predicted.step_us / plan->microbatches;
    return us / plan->ddp;
}

static void draw_hinted(setting *s, uint64_t seed)
{
    fixture_random random = {seed << 32 | 7};
    open_setting(s, &random, 1 + fixture_below(&random, 2));
    (void)limit_memory(&s->request, 0.5 + 0.01 * fixture_below(&random, 100));
    s->request.options.objective =
        fixture_chance(&random, 20) ? SMP_OBJECTIVE_BOTTLENECK : SMP_OBJECTIVE_STEP;
}

static void test_advice_gains(void **state)
{
    (void)state;
    int cases = few_or_many(17, 30), count[SMP_HINT_FREE_LINKS + 1] = {0}, kinds = 0;
    for (int seed = 0; seed < cases; seed++) {
        smp_hint hint[SMP_HINTS_MAX];
        smp_planner_result result, changed;
        setting s;
        int n = 0;
        draw_hinted(&s, (uint64_t)seed);
        if (smp_plan_make(&s.request, "model.yaml", &result) != SMP_OK) {
            close_setting(&s);
            continue;
        }
        assert_int_equal(SMP_OK, smp_planner_hints(&s.request, &result, SMP_HINTS_ALL, hint, &n));
        for (int i = 0; i < n; i++) {
            setting again;
            draw_hinted(&again, (uint64_t)seed);
            apply_hint(&hint[i], &again, result.plan);
            if (smp_plan_make(&again.request, "model.yaml", &changed) != SMP_OK)
                fail_msg("seed %d: '%s': %s", seed, hint[i].text, smp_last_error());
            double gain =
                1.0 - time_of(&again.request, changed.plan) / time_of(&s.request, result.plan);
            if (fabs(gain - hint[i].gain) > 1e-9)
                fail_msg("seed %d: '%s' should gain %.6g, gains %.6g", seed, hint[i].text,
                         hint[i].gain, gain);
            assert_true(gain > 0.0 && (i == 0 || hint[i].gain <= hint[i - 1].gain));
            count[hint[i].kind]++;
            smp_planner_result_destroy(&changed);
            close_setting(&again);
        }
        smp_planner_result_destroy(&result);
        close_setting(&s);
    }
    for (int k = 0; k <= SMP_HINT_FREE_LINKS; k++) {
        print_message("kind %d: %d hints\n", k, count[k]);
        kinds += count[k] > 0;
    }
    assert_true(kinds >= 6 || cases < 17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advice_fits),
        cmocka_unit_test(test_advice_microbatch_size),
        cmocka_unit_test(test_advice_states),
        cmocka_unit_test(test_advice_gains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
