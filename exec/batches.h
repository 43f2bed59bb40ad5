/* What steps and evaluations take of the data: batches, this replica's part of them in buffers. */
#ifndef SMP_EXEC_BATCHES_H
#define SMP_EXEC_BATCHES_H

#include "exec/trainer.h"

/* A part of a data set. */
typedef struct smp__batch {
    int64_t first, samples;
} smp__batch;

/* least: samples that there must be. Collective; every rank returns the same. */
smp_status smp__batches_open(smp__trainer *t, const char *const *source, int n, bool shuffle,
                             int64_t least, smp_data **out);
smp_status smp__buffers_make(smp__trainer *t);

/* None goes across the end of a pass: the last one takes what is left of it, or leaves it out. */
smp__batch smp__next_batch(const smp__trainer *t);
/* This replica's part, into t->buffer. */
smp_status smp__read_batch(smp__trainer *t, smp_data *data, smp__batch b);

#endif
