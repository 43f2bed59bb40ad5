/* What steps and evaluations take of the data: batches, this replica's part of them in buffers. */
#ifndef SMP_TOOLS_RUN_BATCHES_H
#define SMP_TOOLS_RUN_BATCHES_H

#include "tools/run/trainer.h"

/* least: samples that there must be. Collective; every rank returns the same. */
smp_status smp__batches_open(smp__trainer *t, const char *const *source, int n, bool shuffle,
                             int64_t least, smp_data **out);
/* The order that a checkpoint was trained in, if one has been loaded, else that of the options,
 * into both. SMP_ERR_INPUT: an option says otherwise. */
smp_status smp__order_settle(smp__trainer *t);
/* Holds out what the options say: t->eval_data. Collective, like smp__batches_open. */
smp_status smp__batches_split(smp__trainer *t);
/* Passes to steps: sets t->own.steps, if there is a number of passes. */
smp_status smp__epochs_count(smp__trainer *t);

smp_status smp__buffers_make(smp__trainer *t);
void smp__buffers_free(smp__trainer *t);

/* None goes across the end of a pass: the last one takes what is left of it, or leaves it out. */
smp__batch smp__next_batch(const smp__trainer *t);
/* This replica's part of the training data, into t->buffer: what was read ahead, where that is it.
 * `more`: begins to read what most likely follows. *wait_us: what it took. */
smp_status smp__take_batch(smp__trainer *t, smp__batch b, bool more, double *wait_us);
/* A part of a set in its order, from `first` on: as much as a step takes, or is left, which may be
 * nothing. */
smp__batch smp__batch_in_order(const smp__trainer *t, const smp_data *data, int64_t first);
/* This replica's part, into t->buffer. */
smp_status smp__read_batch(smp__trainer *t, smp_data *data, smp__batch b);

#endif
