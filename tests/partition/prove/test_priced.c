/* Bounds by prices against every partition, with every choice of what is kept and what made
 * again. */
#include "tests/case_count.h"
#include "tests/partition/problem_fixture.h"

#include "partition/numeric/bundle.h"
#include "partition/prove/priced.h"
#include "partition/prove/prove.h"
#include "partition/solve/solve.h"

enum { MOST_OPS = 8, MOST_STAGES = 8, VALUES = 2 * MOST_OPS };

typedef struct memory_case {
    smp__least_memory least;
    int64_t state[MOST_OPS], late_bytes[MOST_OPS], begin[MOST_OPS + 1], limit[MOST_STAGES];
    smp__kept kept[VALUES];
    int32_t reader[VALUES];
    double recompute_us[MOST_OPS];
    int live[MOST_STAGES], late[MOST_STAGES];
} memory_case;

/* Every op keeps its output where it is read first, or on its own stage, and something of its
 * own. */
static void fill_memory(memory_case *m, const fixture *f, fixture_random *random, int fullness)
{
    int n = f->graph->n_op, n_stage = f->problem.n_stage;
    double all = 0.0;
    *m = (memory_case){.least = {.state_bytes = m->state,
                                 .late_bytes = m->late_bytes,
                                 .kept_begin = m->begin,
                                 .kept = m->kept,
                                 .recompute_us = m->recompute_us,
                                 .live = m->live,
                                 .late = m->late,
                                 .limit = m->limit}};
    for (int s = 0; s < n_stage; s++) {
        m->live[s] = n_stage - s;
        m->late[s] = fixture_below(random, 2);
    }
    for (int o = 0, at = 0; o < n; o++) {
        m->state[o] = fixture_below(random, 50);
        m->late_bytes[o] = fixture_below(random, 10);
        m->recompute_us[o] = f->costs->op[o].forward_us;
        for (int back = 0; back < 2; back++) {
            int32_t in = back && f->graph->op[o].n_in > 0 ? f->graph->op[o].in[0] : -1;
            int32_t maker = back == 0 ? o : in >= 0 ? f->graph->tensor[in].producer : -1;
            if (maker < 0 || at == VALUES)
                continue;
            m->kept[at] = (smp__kept){maker, fixture_chance(random, 40), fixture_below(random, 60),
                                      back ? 0.25 / n : 0.75};
            m->reader[at++] = o;
        }
        m->begin[o + 1] = at;
        all += (double)m->state[o];
    }
    for (int64_t i = 0; i < m->begin[n]; i++)
        all += (double)m->kept[i].bytes * n_stage / 2;
    for (int r = 0; r < f->problem.pipeline; r++)
        m->limit[r] =
            fullness > 0 ? 1 + (int64_t)(all / f->problem.pipeline) * fullness / 100 : INT64_MAX;
}

/* Compute, charges and what is made again, of an assignment with a set of what is; INFINITY: does
 * not fit. */
static double bottleneck_of(const fixture *f, const memory_case *m, const int32_t *stage,
                            uint32_t again)
{
    double bytes[MOST_STAGES] = {0}, us[MOST_STAGES] = {0}, slowest = 0.0;
    for (int o = 0; o < f->graph->n_op; o++) {
        int s = stage[o], r = f->stage_rank[s];
        bytes[r] += (double)m->state[o] + (double)m->late_bytes[o] * m->late[s];
        for (int64_t i = m->begin[o]; i < m->begin[o + 1]; i++) {
            bool made = again >> m->kept[i].maker & 1 && stage[m->kept[i].maker] == s;
            bytes[r] += (double)m->kept[i].bytes *
                        ((made ? 0 : m->live[s]) + (m->kept[i].for_weight ? m->late[s] : 0));
        }
        if (again >> o & 1)
            us[r] += m->recompute_us[o] * fixture_slowdown(f, 0, s);
    }
    for (int r = 0; r < f->problem.pipeline; r++)
        if (bytes[r] > (double)m->limit[r])
            return INFINITY;
    for (int s = 0; s < f->problem.n_stage; s++)
        us[f->stage_rank[s]] += fixture_load_us(f, stage, 0, s);
    for (int r = 0; r < f->problem.pipeline; r++)
        slowest = fmax(slowest, us[r]);
    return slowest;
}

