/* Pictures: the timelines of a plan, from its simulation and from what was measured, cut into cells
 * that every drawing reads the same way. O(actions + actions * transfers of a stage). */
#include "tools/show/picture.h"

#include <stdlib.h>
#include <string.h>

#include "tools/show/picture_model.h"

const char smp__cell_letters[] = "FBIWO";
const char smp__beside_letters[] = "RGSL";

/* The kind of what goes on beside the compute; -1: none. */
static int beside_kind(smp_action_kind kind)
{
    switch (kind) {
    case SMP_ACTION_REDUCE:
    case SMP_ACTION_ALL:
        return 0;
    case SMP_ACTION_GATHER:
        return 1;
    case SMP_ACTION_STORE:
        return 2;
    case SMP_ACTION_LOAD:
        return 3;
    default:
        return -1;
    }
}

int smp__cell_class(smp_action_kind kind)
{
    return smp_action_is_compute(kind) ? (int)kind : SMP__CELL_CLASSES - 1;
}

void smp__picture_classes(const smp_picture *picture, bool used[SMP__CELL_CLASSES])
{
    for (int class = 0; class < SMP__CELL_CLASSES; class ++)
        used[class] = false;
    for (int rank = 0; rank < picture->plan->pipeline; rank++)
        for (int64_t i = 0; i < picture->predicted.lane[rank].n; i++)
            used[smp__cell_class(picture->predicted.lane[rank].cell[i].kind)] = true;
}

bool smp__picture_offloads(const smp_picture *picture)
{
    return picture->plan->travels != NULL;
}

double smp__busy_percent(const smp__timeline *timeline, int rank)
{
    return timeline->end_us > 0.0 ? 100.0 * timeline->lane[rank].busy_us / timeline->end_us : 0.0;
}

double smp__picture_end_us(const smp_picture *picture)
{
    double end_us = picture->predicted.end_us;
    if (picture->measured.lane && picture->measured.end_us > end_us)
        end_us = picture->measured.end_us;
    return end_us > 1e-9 ? end_us : 1e-9;
}

void smp_picture_close(smp_picture *picture)
{
    if (!picture)
        return;
    smp_simulated_plan_close(&picture->simulated);
    smp_arena_destroy(picture->arena);
    free(picture);
}

static smp_status open_flow(smp_picture *picture)
{
    const smp_plan *plan = picture->plan;
    SMP_TRY(smp_simulated_plan_open(plan, picture->graph, &picture->simulated));
    picture->flow = picture->simulated.flow;
    int *stage_rank = SMP_ARENA_NEW(picture->arena, int, (size_t)plan->n_stage);
    if (!stage_rank)
        return SMP_ERR_NO_MEMORY;
    for (int stage = 0; stage < plan->n_stage; stage++)
        stage_rank[stage] = plan->stage[stage].rank;
    return smp__crossing_build(picture->arena, picture->flow, stage_rank, plan->pipeline,
                               plan->chunks, &picture->crossing);
}

/* Room for the cells of every rank's program. */
static smp_status create_lanes(smp_picture *picture, smp__timeline *timeline)
{
    const smp_plan *plan = picture->plan;
    timeline->lane = SMP_ARENA_NEW(picture->arena, smp__lane, (size_t)plan->pipeline);
    if (!timeline->lane)
        return SMP_ERR_NO_MEMORY;
    for (int rank = 0; rank < plan->pipeline; rank++) {
        size_t n = (size_t)plan->program[rank].n;
        timeline->lane[rank].cell = SMP_ARENA_NEW(picture->arena, smp__cell, n);
        timeline->lane[rank].beside = SMP_ARENA_NEW(picture->arena, smp__beside, n);
        if (!timeline->lane[rank].cell || !timeline->lane[rank].beside)
            return SMP_ERR_NO_MEMORY;
    }
    return SMP_OK;
}

static bool is_receive(smp_action_kind kind)
{
    return kind == SMP_ACTION_RECV_F || kind == SMP_ACTION_RECV_B;
}

static bool is_send(smp_action_kind kind)
{
    return kind == SMP_ACTION_SEND_F || kind == SMP_ACTION_SEND_B;
}

/* Moments of each (forward or backward, stage, micro-batch), -1 where there is none. */
typedef struct moments {
    double *sent_us;     /* the end of its `>` */
    double *received_us; /* the end of its `<` */
    size_t n;            /* stages * micro-batches */
    size_t microbatches;
} moments;

