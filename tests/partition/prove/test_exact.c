/* Exact search and smp_partition_prove against dynamic programming over bit masks; with limits of
 * almost nothing; links that are not alike against all assignments. */
#include "tests/case_count.h"
#include "tests/partition/branch_fixture.h"
#include "tests/partition/mask_fixture.h"

#include "graph/base/clock.h"
#include "graph/model/op.h"
#include "partition/prove/exact.h"
#include "partition/prove/prove.h"

enum { MAX_SETS = 200 };

/* Linear layers and additions, some layers with the weight of an earlier one. */
static char *tied_model(fixture_random *random, int n_op)
{
    smp_text text = {0};
    smp_text_append(
        &text, "smp: 1\nname: tied\nmode: %s\ninputs: {x: {dtype: float32, shape: [4]}}\nops:\n",
        fixture_chance(random, 50) ? "training" : "inference");
    int linear[20], n_linear = 0;
    for (int i = 0; i < n_op; i++) {
        int a = i > 0 && fixture_chance(random, 80) ? i - 1 : -1;
        int b = i > 0 ? fixture_below(random, i) : -1;
        smp_text_append(&text, "  - {name: n%d, out: t%d, ", i, i);
        if (i > 1 && a != b && fixture_chance(random, 40)) {
            smp_text_append(&text, "op: add, in: [t%d, t%d]", a < 0 ? 0 : a,
                            a < 0 && b == 0 ? 1 : b);
        } else {
            if (a < 0)
                smp_text_append(&text, "op: linear, in: x, features: 4, bias: false");
            else
                smp_text_append(&text, "op: linear, in: t%d, features: 4, bias: false", a);
            if (n_linear > 0 && fixture_chance(random, 40))
                smp_text_append(&text, ", weight: n%d.weight",
                                linear[fixture_below(random, n_linear)]);
            else
                linear[n_linear++] = i;
        }
        smp_text_append(&text, ", cost: {forward_us: %d, backward_us: %d}}\n",
                        fixture_below(random, 40), fixture_below(random, 80));
    }
    assert_false(text.failed);
    return text.data;
}

/* Ops with kernels have their sizes from shapes, which are too much alike here. */
static void vary_sizes(fixture_random *random, fixture *f)
{
    smp_op_cost *cost = (smp_op_cost *)f->costs->op; /* the fixture's own memory */
    for (int32_t i = 0; i < f->graph->n_op; i++) {
        if (!f->graph->op[i].kind->cpu.forward)
            continue;
        cost[i].stash_bytes = f->graph->training ? fixture_below(random, 200) : 0;
        cost[i].output_bytes = fixture_below(random, 30);
    }
}

static void vary_problem(fixture_random *random, fixture *f)
{
    vary_sizes(random, f);
    f->cluster.overlap = fixture_chance(random, 35);
    f->cluster.intra_node.latency_us = f->cluster.inter_node.latency_us = fixture_below(random, 4);
    for (int r = 1; fixture_chance(random, 40) && r < f->problem.pipeline; r++)
        f->device_spec[r].flops_fp32 = 1e12 / (1 + fixture_below(random, 3));
    f->problem.recompute = (smp_recompute)fixture_below(random, 3);
    f->problem.tie_together = fixture_chance(random, 50);
    if (fixture_chance(random, 50))
        return;
    for (int s = 0; s < f->problem.n_stage; s++) {
        f->live[s] = f->problem.n_stage - s;
        f->limit[s] = 800 + fixture_below(random, 5000 * f->graph->n_op / f->problem.n_stage);
    }
}

static char *random_model(fixture_random *random, int n_stage)
{
    if (fixture_chance(random, 25))
        return tied_model(random, 2 + fixture_below(random, 9));
    fixture_shape shape = {.n_op = 1 + fixture_below(random, 14),
                           .stages = fixture_chance(random, 35) ? n_stage : 0,
                           .groups = fixture_chance(random, 25) ? 3 : 0,
                           .pin_percent = 5 + fixture_below(random, 40),
                           .group_percent = 30,
                           .skip_percent = fixture_below(random, 70),
                           .source_percent = fixture_below(random, 40),
                           .training = fixture_chance(random, 50),
                           .zero_costs = fixture_chance(random, 50)};
    return fixture_model(random, &shape);
}

