/* Bytes of files in memory that ranks send each other, from where they lie to where they are to
 * lie: each message is some spans of a file, at the same offsets on both sides. */
#ifndef SMP_EXEC_SAVE_BYTE_MESSAGES_H
#define SMP_EXEC_SAVE_BYTE_MESSAGES_H

#include "exec/checkpoint/byte_spans.h"
#include "exec/transport/comm.h"

/* Messages that are sent again and again; one at a time is under way. Zero-initialise. */
typedef struct smp__byte_messages {
    struct smp__byte_message *message;
    MPI_Request *request; /* [n], of those under way */
    int n, room;
    int64_t bytes;
} smp__byte_messages;

/* To or from a rank of the world, in the order of the other side's. */
smp_status smp__byte_messages_add(smp__byte_messages *m, int rank, bool sends,
                                  const smp__spans *spans);
/* Starts those that are sent, or those that are received, of a file that lies at `base`. */
smp_status smp__byte_messages_begin(smp__byte_messages *m, smp_comm *comm, bool sends, char *base);
/* How many of those that were started are not done. */
smp_status smp__byte_messages_test(smp__byte_messages *m, int *left);
/* None may be under way, unless the job has failed: then memory stays. */
void smp__byte_messages_free(smp__byte_messages *m, const smp_comm *comm);

#endif
