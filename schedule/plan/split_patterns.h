/* How people say that a model is split: by patterns instead of an entry for every op. */
#ifndef SMP_SCHEDULE_PLAN_SPLIT_PATTERNS_H
#define SMP_SCHEDULE_PLAN_SPLIT_PATTERNS_H

#include "graph/split/splitting.h"

/* "PATTERN:RULE", as in "h*.mlp.fc:columns", at the last colon: ops have any name. out->op is the
 * caller's to free, out->as stands in `text`; name: what messages call it,
 * kept for those of later. */
smp_status smp_split_entry_parse(const char *name, const char *text, smp_split_entry *out);

/* Entries whose op is a name, a pattern or a range (schedule/plan/op_pattern.h), as entries of one
 * op each, in op order and in `arena`, as plans have them; ops that are left whole have none. Who
 * names an op wins over patterns, of those a later one over an earlier one. Of the ops that a
 * pattern stands for, kinds without the rule are passed over. For at most one device: no entry.
 *
 * SMP_ERR_INPUT, at the entry's place if it has one: nothing is meant by it, none of the ops has
 * the rule, sizes of one that has it do not allow it, or an op is named twice. `whole` is not
 * split. */
smp_status smp_splitting_resolve(const smp_splitting *splitting, const smp_graph *whole,
                                 smp_arena *arena, smp_splitting *out);

/* The other way round: entries by patterns, of names with any numbers, that are resolved to those
 * of `resolved`; where that cannot be, these themselves. */
smp_status smp_splitting_shorten(const smp_splitting *resolved, const smp_graph *whole,
                                 smp_arena *arena, smp_splitting *out);

#endif
