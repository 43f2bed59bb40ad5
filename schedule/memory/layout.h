/* A stage as a list of kernel calls with a place for every value: what the executor interprets and
 * what the memory planner measures.
 *
 * Values of one micro-batch live in: the model's inputs; the stash blocks (kept from one action to
 * a later one, see smp_block); border buffers (made here and sent, or received; one each, see
 * smp_border); the work area of the rank (values of one action only), laid out by smp_interval_pack
 * over the order of calls. All offsets are multiples of 64.
 *
 * Split: the backward is two actions, I (input gradients, and everything that is sent) and W
 * (weight gradients). What W reads, values of the forward pass and gradients of outputs, is kept
 * for it.
 *
 * Overlap: in a graph that says so (smp_graph.overlap) B, unless it is split, puts off weight
 * gradients and makes them while an exchange goes on (graph/split/overlap.h). What they read lives
 * as long.
 *
 * Pairs: where the target runs an op and the one after it as one forward kernel (smp_op_fused),
 * what the second of the two calls writes has its place from the first on: the kernel may run in
 * place of both. A recomputing stage redoes both or neither, one right after the other, so that the
 * bits are those of the first time, unless they are those of two calls (pairs_alike). Where it runs
 * backward_input of two ops as one kernel (smp_op_fused_backward), both of those calls write one
 * array: two calls do the second in place. Where that makes what lies between them again, nobody
 * keeps it.
 *
 * Recompute: of the ops that a mask names the forward action keeps nothing. The backward action (I
 * if split) begins with those of their forward calls whose outputs or saved values the gradients
 * read, directly or through other such calls, into the work area; what W reads goes into a stash
 * block. What repeated calls read of other ops is stashed, what the stage received stays where it
 * is. Neither border buffers nor the loss slot are written a second time.
 *
 * Offload: of the ops that a second mask names, all that would be stashed (outputs and saved
 * values; nothing of what is repeated, nothing in borders) lies in a block that can travel to host
 * memory between the forward action and the backward one. The two name two blocks, AWAY and BACK,
 * of the same size: where a micro-batch does not travel, they are one buffer (memory.h). */
#ifndef SMP_SCHEDULE_MEMORY_LAYOUT_H
#define SMP_SCHEDULE_MEMORY_LAYOUT_H

#include "schedule/memory/memo.h"
#include "graph/model/op.h"
#include "partition/problem/flow.h"
#include "schedule/rules/program.h"

/* Stash blocks of one (chunk, micro-batch). */
typedef enum smp_block {
    SMP_BLOCK_INPUT,  /* from F to B or I. Not split: all that the backward reads of F */
    SMP_BLOCK_WEIGHT, /* from F to W: what weight gradients read */
    SMP_BLOCK_GRAD,   /* from I to W: gradients of outputs; recomputed values that W reads */
    SMP_BLOCK_AWAY,   /* from F until it is stored: what travels to host memory, read by F alone */
    SMP_BLOCK_BACK,   /* from the load to B, I or W: the same values at the same offsets */
    SMP_N_BLOCK
} smp_block;

typedef enum smp_space {
    SMP_SPACE_NONE,   /* no buffer: a NULL pointer */
    SMP_SPACE_INPUT,  /* index: model input */
    SMP_SPACE_STASH,  /* index: smp_block of the (chunk, micro-batch); offset in it */
    SMP_SPACE_WORK,   /* offset in the rank's work area */
    SMP_SPACE_BORDER, /* index: border of this stage */
    SMP_SPACE_LOSS,   /* the micro-batch's loss slot */
    /* the micro-batch's share of the global batch */
    SMP_SPACE_LOSS_GRADIENT
} smp_space;

typedef struct smp_ref {
    smp_space space;
    int32_t index;
    int64_t offset;
} smp_ref;

typedef enum smp_border_kind {
    SMP_BORDER_OUT,      /* activation made here, read by other stages */
    SMP_BORDER_IN,       /* activation made by an earlier stage */
    SMP_BORDER_GRAD_OUT, /* gradient (partial sum) for an earlier stage */
    SMP_BORDER_GRAD_IN   /* gradient (partial sum) from a later stage */
} smp_border_kind;

/* A buffer of (stage, micro-batch) that a transfer fills or empties. */
typedef struct smp_border {
    smp_border_kind kind;
    int32_t tensor;
    int32_t transfer; /* IN, GRAD_IN, GRAD_OUT: the transfer; OUT: -1 (all F transfers of tensor) */
    int64_t bytes;
    bool in_backward; /* OUT, IN: read by this stage's backward (B, I or W) too, or to repeat a
                        call */
    bool in_weight;   /* OUT, IN, GRAD_IN of a split backward: read by W */
} smp_border;

/* Addresses of one op's forward call, and of its call in B or I. Arrays of inputs are [n_in] of the
 * op, those of outputs [n_out]. */
typedef struct smp_layout_call {
    int32_t op;
    bool pair;         /* this call and the next, in F, may be one forward_fused */
    bool input_pair;   /* this call and the one before, whose instruction comes next, may be one
                          backward_input_fused */
    const smp_ref *in; /* forward inputs */
    const smp_ref *out;
    smp_ref aux;
    smp_ref forward_workspace;
    const smp_ref *backward_in;  /* NONE where the action does not need the value */
    const smp_ref *backward_out; /* likewise, and aux */
    smp_ref backward_aux;
    const smp_ref *dout; /* of I and W too; NONE of int32 outputs, and if the op has no backward */
    const smp_ref *din;  /* NONE where no gradient is wanted */
    smp_ref backward_workspace;
    smp_ref plus; /* what backward_input adds its gradient to */
} smp_layout_call;

