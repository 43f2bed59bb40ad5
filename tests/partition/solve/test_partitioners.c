/* Every registered partitioner, baselines too: legal pipelines whose figures a second opinion
 * confirms, on random problems of all kinds; how often the others find the optimum of all
 * assignments; what a start, a deadline and a repetition change. */
#include "tests/case_count.h"
#include "tests/partition/problem_fixture.h"

#include "graph/base/clock.h"
#include "partition/solve/partitioner.h"

enum { MAX_OPS = 48 };

typedef struct instance {
    fixture f;
    char *model;
    int32_t pin[MAX_OPS], label[MAX_OPS];
} instance;

/* Pins and labels from outside, as the programs give them. */
static void bind_from_outside(fixture_random *random, instance *p)
{
    int n_op = p->f.graph->n_op;
    for (int32_t op = 0; op < n_op; op++) {
        p->pin[op] = fixture_chance(random, 10) ? op * p->f.problem.n_stage / n_op : -1;
        p->label[op] = fixture_chance(random, 30) ? fixture_below(random, n_op < 3 ? n_op : 3) : -1;
    }
    if (fixture_chance(random, 20))
        p->f.problem.pin = p->pin;
    if (fixture_chance(random, 20))
        p->f.problem.together = p->label;
}

/* Devices of several speeds on nodes of two, links of two classes, memory that may be short,
 * several replicas. */
static void vary(fixture_random *random, instance *p)
{
    fixture *f = &p->f;
    f->cluster.overlap = fixture_chance(random, 40);
    f->cluster.intra_node.latency_us = fixture_below(random, 3);
    f->cluster.inter_node.latency_us = fixture_below(random, 6);
    f->cluster.inter_node.bytes_per_s = fixture_chance(random, 50) ? 1e6 : 3e5;
    for (int r = 1; r < f->problem.pipeline; r++)
        f->device_spec[r].flops_fp32 = 1e12 / (1 + fixture_below(random, 3));
    f->problem.recompute = (smp_recompute)fixture_below(random, 3);
    f->problem.seed = (uint64_t)fixture_below(random, 1000);
    bool v_shape = fixture_chance(random, 30);
    for (int s = 0; s < f->problem.n_stage && v_shape; s++) {
        int place = s % f->problem.pipeline;
        bool back = s / f->problem.pipeline % 2;
        f->stage_rank[s] = back ? f->problem.pipeline - 1 - place : place;
    }
    bool limited = fixture_chance(random, 40);
    for (int s = 0; s < f->problem.n_stage && limited; s++) {
        f->live[s] = 0.5 * (1 + fixture_below(random, 8));
        f->limit[s] = 1500 + fixture_below(random, 6000 * f->graph->n_op / f->problem.n_stage);
    }
    if (fixture_chance(random, 30))
        fixture_replicate(random, f, 2 + fixture_below(random, 2));
}

static void open_model(instance *p, fixture_random *random, char *model, int pipeline, int chunks)
{
    p->model = model;
    fixture_cluster(&p->f, 8, 2, 1e6);
    fixture_open(&p->f, p->model, pipeline, chunks);
    bind_from_outside(random, p);
    vary(random, p);
}

/* Of operators with several outputs. */
static void open_outputs(instance *p, fixture_random *random, int n_op, int pipeline, int chunks)
{
    bool training = fixture_chance(random, 60);
    open_model(p, random, fixture_model_outputs(random, n_op, training), pipeline, chunks);
}

static void open_instance(instance *p, fixture_random *random, int n_op, int pipeline, int chunks)
{
    fixture_shape shape = {.n_op = n_op,
                           .stages = fixture_chance(random, 20) ? pipeline * chunks : 0,
                           .groups = fixture_chance(random, 25) ? 3 : 0,
                           .pin_percent = 8,
                           .group_percent = 25,
                           .skip_percent = fixture_below(random, 70),
                           .source_percent = fixture_below(random, 25),
                           .training = fixture_chance(random, 60),
                           .zero_costs = fixture_chance(random, 40)};
    open_model(p, random, fixture_model(random, &shape), pipeline, chunks);
}

static void close_instance(instance *p)
{
    fixture_close(&p->f);
    free(p->model);
}

