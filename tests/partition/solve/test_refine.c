/* Loads under single moves against the evaluation from scratch, the lists of movable units, and
 * what refinement makes of pipelines that are known to be bad. */
#include "tests/partition/problem_fixture.h"

#include "partition/solve/moves.h"
#include "partition/solve/partitioner.h"

enum { MAX_OPS = 40 };

/* Ties between linear ops, so that weights are shared. */
static char *tied_model(fixture_random *random, int n_op)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: tied\ninputs: {x: {dtype: float32, shape: [8]}}\nops:\n"
                           "  - {op: linear, name: n0, in: x, out: t0, features: 8}\n");
    for (int i = 1; i < n_op; i++) {
        smp_text_append(&text, "  - {op: linear, name: n%d, in: t%d, out: t%d, features: 8", i,
                        fixture_chance(random, 60) ? i - 1 : fixture_below(random, i), i);
        if (fixture_chance(random, 40))
            smp_text_append(&text, ", weight: n0.weight");
        smp_text_append(&text, "}\n");
    }
    assert_false(text.failed);
    return text.data;
}

static void open_random(fixture *f, fixture_random *random, char **model)
{
    int pipeline = 1 + fixture_below(random, 4), chunks = 1 + fixture_below(random, 2);
    fixture_shape shape = {.n_op = pipeline * chunks + fixture_below(random, 24),
                           .groups = fixture_chance(random, 30) ? 2 : 0,
                           .group_percent = 20,
                           .skip_percent = fixture_below(random, 80),
                           .source_percent = fixture_below(random, 30),
                           .training = fixture_chance(random, 50),
                           .zero_costs = fixture_chance(random, 40)};
    *model =
        fixture_chance(random, 30) ? tied_model(random, shape.n_op) : fixture_model(random, &shape);
    fixture_cluster(f, 4, 2, 1e6);
    fixture_open(f, *model, pipeline, chunks);
    f->cluster.overlap = fixture_chance(random, 40);
    f->cluster.inter_node.bytes_per_s = 3e5;
    f->cluster.inter_node.latency_us = 2;
    f->problem.recompute = (smp_recompute)fixture_below(random, 3);
    for (int s = 0; s < f->problem.n_stage; s++) {
        f->live[s] = 0.5 * (1 + fixture_below(random, 6));
        if (fixture_chance(random, 70))
            f->limit[s] = 1000 + fixture_below(random, 12000);
    }
    for (int r = 1; r < pipeline; r++)
        f->device_spec[r].flops_fp32 = 1e12 / (1 + fixture_below(random, 3));
    if (fixture_chance(random, 40))
        fixture_replicate(random, f, 2 + fixture_below(random, 2));
}

static void check_lists(const smp__moves *moves)
{
    const smp__units *units = moves->units;
    for (int d = 0; d < SMP__N_DIRECTION; d++) {
        bool listed[MAX_OPS] = {false};
        for (int s = 0; s < moves->n_stage; s++) {
            for (int32_t u = moves->head[d][s]; u >= 0; u = moves->next[d][u]) {
                assert_int_equal(moves->stage[u], s);
                assert_false(listed[u]);
                listed[u] = true;
            }
        }
        for (int32_t net = 0; net < units->n_net; net++) {
            for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
                int32_t from = units->net_unit[net], to = units->net_consumer[c];
                if (moves->stage[from] == moves->stage[to])
                    assert_false(listed[d == SMP__LATER ? from : to]);
            }
        }
    }
}

static void check_worth(smp__moves *moves, smp__evaluator *evaluator)
{
    int32_t stage[MAX_OPS];
    for (int32_t op = 0; op < moves->problem->graph->n_op; op++)
        stage[op] = moves->stage[moves->units->unit_of_op[op]];
    smp__score score = smp__evaluate(evaluator, stage);
    smp__worth worth = smp__moves_worth(moves);
    assert_close(worth.bottleneck_us, score.bottleneck_us);
    assert_close(worth.total_us, score.total_us);
    /* bytes are rounded up to whole ones there */
    if (fabs(worth.excess - score.excess) > 1e-3 * (1.0 + score.excess))
        fail_msg("excess: got %g, expected %g", worth.excess, score.excess);
    int empty = 0;
    for (int s = 0; s < moves->n_stage; s++)
        empty += evaluator->load[s].n_op == 0;
    assert_int_equal(worth.n_empty, empty);
}

