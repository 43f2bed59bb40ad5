/* The training loop of smp-run, on however many ranks the test is started with: which samples its
 * steps take, when it evaluates and prints, what resuming and the hash of the weights are worth. */
#include <math.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/state/handle.h"
#include "exec/state/weights.h"
#include "tools/run/training_loop.h"
#include "tests/exec/open_ranks.h"

/* 30 samples are batches of 8, 8, 8 and 6. */
enum { T = 8, GLOBAL_BATCH = 8, SAMPLES = 30, BATCHES = 4, LAST = 6, FEW = 11, MOST = 32 };

static const char model_text[] =
    "smp: 1\n"
    "name: small\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [8]}\n"
    "  targets: {dtype: int32, shape: [8]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 128, features: 16, init_std: 1}\n"
    "  - {op: linear, name: a, in: x, out: x, features: 16}\n"
    "  - {op: gelu, name: b, in: x, out: x}\n"
    "  - {op: linear, name: head, in: x, out: y, features: 128}\n"
    "  - {op: cross_entropy, name: loss, in: [y, targets], out: loss}\n"
    "loss: loss\n";

static char model[80], text[80], even[80], few[80], single[80], saved[80];

/* What rank 0 printed, as text or JSON; every rank gets it, so that all find the same. */
typedef struct printed {
    int steps, evaluations, hashes;
    double measured_us[MOST + 1], predicted_us, median_us, error; /* as text */
    int of_median;                                                /* steps; 0: no summary */
    int others;                                                   /* lines of the other ranks */
    double loss[MOST + 1];                                        /* by step */
    long long evaluated[MOST];                                    /* steps */
    double eval_loss[MOST];
    unsigned long long weights[MOST]; /* by replica */
    smp_status status;
    bool job_broken;
} printed;

/* "1.63 ms" at the start of a text, in microseconds. */
static double us_of(const char *text)
{
    char unit[4] = "";
    double value = 0.0;
    assert_int_equal(sscanf(text, "%lf %3[a-z]", &value, unit), 2);
    return value * (strcmp(unit, "s") == 0 ? 1e6 : strcmp(unit, "ms") == 0 ? 1e3 : 1.0);
}

/* step 3  loss 4.85  1200 tokens/s  1.63 ms  predicted 1.7 ms (x1.04) */
static void read_times(const char *line, int step, printed *p)
{
    const char *measured = strstr(line, " tokens/s  "), *predicted = strstr(line, "  predicted ");
    double ratio;
    if (line[0] == '{')
        return;
    assert_true(measured && predicted);
    p->measured_us[step] = us_of(measured + strlen(" tokens/s  "));
    p->predicted_us = us_of(predicted + strlen("  predicted "));
    assert_int_equal(sscanf(strchr(predicted, '('), "(x%lf)", &ratio), 1);
    assert_true(fabs(ratio - p->predicted_us / p->measured_us[step]) <= 0.01 + 0.01 * ratio);
}

static void read_line(const char *line, printed *p)
{
    long long step;
    int replica;
    double loss;
    unsigned long long hash;
    p->others += world_rank > 0;
    if (strncmp(line, "median step ", 12) == 0) {
        p->median_us = us_of(line + 12);
        assert_int_equal(
            sscanf(strstr(line, ", error "), ", error %lf %% (%d step", &p->error, &p->of_median),
            2);
    }
    if ((sscanf(line, "{\"step\": %lld, \"loss\": %lf,", &step, &loss) == 2 ||
         sscanf(line, "step %lld  loss %lf ", &step, &loss) == 2) &&
        step <= MOST) {
        p->loss[step] = loss;
        read_times(line, (int)step, p);
        p->steps++;
    } else if (sscanf(line, "{\"step\": %lld, \"eval_loss\": %lf}", &step, &loss) == 2 ||
               sscanf(line, "step %lld  evaluation loss %lf", &step, &loss) == 2) {
        p->evaluated[p->evaluations] = step;
        p->eval_loss[p->evaluations++] = loss;
    } else if ((sscanf(line, "{\"replica\": %d, \"weights\": \"%16llx\"}", &replica, &hash) == 2 ||
                sscanf(line, "replica %d weights %16llx", &replica, &hash) == 2) &&
               replica == p->hashes) {
        p->weights[p->hashes++] = hash;
    }
}