static void check_partition(const smp_partitioner *partitioner, const fixture *f, int seed,
                            const smp_partition *p)
{
    bool fits;
    const char *wrong = NULL;
    double bottleneck_us = fixture_bottleneck(f, p->stage, &fits);
    if (!fixture_legal(f, p->stage))
        wrong = "no pipeline";
    else if (!fixture_same(p->bottleneck_us, bottleneck_us))
        wrong = "bottleneck_us";
    else if (p->fits != fits)
        wrong = "fits";
    else if (!p->bound)
        wrong = "no name of the bound";
    else if (!(p->lower_bound_us >= 0.0 && p->lower_bound_us <= p->bottleneck_us))
        wrong = "lower_bound_us";
    if (wrong)
        fail_msg("%s, seed %d: %s", partitioner->name, seed, wrong);
}

static void expect_solver(const smp_partitioner *partitioner, int seed, const smp_partition *p)
{
    if (strcmp(p->solver, partitioner->name) != 0)
        fail_msg("%s, seed %d: found by '%s'", partitioner->name, seed, p->solver);
}

static bool is_worse(const fixture *f, const smp_partition *a, const smp_partition *b)
{
    double excess[2] = {0.0, 0.0};
    const smp_partition *both[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        for (int s = 0; s < f->problem.n_stage; s++)
            excess[i] =
                fmax(excess[i], fixture_memory(f, both[i]->stage, s) / (double)f->limit[s] - 1.0);
    }
    if (!a->fits || !b->fits)
        return excess[0] > excess[1] * (1 + 1e-9) + 1e-9;
    return a->bottleneck_us > b->bottleneck_us * (1 + 1e-9);
}

static void test_partitioners_make_legal_pipelines(void **state)
{
    (void)state;
    int n = few_or_many(75, 300), solved = 0, impossible = 0;
    for (int seed = 0; seed < n; seed++) {
        fixture_random random = {(uint64_t)seed};
        instance p = {0};
        int pipeline = 1 + fixture_below(&random, 5), chunks = 1 + fixture_below(&random, 3) / 2;
        int n_op = 1 + fixture_below(&random, 26);
        (seed % 6 == 5 ? open_outputs : open_instance)(&p, &random, n_op, pipeline, chunks);
        smp_status first = SMP_OK;
        for (int i = 0; smp_partitioners()[i]; i++) {
            const smp_partitioner *partitioner = smp_partitioners()[i];
            smp_partition *partition = NULL;
            if (partitioner->prover && p.f.graph->n_op > 12) /* it takes its time */
                continue;
            smp_status status = partitioner->solve(&p.f.problem, NULL, &partition);
            first = i == 0 ? status : first;
            if (status != first || (status != SMP_OK && status != SMP_ERR_NO_FIT))
                fail_msg("%s, seed %d: %s: %s", partitioner->name, seed, smp_status_name(status),
                         smp_last_error());
            if (status == SMP_OK) {
                check_partition(partitioner, &p.f, seed, partition);
                if (!partitioner->prover) /* which may have nothing to improve */
                    expect_solver(partitioner, seed, partition);
            }
            smp_partition_destroy(partition);
        }
        solved += first == SMP_OK;
        impossible += first != SMP_OK;
        close_instance(&p);
    }
    assert_true(solved > n / 2 && impossible > n / 20);
}