/* A legal partition with one op after the other, however slow; NULL if the borders hit a group. */
static smp_partition *any_partition(const fixture *f)
{
    int32_t stage[32];
    smp_partition *partition;
    for (int32_t i = 0; i < f->graph->n_op; i++)
        stage[i] = i < f->problem.n_stage ? i : f->problem.n_stage - 1;
    if (smp_partition_evaluate(&f->problem, stage, &partition) != SMP_OK)
        return NULL;
    return partition;
}

typedef struct counts {
    int proven, improved, unfit, limited;
} counts;

/* The bound holds for all ways to treat ties, so it may be below this problem's best. */
static void check_result(int seed, const char *model, const smp_partition *p, double best,
                         double best_untied, bool complete, counts *count)
{
    if (isfinite(best)) {
        double untied = fmin(best, best_untied);
        if (complete && (!p->fits || fabs(p->bottleneck_us - best) > 1e-9 * fmax(best, 1.0)))
            fail_msg("seed %d: got %.12g (fits: %d), expected %.12g\n%s", seed, p->bottleneck_us,
                     p->fits, best, model);
        if (p->fits && p->bottleneck_us < best * (1.0 - 1e-9))
            fail_msg("seed %d: %.12g is below the best, %.12g\n%s", seed, p->bottleneck_us, best,
                     model);
        if (p->fits && p->lower_bound_us > untied * (1.0 + 1e-9))
            fail_msg("seed %d: bound %.12g above the best, %.12g [%s]\n%s", seed, p->lower_bound_us,
                     untied, p->bound, model);
        if (complete && p->lower_bound_us < untied * (1.0 - 1e-9))
            fail_msg("seed %d: bound %.12g below the best, %.12g [%s]\n%s", seed, p->lower_bound_us,
                     untied, p->bound, model);
        count->proven += p->lower_bound_us >= p->bottleneck_us * (1.0 - 1e-9);
    } else {
        assert_false(p->fits);
        count->unfit++;
    }
    assert_non_null(p->bound);
    assert_true(strlen(p->bound) > 0);
    assert_true(p->lower_bound_us <= p->bottleneck_us);
}

static void check_seed(int seed, counts *count)
{
    fixture_random random = {(uint64_t)seed};
    fixture f;
    mask_graph m;
    int n_stage = 1 + fixture_below(&random, 5);
    char *model = random_model(&random, n_stage);
    fixture_cluster(&f, 5, 5, 1e6);
    fixture_open(&f, model, n_stage, 1);
    vary_problem(&random, &f);
    smp_partition *p = NULL, *slow;
    bool small = mask_open(&m, &f, MAX_SETS);
    smp_status status = smp_partitioner_find("exact")->solve(&f.problem, NULL, &p);
    if (status != SMP_OK && (status != SMP_ERR_NO_FIT || (small && isfinite(mask_best(&f, &m)))))
        fail_msg("seed %d: %s\n%s", seed, smp_last_error(), model);
    if (small && status == SMP_OK) {
        double best = mask_best(&f, &m);
        smp_problem problem = f.problem;
        f.problem.tie_together = false;
        double untied = problem.tie_together ? mask_best(&f, &m) : best;
        f.problem = problem;
        check_result(seed, model, p, best, untied, true, count);
        slow = any_partition(&f);
        if (slow) { /* starting from something bad, with limits and without */
            double before_us = slow->bottleneck_us;
            smp__exact_limits limits = {fixture_below(&random, 400), 1000000, 0.0};
            assert_int_equal(smp__prove(&f.problem, &limits, "exact", &slow), SMP_OK);
            check_result(seed, model, slow, best, untied, false, count);
            count->limited += slow->lower_bound_us < fmin(best, untied) * (1.0 - 1e-9);
            assert_int_equal(smp_partition_prove(&f.problem, &slow), SMP_OK);
            check_result(seed, model, slow, best, untied, true, count);
            count->improved += slow->bottleneck_us < before_us;
            smp_partition_destroy(slow);
        }
    }
    smp_partition_destroy(p);
    mask_close(&m);
    fixture_close(&f);
    free(model);
}

