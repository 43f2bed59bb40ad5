/* Is there an assignment to K stations with a given cycle time? Branch, bound and remember (Sewell
 * and Jacobson, INFORMS J. Comput. 2012; Morrison, Sewell and Jacobson, EJOR 2014).
 *
 * A state is the set of tasks in the first stations; a step fills one more station in every way
 * that leaves no room for a further task. States are taken up level by level in turn, the most
 * promising of each first (cyclic best-first search), and every set is remembered with the fewest
 * stations that reach it. A state is dropped if
 *  - it leaves more idle time than K stations have to spare, by time or by a dual measure,
 *  - a task's latest station has gone by, or the tasks that are due by some station do not fit
 *    into the stations until then;
 *  - a task j outside of the last load could take the place of a task i inside: not shorter, it
 *    fits, and all that follows i follows j (Jackson 1956): exchanging them leaves at least as much
 *    to choose.
 * What no limit cut short and what found nothing is a proof that there is none. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "partition/prove/line.h"

enum {
    CLOCK_WORK = 1 << 17,
    MAX_EXCHANGES = 16,
    LOAD_STEPS = 24 /* steps of a load that a limit on loads pays for each */
};

typedef struct state {
    uint64_t hash;
    int64_t time; /* of its tasks */
    double hard;  /* what is left, weighed: large tasks and urgent ones are hard to place */
    int32_t parent;
    int32_t used; /* stations */
} state;

typedef struct entry {
    double key;
    int32_t state;
} entry;

typedef struct queue {
    entry *at; /* a heap, least key first */
    size_t n, capacity;
} queue;

struct smp__line_search {
    const smp__line *line;
    smp__line_target target;
    int32_t n_station, words;
    int64_t cycle, slack;
    int64_t work;
    int64_t next_check;
    double deadline_s;
    bool late, limited, starved, truncated;
    int32_t found; /* state with all tasks, or -1 */
    int way;

    state *state;
    uint64_t *bits; /* [words] each */
    size_t n_state, state_capacity, bits_capacity;
    int32_t *table;
    size_t table_size, max_bytes;
    queue *queue; /* [n_station + 1] by stations used */

    /* The load that is being made. */
    uint64_t *set;    /* of the state and the load */
    uint64_t *listed; /* tasks that could be or are in the load */
    uint64_t *load;
    int32_t *list; /* [n] in the order in which they became ready */
    int32_t n_list;
    int32_t from; /* state */
    int64_t sum;
    int64_t steps; /* left */
    int32_t loads; /* left */
    bool all;      /* are made */
    int32_t exchanged[MAX_EXCHANGES][2];
    uint64_t *due; /* tasks that must be in the load */
    smp_arena *arena;
};

static const uint64_t *set_of(const smp__line_search *s, int32_t i)
{
    return s->bits + (size_t)i * (size_t)s->words;
}

static bool go_on(smp__line_search *s)
{
    if (s->work < s->next_check) {
        smp_work_count(SMP_WORK_PROOF, (double)CLOCK_WORK);
        s->next_check = s->work - CLOCK_WORK;
        s->late |= smp_work_past(s->deadline_s);
    }
    s->limited |= s->work <= 0;
    return !s->late && !s->limited && s->found < 0;
}

static bool reserve(smp__line_search *s, void *data, size_t *capacity, size_t size, size_t need)
{
    if (need <= *capacity)
        return true;
    size_t old = *capacity;
    if ((old + old / 2 + need) * size > s->max_bytes) {
        s->limited = true;
        return false;
    }
    if (smp_array_reserve(data, capacity, size, need) != SMP_OK)
        s->limited = s->starved = true;
    return !s->limited;
}

static void push(smp__line_search *s, int32_t level, entry what)
{
    queue *q = &s->queue[level];
    if (!reserve(s, &q->at, &q->capacity, sizeof *q->at, q->n + 1))
        return;
    size_t at = q->n++;
    for (; at > 0 && what.key < q->at[(at - 1) / 2].key; at = (at - 1) / 2)
        q->at[at] = q->at[(at - 1) / 2];
    q->at[at] = what;
}

