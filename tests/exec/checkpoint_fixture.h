/* A tiny model, a directory to save into, and what tests of checkpoints do with both. One rank. */
#ifndef SMP_TESTS_CHECKPOINT_FIXTURE_H
#define SMP_TESTS_CHECKPOINT_FIXTURE_H

#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
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
#include "exec/state/progress.h"

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

static inline void must(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

static inline const char *file_of(int64_t step)
{
    static char path[4][192];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/checkpoint-%010" PRId64 ".smp", saved, step);
    return path[turn];
}

/* The half written file of a step, of whatever job; what no job is called by if there is none. */
static inline const char *part_of(int64_t step)
{
    static char path[256];
    char pattern[256];
    glob_t found;
    snprintf(path, sizeof path, "%s.part", file_of(step));
    snprintf(pattern, sizeof pattern, "%s/*.checkpoint-%010" PRId64 ".smp.part", saved, step);
    if (glob(pattern, 0, NULL, &found) == 0)
        snprintf(path, sizeof path, "%s", found.gl_pathv[0]);
    globfree(&found);
    return path;
}

static inline void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static inline smp *open_model(const char *path, const char *optimizer)
{
    smp *job = NULL;
    smp_options options = smp_options_default();
    options.model = path;
    options.optimizer.name = optimizer;
    options.optimizer.lr = 0.1f;
    options.planning.microbatches = 1;
    options.planning.microbatch_size = SAMPLES;
    must(smp_init(&job, &options));
    return job;
}

static inline smp *open_job(const char *optimizer)
{
    return open_model(model_path, optimizer);
}

/* The loss before the step: it tells one state from another. */
static inline double step(smp *job)
{
    static const float x[SAMPLES * FEATURES] = {1, 2, 3, -1, 0, 2};
    static const int32_t y[SAMPLES] = {1, 3};
    const void *inputs[2] = {x, y};
    smp_step_result result;
    must(smp_step(job, inputs, &result));
    return result.loss;
}

static inline int set_up(void **state)
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

static inline int tear_down(void **state)
{
    (void)state;
    for (int64_t s = 0; s < 100; s++)
        unlink(file_of(s));
    rmdir(saved);
    unlink(model_path);
    return rmdir(folder);
}

static inline void flip(const char *path, int64_t at)
{
    int fd = open(path, O_RDWR);
    char byte = 0;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

/* Where the header of a file begins; one made by hand begins with it. */
static inline int64_t header_of(const char *path)
{
    int fd = open(path, O_RDONLY);
    uint64_t head = 0;
    assert_true(fd >= 0);
    const bool behind = pread(fd, &head, sizeof head, 0) == sizeof head && head < 1 << 20;
    assert_int_equal(close(fd), 0);
    return behind ? (int64_t)(head + sizeof head) : 0;
}

/* Saves after the steps first .. last, each; the loss of the step after it in losses[step]. */
static inline smp *save_steps(int first, int last, double *losses)
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

static inline void expect_refused(smp *job, const char *part)
{
    assert_int_equal(smp_load(job, saved), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), part))
        fail_msg("'%s' is not in '%s'", part, smp_last_error());
}

/* Writes `header`, whole, over that of a file. */
static inline void set_header(const char *path, const char *header, bool hashed)
{
    char bytes[HEADER] = "";
    snprintf(bytes, HEADER - 8, "%s", header);
    uint64_t hash = smp_hash(0, bytes, HEADER - 8);
    if (hashed)
        memcpy(bytes + HEADER - 8, &hash, 8);
    const int64_t at = header_of(path);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, HEADER, at), HEADER);
    assert_int_equal(close(fd), 0);
}

#endif
