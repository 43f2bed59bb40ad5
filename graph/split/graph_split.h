/* The graph of one of several devices that compute a model together. */
#ifndef SMP_GRAPH_SPLIT_GRAPH_SPLIT_H
#define SMP_GRAPH_SPLIT_GRAPH_SPLIT_H

#include "graph/model/graph.h"
#include "graph/model/split_rule.h"

/* Does the rule hold for op `op` (of the whole graph) with this choice and so many devices? */
bool smp_split_allows(const smp_graph *graph, int32_t op, smp_split_choice choice, int devices);

/* How input `slot` and the outputs have to lie under a choice that is allowed. */
smp_spread smp_split_in(const smp_graph *graph, int32_t op, smp_split_choice choice, int32_t slot);
smp_spread smp_split_out(const smp_graph *graph, int32_t op, smp_split_choice choice);
/* The same of weight `slot`. bias_dim (may be NULL): the dimension of the output along which a bias
 * is added after the sum, else -1; its op of its own has it whole or shared. */
smp_spread smp_split_param(const smp_graph *graph, int32_t op, smp_split_choice choice,
                           int32_t slot, int *bias_dim);

/* All choices that are allowed for an op, the whole first; returns how many, at most
 * SMP_SPLIT_CHOICES. */
enum { SMP_SPLIT_CHOICES = 64 };
int smp_split_choices(const smp_graph *graph, int32_t op, int devices,
                      smp_split_choice out[SMP_SPLIT_CHOICES]);

/* A tensor that is made in one way, and is not yet there in another: is the whole of it made before
 * that? has_whole: it is there already, and everything else is made of it. bias_dim: of a bias that
 * it lacks, or -1. */
bool smp_split_whole_first(smp_spread made, int bias_dim, bool has_whole, smp_spread wanted);

/* Graph of device `index` of `devices`, owned by the caller. Ops keep their order and their
 * names; between them stand the collective ops that bring tensors from the way in which they are
 * made into that in which they are read, one for all that read it so, named "<tensor's op>:<way>".
 * Weights keep their names and know their part; what an op is given as attributes is its share.
 * The loss and what nobody reads is whole. Random initial values and checkpoints go by the part.
 *
 * choice: [n_op]. SMP_ERR_INPUT names an op whose choice its kind does not allow, or two whose
 * choices disagree on a weight that they share. `graph` has to outlive *out, whose target is
 * its. */
smp_status smp_graph_split(const smp_graph *graph, int devices, int index,
                           const smp_split_choice *choice, smp_graph **out);

/* The same where not all ops are computed by as many devices: `of` [n_op] of them each, `devices`
 * the most. Of an op of fewer the device has the part of `index` modulo those; what is read by
 * others than it was made by is whole in between. SMP_ERR_INPUT as well: two ops of different
 * numbers share a weight. */
smp_status smp_graph_split_groups(const smp_graph *graph, int devices, const int *of, int index,
                                  const smp_split_choice *choice, smp_graph **out);

/* The pieces that such a graph is put together of, on device 0, for who asks what they cost: an op
 * alone, whose inputs lie as it reads them; and the one or two ops that bring a tensor into another
 * way. bias_dim: of a bias that it lacks, or -1. What has a gradient has it in the whole graph. */
smp_status smp_graph_split_op(const smp_graph *graph, int devices, int32_t op,
                              smp_split_choice choice, smp_graph **out);
smp_status smp_graph_split_move(const smp_graph *graph, int devices, int32_t tensor,
                                smp_spread from, int bias_dim, smp_spread to, smp_graph **out);

#endif
