/* States kept in memory: what stands in the folder after each step, which state is gone on from,
 * what is refused; the bytes are those of a save, whatever the states are. One rank. */
#include <dirent.h>

#include "exec/checkpoint/checkpoint_copy.h"
#include "exec/checkpoint/heartbeat.h"
#include "exec/checkpoint/folder_lock.h"
#include "exec/checkpoint/kept_folder.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/save/checkpoint_part.h"
#include "tests/exec/checkpoint_fixture.h"

static char kept[128];

static int enter(void **state)
{
    const int failed = set_up(state);
    snprintf(kept, sizeof kept, "%s/keep", folder);
    assert_int_equal(mkdir(saved, 0777), 0);
    return failed;
}

static const char *kept_file(int64_t step)
{
    static char path[4][192];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/checkpoint-%010" PRId64 ".smp", kept, step);
    return path[turn];
}

/* Steps whose states have names: bit s. */
static int kept_steps(void)
{
    int found = 0;
    for (int s = 0; s < 20; s++)
        found |= (access(kept_file(s), F_OK) == 0) << s;
    return found;
}

static void remove_kept(void)
{
    char path[192];
    static const char *const names[] = {"place-0", "place-1", "place-2",  "free-0",   "free-1",
                                        "free-2",  "beat-0",  "ranges-0", "ranges-1", "ranges-2"};
    for (int s = 0; s < 20; s++)
        unlink(kept_file(s));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", kept, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(kept), 0);
}

static smp_options keeping(const char *optimizer, int64_t every)
{
    smp_options options = smp_options_default();
    options.model = model_path;
    options.optimizer.name = optimizer;
    options.optimizer.lr = 0.1f;
    options.planning.microbatches = 1;
    options.planning.microbatch_size = SAMPLES;
    options.runtime.keep_every = every;
    options.runtime.keep_in = kept;
    return options;
}

static smp *open_keeping(const char *optimizer, int64_t every)
{
    smp *job = NULL;
    const smp_options options = keeping(optimizer, every);
    must(smp_init(&job, &options));
    return job;
}

/* A job that ends without having saved, as if it had died behind a step. */
static void run_steps(int64_t every, int n, double *losses)
{
    smp *job = open_keeping("adamw", every);
    for (int s = 0; s < n; s++)
        losses[s] = step(job);
    smp_finalize(job);
}

static void test_keep_names(void **state)
{
    (void)state;
    smp *job = open_keeping("adamw", 1);
    assert_int_equal(kept_steps(), 0);
    step(job); /* is written beside the next one */
    assert_int_equal(kept_steps(), 0);
    for (int s = 2; s < 9; s++) {
        step(job);
        assert_int_equal(kept_steps(), 1 << (s - 1)); /* one, and always one */
    }
    must(smp_save(job, saved));
    smp_finalize(job);
    assert_int_equal(access(kept, F_OK), -1); /* the disk has it */
}

/* A save that cannot begin saves nothing: what is in memory stays. */
static void test_keep_unsaved(void **state)
{
    (void)state;
    char nowhere[192];
    smp *job = open_keeping("adamw", 1);
    for (int s = 0; s < 3; s++)
        step(job);
    snprintf(nowhere, sizeof nowhere, "%s/not/there", saved);
    assert_int_equal(smp_save(job, nowhere), SMP_ERR_INPUT);
    smp_finalize(job);
    assert_int_equal(kept_steps(), 1 << 3 | 1 << 2);
    remove_kept();
}

/* A job that has nothing left to do leaves no memory behind. */
static void test_keep_nothing_left(void **state)
{
    (void)state;
    double losses[8];
    run_steps(1, 2, losses);
    smp *job = save_steps(3, 3, losses);
    smp_finalize(job);
    job = open_keeping("adamw", 1);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 3);
    smp_finalize(job);
    assert_int_equal(access(kept, F_OK), -1);
}