/* Those that are no baselines, and the default, against all assignments. */
static void count_optima(void (*open)(instance *, fixture_random *, int, int, int), int chunks,
                         int n_seed, int n_op, int *optimal, int *solved)
{
    for (int seed = 0; seed < n_seed; seed++) {
        fixture_random random = {70000 + 1000 * (uint64_t)chunks + (uint64_t)seed};
        instance p = {0};
        double best_that_fits;
        open(&p, &random, n_op - fixture_below(&random, 3), 2 + (chunks == 1 && seed % 2), chunks);
        double best = fixture_brute_force(&p.f, &best_that_fits);
        for (int i = 0; i == 0 || smp_partitioners()[i - 1]; i++) {
            const smp_partitioner *partitioner = i > 0 ? smp_partitioners()[i - 1] : NULL;
            smp_partition *partition = NULL;
            if (partitioner && (partitioner->baseline || partitioner->prover))
                continue;
            smp_status status = partitioner
                                    ? partitioner->solve(&p.f.problem, NULL, &partition)
                                    : smp_partition_solve(&p.f.problem, NULL, 1, &partition);
            if (status != (isfinite(best) ? SMP_OK : SMP_ERR_NO_FIT))
                fail_msg("%s, seed %d: %s", partitioner ? partitioner->name : "the default", seed,
                         smp_last_error());
            if (isfinite(best_that_fits)) {
                if (partition->lower_bound_us > best_that_fits * (1 + 1e-9) ||
                    (partition->fits && partition->bottleneck_us < best_that_fits * (1 - 1e-9)))
                    fail_msg("%s, seed %d: better than the optimum",
                             partitioner ? partitioner->name : "the default", seed);
                solved[i]++;
                optimal[i] +=
                    partition->fits && partition->bottleneck_us <= best_that_fits * (1 + 1e-9);
            }
            smp_partition_destroy(partition);
        }
        close_instance(&p);
    }
}

/* In thousandths; the default runs several, so it may be asked for more than each of them alone. */
static void expect_rates(const char *what, const int *optimal, const int *solved, int least,
                         int least_alone)
{
    for (int i = 0; i == 0 || smp_partitioners()[i - 1]; i++) {
        const char *name = i > 0 ? smp_partitioners()[i - 1]->name : "the default";
        if (solved[i] == 0)
            continue;
        print_message("%s, %s: optimal in %d of %d\n", what, name, optimal[i], solved[i]);
        if (optimal[i] * 1000 < solved[i] * (i > 0 ? least_alone : least))
            fail_msg("%s, %s: optimal in %d of %d", what, name, optimal[i], solved[i]);
    }
}

static void test_partitioners_find_optima(void **state)
{
    (void)state;
    int optimal[1 + SMP_N_PARTITIONER] = {0}, solved[1 + SMP_N_PARTITIONER] = {0};
    count_optima(open_instance, 1, few_or_many(40, 120), 9, optimal, solved);
    expect_rates("one chunk", optimal, solved, 990, 930);
    memset(optimal, 0, sizeof optimal);
    memset(solved, 0, sizeof solved);
    count_optima(open_instance, 2, few_or_many(30, 80), 8, optimal, solved);
    expect_rates("two chunks", optimal, solved, 980, 750);
    memset(optimal, 0, sizeof optimal);
    memset(solved, 0, sizeof solved);
    count_optima(open_outputs, 1, few_or_many(20, 60), 8, optimal, solved);
    expect_rates("several outputs", optimal, solved, 980, 800);
}

static void test_partitioners_keep_a_better_start(void **state)
{
    (void)state;
    int n = few_or_many(20, 60), improved = 0;
    for (int seed = 0; seed < n; seed++) {
        fixture_random random = {30000 + (uint64_t)seed};
        instance p = {0};
        smp_partition *start = NULL;
        open_instance(&p, &random, 12 + fixture_below(&random, 30), 2 + seed % 3, 1 + seed % 2);
        const smp_partitioner *first = smp_partitioners()[seed % SMP_N_PARTITIONER];
        smp_status status = first->solve(&p.f.problem, NULL, &start);
        for (int i = 0; i < SMP_N_PARTITIONER && status == SMP_OK; i++) {
            const smp_partitioner *partitioner = smp_partitioners()[i];
            smp_partition *partition = NULL;
            if (partitioner->prover || partitioner->baseline)
                continue;
            if (partitioner->solve(&p.f.problem, start, &partition) != SMP_OK)
                fail_msg("%s, seed %d: %s", partitioner->name, seed, smp_last_error());
            check_partition(partitioner, &p.f, seed, partition);
            if (is_worse(&p.f, partition, start))
                fail_msg("%s, seed %d: %.12g from %.12g", partitioner->name, seed,
                         partition->bottleneck_us, start->bottleneck_us);
            bool better = is_worse(&p.f, start, partition);
            improved += better;
            if (better)
                expect_solver(partitioner, seed, partition);
            smp_partition_destroy(partition);
        }
        smp_partition_destroy(start);
        close_instance(&p);
    }
    assert_true(improved > n * 8 / 60);
}