static void test_exact_is_optimal(void **state)
{
    (void)state;
    int n = few_or_many(750, 3000);
    counts count = {0};
    for (int seed = 0; seed < n; seed++)
        check_seed(seed, &count);
    assert_true(count.proven > n / 6 * 5);
    assert_true(count.improved > n / 6);
    assert_true(count.unfit > n / 150);
    assert_true(count.limited > n / 60);
}

enum { ENOUGH = 1 << 30, MAX_UNITS = 256 };

/* Work of one search, which finds a pipeline exactly if there is one below the target. What it
 * leaves out unvisited only shows there. stage: of every op, where one is found. */
static int64_t work_of(const fixture *f, double target_us, double *found_us, int32_t *stage)
{
    smp__units *units;
    smp__window window;
    smp__exact_answer answer;
    int32_t unit_stage[MAX_UNITS];
    int64_t work = ENOUGH;
    smp__exact_limits limits = {.work = work, .bytes = (size_t)1 << 30};
    smp_arena *arena = smp_arena_create();
    assert_int_equal(smp__units_build(&f->problem, &units), SMP_OK);
    assert_true(units->n <= MAX_UNITS && f->graph->n_op <= MAX_UNITS);
    assert_int_equal(smp__window_init(&window, &f->problem, units, arena), SMP_OK);
    smp__window_set(&window, target_us);
    memset(unit_stage, 0x55, sizeof unit_stage); /* what it held does not matter */
    *found_us = INFINITY;
    assert_int_equal(
        smp__exact_search(&window, target_us, &limits, &work, &answer, found_us, unit_stage),
        SMP_OK);
    assert_true(answer == (isfinite(*found_us) ? SMP__EXACT_FOUND : SMP__EXACT_NONE));
    for (int32_t op = 0; op < f->graph->n_op; op++)
        stage[op] = unit_stage[units->unit_of_op[op]];
    smp__units_destroy(units);
    smp_arena_destroy(arena);
    return ENOUGH - work;
}

/* The stages are those of the time that is given. */
static void test_exact_search_fills_the_stages(void **state)
{
    (void)state;
    for (int seed = 0; seed < 50; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        int n_stage = 2 + fixture_below(&random, 3);
        int32_t stage[MAX_UNITS];
        fixture_shape shape = {.n_op = n_stage + fixture_below(&random, 6), .skip_percent = 30};
        char *model = fixture_model(&random, &shape);
        double best_us;
        smp_partition *p;
        fixture_cluster(&f, 4, 4, 1e6);
        fixture_open(&f, model, n_stage, 1);
        work_of(&f, INFINITY, &best_us, stage);
        assert_int_equal(smp_partition_evaluate(&f.problem, stage, &p), SMP_OK);
        assert_close(p->bottleneck_us, best_us);
        smp_partition_destroy(p);
        fixture_close(&f);
        free(model);
    }
}

/* Any pipeline; none, just below the best; some, above it; with links that hide behind compute and
 * with memory that binds, and without. */