static double best_of_all(const fixture *f, const memory_case *m)
{
    int32_t stage[MOST_OPS] = {0};
    int n = f->graph->n_op, last;
    double best = INFINITY;
    do {
        if (fixture_legal(f, stage))
            for (uint32_t set = 0; set < (m->limit[0] == INT64_MAX ? 1u : 1u << n); set++)
                best = fmin(best, bottleneck_of(f, m, stage, set));
        for (last = n - 1; last >= 0 && ++stage[last] == f->problem.n_stage;)
            stage[last--] = 0;
    } while (last >= 0);
    return best;
}

/* A chain or nearly one. fullness: parts of a hundred of what memory would take evenly; 0: any. */
static void open_case(fixture *f, fixture_random *random, int pipeline, int chunks,
                      int skip_percent, int pin_percent)
{
    fixture_shape shape = {.n_op = 6 + fixture_below(random, 2),
                           .stages = pipeline * chunks,
                           .pin_percent = pin_percent,
                           .skip_percent = skip_percent,
                           .training = true};
    char *model = fixture_model(random, &shape);
    fixture_cluster(f, 4, 2, 1e6 * (1 + fixture_below(random, 3)));
    f->cluster.inter_node.bytes_per_s *= 0.3;
    f->device_spec[0].flops_fp32 *= 1 + fixture_below(random, 2);
    fixture_open(f, model, pipeline, chunks);
    free(model);
}

static void test_priced_is_below_every_partition(void **state)
{
    (void)state;
    int n = case_count(150), fit = 0, tight = 0;
    double ratio = 0.0;
    for (int seed = 0; seed < n; seed++) {
        fixture f = {0};
        fixture_random random = {(uint64_t)seed << 32 | 7};
        bool full = seed % 2 == 0;
        int pipeline = 2 + fixture_below(&random, full ? 1 : 2);
        int chunks = pipeline == 2 ? 1 + fixture_below(&random, 2) : 1;
        open_case(&f, &random, pipeline, chunks, seed % 3 ? 0 : 15, seed % 5 ? 0 : 15);
        memory_case m;
        fill_memory(&m, &f, &random, full ? 40 + fixture_below(&random, 40) : 0);
        double best_us = best_of_all(&f, &m), bound_us, cheap_us;
        if (best_us < INFINITY) {
            assert_int_equal(
                SMP_OK, smp__bound_by_prices(&f.problem, &m.least, 1.2 * best_us, 1e7, &bound_us));
            assert_int_equal(SMP_OK, smp_partition_lower_bound(&f.problem, &cheap_us));
            if (bound_us > best_us)
                fail_msg("seed %d: a bound of %.17g us, but %.17g us can be", seed, bound_us,
                         best_us);
            tight += full && bound_us > cheap_us * 1.01;
            fit++;
            ratio += bound_us / best_us;
        }
        fixture_close(&f);
    }
    print_message("%d of %d fit, bounds are %.3f of the best, %d are above fair share and largest "
                  "op by memory\n",
                  fit, n, ratio / fit, tight);
    assert_true(fit > n / 2 && tight > n / 10);
}

/* A chain of equal ops, too long for a search of all pipelines: transfers that the bounds of the
 * prover do not count, or by a link that is faster than the one they take. */
