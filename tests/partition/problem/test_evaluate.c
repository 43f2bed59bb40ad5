/* The exact evaluation against the slow second opinion, its refusals, and the lower bound against
 * the optimum over all assignments. */
#include "tests/partition/problem_fixture.h"

#include "partition/problem/evaluate.h"

/* A random legal assignment: ops in file order, stages rising at random places. */
static void random_stages(fixture_random *random, int n_op, int n_stage, int32_t *stage)
{
    int32_t s = 0;
    for (int i = 0; i < n_op; i++) {
        if (i > 0 && s + 1 < n_stage &&
            (n_op - i == n_stage - 1 - s || fixture_chance(random, 100 * n_stage / n_op)))
            s++;
        stage[i] = s;
    }
}

static void vary_problem(fixture_random *random, fixture *f)
{
    f->cluster.overlap = fixture_chance(random, 50);
    f->cluster.intra_node.latency_us = fixture_below(random, 3);
    f->cluster.inter_node.latency_us = fixture_below(random, 9);
    f->cluster.inter_node.bytes_per_s = 2e5;
    for (int r = 0; r < f->problem.pipeline; r++) {
        f->device[r] = (f->problem.pipeline - r) % 4;
        f->device_spec[r].flops_fp32 = r == 0 ? 1e12 : 1e12 / (1 + fixture_below(random, 3));
    }
    f->problem.recompute = (smp_recompute)fixture_below(random, 3);
    for (int32_t i = 0; i < f->graph->n_op; i++)
        ((smp_op_cost *)f->costs->op)[i].workspace_bytes = fixture_below(random, 3000);
    for (int s = 0; s < f->problem.n_stage; s++) {
        f->live[s] = 0.5 * (1 + fixture_below(random, 6));
        f->limit[s] = 4000 + fixture_below(random, 16000);
    }
    if (fixture_chance(random, 40))
        fixture_replicate(random, f, 2 + fixture_below(random, 2));
}

/* What fixture_bottleneck does not look into: the figures of each stage. */
static void check_loads(const fixture *f, const int32_t *stage, const smp_partition *partition)
{
    for (int s = 0; s < f->problem.n_stage; s++) {
        const smp_stage_load *load = &partition->load[s];
        double slowdown = 0.0, forward_us = 0.0, backward_us = 0.0, received;
        double border = fixture_border_bytes(f, stage, s, &received);
        int64_t stash_bytes = 0;
        int n_op = 0;
        for (int k = 0; k < smp_problem_replicas(&f->problem); k++)
            slowdown = fmax(slowdown, fixture_slowdown(f, k, s));
        for (int32_t i = 0; i < f->graph->n_op; i++) {
            if (stage[i] != s)
                continue;
            forward_us += slowdown * f->costs->op[i].forward_us;
            backward_us += slowdown * f->costs->op[i].backward_us;
            stash_bytes += f->costs->op[i].stash_bytes;
            n_op++;
        }
        assert_int_equal(load->n_op, n_op);
        assert_int_equal(load->stash_bytes, stash_bytes);
        assert_close(load->forward_us, forward_us);
        assert_close(load->backward_us, backward_us);
        assert_close(load->recompute_us,
                     forward_us * fixture_recompute(f, fixture_recomputes(f, stage, s)));
        assert_true((double)load->in_bytes == received);
        assert_true((double)(load->in_bytes + load->out_bytes) == border);
    }
}

/* What solvers compare: the sum of all loads, and the largest share by which memory is exceeded. */
static void check_score(const fixture *f, const int32_t *stage, const smp_partition *partition)
{
    smp_arena *arena = smp_arena_create();
    smp__evaluator evaluator;
    assert_int_equal(smp__evaluator_init(&evaluator, &f->problem, arena), SMP_OK);
    smp__score score = smp__evaluate(&evaluator, stage);
    double total_us = 0.0, excess = 0.0;
    for (int s = 0; s < f->problem.n_stage; s++) {
        const smp_stage_load *load = &partition->load[s];
        double load_us = 0.0;
        for (int k = 0; k < smp_problem_replicas(&f->problem); k++)
            load_us = fmax(load_us, fixture_load_us(f, stage, k, s));
        assert_close(load->load_us, load_us);
        total_us += load->load_us;
        excess = fmax(excess, (double)load->memory_bytes / (double)f->limit[s] - 1.0);
    }
    for (int r = 0; r < f->problem.pipeline; r++) {
        double rank_us = 0.0;
        for (int k = 0; k < evaluator.n_replica; k++)
            rank_us = fmax(rank_us, evaluator.rank_us[k * f->problem.pipeline + r]);
        assert_true(partition->rank_us[r] == rank_us);
    }
    assert_close(score.total_us, total_us);
    assert_true(score.excess == excess);
    assert_true(score.bottleneck_us == partition->bottleneck_us);
    smp_arena_destroy(arena);
}

