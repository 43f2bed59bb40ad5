/* Which bytes of a state kept in memory the machines of a job have and read, found from a plan
 * alone: what ranks do on machines of their own (checkpoint_keep.h, kept_fetch.h), before there are
 * any. */
#ifndef SMP_EXEC_SAVE_KEPT_PARTS_H
#define SMP_EXEC_SAVE_KEPT_PARTS_H

#include <stdbool.h>

#include "exec/checkpoint/byte_spans.h"
#include "schedule/plan/plan.h"

/* Sets of bytes of the whole file. */
typedef struct smp__kept_part {
    smp__spans keeps; /* what its ranks write, and what only the machine before it writes */
    smp__spans reads; /* what its ranks load; less is fetched where some of it is there */
} smp__kept_part;

/* graph: the plan's, as any device of a group has it. states, keeps: of the optimizer, of each
 * weight. own_bytes: of the program's own state. machine: [processes of the plan] where each rank
 * is, of `n` machines whose numbers rise with their lowest ranks. out: [n]; smp__kept_parts_free,
 * also after an error. Not collective. SMP_ERR_INPUT: not a plan of the graph, or its groups are of
 * several sizes, which is not known. O(n^2 * weights of a machine). */
smp_status smp__kept_parts(const smp_plan *plan, const smp_graph *graph, int states, bool keeps,
                           int64_t own_bytes, const int *machine, int n, smp__kept_part *out);
void smp__kept_parts_free(smp__kept_part *parts, int n);

#endif
