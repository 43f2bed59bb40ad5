/* What is chosen to recompute, against every mask of small stages: what layouts really keep
 * decides. */
#include "tests/schedule/fixture.h"

#include "schedule/memory/bytes.h"
#include "schedule/memory/recompute_choice.h"

enum { MOST_OPS = 9 };

typedef struct chosen {
    const smp_graph *graph;
    smp_flow *flow;
    int stage;
    double us[32]; /* [n_op] */
    bool mask[32];
    int64_t saved;
} chosen;

/* What one micro-batch holds from the forward to the backward action under a mask. */
static int64_t held(const chosen *c, const bool *mask)
{
    smp_layout *l;
    assert_int_equal(SMP_OK,
                     smp_layout_measure(c->graph, c->flow, c->stage, false, mask, NULL, NULL, &l));
    int64_t bytes = l->block_bytes[SMP_BLOCK_INPUT];
    for (int32_t b = 0; b < l->n_border; b++)
        if (l->border[b].in_backward && l->border[b].tensor != c->graph->loss)
            bytes += smp__bytes_align(l->border[b].bytes);
    smp_layout_destroy(l);
    return bytes;
}

/* Forward time of what a mask really repeats. */
static double time_of(const chosen *c, const bool *mask)
{
    bool repeats[32] = {0};
    double us = 0.0;
    assert_int_equal(SMP_OK, smp_recompute_repeats(c->graph, c->flow, c->stage, mask, repeats));
    for (int32_t u = 0; u < c->graph->n_op; u++)
        us += repeats[u] ? c->us[u] : 0.0;
    return us;
}

static void choose(chosen *c, double bytes)
{
    memset(c->mask, 0, sizeof c->mask);
    assert_int_equal(SMP_OK, smp_recompute_choose(c->graph, c->flow, c->stage, c->us, bytes,
                                                  c->mask, &c->saved));
}

/* Least time of all masks that save so much; -1: none does. *most: what any saves. */
static double least_time(const chosen *c, int64_t none, int64_t bytes, int64_t *most)
{
    const int32_t *op = &c->flow->op_list[c->flow->op_begin[c->stage]];
    int32_t n = c->flow->op_begin[c->stage + 1] - c->flow->op_begin[c->stage];
    double best = -1.0;
    for (uint32_t set = 0; set < 1u << n; set++) {
        bool mask[32] = {0};
        for (int32_t i = 0; i < n; i++)
            mask[op[i]] = set >> i & 1;
        int64_t saved = none - held(c, mask);
        *most = saved > *most ? saved : *most;
        double us = saved >= bytes ? time_of(c, mask) : -1.0;
        if (us >= 0.0 && (best < 0.0 || us < best))
            best = us;
    }
    return best;
}

typedef struct tally {
    int n, best, missed;
    double sum;
} tally;

static void check_stage(chosen *c, fixture_random *random, tally *t)
{
    bool all[32];
    memset(all, true, sizeof all);
    int64_t none = held(c, NULL), by_all = none - held(c, all), most = 0;
    double share = 0.01 * (double)(1 + fixture_below(random, 100));
    int64_t bytes = 1 + (int64_t)(share * (double)by_all);
    if (by_all <= 0 || bytes > by_all)
        bytes = by_all > 0 ? by_all : 1;
    choose(c, (double)bytes);
    assert_int_equal(c->saved, none - held(c, c->mask));
    double least = least_time(c, none, bytes, &most);
    if (bytes <= by_all)
        assert_true(c->saved >= bytes);
    if (c->saved < bytes) {
        t->missed += most >= bytes;
        return;
    }
    double ratio = (time_of(c, c->mask) + 1e-9) / (least + 1e-9);
    assert_true(ratio > 1.0 - 1e-9);
    t->n++;
    t->best += ratio < 1.0 + 1e-9;
    t->sum += ratio;
}

