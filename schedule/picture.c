/* Pictures: the timelines of a plan, from its simulation and from what was measured, cut into cells
 * that every drawing reads the same way. O(actions + actions * transfers of a stage). */
#include "schedule/picture.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/picture_model.h"

char smp__cell_letter(smp_action_kind kind)
{
    static const char letters[] = {'F', 'B', 'I', 'W'};
    return smp_action_is_compute(kind) ? letters[kind] : 'O';
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
    smp_flow_destroy(picture->flow);
    smp_arena_destroy(picture->arena);
    free(picture);
}

static smp_status open_flow(smp_picture *picture)
{
    const smp_plan *plan = picture->plan;
    int32_t *stage_of_op = NULL;
    SMP_TRY(smp_plan_bind(plan, picture->graph, &stage_of_op));
    smp_status status = smp_flow_build(picture->graph, stage_of_op, plan->n_stage,
                                       plan->microbatch_size, &picture->flow);
    free(stage_of_op);
    if (status != SMP_OK)
        return status;
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
        timeline->lane[rank].reduction =
            SMP_ARENA_NEW(picture->arena, smp__reduction, (size_t)plan->chunks);
        if (!timeline->lane[rank].cell || !timeline->lane[rank].reduction)
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

/* When the `>` of every (kind, stage, micro-batch) has arrived, [2][n_stage * microbatches]; -1
 * where there is none. */
static smp_status find_arrivals(const smp_picture *picture, const smp_simulation *simulation,
                                double **arrival_us)
{
    const smp_plan *plan = picture->plan;
    size_t n = (size_t)plan->n_stage * (size_t)plan->microbatches;
    double *arrival = malloc((2 * n + 1) * sizeof *arrival);
    if (!arrival)
        return smp_fail_memory(2 * n * sizeof *arrival);
    for (size_t i = 0; i < 2 * n; i++)
        arrival[i] = -1.0;
    for (int rank = 0; rank < plan->pipeline; rank++)
        for (int64_t i = 0; i < plan->program[rank].n; i++) {
            const smp_action *a = &plan->program[rank].action[i];
            if (!is_send(a->kind))
                continue;
            int stage = picture->crossing.stage_of[rank * plan->chunks + a->chunk];
            size_t pair = (size_t)stage * (size_t)plan->microbatches + (size_t)a->microbatch;
            arrival[(a->kind == SMP_ACTION_SEND_F ? 0 : n) + pair] = simulation->end_us[rank][i];
        }
    *arrival_us = arrival;
    return SMP_OK;
}

/* When all that an action receives has arrived: its `<` may stand long after that. */
static double ready_us(const smp_picture *picture, const double *arrival_us,
                       const smp_action *receive, int stage, double end_us)
{
    const smp_flow *flow = picture->flow;
    const smp_plan *plan = picture->plan;
    bool forward = receive->kind == SMP_ACTION_RECV_F;
    size_t n = (size_t)plan->n_stage * (size_t)plan->microbatches;
    double latest_us = -1.0;
    for (int32_t i = flow->in_begin[stage]; i < flow->in_begin[stage + 1]; i++) {
        const smp_transfer *t = &flow->transfer[flow->in_list[i]];
        if ((t->kind == SMP_TRANSFER_F) != forward ||
            !smp__crossing_is_message(&picture->crossing, t))
            continue;
        double at_us =
            arrival_us[(forward ? 0 : n) + (size_t)t->from_stage * (size_t)plan->microbatches +
                       (size_t)receive->microbatch];
        latest_us = at_us > latest_us ? at_us : latest_us;
    }
    return latest_us >= 0.0 && latest_us < end_us ? latest_us : end_us;
}

/* Cells of a rank in program order, which is the order of their starts. */
static void fill_lane(smp_picture *picture, const smp_simulation *simulation,
                      const double *arrival_us, int rank)
{
    const smp_plan *plan = picture->plan;
    const smp_program *program = &plan->program[rank];
    smp__lane *lane = &picture->predicted.lane[rank];
    double received_us = -1.0; /* by the `<` that stand before the next compute action */
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        int stage = a->chunk < 0 ? -1 : picture->crossing.stage_of[rank * plan->chunks + a->chunk];
        double start_us = simulation->start_us[rank][i], end_us = simulation->end_us[rank][i];
        if (is_receive(a->kind)) {
            double at_us = ready_us(picture, arrival_us, a, stage, end_us);
            received_us = at_us > received_us ? at_us : received_us;
        } else if (a->kind == SMP_ACTION_REDUCE && lane->n_reduction < plan->chunks) {
            lane->reduction[lane->n_reduction++] = (smp__reduction){stage, start_us, end_us};
        } else if (smp_action_is_compute(a->kind) || a->kind == SMP_ACTION_OPTIMIZE) {
            bool receives =
                a->kind == SMP_ACTION_F || a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_I;
            lane->cell[lane->n++] = (smp__cell){.kind = a->kind,
                                                .microbatch = a->microbatch,
                                                .stage = stage,
                                                .start_us = start_us,
                                                .end_us = end_us,
                                                .ready_us = receives ? received_us : -1.0,
                                                .bytes = picture->alive[rank][i]};
            received_us = receives ? -1.0 : received_us;
        } else {
            continue;
        }
        if (end_us > picture->predicted.end_us)
            picture->predicted.end_us = end_us;
    }
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
        if (at >= 0 && picture->alive[rank][i] > lane->cell[at].bytes)
            lane->cell[at].bytes = picture->alive[rank][i];
    }
}

