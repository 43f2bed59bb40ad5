/* A program under a supervisor: what it is told, and its own state beside the weights, in
 * checkpoints and kept states. One rank. */
#include "exec/elastic/supervised.h"
#include "exec/job/on_signal.h"
#include "tests/exec/checkpoint_fixture.h"

enum { OWN = 40 };

static char own[2 * OWN], kept[128];

static const char *const variables[] = {SMP__ELASTIC,
                                        SMP__ELASTIC_PLAN,
                                        SMP__ELASTIC_ROWS,
                                        SMP__ELASTIC_CHECKPOINT,
                                        SMP__ELASTIC_KEEP_EVERY,
                                        SMP__ELASTIC_KEEP_IN};
enum { N_VARIABLE = sizeof variables / sizeof variables[0] };

static void tell_all(void)
{
    static const char *const value[N_VARIABLE] = {"1", "plan.yaml", "rows", "run", "2", "keep"};
    for (int i = 0; i < N_VARIABLE; i++)
        setenv(variables[i], value[i], 1);
}

static int forget_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_VARIABLE; i++)
        unsetenv(variables[i]);
    unsetenv(SMP__ELASTIC_DEVICE);
    unsetenv(SMP__ELASTIC_TIMEOUT);
    unsetenv(SMP__ELASTIC_TIMEOUT_START);
    smp__on_signal(NULL, false);
    return 0;
}

static void expect_bad(const char *part)
{
    smp_options options = smp_options_default();
    const char *checkpoint = "as it was";
    options.model = "model.yaml";
    assert_int_equal(smp_elastic_join(&options, &checkpoint), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), part))
        fail_msg("'%s' is not in '%s'", part, smp_last_error());
    assert_string_equal(options.model, "model.yaml");
    assert_string_equal(checkpoint, "as it was");
}

static void test_elastic_join(void **state)
{
    (void)state;
    smp_options options = smp_options_default(), before;
    const char *checkpoint = "";
    options.model = "model.yaml";
    before = options;
    must(smp_elastic_join(&options, &checkpoint));
    assert_null(checkpoint);
    assert_memory_equal(&options, &before, sizeof options);
    tell_all();
    must(smp_elastic_join(&options, &checkpoint));
    assert_string_equal(checkpoint, "run");
    assert_null(options.model);
    assert_string_equal(options.plan, "plan.yaml");
    assert_string_equal(options.runtime.rows, "rows");
    assert_int_equal(options.runtime.keep_every, 2);
    assert_string_equal(options.runtime.keep_in, "keep");
    assert_null(options.runtime.device);
    setenv(SMP__ELASTIC_KEEP_EVERY, "0", 1);
    unsetenv(SMP__ELASTIC_KEEP_IN);
    setenv(SMP__ELASTIC_DEVICE, "cuda", 1);
    setenv(SMP__ELASTIC_TIMEOUT, "7.5", 1);
    setenv(SMP__ELASTIC_TIMEOUT_START, "", 1);
    options = before;
    options.runtime.timeout_start_s = 11.0;
    must(smp_elastic_join(&options, &checkpoint));
    assert_int_equal(options.runtime.keep_every, 0);
    assert_string_equal(options.runtime.device, "cuda");
    assert_true(options.runtime.timeout_s == 7.5);
    assert_true(options.runtime.timeout_start_s == 11.0);
}