/* On random stages that are small enough. */
static tally compare_with_all_masks(uint64_t first, uint64_t last, int max_out)
{
    tally t = {0};
    for (uint64_t seed = first; seed <= last; seed++) {
        fixture_random random = {seed * 31};
        fixture_graph f;
        int32_t stage[32];
        fixture_graph_make(&f, seed, 4 + (int32_t)fixture_below(&random, 14), true, max_out);
        f.graph.target.backend = seed % 3 == 0 ? SMP_BACKEND_CUDA : SMP_BACKEND_CPU;
        int n_stage = 1 + f.graph.n_op / 6;
        fixture_stages(&f.graph, &random, n_stage, stage);
        chosen c = {.graph = &f.graph};
        for (int32_t u = 0; u < f.graph.n_op; u++)
            c.us[u] = 1.0 + (double)fixture_below(&random, 20);
        assert_int_equal(SMP_OK, smp_flow_build(&f.graph, stage, n_stage, 3, &c.flow));
        for (c.stage = 0; c.stage < n_stage; c.stage++)
            if (c.flow->op_begin[c.stage + 1] - c.flow->op_begin[c.stage] <= MOST_OPS)
                check_stage(&c, &random, &t);
        smp_flow_destroy(c.flow);
        fixture_graph_free(&f);
    }
    return t;
}

static void test_recompute_choice_against_all_masks(void **state)
{
    (void)state;
    tally t = compare_with_all_masks(1, 300, 1);
    /* Measured: 333 of 353 as fast as the best, 1.034 times its time on average. */
    assert_true(t.n > 340 && t.missed == 0);
    assert_true(t.best >= 0.9 * t.n);
    assert_true(t.sum / t.n < 1.05);
    /* Of ops with several outputs, which are let go together: 268 of 290, 1.048 times its time. */
    t = compare_with_all_masks(301, 500, FIXTURE_OUT);
    assert_true(t.n > 280 && t.missed == 0);
    assert_true(t.best >= 0.89 * t.n);
    assert_true(t.sum / t.n < 1.06);
}

/* What is chosen is what is repeated, pairs together; and the more is asked for the more is
 * saved. */
static void test_recompute_choice_of_large_graphs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        fixture_random random = {seed * 17};
        fixture_graph f;
        int32_t stage[32];
        bool all[32], repeats[32] = {0};
        memset(all, true, sizeof all);
        fixture_graph_make(&f, seed, 20 + (int32_t)fixture_below(&random, 10), true,
                           1 + (int)(seed % 2) * 2);
        f.graph.target.backend = seed % 2 ? SMP_BACKEND_CUDA : SMP_BACKEND_CPU;
        fixture_stages(&f.graph, &random, 2, stage);
        chosen c = {.graph = &f.graph};
        for (int32_t u = 0; u < f.graph.n_op; u++)
            c.us[u] = (double)fixture_below(&random, 20);
        assert_int_equal(SMP_OK, smp_flow_build(&f.graph, stage, 2, 3, &c.flow));
        for (c.stage = 0; c.stage < 2; c.stage++) {
            int64_t none = held(&c, NULL), by_all = none - held(&c, all);
            choose(&c, 0.0);
            assert_int_equal(0, c.saved);
            assert_int_equal(none, held(&c, c.mask));
            choose(&c, 1e18);
            assert_true(c.saved >= by_all);
            choose(&c, 0.5 * (double)by_all);
            assert_true((double)c.saved >= 0.5 * (double)by_all);
            assert_int_equal(c.saved, none - held(&c, c.mask));
            if (time_of(&c, c.mask) == time_of(&c, all))
                continue;
            assert_int_equal(SMP_OK,
                             smp_recompute_repeats(&f.graph, c.flow, c.stage, c.mask, repeats));
            for (int32_t u = 0; u < f.graph.n_op; u++)
                assert_true(stage[u] != c.stage || repeats[u] == c.mask[u]);
        }
        smp_flow_destroy(c.flow);
        fixture_graph_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute_choice_against_all_masks),
        cmocka_unit_test(test_recompute_choice_of_large_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