static void test_exact_work_does_not_grow(void **state)
{
    (void)state;
    int64_t total = 0;
    for (int seed = 0; seed < 24; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        branch_shape shape = {.blocks = 3,
                              .branches = 3,
                              .length = 3,
                              .transfer_percent = 5 + 60 * (seed % 3),
                              .training = seed % 2};
        char *model = branch_model(&random, &shape);
        double best, found;
        int32_t stage[MAX_UNITS];
        fixture_cluster(&f, 8, 8, 1e9);
        fixture_open(&f, model, 3 + seed % 3, 1);
        f.cluster.overlap = seed % 4 == 3;
        for (int s = 0; seed % 4 > 1 && s < f.problem.n_stage; s++) {
            f.live[s] = f.problem.n_stage - s;
            f.limit[s] = 22000000;
        }
        f.problem.recompute = seed % 8 < 4 ? SMP_RECOMPUTE_NONE : SMP_RECOMPUTE_AUTO;
        total += work_of(&f, INFINITY, &best, stage);
        assert_true(isfinite(best));
        total += work_of(&f, best * 0.999, &found, stage);
        assert_false(isfinite(found));
        total += work_of(&f, best * 1.1, &found, stage);
        assert_close(found, best);
        fixture_close(&f);
        free(model);
    }
    assert_in_range(total, 3000000, 3074865); /* less: better, or no longer counted */
}

/* Small graphs on a changed cluster against all assignments: what is called proven is the best. */
static void check_against_all(void (*change)(fixture_random *random, fixture *f))
{
    for (int seed = 0; seed < few_or_many(125, 250); seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        int n_stage = 2 + fixture_below(&random, 3);
        fixture_shape shape = {.n_op = n_stage + fixture_below(&random, 8 - n_stage),
                               .skip_percent = fixture_below(&random, 50),
                               .source_percent = fixture_below(&random, 30),
                               .training = fixture_chance(&random, 50)};
        char *model = fixture_model(&random, &shape);
        fixture_cluster(&f, 6, 2, 1e6);
        fixture_open(&f, model, n_stage, 1);
        change(&random, &f);
        double fits, best = fixture_brute_force(&f, &fits);
        smp_partition *p;
        assert_int_equal(smp_partitioner_find("exact")->solve(&f.problem, NULL, &p), SMP_OK);
        if (fabs(p->bottleneck_us - best) > 1e-9 * best ||
            fabs(p->lower_bound_us - best) > 1e-9 * best)
            fail_msg("seed %d: got %.12g, bound %.12g, the best is %.12g\n%s", seed,
                     p->bottleneck_us, p->lower_bound_us, best, model);
        smp_partition_destroy(p);
        fixture_close(&f);
        free(model);
    }
}

static void slow_links(fixture_random *random, fixture *f)
{
    f->cluster.inter_node.bytes_per_s = 3e5;
    f->cluster.overlap = fixture_chance(random, 40);
}

/* Devices of three speeds on nodes of two, and replicas at random on them. */
static void replicate(fixture_random *random, fixture *f)
{
    slow_links(random, f);
    for (int d = 1; d < f->cluster.nodes * f->cluster.devices_per_node; d++)
        f->device_spec[d].flops_fp32 = 1e12 / (1 + fixture_below(random, 3));
    fixture_replicate(random, f, 2 + fixture_below(random, 2));
}

static void test_exact_with_unequal_links(void **state)
{
    (void)state;
    check_against_all(slow_links);
}

static void test_exact_with_replicas(void **state)
{
    (void)state;
    check_against_all(replicate);
}

static char *chain_model(fixture_random *random, int n_op)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: chain\nmode: inference\nops:\n");
    for (int i = 0; i < n_op; i++) {
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0)
            smp_text_append(&text, ", in: t%d", i - 1);
        smp_text_append(&text, ", cost: {forward_us: %d, output_bytes: %d}}\n",
                        1 + fixture_below(random, 20), fixture_below(random, 100));
    }
    assert_false(text.failed);
    return text.data;
}

/* The best of all splits of a chain in three. */
static double best_split(const fixture *f)
{
    int32_t stage[64];
    double best = INFINITY;
    for (int a = 1; a < f->graph->n_op; a++)
        for (int b = a + 1; b < f->graph->n_op; b++) {
            bool fits;
            for (int op = 0; op < f->graph->n_op; op++)
                stage[op] = (op >= a) + (op >= b);
            best = fmin(best, fixture_bottleneck(f, stage, &fits));
        }
    return best;
}

