/* The METIS baselines: legal for any graph, the same for the same seed, silent; and the orders that
 * METIS suggests to the exact split. */
#include "tests/case_count.h"
#include "tests/partition/problem_fixture.h"

#include <unistd.h>

static const char *const names[] = {"metis-kway", "metis-recursive"};

static void solve_checked(const fixture *f, const char *name, smp_partition **out)
{
    const smp_partitioner *partitioner = smp_partitioner_find(name);
    assert_non_null(partitioner);
    if (partitioner->solve(&f->problem, NULL, out) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_true(fixture_legal(f, (*out)->stage));
}

static void test_metis_is_legal_and_deterministic(void **state)
{
    (void)state;
    for (int seed = 0; seed < few_or_many(120, 240); seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        smp_partition *first, *second;
        const char *name = names[seed / 4 % 2];
        int n_stage = 1 + fixture_below(&random, 9);
        fixture_shape shape = {.n_op = n_stage + fixture_below(&random, seed % 3 ? 60 : 300),
                               .skip_percent = 30,
                               .source_percent = 20,
                               .training = seed % 2,
                               .zero_costs = seed % 4 == 0};
        char *model = fixture_model(&random, &shape);
        fixture_cluster(&f, 16, 4, 1e6);
        fixture_open(&f, model, n_stage, 1);
        for (int r = 0; r < n_stage && seed % 5 == 0; r++)
            f.device_spec[r].flops_fp32 = 1e12 / (1 + fixture_below(&random, 4));
        f.problem.seed = (uint64_t)seed * 0x9e3779b97f4a7c15u;
        solve_checked(&f, name, &first);
        solve_checked(&f, name, &second);
        assert_memory_equal(first->stage, second->stage, (size_t)shape.n_op * sizeof *first->stage);
        smp_partition_destroy(first);
        smp_partition_destroy(second);
        fixture_close(&f);
        free(model);
    }
}

/* Ops without tensors between them; as many ops as stages; all weight in one op; no weight. */
static char *odd_model(int which, int n_op)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: odd\nops:\n");
    for (int i = 0; i < n_op; i++)
        smp_text_append(&text,
                        "  - {op: opaque, name: n%d, out: t%d, cost: {forward_us: %s, "
                        "weight_bytes: %s, output_bytes: 0}}\n",
                        i, i,
                        which == 1 && i == 0 ? "1e9"
                        : which == 2         ? "0"
                                             : "1",
                        which == 1 && i == n_op - 1 ? "1000000000000" : "0");
    assert_false(text.failed);
    return text.data;
}

/* METIS prints where it does not like its input: nothing may reach standard output. */
static void test_metis_is_silent_on_odd_graphs(void **state)
{
    (void)state;
    FILE *capture = tmpfile();
    assert_non_null(capture);
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(saved >= 0 && dup2(fileno(capture), STDOUT_FILENO) >= 0);
    bool legal = true;
    for (int i = 0; i < 144; i++) {
        fixture f;
        smp_partition *partition = NULL;
        int n_stage = 1 + i % 12, n_op = n_stage + i / 3 % 4 * 12 * n_stage;
        char *model = odd_model(i % 3, n_op);
        fixture_cluster(&f, 12, 12, 1e6);
        fixture_open(&f, model, n_stage, 1);
        for (int r = 0; r < n_stage && i % 4 == 0; r++)
            f.device_spec[r].flops_fp32 = r == n_stage / 2 ? 1e15 : 1e12;
        legal &=
            smp_partitioner_find(names[i / 72])->solve(&f.problem, NULL, &partition) == SMP_OK &&
            fixture_legal(&f, partition->stage);
        smp_partition_destroy(partition);
        fixture_close(&f);
        free(model);
    }
    fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    close(saved);
    assert_int_equal(fseek(capture, 0, SEEK_END), 0);
    assert_int_equal(ftell(capture), 0);
    fclose(capture);
    assert_true(legal);
}

/* Two long branches that share nothing until the end: the file interleaves them, METIS does not. */
static char *two_branches(int length)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: branches\nmode: inference\nops:\n");
    for (int i = 0; i < 2 * length; i++) {
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i >= 2)
            smp_text_append(&text, ", in: t%d", i - 2);
        smp_text_append(&text, ", cost: {forward_us: 10, output_bytes: 50}}\n");
    }
    smp_text_append(&text,
                    "  - {op: opaque, name: join, in: [t%d, t%d], out: t, cost: {forward_us: 0, "
                    "output_bytes: 1}}\n",
                    2 * length - 2, 2 * length - 1);
    assert_false(text.failed);
    return text.data;
}

static void test_metis_finds_branches(void **state)
{
    (void)state;
    static const char *const all[] = {"metis-kway", "metis-recursive", "linear"};
    for (int i = 0; i < 3; i++) {
        fixture f;
        smp_partition *partition;
        char *model = two_branches(40);
        fixture_cluster(&f, 2, 2, 1e6);
        fixture_open(&f, model, 2, 1);
        solve_checked(&f, all[i], &partition);
        /* one branch each, one tensor across: METIS may be an op off */
        assert_true(partition->bottleneck_us <= 40 * 10 + 50 + (i < 2 ? 10 : 0));
        smp_partition_destroy(partition);
        fixture_close(&f);
        free(model);
    }
}

/* Above the size where units are gathered into runs. */
static void test_metis_takes_large_graphs(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        fixture f;
        smp_partition *partition;
        char *model = two_branches(20000);
        fixture_cluster(&f, 8, 8, 1e6);
        fixture_open(&f, model, 8, 1);
        solve_checked(&f, names[i], &partition);
        assert_true(partition->bottleneck_us < 1.2 * partition->lower_bound_us);
        smp_partition_destroy(partition);
        fixture_close(&f);
        free(model);
    }
}

/* A device that is three times as fast gets three times the work. */
static void test_metis_heeds_speeds(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        fixture f;
        smp_partition *partition;
        char *model = two_branches(300);
        fixture_cluster(&f, 4, 4, 1e9);
        fixture_open(&f, model, 4, 1);
        f.device_spec[2].flops_fp32 = 3e12;
        solve_checked(&f, names[i], &partition);
        assert_true(partition->bottleneck_us < 1.15 * partition->lower_bound_us);
        smp_partition_destroy(partition);
        fixture_close(&f);
        free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metis_is_legal_and_deterministic),
        cmocka_unit_test(test_metis_is_silent_on_odd_graphs),
        cmocka_unit_test(test_metis_finds_branches),
        cmocka_unit_test(test_metis_takes_large_graphs),
        cmocka_unit_test(test_metis_heeds_speeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