static void expect_above(int pipeline, int chunks, double inter_part)
{
    enum { LENGTH = 48 };
    fixture f = {0};
    smp_text text = {0};
    memory_case m;
    smp_partition *partition = NULL;
    double bound_us;
    int64_t state[LENGTH] = {0};
    smp_text_append(&text, "smp: 1\nname: chain\nmode: training\nops:\n");
    for (int i = 0; i < LENGTH; i++) {
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0)
            smp_text_append(&text, ", in: [t%d]", i - 1);
        smp_text_append(&text, ", cost: {forward_us: 1, backward_us: 2, weight_bytes: 4, "
                               "stash_bytes: 0, output_bytes: 10}}\n");
    }
    assert_false(text.failed);
    fixture_cluster(&f, 4, 2, 1e6);
    f.cluster.inter_node.bytes_per_s *= inter_part;
    fixture_open(&f, text.data, pipeline, chunks);
    free(text.data);
    m = (memory_case){
        .least = {.state_bytes = state, .live = m.live, .late = m.late, .limit = m.limit}};
    for (int r = 0; r < pipeline; r++)
        m.limit[r] = INT64_MAX;
    assert_int_equal(SMP_OK, smp_partition_solve(&f.problem, NULL, 4, &partition));
    assert_int_equal(SMP_OK, smp_partition_prove(&f.problem, &partition));
    assert_int_equal(SMP_OK, smp__bound_by_prices(&f.problem, &m.least, partition->bottleneck_us,
                                                  1e7, &bound_us));
    print_message("%d ranks, %d chunks: %.1f us, known bound %.1f us, by prices %.1f us\n",
                  pipeline, chunks, partition->bottleneck_us, partition->lower_bound_us, bound_us);
    assert_true(bound_us > 1.05 * partition->lower_bound_us);
    assert_true(bound_us <= partition->bottleneck_us);
    smp_partition_destroy(partition);
    fixture_close(&f);
}

static void test_priced_counts_links_and_chunks(void **state)
{
    (void)state;
    expect_above(2, 2, 1.0);
    expect_above(4, 2, 0.3);
}

/* The function x -> least of a few lines, whose maximum over weights is known by looking
 * everywhere. */
static void test_bundle_finds_the_maximum(void **state)
{
    (void)state;
    enum { LINES = 5, STEPS = 400 };
    for (int seed = 0; seed < case_count(100); seed++) {
        fixture_random random = {(uint64_t)seed};
        double slope[LINES][3], most = -INFINITY, start[3] = {0.5, 0.5, 0.0};
        for (int l = 0; l < LINES; l++)
            for (int i = 0; i < 3; i++)
                slope[l][i] = fixture_below(&random, 100) - (i == 2 ? 90 : 0);
        for (int a = 0; a <= 200; a++)
            for (int c = 0; c <= 400; c++) {
                double least = INFINITY;
                for (int l = 0; l < LINES; l++)
                    least = fmin(least, slope[l][0] * a / 200 + slope[l][1] * (200 - a) / 200 +
                                            slope[l][2] * c / 100);
                most = fmax(most, least);
            }
        smp_arena *arena = smp_arena_create();
        smp__bundle *bundle;
        bool goes_on = true;
        assert_int_equal(SMP_OK, smp__bundle_create(arena, 3, 2, start, &bundle));
        for (int step = 0; step < STEPS && goes_on; step++) {
            const double *x = smp__bundle_point(bundle);
            int low = 0;
            double value = INFINITY;
            for (int l = 0; l < LINES; l++) {
                double at = slope[l][0] * x[0] + slope[l][1] * x[1] + slope[l][2] * x[2];
                low = at < value ? l : low;
                value = fmin(value, at);
            }
            goes_on = smp__bundle_tell(bundle, value, slope[low], 1e-4);
        }
        if (smp__bundle_best(bundle) < most - 0.01)
            fail_msg("seed %d: %.6f, there is %.6f", seed, smp__bundle_best(bundle), most);
        smp_arena_destroy(arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_priced_is_below_every_partition),
        cmocka_unit_test(test_priced_counts_links_and_chunks),
        cmocka_unit_test(test_bundle_finds_the_maximum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