/* What a folder holds that no job has made there stays; checkpoints are not saved into it. */
static void test_keep_others(void **state)
{
    (void)state;
    char path[192];
    assert_int_equal(mkdir(kept, 0700), 0);
    smp *job = open_job("adamw");
    for (int s = 0; s < 9; s++)
        step(job);
    must(smp_save(job, kept));
    smp_finalize(job);
    snprintf(path, sizeof path, "%s/beat-a", kept);
    write_text(path, "SMPBEAT");
    job = open_keeping("adamw", 1);
    for (int s = 0; s < 3; s++)
        step(job);
    assert_int_equal(kept_steps(), 1 << 9 | 1 << 2);
    assert_int_equal(smp_save(job, kept), SMP_ERR_INPUT);
    assert_non_null(
        strstr(smp_last_error(), "keep: states are kept there, and removed at the end"));
    must(smp_save(job, saved));
    smp_finalize(job);
    assert_int_equal(kept_steps(), 1 << 9);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(kept_file(9)), 0);
    assert_int_equal(rmdir(kept), 0); /* nothing else is left */
}

/* What was gone on from stays until a later state is complete, though the last one was damaged. */
static void test_keep_one_is_there(void **state)
{
    (void)state;
    double losses[8];
    run_steps(1, 5, losses);
    assert_int_equal(kept_steps(), 1 << 5 | 1 << 4);
    flip(kept_file(5), header_of(kept_file(5)) + HEADER + 9);
    smp *job = open_keeping("adamw", 1);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 4);
    assert_int_equal(kept_steps(), 1 << 4);
    step(job);
    assert_int_equal(kept_steps(), 1 << 4);
    step(job);
    assert_int_equal(kept_steps(), 1 << 5);
    smp_finalize(job);
    remove_kept();
}

/* Steps that a job leaves by loading an earlier state are gone at once. */
static void test_keep_branch_left(void **state)
{
    (void)state;
    double losses[8];
    smp *job = save_steps(2, 2, losses);
    smp_finalize(job);
    job = open_keeping("adamw", 1);
    for (int s = 0; s < 5; s++)
        step(job);
    assert_int_equal(kept_steps(), 1 << 4);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 2);
    assert_int_equal(kept_steps(), 0);
    step(job);
    smp_finalize(job);
    assert_int_equal(kept_steps(), 1 << 3);
    remove_kept();
}

static void hide(const char *name, bool hides)
{
    char path[2][192];
    snprintf(path[0], sizeof path[0], "%s/%s", kept, name);
    snprintf(path[1], sizeof path[1], "%s/hidden", kept);
    assert_int_equal(rename(path[!hides], path[hides]), 0);
}

/* A state that cannot get its name costs none that has one. */
static void test_keep_unnamed(void **state)
{
    (void)state;
    smp *job = open_keeping("adamw", 1);
    step(job);
    step(job);
    assert_int_equal(kept_steps(), 1 << 1);
    hide("free-1", true);
    for (int s = 3; s < 7; s++) {
        step(job);
        assert_int_equal(kept_steps(), 1 << 1);
        assert_non_null(
            strstr(smp__keep_note(job), "keep/free-1: cannot name the state of step 2"));
    }
    hide("free-1", false);
    smp_finalize(job);
    assert_int_equal(kept_steps(), 1 << 1);
    remove_kept();
}

static void test_keep_every(void **state)
{
    (void)state;
    smp *job = open_keeping("adamw", 3);
    int expected = 0;
    for (int s = 1; s < 12; s++) {
        step(job);
        if (s > 3 && s % 3 == 1)
            expected |= 1 << (s - 1);
        if (s > 3 && s % 3 == 0) /* the one before stays until the next one is begun */
            expected = 1 << (s - 3);
        assert_int_equal(kept_steps(), expected);
    }
    smp_finalize(job);
    assert_int_equal(kept_steps(), 1 << 9 | 1 << 6);
    remove_kept();
}

/* Saves after one of n steps, and ends as if it had died. */
static void run_saving(int n, int saved_step, double *losses)
{
    smp *job = open_keeping("adamw", 1);
    for (int s = 1; s <= n; s++) {
        losses[s - 1] = step(job);
        if (s == saved_step)
            must(smp_save(job, saved));
    }
    smp_finalize(job);
}

