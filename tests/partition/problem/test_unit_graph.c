/* Units: what must share a stage is merged, with all that lies between; what pins leave; and the
 * messages when nothing is left. */
#include "tests/partition/problem_fixture.h"

#include "partition/problem/coarse.h"
#include "partition/problem/unit_graph.h"
#include "partition/problem/order.h"

#define HEAD "smp: 1\nname: m\nmode: inference\nops:\n"
#define OP(name, in, more)                                                                         \
    "  - {op: opaque, name: " name ", out: t" name in                                              \
    ", cost: {forward_us: 1, output_bytes: 8}" more "}\n"

static void open_model(fixture *f, const char *model, int n_stage)
{
    fixture_cluster(f, n_stage, n_stage, 1e6);
    fixture_open(f, model, n_stage, 1);
}

static void test_unit_graph_closes_groups(void **state)
{
    (void)state;
    /* a -> b -> c -> d, a -> e: a and c together take b along, not d or e. */
    static const char model[] = HEAD OP("a", "", ", group: g") OP("b", ", in: ta", "")
        OP("c", ", in: tb", ", group: g") OP("d", ", in: tc", "") OP("e", ", in: ta", "");
    fixture f;
    smp__units *units;
    open_model(&f, model, 2);
    assert_int_equal(smp__units_build(&f.problem, &units), SMP_OK);
    assert_int_equal(units->n, 3);
    assert_int_equal(units->unit_of_op[0], units->unit_of_op[1]);
    assert_int_equal(units->unit_of_op[0], units->unit_of_op[2]);
    assert_int_not_equal(units->unit_of_op[3], units->unit_of_op[4]);
    assert_close(units->compute_us[units->unit_of_op[0]], 3);
    assert_int_equal(units->n_net, 2); /* c -> d and a -> e */
    smp__units_destroy(units);
    fixture_close(&f);
}

static void test_unit_graph_joins_groups_that_cross(void **state)
{
    (void)state;
    /* Group g before and after group h: neither can lie wholly before the other. */
    static const char model[] = HEAD OP("a", "", ", group: g") OP("b", "", ", group: h")
        OP("c", ", in: ta", ", group: h") OP("d", ", in: tb", ", group: g") OP("e", ", in: td", "");
    fixture f;
    smp__units *units;
    open_model(&f, model, 2);
    assert_int_equal(smp__units_build(&f.problem, &units), SMP_OK);
    assert_int_equal(units->n, 2);
    smp__units_destroy(units);
    fixture_close(&f);
}

static const char tied_model[] = "smp: 1\nname: tied\n"
                                 "inputs: {x: {dtype: float32, shape: [4]}}\n"
                                 "ops:\n"
                                 "  - {op: linear, name: a, in: x, out: x, features: 4}\n"
                                 "  - {op: linear, name: b, in: x, out: x, features: 4}\n"
                                 "  - {op: linear, name: c, in: x, out: x, features: 4, weight: "
                                 "a.weight}\n"
                                 "  - {op: linear, name: d, in: x, out: x, features: 4}\n";

static void test_unit_graph_ties_together_or_apart(void **state)
{
    (void)state;
    fixture f;
    smp__units *units;
    open_model(&f, tied_model, 2);
    assert_int_equal(smp__units_build(&f.problem, &units), SMP_OK);
    assert_int_equal(units->n, 4);
    assert_int_equal(units->n_share, 1);
    assert_int_equal(units->share_bytes[0], 4 * 4 * 4);
    assert_int_equal(units->share_begin[1], 2);
    assert_int_equal(units->weight_bytes[0], 4 * 4); /* the bias; the weight is shared */
    smp__units_destroy(units);
    f.problem.tie_together = true;
    assert_int_equal(smp__units_build(&f.problem, &units), SMP_OK);
    assert_int_equal(units->n, 2);
    assert_int_equal(units->n_share, 0);
    assert_int_equal(units->weight_bytes[0], 4 * 4 * 4 * 2 + 3 * 4 * 4);
    smp__units_destroy(units);
    fixture_close(&f);
}

