/* Linear scan, as register allocators do it (Poletto and Sarkar 1999): buffers by rising begin,
 * each into the smallest sufficient gap between those alive, which stand in a short list by offset.
 * Sees every buffer once and sorts nothing; what it wastes shows against the bound that it finds on
 * the way. */
#include "schedule/memory/interval_sweep.h"

#include <string.h>

#include "graph/base/clock.h"

enum { MOST_ALIVE = 64 };

typedef struct alive_buffer {
    int64_t offset, end_offset, end;
} alive_buffer;

typedef struct sweep {
    alive_buffer list[MOST_ALIVE]; /* by rising offset */
    int n;
    int64_t bytes; /* of those in the list */
} sweep;

/* Drops those that ended before `now`, and finds the smallest gap that takes `size`, the lowest
 * among equals, else the end. *at: where it stands in the list. */
static int64_t find_gap(sweep *s, int64_t now, int64_t size, int *at)
{
    int n = 0, best_at = -1;
    int64_t free_from = 0, best = 0, best_size = INT64_MAX;
    for (int i = 0; i < s->n; i++) {
        alive_buffer buffer = s->list[i];
        if (buffer.end < now) {
            s->bytes -= buffer.end_offset - buffer.offset;
            continue;
        }
        int64_t gap = buffer.offset - free_from;
        if (gap >= size && gap < best_size) {
            best = free_from;
            best_size = gap;
            best_at = n;
        }
        free_from = buffer.end_offset;
        s->list[n++] = buffer;
    }
    s->n = n;
    *at = best_at >= 0 ? best_at : n;
    return best_at >= 0 ? best : free_from;
}

bool smp__interval_sweep(int64_t n, const int64_t *size, const int64_t *begin, const int64_t *end,
                         int64_t *offset, int64_t *total, int64_t *bound)
{
    sweep s = {.n = 0};
    *total = *bound = 0;
    for (int64_t i = 0, last = INT64_MIN; i < n; i++) {
        int at;
        if (begin[i] < last)
            return false;
        last = begin[i];
        if (size[i] == 0)
            continue;
        smp_work_count(SMP_WORK_COMPARE, s.n);
        int64_t place = offset[i] = find_gap(&s, begin[i], size[i], &at);
        if (s.n == MOST_ALIVE || place > INT64_MAX / 4 || s.bytes > INT64_MAX / 4)
            return false;
        memmove(&s.list[at + 1], &s.list[at], (size_t)(s.n++ - at) * sizeof s.list[0]);
        s.list[at] = (alive_buffer){place, place + size[i], end[i]};
        s.bytes += size[i];
        if (s.bytes > *bound)
            *bound = s.bytes;
        if (place + size[i] > *total)
            *total = place + size[i];
    }
    return true;
}
