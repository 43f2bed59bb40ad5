/* Targets that are ignored: loss and gradients are means over the targets of the global batch that
 * are not, however it is cut into micro-batches, replicas and stages. On four ranks. */
#include "tests/mpi/ranks.h"

enum { SAMPLES = 4, T = 6, VOCABULARY = 32, STEPS = 3 };

/* The second one hands its targets on: another rank than that of the loss reads the input. */
static const char direct[] = "smp: 1\n"
                             "name: ignored\n"
                             "inputs:\n"
                             "  tokens: {dtype: int32, shape: [6]}\n"
                             "  targets: {dtype: int32, shape: [6]}\n"
                             "ops:\n"
                             "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, "
                             "features: 16, init_std: 1}\n"
                             "  - {op: linear, name: fc, in: x, out: x, features: 16}\n"
                             "  - {op: gelu, name: act, in: x, out: x}\n"
                             "  - {op: linear, name: head, in: x, out: y, features: 32}\n"
                             "  - {op: cross_entropy, name: loss, in: [y, targets], out: loss}\n"
                             "loss: loss\n";
static const char handed_on[] =
    "smp: 1\n"
    "name: ignored\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [6]}\n"
    "  targets: {dtype: int32, shape: [2, 3]}\n"
    "ops:\n"
    "  - {op: flatten, name: row, in: targets, out: row, stage: 0}\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, features: 16, init_std: 1, "
    "stage: 0}\n"
    "  - {op: linear, name: fc, in: x, out: x, features: 16}\n"
    "  - {op: gelu, name: act, in: x, out: x}\n"
    "  - {op: linear, name: head, in: x, out: y, features: 32}\n"
    "  - {op: cross_entropy, name: loss, in: [y, row], out: loss}\n"
    "loss: loss\n";

static int32_t tokens[SAMPLES * T], targets[SAMPLES * T];

/* Sample 1 is ignored whole, of the others some targets are. */
static void make_batch(int step)
{
    for (int i = 0; i < SAMPLES * T; i++) {
        bool ignored = i / T == 1 || (step > 0 && (i + step) % 5 == 0);
        tokens[i] = (7 * i + 3 * step) % VOCABULARY;
        targets[i] = ignored ? -1 : (11 * i + 5 * step) % VOCABULARY;
    }
}

/* This replica's part of the batch. */
static void inputs_of(const smp *job, const void *inputs[2])
{
    int64_t first = smp_samples_before(job) * T;
    inputs[0] = tokens + first;
    inputs[1] = targets + first;
}

static double train_step(smp *job, smp_step_result *result)
{
    const void *inputs[2];
    inputs_of(job, inputs);
    must(smp_step(job, inputs, result));
    return result->loss;
}

static double evaluate(smp *job)
{
    const void *inputs[2];
    smp_step_result result;
    inputs_of(job, inputs);
    must(smp_evaluate(job, inputs, &result));
    return result.loss;
}

/* Against one pass over all samples at once, and bit by bit against one in the same
 * micro-batches. */
static void check(const char *path, cut c)
{
    smp_graph *graph = NULL;
    must(smp_graph_read(path, &graph));
    smp_options options = options_of(path, c);
    smp *job = open_job(&options);
    assert_int_equal(smp_step_samples(job) * c.ddp, SAMPLES);
    sequential *whole = NULL, *same = NULL;
    must(sequential_create(graph, SAMPLES, 1, &options, &whole));
    must(sequential_create(graph, c.batch, c.microbatches * c.ddp, &options, &same));
    walk_weights(job, whole, true);
    walk_weights(job, same, true);
    const void *const all[] = {tokens, targets};
    for (int step = 0; step < STEPS; step++) {
        smp_step_result result;
        double expected, exact;
        make_batch(step);
        double before = evaluate(job), loss = train_step(job, &result);
        must(sequential_step(whole, all, &expected));
        must(sequential_step(same, all, &exact));
        if (fabs(loss - expected) > 1e-6 * expected)
            fail_msg("%d x %d samples, ddp %d, step %d: loss %.9g, of all at once %.9g",
                     c.microbatches, c.batch, c.ddp, step, loss, expected);
        assert_true(before == loss);
        assert_true(c.ddp > 1 || loss == exact);
        int64_t rows = 0;
        for (int i = 0; i < SAMPLES * T; i++)
            rows += targets[i] >= 0;
        assert_int_equal(result.loss_rows, rows);
        assert_int_equal(result.skipped, 0);
    }
    assert_true(walk_weights(job, whole, false) < 1e-6);
    assert_true(c.ddp > 1 || walk_weights(job, same, false) == 0.0);
    sequential_destroy(whole);
    sequential_destroy(same);
    smp_finalize(job);
    smp_graph_destroy(graph);
}

