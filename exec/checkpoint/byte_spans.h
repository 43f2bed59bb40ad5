/* Sets of the bytes of a file, as spans [begin, end) that rise and do not touch each other. */
#ifndef SMP_EXEC_CHECKPOINT_BYTE_SPANS_H
#define SMP_EXEC_CHECKPOINT_BYTE_SPANS_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

typedef struct smp__span {
    int64_t begin, end;
} smp__span;

/* Zero-initialise; `at` is malloc'ed. */
typedef struct smp__spans {
    smp__span *at;
    int32_t n, room;
} smp__spans;

void smp__spans_free(smp__spans *spans);
/* Adds one anywhere, or nothing if it is empty: not a set again before smp__spans_join. */
smp_status smp__spans_add(smp__spans *spans, int64_t begin, int64_t end);
/* Orders them, and makes one of those that touch or overlap. */
void smp__spans_join(smp__spans *spans);
/* Do they rise without touching, within a file of so many bytes? */
bool smp__spans_are_set(const smp__span *at, int64_t n, int64_t bytes);

/* Of two sets a new one, *out, which is freed first and is neither of them: what both have, what
 * only the first has, what one of them has. */
smp_status smp__spans_common(const smp__spans *a, const smp__spans *b, smp__spans *out);
smp_status smp__spans_without(const smp__spans *a, const smp__spans *b, smp__spans *out);
smp_status smp__spans_both(const smp__spans *a, const smp__spans *b, smp__spans *out);
/* What just one of n sets has, of set `own`. */
smp_status smp__spans_alone(const smp__spans *sets, int n, int own, smp__spans *out);

int64_t smp__spans_bytes(const smp__spans *spans);
/* Does a set have all of [begin, end)? */
bool smp__spans_cover(const smp__spans *spans, int64_t begin, int64_t end);

#endif