/* Runs the loop with its output in a file. Ends the program if that fails. */
static printed train(const smp_train_options *options)
{
    printed p = {.job_broken = true};
    char line[512];
    FILE *file = tmpfile();
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    if (!file || before < 0 || dup2(fileno(file), STDOUT_FILENO) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    p.status = smp__train(options, &p.job_broken, NULL);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    rewind(file);
    while (fgets(line, sizeof line, file))
        read_line(line, &p);
    fclose(file);
    int others = p.others;
    MPI_Reduce(&others, &p.others, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Bcast(&p, (int)sizeof p, MPI_BYTE, 0, MPI_COMM_WORLD);
    return p;
}

static printed train_well(const smp_train_options *options)
{
    printed p = train(options);
    if (p.status != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_false(p.job_broken);
    assert_int_equal(p.others, 0);
    return p;
}

/* Replicas or stages over all ranks; the global batch is the same. */
static smp_train_options options_of(const char *const *data, bool replicas, int64_t steps)
{
    smp_train_options o = {.job = smp_options_default(),
                           .data = data,
                           .n_data = 1,
                           .steps = steps,
                           .log_every = 1,
                           .data_seed = 1,
                           .shuffle = true,
                           .json = true,
                           .checksum = true};
    o.job.model = model;
    o.job.planning.ddp = replicas ? world_size : 1;
    o.job.planning.stages = replicas ? 1 : world_size;
    o.job.planning.chunks = 1;
    o.job.planning.microbatch_size = 2;
    o.job.planning.microbatches = GLOBAL_BATCH / 2 / o.job.planning.ddp;
    o.job.planning.schedule = "1f1b";
    o.job.runtime.timeout_s = 60;
    return o;
}

static void assert_near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-6 * fabs(expected)))
        fail_msg("got %.9g, expected %.9g", got, expected);
}

/* Of a pass over `few`, which begins with this step. */
static double mean_of_few(const printed *p, int step)
{
    return (GLOBAL_BATCH * p->loss[step] + (FEW - GLOBAL_BATCH) * p->loss[step + 1]) / FEW;
}

/* At a learning rate of 0 a step's loss is the mean over what it took, and an evaluation's that
 * over all of the set. */
static void test_training_loop_takes_every_sample(void **state)
{
    (void)state;
    const char *data[] = {text};
    for (int replicas = 0; replicas <= 1; replicas++) {
        smp_train_options o = options_of(data, replicas, 3 * BATCHES);
        o.job.optimizer.lr = 0;
        o.eval_data = data;
        o.n_eval_data = 1;
        printed p = train_well(&o);
        assert_int_equal(p.steps, 3 * BATCHES);
        assert_int_equal(p.evaluations, 1);
        for (int first = 1; first <= p.steps; first += BATCHES) {
            double sum = LAST * p.loss[first + BATCHES - 1];
            for (int step = first; step < first + BATCHES - 1; step++)
                sum += GLOBAL_BATCH * p.loss[step];
            assert_near(sum / SAMPLES, p.eval_loss[0]);
        }
        for (int step = 2; step <= p.steps; step++)
            assert_true(p.loss[step] != p.loss[step - 1]);
    }
}

static void test_training_loop_drops_the_last(void **state)
{
    (void)state;
    const char *data[] = {text};
    smp_train_options o = options_of(data, true, 3 * BATCHES);
    o.job.optimizer.lr = 0;
    printed all = train_well(&o);
    o.drop_last = true;
    printed full = train_well(&o);
    for (int step = 1; step <= 3 * (BATCHES - 1); step++)
        assert_true(full.loss[step] == all.loss[step + (step - 1) / (BATCHES - 1)]);
    data[0] = even; /* nothing to drop */
    full = train_well(&o);
    o.drop_last = false;
    all = train_well(&o);
    for (int step = 1; step <= 3 * BATCHES; step++)
        assert_true(full.loss[step] == all.loss[step]);
}

