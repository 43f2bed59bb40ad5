/* What operators, messages and the optimizer of the last steps took, for a profile of this very run
 * (exec/job/write_costs.c). Nothing is looked at, and no memory taken, unless runtime.record_costs
 * asks.
 *
 * Of each step one micro-batch is looked at, another one in the next. Its actions set marks: the
 * time from one mark to the next belongs to an operator, with what the executor does between two of
 * them, so that the costs of a stage's operators are what its actions take. Marks are stamps of the
 * device; where ranks share cores and compute on them, times of the thread: those stop in the turns
 * of others. A message is looked at by the clock that the processes of a machine share. */
#ifndef SMP_EXEC_STEP_COST_SAMPLES_H
#define SMP_EXEC_STEP_COST_SAMPLES_H

#include "exec/state/handle.h"
#include "exec/step/stepping.h"

enum {
    SMP__COST_SAMPLES = 64, /* the last so many steps are kept */
    SMP__COST_PARTS = 3     /* of an operator: smp_op_part */
};

typedef struct smp__message_sample {
    double sent_s;    /* its send began; set by the sender, all else by the receiver */
    double awaited_s; /* nothing was left to do but wait for it */
    double arrived_s;
} smp__message_sample;

typedef struct smp__cost_samples {
    int64_t n_step;   /* looked at; that of number i has its samples at i % SMP__COST_SAMPLES */
    int64_t n_update; /* ... whose update has been looked at, too */
    int microbatch;   /* looked at in the step in progress; -1: none */
    int n_mark, max_mark;
    int32_t *series_of; /* [max_mark] whose time a mark ends; -1: nobody's */
    double *own_s;      /* [marks] the thread's time, where it shares its core */
    double *away_s;     /* [marks] what of the time until then was nobody's; ... */
    double away_now_s;  /* ... now */
    int32_t *first;     /* [chunks] series of a chunk's call 0, forward; parts, then calls follow */
    int32_t n_series;
    double *us;                   /* [n_series][SMP__COST_SAMPLES] */
    double *optimizer_us;         /* [SMP__COST_SAMPLES] the gradient's norm, and the update */
    smp__message_sample *message; /* [n_transfer][SMP__COST_SAMPLES] */
} smp__cost_samples;

/* Before the device is opened, which has to know how many marks there are. */
smp_status smp__cost_samples_build(smp *s);
void smp__cost_samples_free(smp *s);
int smp__cost_marks(const smp *s); /* that a step sets at most */

void smp__cost_samples_begin(smp *s);       /* a training step begins */
smp_status smp__cost_samples_end(smp *s);   /* everything before its optimizer is done */
smp_status smp__cost_samples_close(smp *s); /* waits for the update of the last step */

/* The optimizer works between `begin` and `end`. */
typedef enum smp__optimizer_part { SMP__OPTIMIZER_NORM, SMP__OPTIMIZER_UPDATE } smp__optimizer_part;
smp_status smp__cost_optimizer_begin(smp *s, smp__optimizer_part part);
smp_status smp__cost_optimizer_end(smp *s, smp__optimizer_part part);

/* What is between the two is nobody's time, though an operator's call goes on: a sum over replicas,
 * which predictions count by themselves. */
void smp__cost_leave(smp *s);
void smp__cost_back(smp *s);

/* Sets a mark: the time since the last one was that of a part of a call; call -1: of none. */
smp_status smp__cost_mark_at(smp *s, int chunk, int call, int part);

static inline bool smp__cost_looks_at(const smp *s, int microbatch)
{
    return s->stepping->cost_samples && s->stepping->cost_samples->microbatch == microbatch;
}

static inline smp_status smp__cost_mark(smp *s, int chunk, int microbatch, int call, int part)
{
    return smp__cost_looks_at(s, microbatch) ? smp__cost_mark_at(s, chunk, call, part) : SMP_OK;
}

/* The message of a transfer; NULL: it is not looked at. */
static inline smp__message_sample *smp__cost_message(const smp *s, int32_t transfer, int microbatch)
{
    if (!smp__cost_looks_at(s, microbatch))
        return NULL;
    return &s->stepping->cost_samples
                ->message[(int64_t)transfer * SMP__COST_SAMPLES +
                          s->stepping->cost_samples->n_step % SMP__COST_SAMPLES];
}

#endif
