/* Saving: the bytes of the file; behind the steps and at once; whatever call of the system fails,
 * nothing that was saved before is lost, and the next save works. One rank. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "tests/bad_calls.h"
#include "exec/save/checkpoint_part.h"
#include "exec/state/shards.h"
#include "tests/exec/checkpoint_fixture.h"

#include <math.h>
#include <signal.h>

static int reset(void **state)
{
    memset(&bad_rule, 0, sizeof bad_rule);
    bad_seen = NULL;
    atomic_store(&held, 0);
    atomic_store(&n_synced, 0);
    return set_up(state);
}

static bool there(const char *path)
{
    return access(path, F_OK) == 0;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
}

/* Until the save is complete or has failed. */
static smp_status finish_save(smp *job)
{
    int done = 0;
    smp_status status = SMP_OK;
    for (; status == SMP_OK && !done; nap())
        status = smp_save_test(job, &done);
    return status;
}

static void *release(void *unused)
{
    for (int i = 0; i < 100; i++)
        nap();
    atomic_store(&held, 0);
    return unused;
}

/* The disk takes a tenth of a second from now on. */
static pthread_t hold_for_a_while(void)
{
    pthread_t thread;
    atomic_store(&held, 1);
    assert_int_equal(pthread_create(&thread, NULL, release, NULL), 0);
    return thread;
}

static int64_t read_at(int fd, void *bytes, int64_t n, int64_t offset)
{
    assert_int_equal(pread(fd, bytes, (size_t)n, offset), n);
    return offset + n;
}

/* The file as the room's page has it, read by nothing of the executor's. */
static void test_checkpoint_layout(void **state)
{
    (void)state;
    char header[HEADER], expected[512];
    smp *job = open_job("adamw");
    step(job);
    must(smp_save(job, saved));
    must(smp_save(job, saved));
    int fd = open(file_of(1), O_RDONLY);
    uint64_t stored;
    assert_true(fd >= 0);
    int64_t offset = read_at(fd, header, HEADER, header_of(file_of(1)));
    snprintf(expected, sizeof expected,
             "SMP checkpoint 5\nfingerprint %016" PRIx64 "\nstep 1\nsamples %d\nsaved 2\n"
             "order 0 seed 0 held-out 0 shuffled 0 drop-last 0\n"
             "optimizer adamw\nstates 2\nmodel tiny\n",
             job->graph->weights_fingerprint, SAMPLES);
    assert_string_equal(header, expected);
    memcpy(&stored, header + HEADER - 8, 8);
    assert_true(stored == smp_hash(0, header, HEADER - 8));
    for (int w = 0; w < smp_weight_count(job); w++) {
        const int64_t n = smp_weight_elements(job, w), bytes = 4 * n;
        float values[3][12], got[12];
        must(smp_weight_get(job, smp_weight_name(job, w), got, n));
        for (int k = 0; k < 3; k++)
            offset = read_at(fd, values[k], bytes, offset);
        for (int k = 0; k < 3; k++) { /* of one piece each */
            offset = read_at(fd, &stored, 8, offset);
            assert_true(stored == smp_hash(0, values[k], (size_t)bytes));
        }
        assert_memory_equal(values[0], got, (size_t)bytes);
        assert_true(values[1][0] != 0.0f && values[2][0] > 0.0f); /* the moments of adamw */
    }
    assert_int_equal(lseek(fd, 0, SEEK_END), offset);
    close(fd);
    smp_finalize(job);
}

/* Steps go on while the disk is busy; what is saved is the state of the beginning. */
static void test_checkpoint_behind(void **state)
{
    (void)state;
    int done;
    smp *job = open_job("adamw");
    must(smp_save_test(job, &done)); /* nothing is under way */
    assert_int_equal(done, 1);
    must(smp_save_wait(job));
    step(job);
    atomic_store(&held, 1);
    must(smp_save_begin(job, saved));
    const double second = step(job);
    step(job);
    must(smp_save_test(job, &done));
    assert_int_equal(done, 0);
    assert_int_equal(atomic_load(&n_synced), 0);
    assert_false(there(file_of(1)));
    atomic_store(&held, 0);
    must(finish_save(job));
    assert_true(there(file_of(1)));
    assert_false(there(part_of(1)));
    must(smp_load(job, saved));
    assert_int_equal(job->step, 1);
    assert_int_equal(smp__job_position(job), SAMPLES);
    assert_true(step(job) == second);
    smp_finalize(job);
}

