/* Between the parts that several devices have of a weight and whole pieces of it, which are what a
 * checkpoint consists of. The pieces are dealt out to the ranks that have one copy of the weight
 * (comm.copy: devices x shards). A window of pieces at a time, these ranks give each other what
 * they lack, in memory that does not grow with the weight. */
#ifndef SMP_EXEC_SAVE_REGROUP_H
#define SMP_EXEC_SAVE_REGROUP_H

#include "exec/state/shards.h"

enum { SMP__WINDOW_ELEMENTS = 64 * SMP_PIECE_ELEMENTS };

/* Does memory->param[index] lie in parts on several devices? */
bool smp__is_split(const smp *s, int32_t index);

/* Copies of a weight share its pieces, as they do a save: which this is, of how many. {0, 1}: it
 * has all of them to itself, as each reads all. */
typedef struct smp__copies {
    int index, count;
} smp__copies;

/* Of a weight's whole pieces those of unit `unit` of n, in elements. */
smp__range smp__deal(int64_t elements, int64_t unit, int n);
/* Elements of the whole weight that are this rank's: whole pieces. */
smp__range smp__dealt_range(const smp *s, int32_t index, smp__copies copies);

typedef struct smp__regroup {
    smp *s;
    smp__copies copies;
    bool collects;         /* or spreads */
    int *count[2], *at[2]; /* [ranks of comm.copy]: elements for and from each; see regroup.c */
    float *buffer[2];
    smp_status status; /* the first failure of this rank. It goes on, as others count on it, with
                          whatever values. */
} smp__regroup;

/* Memory, not collective: all ranks have to agree on it before they go on. */
smp_status smp__regroup_open(smp *s, smp__copies copies, bool collects, smp__regroup *r);
void smp__regroup_close(smp__regroup *r);

/* The same number on all ranks, and what this one has of the dealt range in a round: it may be
 * nothing. */
int64_t smp__regroup_rounds(const smp__regroup *r, int32_t index);
smp__range smp__regroup_window(const smp__regroup *r, int32_t index, int64_t round);

/* Values (k 0) or state k - 1 of a weight that is split, from all the parts to the windows, each
 * `window` its rank's; and back: to the own ranges, of values to all that is here. Collective over
 * comm.copy. A status other than SMP_OK is a failed job's. */
smp_status smp__regroup_collect(smp__regroup *r, int32_t index, int k, int64_t round,
                                float *window);
smp_status smp__regroup_spread(smp__regroup *r, int32_t index, int k, int64_t round,
                               const float *window);

#endif
