/* The split of a sequence against all choices of borders, with memory limits and recomputation; and
 * the effort on a long chain with skip connections. */
#include "tests/partition/problem_fixture.h"

#include "partition/problem/order.h"
#include "partition/cut/best_split.h"

/* Devices of different speed, memory and live counts that rise or fall along the pipeline, links
 * alike: what the best split promises to be exact for. */
static void vary_problem(fixture_random *random, fixture *f, int memory_percent)
{
    f->cluster.overlap = fixture_chance(random, 40);
    f->cluster.intra_node.latency_us = f->cluster.inter_node.latency_us = fixture_below(random, 4);
    for (int r = 1; r < f->problem.pipeline; r++)
        f->device_spec[r].flops_fp32 = 1e12 / (1 + fixture_below(random, 3));
    f->problem.recompute = (smp_recompute)fixture_below(random, 3);
    if (!fixture_chance(random, memory_percent))
        return;
    for (int s = 0; s < f->problem.n_stage; s++) {
        f->live[s] = f->problem.n_stage - s;
        f->limit[s] = 2000 + fixture_below(random, 5000 * f->graph->n_op / f->problem.n_stage);
    }
}

/* Best of all borders of the order, by the slow evaluation; INFINITY: none is legal and fits. */
static double best_of_borders(const fixture *f, const smp__units *units, const int32_t *order)
{
    int K = f->problem.n_stage;
    int32_t border[FIXTURE_MAX_STAGES + 1], stage[64];
    double best = INFINITY;
    for (int k = 0; k <= K; k++)
        border[k] = k < K ? k : units->n;
    for (;;) {
        bool fits;
        for (int k = 0; k < K; k++) {
            for (int32_t i = border[k]; i < border[k + 1]; i++) {
                for (int64_t o = units->op_begin[order[i]]; o < units->op_begin[order[i] + 1]; o++)
                    stage[units->op_list[o]] = k;
            }
        }
        if (fixture_legal(f, stage)) {
            double us = fixture_bottleneck(f, stage, &fits);
            best = fits ? fmin(best, us) : best;
        }
        int k = K - 1; /* next choice of rising borders */
        while (k > 0 && border[k] == units->n - K + k)
            k--;
        if (k == 0)
            return best;
        border[k]++;
        for (int l = k + 1; l < K; l++)
            border[l] = border[l - 1] + 1;
    }
}

static fixture_shape random_shape(fixture_random *random, int n_op, int n_stage)
{
    return (fixture_shape){.n_op = n_op,
                           .stages = fixture_chance(random, 25) ? n_stage : 0,
                           .groups = fixture_chance(random, 30) ? 3 : 0,
                           .pin_percent = 12,
                           .group_percent = 30,
                           .skip_percent = fixture_below(random, 70),
                           .source_percent = fixture_below(random, 30),
                           .training = fixture_chance(random, 50),
                           .zero_costs = fixture_chance(random, 50)};
}

static void check_split(int seed, int *found, int *infeasible)
{
    fixture_random random = {(uint64_t)seed};
    fixture f;
    smp__units *units;
    smp__sequence *sequence;
    int n_stage = 1 + fixture_below(&random, 4);
    fixture_shape shape = random_shape(&random, 4 + fixture_below(&random, 8), n_stage);
    char *model = fixture_model(&random, &shape);
    fixture_cluster(&f, 4, 4, 1e6);
    fixture_open(&f, model, n_stage, 1);
    vary_problem(&random, &f, 50);
    smp_status status = smp__units_build(&f.problem, &units);
    if (status == SMP_OK) {
        int32_t order[32];
        smp__split split;
        smp_arena *arena = smp_arena_create();
        smp__order_kind kind = (smp__order_kind)(seed % SMP__N_ORDER);
        assert_int_equal(smp__order_make(units, kind, (uint64_t)seed, order), SMP_OK);
        assert_int_equal(smp__sequence_build(&f.problem, units, order, &sequence), SMP_OK);
        assert_int_equal(smp__split_init(&split, n_stage, arena), SMP_OK);
        assert_int_equal(smp__split_solve(sequence, INFINITY, 1 << 20, &split), SMP_OK);
        double best = best_of_borders(&f, units, order);
        if (split.found != isfinite(best) ||
            (split.found && fabs(split.slowest_us - best) > 1e-9 * fmax(best, 1.0)))
            fail_msg("seed %d: got %d %.12g, expected %.12g\n%s", seed, split.found,
                     split.slowest_us, best, model);
        *found += split.found;
        *infeasible += !split.found;
        if (split.found) { /* nothing is better than the best; the best is better than a bit more */
            split.found = false;
            assert_int_equal(smp__split_solve(sequence, best * (1 - 1e-9), 1 << 20, &split),
                             SMP_OK);
            assert_false(split.found);
            assert_int_equal(smp__split_solve(sequence, best * (1 + 1e-9) + 1e-9, 1 << 20, &split),
                             SMP_OK);
            assert_true(split.found);
            assert_close(split.slowest_us, best);
        }
        smp__sequence_destroy(sequence);
        smp_arena_destroy(arena);
        smp__units_destroy(units);
    }
    fixture_close(&f);
    free(model);
}

