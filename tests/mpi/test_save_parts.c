/* A checkpoint of four ranks, each of which writes its part: one that is slow holds up no step, one
 * whose disk fails ends the save on all of them and costs nothing that was saved before. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "tests/bad_calls.h"

#include <glob.h>
#include <inttypes.h>

#include "exec/save/checkpoint_part.h"
#include "tests/mpi/ranks.h"

enum { RANKS = 4, SAMPLES = 4, FEATURES = 64 };

/* Pinned, so that every rank has weights to write. */
static const char model[] = "smp: 1\n"
                            "name: parts\n"
                            "inputs:\n"
                            "  x: {dtype: float32, shape: [64]}\n"
                            "  wanted: {dtype: float32, shape: [64]}\n"
                            "ops:\n"
                            "  - {op: linear, name: a, in: x, out: h1, features: 64, stage: %d}\n"
                            "  - {op: linear, name: b, in: h1, out: h2, features: 64, stage: %d}\n"
                            "  - {op: linear, name: c, in: h2, out: h3, features: 64, stage: %d}\n"
                            "  - {op: linear, name: d, in: h3, out: y, features: 64, stage: %d}\n"
                            "  - {op: mse, name: loss, in: [y, wanted], out: loss}\n"
                            "loss: loss\n";

static char saved[96];

static smp *start(int ddp)
{
    cut c = {RANKS / ddp, ddp, SAMPLES / ddp, 1, 1};
    char text[sizeof model];
    snprintf(text, sizeof text, model, 0, 1 / ddp, 2 / ddp, 3 / ddp);
    smp_options options = options_of(model_path(text), c);
    snprintf(saved, sizeof saved, "%s/saved", ranks_folder);
    return open_job(&options);
}

static double step(smp *job)
{
    float x[SAMPLES * FEATURES], wanted[SAMPLES * FEATURES];
    smp_step_result result;
    for (int i = 0; i < SAMPLES * FEATURES; i++) {
        x[i] = (float)(7 * i % 11) / 5.0f - 1.0f;
        wanted[i] = (float)(5 * i % 13) / 6.0f - 1.0f;
    }
    int64_t first = smp_samples_before(job) * FEATURES;
    const void *inputs[] = {x + first, wanted + first};
    must(smp_step(job, inputs, &result));
    return result.loss;
}

static const char *file_of(int64_t number)
{
    static char name[160];
    snprintf(name, sizeof name, "%s/checkpoint-%010" PRId64 ".smp", saved, number);
    return name;
}

/* Half written: 0 if it is not there, else removes it if `away`. */
static int part_there(int64_t number, bool away)
{
    char pattern[160];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.checkpoint-%010" PRId64 ".smp.part", saved, number);
    const int there = glob(pattern, 0, NULL, &found) == 0;
    if (there && away)
        assert_int_equal(unlink(found.gl_pathv[0]), 0);
    globfree(&found);
    return there;
}

/* What rank 0 sees in the directory, on every rank: bit s for the step s, 1 << 16 << s for a
 * part. */
