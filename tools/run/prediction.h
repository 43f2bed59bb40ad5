/* What a model makes of all samples of a data set, as a file. */
#ifndef SMP_TOOLS_RUN_PREDICTION_H
#define SMP_TOOLS_RUN_PREDICTION_H

#include "tools/run/trainer.h"

/* Before the first step: the tensor's name, the form, and whether the samples make whole
 * micro-batches where the form asks for that; opens the data. Collective; every rank returns the
 * same. */
smp_status smp__prediction_open(smp__trainer *t);

/* Writes options->predict: NumPy's format, C order, float32 or int32; rank 0, batch by batch, so
 * that it never holds more than one (of a mean, one micro-batch). Collective. */
smp_status smp__prediction_write(smp__trainer *t);

#endif
