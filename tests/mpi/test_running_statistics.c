/* Statistics of micro-batches that a step keeps as PyTorch does, and only a step: their values,
 * also of short batches and replicas, against plain sums; the same bits for every split and after a
 * resumed job; what evaluation and skipped steps make of them. On four ranks. */
#include "tests/mpi/ranks.h"

enum { FULL = 16, C = 4, SPACE = 6, GOAL = 3, STEPS = 5 };

static const double momentum = 0.25;

/* Of the first statistics every value is known, as they are those of the input. The second reader
 * of y makes a tensor that jumps over stages. */
#define MODEL(mode)                                                                                \
    "smp: 1\nname: statistics\nmode: " mode "\n"                                                   \
    "inputs:\n"                                                                                    \
    "  x: {dtype: float32, shape: [4, 2, 3]}\n"                                                    \
    "  goal: {dtype: float32, shape: [3]}\n"                                                       \
    "ops:\n"                                                                                       \
    "  - {op: batchnorm, name: first, in: x, out: y, momentum: 0.25}\n"                            \
    "  - {op: flatten, name: flat, in: y, out: y}\n"                                               \
    "  - {op: linear, name: a, in: y, out: z, features: 24}\n"                                     \
    "  - {op: batchnorm, name: second, in: z, out: z}\n"                                           \
    "  - {op: gelu, name: b, in: z, out: z}\n"                                                     \
    "  - {op: add, name: c, in: [y, z], out: z}\n"                                                 \
    "  - {op: batchnorm, name: third, in: z, out: z}\n"                                            \
    "  - {op: linear, name: d, in: z, out: z, features: 3}\n"                                      \
    "  - {op: mse, name: loss, in: [z, goal], out: loss}\n"                                        \
    "loss: loss\n"

static const char model[] = MODEL("training"), forward_model[] = MODEL("inference");

static float x[FULL * C * SPACE], goal[FULL * GOAL];

static void make_batch(int step)
{
    for (int i = 0; i < FULL * C * SPACE; i++)
        x[i] = (float)(i / SPACE % C + 1) * (float)sin(1.3 * i + 0.7 * step) + (float)step;
    for (int i = 0; i < FULL * GOAL; i++)
        goal[i] = (float)cos(0.9 * i + step);
}

static smp_options start_options(cut c)
{
    smp_options options = options_of(model_path(model), c);
    options.optimizer.lr = 0.02f;
    options.optimizer.clip_norm = 0.1f;
    options.optimizer.weight_decay = 0.1f;
    return options;
}

static smp *start(cut c)
{
    smp_options options = start_options(c);
    return open_job(&options);
}

static double run(smp *job, int64_t samples, bool training, smp_step_result *result)
{
    const int64_t first = smp_samples_before(job);
    const void *inputs[] = {x + first * C * SPACE, goal + first * GOAL};
    must(training ? smp_step_short(job, inputs, samples, result)
                  : smp_evaluate_short(job, inputs, samples, result));
    return result->loss;
}

static void step(smp *job, int number, int64_t samples)
{
    smp_step_result result;
    make_batch(number);
    run(job, samples, true, &result);
    assert_int_equal(result.skipped, 0);
}

/* Mean and unbiased variance of a channel in samples begin .. end-1, after those before them. */
static void add_samples(int64_t begin, int64_t end, int channel, double *mean, double *variance)
{
    const double n = (double)((end - begin) * SPACE);
    double sum = 0, squares = 0;
    for (int64_t s = begin; s < end; s++)
        for (int i = 0; i < SPACE; i++)
            sum += (double)x[(s * C + channel) * SPACE + i] / n;
    for (int64_t s = begin; s < end; s++)
        for (int i = 0; i < SPACE; i++)
            squares += pow((double)x[(s * C + channel) * SPACE + i] - sum, 2);
    *mean = (1 - momentum) * *mean + momentum * sum;
    *variance = (1 - momentum) * *variance + momentum * squares / (n - 1);
}

/* One micro-batch after the other, of one replica after the other. */
static void expect_step(cut c, int64_t samples, double mean[C], double variance[C])
{
    for (int k = 0; k < C; k++) {
        for (int64_t begin = 0; begin < samples; begin += c.batch) {
            const int64_t end = begin + c.batch;
            add_samples(begin, end < samples ? end : samples, k, &mean[k], &variance[k]);
        }
    }
}