static void test_evaluate_agrees_with_second_opinion(void **state)
{
    (void)state;
    for (int seed = 0; seed < 400; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        int pipeline = 1 + fixture_below(&random, 4), chunks = 1 + fixture_below(&random, 2);
        fixture_shape shape = {.n_op = 8 + fixture_below(&random, 20),
                               .skip_percent = 40,
                               .source_percent = 15,
                               .training = seed % 2,
                               .zero_costs = true};
        char *model = seed % 4 > 1 ? fixture_model(&random, &shape)
                                   : fixture_model_outputs(&random, shape.n_op, shape.training);
        int32_t stage[32];
        smp_partition *partition;
        fixture_cluster(&f, 4, 2, 1e6);
        fixture_open(&f, model, pipeline, chunks);
        vary_problem(&random, &f);
        random_stages(&random, shape.n_op, pipeline * chunks, stage);
        assert_true(fixture_legal(&f, stage));
        assert_int_equal(smp_partition_evaluate(&f.problem, stage, &partition), SMP_OK);
        bool fits;
        assert_close(partition->bottleneck_us, fixture_bottleneck(&f, stage, &fits));
        assert_int_equal(partition->fits, fits);
        for (int s = 0; s < f.problem.n_stage; s++) {
            double transfer_us = 0.0;
            for (int k = 0; k < smp_problem_replicas(&f.problem); k++)
                transfer_us = fmax(transfer_us, fixture_transfer_us(&f, stage, k, s));
            assert_close(partition->load[s].transfer_us, transfer_us);
            assert_true(partition->load[s].memory_bytes ==
                        (int64_t)ceil(fixture_memory(&f, stage, s)));
            assert_int_equal(partition->load[s].recompute, fixture_recomputes(&f, stage, s) > 0.0);
        }
        check_loads(&f, stage, partition);
        check_score(&f, stage, partition);
        smp_partition_destroy(partition);
        fixture_close(&f);
        free(model);
    }
}

static void test_evaluate_counts_a_tensor_once_per_side(void **state)
{
    (void)state;
    /* t0 goes to two ops of stage 1 and one of stage 2; 4 bytes at 1 MB/s are 4 us. */
    static const char model[] =
        "smp: 1\nname: fan\nmode: inference\nops:\n"
        "  - {op: opaque, name: a, out: t0, cost: {forward_us: 10, output_bytes: 4}}\n"
        "  - {op: opaque, name: b, in: [t0, t0], out: t1, cost: {forward_us: 1, output_bytes: 0}}\n"
        "  - {op: opaque, name: c, in: t0, out: t2, cost: {forward_us: 1, output_bytes: 2}}\n"
        "  - {op: opaque, name: d, in: [t0, t2], out: t3, cost: {forward_us: 1, output_bytes: "
        "9}}\n";
    const int32_t stage[] = {0, 1, 1, 2};
    fixture f;
    smp_partition *p;
    fixture_cluster(&f, 3, 3, 1e6);
    fixture_open(&f, model, 3, 1);
    assert_int_equal(smp_partition_evaluate(&f.problem, stage, &p), SMP_OK);
    assert_close(p->load[0].transfer_us, 4);
    assert_close(p->load[1].transfer_us, 4 + 2);
    assert_close(p->load[2].transfer_us, 4 + 2);
    assert_int_equal(p->load[0].out_bytes, 4);
    assert_int_equal(p->load[1].in_bytes, 4);
    assert_int_equal(p->load[1].out_bytes, 2);
    assert_int_equal(p->load[2].out_bytes, 0);
    assert_close(p->bottleneck_us, 14);
    smp_partition_destroy(p);
    fixture_close(&f);
}

/* Stages of 10 us, tensors of 4 us in a node and 40 us between nodes of two devices.
 * The first replica lies in one node. Of three ranks on three nodes the middle one has the far link
 * behind it in one replica and before it in the other, never both. */