/* A pass whose last batch has fewer samples than there may be replicas. */
static void test_training_loop_of_few_samples(void **state)
{
    (void)state;
    const char *data[] = {few};
    smp_train_options o = options_of(data, true, 4);
    o.job.optimizer.lr = 0;
    o.eval_data = data;
    o.n_eval_data = 1;
    printed p = train_well(&o);
    assert_int_equal(p.steps, 4);
    for (int step = 1; step <= p.steps; step += 2)
        assert_near(mean_of_few(&p, step), p.eval_loss[0]);
}

/* A set that no step could take a global batch of is refused, whatever becomes of short ones; where
 * nothing is trained it may be of any size. */
static void test_training_loop_refuses_less_than_a_batch(void **state)
{
    (void)state;
    const char *data[] = {single};
    smp_train_options o = options_of(data, true, 3);
    for (int drop_last = 0; drop_last <= 1; drop_last++) {
        o.drop_last = drop_last;
        printed p = train(&o);
        assert_int_equal(p.status, SMP_ERR_INPUT);
        assert_int_equal(p.steps, 0);
        assert_false(p.job_broken);
        assert_non_null(strstr(smp_last_error(), "got 1 samples, expected 8 or more"));
    }
    o.epochs = 2;
    assert_int_equal(train(&o).status, SMP_ERR_INPUT);
    o.epochs = 0;
    o.steps = 0;
    assert_int_equal(train_well(&o).steps, 0);
}