static void test_partitioners_are_deterministic(void **state)
{
    (void)state;
    for (int seed = 0; seed < few_or_many(8, 24); seed++) {
        fixture_random random = {40000 + (uint64_t)seed};
        instance p = {0};
        open_instance(&p, &random, 12 + fixture_below(&random, 30), 2 + seed % 3, 1 + seed % 2);
        for (int i = 0; smp_partitioners()[i]; i++) {
            const smp_partitioner *partitioner = smp_partitioners()[i];
            smp_partition *a = NULL, *b = NULL;
            if (partitioner->prover)
                continue;
            smp_status status = partitioner->solve(&p.f.problem, NULL, &a);
            bool same = partitioner->solve(&p.f.problem, NULL, &b) == status;
            if (same && status == SMP_OK)
                same = memcmp(a->stage, b->stage, (size_t)p.f.graph->n_op * sizeof *a->stage) == 0;
            if (!same)
                fail_msg("%s, seed %d: another result the second time", partitioner->name, seed);
            smp_partition_destroy(a);
            smp_partition_destroy(b);
        }
        close_instance(&p);
    }
}

/* A deadline that has passed leaves a legal pipeline, at once. */
static void test_partitioners_heed_the_deadline(void **state)
{
    (void)state;
    for (int seed = 0; seed < case_count(150); seed++) {
        fixture_random random = {50000 + (uint64_t)seed};
        instance p = {0};
        open_instance(&p, &random, 1 + fixture_below(&random, 40), 1 + seed % 4, 1 + seed % 2);
        p.f.problem.deadline_s = smp_work_s();
        for (int i = 0; smp_partitioners()[i]; i++) {
            smp_partition *partition = NULL;
            smp_status status = smp_partitioners()[i]->solve(&p.f.problem, NULL, &partition);
            if (status == SMP_OK)
                check_partition(smp_partitioners()[i], &p.f, seed, partition);
            else if (status != SMP_ERR_NO_FIT)
                fail_msg("%s, seed %d: %s", smp_partitioners()[i]->name, seed, smp_last_error());
            smp_partition_destroy(partition);
        }
        close_instance(&p);
    }
}

/* n ops in a row, every third one with a skip, of one cost. */
static char *equal_ops(int n_op, const char *cost)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: equal\nops:\n");
    for (int i = 0; i < n_op; i++) {
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0)
            smp_text_append(&text, ", in: [t%d, t%d]", i - 1, i % 3 ? i - 1 : i / 2);
        smp_text_append(&text, ", cost: {%s}}\n", cost);
    }
    assert_false(text.failed);
    return text.data;
}

static void expect_status(const char *cost, int n_op, int pipeline, smp_status expected)
{
    fixture f;
    char *model = equal_ops(n_op, cost);
    fixture_cluster(&f, 8, 4, 1e6);
    fixture_open(&f, model, pipeline, 1);
    for (int i = 0; smp_partitioners()[i]; i++) {
        smp_partition *partition = NULL;
        smp_status status = smp_partitioners()[i]->solve(&f.problem, NULL, &partition);
        if (status != expected)
            fail_msg("%s, %s: %s: %s", smp_partitioners()[i]->name, cost, smp_status_name(status),
                     smp_last_error());
        if (status == SMP_OK)
            check_partition(smp_partitioners()[i], &f, 0, partition);
        smp_partition_destroy(partition);
    }
    fixture_close(&f);
    free(model);
}

static void test_partitioners_take_odd_costs(void **state)
{
    (void)state;
    expect_status("forward_us: 0", 9, 4, SMP_OK);
    expect_status("forward_us: 0, output_bytes: 0", 9, 9 - 1, SMP_OK);
    expect_status("forward_us: 1e-200, backward_us: 1e-200", 9, 4, SMP_OK);
    expect_status("forward_us: 5", 1, 1, SMP_OK);
    expect_status("forward_us: 5", 3, 4, SMP_ERR_NO_FIT);
    expect_status("forward_us: 1, weight_bytes: 900000000000000, stash_bytes: 900000000000000, "
                  "output_bytes: 900000000000000",
                  9, 4, SMP_OK);
    expect_status("forward_us: 900000000000000", 9, 4, SMP_OK);
}

