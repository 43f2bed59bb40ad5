/* A stage as a list of kernel calls with a place for every value: what the executor interprets and
 * what the memory planner measures.
 *
 * Values of one micro-batch live in: the model's inputs; the stash block (kept from forward to
 * backward); border buffers (made here and sent, or received; one each, see smp_border); the work
 * area of the rank (values of one action only). Blocks are laid out by smp_interval_pack over the
 * order of calls. All offsets are multiples of 64. */
#ifndef SMP_SCHEDULE_LAYOUT_H
#define SMP_SCHEDULE_LAYOUT_H

#include "graph/op.h"
#include "schedule/flow.h"

typedef enum smp_space {
    SMP_SPACE_NONE,   /* no buffer: a NULL pointer */
    SMP_SPACE_INPUT,  /* index: model input */
    SMP_SPACE_STASH,  /* offset in the (chunk, micro-batch) stash block */
    SMP_SPACE_WORK,   /* offset in the rank's work area */
    SMP_SPACE_BORDER, /* index: border of this stage */
    SMP_SPACE_LOSS,   /* the micro-batch's loss slot */
    SMP_SPACE_SEED    /* constant gradient of the loss: 1 / (microbatches * ddp) */
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
    bool in_backward; /* OUT, IN: read by this stage's backward too */
} smp_border;

/* Addresses of one op's calls. Arrays are [n_in] of the op. */
typedef struct smp_layout_call {
    int32_t op;
    const smp_ref *in; /* forward inputs */
    smp_ref out;
    smp_ref aux;
    smp_ref forward_workspace;
    const smp_ref *backward_in; /* NONE where backward does not need the value */
    smp_ref backward_out;       /* NONE unless needed */
    smp_ref dout;               /* NONE: this op has no backward */
    const smp_ref *din;         /* NONE where no gradient is wanted */
    smp_ref backward_workspace;
} smp_layout_call;

typedef enum smp_instr_kind {
    SMP_INSTR_BACKWARD, /* backward_weight and backward_input of call `call` */
    SMP_INSTR_COPY,     /* dst = src */
    SMP_INSTR_ADD       /* dst += src, floats */
} smp_instr_kind;

typedef struct smp_instr {
    smp_instr_kind kind;
    int32_t call;
    smp_ref dst, src;
    int64_t elements; /* floats */
} smp_instr;

typedef struct smp_layout {
    int32_t stage;
    int32_t n_call, n_instr, n_border;
    const smp_layout_call *call; /* forward order */
    const smp_instr *instr;      /* backward order; empty when not training */
    const smp_border *border;
    int64_t stash_bytes;        /* block of one micro-batch, without borders */
    int64_t forward_work_bytes; /* the work area must hold the larger */
    int64_t backward_work_bytes;
    smp_arena *arena;
} smp_layout;

/* Lays out one stage. `recompute`: see partition/problem.h. Ops without kernels (opaque) count by
 * their costs: `stash_bytes` [n_op] may be NULL, else gives what such an op stashes. */
smp_status smp_layout_build(const smp_graph *graph, const smp_flow *flow, int stage, bool recompute,
                            const int64_t *stash_bytes, smp_layout **out);
void smp_layout_destroy(smp_layout *layout);

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
