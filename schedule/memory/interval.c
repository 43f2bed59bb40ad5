/* Packing of buffers with known lifetimes: offline dynamic storage allocation.
 *
 * Greedy by size with best fit (as in Pisarchyk and Lee, "Efficient Memory Management for Deep
 * Neural Net Inference", 2020): the largest buffer first, into the smallest sufficient gap between
 * the placed buffers alive at the same time. Buffers of one size go by rising begin, which is
 * optimal among themselves; if the result misses the bound by more than 2 %, longer first is tried
 * as well.
 *
 * Neighbours of a buffer come from a segment tree over begin times, O(log n + neighbours) and a
 * sort, or, where most buffers overlap, from a scan of all placed ones in offset order. Long lists
 * are first placed in two cheaper ways. With few buffers alive at a time: in one pass
 * (interval_sweep.h), which is taken where it reaches the bound or, with thousands, comes within
 * 5 % of it. Else buffers of equal size are coloured, O(n log n): the stashes of a long pipeline
 * have few sizes, all of which are most at the same time, so that this reaches the bound; with
 * thousands, 1 % above it is enough. Beyond a budget of 10^7 steps the colouring stands. */
#include "schedule/memory/layout.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"

#include "schedule/memory/bytes.h"
#include "schedule/memory/interval_sweep.h"

enum {
    LONG_LIST = 256,    /* from here on the cheap ways are tried first, taken at the bound, */
    MANY_BUFFERS = 4096 /* and from here on a little above it */
};

/* Buffers placed so far, by offset: [n] each. Lifetimes count begin times (packing.time), from the
 * first leaf to the last; the compiler compares eight of them at once. */
typedef struct placed_buffers {
    int64_t n;
    int16_t *first, *last;
    int64_t *offset, *end_offset;
    uint8_t *alive; /* scratch, a multiple of ALIVE_AT_ONCE long */
} placed_buffers;

enum { ALIVE_AT_ONCE = 8 };

typedef struct keyed {
    int64_t key, index;
} keyed;

typedef struct packing {
    int64_t n; /* buffers with bytes > 0 */
    const int64_t *bytes, *begin, *end;
    int64_t *size;   /* of each buffer, aligned */
    int64_t *offset; /* result of the current try */
    int64_t *order;  /* buffers in the order of placing */
    int64_t bound;
    bool dense;
    placed_buffers placed; /* dense */
    /* sparse: a leaf for each distinct begin time */
    int64_t *time; /* rising */
    int64_t n_time;
    int64_t leaves;          /* power of two */
    int64_t *by_begin;       /* buffers by rising begin */
    int64_t *starts;         /* [n_time + 1] into by_begin */
    bool *is_placed;         /* by buffer */
    int64_t *node;           /* [2 * leaves] head of a list of buffers that cover the node */
    int64_t *link, *covered; /* list cells: next cell, buffer */
    int64_t n_cell, cell_capacity;
    int64_t *near; /* neighbours of the buffer being placed, by offset */
    keyed *spare;  /* [n] */
} packing;

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, FEW_ITEMS = 32 };

static void insert_all(keyed *item, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        const keyed moved = item[i];
        int64_t at = i;
        for (; at > 0 && item[at - 1].key > moved.key; at--)
            item[at] = item[at - 1];
        item[at] = moved;
    }
}

/* One digit of the keys less `least`; false: all have the same, nothing was moved. */
static bool sort_digit(const keyed *item, int64_t n, int64_t least, int shift, keyed *out)
{
    int64_t begin[DIGITS + 1] = {0};
#define DIGIT(i) (((uint64_t)item[i].key - (uint64_t)least) >> shift & (DIGITS - 1))
    for (int64_t i = 0; i < n; i++)
        begin[DIGIT(i) + 1]++;
    if (begin[DIGIT(0) + 1] == n)
        return false;
    for (int d = 0; d < DIGITS; d++)
        begin[d + 1] += begin[d];
    for (int64_t i = 0; i < n; i++)
        out[begin[DIGIT(i)]++] = item[i];
#undef DIGIT
    return true;
}

/* By rising key; of equal keys the first stays the first. spare: [n]. By digits, the least
 * first: half of the effort of plans with hundreds of micro-batches went into sorting. */