static size_t moment_of(const moments *m, bool forward, int stage, int microbatch)
{
    return (forward ? 0 : m->n) + (size_t)stage * m->microbatches + (size_t)microbatch;
}

static smp_status moments_open(const smp_plan *plan, moments *m)
{
    m->microbatches = (size_t)plan->microbatches;
    m->n = (size_t)plan->n_stage * m->microbatches;
    m->sent_us = malloc((4 * m->n + 1) * sizeof *m->sent_us);
    if (!m->sent_us)
        return smp_fail_memory(4 * m->n * sizeof *m->sent_us);
    m->received_us = m->sent_us + 2 * m->n;
    for (size_t i = 0; i < 4 * m->n; i++)
        m->sent_us[i] = -1.0;
    return SMP_OK;
}

/* When what an action receives had arrived; -1: it receives nothing. A `>` ends when it has
 * arrived, which tells even if the `<` was reached long after that. */
static double ready_us(const smp_picture *picture, const moments *m, const smp_trace_event *e)
{
    const smp_flow *flow = picture->flow;
    bool forward = e->action.kind == SMP_ACTION_F;
    double received_us = m->received_us[moment_of(m, forward, e->stage, e->action.microbatch)];
    double latest_us = -1.0;
    if (received_us < 0.0)
        return -1.0;
    for (int32_t i = flow->in_begin[e->stage]; i < flow->in_begin[e->stage + 1]; i++) {
        const smp_transfer *t = &flow->transfer[flow->in_list[i]];
        if ((t->kind == SMP_TRANSFER_F) != forward ||
            !smp__crossing_is_message(&picture->crossing, t))
            continue;
        double sent_us = m->sent_us[moment_of(m, forward, t->from_stage, e->action.microbatch)];
        latest_us = sent_us > latest_us ? sent_us : latest_us;
    }
    return latest_us >= 0.0 && latest_us < received_us ? latest_us : received_us;
}

/* The pipeline rank that a world rank is of the replica that is drawn; -1: it belongs to another
 * one, or is not the first of those that compute ops together. */
static int rank_of_world(const smp_picture *picture, int world_rank)
{
    const smp_plan *plan = picture->plan;
    int replica = picture->simulated.simulation->replica;
    for (int rank = 0; rank < plan->pipeline; rank++)
        if (smp_plan_first_process(plan, replica, rank) == world_rank)
            return rank;
    return -1;
}

static smp_status check_event(const smp_plan *plan, const smp_trace_event *e)
{
    bool stage = e->stage >= 0 && e->stage < plan->n_stage;
    bool whole = e->action.kind == SMP_ACTION_OPTIMIZE;
    bool mb = !smp_action_has_microbatch(e->action.kind) ||
              (e->action.microbatch >= 0 && e->action.microbatch < plan->microbatches);
    if ((unsigned)e->action.kind > SMP_ACTION_OPTIMIZE || (!whole && !stage) || !mb)
        return smp_fail(SMP_ERR_INPUT,
                        "a measured event of rank %d is for micro-batch %d of stage %d, the plan "
                        "has %d micro-batches and %d stages",
                        e->world_rank, (int)e->action.microbatch, e->stage, plan->microbatches,
                        plan->n_stage);
    return SMP_OK;
}

static void note_moment(const smp_trace_event *e, moments *m)
{
    smp_action_kind kind = e->action.kind;
    bool forward = kind == SMP_ACTION_SEND_F || kind == SMP_ACTION_RECV_F;
    if (!is_send(kind) && !is_receive(kind))
        return;
    double *at_us = is_send(kind) ? m->sent_us : m->received_us;
    at_us[moment_of(m, forward, e->stage, e->action.microbatch)] = e->end_us;
}

static void add_event(const smp_picture *picture, smp__timeline *timeline, const moments *m,
                      int rank, const smp_trace_event *e)
{
    const smp_plan *plan = picture->plan;
    smp__lane *lane = &timeline->lane[rank];
    smp_action_kind kind = e->action.kind;
    const int beside = beside_kind(kind);
    if (beside >= 0 && lane->n_beside < plan->program[rank].n) {
        lane->beside[lane->n_beside++] = (smp__beside){e->start_us, e->end_us, beside};
    } else if ((smp_action_is_compute(kind) || kind == SMP_ACTION_OPTIMIZE) &&
               lane->n < plan->program[rank].n) {
        bool receives = kind == SMP_ACTION_F || kind == SMP_ACTION_B || kind == SMP_ACTION_I;
        lane->cell[lane->n++] = (smp__cell){.kind = kind,
                                            .microbatch = e->action.microbatch,
                                            .stage = kind == SMP_ACTION_OPTIMIZE ? -1 : e->stage,
                                            .start_us = e->start_us,
                                            .end_us = e->end_us,
                                            .ready_us = receives ? ready_us(picture, m, e) : -1.0};
        lane->busy_us += e->end_us - e->start_us;
    }
    if (e->end_us > timeline->end_us)
        timeline->end_us = e->end_us;
}

