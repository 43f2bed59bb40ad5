/* The formats that schedules of others are read from: X(id) is smp__foreign_<id>, in a file of its
 * own. Recognised in this order. */
#ifndef SMP_SCHEDULE_FOREIGN_FOREIGN_READERS_H
#define SMP_SCHEDULE_FOREIGN_FOREIGN_READERS_H

#include "schedule/foreign/foreign.h"

#define SMP_FOREIGN_LIST(X)                                                                        \
    X(deepspeed_parts)                                                                             \
    X(torch_csv)                                                                                   \
    X(megatron_layout)

#define SMP_FOREIGN_DECLARE(id) extern const smp_foreign_reader smp__foreign_##id;
SMP_FOREIGN_LIST(SMP_FOREIGN_DECLARE)
#undef SMP_FOREIGN_DECLARE

/* Appends an action to a rank. */
smp_status smp__foreign_push(smp_foreign_rank *rank, smp_foreign_action action);
/* Fills the ranks with 1F1B (interleaved where a rank has several stages, dealt out in turn): the
 * order in which frameworks that only say which layers lie where run them. n_rank, n_stage and
 * microbatches are set. */
smp_status smp__foreign_order_1f1b(smp_foreign *foreign);

#endif
