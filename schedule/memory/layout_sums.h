/* Sums of gradients while the backward half of a stage is laid out.
 *
 * The first contribution to a fold (partition/problem/flow.h) is written where the sum lives, later
 * ones go through a temporary, or are added by the call that makes them (input_grad_adds). Where an
 * op passes its output's gradient on as it is (passes_dout), that array is the contribution: no
 * call makes one. A sum that begins so is shared with who else reads the array, and nothing is
 * written to it: what comes next is added in a place of its own.
 *
 * A sum that another stage needs lives in its border buffer; one that starts with a received
 * partial sum and is used here grows in the buffer it was received in; others live in the work area
 * until the producer's backward call, or, if weight gradients of a split backward read them, in a
 * stash block. */
#ifndef SMP_SCHEDULE_MEMORY_LAYOUT_SUMS_H
#define SMP_SCHEDULE_MEMORY_LAYOUT_SUMS_H

#include "schedule/memory/layout_build.h"

/* A fold while its sources are added. */
typedef struct smp__fold_state {
    int32_t next; /* source to add next */
    bool placed;
    bool shared; /* the sum so far is another's array, which is only read */
    smp_ref sum;
} smp__fold_state;

typedef struct smp__backward_build {
    smp__layout_build *base;
    int32_t fold_first;     /* of this stage, in flow->fold */
    smp__fold_state *state; /* [folds of the stage] */
    int32_t *home;          /* [n_value] fold of its gradient here, or -1 */
    bool *in_weight;        /* [n_call] weight gradients read the array of its output's gradient */
    int64_t *slot_begin;    /* [n_call + 1] into the next two */
    int32_t *slot_fold;     /* fold that an input gradient belongs to, or -1 */
    int32_t *slot_source;
    smp_ref **backward_in;     /* [n_call] call[i].backward_in, still to be resolved */
    smp_ref **backward_out;    /* [n_call] likewise */
    smp_ref **dout;            /* [n_call] likewise */
    smp_layout_redo *redo;     /* [n_call] or NULL */
    smp_layout_weight *weight; /* [n_call] or NULL */
    bool late;                 /* weight gradients are put off, in B */
    int32_t *last_beside;      /* [n_call] the last call that runs beside it; itself: none */
    smp_instr *instr;          /* malloc'ed */
    size_t n_instr, capacity;
    smp__work work;
} smp__backward_build;

/* For each input slot and each output of the stage, the fold it belongs to. */
smp_status smp__sums_open(smp__backward_build *b);

smp_status smp__sums_emit(smp__backward_build *b, smp_instr instr);
smp_status smp__sums_emit_sum(smp__backward_build *b, smp_instr_kind kind, int32_t tensor,
                              smp_ref dst, smp_ref src);

/* Room for a value born at an instruction: read by W too, or by this action only. */
smp_status smp__backward_place(smp__backward_build *b, bool weight, int64_t bytes, int64_t time,
                               smp_ref *ref);

/* Adds the received partial sums of a fold that are next in order. */
smp_status smp__sums_receive(smp__backward_build *b, int32_t fold);
/* Before the backward call: a place for the gradient of one input, and what the call adds to it. */
smp_status smp__sums_place(smp__backward_build *b, int32_t call, int32_t slot, smp_ref *din);
/* After the backward call: adds it to the sum, unless it began the sum or was added. */
smp_status smp__sums_add(smp__backward_build *b, int32_t call, int32_t slot, smp_ref din);
/* The gradient of one input of an op that passes on that of its output. */
smp_status smp__sums_pass(smp__backward_build *b, int32_t call, int32_t slot, smp_ref dout);

#endif