static void test_evaluate_counts_every_replica(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: chain\nmode: inference\nops:\n"
        "  - {op: opaque, name: a, out: ta, cost: {forward_us: 10, output_bytes: 4}}\n"
        "  - {op: opaque, name: b, in: ta, out: tb, cost: {forward_us: 10, output_bytes: 4}}\n"
        "  - {op: opaque, name: c, in: tb, out: tc, cost: {forward_us: 10, output_bytes: 4}}\n";
    const int32_t two[] = {0, 0, 1}, three[] = {0, 1, 2};
    fixture f;
    smp_partition *p;
    fixture_cluster(&f, 6, 2, 1e6);
    f.cluster.inter_node.bytes_per_s = 1e5;
    f.device_spec[3].flops_fp32 = 0.5e12;
    fixture_open(&f, model, 2, 1);
    memcpy(f.device, (const int[]){0, 1, 2, 4}, 4 * sizeof *f.device);
    f.problem.n_replica = 2;
    assert_int_equal(smp_partition_evaluate(&f.problem, two, &p), SMP_OK);
    assert_close(p->load[0].transfer_us, 40);
    assert_close(p->bottleneck_us, 20 + 40);
    smp_partition_destroy(p);
    memcpy(f.device, (const int[]){0, 1, 4, 3}, 4 * sizeof *f.device);
    assert_int_equal(smp_partition_evaluate(&f.problem, two, &p), SMP_OK);
    assert_close(p->load[1].forward_us, 20);
    assert_close(p->load[1].load_us, 20 + 40);
    smp_partition_destroy(p);
    fixture_close(&f);
    fixture_open(&f, model, 3, 1);
    memcpy(f.device, (const int[]){0, 1, 2, 1, 4, 5}, 6 * sizeof *f.device);
    f.problem.n_replica = 2;
    assert_int_equal(smp_partition_evaluate(&f.problem, three, &p), SMP_OK);
    assert_close(p->load[1].transfer_us, 4 + 40);
    assert_close(p->bottleneck_us, 10 + 4 + 40);
    smp_partition_destroy(p);
    fixture_close(&f);
}

static void expect_refusal(fixture *f, const int32_t *stage, const char *name)
{
    smp_partition *p = NULL;
    assert_int_equal(smp_partition_evaluate(&f->problem, stage, &p), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), name))
        fail_msg("'%s' does not mention %s", smp_last_error(), name);
    assert_null(p);
}

/* Two tied weights: each counts once in a stage that holds it, and is torn apart only across
 * stages. */
static void test_evaluate_tied_weights(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: tied\n"
        "inputs: {x: {dtype: float32, shape: [8]}}\n"
        "ops:\n"
        "  - {op: linear, name: a, in: x, out: x, features: 8, bias: false}\n"
        "  - {op: linear, name: b, in: x, out: x, features: 8, bias: false, "
        "weight: a.weight}\n"
        "  - {op: linear, name: c, in: x, out: x, features: 8, bias: false}\n"
        "  - {op: linear, name: d, in: x, out: x, features: 8, bias: false, "
        "weight: c.weight}\n";
    fixture f;
    smp_partition *p;
    fixture_cluster(&f, 2, 2, 1e6);
    fixture_open(&f, model, 2, 1);
    assert_int_equal(smp_partition_evaluate(&f.problem, (const int32_t[]){0, 0, 0, 1}, &p), SMP_OK);
    assert_int_equal(p->load[0].weight_bytes, 2 * 8 * 8 * 4);
    assert_int_equal(p->load[1].weight_bytes, 8 * 8 * 4);
    smp_partition_destroy(p);
    f.problem.tie_together = true;
    assert_int_equal(smp_partition_evaluate(&f.problem, (const int32_t[]){0, 0, 1, 1}, &p), SMP_OK);
    smp_partition_destroy(p);
    expect_refusal(&f, (const int32_t[]){0, 0, 0, 1}, "'c.weight'");
    fixture_close(&f);
}

/* A tensor without a gradient goes over the link once, also in training. */
static void test_evaluate_sends_no_gradient_of_what_needs_none(void **state)
{
    (void)state;
    static const char model[] = "smp: 1\nname: row\n"
                                "inputs:\n"
                                "  x: {dtype: float32, shape: [8]}\n"
                                "ops:\n"
                                "  - {op: flatten, name: row, in: x, out: row}\n"
                                "  - {op: linear, name: a, in: row, out: y, features: 4}\n"
                                "  - {op: linear, name: b, in: y, out: z, features: 4}\n";
    fixture f;
    smp_partition *p;
    fixture_cluster(&f, 3, 3, 1e6);
    fixture_open(&f, model, 3, 1);
    assert_int_equal(smp_partition_evaluate(&f.problem, (const int32_t[]){0, 1, 2}, &p), SMP_OK);
    assert_close(p->load[0].transfer_us, 32); /* 32 bytes at 1 MB/s */
    assert_close(p->load[2].transfer_us, 2 * 16);
    smp_partition_destroy(p);
    fixture_close(&f);
}