/* The next save, at once or behind, holds the state of its own step. */
static void test_checkpoint_next_state(void **state)
{
    (void)state;
    double losses[4];
    smp *job = open_job("adamw");
    for (int s = 0; s < 4; s++) {
        losses[s] = step(job);
        if (s < 2)
            must(smp_save_begin(job, saved));
        else if (s < 3)
            must(smp_save(job, saved));
    }
    for (int s = 3; s >= 2; s--) {
        must(smp_load(job, saved));
        assert_int_equal(job->step, s);
        assert_true(step(job) == losses[s]);
        unlink(file_of(s));
    }
    assert_false(there(file_of(1)));
    smp_finalize(job);
}

/* What needs the end of a save that is under way waits for it. */
static void test_checkpoint_waited_for(void **state)
{
    (void)state;
    smp *job = open_job("adamw");
    for (int s = 1; s <= 5; s++) {
        step(job);
        pthread_t thread = hold_for_a_while();
        must(smp_save_begin(job, saved));
        assert_false(there(file_of(s)));
        if (s == 1)
            must(smp_save_wait(job));
        else if (s == 2)
            must(smp_save_begin(job, saved)); /* of the same step again */
        else if (s == 3)
            must(smp_save(job, saved));
        else if (s == 4)
            must(smp_load(job, saved));
        else
            smp_finalize(job);
        assert_true(there(file_of(s)));
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
}

typedef struct failure {
    bad_call call;
    const char *end;
    int after, error;
    const char *message;
    bool named; /* the file has its name already */
} failure;

static const failure failures[] = {
    {BAD_PWRITE, "3.smp.part", 0, ENOSPC, "3.smp.part: cannot write: No space left", false},
    {BAD_PWRITE, "3.smp.part", 1, EIO, "3.smp.part: cannot write: Input/output", false},
    {BAD_PWRITE, "3.smp.part", 4, EIO, "3.smp.part: cannot write: Input/output", false},
    {BAD_PWRITE, "3.smp.part", 8, ENOSPC, "3.smp.part: cannot write: No space left", false},
    {BAD_PWRITE, "3.smp.part", 1, 0, "3.smp.part: cannot write", false},
    {BAD_FTRUNCATE, "3.smp.part", 0, EFBIG, "3.smp.part: cannot extend: File too large", false},
    {BAD_FSYNC, "3.smp.part", 0, EIO, "3.smp.part: cannot sync: Input/output", false},
    {BAD_CLOSE, "3.smp.part", 0, EDQUOT, "3.smp.part: cannot close: Disk quota", false},
    {BAD_RENAME, "3.smp", 0, EACCES, "3.smp.part: cannot rename: Permission denied", false},
    {BAD_FSYNC, "/saved", 0, EIO, "/saved: cannot sync: Input/output", true},
    {BAD_UNLINK, "1.smp", 0, EPERM, "1.smp: cannot remove: Operation not permitted", true},
};

/* Steps 1 and 2 are saved; the save of step 3 fails, and then does not. */
static void check_failure(const failure *f, bool behind)
{
    double losses[4];
    smp *job = save_steps(1, 2, losses);
    bad_rule.call = f->call;
    bad_rule.end = f->end;
    bad_rule.after = f->after;
    bad_rule.error = f->error;
    smp_status status = behind ? smp_save_begin(job, saved) : smp_save(job, saved);
    if (behind) {
        assert_int_equal(status, SMP_OK);
        status = finish_save(job);
    }
    bad_rule.call = BAD_NONE;
    assert_int_equal(status, SMP_ERR_FAILED);
    if (!strstr(smp_last_error(), f->message))
        fail_msg("'%s' is not in '%s'", f->message, smp_last_error());
    assert_true(there(file_of(1)) && there(file_of(2)));
    assert_int_equal(there(file_of(3)), f->named);
    assert_false(there(part_of(3)));
    must(smp_save_wait(job)); /* it is over */
    losses[3] = step(job);
    must(smp_load(job, saved));
    assert_int_equal(job->step, f->named ? 3 : 2);
    assert_true(step(job) == losses[job->step - 1]);
    must(behind ? smp_save_begin(job, saved) : smp_save(job, saved));
    must(smp_save_wait(job));
    must(smp_load(job, saved));
    assert_int_equal(job->step, f->named ? 4 : 3);
    smp_finalize(job);
    for (int64_t s = 1; s < 5; s++)
        unlink(file_of(s));
}

static void test_checkpoint_failures(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
        for (int behind = 0; behind < 2; behind++)
            check_failure(&failures[i], behind);
}

/* A name that cannot be opened, a directory that cannot be made, one that is not safe, one that
 * cannot be opened, weights that are not finite: all as it was before. */
static void test_checkpoint_refused(void **state)
{
    (void)state;
    float nan[12] = {0.0f};
    char below[192], part[SMP__CHECKPOINT_PATH_BYTES];
    smp *job = open_job("adamw");
    nan[11] = strtof("nan", NULL);
    snprintf(below, sizeof below, "%s/below", saved);
    assert_int_equal(smp_save_begin(job, below), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "below: cannot create the directory: No"));
    bad_rule.call = BAD_FSYNC;
    bad_rule.end = strrchr(folder, '/');
    bad_rule.error = EIO;
    assert_int_equal(smp_save_begin(job, saved), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "saved/..: cannot sync: Input/output error"));
    assert_false(there(saved));
    bad_rule.call = BAD_NONE;
    must(smp_save_begin(job, saved));
    must(smp_save_wait(job));
    step(job);
    smp__checkpoint_part_path(part, saved, job->saving->job, 1);
    assert_int_equal(mkdir(part, 0777), 0);
    assert_int_equal(smp_save(job, saved), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "1.smp.part: cannot create: File exists"));
    assert_int_equal(rmdir(part), 0);
    float *moment = smp__state_at(job, 0, 1, 0);
    *moment = INFINITY;
    assert_int_equal(smp_save(job, saved), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "optimizer state of weight 'fc.weight' after step 1"));
    *moment = 0;
    must(smp_weight_set(job, "fc.weight", nan, 12));
    assert_int_equal(smp_save_begin(job, saved), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "saved: not saved: weight 'fc.weight' after step 1"));
    assert_false(there(file_of(1)));
    must(smp_load(job, saved));
    assert_int_equal(job->step, 0);
    smp_finalize(job);
}

