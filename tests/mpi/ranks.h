/* What the tests on several ranks share: a model in a file that every rank reads, jobs whose
 * failure ends all ranks, weights beside those of the sequential trainer. */
#ifndef SMP_TESTS_MPI_RANKS_H
#define SMP_TESTS_MPI_RANKS_H

#include <math.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/state/handle.h"
#include "exec/state/weights.h"
#include "tests/exec/open_ranks.h"
#include "tests/sequential.h"

static char model_file[128]; /* "": none */

/* The one model of the test, which holds `text` from now on. Collective. */
static inline const char *model_path(const char *text)
{
    snprintf(model_file, sizeof model_file, "%s/model.yaml", ranks_folder);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0) {
        FILE *file = fopen(model_file, "w");
        assert_non_null(file);
        assert_true(fputs(text, file) >= 0);
        assert_int_equal(fclose(file), 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return model_file;
}

typedef struct cut {
    int stages, ddp, microbatches, batch, chunks;
} cut;

/* Plain gradient descent: a weight moves as far as its gradient is long. */
static inline smp_options options_of(const char *path, cut c)
{
    smp_options options = smp_options_default();
    options.model = path;
    options.planning.stages = c.stages;
    options.planning.ddp = c.ddp;
    options.planning.chunks = c.chunks;
    options.planning.microbatches = c.microbatches;
    options.planning.microbatch_size = c.batch;
    options.planning.schedule = c.chunks > 1 ? "interleaved" : "1f1b";
    options.optimizer.name = "sgd";
    options.optimizer.lr = 0.1f;
    options.runtime.timeout_s = 30;
    return options;
}

static inline smp *open_job(const smp_options *options)
{
    smp *job = NULL;
    must(smp_init(&job, options));
    return job;
}

/* Copies the job's weights to the reference, or returns the largest difference. Collective. */
static inline double walk_weights(smp *job, sequential *reference, bool set)
{
    double largest = 0.0;
    for (int i = 0; i < smp_weight_count(job); i++) {
        int64_t n = smp_weight_elements(job, i);
        float *values = malloc((size_t)n * 4), *own = sequential_weight(reference, i);
        assert_non_null(values);
        must(smp_weight_get(job, smp_weight_name(job, i), values, n));
        for (int64_t k = 0; k < n && !set; k++)
            largest = fmax(largest, fabs((double)values[k] - (double)own[k]));
        if (set)
            memcpy(own, values, (size_t)n * 4);
        free(values);
    }
    return largest;
}

/* The hash of the weights, which must be that of every replica; on every rank or on none, so that
 * no rank waits for one that failed. Collective. */
static inline uint64_t weights_hash(smp *job)
{
    uint64_t own, least, most;
    must(smp_weights_hash(job, &own));
    MPI_Allreduce(&own, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&own, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    assert_true(least == most);
    return own;
}

/* The body of main(), with an array of tests. */
#define RUN_ON_RANKS(argc, argv, tests)                                                            \
    do {                                                                                           \
        open_ranks(&(argc), &(argv));                                                              \
        int failed = cmocka_run_group_tests(tests, NULL, NULL);                                    \
        MPI_Barrier(MPI_COMM_WORLD);                                                               \
        if (world_rank == 0)                                                                       \
            unlink(model_file);                                                                    \
        return close_ranks(failed);                                                                \
    } while (0)

#endif