static void forget_saved(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    for (int step = 0; step <= MOST && world_rank == 0; step++) {
        char path[128];
        snprintf(path, sizeof path, "%s/checkpoint-%010d.smp", saved, step);
        unlink(path);
    }
    if (world_rank == 0)
        rmdir(saved);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Before, right before, right behind a short batch, and in the next pass. */
static void test_training_loop_resumes_around_a_short_batch(void **state)
{
    (void)state;
    const char *data[] = {text};
    for (int replicas = 0; replicas <= 1; replicas++) {
        smp_train_options o = options_of(data, replicas, 2 * BATCHES);
        printed whole = train_well(&o);
        for (int stop = BATCHES - 2; stop <= BATCHES + 1; stop++) {
            o.checkpoint = saved;
            o.resume = false;
            o.steps = stop;
            train_well(&o);
            o.resume = true;
            o.steps = 2 * BATCHES;
            printed rest = train_well(&o);
            assert_int_equal(rest.steps, 2 * BATCHES - stop);
            for (int step = stop + 1; step <= 2 * BATCHES; step++)
                assert_true(rest.loss[step] == whole.loss[step]);
            assert_true(rest.weights[0] == whole.weights[0]);
            forget_saved();
        }
    }
}

static void test_training_loop_evaluates_when_due(void **state)
{
    (void)state;
    const char *data[] = {text}, *eval_data[] = {few};
    smp_train_options o = options_of(data, false, 5);
    o.checksum = false;
    assert_int_equal(train_well(&o).evaluations, 0);
    o.eval_data = eval_data;
    o.n_eval_data = 1;
    o.eval_every = 2;
    printed p = train_well(&o);
    assert_int_equal(p.hashes, 0);
    assert_int_equal(p.evaluations, 3);
    assert_true(p.evaluated[0] == 2 && p.evaluated[1] == 4 && p.evaluated[2] == 5);
    /* of the weights of its step, and of its own data */
    assert_true(p.eval_loss[0] != p.eval_loss[1] && p.eval_loss[1] != p.eval_loss[2]);
    o.job.optimizer.lr = 0;
    o.eval_every = 1;
    p = train_well(&o);
    assert_int_equal(p.evaluations, 5);
    assert_true(p.eval_loss[0] == p.eval_loss[4]);
    o = options_of(eval_data, false, 2);
    o.job.optimizer.lr = 0;
    const printed trained = train_well(&o);
    assert_near(p.eval_loss[0], mean_of_few(&trained, 1));
}

/* As text: the same numbers, of the first step, those that are due, and the last. */
static void test_training_loop_prints_when_due(void **state)
{
    (void)state;
    const char *data[] = {text};
    smp_train_options o = options_of(data, true, 7);
    o.eval_data = data;
    o.n_eval_data = 1;
    printed json = train_well(&o);
    assert_int_equal(json.steps, 7);
    assert_int_equal(json.of_median, 0);
    o.json = false;
    o.log_every = 3;
    printed p = train_well(&o);
    assert_int_equal(p.steps, 4);
    for (int step = 1; step <= 7; step++) {
        bool due = step == 1 || step == 3 || step == 6 || step == 7;
        assert_true(due ? fabs(p.loss[step] - json.loss[step]) < 1e-4 : p.loss[step] == 0);
    }
    assert_int_equal(p.evaluations, 1);
    assert_true(fabs(p.eval_loss[0] - json.eval_loss[0]) < 1e-4);
    assert_int_equal(p.hashes, world_size);
    assert_true(p.weights[0] == json.weights[0]);
}

/* Of all steps but the first, in which memory and libraries are touched for the first time. */
static void test_training_loop_sums_up(void **state)
{
    (void)state;
    static const int counted[] = {0, 1, 1, 2, 2, 3, 4, 5};
    const char *data[] = {text};
    for (int steps = 1; steps <= 7; steps++) {
        smp_train_options o = options_of(data, true, steps);
        double least = INFINITY, most = 0.0;
        o.json = false;
        printed p = train_well(&o);
        for (int step = steps > 1 ? steps / 2 < 2 ? 2 : 3 : 1; step <= steps; step++) {
            least = fmin(least, p.measured_us[step]);
            most = fmax(most, p.measured_us[step]);
        }
        assert_int_equal(p.of_median, counted[steps]);
        assert_true(p.median_us >= 0.99 * least && p.median_us <= 1.01 * most);
        double error = 100.0 * (p.predicted_us / p.median_us - 1.0);
        assert_true(p.predicted_us > 0.0 && fabs(p.error - error) <= 1.0 + 0.01 * (100.0 + error));
    }
}

static bool has_saved(int step)
{
    char path[128];
    snprintf(path, sizeof path, "%s/checkpoint-%010d.smp", saved, step);
    return access(path, F_OK) == 0;
}

static void test_training_loop_saves_when_due(void **state)
{
    (void)state;
    const char *data[] = {text};
    smp_train_options o = options_of(data, true, 5);
    o.checkpoint = saved;
    o.save_every = 3;
    train_well(&o);
    assert_true(has_saved(3) && !has_saved(4) && has_saved(5));
    forget_saved();
}

/* In a folder that is there; else refused, by its name, before the first step. */
static void test_training_loop_traces_into_a_folder(void **state)
{
    (void)state;
    const char *data[] = {text};
    char trace[96];
    smp_train_options o = options_of(data, true, 1);
    o.job.runtime.record_trace = 1;
    o.trace = trace;
    snprintf(trace, sizeof trace, "%s/trace.json", ranks_folder);
    assert_int_equal(train_well(&o).steps, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        assert_int_equal(unlink(trace), 0);
    snprintf(trace, sizeof trace, "%s/none/trace.json", ranks_folder);
    printed p = train(&o);
    assert_int_equal(p.status, SMP_ERR_INPUT);
    assert_int_equal(p.steps, 0);
    assert_false(p.job_broken);
    assert_non_null(strstr(smp_last_error(), "none/trace.json: cannot write the trace"));
}

static void test_training_loop_checksum(void **state)
{
    (void)state;
    const char *data[] = {text};
    smp_train_options o = options_of(data, true, 2);
    printed one = train_well(&o), again = train_well(&o);
    o.job.optimizer.lr *= 1.001f;
    printed other = train_well(&o);
    assert_int_equal(one.hashes, world_size);
    assert_true(one.weights[0] != 0 && other.weights[0] != one.weights[0]);
    for (int replica = 0; replica < world_size; replica++) {
        assert_true(one.weights[replica] == one.weights[0]);
        assert_true(again.weights[replica] == one.weights[0]);
        assert_true(other.weights[replica] == other.weights[0]);
    }
}

/* One bit of any weight of any stage makes another hash. */
static void test_training_loop_checksum_of_every_weight(void **state)
{
    (void)state;
    const char *data[] = {text};
    smp_train_options o = options_of(data, false, 1);
    smp *job = NULL;
    uint64_t before = 0, changed = 0, after = 0;
    assert_int_equal(smp_init(&job, &o.job), SMP_OK);
    assert_int_equal(smp_weights_hash(job, &before), SMP_OK);
    for (int i = 0; i < smp_weight_count(job); i++) {
        const char *name = smp_weight_name(job, i);
        int64_t n = smp_weight_elements(job, i);
        float *value = malloc((size_t)n * sizeof *value);
        assert_non_null(value);
        assert_int_equal(smp_weight_get(job, name, value, n), SMP_OK);
        float last = value[n - 1];
        value[n - 1] = nextafterf(last, 2.0f);
        assert_int_equal(smp_weight_set(job, name, value, n), SMP_OK);
        assert_int_equal(smp_weights_hash(job, &changed), SMP_OK);
        value[n - 1] = last;
        assert_int_equal(smp_weight_set(job, name, value, n), SMP_OK);
        assert_int_equal(smp_weights_hash(job, &after), SMP_OK);
        assert_true(changed != before && after == before);
        free(value);
    }
    smp_finalize(job);
}

/* Where all ranks end alike nobody has to end the others. */
static void test_training_loop_failures_all_ranks_know(void **state)
{
    (void)state;
    const char *data[] = {text}, *absent[] = {"/absent/text.txt"};
    smp_train_options o = options_of(data, false, 4);
    o.job.model = "/absent/model.yaml";
    printed p = train(&o);
    assert_int_equal(p.status, SMP_ERR_INPUT);
    assert_false(p.job_broken);
    o = options_of(absent, false, 4);
    p = train(&o);
    assert_int_equal(p.status, SMP_ERR_INPUT);
    assert_false(p.job_broken);
    o = options_of(data, false, 20);
    o.job.optimizer.lr = 1e6f;
    o.job.optimizer.weight_decay = 1000;
    o.job.runtime.max_skipped = 2;
    p = train(&o);
    assert_int_equal(p.status, SMP_ERR_FAILED);
    assert_false(p.job_broken);
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

static void make_files(void)
{
    char bytes[SAMPLES * T + 1];
    snprintf(model, sizeof model, "%s/model", ranks_folder);
    snprintf(text, sizeof text, "%s/text", ranks_folder);
    snprintf(even, sizeof even, "%s/even", ranks_folder);
    snprintf(few, sizeof few, "%s/few", ranks_folder);
    snprintf(single, sizeof single, "%s/single", ranks_folder);
    snprintf(saved, sizeof saved, "%s/saved", ranks_folder);
    for (int i = 0; i < SAMPLES * T + 1; i++)
        bytes[i] = (char)(i * i * 31 % 127);
    if (world_rank == 0) {
        write_file(model, model_text, sizeof model_text - 1);
        write_file(text, bytes, sizeof bytes);
        write_file(even, bytes, (BATCHES - 1) * GLOBAL_BATCH * T + 1);
        write_file(few, bytes + 5, FEW * T + 1);
        write_file(single, bytes + 9, T + 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    open_ranks(&argc, &argv);
    make_files();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_loop_takes_every_sample),
        cmocka_unit_test(test_training_loop_drops_the_last),
        cmocka_unit_test(test_training_loop_of_few_samples),
        cmocka_unit_test(test_training_loop_refuses_less_than_a_batch),
        cmocka_unit_test(test_training_loop_resumes_around_a_short_batch),
        cmocka_unit_test(test_training_loop_evaluates_when_due),
        cmocka_unit_test(test_training_loop_prints_when_due),
        cmocka_unit_test(test_training_loop_sums_up),
        cmocka_unit_test(test_training_loop_saves_when_due),
        cmocka_unit_test(test_training_loop_traces_into_a_folder),
        cmocka_unit_test(test_training_loop_checksum),
        cmocka_unit_test(test_training_loop_checksum_of_every_weight),
        cmocka_unit_test(test_training_loop_failures_all_ranks_know),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (world_rank == 0) {
        unlink(model);
        unlink(text);
        unlink(even);
        unlink(few);
        unlink(single);
    }
    return close_ranks(failed);
}