/* What was begun later. Then steps have the same bits. */
static void test_keep_later_is_loaded(void **state)
{
    (void)state;
    double losses[8], undisturbed[8];
    smp *job = open_job("adamw");
    for (int s = 0; s < 8; s++)
        undisturbed[s] = step(job);
    smp_finalize(job);
    for (int on_disk = 4; on_disk <= 6; on_disk++) {
        run_saving(6, on_disk, losses);
        assert_int_equal(access(kept, F_OK), on_disk == 6 ? -1 : 0);
        job = open_keeping("adamw", 1);
        must(smp_load(job, saved));
        assert_int_equal(job->step, 6);
        assert_int_equal(smp__keep_was_loaded(job), on_disk < 6);
        assert_int_equal(smp__job_position(job), 6 * SAMPLES);
        assert_string_equal(smp_load_note(job), "");
        assert_true(step(job) == undisturbed[6]);
        assert_true(step(job) == undisturbed[7]);
        assert_int_equal(kept_steps(), 1 << 7);
        smp_finalize(job);
        remove_kept();
        unlink(file_of(on_disk));
    }
}

/* A job that kept nothing has gone on from elsewhere: what it saved counts, of whatever step. */
static void test_keep_other_branch(void **state)
{
    (void)state;
    double losses[8];
    run_saving(5, 2, losses);
    smp *job = save_steps(3, 3, losses);
    smp_finalize(job);
    job = open_keeping("adamw", 1);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 3);
    assert_false(smp__keep_was_loaded(job));
    assert_int_equal(kept_steps(), 0);
    step(job);
    smp_finalize(job);
    assert_int_equal(kept_steps(), 1 << 4);
    remove_kept();
}

static smp_status end_copy(void *of)
{
    assert_ptr_equal(of, saved);
    return smp_fail(SMP_ERR_INPUT, "signal");
}

/* Memory gets to the disk unless that was saved later, of whatever step. */
static void test_keep_is_copied(void **state)
{
    (void)state;
    double losses[8];
    int64_t copied;
    smp *job = save_steps(7, 7, losses);
    smp_finalize(job);
    run_saving(5, 2, losses);
    /* ... unless that is ended: then nothing is left of it */
    assert_int_equal(
        smp__checkpoint_copy_last(kept, saved, &(smp__meanwhile){end_copy, saved}, &copied),
        SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "signal");
    assert_int_equal(copied, 0);
    assert_int_equal(access(file_of(5), F_OK), -1);
    must(smp__checkpoint_copy_last(kept, saved, NULL, &copied));
    assert_int_equal(copied, 5);
    must(smp__checkpoint_copy_last(kept, saved, NULL, &copied));
    assert_int_equal(copied, 0);
    remove_kept();
    job = open_job("adamw");
    must(smp_load(job, saved));
    assert_int_equal(job->step, 5);
    smp_finalize(job);
}

/* A save was begun, and nobody knows whether it became complete; another job gave its number to
 * another step. That is later than what was kept after the first. */
static void test_keep_begun_save(void **state)
{
    (void)state;
    double losses[8];
    int64_t copied;
    bool later;
    smp *job = open_keeping("adamw", 1);
    step(job);
    job->saving->number = 1;
    job->saving->begun_step = 1;
    for (int s = 0; s < 4; s++)
        step(job);
    smp_finalize(job);
    must(smp__kept_is_later(kept, saved, &later));
    assert_true(later); /* than nothing */
    smp_finalize(save_steps(3, 3, losses));
    must(smp__kept_is_later(kept, saved, &later));
    assert_false(later);
    must(smp__checkpoint_copy_last(kept, saved, NULL, &copied));
    assert_int_equal(copied, 0);
    unlink(file_of(3));
    smp_finalize(save_steps(1, 1, losses)); /* it is the one */
    must(smp__kept_is_later(kept, saved, &later));
    assert_true(later);
    remove_kept();
}

/* What is damaged in memory is passed over, and names of steps that are to come go. */
static void test_keep_damaged(void **state)
{
    (void)state;
    double losses[8];
    run_saving(5, 3, losses);
    assert_int_equal(kept_steps(), 1 << 5 | 1 << 4);
    flip(kept_file(5), header_of(kept_file(5)) + HEADER + 9);
    flip(kept_file(4), header_of(kept_file(4)) + 9);
    smp *job = open_keeping("adamw", 1);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 3);
    assert_non_null(strstr(smp_load_note(job), "checkpoint-0000000004.smp: the header is damaged"));
    assert_non_null(strstr(smp_load_note(job), "checkpoint-0000000005.smp: weight 'fc.weight' is "
                                               "damaged; "));
    assert_true(step(job) == losses[3]);
    assert_int_equal(kept_steps(), 0); /* none of the other branch */
    assert_true(step(job) == losses[4]);
    assert_int_equal(kept_steps(), 1 << 4);
    smp_finalize(job);
    remove_kept();
}