/* Too large for all assignments: bounds of single replicas hold for all of them together. Where
 * only devices differ (every other seed: a single node), all is proven. Begun at what the search
 * has to improve, and at what all partitioners find. */
static void test_exact_bounds_chains_with_replicas(void **state)
{
    (void)state;
    int n = few_or_many(SANITIZED ? 160 : 40, 200) / 2 * 2, closed[2] = {0}, found[2] = {0};
    for (int i = 0; i < 2 * n; i++) {
        int seed = i % n;
        const char *start = i < n ? NULL : "equal-layers";
        fixture_random random = {(uint64_t)seed};
        fixture f;
        char *model = chain_model(&random, 26 + fixture_below(&random, 8));
        smp_partition *p;
        fixture_cluster(&f, 6, seed % 2 ? 6 : 2, 1e6);
        fixture_open(&f, model, 3, 1);
        replicate(&random, &f);
        double best = best_split(&f);
        assert_int_equal(smp_partition_solve(&f.problem, start, 1, &p), SMP_OK);
        assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
        if (p->bottleneck_us < best * (1.0 - 1e-9) || p->lower_bound_us > best * (1.0 + 1e-9))
            fail_msg("seed %d: got %.12g, bound %.12g [%s], the best is %.12g\n%s", seed,
                     p->bottleneck_us, p->lower_bound_us, p->bound, best, model);
        found[i / n] += p->bottleneck_us <= best * (1.0 + 1e-9);
        closed[seed % 2] += !start && p->lower_bound_us >= best * (1.0 - 1e-9);
        smp_partition_destroy(p);
        fixture_close(&f);
        free(model);
    }
    print_message(
        "chains with replicas: best in %d of %d, begun anew in %d, proven in %d of %d on several "
        "nodes, in %d on one\n",
        found[0], n, found[1], closed[0], n / 2, closed[1]);
    assert_true(found[0] * 100 >= n * 98 && found[1] * 100 >= n * 85 && closed[0] * 100 >= n * 22);
    assert_int_equal(closed[1], n / 2);
}

/* Several stages on a rank: small graphs are searched completely. */
static void test_exact_with_chunks(void **state)
{
    (void)state;
    for (int seed = 0; seed < case_count(60); seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        fixture_shape shape = {.n_op = 4 + fixture_below(&random, 4), .skip_percent = 30};
        char *model = fixture_model(&random, &shape);
        fixture_cluster(&f, 2, 2, 1e6);
        fixture_open(&f, model, 2, 2);
        double fits, best = fixture_brute_force(&f, &fits);
        smp_partition *p;
        assert_int_equal(smp_partitioner_find("exact")->solve(&f.problem, NULL, &p), SMP_OK);
        assert_close(p->bottleneck_us, best);
        assert_close(p->lower_bound_us, best);
        smp_partition_destroy(p);
        fixture_close(&f);
        free(model);
    }
}

/* The linear result with its search cut short by a deadline in the past. */
static void test_exact_after_the_deadline(void **state)
{
    (void)state;
    fixture f;
    fixture_random random = {7};
    char *model = branch_model(
        &random, &(branch_shape){.blocks = 4, .branches = 3, .length = 5, .transfer_percent = 20});
    fixture_cluster(&f, 4, 4, 1e9);
    fixture_open(&f, model, 4, 1);
    smp_partition *p;
    assert_int_equal(smp_partitioner_find("linear")->solve(&f.problem, NULL, &p), SMP_OK);
    f.problem.deadline_s = smp_work_s() - 1.0;
    double before_us = p->bottleneck_us;
    assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
    assert_true(p->timed_out);
    assert_true(p->bottleneck_us <= before_us);
    assert_true(p->lower_bound_us > 0.0 && p->lower_bound_us <= p->bottleneck_us);
    double late_bound = p->lower_bound_us;
    f.problem.deadline_s = 0.0;
    assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
    assert_true(p->lower_bound_us >= late_bound);
    assert_true(p->lower_bound_us >= p->bottleneck_us * (1.0 - 1e-9));
    smp_partition_destroy(p);
    fixture_close(&f);
    free(model);
}

