/* Chrome trace events (the "Trace Event Format", JSON): complete events, one process per kind of
 * timeline, one thread per rank for what computes. Transfers and reductions run beside compute and
 * beside each other, and events of one thread must not overlap: they get further threads, as many
 * as a rank needs at one time (greedy by start). What goes to host memory has a thread, and so has
 * what comes back: each goes one after the other. O(n log n + n * threads of a rank). */
#include "schedule/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>

/* Threads of all ranks are numbered apart: rank r's compute is r, its further ones follow all of
 * those. The sort index keeps a rank's threads together. */
enum {
    LANES_PER_RANK = 1000,
    HOST_LANE = LANES_PER_RANK - 3,
    STORE_LANE = LANES_PER_RANK - 2,
    LOAD_LANE = LANES_PER_RANK - 1
};

/* A timeline, and the file that it is appended to. */
typedef struct timeline {
    const smp_plan *plan;
    const char *name;
    int pid;
    const smp_trace_event *event;
    int64_t n;
    smp_text *json;
    bool *first; /* of all items of the file */
} timeline;

/* An event with its number, so that sorting is stable. */
typedef struct sorted_event {
    const smp_trace_event *event;
    int64_t number;
} sorted_event;

/* Further threads of the rank being written: when each is free. */
typedef struct lanes {
    double *free_us; /* malloc'ed */
    size_t n, capacity;
    double host_us[2]; /* the same of stores, of loads; 0: there were none */
} lanes;

static bool computes(const smp_trace_event *event)
{
    return smp_action_is_compute(event->action.kind) || event->action.kind == SMP_ACTION_OPTIMIZE;
}