static void test_checkpoint_arguments(void **state)
{
    (void)state;
    int done;
    smp *job = open_job("adamw");
    assert_int_equal(smp_save(job, NULL), SMP_ERR_INPUT);
    assert_int_equal(smp_save(NULL, saved), SMP_ERR_INPUT);
    assert_int_equal(smp_save_begin(job, NULL), SMP_ERR_INPUT);
    assert_int_equal(smp_save_begin(NULL, saved), SMP_ERR_INPUT);
    assert_int_equal(smp_save_test(job, NULL), SMP_ERR_INPUT);
    assert_int_equal(smp_save_test(NULL, &done), SMP_ERR_INPUT);
    assert_int_equal(smp_save_wait(NULL), SMP_ERR_INPUT);
    assert_int_equal(smp_load(job, NULL), SMP_ERR_INPUT);
    assert_int_equal(smp_load(NULL, saved), SMP_ERR_INPUT);
    assert_string_equal(smp_load_note(NULL), "");
    smp_finalize(job);
}

/* Calls that do a part of what they should are called again. */
static void test_checkpoint_pieces(void **state)
{
    (void)state;
    static const bad_call calls[] = {BAD_PWRITE, BAD_SHORT_PWRITE, BAD_PREAD};
    for (int i = 0; i < 3; i++) {
        smp *job = open_job("adamw");
        step(job);
        bad_rule.call = calls[i];
        bad_rule.end = calls[i] == BAD_PREAD ? ".smp" : ".part";
        bad_rule.after = calls[i] == BAD_PREAD ? 3 : 1;
        bad_rule.error = calls[i] == BAD_SHORT_PWRITE ? 0 : EINTR;
        must(smp_save(job, saved));
        const double second = step(job);
        must(smp_load(job, saved));
        assert_string_equal(smp_load_note(job), "");
        assert_true(bad_rule.after < 0); /* it did */
        assert_true(step(job) == second);
        bad_rule.call = BAD_NONE;
        smp_finalize(job);
        assert_int_equal(unlink(file_of(1)), 0);
    }
}

