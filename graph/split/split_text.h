/* Choices as people write them: a rule's name, then "@D" for the dimension where the rule leaves it
 * open, then "/B" for the blocks of a packed one: "columns", "columns/3", "elements@1"; or "whole",
 * where every device computes all of it. */
#ifndef SMP_GRAPH_SPLIT_SPLIT_TEXT_H
#define SMP_GRAPH_SPLIT_SPLIT_TEXT_H

#include "graph/base/text.h"
#include "graph/split/graph_split.h"

void smp_split_format(const smp_graph *graph, int32_t op, smp_split_choice choice, smp_text *out);
/* SMP_ERR_INPUT names the rules of the op's kind, or what its sizes do not allow. */
smp_status smp_split_parse(const smp_graph *graph, int32_t op, int devices, const char *text,
                           smp_split_choice *out);

/* Does the op's kind have the rule that `text` names, in that form, whatever the op's sizes? */
bool smp_split_has_rule(const smp_graph *graph, int32_t op, const char *text);

#endif