static void test_linear_split_is_optimal(void **state)
{
    (void)state;
    int found = 0, infeasible = 0;
    for (int seed = 0; seed < 4000; seed++)
        check_split(seed, &found, &infeasible);
    assert_true(found > 1500);
    assert_true(infeasible > 200);
}

/* Every interval of every stage: sums grown from the left and from the right agree with each other
 * and, where they make up a whole pipeline, with the evaluation. */
static void test_linear_intervals_grow_at_both_ends(void **state)
{
    (void)state;
    for (int seed = 0; seed < 60; seed++) {
        fixture_random random = {5000 + (uint64_t)seed};
        fixture f;
        smp__units *units;
        smp__sequence *sequence;
        int32_t order[40];
        fixture_shape shape = {
            .n_op = 20, .skip_percent = 60, .source_percent = 20, .training = seed % 2};
        char *model = fixture_model(&random, &shape);
        fixture_cluster(&f, 3, 3, 1e6);
        fixture_open(&f, model, 3, 1);
        assert_int_equal(smp__units_build(&f.problem, &units), SMP_OK);
        assert_int_equal(smp__order_make(units, SMP__ORDER_RANDOM, 7, order), SMP_OK);
        units->memory_binds = true; /* count bytes */
        assert_int_equal(smp__sequence_build(&f.problem, units, order, &sequence), SMP_OK);
        for (int32_t i = 0; i < units->n; i++) {
            smp__interval right = {0};
            for (int32_t j = i; j < units->n; j++) {
                smp__interval left = {0};
                smp__interval_push_right(sequence, 1, &right, i, j);
                for (int32_t at = j; at >= i; at--)
                    smp__interval_push_left(sequence, 1, &left, at, j + 1);
                assert_close(left.in_us, right.in_us);
                assert_close(left.out_us, right.out_us);
                assert_close(left.held.weight, right.held.weight);
                assert_close(left.held.stash, right.held.stash);
                assert_close(left.held.workspace, right.held.workspace);
                assert_close(left.held.in, right.held.in);
                assert_close(left.held.out, right.held.out);
            }
        }
        smp__sequence_destroy(sequence);
        smp__units_destroy(units);
        fixture_close(&f);
        free(model);
    }
}

/* A transformer-like chain: blocks of ten ops with two residual connections. */
static char *long_chain(int n_op)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: chain\nops:\n");
    for (int i = 0; i < n_op; i++) {
        static const int cost[10] = {4, 60, 45, 20, 3, 4, 80, 10, 80, 3};
        static const int bytes[10] = {8, 24, 8, 8, 8, 8, 32, 32, 8, 8};
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0)
            smp_text_append(&text, ", in: [t%d", i - 1);
        if (i > 10 && i % 5 == 4)
            smp_text_append(&text, ", t%d", i - 5);
        smp_text_append(&text, "%s, cost: {forward_us: %d, weight_bytes: %d, output_bytes: %d}}\n",
                        i > 0 ? "]" : "", cost[i % 10], 1000 * cost[i % 10], bytes[i % 10]);
    }
    assert_false(text.failed);
    return text.data;
}

/* The bound on the intervals looked at is what keeps planning of 10,000 ops under a second. */
static void test_linear_effort_on_a_long_chain(void **state)
{
    (void)state;
    static const int stages[] = {4, 16, 64};
    char *model = long_chain(10000);
    for (int i = 0; i < 6; i++) {
        fixture f;
        smp__units *units;
        smp__sequence *sequence;
        smp__split split;
        smp_arena *arena = smp_arena_create();
        fixture_cluster(&f, 64, 64, i < 3 ? 1e6 : 1e5);
        fixture_open(&f, model, stages[i % 3], 1);
        assert_int_equal(smp__units_build(&f.problem, &units), SMP_OK);
        int32_t *order = calloc((size_t)units->n, sizeof *order);
        assert_non_null(order);
        assert_int_equal(smp__order_make(units, SMP__ORDER_FILE, 0, order), SMP_OK);
        assert_int_equal(smp__sequence_build(&f.problem, units, order, &sequence), SMP_OK);
        assert_int_equal(smp__split_init(&split, stages[i % 3], arena), SMP_OK);
        assert_int_equal(smp__split_solve(sequence, INFINITY, 12000000, &split), SMP_OK);
        assert_true(split.found);
        assert_true(split.work < 15000000);
        double fair = sequence->before_us[sequence->n] / stages[i % 3];
        assert_true(split.slowest_us >= fair && split.slowest_us < 1.35 * fair + 1000);
        free(order);
        smp__sequence_destroy(sequence);
        smp__units_destroy(units);
        smp_arena_destroy(arena);
        fixture_close(&f);
    }
    free(model);
}

