/* Tensors between stages. */
#ifndef SMP_EXEC_STEP_MESSAGES_H
#define SMP_EXEC_STEP_MESSAGES_H

#include "exec/state/handle.h"

/* A tied weight's accumulator on its way from / to another rank. */
typedef struct smp__tie_message {
    int32_t use; /* graph use */
    int peer;
    int chunk;      /* outgoing: of the accumulator; incoming: -1 */
    int lane;       /* index in smp.lanes */
    int64_t offset; /* in the arena, which is reserved later than lanes are opened */
    smp_request request;
} smp__tie_message;

smp_status smp__messages_build(smp *s); /* after the transport was opened */
void smp__messages_free(smp *s);
smp_status smp__messages_post(smp *s, smp_memory_message message);
smp_status smp__messages_send(smp *s, int chunk, int microbatch, smp_transfer_kind kind);
/* With record_trace: notes which messages have arrived. */
smp_status smp__messages_look(smp *s);
/* Waits until everything that a forward (F) or backward (B) needs is there. */
smp_status smp__messages_arrive(smp *s, int chunk, int microbatch, smp_transfer_kind kind);
/* Waits until a send of this rank is complete. */
smp_status smp__messages_sent(smp *s, smp_memory_message message);
/* Waits for one message, with the watchdog. */
smp_status smp__messages_wait(smp *s, smp__channel *channel, int microbatch);
smp_status smp__messages_wait_tie(smp *s, smp__tie_message *tie);

#endif
