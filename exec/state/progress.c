/* How far a job has got; see the header. */
#include "exec/state/progress.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "exec/optimizer/loss_scale.h"
#include "exec/state/handle.h"

struct smp__progress {
    smp_loss_scaling loss_scaling;
    smp_loss_scale loss_scale;
    smp__skips skips;
    int64_t samples; /* position in the data after the steps done; -1: not known */
    smp__sample_order order;
    smp__receipts receipts;
    bool evaluated;         /* the next save says so, if it is of this step: */
    int64_t evaluated_step; /* whose weights had, over all of the held-out data, */
    double eval_loss;       /* this loss, finite */
    char load_note[SMP__LOAD_NOTE_BYTES];
};

smp_status smp__progress_open(smp *s, smp_arena *arena)
{
    smp__progress *p = s->progress = SMP_ARENA_NEW(arena, smp__progress, 1);
    if (!p)
        return smp_fail_memory(sizeof *p);
    SMP_TRY(smp_loss_scaling_read(&s->options->optimizer, s->target->precision, &p->loss_scaling));
    if (!s->graph->training)
        p->loss_scaling = (smp_loss_scaling){.init = 1.0f};
    p->loss_scale = smp_loss_scale_begin(&p->loss_scaling);
    return SMP_OK;
}

char *smp__progress_load_note(smp__progress *p)
{
    return p->load_note;
}

float smp__progress_scale(const smp__progress *p)
{
    return p->loss_scale.scale;
}

/* A step that a lower scale may mend is no sign of weights that get nowhere. */
int64_t smp__progress_count(smp__progress *p, bool overflowed, bool unsound)
{
    const bool mends = overflowed && smp_loss_scale_can_fall(&p->loss_scaling, p->loss_scale);
    p->skips.all += unsound;
    if (!mends)
        p->skips.in_row = unsound ? p->skips.in_row + 1 : 0;
    if (overflowed || !unsound) /* without a target there is nothing to learn about the scale */
        smp_loss_scale_next(&p->loss_scaling, overflowed, &p->loss_scale);
    return p->skips.all;
}

smp_status smp__progress_advance(smp__progress *p, int64_t samples, int max_skipped,
                                 const smp_step_result *done)
{
    if (p->samples >= 0)
        p->samples += samples;
    if (max_skipped == 0 || p->skips.in_row < max_skipped)
        return SMP_OK;
    return smp_fail(
        SMP_ERR_FAILED,
        "%d steps in a row changed nothing, the last one step %" PRId64 ": loss %g over %" PRId64
        " targets, gradient norm %g: lower the learning rate, "
        "clip the gradient, look at the data, or go on for longer (--max-skipped)",
        p->skips.in_row, done->step, done->loss, done->loss_rows, fabs(done->grad_norm));
}

void smp__progress_save(const smp__progress *p, int64_t step, smp__checkpoint_header *header)
{
    header->step = step;
    header->samples = p->samples;
    header->order = p->order;
    header->evaluated = p->evaluated && p->evaluated_step == step;
    header->eval_loss = p->eval_loss;
    header->scaled = p->loss_scaling.dynamic;
    header->loss_scale = p->loss_scale;
    memcpy(header->receipt, p->receipts.own, sizeof header->receipt);
}

void smp__progress_load(smp__progress *p, const smp__checkpoint_header *header)
{
    p->samples = header->samples;
    p->order = header->order;
    memcpy(p->receipts.loaded, header->receipt, sizeof p->receipts.loaded);
    if (p->loss_scaling.dynamic && header->scaled)
        p->loss_scale = smp_loss_scale_resume(&p->loss_scaling, header->loss_scale);
}

smp__receipts *smp__progress_receipts(smp__progress *p)
{
    return &p->receipts;
}

int64_t smp__job_position(const smp *s)
{
    return s->progress->samples;
}

void smp__job_set_position(smp *s, int64_t samples)
{
    s->progress->samples = samples;
}

smp__sample_order smp__job_order(const smp *s)
{
    return s->progress->order;
}

void smp__job_set_order(smp *s, smp__sample_order order)
{
    s->progress->order = order;
}

smp__skips smp__job_skips(const smp *s)
{
    return s->progress->skips;
}

void smp__job_set_skips(smp *s, smp__skips skips)
{
    s->progress->skips = skips;
}

void smp__job_note_evaluation(smp *s, int64_t step, double loss)
{
    s->progress->evaluated = isfinite(loss);
    s->progress->evaluated_step = step;
    s->progress->eval_loss = loss;
}

bool smp__job_scales_loss(const smp *s)
{
    return s->progress->loss_scaling.on;
}
