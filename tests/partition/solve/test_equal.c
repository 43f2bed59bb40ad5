/* The baselines "equal-layers" and "equal-parameters": what they promise, stage by stage, and that
 * they make legal pipelines of anything. */
#include "tests/partition/problem_fixture.h"

#include "partition/problem/unit_graph.h"

static const char *const baselines[] = {"equal-layers", "equal-parameters"};
enum { N_BASELINE = sizeof baselines / sizeof baselines[0] };

static smp_partition *solve(const fixture *f, const char *name)
{
    smp_partition *partition = NULL;
    const smp_partitioner *partitioner = smp_partitioner_find(name);
    assert_non_null(partitioner);
    assert_true(partitioner->baseline);
    if (partitioner->solve(&f->problem, NULL, &partition) != SMP_OK)
        fail_msg("%s: %s", name, smp_last_error());
    assert_string_equal(partition->solver, name);
    assert_non_null(partition->bound);
    assert_true(fixture_legal(f, partition->stage));
    return partition;
}

/* A chain of ops with these names ("a b c"); forward time of the i-th: i + 1. */
static char *named_chain(const char *names)
{
    smp_text text = {0};
    int n = 0;
    smp_text_append(&text, "smp: 1\nname: named\nops:\n");
    for (const char *at = names; *at; n++) {
        int length = (int)strcspn(at, " ");
        smp_text_append(&text, "  - {op: opaque, name: %.*s, out: t%d", length, at, n);
        if (n > 0)
            smp_text_append(&text, ", in: t%d", n - 1);
        smp_text_append(&text, ", cost: {forward_us: %d}}\n", n + 1);
        at += length + (at[length] == ' ');
    }
    assert_false(text.failed);
    return text.data;
}

/* The stages of a named chain, one character per op. */
static void check_stages(const char *baseline, const char *names, int n_stage, const char *expected)
{
    fixture f;
    char got[64] = "";
    char *model = named_chain(names);
    fixture_cluster(&f, 8, 8, 1e9);
    fixture_open(&f, model, n_stage, 1);
    smp_partition *partition = solve(&f, baseline);
    for (int32_t i = 0; i < f.graph->n_op; i++)
        got[i] = (char)('0' + partition->stage[i]);
    assert_string_equal(got, expected);
    smp_partition_destroy(partition);
    fixture_close(&f);
    free(model);
}

static void test_equal_layers_counts_layers(void **state)
{
    (void)state;
    const char *gpt = "wte wpe h0.a h0.b h0.c h1.a h1.b h2.a h2.b h2.c h3.a ln_f head";
    check_stages("equal-layers", gpt, 1, "0000000000000");
    check_stages("equal-layers", gpt, 2, "0000000111111");
    check_stages("equal-layers", gpt, 4, "0000011222333");
    /* More stages than layers: by ops. */
    check_stages("equal-layers", gpt, 5, "0001112233344");
    /* No layers: a prefix must end in a digit and be followed by a dot. */
    check_stages("equal-layers", "a b c d e f", 3, "001122");
    check_stages("equal-layers", "enc.a enc.b h1 h2 enc.c enc.d", 3, "001122");
    /* What stands between two layers belongs to the one before; a name met again is another
     * layer. */
    check_stages("equal-layers", "e0.a e1.a mid d0.a d1.a", 2, "00011");
    check_stages("equal-layers", "e0.a e1.a e0.b e1.b", 4, "0123");
    check_stages("equal-layers", "h1.a h10.a h1.b h10.b.c2", 2, "0011");
}

static void test_equal_parameters_without_weights_counts_ops(void **state)
{
    (void)state;
    check_stages("equal-parameters", "a b c d e f g h i", 3, "000111222");
    check_stages("equal-parameters", "a b c d e f", 6, "012345");
    check_stages("equal-parameters", "h0.a h0.b h0.c h1.a", 2, "0011");
}

/* No stage of a chain differs from the fair share by more than the largest op; and one op that
 * outweighs all others leaves no stage empty. */