/* Times whose sum overflows: costs that come from elsewhere than a model, which may have limits. */
static void test_partitioners_refuse_infinite_sums(void **state)
{
    (void)state;
    fixture f;
    char *model = equal_ops(9, "forward_us: 1");
    fixture_cluster(&f, 2, 2, 1e6);
    fixture_open(&f, model, 2, 1);
    smp_op_cost cost[9];
    smp_costs costs = *f.costs;
    for (int i = 0; i < 9; i++)
        cost[i] = (smp_op_cost){.forward_us = 5e307};
    costs.op = cost;
    f.problem.costs = &costs;
    for (int i = 0; smp_partitioners()[i]; i++) {
        smp_partition *partition = NULL;
        smp_status status = smp_partitioners()[i]->solve(&f.problem, NULL, &partition);
        if (status != SMP_ERR_INPUT || partition || !strstr(smp_last_error(), "'n0'"))
            fail_msg("%s: %s: %s", smp_partitioners()[i]->name, smp_status_name(status),
                     smp_last_error());
    }
    fixture_close(&f);
    free(model);
}

/* Millions of ops are partitioned in runs; the bound is that of the ops. */
static void test_partitioners_take_millions_of_ops(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: large\nmode: inference\nlet: {n: 700000}\nops:\n"
        "  - {op: opaque, name: start, out: x, cost: {forward_us: 1, output_bytes: 10}}\n"
        "  - repeat: n\n"
        "    as: i\n"
        "    ops:\n"
        "      - {op: opaque, name: 'a{i}', in: x, out: a, cost: {forward_us: 10, output_bytes: "
        "9}}\n"
        "      - {op: opaque, name: 'b{i}', in: x, out: b, cost: {forward_us: 5, output_bytes: "
        "30}}\n"
        "      - {op: opaque, name: 'c{i}', in: [a, b], out: x, cost: {forward_us: 3, "
        "output_bytes: "
        "8}}\n";
    fixture f;
    smp_partition *p;
    fixture_cluster(&f, 16, 16, 1e6);
    fixture_open(&f, model, 16, 1);
    assert_int_equal(smp_partition_solve(&f.problem, NULL, 1, &p), SMP_OK);
    double fair_us = (700000.0 * (10 + 5 + 3) + 1) / 16;
    assert_close(p->lower_bound_us, fair_us);
    assert_true(p->bottleneck_us < 1.002 * fair_us);
    for (int32_t op = 0; op < f.graph->n_op; op++) /* the graph narrows to one tensor at each c */
        assert_true(op == 0 || p->stage[op] == p->stage[op - 1] || (op - 1) % 3 == 0);
    smp_partition_destroy(p);
    fixture_close(&f);
}

static void test_partitioners_are_found_by_name(void **state)
{
    (void)state;
    static const char model[] = "smp: 1\nname: m\nops:\n"
                                "  - {op: opaque, name: a, out: t, cost: {forward_us: 1}}\n";
    fixture f;
    smp_partition *partition = NULL;
    assert_null(smp_partitioner_find("metis"));
    fixture_cluster(&f, 1, 1, 1e6);
    fixture_open(&f, model, 1, 1);
    assert_int_equal(smp_partition_solve(&f.problem, "metis", 1, &partition), SMP_ERR_INPUT);
    for (int i = 0; smp_partitioners()[i]; i++) {
        const smp_partitioner *partitioner = smp_partitioners()[i];
        if (smp_partitioner_find(partitioner->name) != partitioner)
            fail_msg("%s: another one has the name", partitioner->name);
        if (!strstr(smp_last_error(), partitioner->name))
            fail_msg("%s: not offered where the name is unknown", partitioner->name);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partitioners_are_found_by_name),
        cmocka_unit_test(test_partitioners_make_legal_pipelines),
        cmocka_unit_test(test_partitioners_find_optima),
        cmocka_unit_test(test_partitioners_keep_a_better_start),
        cmocka_unit_test(test_partitioners_are_deterministic),
        cmocka_unit_test(test_partitioners_heed_the_deadline),
        cmocka_unit_test(test_partitioners_take_odd_costs),
        cmocka_unit_test(test_partitioners_refuse_infinite_sums),
        cmocka_unit_test(test_partitioners_take_millions_of_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
