/* The sum at the end of a step; see the header. */
#include "exec/step/step_sums.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "exec/save/checkpoint_keep.h"
#include "exec/state/device_wait.h"
#include "exec/state/handle.h"
#include "exec/inputs/loss_share.h"
#include "exec/step/stepping.h"

/* What a rank may ask all for, and what lacks of the state that is kept in memory. */
enum { ASK_END, ASK_SAVE, KEEP_LACKS, N_ASK };

struct smp__step_sums {
    int n;                    /* of `all`, in which the others lie in this order */
    double *all;              /* allocated */
    double *loss;             /* [micro-batches of all replicas] */
    double *rows;             /* likewise */
    double *us;               /* [world_size] times of the call */
    double *hits;             /* [SMP_OP_HITS] */
    double *asks;             /* [N_ASK] */
    double *work_us;          /* [world_size] */
    double begin_s, waited_s; /* of the call: the clock, and what this rank had waited until then */
    bool end_asked, save_asked;
    double save_at_s; /* rank 0 */
};

static int count_losses(const smp *s)
{
    return (int)smp__job_microbatches(s);
}

smp_status smp__step_sums_open(smp *s)
{
    const int losses = count_losses(s), world = s->comm->world_size;
    struct smp__step_sums *sums = s->stepping->sums = calloc(1, sizeof *s->stepping->sums);
    if (!sums)
        return smp_fail_memory(sizeof *sums);
    sums->n = 2 * losses + 2 * world + SMP_OP_HITS + N_ASK;
    sums->all = calloc((size_t)sums->n, sizeof *sums->all);
    if (!sums->all)
        return smp_fail_memory((size_t)sums->n * sizeof *sums->all);
    sums->loss = sums->all;
    sums->rows = sums->loss + losses;
    sums->us = sums->rows + losses;
    sums->hits = sums->us + world;
    sums->asks = sums->hits + SMP_OP_HITS;
    sums->work_us = sums->asks + N_ASK;
    return SMP_OK;
}

void smp__step_sums_close(smp *s)
{
    free(s->stepping->sums ? s->stepping->sums->all : NULL);
    free(s->stepping->sums);
}

double smp__step_sums_begin(smp *s)
{
    s->stepping->sums->waited_s = s->comm->waited_s;
    return s->stepping->sums->begin_s = smp_clock_s();
}

/* Does the call in progress count the rows that the model has right? */
static bool counts_hits(const smp *s)
{
    const smp_op *loss = smp__counting_loss(s);
    return loss && loss->kind->counts_hits && !s->given->training;
}

void smp__step_sums_read(smp *s)
{
    struct smp__step_sums *sums = s->stepping->sums;
    memset(sums->all, 0, (size_t)sums->n * sizeof *sums->all);
    if (s->comm->tensor_rank > 0) /* the first device of a group speaks for all */
        return;
    const int first = smp__job_first(s, s->comm->replica);
    for (int mb = first; s->memory->loss >= 0 && mb < s->work->microbatches; mb++) {
        const int64_t at = smp__job_microbatch(s, s->comm->replica, mb);
        const smp__loss_slot *slot =
            (const smp__loss_slot *)(s->buffers->loss + (int64_t)mb * SMP_LOSS_SLOT_BYTES);
        sums->loss[at] = (double)slot->loss;
        sums->rows[at] = s->given->rows[at];
        for (int i = 0; i < SMP_OP_HITS && counts_hits(s); i++)
            sums->hits[i] += (double)slot->hits[i]; /* whole numbers: exact */
    }
}

void smp__step_sums_count(const smp *s, double *wrong, double *rows)
{
    for (int i = 0; i < count_losses(s); i++) {
        *wrong += !isfinite(s->stepping->sums->loss[i]);
        *rows += s->stepping->sums->rows[i];
    }
}

/* What this rank asks for goes with the sums of the step, so all ranks learn it in the same one. */
static void ask(const smp *s)
{
    const volatile sig_atomic_t *signalled = s->comm->signalled;
    const bool keeps_time = s->comm->world_rank == 0 && s->stepping->sums->save_at_s > 0.0;
    s->stepping->sums->asks[ASK_END] = signalled && *signalled != 0;
    s->stepping->sums->asks[ASK_SAVE] = keeps_time && smp_clock_s() >= s->stepping->sums->save_at_s;
}

static void agree(smp *s)
{
    struct smp__step_sums *sums = s->stepping->sums;
    sums->end_asked = sums->end_asked || sums->asks[ASK_END] > 0.0;
    sums->save_asked = sums->save_asked || sums->asks[ASK_SAVE] > 0.0;
    if (sums->end_asked) /* all ranks live */
        s->comm->signalled = NULL;
}

smp_status smp__step_sums_collect(smp *s, smp_step_result *result)
{
    struct smp__step_sums *sums = s->stepping->sums;
    const int losses = count_losses(s);
    const double took_s = smp_clock_s() - sums->begin_s;
    sums->us[s->comm->world_rank] = 1e6 * took_s;
    sums->work_us[s->comm->world_rank] = s->device->host_memory
                                             ? 1e6 * (took_s - (s->comm->waited_s - sums->waited_s))
                                             : smp__device_work_us(s);
    ask(s);
    if (s->given->training)
        SMP_TRY(smp__keep_deliver(s));
    sums->asks[KEEP_LACKS] = smp__keep_lacks(s);
    SMP_TRY(smp__comm_sum(s->comm, sums->all, sums->n));
    agree(s);
    smp__keep_agree(s, sums->asks[KEEP_LACKS]);
    result->hits = counts_hits(s) ? (int64_t)sums->hits[0] : -1;
    result->hits_top5 = counts_hits(s) ? (int64_t)sums->hits[1] : -1;
    result->loss = smp__loss_mean(sums->loss, sums->rows, losses);
    for (int i = 0; i < losses; i++)
        result->loss_rows += (int64_t)sums->rows[i];
    for (int i = 0; i < s->comm->world_size; i++)
        result->step_us = fmax(result->step_us, sums->us[i]);
    result->predicted_us = s->plan->predicted.step_us;
    result->samples_per_s =
        1e6 * (double)s->given->samples / (result->step_us > 0.0 ? result->step_us : 1.0);
    return SMP_OK;
}

const double *smp__step_sums_losses(const smp *s, const double **rows)
{
    *rows = s->stepping->sums->rows;
    return s->stepping->sums->loss;
}

const double *smp__step_sums_work_us(const smp *s)
{
    return s->stepping->sums->work_us;
}

void smp__step_sums_time_work(smp *s)
{
    smp__device_time_work(s);
}

bool smp__step_sums_end_asked(const smp *s)
{
    return s->stepping->sums->end_asked;
}

bool smp__step_sums_save_asked(const smp *s)
{
    return s->stepping->sums->save_asked;
}

void smp__step_sums_ask_save(smp *s, double at_s)
{
    s->stepping->sums->save_asked = false;
    s->stepping->sums->save_at_s = at_s;
}