/* A disk that cannot read is no damage: nothing is passed over. Some weights may be new then. */
static void test_checkpoint_unreadable(void **state)
{
    (void)state;
    for (int after = 2; after < 11; after += 3) { /* behind the list: the header, the weights */
        double losses[3];
        smp *job = save_steps(1, 2, losses);
        unlink(file_of(1));
        bad_rule.call = BAD_PREAD;
        bad_rule.end = "2.smp";
        bad_rule.after = after;
        bad_rule.error = EIO;
        assert_int_equal(smp_load(job, saved), SMP_ERR_FAILED);
        assert_non_null(strstr(smp_last_error(), "2.smp: cannot read: Input/output error"));
        bad_rule.call = BAD_NONE;
        assert_int_equal(smp_save(job, saved), after == 2 ? SMP_OK : SMP_ERR_FAILED);
        smp_finalize(job);
        for (int64_t s = 2; s < 4; s++)
            unlink(file_of(s));
    }
}

/* A file system that cannot sync directories has nothing to lose there. */
static void test_checkpoint_no_sync(void **state)
{
    (void)state;
    smp *job = open_job("adamw");
    must(smp_save(job, saved));
    step(job);
    bad_rule.call = BAD_FSYNC;
    bad_rule.end = "/saved";
    bad_rule.error = EINVAL;
    must(smp_save(job, saved));
    assert_int_equal(bad_rule.call, BAD_NONE); /* it did */
    smp_finalize(job);
}

/* Where no thread can be had, the second one behind that of the lock, the job waits for the
 * disk. */
static void test_checkpoint_no_thread(void **state)
{
    (void)state;
    smp *job = open_job("adamw");
    bad_rule.call = BAD_THREAD;
    bad_rule.end = "";
    bad_rule.after = 1;
    must(smp_save_begin(job, saved));
    assert_int_equal(atomic_load(&n_synced), 1);
    must(finish_save(job));
    assert_true(there(file_of(0)));
    bad_rule.call = BAD_NONE;
    smp_finalize(job);
}

static pthread_t writer;
static sigset_t writer_mask;

static void see_writer(const char *path)
{
    if (!strstr(path, ".part"))
        return;
    writer = pthread_self();
    pthread_sigmask(SIG_SETMASK, NULL, &writer_mask);
}

/* The program's signals reach its own threads, as before. */
static void test_checkpoint_signals(void **state)
{
    (void)state;
    sigset_t own;
    smp *job = open_job("adamw");
    bad_seen = see_writer;
    must(smp_save_begin(job, saved));
    must(smp_save_wait(job));
    assert_false(pthread_equal(writer, pthread_self()));
    assert_int_equal(sigismember(&writer_mask, SIGTERM), 1);
    pthread_sigmask(SIG_SETMASK, NULL, &own);
    assert_int_equal(sigismember(&own, SIGTERM), 0);
    must(smp_save(job, saved)); /* at once: this one answers other ranks */
    assert_false(pthread_equal(writer, pthread_self()));
    smp_finalize(job);
    assert_int_equal(unlink(file_of(0)), 0);
    job = open_job("adamw");
    must(smp_save(job, saved));
    assert_null(job->saving->part.staging); /* and from the arena */
    smp_finalize(job);
}