/* As many downsets as Inception-v3 has: 40,000. */
static void test_exact_proves_a_model_with_many_downsets(void **state)
{
    (void)state;
    fixture f;
    fixture_random random = {1};
    char *model = branch_model(&random, &(branch_shape){.blocks = 11,
                                                        .branches = 4,
                                                        .length = 7,
                                                        .trunk = 1,
                                                        .transfer_percent = 200,
                                                        .training = true});
    for (int n_stage = 3; n_stage <= 8; n_stage += 5) {
        fixture_cluster(&f, 8, 8, 1e9);
        fixture_open(&f, model, n_stage, 1);
        smp_partition *p;
        assert_int_equal(smp_partitioner_find("linear")->solve(&f.problem, NULL, &p), SMP_OK);
        assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
        assert_true(p->lower_bound_us >= p->bottleneck_us * (1.0 - 1e-9));
        assert_string_equal(p->bound, "exact search");
        smp_partition_destroy(p);
        fixture_close(&f);
    }
    free(model);
}

/* Branching blocks as in Inception: proven for every number of stages. */
static void test_exact_proves_branching_models(void **state)
{
    (void)state;
    for (int seed = 0; seed < 6; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        branch_shape shape = {.blocks = 6,
                              .branches = 3 + seed % 2,
                              .length = 4,
                              .transfer_percent = 5 + 8 * (seed % 3),
                              .training = seed % 2};
        char *model = branch_model(&random, &shape);
        for (int n_stage = 2; n_stage <= 6; n_stage += 2) {
            fixture_cluster(&f, 8, 8, 1e9);
            fixture_open(&f, model, n_stage, 1);
            smp_partition *p;
            assert_int_equal(smp_partitioner_find("exact")->solve(&f.problem, NULL, &p), SMP_OK);
            if (p->lower_bound_us < p->bottleneck_us * (1.0 - 1e-9))
                fail_msg("seed %d, %d stages: bound %.12g of %.12g [%s]", seed, n_stage,
                         p->lower_bound_us, p->bottleneck_us, p->bound);
            smp_partition_destroy(p);
            fixture_close(&f);
        }
        free(model);
    }
}

/* Too many units for a search of all pipelines, but not for one that has until the deadline. */
static void test_exact_uses_the_time_it_is_given(void **state)
{
    (void)state;
    int open = 0;
    for (int seed = 0; seed < 20; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        smp_partition *p;
        char *model = chain_model(&random, 26 + fixture_below(&random, 20));
        fixture_cluster(&f, 2, 2, 1e7);
        fixture_open(&f, model, 2, 2);
        assert_int_equal(smp_partition_solve(&f.problem, NULL, 1, &p), SMP_OK);
        assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
        open += p->lower_bound_us < p->bottleneck_us * (1.0 - 1e-9);
        f.problem.until_deadline = true;
        f.problem.deadline_s = smp_work_s() + 1000.0;
        assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
        assert_close(p->lower_bound_us, p->bottleneck_us);
        assert_false(p->timed_out);
        smp_partition_destroy(p);
        fixture_close(&f);
        free(model);
    }
    assert_true(open > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_is_optimal),
        cmocka_unit_test(test_exact_search_fills_the_stages),
        cmocka_unit_test(test_exact_work_does_not_grow),
        cmocka_unit_test(test_exact_with_unequal_links),
        cmocka_unit_test(test_exact_with_replicas),
        cmocka_unit_test(test_exact_bounds_chains_with_replicas),
        cmocka_unit_test(test_exact_with_chunks),
        cmocka_unit_test(test_exact_after_the_deadline),
        cmocka_unit_test(test_exact_uses_the_time_it_is_given),
        cmocka_unit_test(test_exact_proves_branching_models),
        cmocka_unit_test(test_exact_proves_a_model_with_many_downsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