static void test_elastic_join_refuses(void **state)
{
    (void)state;
    smp_options options;
    for (int i = 1; i < N_VARIABLE; i++) {
        char part[80];
        tell_all();
        unsetenv(variables[i]);
        snprintf(part, sizeof part, "%s: is not set, but SMP_ELASTIC is", variables[i]);
        expect_bad(part);
    }
    tell_all();
    setenv(SMP__ELASTIC, "2", 1);
    expect_bad("SMP_ELASTIC: got '2', expected 1");
    tell_all();
    setenv(SMP__ELASTIC_KEEP_EVERY, "-1", 1);
    expect_bad("SMP_ELASTIC_KEEP_EVERY: got '-1', expected a number");
    setenv(SMP__ELASTIC_KEEP_EVERY, "1", 1);
    setenv(SMP__ELASTIC_TIMEOUT, "-1", 1);
    expect_bad("SMP_ELASTIC_TIMEOUT: got '-1', expected a number of seconds");
    assert_int_equal(smp_elastic_join(&options, NULL), SMP_ERR_INPUT);
}

static smp_options owning(int64_t bytes)
{
    smp_options options = smp_options_default();
    options.model = model_path;
    options.planning.microbatches = 1;
    options.planning.microbatch_size = SAMPLES;
    options.runtime.own_state = own;
    options.runtime.own_bytes = bytes;
    return options;
}

static smp *open_owning(int64_t bytes)
{
    smp *job = NULL;
    const smp_options options = owning(bytes);
    must(smp_init(&job, &options));
    return job;
}

static void expect_own(char c)
{
    for (int i = 0; i < OWN; i++)
        assert_int_equal(own[i], c);
    assert_int_equal(own[OWN], 'z'); /* is nobody's */
}

static void set_own(char c)
{
    memset(own, c, OWN);
    own[OWN] = 'z';
}

static void test_elastic_own_state(void **state)
{
    (void)state;
    smp *job = open_owning(OWN);
    step(job);
    set_own('a');
    must(smp_save(job, saved));
    step(job);
    set_own('b');
    must(smp_save_begin(job, saved));
    set_own('c'); /* is copied already */
    must(smp_save_wait(job));
    must(smp_load(job, saved));
    expect_own('b');
    smp_finalize(job);
    /* A byte of it: the one before is taken, whole. */
    struct stat info;
    assert_int_equal(stat(file_of(2), &info), 0);
    flip(file_of(2), info.st_size - SMP__OWN_HASH_BYTES - 1);
    set_own('d');
    job = open_owning(OWN);
    must(smp_load(job, saved));
    expect_own('a');
    assert_non_null(strstr(smp_load_note(job), "2.smp: the program's own state is damaged"));
    assert_int_equal(job->step, 1);
    smp_finalize(job);
}

static void test_elastic_own_state_of_others(void **state)
{
    (void)state;
    smp *job = open_owning(0);
    step(job);
    must(smp_save(job, saved)); /* has none */
    smp_finalize(job);
    set_own('a');
    job = open_owning(OWN);
    must(smp_load(job, saved));
    expect_own('a');
    must(smp_save(job, saved));
    smp_finalize(job);
    set_own('b');
    job = open_owning(OWN - 1);
    expect_refused(job, "has 40 bytes of a program's own state, this program has 39");
    smp_finalize(job);
    job = open_owning(0); /* wants none */
    must(smp_load(job, saved));
    expect_own('b');
    assert_non_null(strstr(smp_load_note(job), "1.smp: its 40 bytes of a program's own state are"));
    smp_finalize(job);
}

static void test_elastic_own_state_refused(void **state)
{
    (void)state;
    smp *job = NULL;
    smp_options options = owning(SMP_OWN_STATE_BYTES + 1);
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "own_bytes 1048577: expected 0 to 1048576"));
    options = owning(1);
    options.runtime.own_state = NULL;
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    options = owning(-1);
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
}

static smp_status train_step(smp *job, char c, int *ends)
{
    smp_step_result done = {.loss = step(job)};
    done.step = job->step;
    set_own(c);
    return smp_elastic_step(job, &done, ends);
}

/* A job that ends unsaved, as if it had died: what is kept of a step has the program's state as it
 * was when smp_elastic_step was called. */
