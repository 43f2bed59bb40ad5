/* How far a job has got: its place in the data, steps that changed nothing, the loss scale, what
 * else a checkpoint says beside weights. Alike on all ranks. */
#ifndef SMP_EXEC_STATE_PROGRESS_H
#define SMP_EXEC_STATE_PROGRESS_H

#include "exec/checkpoint/checkpoint_file.h"
#include "graph/base/arena.h"
#include "smp.h"

typedef struct smp__progress smp__progress;

/* Begins a job, once its graph and precision are known; in the arena. */
smp_status smp__progress_open(smp *s, smp_arena *arena);
/* Why checkpoints could not be loaded, for smp_load_note: room to write to. */
enum { SMP__LOAD_NOTE_BYTES = 1024 };
char *smp__progress_load_note(smp__progress *p);

/* What the loss is multiplied by in the step that comes next or is under way. */
float smp__progress_scale(const smp__progress *p);
/* A step overflowed, or changed nothing for another reason: what that does to the counts and to the
 * loss scale. Returns how many steps changed nothing. */
int64_t smp__progress_count(smp__progress *p, bool overflowed, bool unsound);
/* A step of so many samples is done. SMP_ERR_FAILED: it is one too many that changed nothing; every
 * rank finds the same. */
smp_status smp__progress_advance(smp__progress *p, int64_t samples, int max_skipped,
                                 const smp_step_result *done);

/* What a checkpoint of a step says of it; what one that was loaded said. */
void smp__progress_save(const smp__progress *p, int64_t step, smp__checkpoint_header *header);
void smp__progress_load(smp__progress *p, const smp__checkpoint_header *header);

/* What a run was told (exec/job/receipt.h), or "". */
typedef struct smp__receipts {
    char own[SMP__RECEIPT_BYTES];    /* saved with the weights */
    char loaded[SMP__RECEIPT_BYTES]; /* of the checkpoint that was loaded */
} smp__receipts;
smp__receipts *smp__progress_receipts(smp__progress *p);

/* Position in the data of what comes next, in samples; -1: the checkpoint does not say. */
int64_t smp__job_position(const smp *s);
void smp__job_set_position(smp *s, int64_t samples);
/* The order of the data: what was loaded, or set. It is saved with the weights. */
smp__sample_order smp__job_order(const smp *s);
void smp__job_set_order(smp *s, smp__sample_order order);

/* Steps that were skipped, all of them and the last ones in a row; set where steps are done again.
 */
typedef struct smp__skips {
    int64_t all;
    int in_row; /* without those that a lower loss scale may mend */
} smp__skips;
smp__skips smp__job_skips(const smp *s);
void smp__job_set_skips(smp *s, smp__skips skips);

/* The weights of a step had this loss over all held-out data: the next save says so, if it is
 * finite and of that step. */
void smp__job_note_evaluation(smp *s, int64_t step, double loss);
/* Is there a loss scale other than 1? */
bool smp__job_scales_loss(const smp *s);

#endif