/* Events of a rank stand in the order of its program; those of other replicas are left out. */
static smp_status add_events(smp_picture *picture, smp__timeline *timeline,
                             const smp_trace_event *events, int64_t n)
{
    moments m = {0};
    SMP_TRY(create_lanes(picture, timeline));
    SMP_TRY(moments_open(picture->plan, &m));
    smp_status status = SMP_OK;
    for (int64_t i = 0; status == SMP_OK && i < n; i++)
        if (rank_of_world(picture, events[i].world_rank) >= 0 && !events[i].beside) {
            status = check_event(picture->plan, &events[i]);
            if (status == SMP_OK)
                note_moment(&events[i], &m);
        }
    for (int64_t i = 0; status == SMP_OK && i < n; i++) {
        int rank = rank_of_world(picture, events[i].world_rank);
        if (rank >= 0 && !events[i].beside)
            add_event(picture, timeline, &m, rank, &events[i]);
    }
    free(m.sent_us);
    return status;
}

/* A cell holds what is alive at any time until the next one. */
static void spread_bytes(smp_picture *picture, int rank)
{
    const smp_program *program = &picture->plan->program[rank];
    smp__lane *lane = &picture->predicted.lane[rank];
    int64_t at = -1;
    for (int64_t i = 0; i < program->n; i++) {
        smp_action_kind kind = program->action[i].kind;
        if (smp_action_is_compute(kind) || kind == SMP_ACTION_OPTIMIZE)
            at++;
        if (at >= 0 && at < lane->n && picture->alive[rank][i] > lane->cell[at].bytes)
            lane->cell[at].bytes = picture->alive[rank][i];
    }
}

static void fill_waits(const smp_simulation *simulation, int rank, smp__lane *lane)
{
    lane->busy_us = simulation->busy_us[rank];
    lane->wait_us[SMP__WAIT_WARMUP] = simulation->warmup_us[rank];
    lane->wait_us[SMP__WAIT_TRANSFER] =
        simulation->transfer_us[rank] + simulation->offload_us[rank];
    lane->wait_us[SMP__WAIT_IMBALANCE] = simulation->imbalance_us[rank];
    lane->wait_us[SMP__WAIT_REDUCTION] = simulation->reduction_us[rank];
    lane->wait_us[SMP__WAIT_DRAIN] = simulation->drain_us[rank];
}

static smp_status predict(smp_picture *picture)
{
    const smp_simulation *simulation = picture->simulated.simulation;
    smp_trace_event *events = NULL;
    int64_t n = 0;
    smp_status status = smp_trace_predicted(picture->plan, simulation, &events, &n);
    if (status == SMP_OK)
        status = add_events(picture, &picture->predicted, events, n);
    for (int rank = 0; status == SMP_OK && rank < picture->plan->pipeline; rank++) {
        spread_bytes(picture, rank);
        fill_waits(simulation, rank, &picture->predicted.lane[rank]);
    }
    picture->bubble = simulation->bubble;
    if (simulation->step_us > picture->predicted.end_us)
        picture->predicted.end_us = simulation->step_us;
    free(events);
    return status;
}

smp_status smp_picture_open(const smp_plan *plan, const smp_graph *graph, smp_picture **out)
{
    smp_picture *picture = calloc(1, sizeof *picture);
    if (!picture)
        return smp_fail_memory(sizeof *picture);
    picture->plan = plan;
    picture->graph = graph;
    picture->arena = smp_arena_create();
    smp_status status = picture->arena ? open_flow(picture) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = smp__picture_memory(picture);
    if (status == SMP_OK)
        status = predict(picture);
    if (status == SMP_OK)
        *out = picture;
    else
        smp_picture_close(picture);
    return status;
}

smp_status smp_picture_add_measured(smp_picture *picture, const smp_trace_event *events, int64_t n)
{
    smp__timeline timeline = {0};
    SMP_TRY(add_events(picture, &timeline, events, n));
    picture->measured = timeline;
    return SMP_OK;
}