static void test_evaluate_refuses_what_is_no_pipeline(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: refuse\nmode: inference\nops:\n"
        "  - {op: opaque, name: a, out: ta, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: b, in: ta, out: tb, group: g, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: c, in: tb, out: tc, group: g, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: d, in: tc, out: td, stage: 2, cost: {forward_us: 1}}\n";
    fixture f;
    fixture_cluster(&f, 3, 3, 1e6);
    fixture_open(&f, model, 3, 1);
    expect_refusal(&f, (const int32_t[]){1, 0, 0, 2}, "'b'");          /* backwards */
    expect_refusal(&f, (const int32_t[]){0, 0, 0, 2}, "stage 1 of 3"); /* empty */
    expect_refusal(&f, (const int32_t[]){0, 0, 1, 2}, "'g'");          /* group */
    expect_refusal(&f, (const int32_t[]){0, 1, 1, 1}, "'d'");          /* pin */
    expect_refusal(&f, (const int32_t[]){0, 1, 1, 3}, "expected 0 to 2");
    expect_refusal(&f, (const int32_t[]){-1, 1, 1, 2}, "expected 0 to 2");
    fixture_close(&f);
}

/* One group of several. */
static void test_evaluate_refuses_each_torn_group(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: torn\nmode: inference\nops:\n"
        "  - {op: opaque, name: a, out: ta, group: g, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: b, in: ta, out: tb, group: g, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: c, in: tb, out: tc, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: d, in: tc, out: td, group: h, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: e, in: td, out: te, group: h, cost: {forward_us: 1}}\n";
    const int32_t whole[] = {0, 0, 1, 2, 2};
    fixture f;
    smp_partition *p;
    fixture_cluster(&f, 3, 3, 1e6);
    fixture_open(&f, model, 3, 1);
    assert_int_equal(smp_partition_evaluate(&f.problem, whole, &p), SMP_OK);
    smp_partition_destroy(p);
    expect_refusal(&f, (const int32_t[]){0, 1, 1, 2, 2}, "'g'");
    expect_refusal(&f, (const int32_t[]){0, 0, 1, 1, 2}, "'h'");
    fixture_close(&f);
}

static void test_evaluate_refuses_torn_labels(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: labels\nmode: inference\nops:\n"
        "  - {op: opaque, name: a, out: ta, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: b, in: ta, out: tb, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: c, in: tb, out: tc, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: d, in: tc, out: td, cost: {forward_us: 1}}\n";
    fixture f;
    smp_partition *p;
    fixture_cluster(&f, 3, 3, 1e6);
    fixture_open(&f, model, 3, 1);
    f.problem.together = (const int32_t[]){0, 0, -1, -1};
    assert_int_equal(smp_partition_evaluate(&f.problem, (const int32_t[]){0, 0, 1, 2}, &p), SMP_OK);
    smp_partition_destroy(p);
    expect_refusal(&f, (const int32_t[]){0, 1, 1, 2},
                   "op 'a' lies in stage 0 and op 'b' in stage 1");
    f.problem.together = (const int32_t[]){-1, 3, 0, 3}; /* labels are any of 0 to n_op - 1 */
    expect_refusal(&f, (const int32_t[]){0, 1, 1, 1}, "stage 2 of 3 holds no op");
    expect_refusal(&f, (const int32_t[]){0, 1, 1, 2},
                   "op 'b' lies in stage 1 and op 'd' in stage 2");
    fixture_close(&f);
}

static void test_evaluate_lower_bound_holds(void **state)
{
    (void)state;
    int tight = 0;
    for (int seed = 0; seed < 250; seed++) {
        fixture_random random = {1000 + (uint64_t)seed};
        fixture f;
        int pipeline = 1 + fixture_below(&random, 3);
        fixture_shape shape = {.n_op = 4 + fixture_below(&random, 4),
                               .stages = seed % 3 == 0 ? pipeline : 0,
                               .groups = seed % 2 ? 2 : 0,
                               .pin_percent = 15,
                               .group_percent = 35,
                               .skip_percent = 30,
                               .source_percent = 20,
                               .training = seed % 2};
        char *model = fixture_model(&random, &shape);
        double fits;
        fixture_cluster(&f, 4, 4, 1e6);
        fixture_open(&f, model, pipeline, 1);
        vary_problem(&random, &f);
        double best = fixture_brute_force(&f, &fits);
        double bound;
        assert_int_equal(smp_partition_lower_bound(&f.problem, &bound), SMP_OK);
        if (isfinite(best)) {
            if (bound > best * (1 + 1e-9))
                fail_msg("seed %d: bound %g, optimum %g", seed, bound, best);
            assert_true(bound > 0);
            tight += bound > 0.7 * best;
        }
        fixture_close(&f);
        free(model);
    }
    assert_true(tight > 30);
}

