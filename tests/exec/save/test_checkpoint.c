/* Checkpoints as files: what was saved last is what is loaded, and whatever is wrong with a file is
 * found: a byte anywhere, a length, a name, a version. One rank. */
#include <limits.h>

#include "tests/exec/checkpoint_fixture.h"

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
    const int64_t text = header_of(file_of(3)) + 256, values = header_of(file_of(3)) + HEADER;
    for (int64_t at = 0; at < info.st_size; at += at < text || at >= values - 16 ? 1 : 61) {
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
    assert_int_equal(smp__job_position(job), 3 * SAMPLES);
    assert_true(step(job) == losses[3]);
    assert_int_equal(smp__job_position(job), 4 * SAMPLES);
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
    char part[64];
    const int64_t left = header_of(file_of(3)) + HEADER + 8;
    flip(file_of(2), header_of(file_of(2)) + 10);
    assert_int_equal(truncate(file_of(3), left), 0);
    snprintf(part, sizeof part, "0000000003.smp: has %" PRId64 " bytes", left);
    expect_refused(job, part);
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

/* The number that is kept for each weight: it comes back, and any wrong bit of it is found. */
static void test_checkpoint_kept_numbers(void **state)
{
    (void)state;
    double losses[6];
    struct stat info;
    smp *job = open_job("novograd");
    for (int s = 1; s <= 5; s++) {
        losses[s] = step(job);
        if (s == 2 || s == 3)
            must(smp_save(job, saved));
    }
    assert_int_equal(stat(file_of(3), &info), 0);
    for (int bit = 0; bit <= 1; bit++) { /* a whole file; one whose last bytes are others */
        for (int64_t at = info.st_size - 32 * bit; at <= info.st_size - bit; at += 5) {
            if (bit)
                flip(file_of(3), at);
            smp *again = open_job("novograd");
            must(smp_load(again, saved));
            assert_int_equal(again->step, 3 - bit);
            for (int s = 4 - bit; s <= 5; s++)
                assert_true(step(again) == losses[s]);
            smp_finalize(again);
            if (bit)
                flip(file_of(3), at);
        }
    }
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

/* As many states as the optimizer has, in a file of the length that this many take. */
static void test_checkpoint_wrong_states(void **state)
{
    (void)state;
    double losses[2];
    char header[512];
    smp *job = save_steps(1, 1, losses);
    snprintf(header, sizeof header,
             "SMP checkpoint 3\nfingerprint %016" PRIx64 "\nstep 1\nsamples 2\nsaved 1\n"
             "optimizer adamw\nstates 1\nmodel tiny\n",
             job->graph->weights_fingerprint);
    set_header(file_of(1), header, true);
    const int64_t values = header_of(file_of(1)) + HEADER;
    assert_int_equal(truncate(file_of(1), values + 16 * 2 * 4 + 2 * 2 * 8), 0);
    expect_refused(job, "1.smp: has the state of optimizer adamw, not of adamw");
    snprintf(strstr(header, "states"), 32, "states 2\nmodel tiny\n");
    header[strlen("SMP checkpoint 3\nfingerprint ")] ^= 1;
    set_header(file_of(1), header, true);
    expect_refused(job, "1.smp: is of another model (fingerprint ");
    step(job); /* nothing was touched */
    smp_finalize(job);
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

/* A model in mode inference takes the weights of a training checkpoint, whatever its optimizer: the
 * loss is that of the step that would have come next. The states are not read. */
static void test_checkpoint_inference(void **state)
{
    (void)state;
    double losses[4];
    smp_finalize(save_steps(2, 3, losses));
    smp *job = open_inference("sgd");
    assert_true(step(job) == losses[0]);
    must(smp_load(job, saved));
    assert_true(step(job) == losses[3]);
    assert_int_equal(job->step, 2); /* it counts its own */
    const int64_t values = header_of(file_of(3)) + HEADER;
    flip(file_of(3), values + 4 * 12 * 2 + 5); /* a state of fc.weight, 12 elements */
    must(smp_load(job, saved));
    assert_true(step(job) == losses[3]);
    flip(file_of(3), values + 4 * 12 - 1); /* its values */
    must(smp_load(job, saved));
    assert_non_null(strstr(smp_load_note(job), "weight 'fc.weight' is damaged"));
    assert_true(step(job) == losses[2]);
    smp_finalize(job);
}

/* Those that were written before files began with a list of tensors. */
static void test_checkpoint_without_head(void **state)
{
    (void)state;
    double losses[4];
    static char bytes[16384];
    smp *job = save_steps(2, 3, losses);
    const int64_t head = header_of(file_of(3));
    FILE *file = fopen(file_of(3), "rb");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    assert_true(feof(file) && n > (size_t)head);
    assert_int_equal(fclose(file), 0);
    file = fopen(file_of(3), "wb");
    assert_int_equal(fwrite(bytes + head, 1, n - (size_t)head, file), n - (size_t)head);
    assert_int_equal(fclose(file), 0);
    must(smp_load(job, saved));
    assert_string_equal(smp_load_note(job), "");
    assert_int_equal(job->step, 3);
    assert_true(step(job) == losses[3]);
    must(smp_save(job, saved)); /* the saves are still counted */
    step(job);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 4);
    flip(file_of(3), HEADER + 7);
    assert_int_equal(unlink(file_of(4)), 0);
    expect_refused(job, "0000000003.smp: weight 'fc.weight' is damaged");
    smp_finalize(job);
}

/* Files of versions before are told from damage, and refused. */
static void test_checkpoint_version_1(void **state)
{
    (void)state;
    double losses[4];
    char header[512];
    smp *job = save_steps(2, 3, losses);
    for (int version = 1; version <= 2; version++) {
        snprintf(header, sizeof header,
                 "SMP checkpoint %d\nmodel tiny\nfingerprint %016" PRIx64 "\nstep 3\n"
                 "optimizer adamw\nstates 2\n",
                 version, job->graph->fingerprint);
        for (int s = 2; s <= 3; s++)
            set_header(file_of(s), header, version == 2);
        expect_refused(job, version == 1
                                ? "smp: is of version 1, this program reads versions 3 to 7"
                                : "smp: is of version 2, this program reads versions 3 to 7");
    }
    step(job); /* nothing was touched */
    smp_finalize(job);
}

/* A later version is neither read nor taken for damage nor removed. */
static void test_checkpoint_later_version(void **state)
{
    (void)state;
    double losses[4];
    smp *job = save_steps(2, 3, losses);
    set_header(file_of(3), "SMP checkpoint 8\nof another kind\n", true);
    expect_refused(job, "0000000003.smp: is of version 8, this program reads versions 3 to 7");
    for (int s = 0; s < 3; s++) {
        step(job);
        must(smp_save(job, saved));
    }
    assert_int_equal(access(file_of(3), F_OK), 0);
    smp_finalize(job);
}

/* Numbers that no job gets to, under a right hash: damage, before anything is computed of them. A
 * job for inference takes any number of states. */
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
                 "SMP checkpoint 3\nfingerprint %016" PRIx64 "\nstep 3\nsamples %" PRId64
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
        TEST(kept_numbers),
        TEST(wrong_states),
        TEST(without_head),
        TEST(version_1),
        TEST(later_version),
        TEST(numbers),
        TEST(inference),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
