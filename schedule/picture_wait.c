/* Why ranks stand still: each gap before an action is split at the moments at which its input was
 * made and at which it arrived. What then remains was spent on moving data (ranks that cannot
 * compute meanwhile), or waiting for a core that ranks share. O(cells * transfers of a stage). */
#include <stdlib.h>

#include "schedule/picture_model.h"

/* End of each (forward or backward, stage, micro-batch), [2][n_stage * microbatches]. */
typedef struct ends {
    double *us;
    size_t n;
    int microbatches;
} ends;

static double *end_of(const ends *e, smp_transfer_kind kind, int stage, int microbatch)
{
    return &e->us[(kind == SMP_TRANSFER_F ? 0 : e->n) + (size_t)stage * (size_t)e->microbatches +
                  (size_t)microbatch];
}

/* W makes nothing that others wait for. */
static void note_ends(const smp_picture *picture, const smp__timeline *timeline, ends *e)
{
    for (int rank = 0; rank < picture->plan->pipeline; rank++)
        for (int64_t i = 0; i < timeline->lane[rank].n; i++) {
            const smp__cell *c = &timeline->lane[rank].cell[i];
            if (c->kind == SMP_ACTION_F)
                *end_of(e, SMP_TRANSFER_F, c->stage, c->microbatch) = c->end_us;
            else if (c->kind == SMP_ACTION_B || c->kind == SMP_ACTION_I)
                *end_of(e, SMP_TRANSFER_B, c->stage, c->microbatch) = c->end_us;
        }
}

/* When the last input of a cell from another rank was made; -1: it has none. */
static double made_us(const smp_picture *picture, const ends *e, const smp__cell *cell)
{
    const smp_flow *flow = picture->flow;
    smp_transfer_kind kind = cell->kind == SMP_ACTION_F ? SMP_TRANSFER_F : SMP_TRANSFER_B;
    double latest_us = -1.0;
    if (cell->stage < 0 || cell->kind == SMP_ACTION_W)
        return latest_us;
    for (int32_t i = flow->in_begin[cell->stage]; i < flow->in_begin[cell->stage + 1]; i++) {
        const smp_transfer *t = &flow->transfer[flow->in_list[i]];
        if (t->kind != kind || !smp__crossing_is_message(&picture->crossing, t))
            continue;
        double at_us = *end_of(e, kind, t->from_stage, cell->microbatch);
        latest_us = at_us > latest_us ? at_us : latest_us;
    }
    return latest_us;
}

static double clamp(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* What the rest of a gap was spent on. */
static smp__wait rest_of(const smp_picture *picture)
{
    const smp_cluster *cluster = picture->plan->cluster;
    return cluster && cluster->overlap && cluster->cores_per_node > 0 ? SMP__WAIT_CORE
                                                                      : SMP__WAIT_TRANSFER;
}

static void count_gap(const smp_picture *picture, const ends *e, const smp__cell *cell,
                      double begin_us, double *wait_us)
{
    double gap_end_us = cell->start_us;
    if (gap_end_us <= begin_us)
        return;
    if (cell->kind == SMP_ACTION_OPTIMIZE) {
        wait_us[SMP__WAIT_REDUCE] += gap_end_us - begin_us;
        return;
    }
    double made = clamp(made_us(picture, e, cell), begin_us, gap_end_us);
    double ready = clamp(cell->ready_us, made, gap_end_us);
    wait_us[SMP__WAIT_COMPUTE] += made - begin_us;
    wait_us[SMP__WAIT_TRANSFER] += ready - made;
    wait_us[rest_of(picture)] += gap_end_us - ready;
}

smp_status smp__picture_waits(const smp_picture *picture, smp__timeline *timeline)
{
    const smp_plan *plan = picture->plan;
    ends e = {.n = (size_t)plan->n_stage * (size_t)plan->microbatches,
              .microbatches = plan->microbatches};
    e.us = calloc(2 * e.n + 1, sizeof *e.us);
    if (!e.us)
        return smp_fail_memory(2 * e.n * sizeof *e.us);
    note_ends(picture, timeline, &e);
    for (int rank = 0; rank < plan->pipeline; rank++) {
        smp__lane *lane = &timeline->lane[rank];
        double free_us = 0.0;
        for (int64_t i = 0; i < lane->n; i++) {
            const smp__cell *cell = &lane->cell[i];
            count_gap(picture, &e, cell, free_us, lane->wait_us);
            double begin_us = cell->start_us > free_us ? cell->start_us : free_us;
            lane->busy_us += cell->end_us > begin_us ? cell->end_us - begin_us : 0.0;
            free_us = cell->end_us > free_us ? cell->end_us : free_us;
        }
        if (timeline->end_us > free_us)
            lane->wait_us[SMP__WAIT_END] += timeline->end_us - free_us;
    }
    free(e.us);
    return SMP_OK;
}
