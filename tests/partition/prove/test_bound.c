/* Maximum flows against all cuts; sums over predecessors; the bounds by cuts against all pipelines
 * and all sets; how strong they are on a graph too large for exact search. */
#include "tests/partition/branch_fixture.h"
#include "tests/partition/mask_fixture.h"

#include "partition/prove/bound.h"
#include "partition/prove/prove.h"

enum { MAX_SETS = 200, MAX_NODE = 8 };

typedef struct network {
    int n;
    double capacity[MAX_NODE][MAX_NODE];
} network;

/* Node 0 is the source, node 1 the sink. */
static double least_cut(const network *net)
{
    double best = INFINITY;
    for (int set = 1; set < 1 << net->n; set += 2) {
        double cut = 0.0;
        if (set & 2)
            continue;
        for (int a = 0; a < net->n; a++) {
            for (int b = 0; b < net->n; b++)
                cut += (set >> a & 1) && !(set >> b & 1) ? net->capacity[a][b] : 0.0;
        }
        best = fmin(best, cut);
    }
    return best;
}

static void test_max_flow_is_the_least_cut(void **state)
{
    (void)state;
    smp__network flow;
    int early = 0;
    assert_int_equal(smp__network_init(&flow, MAX_NODE), SMP_OK);
    for (int seed = 0; seed < 3000; seed++) {
        fixture_random random = {(uint64_t)seed};
        network net = {.n = 2 + fixture_below(&random, MAX_NODE - 1)};
        for (int pass = 0; pass < 2; pass++) {
            smp__network_reset(&flow, net.n);
            for (int a = 0; a < net.n; a++) {
                for (int b = 0; b < a; b++) {
                    if (pass == 0 && fixture_chance(&random, 60)) {
                        net.capacity[a][b] = fixture_below(&random, 10) * 0.7;
                        net.capacity[b][a] = fixture_below(&random, 10);
                    }
                    assert_int_equal(
                        smp__network_add(&flow, a, b, net.capacity[a][b], net.capacity[b][a], NULL),
                        SMP_OK);
                }
            }
            int64_t work = pass == 0 ? 1000000 : fixture_below(&random, 40);
            double sent = smp__network_run(&flow, 0, 1, &work), least = least_cut(&net);
            if (pass == 0) {
                assert_close(sent, least);
            } else {
                assert_true(sent <= least + 1e-9);
                early += sent < least - 1e-9;
            }
        }
    }
    assert_true(early > 100);
    smp__network_free(&flow);
}

typedef struct bench {
    fixture f;
    mask_graph m;
    smp__units *units;
    smp__window window;
    smp_arena *arena;
    char *model;
} bench;

static bool open_bench(bench *b, int seed, bool overlap)
{
    fixture_random random = {(uint64_t)seed};
    int n_stage = 2 + fixture_below(&random, 4);
    fixture_shape shape = {.n_op = n_stage + fixture_below(&random, 13 - n_stage),
                           .stages = fixture_chance(&random, 25) ? n_stage : 0,
                           .groups = fixture_chance(&random, 25) ? 3 : 0,
                           .pin_percent = 12,
                           .group_percent = 30,
                           .skip_percent = fixture_below(&random, 70),
                           .source_percent = fixture_below(&random, 40),
                           .training = fixture_chance(&random, 50),
                           .zero_costs = fixture_chance(&random, 50)};
    *b = (bench){.model = fixture_model(&random, &shape), .arena = smp_arena_create()};
    fixture_cluster(&b->f, 5, 5, 1e6);
    b->f.cluster.overlap = overlap;
    for (int r = 1; fixture_chance(&random, 40) && r < 5; r++)
        b->f.device_spec[r].flops_fp32 = 1e12 / (1 + fixture_below(&random, 3));
    fixture_open(&b->f, b->model, n_stage, 1);
    if (!mask_open(&b->m, &b->f, MAX_SETS) || smp__units_build(&b->f.problem, &b->units) != SMP_OK)
        return false;
    assert_int_equal(smp__window_init(&b->window, &b->f.problem, b->units, b->arena), SMP_OK);
    return true;
}

static void close_bench(bench *b)
{
    smp__units_destroy(b->units);
    smp_arena_destroy(b->arena);
    mask_close(&b->m);
    fixture_close(&b->f);
    free(b->model);
}

/* A weaker bound holds as well. So of the way from compute alone to the best pipeline the cuts must
 * come as far, on average over many models, as they do when every rule of theirs is at work. */
static void test_bound_by_cuts_holds(void **state)
{
    (void)state;
    int runs = 0, raised = 0, tight = 0, n_way[2] = {0};
    double way[2] = {0.0};
    for (int seed = 0; seed < 2500; seed++) {
        bench b;
        if (open_bench(&b, seed, seed % 3 == 0)) {
            const char *name;
            smp__cuts *cuts;
            smp__cut_limits work = {10000000, 0.0};
            double best = mask_best(&b.f, &b.m), bound, op_bound;
            double low;
            assert_int_equal(smp__bound_by_compute(&b.f.problem, b.units, b.arena, &name, &low),
                             SMP_OK);
            assert_int_equal(smp__bound_by_op_cuts(&b.window, low, &work, &op_bound), SMP_OK);
            assert_int_equal(smp__cuts_create(&b.window, &cuts), SMP_OK);
            assert_int_equal(smp__bound_by_cuts(cuts, low, 2.0 * low + 100.0, &work, &bound),
                             SMP_OK);
            if (low > best * (1 + 1e-9) || op_bound > best * (1 + 1e-9) ||
                bound > best * (1 + 1e-9))
                fail_msg("seed %d: %.12g (%s), %.12g by ops, %.12g by cuts: above the best, "
                         "%.12g\n%s",
                         seed, low, name, op_bound, bound, best, b.model);
            runs += isfinite(best);
            if (isfinite(best) && best > low * (1 + 1e-6)) {
                way[b.window.overlap] += (bound - low) / (best - low);
                n_way[b.window.overlap]++;
            }
            raised += fmax(bound, op_bound) > low * (1 + 1e-6);
            tight += isfinite(best) && fmax(bound, op_bound) >= 0.9 * best;
            smp__cuts_destroy(cuts);
        }
        close_bench(&b);
    }
    assert_true(runs > 1000);
    assert_true(raised > runs / 2);
    assert_true(tight > runs / 4);
    if (way[0] < 0.249 * n_way[0] || way[1] < 0.0217 * n_way[1])
        fail_msg("cuts come %.5f of the way, beside transfers that overlap %.5f", way[0] / n_way[0],
                 way[1] / n_way[1]);
}