/* Addresses of a forward call that the backward action repeats. */
typedef struct smp_layout_redo {
    const smp_ref *in, *out;
    smp_ref aux, workspace;
    bool pair; /* this call and the next, repeated after it, may be one forward_fused */
} smp_layout_redo;

/* Addresses of an op's call in W, or of one that is put off in B; dout is that of
 * smp_layout_call. */
typedef struct smp_layout_weight {
    const smp_ref *in; /* NONE where backward_weight does not need the value */
    smp_ref aux, workspace;
} smp_layout_weight;

typedef enum smp_instr_kind {
    SMP_INSTR_BACKWARD,  /* backward_weight and backward_input of call `call` */
    SMP_INSTR_INPUT,     /* backward_input alone */
    SMP_INSTR_BEGIN,     /* backward_input begun; instructions of W follow, then */
    SMP_INSTR_END,       /* ... it is ended */
    SMP_INSTR_WEIGHT,    /* backward_weight alone, by layout->weight */
    SMP_INSTR_RECOMPUTE, /* forward of call `call` again, by layout->redo */
    SMP_INSTR_COPY,      /* dst = src */
    SMP_INSTR_ADD,       /* dst += src */
    SMP_INSTR_ZERO       /* dst = 0: the gradient of an output that adds nothing to the loss */
} smp_instr_kind;

typedef struct smp_instr {
    smp_instr_kind kind;
    int32_t call;
    smp_ref dst, src;
    int64_t elements; /* of the type */
    smp_dtype dtype;  /* SMP_F32, SMP_BF16 or SMP_F16 */
} smp_instr;

typedef struct smp_layout {
    int32_t stage;
    bool split; /* the backward is I and W; B still works: I, then W. Only of a graph that trains */
    int32_t n_call, n_instr, n_weight_instr, n_border;
    const smp_layout_call *call;     /* forward order */
    const smp_layout_redo *redo;     /* [n_call], of those repeated; NULL if none is */
    const smp_layout_weight *weight; /* [n_call] if split or some are put off, else NULL */
    const smp_instr *instr;          /* of B or I; empty when not training */
    const smp_instr *weight_instr;   /* of W; empty unless split */
    const smp_border *border;
    int64_t block_bytes[SMP_N_BLOCK]; /* stash blocks of one micro-batch, without borders */
    bool back_in_weight;              /* split: W reads of SMP_BLOCK_BACK */
    int64_t forward_work_bytes;       /* the work area must hold the largest */
    int64_t backward_work_bytes;
    int64_t weight_work_bytes;
    smp_arena *arena;
} smp_layout;

/* Has the program an I of the chunk? Then its layout is for split backwards. O(actions). */
bool smp_layout_is_split(const smp_program *program, int chunk);

/* Lays out one stage. `split` and the masks are ignored unless the graph trains. recompute: [n_op]
 * of the graph, ops whose forward may run again in the backward action, or NULL: none; who names
 * one of a tied pair means both. offload: [n_op], ops whose stash may travel, or NULL: none; of
 * those that are in both, what is repeated is not stashed. Ops without kernels (opaque) count by
 * their costs. */
smp_status smp_layout_build(const smp_graph *graph, const smp_flow *flow, int stage, bool split,
                            const bool *recompute, const bool *offload, smp_layout **out);

/* The same without calls and instructions (none: counts are 0), which are most of its memory: all
 * that the memory planner reads. memo: sizes of work areas, which many layouts have in common;
 * NULL: none. */
smp_status smp_layout_measure(const smp_graph *graph, const smp_flow *flow, int stage, bool split,
                              const bool *recompute, const bool *offload, smp_memo *memo,
                              smp_layout **out);
void smp_layout_destroy(smp_layout *layout);

/* What the layout needs of the work area of its rank. */
static inline int64_t smp_layout_work_bytes(const smp_layout *layout)
{
    int64_t bytes = layout->forward_work_bytes;
    if (bytes < layout->backward_work_bytes)
        bytes = layout->backward_work_bytes;
    return bytes < layout->weight_work_bytes ? layout->weight_work_bytes : bytes;
}

/* Border of a stage by kind and tensor (OUT) or transfer (others); -1 if none. */
int32_t smp_layout_border(const smp_layout *layout, smp_border_kind kind, int32_t key);

/* Best-fit packing of intervals: places `n` buffers of bytes[i] that are alive from begin[i] to
 * end[i] (inclusive) so that no two overlap in time and space. Offsets are multiples of `align`.
 * *total: bytes needed; *bound: the largest sum alive at one time, a lower bound. Larger first,
 * then earlier, then lower index. align: a multiple of 64. O(n log n + n * overlaps). */
smp_status smp_interval_pack(int64_t n, const int64_t *bytes, const int64_t *begin,
                             const int64_t *end, int64_t align, int64_t *offset, int64_t *total,
                             int64_t *bound);

#endif