static smp_status predict(smp_picture *picture)
{
    smp_simulation *simulation = NULL;
    double *arrival_us = NULL;
    SMP_TRY(create_lanes(picture, &picture->predicted));
    SMP_TRY(smp_simulate_plan(picture->plan, picture->graph, picture->flow, &simulation));
    smp_status status = find_arrivals(picture, simulation, &arrival_us);
    if (status == SMP_OK) {
        for (int rank = 0; rank < picture->plan->pipeline; rank++) {
            fill_lane(picture, simulation, arrival_us, rank);
            spread_bytes(picture, rank);
        }
        picture->bubble = simulation->bubble;
        if (simulation->step_us > picture->predicted.end_us)
            picture->predicted.end_us = simulation->step_us;
        status = smp__picture_waits(picture, &picture->predicted);
    }
    free(arrival_us);
    smp_simulation_destroy(simulation);
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

/* The pipeline rank that a world rank is of replica 0; -1: it belongs to another one. */
static int rank_of_world(const smp_plan *plan, int world_rank)
{
    for (int rank = 0; rank < plan->pipeline; rank++)
        if (smp_plan_device(plan->placement, plan->pipeline, plan->ddp, 0, rank) == world_rank)
            return rank;
    return -1;
}

static smp_status check_event(const smp_plan *plan, const smp_trace_event *e)
{
    bool stage = e->stage >= 0 && e->stage < plan->n_stage;
    bool whole = e->action.kind == SMP_ACTION_OPTIMIZE;
    bool mb = e->action.kind >= SMP_ACTION_REDUCE ||
              (e->action.microbatch >= 0 && e->action.microbatch < plan->microbatches);
    if ((unsigned)e->action.kind > SMP_ACTION_OPTIMIZE || (!whole && !stage) || !mb)
        return smp_fail(SMP_ERR_INPUT,
                        "a measured event of rank %d is for micro-batch %d of stage %d, the plan "
                        "has %d micro-batches and %d stages",
                        e->world_rank, (int)e->action.microbatch, e->stage, plan->microbatches,
                        plan->n_stage);
    return SMP_OK;
}

static int by_start(const void *a, const void *b)
{
    const smp__cell *x = a, *y = b;
    if (x->start_us != y->start_us)
        return x->start_us < y->start_us ? -1 : 1;
    return x->end_us < y->end_us ? -1 : x->end_us > y->end_us;
}

/* Events of a rank arrive in program order: a receive stands before what it is for. */
static smp_status add_event(smp_picture *picture, smp__timeline *timeline, double *received_us,
                            const smp_trace_event *e)
{
    const smp_plan *plan = picture->plan;
    int rank = rank_of_world(plan, e->world_rank);
    if (rank < 0)
        return SMP_OK;
    SMP_TRY(check_event(plan, e));
    smp__lane *lane = &timeline->lane[rank];
    smp_action_kind kind = e->action.kind;
    if (is_receive(kind)) {
        received_us[rank] = e->end_us > received_us[rank] ? e->end_us : received_us[rank];
    } else if (kind == SMP_ACTION_REDUCE && lane->n_reduction < plan->chunks) {
        lane->reduction[lane->n_reduction++] = (smp__reduction){e->stage, e->start_us, e->end_us};
    } else if ((smp_action_is_compute(kind) || kind == SMP_ACTION_OPTIMIZE) &&
               lane->n < plan->program[rank].n) {
        bool receives = kind == SMP_ACTION_F || kind == SMP_ACTION_B || kind == SMP_ACTION_I;
        lane->cell[lane->n++] = (smp__cell){.kind = kind,
                                            .microbatch = e->action.microbatch,
                                            .stage = kind == SMP_ACTION_OPTIMIZE ? -1 : e->stage,
                                            .start_us = e->start_us,
                                            .end_us = e->end_us,
                                            .ready_us = receives ? received_us[rank] : -1.0};
        received_us[rank] = receives ? -1.0 : received_us[rank];
    }
    if (e->end_us > timeline->end_us)
        timeline->end_us = e->end_us;
    return SMP_OK;
}

smp_status smp_picture_add_measured(smp_picture *picture, const smp_trace_event *events, int64_t n)
{
    const smp_plan *plan = picture->plan;
    smp__timeline timeline = {0};
    double *received_us = malloc((size_t)plan->pipeline * sizeof *received_us);
    if (!received_us)
        return smp_fail_memory((size_t)plan->pipeline * sizeof *received_us);
    for (int rank = 0; rank < plan->pipeline; rank++)
        received_us[rank] = -1.0;
    smp_status status = create_lanes(picture, &timeline);
    for (int64_t i = 0; status == SMP_OK && i < n; i++)
        status = add_event(picture, &timeline, received_us, &events[i]);
    free(received_us);
    if (status != SMP_OK)
        return status;
    for (int rank = 0; rank < plan->pipeline; rank++)
        qsort(timeline.lane[rank].cell, (size_t)timeline.lane[rank].n, sizeof(smp__cell), by_start);
    SMP_TRY(smp__picture_waits(picture, &timeline));
    picture->measured = timeline;
    return SMP_OK;
}
