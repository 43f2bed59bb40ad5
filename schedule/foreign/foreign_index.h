/* Where each action of a foreign schedule stands. */
#ifndef SMP_SCHEDULE_FOREIGN_FOREIGN_INDEX_H
#define SMP_SCHEDULE_FOREIGN_FOREIGN_INDEX_H

#include "schedule/foreign/foreign.h"

typedef struct smp__foreign_index {
    const smp_foreign *foreign;
    /* [n_stage * microbatches][kinds of a micro-batch] position in the rank that it belongs to; -1:
     * nowhere */
    int32_t (*at)[SMP_FOREIGN_PER_MICROBATCH];
} smp__foreign_index;

static inline int32_t smp__foreign_at(const smp__foreign_index *index, smp_foreign_kind kind,
                                      int32_t stage, int32_t microbatch)
{
    return index->at[(int64_t)stage * index->foreign->microbatches + microbatch][kind];
}

/* The half of the backward that hands a gradient on: B, or I; -1: neither. */
static inline int32_t smp__foreign_backward(const smp__foreign_index *index, int32_t stage,
                                            int32_t microbatch, smp_foreign_kind *kind)
{
    int32_t whole = smp__foreign_at(index, SMP_FOREIGN_B, stage, microbatch);
    *kind = whole >= 0 ? SMP_FOREIGN_B : SMP_FOREIGN_I;
    return whole >= 0 ? whole : smp__foreign_at(index, SMP_FOREIGN_I, stage, microbatch);
}

/* In `arena`. What stands twice is entered once; findings (NULL: not wanted) for that, and for what
 * stands on another rank than the rest of its stage or names none that there is. */
smp_status smp__foreign_index_build(const smp_foreign *foreign, smp_arena *arena,
                                    smp_findings *findings, smp__foreign_index *out);

#endif