/* Compute of a set of units, and the nets with units on both sides. */
static double set_load(const bench *b, uint32_t set, double slowdown)
{
    const smp__units *units = b->units;
    double load = 0.0;
    for (int32_t u = 0; u < units->n; u++)
        load += set >> u & 1 ? slowdown * b->window.work_us[u] : 0.0;
    for (int32_t net = 0; net < units->n_net; net++) {
        bool in = set >> units->net_unit[net] & 1, cut = false;
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++)
            cut |= in != (set >> units->net_consumer[c] & 1);
        load += cut ? units->net_us[SMP__LINK_INTRA][net] : 0.0;
    }
    return load;
}

static void test_bound_by_op_cuts_is_the_best_set(void **state)
{
    (void)state;
    int runs = 0;
    for (int seed = 0; seed < 400; seed++) {
        bench b;
        if (open_bench(&b, seed, false) && b.units->n <= 10) {
            double expected = 0.0, bound;
            smp__cut_limits work = {10000000, 0.0};
            for (int32_t u = 0; u < b.units->n; u++) {
                double least = INFINITY, slowdown = INFINITY;
                for (int32_t s = b.units->lo[u]; s <= b.units->hi[u]; s++)
                    slowdown = fmin(slowdown, b.window.slowdown[s]);
                for (uint32_t set = 0; set < 1u << b.units->n; set++)
                    least = set >> u & 1 ? fmin(least, set_load(&b, set, slowdown)) : least;
                expected = fmax(expected, least);
            }
            assert_int_equal(smp__bound_by_op_cuts(&b.window, 0.0, &work, &bound), SMP_OK);
            assert_close(bound, expected);
            runs++;
        }
        close_bench(&b);
    }
    assert_true(runs > 100);
}

static void visit(const smp__units *units, int32_t unit, bool *seen)
{
    if (seen[unit])
        return;
    seen[unit] = true;
    for (int64_t e = units->in_begin[unit]; e < units->in_begin[unit + 1]; e++)
        visit(units, units->net_unit[units->in_net[e]], seen);
}

/* More units than fit into one block of columns. */
static void test_window_sums_over_predecessors(void **state)
{
    (void)state;
    enum { N = 2500 };
    fixture f;
    smp__units *units;
    smp__window window;
    fixture_random random = {3};
    fixture_shape shape = {.n_op = N, .skip_percent = 10, .source_percent = 20};
    char *model = fixture_model(&random, &shape);
    smp_arena *arena = smp_arena_create();
    double *after = calloc(N, sizeof *after);
    fixture_cluster(&f, 4, 4, 1e6);
    fixture_open(&f, model, 4, 1);
    assert_int_equal(smp__units_build(&f.problem, &units), SMP_OK);
    assert_int_equal(smp__window_init(&window, &f.problem, units, arena), SMP_OK);
    for (int32_t u = 0; u < N; u++) {
        bool seen[N] = {false};
        double before = 0.0;
        visit(units, u, seen);
        for (int32_t v = 0; v <= u; v++) {
            before += seen[v] ? units->compute_us[v] : 0.0;
            after[v] += seen[v] ? units->compute_us[u] : 0.0;
        }
        assert_close(window.before_us[u], before);
    }
    for (int32_t u = 0; u < N; u++)
        assert_close(window.after_us[u], after[u]);
    free(after);
    smp_arena_destroy(arena);
    smp__units_destroy(units);
    fixture_close(&f);
    free(model);
}

/* Too many downsets for exact search: cuts close a good part of the gap that fair shares leave. */
static void test_bound_of_a_large_model(void **state)
{
    (void)state;
    fixture f;
    fixture_random random = {5};
    branch_shape shape = {.blocks = 12, .branches = 6, .length = 12, .transfer_percent = 100};
    char *model = branch_model(&random, &shape);
    fixture_cluster(&f, 4, 4, 1e9);
    fixture_open(&f, model, 4, 1);
    smp_partition *p;
    assert_int_equal(smp_partitioner_find("linear")->solve(&f.problem, NULL, &p), SMP_OK);
    double fair_us;
    assert_int_equal(smp_partition_lower_bound(&f.problem, &fair_us), SMP_OK);
    assert_int_equal(smp_partition_prove(&f.problem, &p), SMP_OK);
    assert_true(p->lower_bound_us - fair_us > 0.3 * (p->bottleneck_us - fair_us));
    assert_true(p->bottleneck_us <= 1.03 * p->lower_bound_us);
    smp_partition_destroy(p);
    fixture_close(&f);
    free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_max_flow_is_the_least_cut),
        cmocka_unit_test(test_bound_by_cuts_holds),
        cmocka_unit_test(test_bound_by_op_cuts_is_the_best_set),
        cmocka_unit_test(test_window_sums_over_predecessors),
        cmocka_unit_test(test_bound_of_a_large_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
