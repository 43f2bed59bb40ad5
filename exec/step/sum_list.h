/* Sums over replicas and gathers of a chunk, and how a rank waits for them. */
#ifndef SMP_EXEC_STEP_SUM_LIST_H
#define SMP_EXEC_STEP_SUM_LIST_H

#include "exec/state/handle.h"

/* A sum over replicas, or a gather, of this rank. */
typedef struct smp__sum_item {
    smp_sum sum;
    int64_t *cut;             /* owned; NULL: borrowed */
    int64_t offset;           /* elements from the bucket's or the gathered weights' beginning */
    int32_t region;           /* of the parts */
    smp_reduction *reduction; /* NULL: not in flight */
} smp__sum_item;

/* Those of a chunk. */
typedef struct smp__sum_list {
    smp__sum_item *item;
    int n, started;   /* how many have been asked for, since all of them were waited for */
    double *ended_us; /* where to note when all are done: what the step records; or NULL */
} smp__sum_list;

/* Another item; cut: [members + 1], borrowed; NULL: `elements` cut evenly over the members. */
smp_status smp__sum_list_add(const smp *s, smp__sum_list *list, const smp_sum *sum, int64_t offset,
                             int32_t region, int64_t elements);
void smp__sum_lists_free(smp__sum_list *list, int n); /* [n], malloc'ed; accepts NULL */
/* Those before item `end` that have not been asked for, which start at `base` in the arena. */
smp_status smp__sum_list_start(smp *s, smp__sum_list *list, int64_t base, int end);
/* what: whom or what for. */
smp_status smp__sum_list_wait(smp *s, smp__sum_list *list, const char *what);
/* With record_trace: the action in progress, which has just asked for the rest of the list, ends
 * when all of it is done. */
void smp__sum_list_record(smp *s, smp__sum_list *list);
/* Notes which of those are done by now; where looking costs a device nothing. */
smp_status smp__sum_lists_look(smp *s);

#endif
