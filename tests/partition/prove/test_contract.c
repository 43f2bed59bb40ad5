/* Free ops joined to a neighbour: proofs against dynamic programming over bit masks, and a network
 * whose proof ends with them alone. */
#include "tests/case_count.h"
#include "tests/partition/branch_fixture.h"
#include "tests/partition/mask_fixture.h"

#include "partition/prove/contract.h"
#include "partition/prove/prove.h"

enum { MAX_SETS = 200, MAX_OPS = 16 };

static bool is_joined(const fixture *f)
{
    int32_t *label;
    smp__units *units;
    smp_arena *arena = smp_arena_create();
    assert_int_equal(smp__units_build(&f->problem, &units), SMP_OK);
    assert_int_equal(smp__contract(&f->problem, units, arena, &label), SMP_OK);
    bool joined = label != NULL;
    smp__units_destroy(units);
    smp_arena_destroy(arena);
    return joined;
}

static void vary(fixture_random *random, fixture *f)
{
    f->cluster.overlap = fixture_chance(random, 30);
    f->cluster.intra_node.latency_us = f->cluster.inter_node.latency_us = fixture_below(random, 4);
    for (int r = 1; fixture_chance(random, 30) && r < f->problem.pipeline; r++)
        f->device_spec[r].flops_fp32 = 1e12 / (1 + fixture_below(random, 3));
}

/* Beginning with one op after the other. *scarce: not all free ops can be where they cost nothing,
 * or a stage would be left without an op. */
static void check_seed(int seed, int *joined, int *scarce)
{
    fixture_random random = {(uint64_t)seed};
    fixture f;
    mask_graph m;
    smp_partition *p;
    int32_t stage[MAX_OPS];
    int n_stage = 2 + fixture_below(&random, 4), n_op = n_stage + fixture_below(&random, 10);
    fixture_shape shape = {.n_op = n_op,
                           .groups = fixture_chance(&random, 20) ? 3 : 0,
                           .group_percent = 20,
                           .skip_percent = fixture_below(&random, 40),
                           .source_percent = fixture_below(&random, 20),
                           .training = fixture_chance(&random, 50),
                           .zero_costs = true,
                           .free_percent = 30 + fixture_below(&random, 50)};
    char *model = fixture_model(&random, &shape);
    fixture_cluster(&f, 5, 5, 1e6);
    fixture_open(&f, model, n_stage, 1);
    vary(&random, &f);
    for (int i = 0; i < n_op; i++)
        stage[i] = i < n_stage ? i : n_stage - 1;
    if (mask_open(&m, &f, MAX_SETS) && smp_partition_evaluate(&f.problem, stage, &p) == SMP_OK) {
        double best = mask_best(&f, &m);
        int costly = 0;
        for (int i = 0; i < n_op; i++)
            costly += f.costs->op[i].forward_us > 0.0;
        assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
        if (fabs(p->bottleneck_us - best) > 1e-9 * fmax(best, 1.0) ||
            fabs(p->lower_bound_us - best) > 1e-9 * fmax(best, 1.0))
            fail_msg("seed %d: %.12g, at least %.12g [%s], expected %.12g\n%s", seed,
                     p->bottleneck_us, p->lower_bound_us, p->bound, best, model);
        *joined += is_joined(&f);
        *scarce += is_joined(&f) && costly < n_stage;
        smp_partition_destroy(p);
    }
    mask_close(&m);
    fixture_close(&f);
    free(model);
}

static void test_contract_keeps_the_best(void **state)
{
    (void)state;
    int n = case_count(2000), joined = 0, scarce = 0;
    for (int seed = 0; seed < n; seed++)
        check_seed(seed, &joined, &scarce);
    assert_true(joined > n / 3);
    assert_true(scarce > n / 20);
}

/* Layers whose output two free ops take apart, what one of them makes added to the next layer's. */
static char *layers_model(int n)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: layers\nmode: training\nops:\n");
    for (int i = 0; i < n; i++) {
        smp_text_append(&text, "  - {op: opaque, name: l%d, out: tl%d", i, i);
        if (i > 0)
            smp_text_append(&text, ", in: [ts%d]", i - 1);
        smp_text_append(&text,
                        ", cost: {forward_us: %d, backward_us: %d, output_bytes: 97}}\n"
                        "  - {op: opaque, name: a%d, out: ta%d, in: [tl%d], cost: {forward_us: 0, "
                        "backward_us: 0, output_bytes: 92}}\n"
                        "  - {op: opaque, name: b%d, out: tb%d, in: [tl%d], cost: {forward_us: 0, "
                        "backward_us: 0, output_bytes: 3}}\n"
                        "  - {op: opaque, name: s%d, out: ts%d, in: [ta%d",
                        40 + 7 * i % 11, 80 + 5 * i % 13, i, i, i, i, i, i, i, i, i);
        if (i > 0)
            smp_text_append(&text, ", ts%d", i - 1);
        smp_text_append(&text, "], cost: {forward_us: 0, backward_us: 0, output_bytes: 92}}\n");
    }
    assert_false(text.failed);
    return text.data;
}

static void test_contract_ends_proofs(void **state)
{
    (void)state;
    fixture f;
    smp_partition *p;
    char *model = layers_model(30);
    fixture_cluster(&f, 6, 6, 1e6);
    fixture_open(&f, model, 6, 1);
    assert_true(is_joined(&f));
    assert_int_equal(smp_partition_solve(&f.problem, NULL, 1, &p), SMP_OK);
    assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
    assert_close(p->lower_bound_us, p->bottleneck_us);
    smp_partition_destroy(p);
    fixture_close(&f);
    free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contract_keeps_the_best),
        cmocka_unit_test(test_contract_ends_proofs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