static void test_ignored_targets_any_cut(void **state)
{
    (void)state;
    static const cut cuts[] = {{4, 1, 4, 1, 1}, {4, 1, 2, 2, 1}, {4, 1, 1, 4, 1},
                               {2, 2, 2, 1, 1}, {2, 2, 1, 2, 1}, {1, 4, 1, 1, 1}};
    const char *path = model_path(direct);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        check(path, cuts[i]);
}

/* The sequential trainer finds targets in the inputs alone: compared with the other model. */
static void test_ignored_targets_handed_on(void **state)
{
    (void)state;
    static const cut cuts[] = {{4, 1, 2, 2, 1}, {2, 2, 2, 1, 1}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        double loss[2][2 * STEPS];
        for (int k = 0; k < 2; k++) {
            smp_options options = options_of(model_path(k == 0 ? direct : handed_on), cuts[i]);
            smp *job = open_job(&options);
            int loss_input = k == 0 ? smp_input_needed(job, 1) : -1;
            for (int step = 0; step < STEPS; step++) {
                smp_step_result result;
                make_batch(step);
                loss[k][2 * step] = evaluate(job);
                loss[k][2 * step + 1] = train_step(job, &result);
            }
            if (k == 1 && job->comm->pipeline_rank == 0)
                assert_true(smp_input_needed(job, 1));
            assert_true(k == 1 || loss_input == (job->memory->loss >= 0));
            assert_true(k == 0 || job->memory->loss < 0 || !smp_input_needed(job, 1));
            smp_finalize(job);
        }
        for (int step = 0; step < 2 * STEPS; step++)
            assert_true(loss[0][step] == loss[1][step]);
    }
}

static void test_ignored_targets_all(void **state)
{
    (void)state;
    static const cut cuts[] = {{4, 1, 2, 2, 1}, {1, 4, 1, 1, 1}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        smp_options options = options_of(model_path(direct), cuts[i]);
        smp *job = open_job(&options);
        smp_step_result result;
        int64_t n = smp_weight_elements(job, 0);
        float *before = malloc((size_t)n * 4), *after = malloc((size_t)n * 4);
        make_batch(0);
        for (int k = 0; k < SAMPLES * T; k++)
            targets[k] = -1;
        must(smp_weight_get(job, smp_weight_name(job, 0), before, n));
        assert_true(evaluate(job) == 0.0);
        assert_true(train_step(job, &result) == 0.0);
        assert_int_equal(result.loss_rows, 0);
        assert_int_equal(result.skipped, 1);
        must(smp_weight_get(job, smp_weight_name(job, 0), after, n));
        assert_memory_equal(before, after, (size_t)n * 4);
        make_batch(0);
        assert_true(train_step(job, &result) > 0.0);
        must(smp_weight_get(job, smp_weight_name(job, 0), after, n));
        assert_true(memcmp(before, after, (size_t)n * 4) != 0);
        free(before);
        free(after);
        smp_finalize(job);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ignored_targets_any_cut),
        cmocka_unit_test(test_ignored_targets_handed_on),
        cmocka_unit_test(test_ignored_targets_all),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
