/* How an operator may be computed by several devices together, as its file says it: `split` of its
 * smp_op_kind, one line a rule. graph/split makes of these lines the graph of one of the devices.
 *
 * A tensor lies over the devices in one of four ways, which say the value and its gradient at once:
 *
 *   way     value on a device                gradient on a device
 *   whole   all of it                        all of it
 *   split   its part along a dimension       its part
 *   parts   a summand: the value is the sum  all of it
 *   shared  all of it                        a summand: the gradient is the sum
 *
 * (As GSPMD's shardings, Xu et al. 2021, and DTensor's placements; `shared` into a layer and
 * `parts` out of it are the f and g of Megatron-LM, Shoeybi et al. 2019.) A weight is whole, split
 * or shared; the gradients of a shared one are added up over the devices at the end of a step. */
#ifndef SMP_GRAPH_MODEL_SPLIT_RULE_H
#define SMP_GRAPH_MODEL_SPLIT_RULE_H

#include <stdbool.h>
#include <stdint.h>

enum { SMP_SPLIT_IN = 4 };     /* inputs that a rule tells apart; the rest are as the last */
enum { SMP_SPLIT_BLOCKS = 3 }; /* at most */

typedef enum smp_way { SMP_WHOLE, SMP_SPLIT, SMP_PARTS, SMP_SHARED } smp_way;

/* How a tensor lies. A split dimension is `blocks` runs of equal length, of each of which every
 * device has its part: q, k and v beside each other are three. Two are positions in a zigzag: of
 * the second the last device has the first part, so that in causal attention, where later
 * positions see more, all devices have the same work (as context parallelism of Llama 3, Dubey et
 * al. 2024). */
typedef struct smp_spread {
    uint8_t way; /* smp_way */
    int8_t dim, blocks;
} smp_spread;

/* Which of its parts, in order, is a device's in a block. */
static inline int64_t smp_split_part(int64_t blocks, int64_t devices, int64_t block, int64_t device)
{
    const bool back = blocks == 2 && block == 1;
    return block * devices + (back ? devices - 1 - device : device);
}

/* What a rule says of a tensor or a weight. */
typedef enum smp_split_cell {
    SMP_CELL_WHOLE,
    SMP_CELL_SHARED,
    SMP_CELL_PARTS,
    SMP_CELL_ANY,        /* split along the dimension that is chosen, in as many blocks as chosen */
    SMP_CELL_LAST,       /* the last one, likewise */
    SMP_CELL_QKV,        /* dimension 1, in three blocks */
    SMP_CELL_ZIGZAG,     /* dimension 0, in two */
    SMP_CELL_BIAS_FIRST, /* a bias along the first dimension of what is made, which an op of its own
                            adds after the sum of the parts; the op then has `bias: false` */
    SMP_CELL_BIAS_LAST,  /* along the last one */
    SMP_CELL_DIM0,       /* in one block; of a weight in those of a tensor that is ANY or LAST */
    SMP_CELL_DIM1,
    SMP_CELL_DIM2
} smp_split_cell;

/* A kind that has to know its part beside the weights' has attributes `devices`, `axis` (of its
 * first input) and `blocks` (of its first input, or, if that is in one, of what it makes), or the
 * first of them; splitting sets them. */
struct smp_graph;
struct smp_op;

/* The one thing chosen for an op. */
typedef struct smp_split_choice {
    int8_t rule;   /* of its kind's; -1: every device computes all of it */
    int8_t dim;    /* of ANY; else 0 */
    int8_t blocks; /* of ANY and LAST; else 1. Two: of ANY and dimension 0 alone */
} smp_split_choice;

typedef struct smp_split_rule {
    const char *name; /* NULL ends a kind's rules */
    uint8_t in[SMP_SPLIT_IN], out;
    uint8_t param[8];
    uint32_t divided; /* attributes (bit i: attrs[i]) that are a device's share */
    /* The op becomes one of this kind, which has the same attributes, maybe `devices`, `axis` and
     * `blocks` after them, and exchanges in its calls what no conversion before or after it
     * could. NULL: it stays what it is. */
    const char *kind;
    /* For this op, this choice and so many devices? What the sizes of the split
     * dimensions and of the divided attributes rule out needs no word. NULL: always. */
    bool (*allows)(const struct smp_graph *graph, const struct smp_op *op, smp_split_choice choice,
                   int devices);
} smp_split_rule;

/* Which part of a weight a device has. */
typedef struct smp_part {
    smp_spread spread;
    int32_t index, count; /* 0, 0: it is the whole */
} smp_part;

#endif