/* Three ops of one stage: 10, 40 and 50 us for 700, 200 and 100 bytes; two micro-batches alive. */
static void open_three(fixture *f)
{
    static const char model[] =
        "smp: 1\nname: three\nmode: training\nops:\n"
        "  - {op: opaque, name: a, out: t0, cost: {forward_us: 10, backward_us: 20, weight_bytes: "
        "0, "
        "stash_bytes: 700, output_bytes: 4}}\n"
        "  - {op: opaque, name: b, in: t0, out: t1, cost: {forward_us: 40, backward_us: 80, "
        "weight_bytes: 0, stash_bytes: 200, output_bytes: 4}}\n"
        "  - {op: opaque, name: c, in: t1, out: t2, cost: {forward_us: 50, backward_us: 100, "
        "weight_bytes: 0, stash_bytes: 100, output_bytes: 4}}\n";
    fixture_cluster(f, 1, 1, 1e6);
    fixture_open(f, model, 1, 1);
    f->live[0] = 2.0;
    f->problem.recompute = SMP_RECOMPUTE_AUTO;
}

/* Of 2,000 bytes recomputation saves up to 1,000; the first 700 of those for a tenth of the
 * time. */
static void test_evaluate_recomputes_as_much_as_memory_asks_for(void **state)
{
    (void)state;
    static const struct {
        int64_t limit, memory;
        double recompute_us;
        bool fits;
    } row[] = {{2000, 2000, 0, true},  {1999, 1999, 1.0 / 70, true}, {1650, 1650, 5, true},
               {1300, 1300, 10, true}, {1200, 1200, 30, true},       {1100, 1100, 50, true},
               {1050, 1050, 75, true}, {1000, 1000, 100, true},      {999, 1000, 100, false}};
    fixture f;
    int32_t stage[3] = {0};
    open_three(&f);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        smp_partition *partition;
        f.limit[0] = row[i].limit;
        assert_int_equal(smp_partition_evaluate(&f.problem, stage, &partition), SMP_OK);
        assert_int_equal(partition->load[0].memory_bytes, row[i].memory);
        assert_close(partition->load[0].recompute_us, row[i].recompute_us);
        assert_close(partition->bottleneck_us, 300 + row[i].recompute_us);
        assert_int_equal(partition->fits, row[i].fits);
        assert_int_equal(partition->load[0].recompute, row[i].recompute_us > 0);
        smp_partition_destroy(partition);
    }
    fixture_close(&f);
}

/* A mask is obeyed, whatever the memory. */
static void test_evaluate_counts_the_ops_of_a_mask(void **state)
{
    (void)state;
    static const int us[] = {10, 40, 50}, bytes[] = {700, 200, 100};
    fixture f;
    int32_t stage[3] = {0};
    open_three(&f);
    f.limit[0] = 1;
    for (unsigned mask = 0; mask < 8; mask++) {
        bool again[3];
        int n = 0, recompute_us = 0, saved = 0;
        for (int i = 0; i < 3; i++) {
            again[i] = mask >> i & 1;
            n += again[i];
            recompute_us += again[i] ? us[i] : 0;
            saved += again[i] ? bytes[i] : 0;
        }
        smp_partition *partition;
        f.problem.recomputes = again;
        assert_int_equal(smp_partition_evaluate(&f.problem, stage, &partition), SMP_OK);
        assert_close(partition->load[0].recompute_us, recompute_us);
        assert_int_equal(partition->load[0].memory_bytes, 2000 - saved);
        assert_int_equal(partition->load[0].n_recompute, n);
        assert_int_equal(partition->load[0].recompute, n > 0);
        assert_memory_equal(partition->recompute, again, sizeof again);
        smp_partition_destroy(partition);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evaluate_agrees_with_second_opinion),
        cmocka_unit_test(test_evaluate_refuses_each_torn_group),
        cmocka_unit_test(test_evaluate_refuses_torn_labels),
        cmocka_unit_test(test_evaluate_counts_a_tensor_once_per_side),
        cmocka_unit_test(test_evaluate_counts_every_replica),
        cmocka_unit_test(test_evaluate_tied_weights),
        cmocka_unit_test(test_evaluate_sends_no_gradient_of_what_needs_none),
        cmocka_unit_test(test_evaluate_refuses_what_is_no_pipeline),
        cmocka_unit_test(test_evaluate_lower_bound_holds),
        cmocka_unit_test(test_evaluate_recomputes_as_much_as_memory_asks_for),
        cmocka_unit_test(test_evaluate_counts_the_ops_of_a_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