static void check_values(cut c)
{
    static const int64_t given[STEPS] = {FULL, 11, 1, 8, FULL};
    double mean[C] = {0}, variance[C] = {1, 1, 1, 1};
    smp *job = start(c);
    for (int k = 0; k < STEPS; k++) {
        float means[C], variances[C];
        make_batch(k);
        expect_step(c, given[k], mean, variance);
        step(job, k, given[k]);
        must(smp_weight_get(job, "first.running_mean", means, C));
        must(smp_weight_get(job, "first.running_var", variances, C));
        for (int i = 0; i < C; i++)
            if (!(fabs((double)means[i] - mean[i]) < 2e-6 * (1 + fabs(mean[i])) &&
                  fabs((double)variances[i] - variance[i]) < 2e-6 * (1 + variance[i])))
                fail_msg("ddp %d, %d x %d, step %d: %.9g and %.9g, expected %.9g and %.9g", c.ddp,
                         c.microbatches, c.batch, k + 1, (double)means[i], (double)variances[i],
                         mean[i], variance[i]);
        weights_hash(job);
    }
    smp_finalize(job);
}

static void test_running_values(void **state)
{
    static const cut cuts[] = {{4, 1, 4, 4, 1}, {4, 1, 8, 2, 2}, {2, 2, 2, 4, 2}, {1, 4, 2, 2, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        check_values(cuts[i]);
}

static void remove_checkpoint(int step_number)
{
    char file[160];
    snprintf(file, sizeof file, "%s/checkpoint-%010d.smp", ranks_folder, step_number);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        assert_int_equal(unlink(file), 0);
}

/* Saved by one split after two steps, gone on with by others: the weights and statistics of a job
 * that ran through, of which the sequential trainer has the bits. */
static void test_running_statistics_resume(void **state)
{
    static const cut cuts[] = {{4, 1, 4, 4, 1}, {4, 1, 4, 4, 2}};
    smp_graph *graph = NULL;
    sequential *reference = NULL;
    uint64_t hash[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        smp_options options = start_options(cuts[i]);
        smp *job = open_job(&options);
        if (i == 0) {
            must(smp_graph_read(options.model, &graph));
            must(sequential_create(graph, 4, 4, &options, &reference));
            walk_weights(job, reference, true);
        } else {
            must(smp_load(job, ranks_folder));
        }
        for (int k = 2 * i; k < 4; k++) {
            const void *const all[] = {x, goal};
            double loss;
            step(job, k, FULL);
            if (i == 0)
                must(sequential_step(reference, all, &loss));
            if (i == 0 && k == 1)
                must(smp_save(job, ranks_folder));
        }
        assert_true(walk_weights(job, reference, false) == 0.0);
        hash[i] = weights_hash(job);
        smp_finalize(job);
    }
    assert_true(hash[0] == hash[1]);
    sequential_destroy(reference);
    smp_graph_destroy(graph);
    remove_checkpoint(2);
}

/* Evaluation changes nothing, and a sample stands for itself, whatever the micro-batches are. A
 * model in mode inference takes the statistics from the checkpoint. */
static void test_running_statistics_evaluate(void **state)
{
    static const cut cuts[] = {{4, 1, 4, 4, 1}, {4, 1, 16, 1, 2}, {2, 2, 1, 8, 1}, {4, 1, 8, 2, 1}};
    double losses[4], parts[4];
    smp_step_result result;
    (void)state;
    smp *job = start(cuts[0]);
    for (int k = 0; k < 3; k++)
        step(job, k, FULL);
    must(smp_save(job, ranks_folder));
    const uint64_t hash = weights_hash(job);
    for (int i = 0; i < 4; i++) {
        smp_options options = start_options(cuts[i]);
        if (i == 3) {
            options.model = model_path(forward_model);
            options.planning.schedule = "forward";
        }
        if (i > 0) {
            job = open_job(&options);
            must(smp_load(job, ranks_folder));
        }
        losses[i] = run(job, FULL, i == 3, &result);
        parts[i] = run(job, 5, false, &result);
        assert_true(weights_hash(job) == hash);
        assert_true(fabs(losses[i] - losses[0]) < 1e-6 * losses[0]);
        assert_true(fabs(parts[i] - parts[0]) < 1e-6 * parts[0]);
        smp_finalize(job);
    }
    remove_checkpoint(3);
}

/* A variance that is not finite while loss and gradients are: nothing changes, and the norm, which
 * a statistic is no part of, says so. */
static void test_running_statistics_skip(void **state)
{
    (void)state;
    for (int ddp = 1; ddp <= 2; ddp++) {
        smp_step_result result;
        smp *job = start((cut){4 / ddp, ddp, 4 / ddp, 4, 1});
        step(job, 0, FULL);
        const uint64_t hash = weights_hash(job);
        make_batch(1);
        x[FULL * C * SPACE - 1] = 1e25f;
        run(job, FULL, true, &result);
        assert_true(isfinite(result.loss) && !isfinite(result.grad_norm));
        assert_int_equal(result.skipped, 1);
        assert_true(weights_hash(job) == hash);
        make_batch(1);
        run(job, FULL, true, &result);
        assert_int_equal(result.skipped, 1);
        assert_true(weights_hash(job) != hash);
        smp_finalize(job);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_running_values),
        cmocka_unit_test(test_running_statistics_resume),
        cmocka_unit_test(test_running_statistics_evaluate),
        cmocka_unit_test(test_running_statistics_skip),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
