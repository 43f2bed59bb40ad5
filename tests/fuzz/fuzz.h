/* What the fuzz targets share. A target is one function that takes any bytes: libFuzzer calls it,
 * or the replay does. A reader may refuse its input, saying why; all else that is not success is a
 * fault, and ends the process. */
#ifndef SMP_TESTS_FUZZ_FUZZ_H
#define SMP_TESTS_FUZZ_FUZZ_H
#define _GNU_SOURCE /* memfd_create */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "graph/model/graph.h"

/* The name is libFuzzer's. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The model that plans, profiles and checkpoints of the corpus are for. */
#define FUZZ_MODEL SMP_SOURCE_DIR "/tests/fuzz/corpus/model/small.yaml"

#define FUZZ_REQUIRE(condition) fuzz_require(condition, #condition, __FILE__, __LINE__)

static inline void fuzz_require(bool holds, const char *what, const char *file, int line)
{
    if (holds)
        return;
    fprintf(stderr, "%s:%d: does not hold: %s; last error: %s\n", file, line, what,
            smp_last_error());
    abort();
}

/* Was it taken? False if it was refused with a reason. */
static inline bool fuzz_taken(smp_status status)
{
    FUZZ_REQUIRE(status == SMP_OK || (status == SMP_ERR_INPUT && smp_last_error()[0] != '\0'));
    return status == SMP_OK;
}

/* Path of a file of these bytes, until the next call. It lies in memory alone. */
static inline const char *fuzz_file(const void *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        FUZZ_REQUIRE(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    FUZZ_REQUIRE(ftruncate(fd, 0) == 0);
    FUZZ_REQUIRE(pwrite(fd, data, size, 0) == (ssize_t)size);
    return path;
}

static inline const smp_graph *fuzz_model(void)
{
    static smp_graph *graph;
    if (!graph)
        FUZZ_REQUIRE(smp_graph_read(FUZZ_MODEL, &graph) == SMP_OK);
    return graph;
}

#endif
