/* Checkpoints as files: what was saved last is what is loaded, and whatever is wrong with a file is
 * found: a byte anywhere, a length, a name, a version. One rank. */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/state/handle.h"

enum { FEATURES = 3, SAMPLES = 2, HEADER = 4096 };

static char folder[64], model_path[128], saved[128];

static const char model_text[] = "smp: 1\n"
                                 "name: tiny\n"
                                 "inputs:\n"
                                 "  x: {dtype: float32, shape: [3]}\n"
                                 "  y: {dtype: int32, shape: []}\n"
                                 "ops:\n"
                                 "  - {op: linear, name: fc, in: x, out: z, features: 4}\n"
                                 "  - {op: cross_entropy, name: ce, in: [z, y], out: loss}\n"
                                 "loss: loss\n";

static void must(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

static const char *file_of(int64_t step)
{
    static char path[4][192];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/checkpoint-%010" PRId64 ".smp", saved, step);
    return path[turn];
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static smp *open_model(const char *path, const char *optimizer)
{
    smp *job = NULL;
    smp_options options = smp_options_default();
    options.model = path;
    options.optimizer = optimizer;
    options.lr = 0.1f;
    options.microbatches = 1;
    options.microbatch_size = SAMPLES;
    must(smp_init(&job, &options));
    return job;
}

static smp *open_job(const char *optimizer)
{
    return open_model(model_path, optimizer);
}

/* The same model in mode inference. */
static smp *open_inference(const char *optimizer)
{
    char path[128], text[512];
    snprintf(path, sizeof path, "%s/inference.yaml", folder);
    snprintf(text, sizeof text, "smp: 1\nmode: inference\n%s", strchr(model_text, '\n') + 1);
    write_text(path, text);
    smp *job = open_model(path, optimizer);
    assert_int_equal(unlink(path), 0);
    return job;
}

/* The loss before the step: it tells one state from another. */
static double step(smp *job)
{
    static const float x[SAMPLES * FEATURES] = {1, 2, 3, -1, 0, 2};
    static const int32_t y[SAMPLES] = {1, 3};
    const void *inputs[2] = {x, y};
    smp_step_result result;
    must(smp_step(job, inputs, &result));
    return result.loss;
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder))
        return -1;
    snprintf(model_path, sizeof model_path, "%s/tiny.yaml", folder);
    snprintf(saved, sizeof saved, "%s/saved", folder);
    write_text(model_path, model_text);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int64_t s = 0; s < 100; s++)
        unlink(file_of(s));
    rmdir(saved);
    unlink(model_path);
    return rmdir(folder);
}

static void flip(const char *path, int64_t at)
{
    int fd = open(path, O_RDWR);
    char byte = 0;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

/* Saves after the steps first .. last, each; the loss of the step after it in losses[step]. */
static smp *save_steps(int first, int last, double *losses)
{
    smp *job = open_job("adamw");
    for (int s = 1; s <= last; s++) {
        double loss = step(job);
        losses[s - 1] = loss;
        if (s >= first)
            must(smp_save(job, saved));
    }
    losses[last] = step(job);
    return job;
}

static void expect_refused(smp *job, const char *part)
{
    assert_int_equal(smp_load(job, saved), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), part))
        fail_msg("'%s' is not in '%s'", part, smp_last_error());
}

/* A new run saves into a directory that holds higher steps of an older one. */
static void test_checkpoint_saved_last_is_loaded(void **state)
{
    (void)state;
    double losses[7], again[4];
    smp_finalize(save_steps(5, 6, losses));
    smp *job = save_steps(1, 3, again);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 3);
    assert_true(step(job) == again[3]);
    /* The two saved last are kept: the older run is gone. */
    assert_int_equal(access(file_of(2), F_OK), 0);
    assert_int_equal(access(file_of(3), F_OK), 0);
    for (int64_t s = 0; s < 10; s++)
        assert_int_equal(access(file_of(s), F_OK) == 0, s == 2 || s == 3);
    smp_finalize(job);
}

