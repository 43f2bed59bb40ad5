/* What smp-run prints, as text or JSON: a line for a step, for an evaluation, and the last ones. */
#ifndef SMP_TOOLS_RUN_PRINTED_LINES_H
#define SMP_TOOLS_RUN_PRINTED_LINES_H

#include "exec/log/slow_ranks.h"
#include "tools/run/trainer.h"

/* What the job runs on, unless that goes without saying; as JSON, which CUDA graphs there are. */
void smp__print_target(const smp *s, bool json);
void smp__print_step(const smp__trainer *t, const smp_step_result *r);
/* Why a save has failed. */
void smp__print_unsaved(const smp__trainer *t);
/* A rank has become slow, or is so no more; `usual`: the ratio of half of the ranks. */
void smp__print_pace(const smp__trainer *t, int rank, const smp__rank_pace *pace, double usual);
void smp__print_evaluation(const smp__trainer *t, int64_t step, const smp__evaluated *e);
void smp__print_summary(const smp__trainer *t);
/* Collective: a hash of every replica's weights. */
smp_status smp__print_checksum(smp__trainer *t);

#endif