static void test_elastic_kept_state(void **state)
{
    (void)state;
    int ends = 1, code = 1;
    char other[192];
    smp *job = NULL;
    smp_options options = owning(OWN);
    snprintf(kept, sizeof kept, "%s/keep", folder);
    options.runtime.keep_every = 1;
    options.runtime.keep_in = kept;
    must(smp_init(&job, &options));
    must(smp_elastic_begin(job, saved));
    assert_int_equal(smp_elastic_begin(job, saved), SMP_ERR_INPUT);
    for (char c = 'a'; c < 'd'; c++)
        must(train_step(job, c, &ends));
    assert_int_equal(ends, 0);
    smp_finalize(job);
    set_own('x');
    must(smp_init(&job, &options));
    must(smp_elastic_begin(job, saved));
    assert_int_equal(job->step, 3);
    expect_own('c');
    raise(SIGUSR1);
    must(train_step(job, 'd', &ends));
    assert_int_equal(ends, 1);
    snprintf(other, sizeof other, "%s/other", folder);
    must(smp_save(job, other));
    must(smp_elastic_end(job, &code)); /* saves where the job is at home, too */
    assert_int_equal(code, 4);
    assert_int_equal(access(file_of(4), F_OK), 0);
    smp_finalize(job);
    assert_int_equal(access(kept, F_OK), -1);
    strcat(other, "/checkpoint-0000000004.smp");
    assert_int_equal(unlink(other), 0);
    *strrchr(other, '/') = '\0';
    assert_int_equal(rmdir(other), 0);
}

static void test_elastic_misuse(void **state)
{
    (void)state;
    static const float x[SAMPLES * FEATURES];
    static const int32_t y[SAMPLES];
    int ends, code;
    smp_step_result done;
    smp *job = NULL;
    smp_options options = owning(OWN);
    snprintf(kept, sizeof kept, "%s/keep", folder);
    options.runtime.keep_every = 1;
    options.runtime.keep_in = kept;
    must(smp_init(&job, &options));
    assert_int_equal(smp_elastic_end(job, &code), SMP_ERR_INPUT);
    assert_int_equal(train_step(job, 'a', &ends), SMP_ERR_INPUT);
    must(smp_elastic_begin(job, NULL));
    must(smp_step(job, (const void *[]){x, y}, &done));
    done.step--;
    assert_int_equal(smp_elastic_step(job, &done, &ends), SMP_ERR_INPUT);
    done.step++;
    assert_int_equal(smp_step(job, (const void *[]){x, y}, &done), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "smp_elastic_step is to be called after step 2"));
    must(smp_elastic_step(job, &done, &ends));
    assert_int_equal(smp_elastic_step(job, &done, &ends), SMP_ERR_INPUT);
    must(smp_step(job, (const void *[]){x, y}, &done)); /* nothing has changed */
    assert_int_equal(done.step, 3);
    smp_finalize(job);
    options.runtime.keep_every = 0;
    options.runtime.rows = "rows"; /* under a supervisor */
    must(smp_init(&job, &options));
    assert_int_equal(smp_step(job, (const void *[]){x, y}, &done), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "smp_elastic_begin comes before the first step"));
    smp_finalize(job);
    char path[192];
    for (int i = 0; i < 9; i++) {
        static const char *const name[] = {"place", "free", "ranges"};
        snprintf(path, sizeof path, "%s/%s-%d", kept, name[i / 3], i % 3);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/beat-0", kept);
    unlink(path);
    for (int saved_step = 1; saved_step < 4; saved_step++) {
        snprintf(path, sizeof path, "%s/checkpoint-%010d.smp", kept, saved_step);
        unlink(path);
    }
    rmdir(kept);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
#define TEST(name) cmocka_unit_test_setup_teardown(test_elastic_##name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_elastic_join, forget_all),
        cmocka_unit_test_teardown(test_elastic_join_refuses, forget_all),
        TEST(own_state),
        TEST(own_state_of_others),
        TEST(own_state_refused),
        TEST(kept_state),
        TEST(misuse),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