static entry pop(queue *q)
{
    entry top = q->at[0], last = q->at[--q->n];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= q->n)
            break;
        child += child + 1 < q->n && q->at[child + 1].key < q->at[child].key;
        if (q->at[child].key >= last.key)
            break;
        q->at[at] = q->at[child];
        at = child;
    }
    if (q->n > 0)
        q->at[at] = last;
    return top;
}

static uint64_t hash_of(const uint64_t *set, int32_t words)
{
    uint64_t hash = 0;
    for (int32_t w = 0; w < words; w++) {
        hash = (hash ^ set[w]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Where a set stands or belongs. */
static size_t slot_of(const smp__line_search *s, const uint64_t *set, uint64_t hash)
{
    size_t mask = s->table_size - 1, slot = hash & mask;
    for (; s->table[slot] >= 0; slot = (slot + 1) & mask) {
        int32_t i = s->table[slot];
        if (s->state[i].hash == hash &&
            memcmp(set_of(s, i), set, (size_t)s->words * sizeof *set) == 0)
            break;
    }
    return slot;
}

static bool grow_table(smp__line_search *s)
{
    size_t size = s->table_size ? 2 * s->table_size : 1 << 12;
    int32_t *table = realloc(s->table, size * sizeof *table);
    if (!table) {
        smp_fail_memory(size * sizeof *table);
        s->limited = s->starved = true;
        return false;
    }
    s->table = table;
    s->table_size = size;
    memset(table, -1, size * sizeof *table);
    for (size_t i = 0; i < s->n_state; i++) {
        size_t slot = s->state[i].hash & (size - 1);
        while (table[slot] >= 0)
            slot = (slot + 1) & (size - 1);
        table[slot] = (int32_t)i;
    }
    return true;
}

static int32_t store(smp__line_search *s, size_t slot, const state *what)
{
    size_t words = (size_t)s->words, n = s->n_state;
    size_t bytes = (n + 1) * (sizeof *what + words * sizeof *s->bits + 2 * sizeof *s->table);
    if (bytes > s->max_bytes / 2)
        s->limited = true;
    if (s->limited || !reserve(s, &s->state, &s->state_capacity, sizeof *s->state, n + 1) ||
        !reserve(s, &s->bits, &s->bits_capacity, sizeof *s->bits, (n + 1) * words))
        return -1;
    s->state[n] = *what;
    memcpy(s->bits + n * words, s->set, words * sizeof *s->bits);
    s->table[slot] = (int32_t)n;
    s->n_state++;
    return (int32_t)n;
}

/* What is tried first: little idle time so far; large tasks gone, and those with an early latest
 * station; much to choose from. The weights differ from way to way. */
static double key_of(const smp__line_search *s, const state *what)
{
    static const double choice[] = {0.02, 0.02, 0.0, 0.05, 0.01, 0.0};
    double ready = 0.0;
    for (int32_t w = 0; w < s->words; w++)
        ready += __builtin_popcountll(s->listed[w] & ~s->set[w]);
    double idle = (double)(what->used * s->cycle - what->time);
    return idle / (double)(s->slack + s->n_station) + what->hard - choice[s->way % 6] * ready;
}

static double hardness(const smp__line_search *s, int32_t task)
{
    static const double large[] = {0.5, 0.0, 1.0, 0.2, 2.0, 4.0};
    static const double urgent[] = {0.0, 4.0, 16.0, 1.0, 64.0, 8.0};
    double share = (double)s->line->time[task] / (double)s->cycle;
    double early = 1.0 - (double)s->target.last[task] / s->n_station;
    return large[s->way % 6] * share * share + urgent[s->way % 6] * share * early;
}

/* A task of the load and one that may take its place; false: there is none. */
static bool find_better(const smp__line_search *s, int32_t *out, int32_t *in)
{
    const smp__line *line = s->line;
    for (int32_t w = 0; w < s->words; w++) {
        for (uint64_t rest = s->load[w] & ~s->due[w]; rest; rest &= rest - 1) {
            int32_t i = 64 * w + __builtin_ctzll(rest);
            const uint64_t *beating = smp__line_set(line, line->beating, i);
            for (int32_t v = 0; v < s->words; v++) {
                for (uint64_t by = beating[v] & s->listed[v] & ~s->set[v]; by; by &= by - 1) {
                    int32_t j = 64 * v + __builtin_ctzll(by);
                    if (s->sum - line->time[i] + line->time[j] > s->cycle)
                        continue;
                    *out = i;
                    *in = j;
                    return true;
                }
            }
        }
    }
    return false;
}

/* The state that the load leads to, which leaves no room. */
static void keep_load(smp__line_search *s)
{
    const smp__line *line = s->line;
    state next = {.time = s->state[s->from].time + s->sum,
                  .parent = s->from,
                  .used = s->state[s->from].used + 1};
    if (next.used * s->cycle - next.time > s->slack)
        return;
    for (int32_t w = 0; w < s->words; w++) {
        if (s->due[w] & ~s->set[w])
            return;
    }
    next.hard = s->state[s->from].hard;
    for (int32_t w = 0; w < s->words; w++) {
        for (uint64_t rest = s->load[w]; rest; rest &= rest - 1)
            next.hard -= hardness(s, 64 * w + __builtin_ctzll(rest));
    }
    s->work -= 3 * s->words;
    s->loads--;
    next.hash = hash_of(s->set, s->words);
    if (2 * (s->n_state + 1) > s->table_size && !grow_table(s))
        return;
    size_t slot = slot_of(s, s->set, next.hash);
    int32_t known = s->table[slot];
    if (known >= 0) {
        if (s->state[known].used <= next.used)
            return;
        s->state[known].used = next.used;
        s->state[known].parent = next.parent;
    } else {
        known = store(s, slot, &next);
    }
    if (known < 0)
        return;
    if (next.time == line->total)
        s->found = known;
    else if (next.used < s->n_station)
        push(s, next.used, (entry){key_of(s, &next), known});
}

static void exchange(smp__line_search *s, int32_t out, int32_t in)
{
    s->set[out >> 6] &= ~((uint64_t)1 << (out & 63));
    s->load[out >> 6] &= ~((uint64_t)1 << (out & 63));
    smp__set_insert(s->set, in);
    smp__set_insert(s->load, in);
    s->sum += s->line->time[in] - s->line->time[out];
}

/* The load is full. One in which a task may take another's place leads nowhere else; where only
 * some loads are made, the tasks are exchanged rather than the load dropped. */
static void end_load(smp__line_search *s)
{
    int32_t n = 0, out, in;
    s->work -= 4;
    bool better = find_better(s, &out, &in);
    if (better && s->all)
        return;
    for (; better; better = find_better(s, &out, &in)) {
        s->work -= s->words;
        s->exchanged[n][0] = out;
        s->exchanged[n++][1] = in;
        exchange(s, out, in);
        if (n == MAX_EXCHANGES)
            break;
    }
    keep_load(s);
    while (n-- > 0)
        exchange(s, s->exchanged[n][1], s->exchanged[n][0]);
}

static bool is_ready(const smp__line_search *s, int32_t task)
{
    const uint64_t *before = smp__line_set(s->line, s->line->before, task);
    for (int32_t w = 0; w < s->words; w++) {
        if (before[w] & ~s->set[w])
            return false;
    }
    return true;
}

static void list_task(smp__line_search *s, int32_t task)
{
    s->list[s->n_list++] = task;
    smp__set_insert(s->listed, task);
}

static void take_task(smp__line_search *s, int32_t task)
{
    const uint64_t *next = smp__line_set(s->line, s->line->next, task);
    smp__set_insert(s->set, task);
    smp__set_insert(s->load, task);
    s->sum += s->line->time[task];
    for (int32_t w = 0; w < s->words; w++) {
        for (uint64_t rest = next[w]; rest; rest &= rest - 1) {
            int32_t j = 64 * w + __builtin_ctzll(rest);
            if (is_ready(s, j))
                list_task(s, j);
        }
    }
}

static void put_back(smp__line_search *s, int32_t task, int32_t n_list)
{
    uint64_t bit = (uint64_t)1 << (task & 63);
    while (s->n_list > n_list) {
        int32_t j = s->list[--s->n_list];
        s->listed[j >> 6] &= ~((uint64_t)1 << (j & 63));
    }
    s->set[task >> 6] &= ~bit;
    s->load[task >> 6] &= ~bit;
    s->sum -= s->line->time[task];
}

/* All full loads with what is in it, some of list[first..], and what becomes ready by them.
 * least: the shortest task that was left out although it is ready. */
static void fill_load(smp__line_search *s, int32_t first, int64_t least)
{
    const int64_t *time = s->line->time;
    bool fits = false;
    for (int32_t i = first; i < s->n_list; i++) {
        int32_t task = s->list[i], n_list = s->n_list;
        if (s->sum + time[task] <= s->cycle) {
            fits = true;
            take_task(s, task);
            fill_load(s, i + 1, least);
            put_back(s, task, n_list);
            s->work--;
            if (!go_on(s) || --s->steps <= 0 || s->loads <= 0)
                break;
        }
        if (smp__set_has(s->due, task)) /* without it there is no load */
            return;
        if (time[task] < least)
            least = time[task];
    }
    if (!fits && s->sum + least > s->cycle)
        end_load(s);
}

/* Whether what is left may fit into the stations that are left: by every dual measure, and what is
 * due by each station into those until then. */
static bool may_fit(smp__line_search *s, int32_t i)
{
    const smp__line *line = s->line;
    const smp__line_target *target = &s->target;
    const uint64_t *set = set_of(s, i);
    int32_t used = s->state[i].used, left = s->n_station - used;
    int64_t rest[SMP__LINE_DUALS] = {0}, *due = target->scratch;
    memset(due, 0, (size_t)s->n_station * sizeof *due);
    for (int32_t w = 0; w < s->words; w++) {
        for (uint64_t out = ~set[w]; out; out &= out - 1) {
            int32_t task = 64 * w + __builtin_ctzll(out);
            if (task >= line->n)
                break;
            due[target->last[task]] += line->time[task];
            for (int d = 0; d < target->n_dual; d++)
                rest[d] += target->dual[(size_t)d * (size_t)line->n + (size_t)task];
        }
    }
    s->work -= 2 * line->n;
    for (int d = 0; d < target->n_dual; d++) {
        if (rest[d] > left * target->room[d])
            return false;
    }
    int64_t sum = 0;
    for (int32_t k = 0; k < s->n_station; k++) {
        sum += due[k];
        if (k >= used && sum > (k + 1 - used) * s->cycle)
            return false;
    }
    return true;
}

/* Where only some loads are made they begin with the tasks that may not wait: by latest
 * station in every other way, else by time alone, as tasks are numbered. */
static void sort_list(smp__line_search *s)
{
    const int32_t *last = s->target.last;
    for (int32_t i = 1; i < s->n_list; i++) {
        int32_t task = s->list[i], at = i;
        for (; at > 0 && last[s->list[at - 1]] > last[task]; at--)
            s->list[at] = s->list[at - 1];
        s->list[at] = task;
    }
}

static void expand(smp__line_search *s, int32_t i, int32_t max_loads)
{
    const smp__line *line = s->line;
    size_t bytes = (size_t)s->words * sizeof *s->set;
    if (!may_fit(s, i))
        return;
    memcpy(s->set, set_of(s, i), bytes);
    memset(s->listed, 0, bytes);
    memset(s->load, 0, bytes);
    s->n_list = 0;
    s->sum = 0;
    s->from = i;
    memcpy(s->due, s->target.due + (size_t)s->state[i].used * (size_t)s->words, bytes);
    for (int32_t task = 0; task < line->n; task++) {
        if (!smp__set_has(s->set, task) && is_ready(s, task))
            list_task(s, task);
    }
    if (line->unordered) /* stations are all alike: the first has the largest task */
        smp__set_insert(s->due, s->list[0]);
    if (!s->all && s->way % 2 == 0)
        sort_list(s);
    s->work -= line->n;
    s->loads = max_loads;
    s->steps = s->all ? INT64_MAX : (int64_t)max_loads * LOAD_STEPS;
    fill_load(s, 0, INT64_MAX / 2);
    s->truncated |= s->loads <= 0 || s->steps <= 0;
}

static void search_all(smp__line_search *s, int32_t max_loads)
{
    state root = {.parent = -1};
    for (int32_t task = 0; task < s->line->n; task++)
        root.hard += hardness(s, task);
    memset(s->set, 0, (size_t)s->words * sizeof *s->set);
    root.hash = hash_of(s->set, s->words);
    s->n_state = 0;
    if (s->table_size > 0)
        memset(s->table, -1, s->table_size * sizeof *s->table);
    else if (!grow_table(s))
        return;
    for (int32_t k = 0; k <= s->n_station; k++)
        s->queue[k].n = 0;
    int32_t first = store(s, slot_of(s, s->set, root.hash), &root);
    if (first < 0)
        return;
    push(s, 0, (entry){0.0, first});
    for (bool any = true; any && go_on(s);) {
        any = false;
        for (int32_t k = 0; k < s->n_station && go_on(s); k++) {
            if (s->queue[k].n == 0)
                continue;
            entry top = pop(&s->queue[k]);
            any = true;
            if (s->state[top.state].used == k)
                expand(s, top.state, max_loads);
        }
    }
}

/* From the last state back to the first. */
static void read_stations(const smp__line_search *s, int32_t *station)
{
    int32_t k = 0;
    for (int32_t i = s->found; s->state[i].parent >= 0; i = s->state[i].parent)
        k++;
    for (int32_t i = s->found; k-- > 0; i = s->state[i].parent) {
        const uint64_t *set = set_of(s, i), *before = set_of(s, s->state[i].parent);
        for (int32_t task = 0; task < s->line->n; task++) {
            if (smp__set_has(set, task) && !smp__set_has(before, task))
                station[task] = k;
        }
    }
}

smp_status smp__line_search_run(smp__line_search *search, int64_t cycle,
                                const smp__line_effort *effort, int64_t *work, int32_t *station,
                                smp__line_answer *answer)
{
    smp__line_search *s = search;
    *answer = SMP__LINE_NONE;
    *work -= (int64_t)s->line->n * s->line->n; /* tails */
    if (!smp__line_target_set(&s->target, cycle))
        return SMP_OK;
    s->cycle = cycle;
    s->slack = cycle * s->n_station - s->line->total;
    s->work = s->next_check = effort->work;
    s->way = effort->way;
    s->limited = s->truncated = false;
    s->all = effort->max_loads == INT32_MAX;
    s->found = -1;
    search_all(s, effort->max_loads);
    *work -= effort->work - s->work;
    if (s->starved)
        return SMP_ERR_NO_MEMORY;
    if (s->found >= 0) {
        *answer = SMP__LINE_FOUND;
        read_stations(s, station);
    } else if (s->limited || s->late || s->truncated) {
        *answer = SMP__LINE_LIMIT;
    }
    return SMP_OK;
}

bool smp__line_search_is_late(const smp__line_search *search)
{
    return search->late;
}

smp_status smp__line_search_create(const smp__line *line, int32_t n_station, size_t max_bytes,
                                   double deadline_s, smp__line_search **out)
{
    smp_arena *arena = smp_arena_create();
    smp__line_search *s = arena ? SMP_ARENA_NEW(arena, smp__line_search, 1) : NULL;
    if (!s)
        goto fail;
    size_t n = (size_t)line->n, words = (size_t)line->words;
    *s = (smp__line_search){.line = line,
                            .n_station = n_station,
                            .words = line->words,
                            .max_bytes = max_bytes,
                            .deadline_s = deadline_s,
                            .arena = arena};
    s->queue = SMP_ARENA_NEW(arena, queue, (size_t)n_station + 1);
    s->set = SMP_ARENA_NEW(arena, uint64_t, words);
    s->listed = SMP_ARENA_NEW(arena, uint64_t, words);
    s->load = SMP_ARENA_NEW(arena, uint64_t, words);
    s->due = SMP_ARENA_NEW(arena, uint64_t, words);
    s->list = SMP_ARENA_NEW(arena, int32_t, n);
    if (!s->queue || !s->set || !s->listed || !s->load || !s->due || !s->list ||
        smp__line_target_init(&s->target, line, n_station, arena) != SMP_OK)
        goto fail;
    *out = s;
    return SMP_OK;
fail:
    smp_arena_destroy(arena);
    return SMP_ERR_NO_MEMORY;
}

void smp__line_search_destroy(smp__line_search *search)
{
    if (!search)
        return;
    for (int32_t k = 0; k <= search->n_station; k++)
        free(search->queue[k].at);
    free(search->state);
    free(search->bits);
    free(search->table);
    smp_arena_destroy(search->arena);
}
