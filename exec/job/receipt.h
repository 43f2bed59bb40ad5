/* What a run was told, kept in its checkpoints, so that who resumes one goes on as it was. Lines of
 * text, each a word and its value:
 *   option lr 0.003        of the command line, or of the run that was resumed
 *   batch 64               samples in a step
 *   microbatch-size 8      and others that decide the bits of a step
 *   product attention, bf16, ...: cuDNN 9.19.0   how a GPU computes it, of as many as fit
 *   split h*.mlp.fc:columns   how ops are split, unless that takes too many lines
 *   data 4215 0123..ef     bytes of the files, a hash of their heads and tails */
#ifndef SMP_EXEC_JOB_RECEIPT_H
#define SMP_EXEC_JOB_RECEIPT_H

#include "exec/data/data.h"

/* This run's, for its checkpoints: lines of options, or NULL; data: NULL where there are none.
 * SMP_ERR_INPUT: a checkpoint has no room for so many options. */
smp_status smp__receipt_make(smp *s, const char *options, const smp_data *data);
/* ... beside that of the checkpoint which was loaded: world rank 0 prints what is other, to
 * standard error. SMP_ERR_INPUT: another global batch, unless the user wants it. */
smp_status smp__receipt_compare(const smp *s, bool another_batch);

#endif