static int64_t read_all(const char *path, char *bytes, int64_t size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, (size_t)size, file);
    assert_int_equal(fclose(file), 0);
    return (int64_t)n;
}

/* But for the number of the save, and so the hash of the header, a kept state is a saved one. */
static void check_bytes(const smp_options *options)
{
    static char bytes[2][16384];
    smp *job = NULL;
    must(smp_init(&job, options));
    step(job);
    step(job);
    must(smp_save(job, saved));
    step(job);
    const int64_t header = header_of(file_of(2)), n = read_all(file_of(2), bytes[0], 16384);
    assert_int_equal(read_all(kept_file(2), bytes[1], 16384), n);
    memset(bytes[0] + header, 0, HEADER);
    memset(bytes[1] + header, 0, HEADER);
    assert_memory_equal(bytes[0], bytes[1], (size_t)n);
    smp_finalize(job);
    remove_kept();
    unlink(file_of(2));
}

static void test_keep_bytes(void **state)
{
    (void)state;
    static const char *const bias[] = {"fc.bias"};
    static const char *const optimizers[] = {"adamw", "sgd", "novograd", "lamb"};
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++) {
        smp_options options = keeping(optimizers[i], 1);
        check_bytes(&options);
    }
    smp_options narrow = keeping("adamw", 1), frozen = narrow;
    narrow.planning.state_precision = "bf16";
    check_bytes(&narrow);
    frozen.planning.freeze = bias;
    frozen.planning.n_freeze = 1;
    check_bytes(&frozen);
}

/* A job that goes back to what is saved gets that: what it has kept itself is not asked for. */
static void test_keep_goes_back(void **state)
{
    (void)state;
    double losses[8];
    smp *job = save_steps(2, 2, losses);
    smp_finalize(job);
    job = open_keeping("adamw", 1);
    for (int s = 0; s < 4; s++)
        step(job);
    must(smp_load(job, saved));
    assert_int_equal(job->step, 2);
    assert_true(step(job) == losses[2]);
    assert_int_equal(kept_steps(), 0); /* 3 was of the steps before */
    step(job);
    assert_int_equal(kept_steps(), 1 << 3);
    smp_finalize(job);
    remove_kept();
}

static void expect_no_job(const smp_options *options, smp_status expected, const char *message)
{
    smp *job = NULL;
    assert_int_equal(smp_init(&job, options), expected);
    if (!strstr(smp_last_error(), message))
        fail_msg("'%s' is not in '%s'", message, smp_last_error());
}

static void test_keep_refused(void **state)
{
    (void)state;
    double losses[4];
    smp_options options = keeping("adamw", 1);
    assert_int_equal(mkdir(kept, 0755), 0);
    expect_no_job(&options, SMP_ERR_INPUT, "keep: states are kept in a folder of one's own");
    assert_int_equal(rmdir(kept), 0);
    assert_int_equal(symlink(saved, kept), 0);
    expect_no_job(&options, SMP_ERR_INPUT, "keep: cannot be a folder to keep states in: ");
    assert_int_equal(unlink(kept), 0);
    options.runtime.keep_every = -1;
    expect_no_job(&options, SMP_ERR_INPUT, "every -1 steps, in '");
    options.runtime.keep_every = 1;
    options.runtime.keep_in = NULL;
    expect_no_job(&options, SMP_ERR_INPUT, "every 1 steps, in ''");
    assert_int_equal(access(kept, F_OK), -1);
    smp *job = open_keeping("adamw", 1);
    options = keeping("adamw", 1);
    char who[64];
    snprintf(who, sizeof who, "process %d (rank 0) of another job keeps its state there",
             (int)getpid());
    expect_no_job(&options, SMP_ERR_INPUT, who);
    smp_finalize(job);
    assert_int_equal(access(kept, F_OK), -1); /* nothing was kept */
    run_steps(1, 3, losses);
    options.optimizer.name = "sgd";
    expect_no_job(&options, SMP_ERR_INPUT, "keep: holds the state of another model or optimizer (");
    assert_int_equal(kept_steps(), 1 << 3 | 1 << 2);
    remove_kept();
}