static void sort_items(keyed *item, int64_t n, keyed *spare)
{
    int64_t least = INT64_MAX, most = INT64_MIN;
    bool sorted = true;
    if (n <= FEW_ITEMS) {
        insert_all(item, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        sorted &= i == 0 || item[i - 1].key <= item[i].key;
        least = item[i].key < least ? item[i].key : least;
        most = item[i].key > most ? item[i].key : most;
    }
    keyed *from = item, *to = spare;
    const uint64_t range = (uint64_t)most - (uint64_t)least;
    for (int shift = 0; !sorted && shift < 64 && range >> shift > 0; shift += DIGIT_BITS)
        if (sort_digit(from, n, least, shift, to)) {
            keyed *kept = from;
            from = to;
            to = kept;
        }
    if (from != item)
        memcpy(item, from, (size_t)n * sizeof *item);
}

typedef enum packing_order { ORDER_BEGIN, ORDER_LONGER } packing_order;

static void sort_buffers(packing *p, packing_order order, keyed *scratch)
{
    for (int64_t i = 0; i < p->n; i++) {
        const int64_t buffer = p->by_begin[i];
        scratch[i] = (keyed){p->begin[buffer] - p->end[buffer], buffer};
    }
    if (order == ORDER_LONGER)
        sort_items(scratch, p->n, p->spare);
    for (int64_t i = 0; i < p->n; i++)
        scratch[i].key = -p->size[scratch[i].index];
    sort_items(scratch, p->n, p->spare);
    for (int64_t i = 0; i < p->n; i++)
        p->order[i] = scratch[i].index;
}

/* Largest number of bytes alive at one time; *pairs: how many pairs of buffers overlap. */
static smp_status measure(packing *p, keyed *scratch, double *pairs)
{
    int64_t alive = 0, live = 0, next_end = 0;
    for (int64_t i = 0; i < p->n; i++)
        scratch[i] = (keyed){p->end[p->by_begin[i]], p->by_begin[i]};
    sort_items(scratch, p->n, p->spare);
    *pairs = 0;
    p->bound = 0;
    for (int64_t i = 0; i < p->n; i++) {
        int64_t buffer = p->by_begin[i];
        while (next_end < i && scratch[next_end].key < p->begin[buffer]) {
            alive -= p->size[scratch[next_end++].index];
            live--;
        }
        *pairs += (double)live++;
        SMP_TRY(smp__bytes_add(&alive, p->size[buffer]));
        if (alive > p->bound)
            p->bound = alive;
    }
    return SMP_OK;
}

/* Index of the last leaf whose time is at most `time`; the first leaf's time is the least of
 * all. */
static int64_t leaf_of(const packing *p, int64_t time)
{
    int64_t low = 0, high = p->n_time;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (p->time[middle] <= time)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void cover(packing *p, int64_t node, int64_t buffer)
{
    p->covered[p->n_cell] = buffer;
    p->link[p->n_cell] = p->node[node];
    p->node[node] = p->n_cell++;
}

static void tree_insert(packing *p, int64_t buffer)
{
    int64_t low = leaf_of(p, p->begin[buffer]) + p->leaves;
    int64_t high = leaf_of(p, p->end[buffer]) + p->leaves + 1;
    p->is_placed[buffer] = true;
    for (; low < high; low /= 2, high /= 2) {
        if (low & 1)
            cover(p, low++, buffer);
        if (high & 1)
            cover(p, --high, buffer);
    }
}

/* Placed buffers that are alive when `buffer` begins, then those that begin later in its life. */
static int64_t tree_collect(packing *p, int64_t buffer, keyed *scratch)
{
    int64_t n = 0, first = leaf_of(p, p->begin[buffer]), last = leaf_of(p, p->end[buffer]);
    for (int64_t node = first + p->leaves; node >= 1; node /= 2)
        for (int64_t cell = p->node[node]; cell >= 0; cell = p->link[cell])
            scratch[n++] = (keyed){p->offset[p->covered[cell]], p->covered[cell]};
    for (int64_t i = p->starts[first + 1]; i < p->starts[last + 1]; i++)
        if (p->is_placed[p->by_begin[i]])
            scratch[n++] = (keyed){p->offset[p->by_begin[i]], p->by_begin[i]};
    sort_items(scratch, n, p->spare);
    for (int64_t i = 0; i < n; i++)
        p->near[i] = scratch[i].index;
    return n;
}

/* The smallest gap that takes `size`, the lowest among equals; else the end. */
static int64_t best_gap(const packing *p, int64_t n_near, int64_t size)
{
    int64_t free_from = 0, best = -1, best_size = INT64_MAX;
    for (int64_t i = 0; i < n_near; i++) {
        int64_t gap = p->offset[p->near[i]] - free_from;
        if (gap >= size && gap < best_size) {
            best = free_from;
            best_size = gap;
        }
        int64_t end = p->offset[p->near[i]] + p->size[p->near[i]];
        if (end > free_from)
            free_from = end;
    }
    return best >= 0 ? best : free_from;
}

/* Marks those that are alive at a time between two leaves. */
static void mark_alive(const placed_buffers *placed, int16_t first, int16_t last)
{
    const int16_t *restrict begin = placed->first, *restrict end = placed->last;
    uint8_t *restrict alive = placed->alive;
    const int64_t n = placed->n;
    for (int64_t i = 0; i < n; i++)
        alive[i] = (uint8_t)((begin[i] <= last) & (end[i] >= first));
    for (int64_t i = n; i % ALIVE_AT_ONCE != 0; i++)
        alive[i] = 0;
}

static bool any_alive(const uint8_t *alive)
{
    uint64_t all;
    memcpy(&all, alive, sizeof all);
    return all != 0;
}

/* The same between all placed ones, of which those alive at another time are passed over. */
static int64_t scan_gap(packing *p, int64_t buffer)
{
    const placed_buffers placed = p->placed;
    const int64_t size = p->size[buffer];
    int64_t free_from = 0, best = -1, best_size = INT64_MAX;
    mark_alive(&placed, (int16_t)leaf_of(p, p->begin[buffer]), (int16_t)leaf_of(p, p->end[buffer]));
    for (int64_t block = 0; block < placed.n; block += ALIVE_AT_ONCE) {
        if (!any_alive(&placed.alive[block]))
            continue;
        for (int64_t i = block; i < block + ALIVE_AT_ONCE; i++) {
            if (!placed.alive[i])
                continue;
            int64_t gap = placed.offset[i] - free_from;
            if (gap >= size && gap < best_size) {
                best = free_from;
                best_size = gap;
            }
            free_from = placed.end_offset[i] > free_from ? placed.end_offset[i] : free_from;
        }
    }
    return best >= 0 ? best : free_from;
}

static void scan_insert(packing *p, int64_t buffer)
{
    placed_buffers *placed = &p->placed;
    int64_t low = 0, high = placed->n, offset = p->offset[buffer];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (placed->offset[middle] <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    const size_t n = (size_t)(placed->n++ - low);
#define MAKE_ROOM(list) memmove(&(list)[low + 1], &(list)[low], n * sizeof *(list))
    MAKE_ROOM(placed->first);
    MAKE_ROOM(placed->last);
    MAKE_ROOM(placed->offset);
    MAKE_ROOM(placed->end_offset);
#undef MAKE_ROOM
    placed->first[low] = (int16_t)leaf_of(p, p->begin[buffer]);
    placed->last[low] = (int16_t)leaf_of(p, p->end[buffer]);
    placed->offset[low] = offset;
    placed->end_offset[low] = offset + p->size[buffer];
}

/* Ends as soon as it is clear that less than `most` does not do; < 0: never. */
static smp_status place_all(packing *p, keyed *scratch, int64_t most, int64_t *total)
{
    *total = 0;
    p->placed.n = p->n_cell = 0;
    for (int64_t i = 0; i < 2 * p->leaves; i++)
        p->node[i] = -1;
    for (int64_t i = 0; i < p->n; i++)
        p->is_placed[p->by_begin[i]] = false;
    for (int64_t i = 0; i < p->n; i++) {
        int64_t buffer = p->order[i];
        int64_t n_near = p->placed.n;
        if (p->dense) {
            p->offset[buffer] = scan_gap(p, buffer);
        } else {
            n_near = tree_collect(p, buffer, scratch);
            p->offset[buffer] = best_gap(p, n_near, p->size[buffer]);
        }
        smp_work_count(p->dense ? SMP_WORK_COMPARE : SMP_WORK_BUFFER, (double)n_near);
        int64_t end = p->offset[buffer];
        SMP_TRY(smp__bytes_add(&end, p->size[buffer]));
        if (end > *total)
            *total = end;
        if (most >= 0 && end >= most)
            return SMP_OK;
        if (p->dense)
            scan_insert(p, buffer);
        else
            tree_insert(p, buffer);
    }
    return SMP_OK;
}

/* Colours the buffers of each size by themselves: in order of begin, each takes a slot that became
 * free or a new one. The ends of the size class are sorted, so slots become free in that order. */
static smp_status colour_all(packing *p, keyed *scratch, int64_t *total)
{
    *total = 0;
    for (int64_t first = 0, last; first < p->n; first = last) {
        int64_t size = p->size[p->order[first]];
        for (last = first; last < p->n && p->size[p->order[last]] == size; last++)
            scratch[last] = (keyed){p->end[p->order[last]], p->order[last]};
        sort_items(&scratch[first], last - first, p->spare);
        int64_t expired = first, n_free = 0;
        for (int64_t i = first; i < last; i++) {
            int64_t buffer = p->order[i];
            /* Whatever ended before this begin began earlier, so it has its place already. */
            for (; scratch[expired].key < p->begin[buffer]; expired++)
                p->near[n_free++] = p->offset[scratch[expired].index];
            if (n_free > 0) {
                p->offset[buffer] = p->near[--n_free];
            } else {
                p->offset[buffer] = *total;
                SMP_TRY(smp__bytes_add(total, size));
            }
        }
    }
    return SMP_OK;
}

/* Sorts by begin, numbers the distinct begin times and sizes the tree for it. */
static smp_status index_times(packing *p, smp_arena *arena, int64_t n_all, keyed *scratch)
{
    for (int64_t i = 0, k = 0; i < n_all; i++)
        if (p->size[i] > 0)
            scratch[k++] = (keyed){p->begin[i], i};
    sort_items(scratch, p->n, p->spare);
    for (int64_t i = 0; i < p->n; i++) {
        p->by_begin[i] = scratch[i].index;
        if (i == 0 || scratch[i].key != scratch[i - 1].key) {
            p->starts[p->n_time] = i;
            p->time[p->n_time++] = scratch[i].key;
        }
    }
    p->starts[p->n_time] = p->n;
    int levels = 1;
    for (p->leaves = 1; p->leaves < p->n_time; p->leaves *= 2)
        levels++;
    p->node = SMP_ARENA_NEW(arena, int64_t, (size_t)(2 * p->leaves));
    p->cell_capacity = p->n * 2 * levels;
    return p->node ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status allocate(packing *p, smp_arena *arena, int64_t n_all, keyed **scratch)
{
    size_t n = (size_t)n_all;
    p->offset = SMP_ARENA_NEW(arena, int64_t, n);
    p->order = SMP_ARENA_NEW(arena, int64_t, n);
    p->time = SMP_ARENA_NEW(arena, int64_t, n + 1);
    p->starts = SMP_ARENA_NEW(arena, int64_t, n + 1);
    p->by_begin = SMP_ARENA_NEW(arena, int64_t, n);
    p->is_placed = SMP_ARENA_NEW(arena, bool, n);
    p->near = SMP_ARENA_NEW(arena, int64_t, n);
    p->spare = SMP_ARENA_NEW(arena, keyed, n);
    *scratch = SMP_ARENA_NEW(arena, keyed, n);
    if (!p->offset || !p->order || !p->time || !p->starts || !p->by_begin || !p->is_placed ||
        !p->near || !p->spare || !*scratch)
        return SMP_ERR_NO_MEMORY;
    return SMP_OK;
}

static smp_status allocate_placed(placed_buffers *placed, smp_arena *arena, size_t n)
{
    placed->first = SMP_ARENA_NEW(arena, int16_t, n);
    placed->last = SMP_ARENA_NEW(arena, int16_t, n);
    placed->offset = SMP_ARENA_NEW(arena, int64_t, n);
    placed->end_offset = SMP_ARENA_NEW(arena, int64_t, n);
    placed->alive = SMP_ARENA_NEW(arena, uint8_t, n + ALIVE_AT_ONCE);
    return placed->first && placed->last && placed->offset && placed->end_offset && placed->alive
               ? SMP_OK
               : SMP_ERR_NO_MEMORY;
}

/* One try; keeps the offsets if they are the best so far. */
static smp_status try_order(packing *p, packing_order order, bool colour, keyed *scratch,
                            int64_t *offset, int64_t *total)
{
    int64_t used;
    smp_work_count(SMP_WORK_BUFFER, (double)p->n);
    sort_buffers(p, order, scratch);
    SMP_TRY(colour ? colour_all(p, scratch, &used) : place_all(p, scratch, *total, &used));
    if (*total >= 0 && used >= *total)
        return SMP_OK;
    for (int64_t i = 0; i < p->n; i++)
        offset[p->by_begin[i]] = p->offset[p->by_begin[i]];
    *total = used;
    return SMP_OK;
}

/* Close enough to the bound: no other order is tried. */
static bool is_good(const packing *p, int64_t total)
{
    return total - p->bound <= p->bound / (p->n >= MANY_BUFFERS ? 20 : 50);
}

/* As good as the search could make it. */
static bool is_tight(const packing *p, int64_t total)
{
    return total - p->bound <= (p->n >= MANY_BUFFERS ? p->bound / 100 : 0);
}

static smp_status round_sizes(packing *p, smp_arena *arena, int64_t n, int64_t align)
{
    p->size = SMP_ARENA_NEW(arena, int64_t, (size_t)n);
    if (!p->size)
        return SMP_ERR_NO_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        if (p->bytes[i] < 0 || p->bytes[i] > INT64_MAX / 4 || p->end[i] < p->begin[i])
            return smp_fail(SMP_ERR_INPUT, "buffer %lld: %lld bytes alive from %lld to %lld",
                            (long long)i, (long long)p->bytes[i], (long long)p->begin[i],
                            (long long)p->end[i]);
        p->size[i] = (p->bytes[i] + align - 1) / align * align;
        p->n += p->size[i] > 0;
    }
    return SMP_OK;
}

/* By size, with the search among those placed, or coloured where that would take too long. */
static smp_status pack_by_size(packing *p, smp_arena *arena, int64_t n, int64_t *offset,
                               int64_t *total)
{
    const double budget = 1e7;
    keyed *scratch;
    double pairs, all = (double)p->n * (double)p->n / 2;
    SMP_TRY(allocate(p, arena, n, &scratch));
    SMP_TRY(index_times(p, arena, n, scratch));
    SMP_TRY(measure(p, scratch, &pairs));
    p->dense = pairs * 16 > all;
    bool colour = (p->dense ? all : pairs * 16) > budget; /* so a dense search counts in 16 bits */
    if (p->dense && !colour)
        SMP_TRY(allocate_placed(&p->placed, arena, (size_t)p->n));
    if (!p->dense && !colour) {
        p->link = SMP_ARENA_NEW(arena, int64_t, (size_t)p->cell_capacity);
        p->covered = SMP_ARENA_NEW(arena, int64_t, (size_t)p->cell_capacity);
        if (!p->link || !p->covered)
            return SMP_ERR_NO_MEMORY;
    }
    if (colour || p->n >= LONG_LIST)
        SMP_TRY(try_order(p, ORDER_BEGIN, true, scratch, offset, total));
    if (colour || (p->n >= LONG_LIST && is_tight(p, *total)))
        return SMP_OK;
    SMP_TRY(try_order(p, ORDER_BEGIN, false, scratch, offset, total));
    if (!is_good(p, *total))
        return try_order(p, ORDER_LONGER, false, scratch, offset, total);
    return SMP_OK;
}

static smp_status pack(packing *p, smp_arena *arena, int64_t n, int64_t align, int64_t *offset,
                       int64_t *total)
{
    SMP_TRY(round_sizes(p, arena, n, align));
    for (int64_t i = 0; i < n; i++)
        offset[i] = 0;
    *total = 0;
    smp_work_count(SMP_WORK_BUFFER, (double)n);
    if (p->n == 0)
        return SMP_OK;
    if (p->n >= LONG_LIST &&
        smp__interval_sweep(n, p->size, p->begin, p->end, offset, total, &p->bound) &&
        (p->n >= MANY_BUFFERS ? is_good(p, *total) : *total == p->bound))
        return SMP_OK;
    *total = -1;
    return pack_by_size(p, arena, n, offset, total);
}

smp_status smp_interval_pack(int64_t n, const int64_t *bytes, const int64_t *begin,
                             const int64_t *end, int64_t align, int64_t *offset, int64_t *total,
                             int64_t *bound)
{
    if (n < 0 || align < SMP_BUFFER_ALIGN || align % SMP_BUFFER_ALIGN != 0 || align > (1 << 20))
        return smp_fail(SMP_ERR_INPUT, "packing of %lld buffers aligned to %lld bytes",
                        (long long)n, (long long)align);
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return smp_fail_memory(sizeof(packing));
    packing p = {.bytes = bytes, .begin = begin, .end = end};
    smp_status status = pack(&p, arena, n, align, offset, total);
    if (status == SMP_OK)
        *bound = p.bound;
    smp_arena_destroy(arena);
    return status;
}