static void test_equal_parameters_shares_out_weights(void **state)
{
    (void)state;
    for (int seed = 0; seed < 100; seed++) {
        fixture_random random = {500 + (uint64_t)seed};
        fixture f;
        int n_op = 20 + fixture_below(&random, 60), n_stage = 2 + fixture_below(&random, 6);
        smp_text text = {0};
        int64_t total = 0, largest = 0, weight[80];
        smp_text_append(&text, "smp: 1\nname: weights\nops:\n");
        for (int i = 0; i < n_op; i++) {
            weight[i] = fixture_below(&random, seed % 2 ? 1000 : 3);
            if (seed % 5 == 4 && i == n_op / 3)
                weight[i] = 1000000;
            total += weight[i];
            largest = weight[i] > largest ? weight[i] : largest;
            smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
            if (i > 0)
                smp_text_append(&text, ", in: t%d", i - 1);
            smp_text_append(&text, ", cost: {forward_us: 1, weight_bytes: %d}}\n", (int)weight[i]);
        }
        assert_false(text.failed);
        fixture_cluster(&f, 8, 8, 1e9);
        fixture_open(&f, text.data, n_stage, 1);
        smp_partition *partition = solve(&f, "equal-parameters");
        double fair = (double)total / n_stage;
        for (int s = 0; s < n_stage && seed % 5 != 4; s++)
            assert_true(fabs((double)partition->load[s].weight_bytes - fair) <=
                        (double)largest + 1);
        smp_partition_destroy(partition);
        fixture_close(&f);
        smp_text_free(&text);
    }
}

/* Whatever pins, groups and costs: a legal pipeline with the loads that the slow evaluation finds,
 * or a refusal just where there is none. */
static void test_equal_makes_legal_pipelines(void **state)
{
    (void)state;
    int solved = 0, refused = 0;
    for (int seed = 0; seed < 2000; seed++) {
        fixture_random random = {7000 + (uint64_t)seed};
        fixture f;
        smp__units *units;
        int n_stage = 1 + fixture_below(&random, 6);
        fixture_shape shape = {.n_op = 1 + fixture_below(&random, 24),
                               .stages = fixture_chance(&random, 50) ? n_stage : 0,
                               .groups = fixture_chance(&random, 50) ? 3 : 0,
                               .pin_percent = 10,
                               .group_percent = 20,
                               .skip_percent = fixture_below(&random, 60),
                               .source_percent = fixture_below(&random, 40),
                               .training = fixture_chance(&random, 50),
                               .zero_costs = fixture_chance(&random, 50)};
        char *model = fixture_model(&random, &shape);
        fixture_cluster(&f, 8, 4, 1e6);
        fixture_open(&f, model, n_stage, 1);
        smp_status feasible = smp__units_build(&f.problem, &units);
        for (int b = 0; b < N_BASELINE; b++) {
            bool fits;
            smp_partition *partition = NULL;
            if (feasible != SMP_OK) {
                assert_int_equal(
                    smp_partitioner_find(baselines[b])->solve(&f.problem, NULL, &partition),
                    feasible);
                refused++;
                continue;
            }
            partition = solve(&f, baselines[b]);
            assert_close(partition->bottleneck_us, fixture_bottleneck(&f, partition->stage, &fits));
            assert_true(partition->lower_bound_us > 0.0 || partition->bottleneck_us == 0.0 ||
                        shape.zero_costs);
            assert_true(partition->lower_bound_us <= partition->bottleneck_us);
            smp_partition_destroy(partition);
            solved++;
        }
        if (feasible == SMP_OK)
            smp__units_destroy(units);
        fixture_close(&f);
        free(model);
    }
    assert_true(solved > 1000 && refused > 200);
}

/* A baseline runs when it is named and never in the default. */
static void test_equal_only_on_request(void **state)
{
    (void)state;
    fixture f;
    smp_partition *partition;
    char *model = named_chain("h0.a h0.b h1.a h1.b h2.a h2.b h3.a h3.b");
    fixture_cluster(&f, 8, 8, 1e9);
    fixture_open(&f, model, 4, 1);
    assert_int_equal(smp_partition_solve(&f.problem, NULL, 1, &partition), SMP_OK);
    assert_false(smp_partitioner_find(partition->solver)->baseline);
    double best = partition->bottleneck_us;
    smp_partition_destroy(partition);
    for (int b = 0; b < N_BASELINE; b++) {
        assert_int_equal(smp_partition_solve(&f.problem, baselines[b], 1, &partition), SMP_OK);
        assert_string_equal(partition->solver, baselines[b]);
        assert_true(partition->bottleneck_us >= best * (1 - 1e-12));
        smp_partition_destroy(partition);
    }
    fixture_close(&f);
    free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_layers_counts_layers),
        cmocka_unit_test(test_equal_parameters_without_weights_counts_ops),
        cmocka_unit_test(test_equal_parameters_shares_out_weights),
        cmocka_unit_test(test_equal_makes_legal_pipelines),
        cmocka_unit_test(test_equal_only_on_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
