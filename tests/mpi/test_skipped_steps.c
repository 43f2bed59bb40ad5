/* Steps whose loss or gradient is not finite: nothing changes on any rank, they are counted, and
 * too many in a row end the job. On four ranks: one stage each, or two replicas. */
#include "tests/mpi/ranks.h"

enum { SAMPLES = 4, FEATURES = 4, WEIGHT = FEATURES * FEATURES };

static const char model[] = "smp: 1\n"
                            "name: skipped\n"
                            "inputs:\n"
                            "  x: {dtype: float32, shape: [4]}\n"
                            "  wanted: {dtype: float32, shape: [4]}\n"
                            "ops:\n"
                            "  - {op: linear, name: a, in: x, out: h, features: 4, bias: false}\n"
                            "  - {op: relu, name: act, in: h, out: h}\n"
                            "  - {op: linear, name: b, in: h, out: y, features: 4, bias: false}\n"
                            "  - {op: mse, name: loss, in: [y, wanted], out: loss}\n"
                            "loss: loss\n";

static float x[SAMPLES * FEATURES], wanted[SAMPLES * FEATURES];

static smp *start(int ddp, float clip_norm, int max_skipped)
{
    cut c = {4 / ddp, ddp, SAMPLES / ddp, 1, 1};
    smp_options options = options_of(model_path(model), c);
    assert_int_equal(options.runtime.max_skipped, 10);
    options.optimizer.lr = 0.01f;
    options.optimizer.clip_norm = clip_norm;
    options.runtime.max_skipped = max_skipped;
    return open_job(&options);
}

static void make_batch(int number)
{
    for (int i = 0; i < SAMPLES * FEATURES; i++) {
        x[i] = (float)((7 * i + number) % 11) / 5.0f - 1.0f;
        wanted[i] = (float)((5 * i + 3 * number) % 13) / 6.0f - 1.0f;
    }
}

static smp_status train_step(smp *job, smp_step_result *result)
{
    int64_t first = smp_samples_before(job) * FEATURES;
    const void *inputs[] = {x + first, wanted + first};
    return smp_step(job, inputs, result);
}

static void get_weights(smp *job, float values[2 * WEIGHT])
{
    must(smp_weight_get(job, "a.weight", values, WEIGHT));
    must(smp_weight_get(job, "b.weight", values + WEIGHT, WEIGHT));
}

/* A bad step leaves the weights, and the momentum: the next step is that of a job without it. */
static void check_bad_step(int ddp, float clip_norm)
{
    float before[2 * WEIGHT], after[2 * WEIGHT], expected[2 * WEIGHT];
    smp_step_result result, other;
    smp *job = start(ddp, clip_norm, 3), *good = start(ddp, clip_norm, 3);
    make_batch(1);
    must(train_step(job, &result));
    must(train_step(good, &other));
    assert_int_equal(result.skipped, 0);
    assert_true(isfinite(result.grad_norm) && result.grad_norm > 0.0);
    get_weights(job, before);
    x[SAMPLES * FEATURES - 1] =
        NAN; /* of the last sample: in another replica's part if there is one */
    must(train_step(job, &result));
    assert_int_equal(result.step, 2);
    assert_int_equal(result.skipped, 1);
    assert_false(isfinite(result.loss));
    get_weights(job, after);
    assert_memory_equal(before, after, sizeof before);
    make_batch(2);
    must(train_step(job, &result));
    must(train_step(good, &other));
    assert_int_equal(result.skipped, 1);
    assert_true(result.loss == other.loss && result.grad_norm == other.grad_norm);
    get_weights(job, after);
    get_weights(good, expected);
    assert_memory_equal(expected, after, sizeof after);
    smp_finalize(job);
    smp_finalize(good);
}

static void test_skipped_changes_nothing(void **state)
{
    (void)state;
    for (int ddp = 1; ddp <= 4; ddp *= 2)
        for (int clip = 0; clip < 2; clip++)
            check_bad_step(ddp, (float)clip);
}