static int by_rank_and_start(const void *a, const void *b)
{
    const sorted_event *x = a, *y = b;
    if (x->event->world_rank != y->event->world_rank)
        return x->event->world_rank < y->event->world_rank ? -1 : 1;
    if (x->event->start_us != y->event->start_us)
        return x->event->start_us < y->event->start_us ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void begin_item(const timeline *t)
{
    smp_text_append(t->json, *t->first ? "\n" : ",\n");
    *t->first = false;
}

static void append_name(const timeline *t, int64_t tid, const char *what, const char *value)
{
    begin_item(t);
    smp_text_append(
        t->json, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%lld,\"args\":{\"name\":", what,
        t->pid, (long long)tid);
    smp_text_append_quoted(t->json, value);
    smp_text_append(t->json, "}}");
}

static void append_sort_index(const timeline *t, int64_t tid, const char *what, int64_t index)
{
    begin_item(t);
    smp_text_append(t->json,
                    "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%lld,\"args\":"
                    "{\"sort_index\":%lld}}",
                    what, t->pid, (long long)tid, (long long)index);
}

static int64_t lane_tid(const smp_plan *plan, int world_rank, size_t lane)
{
    int64_t ranks = smp_plan_processes(plan);
    return lane == 0 ? world_rank
                     : ranks + (int64_t)world_rank * LANES_PER_RANK + (int64_t)lane - 1;
}

static void append_thread(const timeline *t, int world_rank, size_t lane)
{
    char name[64];
    if (lane == 0)
        snprintf(name, sizeof name, "rank %d", world_rank);
    else if (lane >= HOST_LANE)
        snprintf(name, sizeof name, "rank %d %s", world_rank,
                 lane == HOST_LANE    ? "updates on the host"
                 : lane == STORE_LANE ? "stores"
                                      : "loads");
    else if (lane == 1)
        snprintf(name, sizeof name, "rank %d transfers", world_rank);
    else
        snprintf(name, sizeof name, "rank %d transfers %zu", world_rank, lane);
    int64_t tid = lane_tid(t->plan, world_rank, lane);
    append_name(t, tid, "thread_name", name);
    append_sort_index(t, tid, "thread_sort_index",
                      (int64_t)world_rank * LANES_PER_RANK + (int64_t)lane);
}

static void append_event(const timeline *t, const smp_trace_event *event, size_t lane)
{
    smp_text *json = t->json;
    double duration_us = event->end_us - event->start_us;
    begin_item(t);
    smp_text_append(json, "{\"name\":\"");
    smp_action_format(&event->action, json);
    smp_text_append(json, "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%lld,\"ts\":",
                    smp_action_word(event->action.kind), t->pid,
                    (long long)lane_tid(t->plan, event->world_rank, lane));
    smp_text_append_double(json, event->start_us);
    smp_text_append(json, ",\"dur\":");
    smp_text_append_double(json, duration_us > 0.0 ? duration_us : 0.0);
    smp_text_append(json, ",\"args\":{\"rank\":%d", event->world_rank);
    if (event->stage >= 0)
        smp_text_append(json, ",\"stage\":%d", event->stage);
    if (event->action.microbatch >= 0)
        smp_text_append(json, ",\"microbatch\":%d", (int)event->action.microbatch);
    if (event->action.chunk >= 0)
        smp_text_append(json, ",\"chunk\":%d", (int)event->action.chunk);
    smp_text_append(json, "}}");
}

/* The first further thread (from 1) that is free when the event begins; the last is shared by what
 * does not fit. */
static smp_status find_lane(lanes *l, const smp_trace_event *event, size_t *lane, bool *is_new)
{
    size_t i = 0;
    while (i < l->n && l->free_us[i] > event->start_us && i + 2 < HOST_LANE)
        i++;
    *is_new = i == l->n;
    if (*is_new) {
        SMP_TRY(smp_array_reserve(&l->free_us, &l->capacity, sizeof *l->free_us, l->n + 1));
        l->n++;
    }
    l->free_us[i] = event->end_us;
    *lane = i + 1;
    return SMP_OK;
}

/* A store or load begins when the one before it is done. */
static void append_transfer(const timeline *t, const smp_trace_event *event, lanes *l)
{
    const bool load = event->action.kind == SMP_ACTION_LOAD;
    const size_t lane = load ? LOAD_LANE : STORE_LANE;
    double *free_us = &l->host_us[load];
    smp_trace_event moved = *event;
    if (*free_us == 0.0)
        append_thread(t, event->world_rank, lane);
    if (moved.start_us < *free_us)
        moved.start_us = *free_us;
    append_event(t, &moved, lane);
    *free_us = moved.end_us;
}

/* The events of one rank. */
static smp_status append_rank(const timeline *t, const sorted_event *sorted, int64_t n, lanes *l)
{
    l->n = 0;
    l->host_us[0] = l->host_us[1] = 0.0;
    append_thread(t, sorted[0].event->world_rank, 0);
    for (int64_t i = 0; i < n; i++) {
        const smp_action_kind kind = sorted[i].event->action.kind;
        size_t lane = 0;
        bool is_new = false;
        if (sorted[i].event->beside) {
            append_thread(t, sorted[i].event->world_rank, HOST_LANE);
            append_event(t, sorted[i].event, HOST_LANE);
            continue;
        }
        if (kind == SMP_ACTION_STORE || kind == SMP_ACTION_LOAD) {
            append_transfer(t, sorted[i].event, l);
            continue;
        }
        if (!computes(sorted[i].event))
            SMP_TRY(find_lane(l, sorted[i].event, &lane, &is_new));
        if (is_new)
            append_thread(t, sorted[i].event->world_rank, lane);
        append_event(t, sorted[i].event, lane);
    }
    return SMP_OK;
}

static smp_status append_timeline(const timeline *t)
{
    sorted_event *sorted = malloc(((size_t)t->n + 1) * sizeof *sorted);
    lanes l = {0};
    smp_status status = SMP_OK;
    if (!sorted)
        return smp_fail_memory((size_t)t->n * sizeof *sorted);
    for (int64_t i = 0; i < t->n; i++)
        sorted[i] = (sorted_event){&t->event[i], i};
    qsort(sorted, (size_t)t->n, sizeof *sorted, by_rank_and_start);
    append_name(t, 0, "process_name", t->name);
    append_sort_index(t, 0, "process_sort_index", t->pid);
    for (int64_t i = 0, end; status == SMP_OK && i < t->n; i = end) {
        for (end = i + 1;
             end < t->n && sorted[end].event->world_rank == sorted[i].event->world_rank;)
            end++;
        status = append_rank(t, &sorted[i], end - i, &l);
    }
    free(l.free_us);
    free(sorted);
    return status;
}

smp_status smp_trace_format(const smp_plan *plan, const smp_trace_event *predicted,
                            int64_t n_predicted, const smp_trace_event *measured,
                            int64_t n_measured, smp_text *json)
{
    bool first = true;
    const timeline timelines[] = {{plan, "predicted", 1, predicted, n_predicted, json, &first},
                                  {plan, "measured", 2, measured, n_measured, json, &first}};
    smp_text_append(json, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int i = 0; i < 2; i++)
        if (timelines[i].event)
            SMP_TRY(append_timeline(&timelines[i]));
    smp_text_append(json, "\n]}\n");
    return json->failed ? smp_fail_memory(json->length) : SMP_OK;
}

smp_trace_event smp_trace_updates(int world_rank, double start_us, double end_us)
{
    return (smp_trace_event){.world_rank = world_rank,
                             .stage = -1,
                             .action = {.kind = SMP_ACTION_OPTIMIZE, .microbatch = -1, .chunk = -1},
                             .start_us = start_us,
                             .end_us = end_us,
                             .beside = true};
}

smp_status smp_trace_predicted(const smp_plan *plan, const smp_simulation *simulation,
                               smp_trace_event **events, int64_t *n)
{
    int64_t total = 0;
    for (int rank = 0; rank < plan->pipeline; rank++)
        total += plan->program[rank].n + 1; /* and its updates */
    smp_trace_event *list = malloc(((size_t)total + 1) * sizeof *list);
    if (!list)
        return smp_fail_memory((size_t)total * sizeof *list);
    total = 0;
    for (int rank = 0; rank < plan->pipeline; rank++) {
        int world_rank = smp_plan_first_process(plan, simulation->replica, rank);
        if (simulation->updated_us[rank] > 0.0)
            list[total++] = smp_trace_updates(world_rank, 0.0, simulation->updated_us[rank]);
        for (int64_t i = 0; i < plan->program[rank].n; i++) {
            const smp_action *a = &plan->program[rank].action[i];
            list[total++] = (smp_trace_event){
                .world_rank = world_rank,
                .stage = a->chunk < 0 ? -1 : smp_plan_stage_of(plan, rank, a->chunk),
                .action = *a,
                .start_us = simulation->start_us[rank][i],
                .end_us = simulation->end_us[rank][i]};
        }
    }
    *events = list;
    *n = total;
    return SMP_OK;
}

smp_status smp_trace_save(const smp_plan *plan, const smp_graph *graph,
                          const smp_trace_event *measured, int64_t n_measured, const char *path)
{
    smp_simulated_plan simulated = {0};
    smp_trace_event *predicted = NULL;
    int64_t n_predicted = 0;
    smp_text json = {0};
    smp_status status = SMP_OK;
    if (plan->cluster) {
        status = smp_simulated_plan_open(plan, graph, &simulated);
        if (status == SMP_OK)
            status = smp_trace_predicted(plan, simulated.simulation, &predicted, &n_predicted);
    }
    if (status == SMP_OK)
        status = smp_trace_format(plan, predicted, n_predicted, measured, n_measured, &json);
    if (status == SMP_OK)
        status = smp_file_write(path, json.data, json.length);
    smp_text_free(&json);
    free(predicted);
    smp_simulated_plan_close(&simulated);
    return status;
}