/* What was left under the temporary name by a job that died, longer or shorter than this one's. */
static void test_checkpoint_left_part(void **state)
{
    (void)state;
    for (int64_t bytes = 0; bytes <= 100000; bytes += 100000) {
        smp *job = open_job("adamw");
        struct stat info;
        mkdir(saved, 0777);
        write_text(part_of(1), "left");
        assert_int_equal(truncate(part_of(1), bytes), 0);
        step(job);
        must(smp_save(job, saved));
        assert_int_equal(stat(file_of(1), &info), 0);
        assert_int_equal(info.st_size, header_of(file_of(1)) + HEADER + 16 * 3 * 4 + 2 * 3 * 8);
        must(smp_load(job, saved));
        assert_string_equal(smp_load_note(job), "");
        smp_finalize(job);
        assert_int_equal(unlink(file_of(1)), 0);
    }
}

/* A link under a name that half a checkpoint had: what it points to stays as it is. */
static void test_checkpoint_link_spared(void **state)
{
    (void)state;
    char victim[192];
    struct stat info;
    smp *job = open_job("adamw");
    snprintf(victim, sizeof victim, "%s/victim", folder);
    write_text(victim, "precious");
    assert_int_equal(mkdir(saved, 0777), 0);
    for (int own = 0; own < 2; own++) { /* even under the name that is to come */
        char part[SMP__CHECKPOINT_PATH_BYTES];
        smp__checkpoint_part_path(part, saved, job->saving->job, 0);
        assert_int_equal(symlink(victim, own ? part : part_of(0)), 0);
        must(smp_save(job, saved));
        assert_int_equal(stat(victim, &info), 0);
        assert_int_equal(info.st_size, sizeof "precious" - 1);
        assert_int_equal(lstat(file_of(0), &info), 0);
        assert_true(S_ISREG(info.st_mode));
    }
    assert_int_equal(unlink(victim), 0);
    smp_finalize(job);
}

/* Another job saves there: refused, and so is what a job that has lost its lock wants to save. */
static void test_checkpoint_two_jobs(void **state)
{
    (void)state;
    char lock[192];
    smp *job = open_job("adamw");
    snprintf(lock, sizeof lock, "%s/.lock", saved);
    must(smp_save(job, saved));
    assert_true(there(lock));
    step(job);
    must(smp_save_begin(job, saved));
    must(smp_save_wait(job));
    unlink(lock);
    write_text(lock, "SMP lock 1\nhost elsewhere\nboot 1\nspace 1\npid 42\nstart 9\n"
                     "job 0123456789abcdef\n");
    step(job);
    assert_int_equal(smp_save(job, saved), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "saved: another job saves there by now: process 42 on "
                                             "host elsewhere (job 0123456789abcdef)"));
    assert_false(there(file_of(2)) || there(part_of(2)));
    smp_finalize(job);
    assert_true(there(lock)); /* not this job's to remove */
    job = open_job("adamw");
    assert_int_equal(smp_save(job, saved), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "saved: another job saves there: process 42"));
    smp_finalize(job);
    assert_int_equal(unlink(lock), 0);
}

/* A program may have two jobs that save into one directory, which is theirs until both end. */
static void test_checkpoint_jobs_of_one_process(void **state)
{
    (void)state;
    char lock[192];
    smp *first = open_job("adamw"), *second = open_job("adamw");
    snprintf(lock, sizeof lock, "%s/.lock", saved);
    must(smp_save(first, saved));
    step(second);
    must(smp_save(second, saved));
    smp_finalize(first);
    assert_true(there(lock));
    step(second);
    must(smp_save(second, saved));
    smp_finalize(second);
    assert_false(there(lock));
}

