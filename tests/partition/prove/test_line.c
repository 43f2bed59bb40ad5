/* The search of lines against dynamic programming over bit masks, whatever order, groups, ops
 * without compute and times that are no whole numbers; with work of almost nothing; and on lines of
 * 50 tasks in the manner of Otto, Otto and Scholl (EJOR 2013), which it has to prove. */
#include "tests/case_count.h"
#include "tests/partition/mask_fixture.h"

#include "partition/prove/line.h"
#include "partition/prove/prove.h"

enum { MAX_SETS = 600, MAX_UNITS = 64, MUCH = 1 << 30 };

static void open_problem(fixture *f, const char *model, int n_stage)
{
    fixture_cluster(f, 10, 10, 1e18);
    fixture_open(f, model, n_stage, 1);
}

/* smp__line_prove on f's problem from an upper bound; stage: [n_op], if *best_us is finite. */
static smp__line_result prove_line(const fixture *f, double upper_us, int64_t work, int32_t *stage)
{
    smp__units *units;
    smp__window window;
    smp__line_result result;
    int32_t unit_stage[MAX_UNITS];
    smp__exact_limits limits = {.work = work, .bytes = 1 << 26};
    smp_arena *arena = smp_arena_create();
    assert_int_equal(smp__units_build(&f->problem, &units), SMP_OK);
    assert_true(units->n <= MAX_UNITS);
    assert_int_equal(smp__window_init(&window, &f->problem, units, arena), SMP_OK);
    assert_true(smp__line_applies(&window));
    assert_int_equal(smp__line_prove(&window, 0.0, upper_us, &limits, &work, unit_stage, &result),
                     SMP_OK);
    for (int32_t op = 0; op < f->graph->n_op && isfinite(result.best_us); op++)
        stage[op] = unit_stage[units->unit_of_op[op]];
    smp__units_destroy(units);
    smp_arena_destroy(arena);
    return result;
}

static void check_found(const fixture *f, int seed, const char *model, const int32_t *stage,
                        double best_us)
{
    smp_partition *p;
    if (smp_partition_evaluate(&f->problem, stage, &p) != SMP_OK)
        fail_msg("seed %d: %s\n%s", seed, smp_last_error(), model);
    if (fabs(p->bottleneck_us - best_us) > 1e-6 * best_us)
        fail_msg("seed %d: got %.12g, expected %.12g\n%s", seed, p->bottleneck_us, best_us, model);
    smp_partition_destroy(p);
}

typedef struct counts {
    int found, gave_up;
} counts;

static void check_seed(int seed, counts *count)
{
    fixture_random random = {(uint64_t)seed};
    fixture f;
    mask_graph m;
    int n_stage = 2 + fixture_below(&random, 5), n_op = n_stage + fixture_below(&random, 9);
    fixture_shape shape = {.n_op = n_op,
                           .groups = fixture_chance(&random, 25) ? 2 : 0,
                           .group_percent = 30,
                           .skip_percent = fixture_below(&random, 50),
                           .source_percent = seed % 8 == 0 ? 100 : fixture_below(&random, 80),
                           .training = fixture_chance(&random, 50),
                           .zero_costs = fixture_chance(&random, 60)};
    char *model = fixture_model(&random, &shape);
    open_problem(&f, model, n_stage);
    smp_op_cost *cost = (smp_op_cost *)f.costs->op; /* the fixture's own memory */
    for (int i = 0; i < n_op && seed % 3 == 0; i++)
        cost[i].forward_us /= 3.0;
    bool small = mask_open(&m, &f, MAX_SETS);
    double best = small ? mask_best(&f, &m) : INFINITY;
    if (isfinite(best) && best > 1e-3) {
        int32_t stage[MAX_UNITS];
        smp_partition *p;
        assert_int_equal(smp_partition_solve(&f.problem, "equal-layers", 1, &p), SMP_OK);
        double upper = p->bottleneck_us;
        smp__line_result all = prove_line(&f, upper, MUCH, stage);
        if (fabs(all.lower_us - best) > 1e-6 * best ||
            fabs(fmin(all.best_us, upper) - best) > 1e-6 * best)
            fail_msg("seed %d, %d stages: bound %.12g, found %.12g, the best is %.12g\n%s", seed,
                     n_stage, all.lower_us, all.best_us, best, model);
        if (isfinite(all.best_us))
            check_found(&f, seed, model, stage, best);
        count->found += isfinite(all.best_us);
        smp__line_result little = prove_line(&f, upper, fixture_below(&random, 3000), stage);
        assert_true(little.lower_us <= best * (1.0 + 1e-12));
        count->gave_up += little.lower_us < best * (1.0 - 1e-6);
        assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
        assert_true(fabs(p->bottleneck_us - best) <= 1e-6 * best);
        assert_true(fabs(p->lower_bound_us - best) <= 1e-6 * best);
        smp_partition_destroy(p);
    }
    mask_close(&m);
    fixture_close(&f);
    free(model);
}

static void test_line_is_optimal(void **state)
{
    (void)state;
    const int n = few_or_many(500, 1500);
    counts count = {0};
    for (int seed = 0; seed < n; seed++)
        check_seed(seed, &count);
    assert_true(count.found > n / 5);
    assert_true(count.gave_up > n / 30);
}

/* Tasks in layers; times small, large or around the middle, in thousandths of a cycle. */
static char *line_model(fixture_random *random, int n_op)
{
    smp_text text = {0};
    int layers = 3 + fixture_below(random, 12), kind = fixture_below(random, 3);
    smp_text_append(&text, "smp: 1\nname: line\nmode: inference\nops:\n");
    for (int i = 0; i < n_op; i++) {
        int first = (i * layers / n_op - 1) * n_op / layers,
            end = i * layers / n_op * n_op / layers;
        bool large = kind == 1 || (kind == 2 && fixture_chance(random, 40));
        int us = large ? 350 + fixture_below(random, 300) : 30 + fixture_below(random, 150);
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (first >= 0 && end > first) {
            smp_text_append(&text, ", in: [t%d", first + fixture_below(random, end - first));
            for (int k = 0; k < 2 && fixture_chance(random, 30); k++)
                smp_text_append(&text, ", t%d", first + fixture_below(random, end - first));
            smp_text_append(&text, "]");
        }
        smp_text_append(&text, ", cost: {forward_us: %d, output_bytes: 0}}\n", us);
    }
    assert_false(text.failed);
    return text.data;
}

static void test_lines_of_fifty_are_proven(void **state)
{
    (void)state;
    const int n = few_or_many(20, 40);
    int closed = 0;
    for (int seed = 0; seed < n; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        smp_partition *p;
        char *model = line_model(&random, 50);
        open_problem(&f, model, 10);
        assert_int_equal(smp_partition_solve(&f.problem, NULL, 1, &p), SMP_OK);
        assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
        closed += p->lower_bound_us >= p->bottleneck_us * (1.0 - 1e-9);
        smp_partition_destroy(p);
        fixture_close(&f);
        free(model);
    }
    print_message("lines of 50 tasks: %d of %d proven\n", closed, n);
    assert_true(closed >= n * 38 / 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_is_optimal),
        cmocka_unit_test(test_lines_of_fifty_are_proven),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
