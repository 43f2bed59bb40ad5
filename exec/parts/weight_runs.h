/* Where a device's part of a weight stands in the whole: in runs of equal length, one of each of
 * the devices in turn. Of places in both, and of copies between them; nothing here knows more of a
 * job than one weight. */
#ifndef SMP_EXEC_PARTS_WEIGHT_RUNS_H
#define SMP_EXEC_PARTS_WEIGHT_RUNS_H

#include "graph/model/graph.h"

/* One of `count` runs that follow each other in the whole belongs to this part: number `index`, or
 * as smp_split_part says. A weight that is not split is one run of one. */
typedef struct smp__runs {
    int64_t run; /* elements */
    int index, count, blocks;
} smp__runs;

smp__runs smp__runs_of(const smp_param *param);
/* Elements of the whole weight that `param` is a part of. */
int64_t smp__runs_whole(const smp_param *param);

/* Where element `at` of the part stands in the whole, and how many of the part follow each other
 * there from it on. */
int64_t smp__runs_place(smp__runs runs, int64_t at);
int64_t smp__runs_left(smp__runs runs, int64_t at);
/* How many elements of the part stand before `place` in the whole: as elements of the part keep
 * their order in the whole, those of the whole's [a, b) are the part's [before(a), before(b)). */
int64_t smp__runs_before(smp__runs runs, int64_t place);

/* Elements [first, first + n) of the part to or from their places in `whole`, an array of elements
 * of the whole from `begin` on. */
void smp__runs_put(smp__runs runs, const float *part, int64_t first, int64_t n, float *whole,
                   int64_t begin);
void smp__runs_take(smp__runs runs, float *part, int64_t first, int64_t n, const float *whole,
                    int64_t begin);

#endif