/* A state loaded from before is saved again at the same step: that is the last one. */
static void test_checkpoint_saved_again(void **state)
{
    (void)state;
    double losses[4];
    smp *job = save_steps(1, 3, losses);
    char aside[192];
    snprintf(aside, sizeof aside, "%s/aside", folder);
    assert_int_equal(rename(file_of(3), aside), 0);
    must(smp_load(job, saved));
    assert_int_equal(rename(aside, file_of(3)), 0);
    must(smp_save(job, saved));
    must(smp_load(job, saved));
    assert_int_equal(job->step, 2);
    assert_true(step(job) == losses[2]);
    smp_finalize(job);
}

static void test_checkpoint_step_zero(void **state)
{
    (void)state;
    smp *job = open_job("adamw");
    must(smp_save(job, saved));
    const double first = step(job);
    step(job);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 0);
    assert_true(step(job) == first);
    smp_finalize(job);
}

/* One bit anywhere in the last checkpoint: it is passed over, and the note names it. */
static void test_checkpoint_any_bit(void **state)
{
    (void)state;
    double losses[4];
    smp *job = save_steps(2, 3, losses);
    struct stat info;
    assert_int_equal(stat(file_of(3), &info), 0);
    for (int64_t at = 0; at < info.st_size; at += at < 256 || at >= HEADER - 16 ? 1 : 61) {
        flip(file_of(3), at);
        must(smp_load(job, saved));
        if (job->step != 2 || !strstr(smp_load_note(job), "0000000003.smp") ||
            !strstr(smp_load_note(job), "damaged; took the one before, ") ||
            !strstr(smp_load_note(job), "0000000002.smp"))
            fail_msg("byte %lld: step %lld, '%s'", (long long)at, (long long)job->step,
                     smp_load_note(job));
        flip(file_of(3), at);
    }
    assert_true(step(job) == losses[2]);
    must(smp_load(job, saved));
    assert_string_equal(smp_load_note(job), "");
    assert_int_equal(job->samples, 3 * SAMPLES);
    assert_true(step(job) == losses[3]);
    assert_int_equal(job->samples, 4 * SAMPLES);
    smp_finalize(job);
}

/* Training goes on from the one before, and saves over the damaged one. */
static void test_checkpoint_goes_on(void **state)
{
    (void)state;
    double losses[4];
    smp *job = save_steps(2, 3, losses);
    flip(file_of(3), 40);
    must(smp_load(job, saved));
    assert_true(step(job) == losses[2]);
    must(smp_save(job, saved));
    must(smp_load(job, saved));
    assert_string_equal(smp_load_note(job), "");
    assert_int_equal(job->step, 3);
    assert_true(step(job) == losses[3]);
    smp_finalize(job);
}

/* No whole one is left: an error that names both; what was not touched can go on. */
static void test_checkpoint_all_damaged(void **state)
{
    (void)state;
    double losses[4];
    smp *job = save_steps(2, 3, losses);
    flip(file_of(2), 10);
    assert_int_equal(truncate(file_of(3), HEADER + 8), 0);
    expect_refused(job, "0000000003.smp: has 4104 bytes");
    expect_refused(job, "0000000002.smp: the header is damaged");
    step(job);
    assert_int_equal(truncate(file_of(3), 7), 0);
    expect_refused(job, "0000000003.smp: the header is damaged");
    smp_finalize(job);
}

static void test_checkpoint_wrong_name(void **state)
{
    (void)state;
    double losses[4];
    smp *job = save_steps(2, 3, losses);
    assert_int_equal(rename(file_of(3), file_of(7)), 0);
    expect_refused(job, "0000000007.smp: holds step 3: it has another checkpoint's name");
    step(job); /* nothing was touched */
    smp_finalize(job);
}

static void test_checkpoint_wrong_optimizer(void **state)
{
    (void)state;
    double losses[2];
    smp_finalize(save_steps(1, 1, losses));
    smp *job = open_job("sgd");
    expect_refused(job, "has the state of optimizer adamw, not of sgd");
    smp_finalize(job);
}

/* A model in mode inference takes the weights of a training checkpoint, whatever its optimizer: the
 * loss is that of the step that would have come next. The states are checked nevertheless. */
