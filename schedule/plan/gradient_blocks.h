/* The tree in which weight gradients are added. The micro-batches of all replicas, in their order,
 * are cut into N blocks of equally many, its leaves. A block is folded in order; then blocks are
 * added in pairs, the sums in pairs and so on, where one that is left over goes up as it is. A
 * replica has a whole number of neighbouring blocks, at least one. It adds up what it can of the
 * tree by itself, one node or a few, and all of these meet in the sum over the replicas: the bits
 * do not depend on how many there are. The idea is that of EasyScale (Li et al., SC 2023), whose
 * thread-local gradients are likewise added in an order that the number of GPUs does not change.
 *
 * Where ddp does not divide N the first N mod ddp replicas have one block more. All run one
 * program, of as many blocks as those have: the others spend its first block on padding and leave
 * what comes of it out of the tree, where even a zero can change a bit (-0 + 0). It is the first
 * one because the next block writes its gradients over it, and because sums over replicas begin
 * with the last. */
#ifndef SMP_SCHEDULE_PLAN_GRADIENT_BLOCKS_H
#define SMP_SCHEDULE_PLAN_GRADIENT_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/model/op.h"

/* Nodes are the most that neighbouring leaves of so large a tree make: two of each level. */
enum { SMP_MAX_GRADIENT_BLOCKS = 1 << 20, SMP_MAX_GRADIENT_NODES = 40 };

/* A node of the tree: the sum of blocks begin .. end - 1. */
typedef struct smp_gradient_node {
    int begin, end;
} smp_gradient_node;

/* Blocks in the program of a replica: of those that have most. */
int smp_gradient_share(int blocks, int ddp);
/* The first block of a replica; of replica ddp: `blocks`. */
int smp_gradient_begin(int blocks, int ddp, int replica);
/* Micro-batches of all replicas where a program has `microbatches`. */
int64_t smp_gradient_microbatches(int blocks, int ddp, int microbatches);
/* Can `blocks` blocks be shared out to the replicas? SMP_ERR_INPUT with the reason. blocks: at
 * least ddp; smp_gradient_share of them: of whole micro-batches. */
smp_status smp_gradient_blocks_check(int blocks, int ddp, int microbatches);
/* The first operator that adds up over the replicas in the middle of a call (smp_op_joint), which
 * has the bits of one number of them; NULL: there is none. graph: one that trains. */
const smp_op *smp_joint_op(const smp_graph *graph);
/* Has the model none, or has each replica as many blocks as the others, whose micro-batches meet in
 * it? SMP_ERR_INPUT with the reason. */
smp_status smp_gradient_joint_check(int blocks, int ddp, const smp_graph *graph);
/* Can sums go in two hops, `node_replicas` replicas first? 0: they do not. SMP_ERR_INPUT with the
 * reason. */
smp_status smp_gradient_hops_check(int blocks, int ddp, int node_replicas);

/* Has each replica one node of the tree, of equally many blocks? */
bool smp_gradient_is_node(int blocks, int ddp);

/* Appends the block `end` of neighbours to the nodes that the blocks before it make, and adds up
 * what can be: node[n] in, the new number out. Of the nodes each but the last stays as it is or is
 * added to its right neighbour. node: [SMP_MAX_GRADIENT_NODES]. */
int smp_gradient_append(int blocks, smp_gradient_node *node, int n, smp_gradient_node next);
/* The nodes that blocks begin .. end - 1 make by themselves, from left to right; how many. */
int smp_gradient_nodes(int blocks, int begin, int end, smp_gradient_node *node);

/* Accumulators that a replica needs beside the one of the block in progress: for nodes before it,
 * while it adds its blocks, and for what a group of `shard` replicas makes of theirs. */
int smp_gradient_levels(int blocks, int ddp, int shard);
/* Arrays that a member sends, at most, to a sum over members that are `group` neighbouring replicas
 * each. group: a divisor of ddp. */
int smp_gradient_most_nodes(int blocks, int ddp, int group);

#endif