/* Independent dynamic program over all borders of a chain with skips, no pruning. */
static double naive_split(const fixture *f, int n, int K)
{
    const smp_graph *graph = f->graph;
    double *best = calloc((size_t)(n + 1) * (size_t)(K + 1), sizeof *best), result;
    assert_non_null(best);
    for (int k = 0; k <= K; k++) {
        for (int j = 0; j <= n; j++)
            best[k * (n + 1) + j] = k == 0 && j == 0 ? 0.0 : INFINITY;
    }
    for (int i = 0; i < n; i++) {
        for (int j = i + 1; j <= n; j++) {
            double load = 0.0;
            for (int op = 0; op < j; op++) {
                const smp_tensor *tensor = &graph->tensor[graph->op[op].out];
                bool inside = op >= i, used_inside = false, used_after = false;
                load += inside ? f->costs->op[op].forward_us + f->costs->op[op].backward_us : 0.0;
                for (int64_t c = graph->consumer_begin[graph->op[op].out];
                     c < graph->consumer_begin[graph->op[op].out + 1]; c++) {
                    int reader = graph->consumer[c].op;
                    used_inside |= reader >= i && reader < j;
                    used_after |= reader >= j;
                }
                if ((!inside && used_inside) || (inside && used_after))
                    load += (tensor->needs_grad ? 2.0 : 1.0) *
                            (double)f->costs->op[op].output_bytes /
                            f->cluster.intra_node.bytes_per_s * 1e6;
            }
            for (int k = 1; k <= K; k++)
                best[k * (n + 1) + j] =
                    fmin(best[k * (n + 1) + j], fmax(best[(k - 1) * (n + 1) + i], load));
        }
    }
    result = best[K * (n + 1) + n];
    free(best);
    return result;
}

static void test_linear_is_optimal_on_chains_with_skips(void **state)
{
    (void)state;
    for (int K = 2; K <= 9; K++) {
        fixture f;
        smp_partition *p;
        char *model = long_chain(150 + 3 * K);
        fixture_cluster(&f, 16, 16, K % 2 ? 1e6 : 2e5);
        fixture_open(&f, model, K, 1);
        assert_int_equal(smp_partition_solve(&f.problem, "linear", 1, &p), SMP_OK);
        double naive = naive_split(&f, 150 + 3 * K, K);
        /* Other orders of a chain with skips are the same order. */
        assert_close(p->bottleneck_us, naive);
        smp_partition_destroy(p);
        fixture_close(&f);
        free(model);
    }
}

/* Several stages per rank: the sum over a rank's stages counts. */
static void test_linear_several_chunks(void **state)
{
    (void)state;
    int close = 0, n = 0;
    for (int seed = 0; seed < 60; seed++) {
        fixture_random random = {7000 + (uint64_t)seed};
        fixture f;
        double fits;
        smp_partition *p;
        fixture_shape shape = {.n_op = 8, .skip_percent = 30, .source_percent = 10};
        char *model = fixture_model(&random, &shape);
        fixture_cluster(&f, 2, 2, 1e6);
        fixture_open(&f, model, 2, 2);
        if (seed % 2) { /* V shape: stages 0, 3 on rank 0, and 1, 2 on rank 1 */
            f.stage_rank[2] = 1;
            f.stage_rank[3] = 0;
        }
        double best = fixture_brute_force(&f, &fits);
        smp_status status = smp_partition_solve(&f.problem, NULL, 1, &p);
        if (isfinite(best)) {
            assert_int_equal(status, SMP_OK);
            assert_true(fixture_legal(&f, p->stage));
            assert_true(p->bottleneck_us >= best * (1 - 1e-9));
            close += p->bottleneck_us <= 1.1 * best;
            n++;
            smp_partition_destroy(p);
        }
        fixture_close(&f);
        free(model);
    }
    assert_true(close >= n * 8 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_intervals_grow_at_both_ends),
        cmocka_unit_test(test_linear_split_is_optimal),
        cmocka_unit_test(test_linear_is_optimal_on_chains_with_skips),
        cmocka_unit_test(test_linear_several_chunks),
        cmocka_unit_test(test_linear_effort_on_a_long_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