static void test_checkpoint_inference(void **state)
{
    (void)state;
    double losses[4];
    smp_finalize(save_steps(2, 3, losses));
    smp *job = open_inference("sgd");
    assert_true(step(job) == losses[0]);
    must(smp_load(job, saved));
    assert_true(step(job) == losses[3]);
    assert_int_equal(job->step, 2);            /* it counts its own */
    flip(file_of(3), HEADER + 4 * 12 * 2 + 5); /* a state of fc.weight, 12 elements */
    must(smp_load(job, saved));
    assert_non_null(strstr(smp_load_note(job), "weight 'fc.weight' is damaged"));
    assert_true(step(job) == losses[2]);
    smp_finalize(job);
}

/* Writes `header`, whole, over that of a file. */
static void set_header(const char *path, const char *header, bool hashed)
{
    char bytes[HEADER] = "";
    snprintf(bytes, HEADER - 8, "%s", header);
    uint64_t hash = smp_hash(0, bytes, HEADER - 8);
    if (hashed)
        memcpy(bytes + HEADER - 8, &hash, 8);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, HEADER, 0), HEADER);
    assert_int_equal(close(fd), 0);
}

/* Files of version 1 are read, the highest step first, and count as older than any of today. */
static void test_checkpoint_version_1(void **state)
{
    (void)state;
    double losses[4];
    char header[512];
    smp *job = save_steps(2, 3, losses);
    for (int s = 2; s <= 3; s++) {
        snprintf(header, sizeof header,
                 "SMP checkpoint 1\nmodel tiny\nfingerprint %016" PRIx64 "\nstep %d\n"
                 "optimizer adamw\nstates 2\n",
                 job->graph->fingerprint, s);
        set_header(file_of(s), header, false);
    }
    must(smp_load(job, saved));
    assert_int_equal(job->step, 3);
    assert_int_equal(job->samples, -1);
    assert_true(step(job) == losses[3]);
    assert_int_equal(job->samples, -1);
    smp *other = open_job("adamw");
    step(other);
    must(smp_save(other, saved));
    must(smp_load(other, saved));
    assert_int_equal(other->step, 1);
    assert_int_equal(access(file_of(2), F_OK), -1);
    assert_int_equal(access(file_of(3), F_OK), 0);
    smp_finalize(job);
    smp_finalize(other);
}

/* A later version is neither read nor taken for damage nor removed. */
static void test_checkpoint_later_version(void **state)
{
    (void)state;
    double losses[4];
    smp *job = save_steps(2, 3, losses);
    set_header(file_of(3), "SMP checkpoint 3\nof another kind\n", true);
    expect_refused(job, "0000000003.smp: is of version 3, this program reads 1 to 2");
    for (int s = 0; s < 3; s++) {
        step(job);
        must(smp_save(job, saved));
    }
    assert_int_equal(access(file_of(3), F_OK), 0);
    smp_finalize(job);
}

/* Numbers that no job gets to, under a right hash: damage, before anything is computed of them. A job
 * for inference takes any number of states. */
static void test_checkpoint_numbers(void **state)
{
    (void)state;
    static const struct {
        int64_t samples, saved;
        int states;
    } beyond[] = {{8, 1, INT_MAX}, {-2, 1, 2}, {INT64_MAX - 1, 1, 2}, {8, INT64_MAX - 1, 2}};
    double losses[4];
    char header[512];
    smp *job = save_steps(2, 3, losses), *inference = open_inference("adamw");
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        snprintf(header, sizeof header,
                 "SMP checkpoint 2\nfingerprint %016" PRIx64 "\nstep 3\nsamples %" PRId64
                 "\nsaved %" PRId64 "\noptimizer adamw\nstates %d\nmodel tiny\n",
                 job->graph->fingerprint, beyond[i].samples, beyond[i].saved, beyond[i].states);
        set_header(file_of(3), header, true);
        smp *jobs[] = {job, inference};
        for (int k = 0; k < 2; k++) {
            must(smp_load(jobs[k], saved));
            assert_non_null(
                strstr(smp_load_note(jobs[k]), "0000000003.smp: the header is damaged"));
        }
    }
    smp_finalize(job);
    smp_finalize(inference);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
#define TEST(name) cmocka_unit_test_setup_teardown(test_checkpoint_##name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(saved_last_is_loaded),
        TEST(saved_again),
        TEST(step_zero),
        TEST(any_bit),
        TEST(goes_on),
        TEST(all_damaged),
        TEST(wrong_name),
        TEST(wrong_optimizer),
        TEST(version_1),
        TEST(later_version),
        TEST(numbers),
        TEST(inference),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
