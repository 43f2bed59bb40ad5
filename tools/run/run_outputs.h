/* The files that a run will write. */
#ifndef SMP_TOOLS_RUN_RUN_OUTPUTS_H
#define SMP_TOOLS_RUN_RUN_OUTPUTS_H

#include "tools/run/trainer.h"

/* What the end of the job will write can be written: found now, not after hours. Collective. */
smp_status smp__outputs_check(const smp__trainer *t);
/* After weights were exported into a folder, by the names of a family and out of a Hugging Face
 * folder: what from_pretrained reads beside them goes along. */
smp_status smp__folder_complete(const smp__trainer *t);
/* Before a checkpoint is read with which a run goes on: no other job saves there. */
smp_status smp__resume_lock(const smp__trainer *t);

#endif
