/* What the search chooses against everything there is to choose: no rule that one can name does
 * better under the same memory, bound on live micro-batches or not; and of small graphs every
 * partition, under every rule, bound and choice of stages that recompute, is simulated by itself:
 * also no bound that a plan states is above any of them. */
#include "tests/case_count.h"
#include "tests/partition/problem_fixture.h"

#include "schedule/planner/planner.h"
#include "schedule/planner/search/search.h"

/* Of so many cases of named rules one may be more than 1 % better: what the search may simulate
 * ends before all configurations have been looked at in which few partitions fit. */
enum { RARE = 50 };
enum { MAX_OPS = 9, MAX_STAGES = 4, FEW_OPS = 4 };

typedef struct setting {
    fixture f; /* graph, cluster and devices */
    smp_search_request request;
} setting;

static void open_setting(setting *s, fixture_random *random, int devices, int most_ops)
{
    fixture_shape graph = {.n_op = devices + 2 + fixture_below(random, most_ops - devices - 1),
                           .skip_percent = fixture_below(random, 30),
                           .source_percent = fixture_below(random, 10),
                           .training = true};
    char *model = fixture_model(random, &graph);
    if (smp_graph_parse("model.yaml", model, strlen(model), &s->f.graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    free(model);
    fixture_cluster(&s->f, devices, devices, fixture_chance(random, 50) ? 1e7 : 1e9);
    s->f.cluster.overlap = fixture_chance(random, 60);
    s->request = (smp_search_request){
        .graph = s->f.graph,
        .cluster = &s->f.cluster,
        .options.devices = devices,
        .options.stages = devices,
        .options.microbatches = devices * (1 + fixture_below(random, 4)),
        .options.microbatch_size = 1,
        .placement = SMP_PLACEMENT_CLUSTER,
        .options.recompute = fixture_chance(random, 60) ? SMP_RECOMPUTE_AUTO : SMP_RECOMPUTE_NONE};
}

static void close_setting(setting *s)
{
    smp_graph_destroy(s->f.graph);
}

/* False: nothing fits. Each configuration is counted once; an order of its own keeps to no
 * bound. */
static bool plan(const smp_search_request *request, smp_planner_result *out)
{
    smp_status status = smp_plan_make(request, "model.yaml", out);
    if (status == SMP_ERR_INPUT || status == SMP_ERR_NO_FIT)
        return false;
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_search_result *s = &out->search;
    assert_int_equal(s->n_config, s->n_tried + s->n_pruned_time + s->n_pruned_memory +
                                      s->n_no_pipeline + s->n_skipped);
    assert_true(out->active_microbatches == 0 || strcmp(out->plan->schedule, "searched") != 0);
    return true;
}

/* Part of what the default plan takes without a limit. */
static void tighten_memory(setting *s, fixture_random *random)
{
    smp_planner_result result;
    assert_true(plan(&s->request, &result));
    s->request.options.memory_bytes =
        result.search.best->peak_bytes * (50 + fixture_below(random, 60)) / 100;
    smp_planner_result_destroy(&result);
}

static double step_of(const smp_search_request *request)
{
    smp_planner_result result;
    if (!plan(request, &result))
        return INFINITY;
    double step_us = result.plan->predicted.step_us;
    smp_planner_result_destroy(&result);
    return step_us;
}

typedef struct named_tally {
    int fit, bounded, worse;
} named_tally;

/* The plan of everything against those of every rule, with every bound on live micro-batches. */
static void compare_named(int seed, named_tally *tally)
{
    const smp_schedule_kind *const *kinds = smp_schedules();
    fixture_random random = {(uint64_t)seed << 32};
    setting s = {0};
    int p = 2 + fixture_below(&random, 3);
    double least = INFINITY;
    const char *rule = "none";
    int bound = 0;
    open_setting(&s, &random, p, MAX_OPS);
    tighten_memory(&s, &random);
    for (int k = 0; kinds[k]; k++)
        for (int active = 0; active < 2 * p; active++) {
            smp_search_request request = s.request;
            request.options.schedule = kinds[k]->name;
            request.options.active_microbatches = active;
            double step_us = step_of(&request);
            if (step_us >= least)
                continue;
            least = step_us;
            rule = kinds[k]->name;
            bound = active;
        }
    double step_us = step_of(&s.request);
    if (step_us > least * 1.01 && ++tally->worse)
        print_message("seed %d: a step of %.12g us, %s with at most %d live micro-batches "
                      "takes %.12g us\n",
                      seed, step_us, rule, bound, least);
    tally->fit += least < INFINITY;
    tally->bounded += least < INFINITY && bound > 0;
    close_setting(&s);
}

static void test_planner_choices_no_named_rule_is_better(void **state)
{
    (void)state;
    const int n = few_or_many(4, 12), first = is_long() ? 0 : 8; /* those before take longest */
    named_tally tally = {0};
    for (int i = 0; i < n; i++)
        compare_named(first + i, &tally);
    print_message("%d of %d fit, %d of them best with a bound\n", tally.fit, n, tally.bounded);
    assert_true(tally.worse <= n / RARE);
    assert_true(tally.fit >= n / 2 && (tally.bounded > 0 || n < 4));
}

/* Of one rule alone partitions fit, and those that the solvers find for it miss by more than for
 * others. */
static void test_planner_choices_what_fits_missed_by_more(void **state)
{
    (void)state;
    named_tally tally = {0};
    compare_named(212, &tally);
    assert_int_equal(1, tally.fit);
    assert_int_equal(0, tally.worse);
}

/* 0: nothing fits. */
static int64_t peak_of(const smp_search_request *request)
{
    smp_planner_result result;
    if (!plan(request, &result))
        return 0;
    const int64_t bytes = result.search.best->peak_bytes;
    smp_planner_result_destroy(&result);
    return bytes;
}

/* Zero-bubble in the least memory takes no more than with any number of micro-batches that wait for
 * W, nor, with as many alive as ranks, than 1F1B, which is what its whole backwards are: but for
 * the 1 % by which partitions may be fuller than they have to be. */
static void test_planner_choices_least_memory(void **state)
{
    (void)state;
    int n = few_or_many(4, 16), by_lag = 0, by_whole = 0;
    for (int seed = 0; seed < n; seed++) {
        fixture_random random = {(uint64_t)seed << 32 | 2};
        setting s = {0};
        const int p = 2 + fixture_below(&random, 3);
        open_setting(&s, &random, p, MAX_OPS);
        s.request.options.schedule = "zero-bubble";
        s.request.options.chunks = 1;
        s.request.options.optimize = SMP_OPTIMIZE_MEMORY;
        s.request.options.active_microbatches = fixture_chance(&random, 70) ? p : 0;
        const int64_t bytes = peak_of(&s.request);
        assert_true(bytes > 0);
        smp_search_request other = s.request;
        for (int lag = 1; lag <= p; lag++) {
            other.options.weight_lag = lag;
            const int64_t least = peak_of(&other);
            if ((double)least * 1.01 < (double)bytes)
                fail_msg("seed %d: %lld bytes, with a lag of %d %lld", seed, (long long)bytes, lag,
                         (long long)least);
            by_lag += lag == p && (double)bytes * 1.01 < (double)least;
        }
        other.options.schedule = "interleaved";
        const int64_t whole = peak_of(&other);
        if ((double)whole * 1.01 < (double)bytes)
            fail_msg("seed %d: %lld bytes, 1F1B %lld", seed, (long long)bytes, (long long)whole);
        by_whole += other.options.active_microbatches == p && (double)bytes > 0.99 * (double)whole;
        close_setting(&s);
    }
    print_message("%d of %d in less than the rule's own, %d as 1F1B\n", by_lag, n, by_whole);
    assert_true(by_lag >= n / 4);
}

/* One choice of everything, simulated. */
typedef struct choice {
    const smp_schedule_kind *kind;
    int chunks, active, lag;
    bool recomputes[MAX_OPS];
    int32_t stage[MAX_OPS];
} choice;

typedef struct trial {
    setting *s;
    smp__planner planner;
    choice now, best;
    double least_us;
    double kind_us, kind_bottleneck_us; /* least of what fits under the rule at hand */
    int n;
} trial;

static void judge(trial *t)
{
    fixture *f = &t->s->f;
    const smp_search_request *request = &t->s->request;
    int device[MAX_STAGES] = {0, 1, 2, 3};
    int64_t peak_bytes[MAX_STAGES];
    f->problem.recomputes = t->now.recomputes;
    smp_partition *partition = NULL;
    if (smp_partition_evaluate(&f->problem, t->now.stage, &partition) != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_candidate c = {.sharding = t->planner.request.sharding,
                       .pipeline = request->options.stages,
                       .ddp = 1,
                       .chunks = t->now.chunks,
                       .microbatches = request->options.microbatches,
                       .active = t->now.active,
                       .lag = t->now.lag,
                       .microbatch_size = 1,
                       .schedule = t->now.kind->name,
                       .device = device,
                       .stage_rank = f->stage_rank,
                       .rank_peak_bytes = peak_bytes,
                       .partition = partition};
    assert_int_equal(SMP_OK, smp__planner_judge(&t->planner, &c));
    t->n++;
    if (c.fits) {
        t->kind_us = fmin(t->kind_us, c.step_us);
        t->kind_bottleneck_us = fmin(t->kind_bottleneck_us, partition->bottleneck_us);
    }
    if (c.fits && c.step_us < t->least_us) {
        t->least_us = c.step_us;
        t->best = t->now;
    }
    smp_partition_destroy(partition);
}

/* Sets of what recomputes: of ops where they are few, of whole stages otherwise. */
static int n_sets(const trial *t)
{
    int n_op = t->s->f.graph->n_op;
    if (t->s->request.options.recompute != SMP_RECOMPUTE_AUTO)
        return 1;
    return 1 << (n_op <= FEW_OPS ? n_op : t->s->f.problem.n_stage);
}

/* Every partition, and in each every set of what recomputes. */
static void judge_all(trial *t)
{
    fixture *f = &t->s->f;
    int n_stage = f->problem.n_stage, n_op = f->graph->n_op, last = n_op - 1, sets = n_sets(t);
    memset(t->now.stage, 0, sizeof t->now.stage);
    for (;;) {
        for (int set = 0; set < sets && fixture_legal(f, t->now.stage); set++) {
            for (int op = 0; op < n_op; op++)
                t->now.recomputes[op] = set >> (n_op <= FEW_OPS ? op : t->now.stage[op]) & 1;
            judge(t);
        }
        int op = last;
        while (op >= 0 && ++t->now.stage[op] == n_stage)
            t->now.stage[op--] = 0;
        if (op < 0)
            return;
    }
}

/* What a plan of this rule says that no partition can be below. */
static void check_bounds(trial *t)
{
    smp_search_request request = t->s->request;
    smp_planner_result result;
    request.options.schedule = t->now.kind->name;
    request.options.active_microbatches = t->now.active;
    request.options.weight_lag = t->now.lag;
    if (!(t->kind_us < INFINITY) || !plan(&request, &result))
        return;
    const smp_predicted *is = &result.plan->predicted;
    bool same = result.active_microbatches == t->now.active; /* no other bound was better */
    if (same && (is->lower_bound_us > t->kind_bottleneck_us * (1.0 + 1e-9) ||
                 is->step_lower_bound_us > t->kind_us * (1.0 + 1e-9)))
        fail_msg("%s, at most %d live: bounds of %.12g and %.12g us, there are %.12g and %.12g us",
                 request.options.schedule, request.options.active_microbatches, is->lower_bound_us,
                 is->step_lower_bound_us, t->kind_bottleneck_us, t->kind_us);
    smp_planner_result_destroy(&result);
}

static void judge_kind(trial *t, const smp_schedule_kind *kind, int chunks, int active, int lag)
{
    fixture *f = &t->s->f;
    int p = t->s->request.options.stages;
    smp_schedule_shape shape =
        smp__planner_shape(&t->planner, p, chunks, t->s->request.options.microbatches, active);
    if ((active > 0 && !kind->takes_active) || p * chunks > MAX_STAGES ||
        p * chunks > f->graph->n_op || smp__planner_check(kind, &shape) != SMP_OK)
        return;
    f->problem.n_stage = p * chunks;
    for (int i = 0; i < p * chunks; i++) {
        f->stage_rank[i] = smp_schedule_stage_rank(kind, &shape, i);
        f->live[i] = 1.0;
        f->limit[i] = INT64_MAX / 8;
    }
    t->now = (choice){.kind = kind, .chunks = chunks, .active = active, .lag = lag};
    t->kind_us = t->kind_bottleneck_us = INFINITY;
    judge_all(t);
    check_bounds(t);
}

/* In these cases nothing that the solvers find for the best configuration fits. */
static const int tight[] = {55, 35, 67};
enum { N_TIGHT = sizeof tight / sizeof tight[0] };

static void test_planner_choices_all_of_small_graphs(void **state)
{
    (void)state;
    const smp_schedule_kind *const *kinds = smp_schedules();
    const int n = few_or_many(6, 24), n_tight = is_long() ? N_TIGHT : 1;
    const int first = is_long() ? 0 : 1; /* the first takes longest */
    int tried = 0, bounded = 0, recomputing = 0, worse = 0;
    for (int i = 0; i < n + n_tight; i++) {
        int seed = i < n ? first + i : tight[i - n];
        fixture_random random = {(uint64_t)seed << 32 | 1};
        setting s = {0};
        int p = 2 + fixture_below(&random, 2);
        open_setting(&s, &random, p, 7);
        s.request.options.chunks = 1 + fixture_chance(&random, 30) * (p == 2);
        tighten_memory(&s, &random);
        trial t = {.s = &s, .least_us = INFINITY};
        assert_int_equal(SMP_OK, smp__planner_open(&s.request, &t.planner));
        s.f.problem = (smp_problem){
            .graph = s.f.graph,
            .costs = t.planner.costs,
            .cluster = &s.f.cluster,
            .pipeline = p,
            .stage_rank = s.f.stage_rank,
            .device = (int[]){0, 1, 2, 3},
            .n_replica = 1,
            .idle_factor = 1.0,
            .state_factor = 0.25 * (double)smp_weight_element_bytes(
                                       s.f.graph, smp_planned_states(s.f.graph->training)),
            .live = s.f.live,
            .memory_limit = s.f.limit};
        for (int k = 0; kinds[k]; k++)
            for (int active = 0; active < 2 * p; active++)
                judge_kind(&t, kinds[k], s.request.options.chunks, active, 2 * p);
        for (int k = 0; kinds[k]; k++)
            if (kinds[k]->most_lag)
                judge_kind(&t, kinds[k], s.request.options.chunks, 0, 1);
        double step_us = step_of(&s.request);
        if (step_us > t.least_us * 1.01 && ++worse)
            print_message("seed %d: a step of %.12g us, %s with at most %d live micro-batches "
                          "takes %.12g us (chunks %d)\n",
                          seed, step_us, t.best.kind->name, t.best.active, t.least_us,
                          t.best.chunks);
        for (int k = 0; k < s.f.graph->n_op && t.least_us < INFINITY; k++)
            if (t.best.recomputes[k]) {
                recomputing++;
                break;
            }
        bounded += t.best.active > 0;
        tried += t.n;
        smp__planner_close(&t.planner);
        close_setting(&s);
    }
    print_message("%d choices; of %d cases %d are best with a bound, %d with recomputation\n",
                  tried, n + n_tight, bounded, recomputing);
    assert_int_equal(0, worse);
    assert_true(bounded > 0 && recomputing > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner_choices_no_named_rule_is_better),
        cmocka_unit_test(test_planner_choices_what_fits_missed_by_more),
        cmocka_unit_test(test_planner_choices_least_memory),
        cmocka_unit_test(test_planner_choices_all_of_small_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
