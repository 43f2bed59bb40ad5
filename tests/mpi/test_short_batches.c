/* Batches of fewer samples than a global batch: loss and gradients are the mean over what is there,
 * however it is cut into micro-batches, replicas and stages. On four ranks. */
#include "exec/state/progress.h"
#include "tests/mpi/ranks.h"

enum { FULL = 8, T = 6, VOCABULARY = 32, STEPS = 6, INPUTS = 2 };

/* Samples of the steps: in every cut some end with a micro-batch and some within one, and replicas
 * go without. The last one shows that nothing stays behind. */
static const int64_t given[STEPS] = {FULL, 5, 1, 7, 4, FULL};

/* The second one hands its targets on: another rank than that of the loss reads the input. */
static const char tokens_model[] = "smp: 1\n"
                                   "name: short\n"
                                   "inputs:\n"
                                   "  tokens: {dtype: int32, shape: [6]}\n"
                                   "  targets: {dtype: int32, shape: [6]}\n"
                                   "ops:\n"
                                   "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, "
                                   "features: 16, init_std: 1}\n"
                                   "  - {op: layernorm, name: ln, in: x, out: x}\n"
                                   "  - {op: linear, name: fc, in: x, out: x, features: 16}\n"
                                   "  - {op: gelu, name: act, in: x, out: x}\n"
                                   "  - {op: linear, name: head, in: x, out: y, features: 32}\n"
                                   "  - {op: cross_entropy, name: loss, in: [y, targets], out: l}\n"
                                   "loss: l\n";
static const char handed_model[] =
    "smp: 1\n"
    "name: short\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [6]}\n"
    "  targets: {dtype: int32, shape: [2, 3]}\n"
    "ops:\n"
    "  - {op: flatten, name: row, in: targets, out: row, stage: 0}\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, features: 16, init_std: 1, "
    "stage: 0}\n"
    "  - {op: layernorm, name: ln, in: x, out: x}\n"
    "  - {op: linear, name: fc, in: x, out: x, features: 16}\n"
    "  - {op: gelu, name: act, in: x, out: x}\n"
    "  - {op: linear, name: head, in: x, out: y, features: 32}\n"
    "  - {op: cross_entropy, name: loss, in: [y, row], out: l}\n"
    "loss: l\n";
static const char reals_model[] = "smp: 1\n"
                                  "name: short\n"
                                  "inputs:\n"
                                  "  x: {dtype: float32, shape: [6]}\n"
                                  "  goal: {dtype: float32, shape: [6]}\n"
                                  "ops:\n"
                                  "  - {op: linear, name: a, in: x, out: y, features: 16}\n"
                                  "  - {op: gelu, name: b, in: y, out: y}\n"
                                  "  - {op: layernorm, name: c, in: y, out: y}\n"
                                  "  - {op: linear, name: d, in: y, out: y, features: 16}\n"
                                  "  - {op: gelu, name: e, in: y, out: y}\n"
                                  "  - {op: linear, name: f, in: y, out: y, features: 6}\n"
                                  "  - {op: mse, name: loss, in: [y, goal], out: l}\n"
                                  "loss: l\n";

/* Both inputs, samples of 6 values of 4 bytes; `masked`: what stands behind the samples is there,
 * but no target of it counts. */
typedef struct values {
    int32_t all[INPUTS][FULL * T], masked[INPUTS][FULL * T];
} values;

static bool is_real(const char *model)
{
    return model == reals_model;
}

/* Behind the samples stands what no kernel may see: NaN, which is no index either. */
static void make_batch(values *v, const char *model, int step)
{
    for (int input = 0; input < INPUTS; input++)
        for (int i = 0; i < FULL * T; i++) {
            bool there = i < given[step] * T;
            float real = there ? (float)sin(1.0 + i * (input + 1.3) + step) : NAN;
            int32_t index = (7 * i + 3 * step + 11 * input) % VOCABULARY;
            if (input == 1 && (i + step) % 5 == 0)
                index = -1;
            v->masked[input][i] = there ? index : -input;
            if (there && !is_real(model))
                v->all[input][i] = index;
            else
                memcpy(&v->all[input][i], &real, sizeof real);
        }
}

/* This replica's samples; no array where it has none. */
static double job_step(smp *job, values *v, int step, bool training, smp_step_result *result)
{
    const int64_t first = smp_samples_before(job);
    const void *inputs[INPUTS] = {NULL, NULL};
    for (int i = 0; i < INPUTS && first < given[step]; i++)
        inputs[i] = &v->all[i][first * T];
    must(training ? smp_step_short(job, inputs, given[step], result)
                  : smp_evaluate_short(job, inputs, given[step], result));
    return result->loss;
}

static int64_t count_rows(const char *model, const values *v, int step)
{
    int64_t rows = 0;
    for (int i = 0; i < given[step] * T; i++)
        rows += v->masked[1][i] >= 0;
    return is_real(model) ? given[step] : rows;
}

