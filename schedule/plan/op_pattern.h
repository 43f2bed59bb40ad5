/* Ops named by pattern: in sketches of plans, in what stages recompute, and by --cut-at.
 *
 * A pattern is the name of an op; or a name in which `*` stands for any text and `?` for any one
 * character; or `a..b`, the ops from a to b in the order of the model. A text that is an op's name
 * is that op, whatever it looks like. */
#ifndef SMP_SCHEDULE_PLAN_OP_PATTERN_H
#define SMP_SCHEDULE_PLAN_OP_PATTERN_H

#include "graph/base/text.h"
#include "graph/model/graph.h"

/* Names that the entries of one file may look at. */
#define SMP_MAX_PATTERN_WORK ((int64_t)300000000)

/* The ops that a text names, one after the other in model order. */
typedef struct smp_op_match {
    int32_t next, last;
    const char *pattern; /* NULL: all from next to last */
} smp_op_match;

/* O(name) for a name or a range, O(all names) for a pattern, over all calls. */
smp_op_match smp_op_match_begin(const smp_graph *graph, const char *text);
int32_t smp_op_match_next(const smp_graph *graph, smp_op_match *match); /* -1: no more */

/* The same among `n` ops of which `find` gives the number of the one of a name, -1: none. */
typedef int32_t smp_op_finder(const void *ops, const char *name);
smp_op_match smp_op_match_among(const void *ops, smp_op_finder *find, int32_t n, const char *text);

/* Patterns look at every op, ranges perhaps, so a file of nothing else would take for ever:
 * SMP_ERR_INPUT once the names that those begun so far look at, counted in *work, are too many. */
smp_status smp_op_match_allowed(const smp_op_match *match, smp_where where, int64_t *work);

/* Appends ", nearest is 'x'" where an op's name is close to what was meant. */
void smp_op_pattern_hint(const smp_graph *graph, const char *pattern, smp_text *text);

/* Stages may begin only at ops that match one of the patterns, of which "layers" stands for those
 * that begin a layer, and the first after the last one (layer_names.h): gives ops from one match
 * up to the next, in model order, one label (smp_problem.together); the ops before the first match
 * share one, too. together: [n_op], malloc'ed. SMP_ERR_INPUT, prefixed by `option`, for a pattern
 * that no op matches. */
smp_status smp_op_cuts(const smp_graph *graph, const char *option, const char *const *pattern,
                       int n_pattern, int32_t **together);

#endif
