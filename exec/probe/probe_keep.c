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
    KEPT_WINDOW = SMP_HASH_ARRAYS * KEPT_PIECE,
    KEPT_TIMES = 5
};

static double own_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void keep_once(char *place, const char *state)
{
    uint64_t hash[KEPT_WINDOW / KEPT_PIECE];
    for (int64_t at = 0; at < KEPT_BYTES; at += KEPT_WINDOW) {
        smp_hash_each(state + at, KEPT_PIECE, KEPT_WINDOW / KEPT_PIECE, hash);
        memcpy(place + at, state + at, KEPT_WINDOW);
    }
}

/* Memory as that of a file in memory, or NULL. */
static char *map_place(void)
{
    const int file = memfd_create("smp-keep", MFD_CLOEXEC);
    void *at = MAP_FAILED;
    if (file >= 0 && ftruncate(file, KEPT_BYTES) == 0)
        at = mmap(NULL, KEPT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    return at == MAP_FAILED ? NULL : at;
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

smp_status smp__probe_keeping(double *bytes_per_s)
{
    double s[KEPT_TIMES];
    char *state = malloc(KEPT_BYTES), *place = map_place();
    const bool is_there = state && place;
    if (state)
        memset(state, 1, KEPT_BYTES);
    for (int i = -1; is_there && i < KEPT_TIMES; i++) { /* the first time there are no pages */
        const double begin_s = own_s();
        keep_once(place, state);
        if (i >= 0)
            s[i] = own_s() - begin_s;
    }
    if (place)
        munmap(place, KEPT_BYTES);
    free(state);
    if (!is_there)
        return smp_fail(SMP_ERR_FAILED, "memory to write states to: %s", strerror(errno));
    qsort(s, KEPT_TIMES, sizeof *s, compare_times);
    *bytes_per_s = KEPT_BYTES / fmax(s[KEPT_TIMES / 2], 1e-6);
    return SMP_OK;
}
