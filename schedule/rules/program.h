/* Programs: what one pipeline rank does in a step, as a list of actions, and their text form
 * "F0.0 >F0.0 <B0.0 B0.0 R.0 O" (schedule/plan/FORMAT.md). */
#ifndef SMP_SCHEDULE_RULES_PROGRAM_H
#define SMP_SCHEDULE_RULES_PROGRAM_H

#include <stdbool.h>

#include "graph/base/text.h"

/* Actions: identifier, text, what the rank does in one word. Compute actions come first. */
#define SMP_ACTION_LIST(X)                                                                         \
    X(F, "F", "forward")       /* forward */                                                       \
    X(B, "B", "backward")      /* full backward */                                                 \
    X(I, "I", "backward")      /* input gradients */                                               \
    X(W, "W", "backward")      /* weight gradients */                                              \
    X(SEND_F, ">F", "send")    /* start sending the activations F made; never blocks */            \
    X(RECV_F, "<F", "receive") /* the activations F needs of other ranks; posted by here */        \
    X(SEND_B, ">B", "send")    /* the same of gradients */                                         \
    X(RECV_B, "<B", "receive")                                                                     \
    X(STORE, "S", "offload") /* start moving what F left for the backward to host memory */        \
    X(LOAD, "L", "offload")  /* start moving it back */                                            \
    X(GATHER, "G", "gather") /* G.c: start gathering the weights of chunk c in its shard group */  \
    X(DROP, "D", "drop")     /* D.c: they are not needed until the next G.c */                     \
    X(REDUCE, "R", "reduce") /* R.c: start reducing the weight gradients of chunk c */             \
    X(ALL, "A", "reduce")    /* A.c: that is done; sharded, their sums over groups start */        \
    X(OPTIMIZE, "O", "optimizer") /* O: finish all reductions, then the optimizer */

typedef enum smp_action_kind {
#define SMP_ACTION_ENUM(id, text, word) SMP_ACTION_##id,
    SMP_ACTION_LIST(SMP_ACTION_ENUM)
#undef SMP_ACTION_ENUM
} smp_action_kind;

typedef struct smp_action {
    smp_action_kind kind;
    int32_t microbatch; /* -1 from G on */
    int32_t chunk;      /* -1 for O */
} smp_action;

typedef struct smp_program {
    smp_action *action;
    int64_t n;
    size_t capacity;
} smp_program;

static inline bool smp_action_is_compute(smp_action_kind kind)
{
    return kind <= SMP_ACTION_W;
}

/* A `>` or `<`? */
static inline bool smp_action_is_message(smp_action_kind kind)
{
    return kind >= SMP_ACTION_SEND_F && kind <= SMP_ACTION_RECV_B;
}

/* Is it of one micro-batch? Else of a chunk, or O of all. */
static inline bool smp_action_has_microbatch(smp_action_kind kind)
{
    return kind < SMP_ACTION_GATHER;
}

smp_status smp_program_push(smp_program *program, smp_action_kind kind, int microbatch, int chunk);
void smp_program_free(smp_program *program); /* frees the actions, not the struct */

/* "F", ">B"; "?" for what is no action. These two may be called in a signal handler. */
const char *smp_action_letters(smp_action_kind kind);
/* "forward", "send"; "other" for what is no action. */
const char *smp_action_word(smp_action_kind kind);

/* Appends the text of one action / a program. */
void smp_action_format(const smp_action *action, smp_text *text);
void smp_program_format(const smp_program *program, smp_text *text);
/* Errors: SMP_ERR_INPUT at `where` with the rank given, the position and text of the bad action. */
smp_status smp_program_parse(const char *text, int rank, smp_where where, smp_program *out);

#endif