static void check_units(const fixture *f, const smp__units *units)
{
    const smp_graph *graph = f->graph;
    for (int32_t net = 0; net < units->n_net; net++) {
        assert_true(units->net_begin[net + 1] > units->net_begin[net]);
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
            assert_true(units->net_consumer[c] > units->net_unit[net]); /* topological numbers */
            if (c > units->net_begin[net])
                assert_true(units->net_consumer[c] > units->net_consumer[c - 1]);
            assert_true(units->lo[units->net_unit[net]] <= units->lo[units->net_consumer[c]]);
            assert_true(units->hi[units->net_unit[net]] <= units->hi[units->net_consumer[c]]);
        }
    }
    for (int32_t i = 0; i < graph->n_op; i++) {
        int32_t u = units->unit_of_op[i];
        if (graph->op[i].pin >= 0)
            assert_true(units->lo[u] == graph->op[i].pin && units->hi[u] == graph->op[i].pin);
        for (int32_t j = 0; j < i; j++) {
            if (graph->op[i].group >= 0 && graph->op[i].group == graph->op[j].group)
                assert_int_equal(u, units->unit_of_op[j]);
        }
    }
    for (int32_t u = 0; u < units->n; u++) {
        assert_true(units->lo[u] <= units->anchor_lo[u] &&
                    units->anchor_lo[u] <= units->anchor_hi[u]);
        assert_true(units->anchor_hi[u] <= units->hi[u]);
    }
}

/* All orders of all kinds are topological, and pins that a brute force can respect can be cut. */
static void check_orders(const fixture *f, const smp__units *units, uint64_t seed)
{
    int32_t order[32], position[32];
    for (int kind = 0; kind < SMP__N_ORDER; kind++) {
        assert_int_equal(smp__order_make(units, (smp__order_kind)kind, seed, order), SMP_OK);
        if (kind % 2)
            assert_int_equal(smp__order_clamp(units, f->problem.n_stage, units->anchor_lo,
                                              units->anchor_hi, 0.3, order),
                             SMP_OK);
        memset(position, -1, sizeof position);
        for (int32_t i = 0; i < units->n; i++) {
            assert_in_range(order[i], 0, units->n - 1);
            assert_int_equal(position[order[i]], -1);
            position[order[i]] = i;
        }
        for (int32_t net = 0; net < units->n_net; net++) {
            for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++)
                assert_true(position[units->net_unit[net]] < position[units->net_consumer[c]]);
        }
    }
}

static void test_unit_graph_agrees_with_brute_force(void **state)
{
    (void)state;
    int possible = 0, impossible = 0;
    for (int seed = 0; seed < 600; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        smp__units *units;
        int n_stage = 2 + fixture_below(&random, 2);
        fixture_shape shape = {.n_op = 3 + fixture_below(&random, 5),
                               .stages = seed % 2 ? n_stage : 0,
                               .groups = seed % 3 ? 2 : 0,
                               .pin_percent = 25,
                               .group_percent = 35,
                               .skip_percent = 30,
                               .source_percent = 25};
        char *model = fixture_model(&random, &shape);
        double fits;
        open_model(&f, model, n_stage);
        bool exists = isfinite(fixture_brute_force(&f, &fits));
        smp_status status = smp__units_build(&f.problem, &units);
        if (status != (exists ? SMP_OK : SMP_ERR_NO_FIT))
            fail_msg("seed %d: got %s, pipelines exist: %d\n%s", seed, smp_status_name(status),
                     exists, model);
        possible += exists;
        impossible += !exists;
        if (status == SMP_OK) {
            check_units(&f, units);
            check_orders(&f, units, (uint64_t)seed + 1);
            smp__units_destroy(units);
        }
        fixture_close(&f);
        free(model);
    }
    assert_true(possible > 200 && impossible > 50);
}

