/* Programs: what one pipeline rank does in a step, as a list of actions, and their text form
 * "F0.0 >F0.0 <B0.0 B0.0 R.0 O" (schedule/plan/FORMAT.md). */
#ifndef SMP_SCHEDULE_RULES_PROGRAM_H
#define SMP_SCHEDULE_RULES_PROGRAM_H

#include <stdbool.h>

#include "graph/base/text.h"

typedef enum smp_action_kind {
    SMP_ACTION_F,      /* forward */
    SMP_ACTION_B,      /* full backward */
    SMP_ACTION_I,      /* input gradients */
    SMP_ACTION_W,      /* weight gradients */
    SMP_ACTION_SEND_F, /* >F: start sending the activations F made; never blocks */
    SMP_ACTION_RECV_F, /* <F: the activations F needs from other ranks; posted here at the latest */
    SMP_ACTION_SEND_B, /* >B */
    SMP_ACTION_RECV_B, /* <B */
    SMP_ACTION_REDUCE, /* R.c: start reducing the weight gradients of chunk c */
    SMP_ACTION_OPTIMIZE /* O: finish all reductions, then the optimizer */
} smp_action_kind;

typedef struct smp_action {
    smp_action_kind kind;
    int32_t microbatch; /* -1 for R and O */
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

smp_status smp_program_push(smp_program *program, smp_action_kind kind, int microbatch, int chunk);
void smp_program_free(smp_program *program); /* frees the actions, not the struct */

/* Appends the text of one action / a program. */
void smp_action_format(const smp_action *action, smp_text *text);
void smp_program_format(const smp_program *program, smp_text *text);
/* Errors: SMP_ERR_INPUT at `where` with the rank given, the position and text of the bad action. */
smp_status smp_program_parse(const char *text, int rank, smp_where where, smp_program *out);

#endif
