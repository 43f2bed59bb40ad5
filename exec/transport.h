/* The transport interface: moving tensors between ranks. One static smp_transport per file, listed
 * in exec/transport.c. Nothing blocks: everything is started, then tested; data moves only while
 * somebody tests, so the executor tests between operators. */
#ifndef SMP_EXEC_TRANSPORT_H
#define SMP_EXEC_TRANSPORT_H

#include "exec/comm.h"

/* A message in flight; storage owned by the executor, contents by the transport. */
typedef struct smp_request {
    void *handle;
    bool active;
} smp_request;

typedef struct smp_reduction smp_reduction; /* an all-reduce in flight */

typedef struct smp_transport {
    const char *name;
    const char *summary;
    int64_t max_message_bytes;
    int64_t max_reduce_elements;
    /* reductions: how many may be in flight or queued at the same time. */
    smp_status (*open)(smp_comm *comm, int reductions, void **context);
    void (*close)(void *context);
    /* Largest tag a message may carry; both ends of a message use one tag, unique in a step. */
    int64_t (*max_tag)(void *context);
    /* To / from a rank of the same pipeline. The buffer stays with the transport until done. */
    smp_status (*send)(void *context, int peer, int64_t tag, const void *data, int64_t bytes,
                       smp_request *request);
    smp_status (*receive)(void *context, int peer, int64_t tag, void *data, int64_t bytes,
                          smp_request *request);
    /* Also makes progress on everything else in flight. An inactive request is done. */
    smp_status (*test)(void *context, smp_request *request, bool *done);
    /* Progress alone. */
    smp_status (*progress)(void *context);
    /* Starts a sum over the replicas, in place, in an order that depends only on count and replica numbers;
     * every replica ends with the same bits. count is a multiple of the number of replicas. All
     * replicas ask for the same reductions in the same order. */
    smp_status (*reduce)(void *context, float *data, int64_t count, smp_reduction **out);
    /* Sets *reduction to NULL when done. */
    smp_status (*reduce_test)(void *context, smp_reduction **reduction, bool *done);
} smp_transport;

const smp_transport *smp_transport_find(const char *name); /* NULL if unknown */
const smp_transport *const *smp_transports(void);          /* NULL-terminated */

#endif