static void test_refine_moves_agree_with_evaluation(void **state)
{
    (void)state;
    int n_move = 0;
    for (int seed = 0; seed < 400; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        char *model;
        smp__units *units;
        smp__moves moves;
        smp__evaluator evaluator;
        smp_partition *start = NULL;
        smp_arena *arena = smp_arena_create();
        open_random(&f, &random, &model);
        if (smp__partitioner_metis_kway.solve(&f.problem, NULL, &start) == SMP_OK) {
            int32_t stage[MAX_OPS];
            assert_int_equal(smp__units_build(&f.problem, &units), SMP_OK);
            assert_int_equal(smp__evaluator_init(&evaluator, &f.problem, arena), SMP_OK);
            assert_int_equal(smp__moves_init(&moves, &f.problem, units, arena), SMP_OK);
            for (int32_t op = 0; op < f.graph->n_op; op++)
                stage[units->unit_of_op[op]] = start->stage[op];
            smp__moves_load(&moves, stage);
            check_worth(&moves, &evaluator);
            for (int i = 0; i < 60; i++) {
                int32_t lo, hi, unit = fixture_below(&random, units->n);
                smp__moves_range(&moves, unit, &lo, &hi);
                assert_true(lo <= moves.stage[unit] && moves.stage[unit] <= hi);
                int32_t to = lo + fixture_below(&random, hi - lo + 1);
                n_move += to != moves.stage[unit];
                if (to != moves.stage[unit])
                    smp__moves_apply(&moves, unit, to);
                check_worth(&moves, &evaluator);
                check_lists(&moves);
            }
            smp__units_destroy(units);
        }
        smp_partition_destroy(start);
        smp_arena_destroy(arena);
        fixture_close(&f);
        free(model);
    }
    assert_true(n_move > 4000);
}

static smp_partition *evaluated(const fixture *f, const int32_t *stage)
{
    smp_partition *partition;
    if (smp_partition_evaluate(&f->problem, stage, &partition) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return partition;
}

/* Independent ops of 1 to 6 us, all but one in the first stage: any of them may move. */
static void test_refine_balances_independent_ops(void **state)
{
    (void)state;
    smp_text text = {0};
    int32_t stage[18] = {0};
    fixture f;
    smp_partition *out;
    smp_text_append(&text, "smp: 1\nname: set\nmode: inference\nops:\n");
    for (int i = 0; i < 18; i++)
        smp_text_append(&text,
                        "  - {op: opaque, name: n%d, out: t%d, cost: {forward_us: %d, "
                        "output_bytes: 0}}\n",
                        i, i, 1 + i % 6);
    fixture_cluster(&f, 3, 3, 1e6);
    fixture_open(&f, text.data, 3, 1);
    stage[16] = 1;
    stage[17] = 2;
    smp_partition *start = evaluated(&f, stage);
    start->solver = "none";
    assert_int_equal(smp__partitioner_refine.solve(&f.problem, start, &out), SMP_OK);
    assert_close(out->bottleneck_us, 63 / 3);
    assert_string_equal(out->solver, "refine");
    smp_partition_destroy(start);
    start = out;
    assert_int_equal(smp__partitioner_refine.solve(&f.problem, start, &out), SMP_OK);
    assert_close(out->bottleneck_us, 63 / 3); /* nothing to improve: the start's name stays */
    assert_string_equal(out->solver, start->solver);
    smp_partition_destroy(start);
    smp_partition_destroy(out);
    fixture_close(&f);
    smp_text_free(&text);
}

/* The first stage is too full for its memory; only moves against the balance of time help. */
static void test_refine_puts_memory_first(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: memory\nmode: inference\nops:\n"
        "  - {op: opaque, name: a, out: ta, cost: {forward_us: 10, weight_bytes: 50}}\n"
        "  - {op: opaque, name: b, in: ta, out: tb, cost: {forward_us: 10, weight_bytes: 50}}\n"
        "  - {op: opaque, name: c, in: tb, out: tc, cost: {forward_us: 50, weight_bytes: 1}}\n"
        "  - {op: opaque, name: d, out: td, cost: {forward_us: 30, weight_bytes: 1}}\n";
    const int32_t stage[] = {0, 0, 1, 0};
    fixture f;
    smp_partition *out;
    fixture_cluster(&f, 2, 2, 1e6);
    fixture_open(&f, model, 2, 1);
    f.limit[0] = 60;
    f.limit[1] = 60;
    smp_partition *start = evaluated(&f, stage);
    assert_false(start->fits);
    assert_int_equal(smp__partitioner_refine.solve(&f.problem, start, &out), SMP_OK);
    assert_true(out->fits);
    assert_true(fixture_legal(&f, out->stage));
    assert_close(out->bottleneck_us, 60);
    smp_partition_destroy(start);
    smp_partition_destroy(out);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refine_moves_agree_with_evaluation),
        cmocka_unit_test(test_refine_balances_independent_ops),
        cmocka_unit_test(test_refine_puts_memory_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
