/* Weights of a chunk, gathered from the ranks of the shard group that have a part each. */
#ifndef SMP_EXEC_STEP_GATHER_H
#define SMP_EXEC_STEP_GATHER_H

#include "exec/state/handle.h"

smp_status smp__gather_build(smp *s); /* after the arena; operators get addresses of weights */
bool smp__gathers(const smp *s, int chunk); /* does a chunk gather weights? */
smp_status smp__gather_start(smp *s, int chunk, int64_t position); /* G.c there in the program */
/* Before operators of the chunk run: nothing to do without a gather under way. */
smp_status smp__gather_wait(smp *s, int chunk);
/* For forward passes outside of steps: weights that are whole, of all chunks, once; those that are
 * in parts, of one. */
smp_status smp__gather_all(smp *s);
smp_status smp__gather_parts(smp *s, int chunk);

#endif