static int files(void)
{
    int found = 0;
    for (int64_t s = 0; s < 16; s++) {
        found |= (access(file_of(s), F_OK) == 0) << s;
        found |= part_there(s, false) << (s + 16);
    }
    MPI_Bcast(&found, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return found;
}

static void remove_files(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    for (int64_t s = 0; world_rank == 0 && s < 16; s++)
        unlink(file_of(s));
    if (world_rank == 0)
        assert_int_equal(rmdir(saved), 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Steps beside one slow rank: all of them write. */
static void check_slow(int ddp, int slow)
{
    int done;
    smp *job = start(ddp);
    step(job);
    atomic_store(&held, world_rank == slow);
    atomic_store(&n_synced, 0);
    atomic_store(&n_joined, 0);
    must(smp_save_begin(job, saved));
    const double second = step(job);
    for (int i = 0; i < 3; i++) {
        step(job);
        must(smp_save_test(job, &done));
        assert_true(!done);
    }
    assert_int_equal(files(), 1 << (1 + 16));
    atomic_store(&held, 0);
    must(smp_save_wait(job));
    assert_int_equal(files(), 1 << 1);
    assert_int_equal(atomic_load(&n_synced), 1);
    assert_non_null(job->saving->part.staging);
    must(smp_load(job, saved));
    assert_true(step(job) == second);
    smp_finalize(job);
    assert_int_equal(atomic_load(&n_joined), 0);
    remove_files();
}

static void test_parts_slow_rank(void **state)
{
    (void)state;
    for (int slow = 0; slow < RANKS; slow++)
        for (int ddp = 1; ddp <= 2; ddp++)
            check_slow(ddp, slow);
}

static smp_status save(smp *job, bool behind)
{
    int done = 0;
    if (!behind)
        return smp_save(job, saved);
    smp_status status = smp_save_begin(job, saved);
    while (status == SMP_OK && !done) {
        step(job);
        status = smp_save_test(job, &done);
    }
    return status;
}

typedef struct failure {
    bad_call call;
    const char *end;
    int after, error, one_rank; /* -1: on each in turn */
    const char *message;
    int left; /* files */
} failure;

static const failure failures[] = {
    {BAD_PWRITE, ".part", 1, ENOSPC, -1, "cannot write: No space left on device", 1 << 1 | 1 << 2},
    {BAD_FSYNC, ".part", 0, EIO, -1, "cannot sync: Input/output error", 1 << 1 | 1 << 2},
    {BAD_CLOSE, ".part", 0, EIO, -1, "cannot close: Input/output error", 1 << 1 | 1 << 2},
    {BAD_RENAME, ".smp", 0, EACCES, 0, "cannot rename: Permission denied", 1 << 1 | 1 << 2},
    {BAD_UNLINK, "1.smp", 0, EACCES, 0, "cannot remove: Permission denied",
     1 << 1 | 1 << 2 | 1 << 3},
};

/* The steps 1 and 2 are saved, the save of step 3 fails on one rank. */
static void check_failure(const failure *f, int rank, bool behind)
{
    double losses[4];
    smp *job = start(1);
    for (int s = 0; s < 3; s++) {
        losses[s] = step(job);
        if (s < 2)
            must(smp_save(job, saved));
    }
    assert_int_equal(files(), 1 << 1 | 1 << 2);
    bad_rule.end = f->end;
    bad_rule.after = f->after;
    bad_rule.error = f->error;
    bad_rule.call = world_rank == rank ? f->call : BAD_NONE;
    smp_status status = save(job, behind); /* the same on every rank */
    if (status != SMP_ERR_FAILED || !strstr(smp_last_error(), f->message))
        fail_msg("call %d fails on rank %d, %s: status %d, '%s' is not in '%s'", (int)f->call, rank,
                 behind ? "behind" : "at once", (int)status, f->message, smp_last_error());
    bad_rule.call = BAD_NONE;
    assert_int_equal(files(), f->left);
    must(smp_load(job, saved));
    if (f->left < 1 << 3)
        assert_true(step(job) == losses[2]);
    step(job);
    must(save(job, behind));
    smp_finalize(job);
    remove_files();
}

static void test_parts_one_rank_fails(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
        for (int rank = 0; rank < RANKS; rank++)
            if (failures[i].one_rank < 0 || failures[i].one_rank == rank)
                for (int behind = 0; behind < 2; behind++)
                    check_failure(&failures[i], rank, behind);
}

/* One rank has failed, another is slow: whoever looks does not wait for it. */
static void test_parts_failed_and_slow(void **state)
{
    (void)state;
    int done = 1;
    smp *job = start(1);
    job->comm->limit = (smp_comm_limits){0.5, 15, 15};
    bad_rule.end = ".part";
    bad_rule.after = 1;
    bad_rule.error = ENOSPC;
    bad_rule.call = world_rank == 2 ? BAD_PWRITE : BAD_NONE;
    atomic_store(&held, world_rank == 1);
    must(smp_save_begin(job, saved));
    while (world_rank == 2 && !atomic_load(&job->saving->ended))
        usleep(1000);
    MPI_Barrier(MPI_COMM_WORLD);
    must(smp_save_test(job, &done));
    assert_int_equal(done, 0);
    atomic_store(&held, 0);
    assert_int_equal(smp_save_wait(job), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "rank 2: "));
    assert_int_equal(files(), 0);
    smp_finalize(job);
    remove_files();
}

/* Rank 2 cannot read what the others can. */
static void test_parts_one_rank_cannot_read(void **state)
{
    (void)state;
    for (int after = 0; after < 6; after += 3) { /* the header, or the weights */
        smp *job = start(1);
        must(smp_save(job, saved));
        bad_rule.end = ".smp";
        bad_rule.after = after;
        bad_rule.error = EIO;
        bad_rule.call = world_rank == 2 ? BAD_PREAD : BAD_NONE;
        assert_int_equal(smp_load(job, saved), SMP_ERR_FAILED);
        assert_non_null(strstr(smp_last_error(), "cannot read: Input/output error"));
        bad_rule.call = BAD_NONE;
        assert_int_equal(smp_load(job, saved), after == 0 ? SMP_OK : SMP_ERR_FAILED);
        smp_finalize(job);
        remove_files();
    }
}

/* A rank that fails while the others look after a save: they hear of it there. */
static void test_parts_one_rank_gone(void **state)
{
    (void)state;
    int done;
    smp *job = start(1);
    atomic_store(&held, 1);
    must(smp_save_begin(job, saved));
    MPI_Barrier(MPI_COMM_WORLD); /* nobody is still in there */
    if (world_rank == 2) {
        smp__comm_notify(job->comm, smp_fail(SMP_ERR_FAILED, "gone"));
    } else {
        assert_int_equal(smp_save_test(job, &done), SMP_ERR_PEER);
        assert_non_null(strstr(smp_last_error(), "rank 2 says: gone"));
    }
    atomic_store(&held, 0);
    smp_finalize(job);
    MPI_Barrier(MPI_COMM_WORLD); /* nobody writes */
    assert_int_equal(files(), 1 << 16);
    if (world_rank == 0)
        assert_int_equal(part_there(0, true), 1);
    remove_files();
}

/* It is in the file's layout, which each rank finds by itself. */
static void test_parts_own_states_of_two_lengths(void **state)
{
    static char own[8];
    char text[sizeof model];
    smp *job = NULL;
    (void)state;
    snprintf(text, sizeof text, model, 0, 1, 2, 3);
    smp_options options = options_of(model_path(text), (cut){RANKS, 1, SAMPLES, 1, 1});
    options.runtime.own_state = own;
    options.runtime.own_bytes = world_rank == 2 ? 7 : 8;
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "rank 2: own_bytes 7: another rank has 8");
    options.runtime.own_bytes = 8;
    smp_finalize(open_job(&options));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_slow_rank),
        cmocka_unit_test(test_parts_one_rank_fails),
        cmocka_unit_test(test_parts_failed_and_slow),
        cmocka_unit_test(test_parts_one_rank_cannot_read),
        cmocka_unit_test(test_parts_own_states_of_two_lengths),
        cmocka_unit_test(test_parts_one_rank_gone), /* the last: MPI may keep what it was at */
    };
    RUN_ON_RANKS(argc, argv, tests);
}