/* A file system that is full is told before anything is trained. */
static void test_keep_no_room(void **state)
{
    (void)state;
    smp__kept_folder *f;
    must(smp__kept_enter(kept, true, 0.0, &f));
    smp__spans all = {0};
    must(smp__spans_add(&all, 0, INT64_C(1) << 55));
    assert_int_equal(smp__kept_reserve(f, INT64_C(1) << 55, &all, false), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "keep: to keep states takes 3 x "));
    assert_non_null(strstr(smp_last_error(), " bytes wanted, "));
    /* likewise before more is fetched than there is room for */
    must(smp__kept_reserve(f, 4096, &(smp__spans){0}, false));
    assert_int_equal(smp__kept_allocate(f, 1, &all), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "keep/place-1: a state takes 32 PiB more there, "));
    smp__spans_free(&all);
    smp__kept_remove(f);
    smp__kept_leave(f);
    assert_int_equal(access(kept, F_OK), -1);
}

/* What cannot get its name is said, and training goes on. */
static void test_keep_folder_removed(void **state)
{
    (void)state;
    smp *job = open_keeping("adamw", 1);
    step(job);
    remove_kept();
    step(job);
    if (!strstr(smp__keep_note(job), "keep/free-0: cannot name the state of step 1: "))
        fail_msg("'%s'", smp__keep_note(job));
    step(job);
    smp_finalize(job);
}

static void test_keep_beats(void **state)
{
    (void)state;
    smp__beat beat, later;
    bool over;
    smp *job = open_keeping("adamw", 1);
    const int directory = open(kept, O_RDONLY | O_DIRECTORY);
    assert_true(smp__beat_read(directory, "beat-0", &beat));
    assert_int_equal(beat.pid, getpid());
    assert_true(beat.start_ticks == (int64_t)smp__process_start(getpid(), &over));
    assert_int_equal(beat.world_rank, 0);
    assert_int_equal(beat.world_size, 1);
    assert_int_equal(beat.step, 0);
    step(job);
    step(job);
    usleep(250 * 1000);
    assert_true(smp__beat_read(directory, "beat-0", &later));
    assert_int_equal(later.step, 2);
    assert_true(later.step_s > 0.0 && later.step_s < 10.0);
    assert_true(later.beat > beat.beat && later.monotonic_s > beat.monotonic_s);
    assert_false(smp__beat_read(directory, "beat-1", &later));
    assert_false(smp__beat_read(directory, "place-0", &later));
    close(directory);
    must(smp_save(job, saved));
    smp_finalize(job);
    unlink(file_of(2));
}

/* The same folder whether the directory is there or not, and by whatever name. */
static void test_keep_default_folder(void **state)
{
    (void)state;
    char one[SMP__CHECKPOINT_PATH_BYTES], other[SMP__CHECKPOINT_PATH_BYTES], name[192];
    must(smp__kept_default(saved, one));
    snprintf(name, sizeof name, "%s/../saved//", saved);
    must(smp__kept_default(name, other));
    assert_string_equal(one, other);
    assert_int_equal(rmdir(saved), 0);
    must(smp__kept_default(saved, other));
    assert_string_equal(one, other);
    snprintf(name, sizeof name, "/dev/shm/smp-%d-", (int)getuid());
    assert_memory_equal(one, name, strlen(name));
    assert_int_equal(strlen(one), strlen(name) + 16);
    snprintf(name, sizeof name, "%s/not/there", saved);
    assert_int_equal(smp__kept_default(name, other), SMP_ERR_INPUT);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
#define TEST(name) cmocka_unit_test_setup_teardown(test_keep_##name, enter, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(names),          TEST(every),        TEST(later_is_loaded), TEST(damaged),
        TEST(bytes),          TEST(goes_back),    TEST(refused),         TEST(no_room),
        TEST(folder_removed), TEST(beats),        TEST(default_folder),  TEST(unsaved),
        TEST(nothing_left),   TEST(others),       TEST(one_is_there),    TEST(branch_left),
        TEST(unnamed),        TEST(other_branch), TEST(is_copied),       TEST(begun_save),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
