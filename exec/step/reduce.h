/* Gradients over replicas and over stages that share a weight. */
#ifndef SMP_EXEC_STEP_REDUCE_H
#define SMP_EXEC_STEP_REDUCE_H

#include "exec/state/handle.h"

/* terms: how sums over replicas are added, once smp__reduce_terms was called; NULL each in
 * inference. */
smp_status smp__reduce_open(smp *s, const smp_sum_terms *terms[SMP_N_REACH]);
smp_status smp__reduce_ties(smp *s);  /* lists the messages of tied weights */
smp_status smp__reduce_terms(smp *s); /* decides how sums over replicas are added */
smp_status smp__reduce_build(smp *s);
void smp__reduce_free(smp *s);
smp_status smp__reduce_begin_step(smp *s); /* posts receives of tied gradients */
/* Before the weight gradients of a micro-batch: accumulators that no backward writes become 0. */
smp_status smp__reduce_begin_chunk(smp *s, int chunk, int microbatch);
/* How many micro-batches are a block of gradients: the first of them writes accumulators. */
int smp__reduce_block_size(const smp *s);
/* The micro-batch's weight gradients are added: if a block of them ends, it joins the others. */
smp_status smp__reduce_block(smp *s, int chunk, int microbatch);
/* An operator's gradients of its weights are added: if those of a bucket are final now, it is
 * reduced. */
smp_status smp__reduce_weights(smp *s, int chunk, int microbatch, const smp_op *op);
bool smp__reduce_may_start(const smp *s, int chunk, int microbatch); /* may that be? */
smp_status smp__reduce_start(smp *s, int chunk);                     /* R.c: what is left */
smp_status smp__reduce_across(smp *s, int chunk);                    /* A.c */
smp_status smp__reduce_finish(smp *s); /* every gradient is final, or will be when the
                                                      device gets there */

#endif