/* The end of a job says nothing new, whatever becomes of the save. */
static void test_checkpoint_last_error(void **state)
{
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        smp *job = open_job("adamw");
        pthread_t thread = hold_for_a_while();
        bad_rule.call = fails ? BAD_RENAME : BAD_NONE;
        bad_rule.end = ".smp";
        bad_rule.error = EACCES;
        must(smp_save_begin(job, saved));
        assert_int_equal(smp_save_wait(NULL), SMP_ERR_INPUT);
        smp_finalize(job);
        assert_string_equal(smp_last_error(), "smp_save_wait: a NULL argument");
        assert_int_equal(there(file_of(0)), !fails);
        assert_int_equal(pthread_join(thread, NULL), 0);
        unlink(file_of(0));
    }
}

/* After a failed step nothing is agreed upon any more, but no thread stays. */
static void test_checkpoint_failed_job(void **state)
{
    (void)state;
    static smp *job; /* stays until the process ends */
    static const float x[SAMPLES * FEATURES];
    static const int32_t y[SAMPLES] = {1, 99};
    const void *inputs[2] = {x, y};
    smp_step_result result;
    int done;
    job = open_job("adamw");
    pthread_t thread = hold_for_a_while();
    must(smp_save_begin(job, saved));
    assert_int_equal(smp_step(job, inputs, &result), SMP_ERR_INPUT);
    assert_int_equal(smp_save_test(job, &done), SMP_ERR_FAILED);
    assert_int_equal(smp_save_wait(job), SMP_ERR_FAILED);
    assert_int_equal(smp_save(job, saved), SMP_ERR_FAILED);
    assert_int_equal(smp_load(job, saved), SMP_ERR_FAILED);
    assert_int_equal(atomic_load(&n_synced), 0);
    smp_finalize(job);
    assert_int_equal(atomic_load(&n_synced), 1);
    assert_false(there(file_of(0)));
    assert_int_equal(unlink(part_of(0)), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* No memory for the copy: nothing is written, and the job goes on. */
static void test_checkpoint_no_memory(void **state)
{
    (void)state;
#ifdef BAD_ALLOCATIONS
    smp *job = open_job("adamw");
    refused_bytes = 16 * 3 * sizeof(float) + 1; /* weights and two states, and never nothing */
    assert_int_equal(smp_save_begin(job, saved), SMP_ERR_NO_MEMORY);
    refused_bytes = 0;
    assert_false(there(part_of(0)));
    must(smp_save_wait(job));
    must(smp_save_begin(job, saved));
    must(smp_save_wait(job));
    assert_true(there(file_of(0)));
    smp_finalize(job);
#else
    skip();
#endif
}

/* A disk that does not answer is a wait like any other: it ends with the patience between steps. */
static void test_checkpoint_dead_disk(void **state)
{
    (void)state;
    static smp *job; /* stays until the process ends */
    job = open_job("adamw");
    job->comm->limit = (smp_comm_limits){0.001, 0.03, 0.03};
    atomic_store(&held, 1);
    must(smp_save_begin(job, saved));
    assert_int_equal(smp_save_wait(job), SMP_ERR_PEER);
    assert_non_null(strstr(smp_last_error(),
                           "no progress for 0.03 s: rank 0 waits for its part of a "
                           "checkpoint to be written to "));
    assert_int_equal(smp_save(job, saved), SMP_ERR_FAILED);
    smp_finalize(job); /* does not wait for ever, either */
    assert_int_equal(atomic_load(&n_synced), 0);
    atomic_store(&held, 0);
    assert_int_equal(pthread_join(job->saving->thread, NULL), 0);
    assert_int_equal(unlink(part_of(0)), 0);
    smp__folder_lock_release(job->saving->lock); /* held as long as something might be written */
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
#define TEST(name) cmocka_unit_test_setup_teardown(test_checkpoint_##name, reset, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(no_sync),    TEST(layout),      TEST(behind),     TEST(next_state),
        TEST(waited_for), TEST(failures),    TEST(refused),    TEST(arguments),
        TEST(pieces),     TEST(unreadable),  TEST(no_thread),  TEST(signals),
        TEST(left_part),  TEST(last_error),  TEST(failed_job), TEST(dead_disk),
        TEST(no_memory),  TEST(link_spared), TEST(two_jobs),   TEST(jobs_of_one_process),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