/* The loss is finite, the gradient of the first stage's weight is not. */
static void test_skipped_infinite_gradient(void **state)
{
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        float before[2 * WEIGHT], after[2 * WEIGHT];
        smp_step_result result;
        smp *job = start(1, (float)clip, 3);
        make_batch(1);
        for (int i = 0; i < WEIGHT; i++)
            before[i] = 1e-33f;
        must(smp_weight_set(job, "a.weight", before, WEIGHT));
        x[0] = 3e38f;
        get_weights(job, before);
        must(train_step(job, &result));
        assert_true(isfinite(result.loss));
        assert_false(isfinite(result.grad_norm));
        assert_int_equal(result.skipped, 1);
        get_weights(job, after);
        assert_memory_equal(before, after, sizeof before);
        smp_finalize(job);
    }
}

/* The other way round, in one replica only. */
static void test_skipped_infinite_loss(void **state)
{
    (void)state;
    float before[2 * WEIGHT], after[2 * WEIGHT];
    smp_step_result result;
    smp *job = start(2, 1.0f, 3);
    make_batch(1);
    wanted[0] = 1e25f; /* its square is no float */
    get_weights(job, before);
    must(train_step(job, &result));
    assert_false(isfinite(result.loss));
    assert_true(isfinite(result.grad_norm));
    assert_int_equal(result.skipped, 1);
    get_weights(job, after);
    assert_memory_equal(before, after, sizeof before);
    smp_finalize(job);
}

static void test_skipped_in_a_row(void **state)
{
    (void)state;
    smp_step_result result;
    smp *job = start(2, 1.0f, 3);
    for (int k = 1; k <= 3; k++) { /* bad, bad, good: the count of a row starts again */
        make_batch(k);
        wanted[0] = k < 3 ? INFINITY : wanted[0];
        must(train_step(job, &result));
    }
    assert_int_equal(result.skipped, 2);
    wanted[0] = INFINITY;
    must(train_step(job, &result));
    must(train_step(job, &result));
    assert_int_equal(result.skipped, 4);
    assert_int_equal(train_step(job, &result), SMP_ERR_FAILED);
    assert_non_null(
        strstr(smp_last_error(), "3 steps in a row changed nothing, the last one step 6"));
    assert_int_equal(train_step(job, &result), SMP_ERR_FAILED);
    smp_finalize(job);
    job = start(2, 1.0f, 0); /* as long as it takes */
    for (int k = 1; k <= 12; k++)
        must(train_step(job, &result));
    assert_int_equal(result.skipped, 12);
    smp_finalize(job);
}

/* Weights that are not finite are not saved, whichever rank has them. */
static void test_skipped_nothing_to_save(void **state)
{
    (void)state;
    static const char *const names[] = {"a.weight", "b.weight"};
    char directory[128], file[256];
    snprintf(directory, sizeof(directory), "%s/saved", ranks_folder);
    snprintf(file, sizeof(file), "%s/checkpoint-0000000000.smp", directory);
    for (int i = 0; i < 2; i++) {
        float values[WEIGHT] = {0.0f};
        smp *job = start(1, 1.0f, 3);
        must(smp_save(job, directory));
        values[WEIGHT - 1] = i == 0 ? INFINITY : NAN;
        must(smp_weight_set(job, names[i], values, WEIGHT));
        assert_int_equal(smp_save(job, directory), SMP_ERR_FAILED);
        assert_non_null(strstr(smp_last_error(), names[i]));
        must(smp_load(job, directory)); /* the good one is there */
        must(smp_save(job, directory));
        smp_finalize(job);
    }
    if (world_rank == 0) {
        assert_int_equal(unlink(file), 0);
        assert_int_equal(rmdir(directory), 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skipped_changes_nothing),
        cmocka_unit_test(test_skipped_infinite_gradient),
        cmocka_unit_test(test_skipped_infinite_loss),
        cmocka_unit_test(test_skipped_in_a_row),
        cmocka_unit_test(test_skipped_nothing_to_save),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
