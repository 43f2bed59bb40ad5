/* What a cycle time implies before anything is searched.
 *
 * Tails (Scholl, "Balancing and Sequencing of Assembly Lines", 1999): counted in cycle times, what
 * follows a task takes at least the largest of: the followers with the longest tails, one after the
 * other, and then the shortest of these tails (a single machine); and a task that does not fit into
 * the rest of a station begins another one, so its tail is rounded up. What remains before the tail
 * is the latest station.
 *
 * Dual measures (Fekete and Schepers, "New classes of fast lower bounds for bin packing problems",
 * 2001): functions u with u(S) <= u(c) for every S that fits into c. Halves and thirds are the
 * bounds LM2 and LM3; a threshold counts tasks above c - t whole and forgets those below t.
 * Whatever is measured so keeps all that holds of times, tails too. */
#include <string.h>

#include "partition/prove/line.h"

enum { MAX_PARTS = 8, MAX_THRESHOLDS = 24 };

smp_status smp__line_target_init(smp__line_target *target, const smp__line *line, int32_t n_station,
                                 smp_arena *arena)
{
    size_t n = (size_t)line->n;
    *target = (smp__line_target){.line = line, .n_station = n_station};
    target->last = SMP_ARENA_NEW(arena, int32_t, n);
    target->order = SMP_ARENA_NEW(arena, int32_t, n);
    target->scratch = SMP_ARENA_NEW(arena, int64_t, 2 * n);
    target->dual = SMP_ARENA_NEW(arena, int64_t, SMP__LINE_DUALS * n);
    target->due = SMP_ARENA_NEW(arena, uint64_t, (size_t)n_station * (size_t)line->words);
    return target->last && target->order && target->scratch && target->dual && target->due
               ? SMP_OK
               : SMP_ERR_NO_MEMORY;
}

/* parts: x rounded to multiples of a (parts + 1)-th part, up from exact ones, in parts-th parts. */
static int64_t in_parts(int64_t time, int64_t cycle, int64_t parts)
{
    int64_t scaled = (parts + 1) * time;
    return scaled % cycle == 0 ? parts * time : scaled / cycle * cycle;
}

static int64_t above_threshold(int64_t time, int64_t cycle, int64_t threshold)
{
    if (time > cycle - threshold)
        return cycle;
    return time < threshold ? 0 : time;
}

/* Latest stations by one measure, in which a station has room for `room`. False: a task has none.
 * Successors are known before a task: `order` is topological from the end. */
static bool set_last(smp__line_target *target, const int64_t *measure, int64_t room)
{
    const smp__line *line = target->line;
    int64_t *tail = target->scratch;
    int32_t n_sorted = 0, *sorted = (int32_t *)(target->scratch + line->n); /* by falling tail */
    for (int32_t i = 0; i < line->n; i++) {
        int32_t task = target->order[i];
        const uint64_t *behind = smp__line_set(line, line->behind, task);
        int64_t sum = 0, longest = 0;
        for (int32_t j = 0; j < n_sorted; j++) {
            if (!smp__set_has(behind, sorted[j]))
                continue;
            sum += measure[sorted[j]];
            if (sum + tail[sorted[j]] > longest)
                longest = sum + tail[sorted[j]];
        }
        if (longest % room > 0 && longest % room + measure[task] > room)
            longest += room - longest % room;
        tail[task] = longest;
        int64_t stations = (longest + measure[task] + room - 1) / room;
        int64_t last = target->n_station - (stations > 0 ? stations : 1);
        if (last < 0)
            return false;
        if (last < target->last[task])
            target->last[task] = (int32_t)last;
        int32_t at = n_sorted++;
        for (; at > 0 && tail[sorted[at - 1]] < longest; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = task;
    }
    return true;
}

/* Tasks from the end, each after all that follow it: by the number of those. */
static void sort_from_end(smp__line_target *target)
{
    const smp__line *line = target->line;
    int32_t *count = (int32_t *)target->scratch, *begin = (int32_t *)(target->scratch + line->n);
    memset(begin, 0, (size_t)line->n * sizeof *begin);
    for (int32_t i = 0; i < line->n; i++) {
        const uint64_t *behind = smp__line_set(line, line->behind, i);
        count[i] = 0;
        for (int32_t w = 0; w < line->words; w++)
            count[i] += __builtin_popcountll(behind[w]);
        if (count[i] + 1 < line->n)
            begin[count[i] + 1]++;
    }
    for (int32_t i = 1; i < line->n; i++)
        begin[i] += begin[i - 1];
    for (int32_t i = 0; i < line->n; i++)
        target->order[begin[count[i]]++] = i;
}

/* Keeps a measure if it leaves less slack than one of those kept. False: it leaves none. */
static bool offer_dual(smp__line_target *target, const int64_t *measure, int64_t room)
{
    const smp__line *line = target->line;
    int64_t slack = room * target->n_station;
    for (int32_t i = 0; i < line->n; i++)
        slack -= measure[i];
    if (slack < 0)
        return false;
    int at = target->n_dual;
    if (at == SMP__LINE_DUALS) {
        at = 0;
        for (int d = 1; d < SMP__LINE_DUALS; d++) {
            if ((double)target->slack[d] / (double)target->room[d] >
                (double)target->slack[at] / (double)target->room[at])
                at = d;
        }
        if ((double)slack / (double)room >= (double)target->slack[at] / (double)target->room[at])
            return true;
    } else {
        target->n_dual++;
    }
    memcpy(target->dual + (size_t)at * (size_t)line->n, measure, (size_t)line->n * sizeof *measure);
    target->room[at] = room;
    target->slack[at] = slack;
    return true;
}

static bool try_measures(smp__line_target *target)
{
    const smp__line *line = target->line;
    int64_t *measure = target->scratch, cycle = target->cycle;
    for (int64_t parts = 1; parts <= MAX_PARTS; parts++) {
        for (int32_t i = 0; i < line->n; i++)
            measure[i] = in_parts(line->time[i], cycle, parts);
        if (!offer_dual(target, measure, parts * cycle))
            return false;
    }
    int32_t step = 1 + line->n / MAX_THRESHOLDS;
    for (int32_t k = line->n - 1; k >= 0; k -= step) {
        int64_t threshold = line->time[k];
        if (2 * threshold > cycle)
            break;
        for (int32_t i = 0; i < line->n; i++)
            measure[i] = above_threshold(line->time[i], cycle, threshold);
        if (!offer_dual(target, measure, cycle))
            return false;
    }
    return true;
}

bool smp__line_target_set(smp__line_target *target, int64_t cycle)
{
    const smp__line *line = target->line;
    size_t words = (size_t)line->words;
    target->cycle = cycle;
    target->n_dual = 0;
    if (cycle * target->n_station < line->total || cycle < line->time[0] || !try_measures(target))
        return false;
    for (int32_t i = 0; i < line->n; i++)
        target->last[i] = target->n_station - 1;
    sort_from_end(target);
    if (!set_last(target, line->time, cycle))
        return false;
    for (int d = 0; d < target->n_dual; d++) {
        if (!set_last(target, target->dual + (size_t)d * (size_t)line->n, target->room[d]))
            return false;
    }
    memset(target->due, 0, (size_t)target->n_station * words * sizeof *target->due);
    for (int32_t i = 0; i < line->n; i++)
        smp__set_insert(target->due + (size_t)target->last[i] * words, i);
    for (int32_t k = 1; k < target->n_station; k++) {
        for (size_t w = 0; w < words; w++)
            target->due[(size_t)k * words + w] |= target->due[(size_t)(k - 1) * words + w];
    }
    return true;
}