static void expect_failure(const char *model, int n_stage, smp_status status, const char *first,
                           const char *second)
{
    fixture f;
    smp_partition *partition = NULL;
    open_model(&f, model, n_stage);
    assert_int_equal(smp_partition_solve(&f.problem, NULL, 1, &partition), status);
    assert_null(partition);
    if (!strstr(smp_last_error(), first) || !strstr(smp_last_error(), second))
        fail_msg("'%s' does not mention %s and %s", smp_last_error(), first, second);
    fixture_close(&f);
}

static void test_unit_graph_explains_what_is_impossible(void **state)
{
    (void)state;
    expect_failure(HEAD OP("a", "", "") OP("b", ", in: ta", ", stage: 2"), 2, SMP_ERR_INPUT,
                   "model.yaml:6:", "'b'");
    expect_failure(HEAD OP("a", "", ", stage: 1") OP("b", ", in: ta", ", stage: 0"), 2,
                   SMP_ERR_NO_FIT, "'a' (stage: 1", "one of the 2 stages would be empty");
    expect_failure(HEAD OP("a", "", ", stage: 0, group: g") OP("b", "", ", stage: 1, group: g")
                       OP("c", "", ""),
                   2, SMP_ERR_NO_FIT, "'a'", "'b'");
    expect_failure(HEAD OP("a", "", ", group: g") OP("b", "", ", group: g") OP("c", "", ""), 3,
                   SMP_ERR_NO_FIT, "3 stages", "2 parts");
    expect_failure(HEAD OP("a", "", ""), 2, SMP_ERR_NO_FIT, "2 stages", "has 1");
    expect_failure(HEAD OP("a", "", ", stage: 0") OP("b", ", in: ta", ", stage: 0")
                       OP("c", "", ", stage: 2"),
                   3, SMP_ERR_NO_FIT, "one of the 3 stages", "empty");
}

/* Runs of ops for huge graphs follow the order of the file and hold whole what is kept together. */
static void test_unit_graph_coarse_runs_hold_labels(void **state)
{
    (void)state;
    enum { N_OP = 500 };
    static const char model[] =
        "smp: 1\nname: chain\ninputs: {x: {dtype: float32, shape: [64]}}\nops:\n"
        "  - repeat: 250\n    as: i\n    ops:\n"
        "      - {op: linear, name: \"a{i}\", in: x, out: x, features: 8}\n"
        "      - {op: linear, name: \"b{i}\", in: x, out: x, features: 64}\n";
    fixture f;
    fixture_random random = {7};
    int32_t label[N_OP], run[N_OP];
    int joined = 0, inside = 0;
    open_model(&f, model, 2);
    f.problem.together = label;
    for (int32_t op = 0; op < N_OP; op++)
        label[op] = op % 2 == 1 || fixture_chance(&random, 50) ? -1 : op;
    for (int32_t op = 1; op < N_OP; op += 2)
        label[op] = label[op - 1];
    smp__coarse_label_runs(&f.problem, run);
    for (int32_t op = 1; op < N_OP; op++) {
        assert_true(run[op] == run[op - 1] || run[op] == run[op - 1] + 1);
        bool together = label[op] >= 0 && label[op] == label[op - 1];
        if (together)
            assert_int_equal(run[op], run[op - 1]);
        joined += together;
        inside += run[op] == run[op - 1];
    }
    assert_int_equal(0, run[0]);
    assert_true(joined > N_OP / 8);
    assert_int_equal(joined, inside); /* two ops are more than a run's share of the work */
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unit_graph_closes_groups),
        cmocka_unit_test(test_unit_graph_joins_groups_that_cross),
        cmocka_unit_test(test_unit_graph_ties_together_or_apart),
        cmocka_unit_test(test_unit_graph_agrees_with_brute_force),
        cmocka_unit_test(test_unit_graph_explains_what_is_impossible),
        cmocka_unit_test(test_unit_graph_coarse_runs_hold_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
