/* How fast a core keeps a state in memory that outlives processes: it hashes and writes windows
 * that fit a cache, as checkpoints are written, to pages that are there. */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "exec/probe/probe_core.h"
#include "graph/math/hash_lanes.h"
#include "schedule/memory/memory.h"

/* Pieces and windows as of checkpoints, over more than a cache holds. */
enum {
    KEPT_BYTES = 48 << 20,
    KEPT_PIECE = SMP_PIECE_ELEMENTS * 4,
    KEPT_WINDOW = 16 * KEPT_PIECE,
    KEPT_TIMES = 5
};

static double own_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool keep_once(int file, const char *state)
{
    uint64_t hash[KEPT_WINDOW / KEPT_PIECE];
    for (int64_t at = 0; at < KEPT_BYTES; at += KEPT_WINDOW) {
        smp_hash_each(state + at, KEPT_PIECE, KEPT_WINDOW / KEPT_PIECE, hash);
        if (pwrite(file, state + at, KEPT_WINDOW, at) != KEPT_WINDOW)
            return false;
    }
    return true;
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

smp_status smp__probe_keeping(double *bytes_per_s)
{
    double s[KEPT_TIMES];
    char *state = malloc(KEPT_BYTES);
    const int file = memfd_create("smp-keep", MFD_CLOEXEC);
    bool written = state && file >= 0;
    if (state)
        memset(state, 1, KEPT_BYTES);
    for (int i = -1; written && i < KEPT_TIMES; i++) { /* the first time there are no pages */
        const double begin_s = own_s();
        written = keep_once(file, state);
        if (i >= 0)
            s[i] = own_s() - begin_s;
    }
    if (file >= 0)
        close(file);
    free(state);
    if (!written)
        return smp_fail(SMP_ERR_FAILED, "memory to write states to: %s", strerror(errno));
    qsort(s, KEPT_TIMES, sizeof *s, compare_times);
    *bytes_per_s = KEPT_BYTES / fmax(s[KEPT_TIMES / 2], 1e-6);
    return SMP_OK;
}