/* The steps of a job against a trainer that takes one sample at a time and, where targets can be
 * masked, bit by bit against one that gets whole micro-batches. Returns a hash of the weights. */
static uint64_t check(const char *model, cut c)
{
    /* targets handed on are, for the trainer, those of the other model */
    const char *path = model_path(model == handed_model ? tokens_model : model);
    smp_options options = options_of(path, c);
    smp_graph *graph = NULL;
    sequential *alone = NULL, *whole = NULL;
    bool exact = c.ddp == 1 && !is_real(model);
    must(smp_graph_read(path, &graph));
    model_path(model);
    smp *job = open_job(&options);
    assert_int_equal(smp_step_samples(job) * c.ddp, FULL);
    must(sequential_create(graph, 1, FULL, &options, &alone));
    must(sequential_create(graph, c.batch, c.microbatches * c.ddp, &options, &whole));
    walk_weights(job, alone, true);
    walk_weights(job, whole, true);
    for (int step = 0; step < STEPS; step++) {
        static values v;
        smp_step_result result;
        double expected, same;
        make_batch(&v, model, step);
        double before = job_step(job, &v, step, false, &result);
        double loss = job_step(job, &v, step, true, &result);
        must(sequential_step_of(alone, (int)given[step], (const void *const[]){v.all[0], v.all[1]},
                                &expected));
        if (!(fabs(loss - expected) <= 2e-6 * expected) || before != loss)
            fail_msg("%d x %d samples, ddp %d, %d given: loss %.9g, evaluated %.9g, expected %.9g",
                     c.microbatches, c.batch, c.ddp, (int)given[step], loss, before, expected);
        assert_int_equal(result.loss_rows, count_rows(model, &v, step));
        assert_int_equal(result.skipped, 0);
        if (!exact)
            continue;
        must(sequential_step(whole, (const void *const[]){v.masked[0], v.masked[1]}, &same));
        assert_true(loss == same);
    }
    assert_true(walk_weights(job, alone, false) < 4e-6);
    assert_true(!exact || walk_weights(job, whole, false) == 0.0);
    uint64_t hash = weights_hash(job);
    sequential_destroy(alone);
    sequential_destroy(whole);
    smp_finalize(job);
    smp_graph_destroy(graph);
    return hash;
}

static void test_short_batches_of_tokens(void **state)
{
    static const cut cuts[] = {
        {4, 1, 4, 2, 1}, {4, 1, 2, 4, 1}, {2, 2, 2, 2, 1}, {1, 4, 1, 2, 1}, {2, 2, 1, 4, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        check(tokens_model, cuts[i]);
}

static void test_short_batches_of_targets_handed_on(void **state)
{
    static const cut cuts[] = {{4, 1, 4, 2, 1}, {2, 2, 2, 2, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        check(handed_model, cuts[i]);
}

/* Every split in the same micro-batches has the same bits. */
static void test_short_batches_of_reals(void **state)
{
    static const cut cuts[] = {{1, 4, 2, 1, 1}, {2, 2, 1, 4, 1}, {4, 1, 1, 8, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        check(reals_model, cuts[i]);
    assert_true(check(reals_model, (cut){2, 2, 2, 2, 1}) ==
                check(reals_model, (cut){2, 2, 2, 2, 2}));
    assert_true(check(reals_model, (cut){4, 1, 4, 2, 1}) !=
                check(reals_model, (cut){4, 1, 2, 4, 1}));
}

static void test_short_batches_counted(void **state)
{
    const cut c = {4, 1, 4, 2, 1};
    static values v;
    (void)state;
    smp_options options = options_of(model_path(tokens_model), c);
    smp *job = open_job(&options);
    make_batch(&v, tokens_model, 0);
    const void *const inputs[INPUTS] = {v.all[0], v.all[1]};
    smp_step_result result;
    static const int64_t wrong[] = {INT64_MIN, -1, 0, FULL + 1, INT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(smp_step_short(job, inputs, wrong[i], &result), SMP_ERR_INPUT);
        assert_int_equal(smp_evaluate_short(job, inputs, wrong[i], &result), SMP_ERR_INPUT);
    }
    assert_non_null(strstr(smp_last_error(), "expected 1 to 8"));
    assert_int_equal(smp_step_short(NULL, inputs, 1, &result), SMP_ERR_INPUT);
    assert_int_equal(smp_step(NULL, inputs, &result), SMP_ERR_INPUT);
    assert_int_equal(smp_evaluate(NULL, inputs, &result), SMP_ERR_INPUT);
    must(smp_step_short(job, inputs, 3, &result));
    must(smp_step(job, inputs, &result));
    assert_int_equal(smp__job_position(job), 3 + FULL); /* the position in the data */
    smp_finalize(job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_batches_of_tokens),
        cmocka_unit_test(test_short_batches_of_targets_handed_on),
        cmocka_unit_test(test_short_batches_of_reals),
        cmocka_unit_test(test_short_batches_counted),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
